//! Which daemon serves a node: the ready pod of the chart's DaemonSet on it.

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;

use crate::access::HttpAccess;
use crate::config::DaemonKey;
use crate::native::NodeDaemon;

/// How long a daemon may take to answer; it fetches images meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Which daemon serves a node.
#[derive(Debug)]
pub(crate) struct DaemonDirectory {
    /// The daemons' pods, as the API server last told.
    pub(crate) pods: Store<Pod>,
    /// Their port.
    pub(crate) port: u16,
    /// What they are shown.
    pub(crate) key: DaemonKey,
}

/// A daemon and where it is.
#[derive(Debug)]
pub(crate) struct FoundDaemon {
    /// The daemon.
    pub(crate) daemon: NodeDaemon,
    /// Addresses of its pod.
    pub(crate) addresses: Vec<String>,
}

impl DaemonDirectory {
    /// The daemon of a node; `None` if none is ready there.
    pub(crate) fn of(&self, node: &str) -> Option<FoundDaemon> {
        let pod = self
            .pods
            .find(|pod| node_of(pod) == Some(node) && is_daemon(pod) && is_ready(pod))?;
        let status = pod.status.as_ref()?;
        let mut addresses: Vec<String> = status
            .pod_ips
            .iter()
            .flatten()
            .map(|address| address.ip.clone())
            .collect();
        if addresses.is_empty() {
            addresses.extend(status.pod_ip.clone());
        }
        let address = SocketAddr::new(addresses.first()?.parse().ok()?, self.port_of(&pod));
        let access = HttpAccess::new(&format!("http://{address}"), None, ANSWER_TIMEOUT).ok()?;
        Some(FoundDaemon {
            daemon: NodeDaemon::new(node, access, self.key.clone()),
            addresses,
        })
    }

    /// The port that the pod names for HTTP, or the one that was said.
    fn port_of(&self, pod: &Pod) -> u16 {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
        let named = ports.find(|port| port.name.as_deref() == Some("http"));
        named
            .and_then(|port| port.container_port.try_into().ok())
            .unwrap_or(self.port)
    }
}

/// The node of a pod.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Nothing but a DaemonSet's pod is one: labels are what anybody can give a pod in the namespace.
fn is_daemon(pod: &Pod) -> bool {
    let owner = pod
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true));
    owner.is_some_and(|owner| owner.kind == "DaemonSet" && owner.api_version == "apps/v1")
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": { "name": "boxes-x", "namespace": "offleash", "ownerReferences":
                [{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "boxes", "uid": "d", "controller": true }] },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "offleash", "ports": [{ "name": "http", "containerPort": 3001 }] }] },
            "status": { "podIP": "127.0.0.9", "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn directory(pods: Vec<Pod>) -> DaemonDirectory {
        let (store, mut writer) = kube::runtime::reflector::store();
        writer.apply_watcher_event(&kube::runtime::watcher::Event::Init);
        for pod in pods {
            writer.apply_watcher_event(&kube::runtime::watcher::Event::InitApply(pod));
        }
        writer.apply_watcher_event(&kube::runtime::watcher::Event::InitDone);
        DaemonDirectory {
            pods: store,
            port: 3000,
            key: DaemonKey::new("e2b_0"),
        }
    }

    #[test]
    fn the_daemon_of_a_node_is_its_ready_pod() {
        let found = directory(vec![pod(|_| ())]).of("node-1").unwrap();
        assert_eq!(found.addresses, ["127.0.0.9"]);
        assert!(directory(vec![pod(|_| ())]).of("node-2").is_none());
    }

    #[test]
    fn what_is_not_ready_or_of_no_daemonset_is_no_daemon() {
        for change in [
            (|pod: &mut Value| pod["status"]["conditions"][0]["status"] = json!("False")) as fn(&mut Value),
            |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-29T00:00:00Z"),
            |pod| pod["metadata"]["ownerReferences"] = json!([]),
            |pod| pod["metadata"]["ownerReferences"][0]["kind"] = json!("Sandbox"),
            |pod| pod["status"]["podIP"] = json!("no address"),
        ] {
            assert!(directory(vec![pod(change)]).of("node-1").is_none());
        }
    }
}
