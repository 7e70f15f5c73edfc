//! `offleash controller` between a real server and a stand-in for the API server of Kubernetes: that both take what it says.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use self::api_server::ApiServer;
use crate::client::ask;
use crate::server::Server;
use crate::support::Site;
use crate::support::processes::{eventually, signal, wait};

#[path = "../../../kubernetes/tests/controller/api_server.rs"]
#[expect(dead_code, reason = "what goes wrong is tried beside the controller itself")]
mod api_server;
#[path = "../../../kubernetes/tests/controller/http.rs"]
mod http;
#[path = "../../../kubernetes/tests/controller/schemas.rs"]
mod schemas;

const SANDBOXES: (&str, &str) = ("agents.x-k8s.io", "sandboxes");
const EXTENSIONS: &str = "extensions.agents.x-k8s.io";

/// A cluster with one node, whose daemon is a server.
struct Cluster {
    server: Server,
    api: ApiServer,
    key: String,
}

impl Cluster {
    fn start() -> Self {
        let server = Server::start();
        let key = server.key(&[]);
        let api = ApiServer::start(&["node-1"], |_, _| Ok(()));
        let owner =
            json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "boxes", "uid": "d", "controller": true });
        let container =
            json!({ "name": "offleash", "ports": [{ "name": "http", "containerPort": server.address.port() }] });
        let conditions = json!([{ "type": "Ready", "status": "True" }]);
        let pod = json!({
            "metadata": { "name": "boxes-1", "namespace": "offleash", "labels": { "app": "boxes" }, "ownerReferences": [owner] },
            "spec": { "nodeName": "node-1", "containers": [container] },
            "status": { "podIP": "127.0.0.1", "conditions": conditions },
        });
        api.put("v1", "pods", pod);
        Self { server, api, key }
    }

    fn site(&self) -> &Site {
        &self.server.site
    }

    fn controller(&self) -> Child {
        let file = self.site().root().join("controller.key");
        std::fs::write(&file, &self.key).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let words = [
            "controller",
            "--namespace",
            "offleash",
            "--daemons",
            "app=boxes",
            "--name",
            "boxes",
            "--key-file",
        ];
        let mut command = self.site().offleash(words);
        command.arg(&file).args(["--api-server", &self.api.url()]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let told = lines.next().unwrap().unwrap();
        assert!(told.contains("leads"), "{told}");
        std::thread::spawn(move || lines.for_each(drop));
        child
    }

    /// Waits until a Sandbox has a condition with this reason.
    fn wait(&self, name: &str, kind: &str, reason: &str) -> Value {
        let found = eventually(&format!("{kind} {reason} of {name}"), || {
            let object = self.api.get(SANDBOXES.0, SANDBOXES.1, "agents", name)?;
            let conditions = object["status"]["conditions"].as_array()?.iter();
            let mut found = conditions.filter(|condition| condition["type"] == kind && condition["reason"] == reason);
            found.next().is_some().then(|| object.clone())
        });
        self.api.assert_valid();
        found
    }

    fn change(&self, name: &str, spec: &Value) {
        self.api
            .change(SANDBOXES.0, SANDBOXES.1, "agents", name, &json!({ "spec": spec }));
    }

    /// What a command wrote in a sandbox.
    fn run(&self, id: &str, line: &str) -> String {
        let body = json!({ "shell": line }).to_string();
        let asked = format!("POST /v1/sandboxes/{id}/run");
        let answer = ask(self.server.address, &asked, &[("X-API-KEY", &self.key)], &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["stdout"].as_str().unwrap().to_owned()
    }

    fn status(&self, id: &str) -> (u16, Value) {
        let answer = ask(
            self.server.address,
            &format!("GET /v1/sandboxes/{id}"),
            &[("X-API-KEY", &self.key)],
            "",
        );
        (
            answer.status,
            if answer.status == 200 {
                answer.json()["state"].clone()
            } else {
                Value::Null
            },
        )
    }
}

#[test]
fn a_claim_has_a_sandbox_of_the_daemon_that_is_suspended_resumed_and_ended() {
    let cluster = Cluster::start();
    let mut controller = cluster.controller();
    let script = "echo started >> ~/starts; echo $$ > ~/pid; exec sleep 600";
    let container = json!({
        "name": "main", "image": "none", "command": ["/bin/sh", "-c", script], "env": [{ "name": "GREETING", "value": "hello" }],
        "resources": { "limits": { "cpu": "1", "memory": "300Mi" } },
    });
    let metadata = json!({ "annotations": { "offleash/template": "base" } });
    cluster.api.put(EXTENSIONS, "sandboxtemplates", json!({
        "metadata": { "name": "shell", "namespace": "agents" },
        "spec": {
            "podTemplate": { "metadata": metadata, "spec": { "containers": [container] } },
            "networkPolicy": { "egress": [{ "to": [{ "ipBlock": { "cidr": "1.1.1.0/24" } }], "ports": [{ "port": 443, "endPort": 444 }] }] },
        },
    }));
    cluster.api.put(
        EXTENSIONS,
        "sandboxwarmpools",
        json!({
            "metadata": { "name": "pool", "namespace": "agents", "labels": { "offleash/controller": "boxes" } },
            "spec": { "replicas": 0, "sandboxTemplateRef": { "name": "shell" } },
        }),
    );
    cluster.api.put(
        EXTENSIONS,
        "sandboxclaims",
        json!({
            "metadata": { "name": "mine", "namespace": "agents" }, "spec": { "warmPoolRef": { "name": "pool" } },
        }),
    );
    let ready = cluster.wait("mine", "Ready", "DependenciesReady");
    let id = ready["metadata"]["annotations"]["offleash/sandbox-id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(cluster.status(&id), (200, json!("running")));
    let begun = || {
        eventually("the command", || {
            Some(cluster.run(&id, "cat ~/starts")).filter(|told| !told.is_empty())
        })
    };
    assert_eq!(begun(), "started\n");
    let alive = eventually("the command's process", || {
        Some(cluster.run(&id, "kill -0 $(cat ~/pid) && echo $GREETING")).filter(|told| !told.is_empty())
    });
    assert_eq!(alive, "hello\n");

    cluster.change("mine", &json!({ "operatingMode": "Suspended" }));
    cluster.wait("mine", "Suspended", "PodTerminated");
    assert_eq!(cluster.status(&id), (200, json!("paused")));
    // Another controller goes on where this one was told to end.
    signal(&controller, Signal::TERM);
    assert!(wait(&mut controller).success());
    let mut controller = cluster.controller();
    cluster.change("mine", &json!({ "operatingMode": "Running" }));
    cluster.wait("mine", "Suspended", "NotSuspended");
    assert_eq!(cluster.status(&id), (200, json!("running")));
    eventually("the command once more", || {
        (cluster.run(&id, "cat ~/starts") == "started\nstarted\n").then_some(())
    });

    cluster.api.delete(EXTENSIONS, "sandboxclaims", "agents", "mine");
    eventually("the end of the object", || {
        cluster
            .api
            .get(SANDBOXES.0, SANDBOXES.1, "agents", "mine")
            .is_none()
            .then_some(())
    });
    assert_eq!(cluster.status(&id).0, 404);
    cluster.api.assert_valid();
    signal(&controller, Signal::TERM);
    wait(&mut controller);
}
