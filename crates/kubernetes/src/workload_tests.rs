use serde_json::{Value, json};

use super::*;

fn blueprint(spec: Value) -> SandboxBlueprint {
    SandboxBlueprint {
        pod_template: PodTemplate {
            spec,
            ..PodTemplate::default()
        },
        ..SandboxBlueprint::default()
    }
}

/// A pod with one container, which has this beside.
fn with_container(more: Value) -> SandboxBlueprint {
    let mut container = json!({ "name": "main", "image": "python:3.12-slim" });
    container
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    blueprint(json!({ "containers": [container] }))
}

/// The same with this beside the containers.
fn with_pod(more: Value) -> SandboxBlueprint {
    let mut blueprint = with_container(json!({}));
    let spec = blueprint.pod_template.spec.as_object_mut().unwrap();
    spec.extend(more.as_object().unwrap().clone());
    blueprint
}

fn refused(blueprint: &SandboxBlueprint) -> String {
    workload(blueprint, None).unwrap_err().field
}

#[test]
fn a_container_becomes_an_image_with_limits_variables_and_a_command() {
    let asked = with_container(json!({
        "command": ["python3", "-m"], "args": ["http.server"], "workingDir": "/srv",
        "env": [{ "name": "A", "value": "b" }, { "name": "EMPTY" }],
        "ports": [{ "containerPort": 8080 }],
        "securityContext": { "privileged": false, "capabilities": { "drop": ["ALL"] }, "runAsUser": 7 },
        "resources": { "requests": { "cpu": "100m", "memory": "64Mi" }, "limits": { "memory": "1.5Gi", "ephemeral-storage": "1M" } },
    }));
    let found = workload(&asked, None).unwrap();
    assert_eq!(found.image.as_deref(), Some("python:3.12-slim"));
    assert_eq!(found.command, ["python3", "-m", "http.server"]);
    assert_eq!(found.directory.as_deref(), Some("/srv"));
    assert_eq!(
        found.env,
        [("A".to_owned(), "b".to_owned()), ("EMPTY".to_owned(), String::new())].into()
    );
    let limits = NativeLimits {
        cpus: Some(1),
        memory_mib: Some(1536),
        disk_mib: Some(1),
    };
    assert_eq!((found.limits, found.level), (limits, None));
}

#[test]
fn a_template_of_offleash_comes_before_the_image() {
    let mut asked = with_container(json!({}));
    let annotations = &mut asked.pod_template.metadata.annotations;
    annotations.insert(words::TEMPLATE.to_owned(), json!("code-interpreter"));
    annotations.insert(words::SUSPEND_MODE.to_owned(), json!("full"));
    let found = workload(&asked, None).unwrap();
    assert_eq!(
        (found.template.as_deref(), found.image),
        (Some("code-interpreter"), None)
    );
    assert!(found.keeps_memory);
    let annotations = &mut asked.pod_template.metadata.annotations;
    annotations.insert(words::SUSPEND_MODE.to_owned(), json!("half"));
    assert!(refused(&asked).ends_with(words::SUSPEND_MODE));
}

#[test]
fn what_a_sandbox_cannot_have_is_refused_by_its_name() {
    let of_container = "spec.podTemplate.spec.containers[0]";
    for (more, field) in [
        (
            json!({ "volumeMounts": [{ "name": "a", "mountPath": "/a" }] }),
            "volumeMounts",
        ),
        (
            json!({ "readinessProbe": { "exec": { "command": ["true"] } } }),
            "readinessProbe",
        ),
        (
            json!({ "lifecycle": { "preStop": { "sleep": { "seconds": 1 } } } }),
            "lifecycle",
        ),
        (json!({ "envFrom": [{ "secretRef": { "name": "a" } }] }), "envFrom"),
        (json!({ "tty": true }), "tty"),
        (json!({ "aFieldOfTomorrow": 1 }), "aFieldOfTomorrow"),
        (
            json!({ "env": [{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "x" } } }] }),
            "env[A].valueFrom",
        ),
        (
            json!({ "securityContext": { "privileged": true } }),
            "securityContext.privileged",
        ),
        (
            json!({ "securityContext": { "capabilities": { "add": ["SYS_ADMIN"] } } }),
            "securityContext.capabilities.add",
        ),
        (
            json!({ "resources": { "limits": { "nvidia.com/gpu": "1" } } }),
            "resources.limits[nvidia.com/gpu]",
        ),
        (
            json!({ "resources": { "limits": { "memory": "many" } } }),
            "resources.limits[memory]",
        ),
        (
            json!({ "resources": { "limits": { "cpu": "0" } } }),
            "resources.limits[cpu]",
        ),
    ] {
        assert_eq!(refused(&with_container(more)), format!("{of_container}.{field}"));
    }
    for (more, field) in [
        (json!({ "initContainers": [{ "name": "a" }] }), "initContainers"),
        (json!({ "volumes": [{ "name": "a", "emptyDir": {} }] }), "volumes"),
        (json!({ "hostNetwork": true }), "hostNetwork"),
        (
            json!({ "automountServiceAccountToken": true }),
            "automountServiceAccountToken",
        ),
        (json!({ "activeDeadlineSeconds": 5 }), "activeDeadlineSeconds"),
    ] {
        assert_eq!(refused(&with_pod(more)), format!("spec.podTemplate.spec.{field}"));
    }
    let none = blueprint(json!({ "containers": [] }));
    assert_eq!(refused(&none), "spec.podTemplate.spec.containers");
    let mut claims = with_container(json!({}));
    claims.volume_claim_templates.push(json!({}));
    assert_eq!(refused(&claims), "spec.volumeClaimTemplates");
    assert_eq!(refused(&blueprint(json!({ "containers": 7 }))), "spec.podTemplate.spec");
}

#[test]
fn what_says_nothing_is_no_field() {
    let asked = with_pod(json!({
        "hostNetwork": false, "volumes": [], "automountServiceAccountToken": false, "dnsConfig": {}, "restartPolicy": "OnFailure",
        "nodeSelector": { "disk": "ssd" }, "tolerations": [{ "operator": "Exists" }], "hostUsers": false,
    }));
    assert!(workload(&asked, None).is_ok());
}

#[test]
fn handlers_of_runtimes_are_levels() {
    let asked = with_container(json!({}));
    for (handler, level) in [("runsc", "container"), ("kata", "microvm"), ("kata-qemu", "microvm")] {
        assert_eq!(workload(&asked, Some(handler)).unwrap().level, Some(level));
    }
    for handler in ["runc", "katana", "wasmtime"] {
        let refusal = workload(&asked, Some(handler)).unwrap_err();
        assert_eq!(refusal.field, "spec.podTemplate.spec.runtimeClassName");
        assert!(refusal.reason.contains(handler));
    }
}

#[test]
fn quantities_are_those_of_kubernetes() {
    for (text, nano) in [
        ("1", ONE),
        ("0.5", ONE / 2),
        (".5", ONE / 2),
        ("250m", ONE / 4),
        ("2Ki", 2048 * ONE),
        ("1.5Gi", 3 * (1 << 29) * ONE),
        ("1e3", 1000 * ONE),
        ("3M", 3_000_000 * ONE),
        ("100u", 100_000),
    ] {
        assert_eq!(quantity(text), Some(nano), "{text}");
    }
    for text in [
        "",
        ".",
        "1.2.3",
        "-1",
        "1 Gi",
        "1gi",
        "Mi",
        "1e",
        "1e99",
        "99999999999999999999999999999999999999999Ti",
    ] {
        assert_eq!(quantity(text), None, "{text}");
    }
}
