//! What goes wrong: controllers that die, daemons that are gone, nodes that are drained, an API server that forgets.

use offleash_kubernetes::ControllerError;
use serde_json::{Value, json};

use super::site::{POOLS, Running, SANDBOXES, Site, condition, container};

#[test]
fn a_controller_that_dies_in_the_middle_leaves_nothing_twice_and_nothing_behind() {
    let site = Site::new();
    // The create is carried out, and its answer is lost; so is the next one's.
    site.daemons[0].lose_answers(2);
    let first = site.controller("a");
    site.sandbox("one", &json!({}));
    site.until("a create", || (site.daemons[0].creates() == 1).then_some(()));
    drop(first);
    let second = site.controller("a");
    let ready = site.wait_ready("one");
    assert_eq!((site.daemons[0].creates(), site.made()), (1, 1));
    assert_eq!(
        ready["metadata"]["annotations"]["offleash/sandbox-id"],
        site.daemons[0].all()[0]["id"]
    );

    // It is deleted while nobody is there, and ended by the next one.
    drop(second);
    site.delete(SANDBOXES, "one");
    assert!(site.get(SANDBOXES, "one").is_some());
    let third = site.controller("a");
    site.wait_gone(SANDBOXES, "one");
    assert_eq!(site.made(), 0);
    assert!(third.stop().is_ok());
}

#[test]
fn an_evicted_placeholder_moves_the_sandbox_and_says_what_was_lost() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.sandbox("one", &json!({}));
    assert_eq!(site.wait_ready("one")["status"]["nodeName"], "node-1");
    // A placeholder that comes back to its node finds the sandbox as it was.
    site.delete(("v1", "pods"), "one");
    site.until("another placeholder", || site.get(("v1", "pods"), "one"));
    site.wait_ready("one");
    assert_eq!(
        (
            site.daemons[0].creates(),
            condition(&site.get(SANDBOXES, "one").unwrap(), "Recreated")
        ),
        (1, Value::Null)
    );

    site.api.cordon("node-1", true);
    site.delete(("v1", "pods"), "one");
    let moved = site.wait(SANDBOXES, "one", |object| object["status"]["nodeName"] == "node-2");
    let recreated = condition(&moved, "Recreated");
    assert_eq!(
        (&recreated["status"], &recreated["reason"]),
        (&json!("True"), &json!("NodeDrained"))
    );
    assert!(recreated["message"].as_str().unwrap().contains("without the files"));
    assert_eq!((site.daemons[0].all().len(), site.daemons[1].all().len()), (0, 1));
}

#[test]
fn a_daemon_that_is_gone_is_told_of_with_its_node() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.sandbox("one", &json!({}));
    site.wait_ready("one");
    // It does not answer.
    site.daemons[0].set_down(true);
    let unready = site.wait_unready("one", "DaemonUnavailable");
    assert!(
        condition(&unready, "Ready")["message"]
            .as_str()
            .unwrap()
            .contains("node-1")
    );
    site.daemons[0].set_down(false);
    site.wait_ready("one");
    assert_eq!(site.daemons[0].creates(), 1);
    // It has lost what it had.
    site.daemons[0].lose_everything();
    let anew = site.wait(SANDBOXES, "one", |object| {
        condition(object, "Recreated")["reason"] == "DaemonLostSandbox"
    });
    assert!(
        condition(&anew, "Recreated")["message"]
            .as_str()
            .unwrap()
            .contains("ione0001")
    );
    site.wait_ready("one");
    assert_eq!(site.daemons[0].creates(), 2);

    // Its pod is gone: what is deleted waits, because the sandbox may be there.
    site.stop_daemon(1);
    site.wait_unready("one", "DaemonUnavailable");
    site.delete(SANDBOXES, "one");
    let waits = |object: &Value| {
        condition(object, "Ready")["message"]
            .as_str()
            .unwrap_or_default()
            .contains("deletion waits")
    };
    site.wait(SANDBOXES, "one", waits);
    // With the node it is gone for certain.
    site.api.delete("v1", "nodes", "", "node-1");
    site.wait_gone(SANDBOXES, "one");
}

#[test]
fn annotations_that_a_tenant_wrote_reach_no_sandbox_but_the_tenants_own() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.sandbox("victim", &json!({}));
    let victim = site.wait_ready("victim")["metadata"]["annotations"]["offleash/sandbox-id"].clone();
    site.sandbox("thief", &json!({}));
    site.wait_ready("thief");
    assert_eq!(site.made(), 2);
    // The victim's id, and something that is no id.
    for id in [victim.clone(), json!("../keys")] {
        site.change(
            SANDBOXES,
            "thief",
            &json!({ "metadata": { "annotations": { "offleash/sandbox-id": id } } }),
        );
        site.wait(SANDBOXES, "thief", |object| {
            object["metadata"]["annotations"]["offleash/sandbox-id"] != id
        });
    }
    // Another node: what is left on the first one is found there, and ended.
    site.change(
        SANDBOXES,
        "thief",
        &json!({ "metadata": { "annotations": { "offleash/node": "node-2" } } }),
    );
    site.until("one sandbox for each", || {
        let thief = site.wait_ready("thief")["metadata"]["annotations"]["offleash/sandbox-id"].clone();
        let ids: Vec<Value> = site
            .daemons
            .iter()
            .flat_map(|daemon| daemon.all())
            .map(|sandbox| sandbox["id"].clone())
            .collect();
        (ids.len() == 2 && ids.contains(&thief) && ids.contains(&victim)).then_some(())
    });
    // Without the finalizer the object goes at once, and its sandbox is nobody's.
    site.change(
        SANDBOXES,
        "thief",
        &json!({ "metadata": { "annotations": { "offleash/sandbox-id": victim }, "finalizers": [] } }),
    );
    site.delete(SANDBOXES, "thief");
    site.until("the end of the thief's", || (site.made() == 1).then_some(()));
    assert_eq!(site.daemons[0].all()[0]["id"], victim);
    site.wait_ready("victim");
}

#[test]
fn what_a_lost_node_had_is_made_anew_when_the_node_is_no_more() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.sandbox("one", &json!({}));
    site.wait_ready("one");
    site.stop_daemon(1);
    site.api.cordon("node-1", true);
    site.delete(("v1", "pods"), "one");
    // It may still run there.
    let waiting = site.wait(SANDBOXES, "one", |object| {
        condition(object, "Ready")["message"]
            .as_str()
            .unwrap_or_default()
            .contains("may still be")
    });
    assert_eq!(
        (&condition(&waiting, "Ready")["reason"], site.daemons[1].creates()),
        (&json!("DaemonUnavailable"), 0)
    );
    site.api.delete("v1", "nodes", "", "node-1");
    let anew = site.wait_ready("one");
    assert_eq!(
        (&anew["status"]["nodeName"], &condition(&anew, "Recreated")["reason"]),
        (&json!("node-2"), &json!("NodeGone"))
    );
}

#[test]
fn what_a_daemon_refuses_is_said_in_its_words() {
    let site = Site::new();
    site.daemons[0].refuse_once(400, "limits.memory_mib: 256 MiB is not between 512 and 1024 MiB");
    let _controller = site.controller("a");
    site.sandbox("one", &json!({}));
    let refused = site.wait(SANDBOXES, "one", |object| {
        condition(object, "Ready")["reason"] == "DaemonRefused"
    });
    assert!(
        condition(&refused, "Ready")["message"]
            .as_str()
            .unwrap()
            .contains("not between 512")
    );
    site.wait_ready("one");
}

#[test]
fn an_api_server_that_forgets_conflicts_and_fails_is_caught_up_with() {
    let site = Site::new();
    let _controller = site.controller("a");
    site.template("python", &container());
    site.pool("pool", "python", 1, "OnReplenish");
    site.wait(POOLS, "pool", |object| object["status"]["readyReplicas"] == 1);
    site.api.fail_once("PATCH", "/apis/agents.x-k8s.io/", 409);
    site.api.fail_once("POST", "/api/v1/namespaces/agents/pods", 500);
    site.api
        .fail_once("GET", "/apis/agents.x-k8s.io/v1beta1/sandboxes", 500);
    // Watches end, and what they could go on from is too old (410).
    site.api.forget();
    site.sandbox("one", &json!({}));
    site.wait_ready("one");
    site.change(POOLS, "pool", &json!({ "spec": { "replicas": 2 } }));
    site.wait(POOLS, "pool", |object| object["status"]["readyReplicas"] == 2);
    assert_eq!(site.made(), 3);
}

#[test]
fn of_two_controllers_one_leads_and_the_other_takes_over() {
    let site = Site::new();
    let first = site.controller("first");
    site.sandbox("one", &json!({}));
    site.wait_ready("one");
    let second = site.controller("second");
    let lease = ("coordination.k8s.io", "leases");
    let holder = || {
        site.api
            .get(lease.0, lease.1, "offleash", "offleash-controller-boxes")
            .unwrap()["spec"]["holderIdentity"]
            .clone()
    };
    site.until("the second to ask", || {
        (site.api.count("GET", "/apis/coordination.k8s.io/") > 3).then_some(())
    });
    assert_eq!(holder(), "first");
    // The one that is told to end gives the Lease up; nothing is made twice.
    assert!(first.stop().is_ok());
    site.sandbox("two", &json!({}));
    site.wait_ready("two");
    assert_eq!(
        (holder(), site.made(), site.daemons[0].creates()),
        (json!("second"), 2, 2)
    );
    // One that finds another's name in the Lease ends, and says whose.
    site.api.change(
        lease.0,
        lease.1,
        "offleash",
        "offleash-controller-boxes",
        &json!({ "spec": { "holderIdentity": "third" } }),
    );
    let lost = second.wait().unwrap_err();
    assert!(
        matches!(&lost, ControllerError::LeadershipLost { holder, .. } if holder.contains("third")),
        "{lost}"
    );
    site.sandbox("three", &json!({}));
    assert_eq!(site.made(), 2);
}

#[test]
fn a_controller_says_what_is_missing_before_it_leads() {
    let site = Site::new();
    site.api
        .fail_once("GET", "/apis/agents.x-k8s.io/v1beta1/sandboxes", 404);
    let refused = site.controller("a").wait().unwrap_err();
    assert!(
        matches!(&refused, ControllerError::ApiServer { is_refusal: true, .. }),
        "{refused}"
    );
    let mut config = site.config("a");
    config.daemons = "app in (boxes)".to_owned();
    assert!(matches!(
        Running::start(config).wait(),
        Err(ControllerError::Settings { .. })
    ));
    let mut config = site.config("a");
    config.account.url = "http://127.0.0.1:1".to_owned();
    let unreachable = Running::start(config).wait().unwrap_err();
    assert!(
        matches!(&unreachable, ControllerError::ApiServer { is_refusal: false, .. }),
        "{unreachable}"
    );
    assert!(
        unreachable
            .to_string()
            .contains("`http://127.0.0.1:1` cannot be reached"),
        "{unreachable}"
    );
    let mut config = site.config("a");
    config.account.token = Some("/nowhere/token".into());
    let untold = Running::start(config).wait().unwrap_err().to_string();
    assert!(untold.contains("reading `/nowhere/token`: No such file"), "{untold}");
}
