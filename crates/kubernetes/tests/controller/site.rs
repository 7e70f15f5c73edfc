//! A cluster of two nodes with their daemons, and controllers for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use offleash_kubernetes::{ControllerConfig, ControllerError, ControllerLog, DaemonKey, PodAccount};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::api_server::ApiServer;
use super::daemon::{KEY, NodeDaemon};

pub(crate) const SANDBOXES: (&str, &str) = ("agents.x-k8s.io", "sandboxes");
pub(crate) const POOLS: (&str, &str) = ("extensions.agents.x-k8s.io", "sandboxwarmpools");
pub(crate) const CLAIMS: (&str, &str) = ("extensions.agents.x-k8s.io", "sandboxclaims");
pub(crate) const TEMPLATES: (&str, &str) = ("extensions.agents.x-k8s.io", "sandboxtemplates");

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// Kubernetes' own kinds are those of the published OpenAPI document, of which `k8s-openapi` is made: what does not come back the same
/// has a field that there is not.
fn check(kind: &str, object: &Value) -> Result<(), String> {
    fn same<K: DeserializeOwned + Serialize>(object: &Value) -> Result<(), String> {
        let read: K = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
        let back = serde_json::to_value(&read).unwrap();
        lost("", object, &back)
    }
    fn lost(place: &str, there: &Value, back: &Value) -> Result<(), String> {
        match (there, back) {
            (Value::Object(there), Value::Object(back)) => there
                .iter()
                .filter(|(_, value)| !value.is_null())
                .try_for_each(|(name, value)| {
                    let found = back.get(name).ok_or_else(|| format!("{place}.{name} is no field"))?;
                    lost(&format!("{place}.{name}"), value, found)
                }),
            _ => Ok(()),
        }
    }
    match kind {
        "v1/pods" => same::<Pod>(object),
        "v1/services" => same::<Service>(object),
        "discovery.k8s.io/endpointslices" => same::<EndpointSlice>(object),
        "coordination.k8s.io/leases" => same::<Lease>(object),
        _ => Ok(()),
    }
}

/// Nobody is told.
#[derive(Debug)]
struct Quiet;

impl ControllerLog for Quiet {
    fn info(&self, _: &str) {}
    fn warning(&self, told: &str) {
        println!("warning: {told}");
    }
}

/// A cluster.
pub(crate) struct Site {
    pub(crate) api: ApiServer,
    pub(crate) daemons: [NodeDaemon; 2],
    _directory: tempfile::TempDir,
    token: PathBuf,
}

/// A controller that runs until it is stopped or dropped.
pub(crate) struct Running {
    end: Option<oneshot::Sender<()>>,
    abort: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Option<Result<(), ControllerError>>>>,
}

impl Site {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let token = directory.path().join("token");
        std::fs::write(&token, "a-token\n").unwrap();
        let site = Self {
            api: ApiServer::start(&["node-1", "node-2"], check),
            daemons: [NodeDaemon::start("ione"), NodeDaemon::start("itwo")],
            _directory: directory,
            token,
        };
        for number in [1, 2] {
            site.start_daemon(number);
        }
        site
    }

    /// Puts the pod of a node's daemon there.
    pub(crate) fn start_daemon(&self, number: usize) {
        let port = self.daemons[number - 1].address.port();
        let owner =
            json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "boxes", "uid": "d", "controller": true });
        let container = json!({ "name": "offleash", "ports": [{ "name": "http", "containerPort": port }] });
        let conditions = json!([{ "type": "Ready", "status": "True" }]);
        self.api.put("v1", "pods", json!({
            "metadata": { "name": format!("boxes-{number}"), "namespace": "offleash", "labels": { "app": "boxes" }, "ownerReferences": [owner] },
            "spec": { "nodeName": format!("node-{number}"), "containers": [container] },
            "status": { "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{ "ip": "127.0.0.1" }], "conditions": conditions },
        }));
    }

    pub(crate) fn stop_daemon(&self, number: usize) {
        self.api.delete("v1", "pods", "offleash", &format!("boxes-{number}"));
    }

    pub(crate) fn config(&self, identity: &str) -> ControllerConfig {
        ControllerConfig {
            name: "boxes".to_owned(),
            identity: identity.to_owned(),
            account: PodAccount {
                url: self.api.url(),
                token: Some(self.token.clone()),
                authority: None,
            },
            namespace: "offleash".to_owned(),
            watched: None,
            daemons: "app=boxes".to_owned(),
            daemon_port: 3000,
            key: DaemonKey::new(KEY),
            pause_image: "registry.example/pause:1".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            lease_duration: Duration::from_secs(60),
            resync: Duration::from_secs(1),
            log: Arc::new(Quiet),
        }
    }

    pub(crate) fn controller(&self, identity: &str) -> Running {
        Running::start(self.config(identity))
    }

    /// A template whose Sandboxes have this container.
    pub(crate) fn template(&self, name: &str, container: &Value) {
        self.put(TEMPLATES, json!({
            "metadata": { "name": name, "namespace": "agents" }, "spec": { "podTemplate": { "spec": { "containers": [container] } } },
        }));
    }

    pub(crate) fn pool(&self, name: &str, template: &str, replicas: u32, strategy: &str) {
        self.put(POOLS, json!({
            "metadata": { "name": name, "namespace": "agents", "labels": { "offleash/controller": "boxes" } },
            "spec": { "replicas": replicas, "sandboxTemplateRef": { "name": template }, "updateStrategy": { "type": strategy } },
        }));
    }

    pub(crate) fn claim(&self, name: &str, pool: &str, more: &Value) {
        let mut spec = json!({ "warmPoolRef": { "name": pool } });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.put(
            CLAIMS,
            json!({ "metadata": { "name": name, "namespace": "agents" }, "spec": spec }),
        );
    }

    /// A Sandbox of this controller's, with a plain container and this beside.
    pub(crate) fn sandbox(&self, name: &str, more: &Value) {
        let mut spec = json!({ "podTemplate": { "spec": { "containers": [container()] } } });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.put(SANDBOXES, json!({
            "metadata": { "name": name, "namespace": "agents", "labels": { "offleash/controller": "boxes" } }, "spec": spec,
        }));
    }

    pub(crate) fn put(&self, (group, plural): (&str, &str), object: Value) -> Value {
        self.api.put(group, plural, object)
    }

    pub(crate) fn get(&self, (group, plural): (&str, &str), name: &str) -> Option<Value> {
        self.api.get(group, plural, "agents", name)
    }

    pub(crate) fn change(&self, (group, plural): (&str, &str), name: &str, patch: &Value) {
        self.api.change(group, plural, "agents", name, patch);
    }

    pub(crate) fn delete(&self, (group, plural): (&str, &str), name: &str) {
        self.api.delete(group, plural, "agents", name);
    }

    /// Waits until an object is as it should be.
    pub(crate) fn wait(&self, kind: (&str, &str), name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let found = self.until(&format!("{name} of {}", kind.1), || {
            self.get(kind, name).filter(|object| is_so(object))
        });
        self.api.assert_valid();
        found
    }

    pub(crate) fn wait_ready(&self, name: &str) -> Value {
        self.wait(SANDBOXES, name, |object| condition(object, "Ready")["status"] == "True")
    }

    pub(crate) fn wait_unready(&self, name: &str, reason: &str) -> Value {
        self.wait(SANDBOXES, name, |object| condition(object, "Ready")["reason"] == reason)
    }

    pub(crate) fn wait_gone(&self, kind: (&str, &str), name: &str) {
        self.until(&format!("the end of {name}"), || {
            self.get(kind, name).is_none().then_some(())
        });
    }

    pub(crate) fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let since = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            if since.elapsed() > PATIENCE {
                let all: Vec<Value> = [SANDBOXES, CLAIMS, POOLS]
                    .iter()
                    .flat_map(|kind| self.api.all(kind.0, kind.1))
                    .collect();
                self.api.assert_valid();
                panic!("{what} did not come: {all:#?}");
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// How many sandboxes all daemons have.
    pub(crate) fn made(&self) -> usize {
        self.daemons.iter().map(|daemon| daemon.all().len()).sum()
    }
}

impl Running {
    pub(crate) fn start(config: ControllerConfig) -> Self {
        let (end, ended) = oneshot::channel();
        let (abort, aborted) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let run = offleash_kubernetes::run(config, async {
                    let _ended = ended.await;
                });
                tokio::select! {
                    result = run => Some(result),
                    _ = aborted => None,
                }
            })
        });
        Self {
            end: Some(end),
            abort: Some(abort),
            thread: Some(thread),
        }
    }

    /// Tells it to end, and waits until it has.
    pub(crate) fn stop(mut self) -> Result<(), ControllerError> {
        self.end.take();
        let abort = self.abort.take();
        let result = self.thread.take().unwrap().join().unwrap().unwrap();
        drop(abort);
        result
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(mut self) -> Result<(), ControllerError> {
        let kept = (self.end.take(), self.abort.take());
        let result = self.thread.take().unwrap().join().unwrap().unwrap();
        drop(kept);
        result
    }
}

impl Drop for Running {
    /// As if the process was killed: nothing is given up.
    fn drop(&mut self) {
        if let Some(abort) = self.abort.take() {
            let _sent = abort.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _joined = thread.join();
        }
    }
}

/// A plain container.
pub(crate) fn container() -> Value {
    json!({ "name": "main", "image": "python:3.12-slim", "resources": { "limits": { "cpu": "1", "memory": "256Mi" } } })
}

/// A condition of an object, or `null`.
pub(crate) fn condition(object: &Value, kind: &str) -> Value {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter()
        .find(|condition| condition["type"] == kind)
        .unwrap_or_default()
}
