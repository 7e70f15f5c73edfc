use serde_json::json;

use super::*;

fn settings() -> PlaceholderSettings {
    PlaceholderSettings {
        controller: "boxes".to_owned(),
        image: "registry.example/pause:1".to_owned(),
        namespace: "offleash".to_owned(),
        daemons: labels_of("app=offleash,release=boxes").unwrap(),
    }
}

fn sandbox(spec: Value) -> Sandbox {
    let object = json!({
        "metadata": { "name": "one", "namespace": "agents", "uid": "u-1" },
        "spec": { "podTemplate": { "metadata": { "labels": { "team": "a" } }, "spec": spec } },
    });
    serde_json::from_value(object).unwrap()
}

#[test]
fn a_placeholder_has_resources_and_place_of_the_template_and_nothing_of_its_work() {
    let sandbox = sandbox(json!({
        "containers": [{ "name": "main", "image": "agent", "command": ["sleep"], "resources": { "requests": { "cpu": "2" } } }],
        "nodeSelector": { "disk": "ssd" },
        "tolerations": [{ "operator": "Exists" }],
        "priorityClassName": "high",
        "runtimeClassName": "gvisor",
        "schedulerName": "other",
        "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" }],
    }));
    let pod = serde_json::to_value(placeholder(&sandbox, &settings(), None).unwrap()).unwrap();
    let spec = &pod["spec"];
    let container = &spec["containers"][0];
    assert_eq!(container["image"], "registry.example/pause:1");
    assert_eq!(container["resources"]["requests"]["cpu"], "2");
    assert_eq!(container.get("command"), None);
    assert_eq!(spec["nodeSelector"]["disk"], "ssd");
    assert_eq!(
        (&spec["priorityClassName"], &spec["runtimeClassName"]),
        (&json!("high"), &json!("gvisor"))
    );
    assert_eq!(
        (
            &spec["schedulerName"],
            spec["topologySpreadConstraints"][0]["topologyKey"].as_str()
        ),
        (&json!("other"), Some("zone"))
    );
    assert_eq!(spec["automountServiceAccountToken"], false);
    let beside = &spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(beside["labelSelector"]["matchLabels"]["app"], "offleash");
    assert_eq!(
        (&beside["namespaces"][0], &beside["topologyKey"]),
        (&json!("offleash"), &json!("kubernetes.io/hostname"))
    );
    let meta = &pod["metadata"];
    assert_eq!(
        (&meta["labels"]["team"], &meta["labels"]["offleash/controller"]),
        (&json!("a"), &json!("boxes"))
    );
    let owner = &meta["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"], &owner["controller"]),
        (&json!("Sandbox"), &json!("u-1"), &json!(true))
    );
}

#[test]
fn a_node_that_is_named_is_the_schedulers_to_give() {
    let spec = json!({ "containers": [{ "name": "main" }], "nodeName": "node-3" });
    let pod = placeholder(&sandbox(spec), &settings(), None).unwrap();
    let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
    assert_eq!(spec.get("nodeName"), None);
    let node = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(
        node["nodeSelectorTerms"][0]["matchFields"][0]["values"],
        json!(["node-3"])
    );
}

#[test]
fn a_sandbox_that_has_files_on_a_node_goes_nowhere_else() {
    let terms = json!([{ "matchExpressions": [{ "key": "a", "operator": "Exists" }] }, { "matchFields": [] }]);
    let with_terms = json!({
        "containers": [{ "name": "main", "image": "agent" }],
        "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } },
    });
    for (spec, count) in [(json!({ "containers": [{ "name": "main" }] }), 1), (with_terms, 2)] {
        let pod = placeholder(&sandbox(spec), &settings(), Some("node-2")).unwrap();
        let affinity = pod.spec.unwrap().affinity.unwrap().node_affinity.unwrap();
        let terms = affinity
            .required_during_scheduling_ignored_during_execution
            .unwrap()
            .node_selector_terms;
        assert_eq!(terms.len(), count);
        for term in terms {
            let fields = term.match_fields.unwrap();
            assert_eq!(
                (fields[0].key.as_str(), fields[0].values.as_ref().unwrap()[0].as_str()),
                ("metadata.name", "node-2")
            );
        }
    }
}

#[test]
fn what_the_scheduler_says_is_read_as_it_is() {
    let pod = |value: Value| serde_json::from_value::<Pod>(value).unwrap();
    let bound = pod(json!({ "metadata": {}, "spec": { "nodeName": "node-1", "containers": [] } }));
    assert_eq!(placement_of(&bound), Placement::Bound("node-1".to_owned()));
    let evicted = pod(
        json!({ "metadata": { "deletionTimestamp": "2026-11-29T00:00:00Z" }, "spec": { "nodeName": "node-1", "containers": [] } }),
    );
    assert_eq!(placement_of(&evicted), Placement::Ending);
    let over = pod(
        json!({ "metadata": {}, "spec": { "nodeName": "node-1", "containers": [] }, "status": { "phase": "Failed" } }),
    );
    assert_eq!(placement_of(&over), Placement::Over);
    let waiting = pod(json!({ "metadata": {}, "status": { "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient cpu." },
    ] } }));
    assert_eq!(placement_of(&waiting), Placement::Waiting);
    let (status, reason, message) = scheduler_words(&waiting);
    assert_eq!((&*status, &*reason), ("False", "Unschedulable"));
    assert!(message.contains("3 Insufficient cpu"));
    assert_eq!(scheduler_words(&bound).0, "Unknown");
}

#[test]
fn a_pod_of_another_controller_is_no_placeholder() {
    let sandbox = sandbox(json!({ "containers": [{ "name": "main" }] }));
    let mut pod = placeholder(&sandbox, &settings(), None).unwrap();
    assert!(is_placeholder_of(&pod, &sandbox));
    pod.metadata.labels = None;
    assert!(!is_placeholder_of(&pod, &sandbox));
}

#[test]
fn a_selector_of_daemons_is_labels() {
    assert_eq!(labels_of("a=b, c==d").unwrap().len(), 2);
    for wrong in ["", "a", "a!=b", "=b", "a in (b)"] {
        assert_eq!(labels_of(wrong), None, "{wrong}");
    }
}
