//! One Sandbox from its placeholder to its end.

use serde_json::{Value, json};

use super::site::{SANDBOXES, Site, condition, container};

#[test]
fn a_sandbox_is_made_where_the_scheduler_put_its_placeholder() {
    let site = Site::new();
    let _controller = site.controller("a");
    let mut one = container();
    one["command"] = json!(["python3", "-m", "http.server"]);
    one["env"] = json!([{ "name": "A", "value": "b" }]);
    site.sandbox(
        "one",
        &json!({ "service": true, "podTemplate": { "spec": { "containers": [one] } } }),
    );
    let ready = site.wait_ready("one");
    assert_eq!(ready["status"]["nodeName"], "node-1");
    assert_eq!(ready["status"]["podIPs"], json!(["127.0.0.1"]));
    assert_eq!(ready["status"]["serviceFQDN"], "one.agents.svc.cluster.local");
    assert_eq!(condition(&ready, "PodScheduled")["status"], "True");
    assert_eq!(condition(&ready, "Suspended")["status"], "False");
    let made = &site.daemons[0].all()[0];
    assert_eq!(ready["metadata"]["annotations"]["offleash/sandbox-id"], made["id"]);
    assert_eq!(
        (&made["image"], &made["limits"]["memory_mib"]),
        (&json!("python:3.12-slim"), &json!(256))
    );
    assert_eq!(made["env"], json!({ "A": "b" }));
    assert_eq!(made["metadata"]["kubernetes.namespace"], "agents");
    let commands = site.daemons[0].commands();
    assert_eq!(commands.len(), 1);
    assert!(
        commands[0]
            .1
            .ends_with(&["python3", "-m", "http.server"].map(str::to_owned))
    );
    let slice = site.get(("discovery.k8s.io", "endpointslices"), "one").unwrap();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["127.0.0.1"]));
    assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "one");
    let pod = site.get(("v1", "pods"), "one").unwrap();
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["memory"], "256Mi");

    // The object goes when the daemon says that there is no sandbox, and what it owned goes with it.
    site.delete(SANDBOXES, "one");
    site.wait_gone(SANDBOXES, "one");
    assert_eq!(site.made(), 0);
    for kind in [
        ("v1", "pods"),
        ("v1", "services"),
        ("discovery.k8s.io", "endpointslices"),
    ] {
        site.wait_gone(kind, "one");
    }
    site.api.assert_valid();
}

#[test]
fn what_the_scheduler_and_the_quota_say_is_in_the_conditions() {
    let site = Site::new();
    let _controller = site.controller("a");
    for node in ["node-1", "node-2"] {
        site.api.cordon(node, true);
    }
    site.sandbox("one", &json!({}));
    let waiting = site.wait(SANDBOXES, "one", |object| {
        condition(object, "PodScheduled")["reason"] == "Unschedulable"
    });
    let ready = condition(&waiting, "Ready");
    assert_eq!(ready["reason"], "DependenciesNotReady");
    assert!(ready["message"].as_str().unwrap().contains("0/2 nodes are available"));
    assert_eq!(site.made(), 0);
    site.api.set_quota(Some(1));
    site.sandbox("two", &json!({}));
    let told = |object: &Value| {
        condition(object, "Ready")["message"]
            .as_str()
            .unwrap_or_default()
            .contains("exceeded quota: agents")
    };
    site.wait(SANDBOXES, "two", told);
    site.api.set_quota(None);
    site.api.cordon("node-2", false);
    assert_eq!(site.wait_ready("one")["status"]["nodeName"], "node-2");
    site.wait_ready("two");
    assert_eq!(site.made(), 2);
}

#[test]
fn a_suspended_sandbox_keeps_its_files_on_its_node_and_gives_its_place_back() {
    let site = Site::new();
    let _controller = site.controller("a");
    let mut one = container();
    one["args"] = json!(["serve"]);
    site.api.cordon("node-1", true);
    site.sandbox("one", &json!({ "podTemplate": { "spec": { "containers": [one] } } }));
    site.wait_ready("one");
    site.change(SANDBOXES, "one", &json!({ "spec": { "operatingMode": "Suspended" } }));
    let suspended = site.wait(SANDBOXES, "one", |object| {
        condition(object, "Suspended")["status"] == "True"
    });
    assert_eq!(condition(&suspended, "Ready")["reason"], "SandboxSuspended");
    assert!(suspended["status"]["podIPs"].is_null() && suspended["status"]["nodeName"].is_null());
    assert_eq!(condition(&suspended, "PodScheduled"), Value::Null);
    let paused = &site.daemons[1].all()[0];
    assert_eq!(
        (&paused["state"], &paused["pause_mode"]),
        (&json!("paused"), &json!("filesystem"))
    );
    site.wait_gone(("v1", "pods"), "one");

    // It comes back where its files are, and nowhere else.
    site.api.cordon("node-1", false);
    site.api.cordon("node-2", true);
    site.change(SANDBOXES, "one", &json!({ "spec": { "operatingMode": "Running" } }));
    site.wait(SANDBOXES, "one", |object| {
        condition(object, "PodScheduled")["reason"] == "Unschedulable"
    });
    site.api.cordon("node-2", false);
    let ready = site.wait_ready("one");
    assert_eq!(condition(&ready, "Suspended")["status"], "False");
    assert_eq!((site.daemons[1].creates(), site.daemons[0].creates()), (1, 0));
    assert_eq!(site.daemons[1].all()[0]["state"], "running");
    // Its processes were gone: the command was started once more.
    assert_eq!(site.daemons[1].commands().len(), 2);
}

#[test]
fn a_suspension_that_keeps_memory_keeps_the_place() {
    let site = Site::new();
    let _controller = site.controller("a");
    let metadata = json!({ "annotations": { "offleash/suspend-mode": "full" } });
    let template = json!({ "metadata": metadata, "spec": { "containers": [container()] } });
    site.sandbox("one", &json!({ "podTemplate": template, "operatingMode": "Suspended" }));
    let told = |object: &Value| {
        condition(object, "Suspended")["message"]
            .as_str()
            .unwrap_or_default()
            .contains("nothing to keep")
    };
    site.wait(SANDBOXES, "one", told);
    assert_eq!(site.made(), 0);
    site.change(SANDBOXES, "one", &json!({ "spec": { "operatingMode": "Running" } }));
    site.wait_ready("one");
    site.change(SANDBOXES, "one", &json!({ "spec": { "operatingMode": "Suspended" } }));
    site.wait(SANDBOXES, "one", |object| {
        condition(object, "Suspended")["message"]
            .as_str()
            .unwrap_or_default()
            .contains("memory")
    });
    assert_eq!(site.daemons[0].all()[0]["pause_mode"], "full");
    assert!(site.get(("v1", "pods"), "one").is_some());

    // Memory that no quota counts is not kept.
    site.delete(("v1", "pods"), "one");
    site.until("a pause without memory", || {
        let paused = site.daemons[0].all()[0].clone();
        (paused["state"] == "paused" && paused["pause_mode"] == "filesystem").then_some(())
    });
}

#[test]
fn a_sandbox_that_the_quota_counts_no_more_does_not_run() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.sandbox("one", &json!({}));
    site.wait_ready("one");
    // Its placeholder is deleted, and somebody else has the place.
    site.api.set_quota(Some(0));
    site.delete(("v1", "pods"), "one");
    site.until("a pause", || {
        (site.daemons[0].all()[0]["state"] == "paused").then_some(())
    });
    site.wait(SANDBOXES, "one", |object| {
        condition(object, "Ready")["message"]
            .as_str()
            .unwrap_or_default()
            .contains("is paused until it has a place")
    });
    site.api.set_quota(None);
    site.wait_ready("one");
    assert_eq!(
        (site.daemons[0].creates(), &site.daemons[0].all()[0]["state"]),
        (1, &json!("running"))
    );
}

#[test]
fn a_sandbox_whose_time_is_up_has_ended_at_its_daemon() {
    let site = Site::new();
    let _controller = site.controller("a");
    for (name, policy) in [("kept", "Retain"), ("gone", "Delete")] {
        site.sandbox(name, &json!({ "shutdownPolicy": policy }));
        site.wait_ready(name);
    }
    let past = json!({ "spec": { "shutdownTime": "2026-01-01T00:00:00Z" } });
    site.change(SANDBOXES, "kept", &past);
    site.change(SANDBOXES, "gone", &past);
    site.wait_gone(SANDBOXES, "gone");
    let kept = site.wait_unready("kept", "SandboxExpired");
    assert!(kept["status"]["nodeName"].is_null());
    site.until("the end of both", || (site.made() == 0).then_some(()));
    site.wait_gone(("v1", "pods"), "kept");
}

#[test]
fn what_is_not_there_is_refused_by_its_field_and_nothing_is_made() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.put(
        ("node.k8s.io", "runtimeclasses"),
        json!({ "metadata": { "name": "sealed" }, "handler": "runsc" }),
    );
    site.put(
        ("node.k8s.io", "runtimeclasses"),
        json!({ "metadata": { "name": "odd" }, "handler": "wasmtime" }),
    );
    let with = |name: &str, value: Value| {
        let mut spec = json!({ "containers": [container()] });
        spec[name] = value;
        json!({ "podTemplate": { "spec": spec } })
    };
    for (name, spec, field) in [
        (
            "volumes",
            with("volumes", json!([{ "name": "a", "emptyDir": {} }])),
            "spec.podTemplate.spec.volumes",
        ),
        ("host", with("hostNetwork", json!(true)), "hostNetwork"),
        (
            "class",
            with("runtimeClassName", json!("nowhere")),
            "no RuntimeClass `nowhere`",
        ),
        ("odd", with("runtimeClassName", json!("odd")), "`wasmtime`"),
    ] {
        site.sandbox(name, &spec);
        let refused = site.wait_unready(name, "NotSupported");
        assert!(
            condition(&refused, "Ready")["message"]
                .as_str()
                .unwrap()
                .contains(field),
            "{refused}"
        );
        assert!(site.get(("v1", "pods"), name).is_none());
    }
    assert_eq!(site.made(), 0);
    site.sandbox("sealed", &with("runtimeClassName", json!("sealed")));
    site.wait_ready("sealed");
    assert_eq!(site.daemons[0].all()[0]["metadata"]["offleash.level"], "container");
    assert_eq!(
        site.get(("v1", "pods"), "sealed").unwrap()["spec"]["runtimeClassName"],
        "sealed"
    );
}

#[test]
fn a_sandbox_gets_what_its_placeholder_was_counted_for() {
    let site = Site::new();
    let _controller = site.controller("a");
    for node in ["node-1", "node-2"] {
        site.api.cordon(node, true);
    }
    site.sandbox("one", &json!({}));
    site.wait(SANDBOXES, "one", |object| {
        condition(object, "PodScheduled")["reason"] == "Unschedulable"
    });
    // More is asked for when the quota has counted less.
    let mut more = container();
    more["resources"]["limits"]["memory"] = json!("64Gi");
    site.change(
        SANDBOXES,
        "one",
        &json!({ "spec": { "podTemplate": { "spec": { "containers": [more] } } } }),
    );
    site.api.cordon("node-1", false);
    site.wait_ready("one");
    assert_eq!(site.daemons[0].all()[0]["limits"]["memory_mib"], 256);
    // A template that can no longer be kept takes neither place nor sandbox away.
    site.change(
        SANDBOXES,
        "one",
        &json!({ "spec": { "podTemplate": { "spec": { "hostPID": true } } } }),
    );
    site.wait_unready("one", "NotSupported");
    assert!(site.get(("v1", "pods"), "one").is_some());
    assert_eq!(site.made(), 1);
    assert_eq!(site.daemons[0].all()[0]["state"], "running");
    // Without a place it runs no longer.
    site.delete(("v1", "pods"), "one");
    site.until("a pause", || {
        (site.daemons[0].all()[0]["state"] == "paused").then_some(())
    });
}

#[test]
fn a_placeholder_that_counts_less_than_the_sandbox_has_holds_no_place() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.sandbox("one", &json!({}));
    site.wait_ready("one");
    let mut less = container();
    less["resources"]["limits"]["memory"] = json!("64Mi");
    let template = |container: Value| json!({ "spec": { "podTemplate": { "spec": { "containers": [container] } } } });
    let is_seen =
        |generation: u64| move |object: &Value| condition(object, "Ready")["observedGeneration"] == generation;
    site.change(SANDBOXES, "one", &template(less));
    // Whoever has not seen that makes the placeholder as it was.
    site.wait(SANDBOXES, "one", is_seen(2));
    site.delete(("v1", "pods"), "one");
    site.until("a pause", || {
        (site.daemons[0].all()[0]["state"] == "paused").then_some(())
    });
    let unready = site.wait_unready("one", "NotSupported");
    let told = condition(&unready, "Ready")["message"].as_str().unwrap().to_owned();
    assert!(told.contains("more memory than its placeholder counts"), "{told}");
    // As it was, it goes on with its files.
    site.change(SANDBOXES, "one", &template(container()));
    site.wait(SANDBOXES, "one", is_seen(3));
    site.delete(("v1", "pods"), "one");
    site.wait_ready("one");
    assert_eq!(
        (site.daemons[0].creates(), &site.daemons[0].all()[0]["state"]),
        (1, &json!("running"))
    );
}

#[test]
fn objects_that_are_not_labelled_are_never_touched() {
    let site = Site::new();
    let theirs = site.put(SANDBOXES, json!({
        "metadata": { "name": "theirs", "namespace": "agents" }, "spec": { "podTemplate": { "spec": { "containers": [container()] } } },
    }));
    let other = site.put(
        SANDBOXES,
        json!({
            "metadata": { "name": "other", "namespace": "agents", "labels": { "offleash/controller": "another" } },
            "spec": { "podTemplate": { "spec": { "containers": [container()] } } },
        }),
    );
    // A pod that has a Sandbox's name and is somebody else's.
    site.api.put(
        "v1",
        "pods",
        json!({ "metadata": { "name": "taken", "namespace": "agents" }, "spec": { "containers": [] } }),
    );
    let _controller = site.controller("a");
    site.sandbox("taken", &json!({}));
    site.sandbox("ours", &json!({}));
    site.wait_ready("ours");
    site.wait_unready("taken", "NameTaken");
    assert_eq!(
        (
            site.get(SANDBOXES, "theirs").unwrap(),
            site.get(SANDBOXES, "other").unwrap()
        ),
        (theirs, other)
    );
    site.delete(SANDBOXES, "taken");
    site.wait_gone(SANDBOXES, "taken");
    assert!(site.get(("v1", "pods"), "taken").is_some());
    assert_eq!(site.made(), 1);
}
