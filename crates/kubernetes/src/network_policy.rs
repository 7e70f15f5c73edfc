//! A template's network policy as rules of the daemon's. Pure.
//!
//! A daemon knows addresses and names, and no pods: rules that select pods or namespaces are refused.

use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicyEgressRule, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kinds::{NetworkPolicyManagement, SandboxTemplateSpec};
use crate::native::NativePolicy;
use crate::workload::WorkloadRefusal;

/// What sandboxes of a template may reach, and who may reach them; `None` where the daemon's own defaults hold.
///
/// # Errors
/// The first rule that the daemon has nothing for.
pub(crate) fn policy(spec: &SandboxTemplateSpec) -> Result<Option<NativePolicy>, WorkloadRefusal> {
    if spec.network_policy_management == NetworkPolicyManagement::Unmanaged {
        return Ok(None);
    }
    let Some(wanted) = &spec.network_policy else {
        // As upstream: the public internet and nothing of the cluster's, and no way in but the router's, which is the daemon here.
        return Ok(Some(NativePolicy {
            internet: true,
            allow: Vec::new(),
            deny: Vec::new(),
            public_ports: false,
        }));
    };
    if !wanted.ingress.is_empty() {
        return refuse(
            "ingress",
            "callers reach sandboxes by their daemon alone, and show it a token; leave `ingress` empty",
        );
    }
    let mut found = NativePolicy {
        internet: false,
        allow: Vec::new(),
        deny: Vec::new(),
        public_ports: false,
    };
    for (number, rule) in wanted.egress.iter().enumerate() {
        add(&mut found, &format!("egress[{number}]"), rule)?;
    }
    let has_ports = wanted
        .egress
        .iter()
        .any(|rule| rule.ports.as_ref().is_some_and(|ports| !ports.is_empty()));
    if found.internet && has_ports {
        return refuse(
            "egress",
            "ports of some addresses change nothing beside all addresses: leave those rules out",
        );
    }
    Ok(Some(found))
}

fn refuse<T>(place: &str, reason: &str) -> Result<T, WorkloadRefusal> {
    Err(WorkloadRefusal {
        field: format!("spec.networkPolicy.{place}"),
        reason: reason.to_owned(),
    })
}

fn add(found: &mut NativePolicy, place: &str, rule: &NetworkPolicyEgressRule) -> Result<(), WorkloadRefusal> {
    let ports = ports(place, rule.ports.as_deref().unwrap_or_default())?;
    let peers = rule.to.as_deref().unwrap_or_default();
    if peers.is_empty() {
        return refuse(
            &format!("{place}.to"),
            "nothing is said, which is everything: name `ipBlock`s",
        );
    }
    for peer in peers {
        let Some(block) = &peer.ip_block else {
            return refuse(
                &format!("{place}.to"),
                "daemons know no pods and no namespaces: name `ipBlock`s",
            );
        };
        add_block(found, place, block, ports.as_deref())?;
    }
    Ok(())
}

fn add_block(
    found: &mut NativePolicy,
    place: &str,
    block: &IPBlock,
    ports: Option<&str>,
) -> Result<(), WorkloadRefusal> {
    let except = block.except.as_deref().unwrap_or_default();
    let is_everything = matches!(block.cidr.as_str(), "0.0.0.0/0" | "::/0");
    match (is_everything, ports) {
        // Addresses that are not public are never reached this way, whether they are excepted or not.
        (true, None) => found.internet = true,
        (true, Some(_)) => {
            return refuse(
                &format!("{place}.ports"),
                "ports of all addresses cannot be told apart: name smaller blocks",
            );
        }
        (false, _) if !except.is_empty() => {
            return refuse(
                &format!("{place}.to.ipBlock.except"),
                "exceptions are of `0.0.0.0/0` and `::/0` alone",
            );
        }
        (false, None) => found.allow.push(block.cidr.clone()),
        (false, Some(ports)) => found.allow.push(format!("{}:{ports}", block.cidr)),
    }
    for excepted in except {
        found.deny.push(excepted.clone());
    }
    Ok(())
}

/// Ports as the daemon's rules have them, `443,8000-8100`; `None` is all.
fn ports(place: &str, ports: &[NetworkPolicyPort]) -> Result<Option<String>, WorkloadRefusal> {
    let mut words = Vec::new();
    for port in ports {
        if port.protocol.as_deref().unwrap_or("TCP") != "TCP" {
            return refuse(
                &format!("{place}.ports"),
                "sandboxes have TCP; names are resolved by the daemon",
            );
        }
        match (&port.port, port.end_port) {
            (Some(IntOrString::Int(first)), None) => words.push(first.to_string()),
            (Some(IntOrString::Int(first)), Some(last)) => words.push(format!("{first}-{last}")),
            (None, None) => return Ok(None),
            _ => return refuse(&format!("{place}.ports"), "ports are numbers"),
        }
    }
    Ok((!words.is_empty()).then(|| words.join(",")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(policy_of_template: Value) -> Result<Option<NativePolicy>, WorkloadRefusal> {
        policy(&serde_json::from_value(json!({ "podTemplate": {}, "networkPolicy": policy_of_template })).unwrap())
    }

    #[test]
    fn nothing_said_is_the_public_internet_and_no_way_in() {
        let policy = policy(&SandboxTemplateSpec::default()).unwrap().unwrap();
        assert!(policy.internet && !policy.public_ports && policy.allow.is_empty());
        let unmanaged = json!({ "podTemplate": {}, "networkPolicyManagement": "Unmanaged" });
        assert_eq!(super::policy(&serde_json::from_value(unmanaged).unwrap()), Ok(None));
    }

    #[test]
    fn blocks_of_addresses_become_rules() {
        let policy = of(json!({})).unwrap().unwrap();
        assert!(!policy.internet && policy.allow.is_empty());
        let policy = of(json!({ "egress": [
            { "to": [{ "ipBlock": { "cidr": "10.1.0.0/16" } }], "ports": [{ "port": 443 }, { "port": 8000, "endPort": 8100 }] },
            { "to": [{ "ipBlock": { "cidr": "192.0.2.7/32" } }] },
        ] }));
        let policy = policy.unwrap().unwrap();
        assert_eq!(policy.allow, ["10.1.0.0/16:443,8000-8100", "192.0.2.7/32"]);
        let policy = of(json!({ "egress": [
            { "to": [{ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["198.51.100.0/24"] } }] },
        ] }));
        let policy = policy.unwrap().unwrap();
        assert_eq!(
            (policy.internet, policy.deny),
            (true, vec!["198.51.100.0/24".to_owned()])
        );
    }

    #[test]
    fn what_selects_pods_is_refused_by_its_name() {
        for (rules, field) in [
            (json!({ "ingress": [{}] }), "ingress"),
            (
                json!({ "egress": [
                    { "to": [{ "ipBlock": { "cidr": "0.0.0.0/0" } }] },
                    { "to": [{ "ipBlock": { "cidr": "1.1.1.0/24" } }], "ports": [{ "port": 443 }] },
                ] }),
                "egress",
            ),
            (json!({ "egress": [{}] }), "egress[0].to"),
            (json!({ "egress": [{ "to": [{ "podSelector": {} }] }] }), "egress[0].to"),
            (
                json!({ "egress": [{ "to": [{ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] } }] }] }),
                "egress[0].to.ipBlock.except",
            ),
            (
                json!({ "egress": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0" } }], "ports": [{ "port": 1 }] }] }),
                "egress[0].ports",
            ),
            (
                json!({ "egress": [{ "to": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }], "ports": [{ "port": 53, "protocol": "UDP" }] }] }),
                "egress[0].ports",
            ),
            (
                json!({ "egress": [{ "to": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }], "ports": [{ "port": "http" }] }] }),
                "egress[0].ports",
            ),
        ] {
            assert_eq!(of(rules).unwrap_err().field, format!("spec.networkPolicy.{field}"));
        }
    }
}
