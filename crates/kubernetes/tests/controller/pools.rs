//! Pools, and claims on them.

use serde_json::{Value, json};

use super::site::{CLAIMS, POOLS, SANDBOXES, Site, TEMPLATES, condition, container};

fn members(site: &Site, pool: &str) -> Vec<Value> {
    let all = site.api.all(SANDBOXES.0, SANDBOXES.1);
    let is_member = |object: &Value| {
        object["metadata"]["ownerReferences"][0]["kind"] == "SandboxWarmPool"
            && object["metadata"]["name"].as_str().unwrap().starts_with(pool)
            && object["metadata"]["deletionTimestamp"].is_null()
    };
    all.into_iter().filter(is_member).collect()
}

#[test]
fn a_claim_gets_a_sandbox_that_waited_and_the_pool_is_filled_again() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.template("python", &container());
    site.pool("pool", "python", 2, "OnReplenish");
    let pool = site.wait(POOLS, "pool", |object| object["status"]["readyReplicas"] == 2);
    assert_eq!(
        (&pool["status"]["replicas"], &pool["status"]["observedGeneration"]),
        (&json!(2), &json!(1))
    );
    let waiting: Vec<Value> = members(&site, "pool")
        .iter()
        .map(|object| object["metadata"]["name"].clone())
        .collect();
    site.claim("mine", "pool", &json!({}));
    let claim = site.wait(CLAIMS, "mine", |object| condition(object, "Ready")["status"] == "True");
    let name = claim["status"]["sandbox"]["name"].as_str().unwrap().to_owned();
    assert!(waiting.contains(&json!(name)));
    assert_eq!(claim["status"]["sandbox"]["podIPs"], json!(["127.0.0.1"]));
    site.wait(CLAIMS, "mine", |object| {
        object["metadata"]["annotations"]["agents.x-k8s.io/sandbox-name"] == name.as_str()
    });
    let sandbox = site.get(SANDBOXES, &name).unwrap();
    assert_eq!(
        sandbox["metadata"]["ownerReferences"][0]["uid"],
        claim["metadata"]["uid"]
    );
    assert!(sandbox["metadata"]["labels"]["agents.x-k8s.io/warm-pool-sandbox"].is_null());
    // By the template's default policy: the public internet, and no way in without a token.
    assert_eq!(
        site.daemons[0].all()[0]["policy"],
        json!({ "internet": true, "allow": [], "deny": [], "public_ports": false })
    );
    site.until("the pool's new member", || {
        (site.made() == 3 && members(&site, "pool").len() == 2).then_some(())
    });

    // The claim's end is the sandbox's, and no pool's.
    site.delete(CLAIMS, "mine");
    site.wait_gone(SANDBOXES, &name);
    site.until("two sandboxes", || (site.made() == 2).then_some(()));
    site.change(POOLS, "pool", &json!({ "spec": { "replicas": 0 } }));
    site.until("an empty pool", || {
        (site.made() == 0 && members(&site, "pool").is_empty()).then_some(())
    });
}

#[test]
fn a_claim_that_wants_more_is_made_a_sandbox_of_its_own() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.template("python", &container());
    site.change(
        TEMPLATES,
        "python",
        &json!({ "spec": { "envVarsInjectionPolicy": "Allowed" } }),
    );
    site.pool("pool", "python", 0, "OnReplenish");
    site.claim(
        "own",
        "pool",
        &json!({
            "env": [{ "name": "TOKEN", "value": "t" }], "additionalPodMetadata": { "labels": { "team": "a" } },
        }),
    );
    let claim = site.wait(CLAIMS, "own", |object| condition(object, "Ready")["status"] == "True");
    assert_eq!(claim["status"]["sandbox"]["name"], "own");
    assert_eq!(site.daemons[0].all()[0]["env"], json!({ "TOKEN": "t" }));
    assert_eq!(
        site.get(("v1", "pods"), "own").unwrap()["metadata"]["labels"]["team"],
        "a"
    );

    // What cannot be is said at the claim.
    site.claim("storage", "pool", &json!({ "volumeClaimTemplates": [{}] }));
    site.wait(CLAIMS, "storage", |object| {
        condition(object, "Ready")["reason"] == "VolumeClaimTemplatesError"
    });
    site.change(
        TEMPLATES,
        "python",
        &json!({ "spec": { "envVarsInjectionPolicy": "Disallowed" } }),
    );
    site.claim("env", "pool", &json!({ "env": [{ "name": "TOKEN", "value": "t" }] }));
    site.wait(CLAIMS, "env", |object| {
        condition(object, "Ready")["reason"] == "EnvVarsError"
    });
    // A claim on a pool that is not there is nobody's; one on another controller's pool is that one's.
    site.claim("nowhere", "none", &json!({}));
    // Two more, of which one is over.
    site.claim(
        "kept",
        "pool",
        &json!({ "lifecycle": { "shutdownTime": "2026-01-01T00:00:00Z" } }),
    );
    site.wait(CLAIMS, "kept", |object| {
        condition(object, "Ready")["reason"] == "ClaimExpired"
    });
    site.claim(
        "gone",
        "pool",
        &json!({ "lifecycle": { "shutdownTime": "2026-01-01T00:00:00Z", "shutdownPolicy": "DeleteForeground" } }),
    );
    site.wait_gone(CLAIMS, "gone");
    site.change(
        CLAIMS,
        "own",
        &json!({ "spec": { "lifecycle": { "shutdownTime": "2026-01-01T00:00:00Z" } } }),
    );
    site.wait(CLAIMS, "own", |object| {
        condition(object, "Ready")["reason"] == "ClaimExpired"
    });
    site.wait_gone(SANDBOXES, "own");
    assert_eq!(site.made(), 0);
    assert!(site.get(CLAIMS, "nowhere").unwrap()["status"].is_null());
}

#[test]
fn a_changed_template_replaces_what_waits_and_its_rules_reach_what_runs() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.template("python", &container());
    site.pool("fresh", "python", 1, "Recreate");
    site.pool("lazy", "python", 1, "OnReplenish");
    for pool in ["fresh", "lazy"] {
        site.wait(POOLS, pool, |object| object["status"]["readyReplicas"] == 1);
    }
    let old: Vec<Value> = ["fresh", "lazy"]
        .iter()
        .map(|pool| members(&site, pool)[0]["metadata"]["name"].clone())
        .collect();
    let mut next = container();
    next["image"] = json!("python:3.13-slim");
    site.change(
        TEMPLATES,
        "python",
        &json!({ "spec": {
        "podTemplate": { "spec": { "containers": [next] } },
        "networkPolicy": { "egress": [{ "to": [{ "ipBlock": { "cidr": "192.0.2.0/24" } }] }] },
    } }),
    );
    site.until("a member of the new template", || {
        let members = members(&site, "fresh");
        let is_new = members.len() == 1
            && members[0]["metadata"]["name"] != old[0]
            && condition(&members[0], "Ready")["status"] == "True";
        is_new.then_some(())
    });
    let images: Vec<Value> = site.daemons[0]
        .all()
        .iter()
        .map(|sandbox| sandbox["image"].clone())
        .collect();
    assert!(images.contains(&json!("python:3.13-slim")));
    assert_eq!(members(&site, "lazy")[0]["metadata"]["name"], old[1]);
    // The one that stays is told of the new rules.
    let told = site.until("the new rules", || site.daemons[0].policies().pop());
    assert_eq!(told.1["allow"], json!(["192.0.2.0/24"]));
    site.api.assert_valid();
}

#[test]
fn two_claims_never_get_the_same_sandbox() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.template("python", &container());
    site.pool("pool", "python", 1, "OnReplenish");
    site.wait(POOLS, "pool", |object| object["status"]["readyReplicas"] == 1);
    let names: Vec<String> = (0..4).map(|number| format!("claim-{number}")).collect();
    for name in &names {
        site.claim(name, "pool", &json!({}));
    }
    let mut got: Vec<String> = names
        .iter()
        .map(|name| {
            let claim = site.wait(CLAIMS, name, |object| condition(object, "Ready")["status"] == "True");
            claim["status"]["sandbox"]["name"].as_str().unwrap().to_owned()
        })
        .collect();
    got.sort();
    got.dedup();
    assert_eq!(got.len(), names.len());
}
