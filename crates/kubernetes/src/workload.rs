//! What a pod's template asks for, as a request to a daemon. Pure.
//!
//! Every field is honoured, passed over because it changes nothing for a sandbox, or refused by its name. A field that is not in one
//! of the tables is refused, so that none is lost that a later Kubernetes adds.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde_json::Value;

use crate::kinds::{PodTemplate, SandboxBlueprint, words};
use crate::native::NativeLimits;

/// Fields of a pod that the placeholder has, or the sandbox.
const HONOURED_OF_POD: [&str; 13] = [
    "affinity",
    "containers",
    "nodeName",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "tolerations",
    "topologySpreadConstraints",
];
/// Fields of a pod that mean nothing for a sandbox.
const PASSED_OVER_OF_POD: [&str; 9] = [
    "dnsPolicy",
    "enableServiceLinks",
    "hostname",
    "imagePullSecrets",
    "restartPolicy",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
];
/// Fields of a container that the sandbox has.
const HONOURED_OF_CONTAINER: [&str; 7] = ["args", "command", "env", "image", "name", "resources", "workingDir"];
/// Fields of a container that mean nothing for a sandbox.
const PASSED_OVER_OF_CONTAINER: [&str; 5] = [
    "imagePullPolicy",
    "ports",
    "securityContext",
    "terminationMessagePath",
    "terminationMessagePolicy",
];
/// Nanounits.
const ONE: u128 = 1_000_000_000;
const MIB: u128 = 1 << 20;

/// Something that is asked for and not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub(crate) struct WorkloadRefusal {
    /// The field, as `spec.podTemplate.spec.volumes`.
    pub(crate) field: String,
    /// Why not.
    pub(crate) reason: String,
}

/// What a pod's template asks for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Workload {
    /// The template, where offleash's own is named.
    pub(crate) template: Option<String>,
    /// The image otherwise.
    pub(crate) image: Option<String>,
    /// Variables.
    pub(crate) env: BTreeMap<String, String>,
    /// What it may use.
    pub(crate) limits: NativeLimits,
    /// The level that its RuntimeClass stands for.
    pub(crate) level: Option<&'static str>,
    /// What is started in it.
    pub(crate) command: Vec<String>,
    /// Where.
    pub(crate) directory: Option<String>,
    /// Whether a suspension keeps memory, and with it the placeholder.
    pub(crate) keeps_memory: bool,
}

fn refuse<T>(field: &str, reason: impl Into<String>) -> Result<T, WorkloadRefusal> {
    Err(WorkloadRefusal {
        field: format!("spec.{field}"),
        reason: reason.into(),
    })
}

/// The PodSpec of a template.
///
/// # Errors
/// A field that is no field, or has another type.
pub(crate) fn pod_spec(template: &PodTemplate) -> Result<PodSpec, WorkloadRefusal> {
    serde_json::from_value(template.spec.clone()).or_else(|error| refuse("podTemplate.spec", error.to_string()))
}

/// What a blueprint asks for; `handler` is that of its RuntimeClass.
///
/// # Errors
/// The first field that is not there.
pub(crate) fn workload(blueprint: &SandboxBlueprint, handler: Option<&str>) -> Result<Workload, WorkloadRefusal> {
    if !blueprint.volume_claim_templates.is_empty() {
        return refuse(
            "volumeClaimTemplates",
            "sandboxes have no claims of storage; volumes of offleash belong to one node",
        );
    }
    let template = &blueprint.pod_template;
    check_fields(
        "podTemplate.spec",
        &template.spec,
        &[&HONOURED_OF_POD, &PASSED_OVER_OF_POD],
    )?;
    let spec = pod_spec(template)?;
    let [container] = &*spec.containers else {
        return refuse(
            "podTemplate.spec.containers",
            format!("a sandbox is one container, and these are {}", spec.containers.len()),
        );
    };
    let place = "podTemplate.spec.containers[0]";
    check_fields(
        place,
        &template.spec["containers"][0],
        &[&HONOURED_OF_CONTAINER, &PASSED_OVER_OF_CONTAINER],
    )?;
    check_security(place, container)?;
    let named = |word: &str| template.metadata.annotations.get(word).and_then(Value::as_str);
    let own_template = named(words::TEMPLATE).map(str::to_owned);
    let image = match (&own_template, &container.image) {
        (None, None) => return refuse(&format!("{place}.image"), "nothing is said"),
        (None, Some(image)) => Some(image.clone()),
        (Some(_), _) => None,
    };
    let keeps_memory = match named(words::SUSPEND_MODE) {
        None | Some("filesystem") => false,
        Some("full") => true,
        Some(_) => {
            let field = format!("podTemplate.metadata.annotations.{}", words::SUSPEND_MODE);
            return refuse(&field, "it is `filesystem` or `full`");
        }
    };
    let command = container
        .command
        .iter()
        .flatten()
        .chain(container.args.iter().flatten());
    Ok(Workload {
        template: own_template,
        image,
        env: env(place, container)?,
        limits: limits(place, container)?,
        level: level(handler)?,
        command: command.cloned().collect(),
        directory: container.working_dir.clone(),
        keeps_memory,
    })
}

/// Refuses the first field that says something and is in no table.
fn check_fields(place: &str, value: &Value, tables: &[&[&str]]) -> Result<(), WorkloadRefusal> {
    let fields = value.as_object().into_iter().flatten();
    let unknown = fields
        .filter(|(_, value)| says_something(value))
        .find(|(name, _)| !tables.iter().any(|table| table.contains(&name.as_str())));
    match unknown {
        None => Ok(()),
        Some((name, _)) => refuse(
            &format!("{place}.{name}"),
            "offleash has nothing that it could mean for a sandbox",
        ),
    }
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => map.values().any(says_something),
        Value::String(text) => !text.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// What asks for more than any sandbox has. What asks for less is passed over: a sandbox has less.
fn check_security(place: &str, container: &Container) -> Result<(), WorkloadRefusal> {
    let Some(context) = &container.security_context else {
        return Ok(());
    };
    let place = format!("{place}.securityContext");
    if context.privileged == Some(true) {
        return refuse(&format!("{place}.privileged"), "no sandbox is privileged");
    }
    let added = context.capabilities.iter().flat_map(|given| given.add.iter().flatten());
    if added.count() > 0 {
        return refuse(
            &format!("{place}.capabilities.add"),
            "no sandbox has capabilities of the node",
        );
    }
    Ok(())
}

fn env(place: &str, container: &Container) -> Result<BTreeMap<String, String>, WorkloadRefusal> {
    let mut all = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        if variable.value_from.is_some() {
            let field = format!("{place}.env[{}].valueFrom", variable.name);
            return refuse(
                &field,
                "values are not fetched: say `value`, or give secrets by the daemon's own",
            );
        }
        all.insert(variable.name.clone(), variable.value.clone().unwrap_or_default());
    }
    Ok(all)
}

fn limits(place: &str, container: &Container) -> Result<NativeLimits, WorkloadRefusal> {
    let resources = container.resources.clone().unwrap_or_default();
    let (limits, requests) = (
        resources.limits.unwrap_or_default(),
        resources.requests.unwrap_or_default(),
    );
    for name in limits.keys().chain(requests.keys()) {
        if !matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            let field = format!("{place}.resources.limits[{name}]");
            return refuse(&field, "sandboxes have cpu, memory and ephemeral-storage");
        }
    }
    let amount = |name: &str, unit: u128| {
        let Some(found) = limits.get(name).or_else(|| requests.get(name)) else {
            return Ok(None);
        };
        let units = quantity(&found.0).map(|nano| nano.div_ceil(unit * ONE));
        match units
            .and_then(|units| u64::try_from(units).ok())
            .filter(|units| *units > 0)
        {
            Some(units) => Ok(Some(units)),
            None => refuse(
                &format!("{place}.resources.limits[{name}]"),
                format!("`{}` is no amount", found.0),
            ),
        }
    };
    let cpus = amount("cpu", 1)?.map(u32::try_from).transpose();
    Ok(NativeLimits {
        cpus: cpus.or_else(|_| refuse(&format!("{place}.resources.limits[cpu]"), "it is too much"))?,
        memory_mib: amount("memory", MIB)?,
        disk_mib: amount("ephemeral-storage", MIB)?,
    })
}

/// What a sandbox may use whose place this pod holds.
///
/// # Errors
/// As [`workload`].
pub(crate) fn limits_of_pod(pod: &Pod) -> Result<NativeLimits, WorkloadRefusal> {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container.map_or_else(
        || Ok(NativeLimits::default()),
        |container| limits("placeholder", container),
    )
}

/// A quantity of Kubernetes, as `500m`, `1.5Gi` or `1e3`, in nanounits; `None` for what is none, or is too large.
pub(crate) fn quantity(text: &str) -> Option<u128> {
    let digits = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || fraction.len() > 9 {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction: u128 = format!("{fraction:0<9}").parse().ok()?;
    let nano = whole.checked_mul(ONE)?.checked_add(fraction)?;
    let factor = match suffix {
        "n" => return Some(nano / ONE),
        "u" => return Some(nano / 1_000_000),
        "m" => return Some(nano / 1_000),
        "" => 1,
        "k" => 10_u128.pow(3),
        "M" => 10_u128.pow(6),
        "G" => 10_u128.pow(9),
        "T" => 10_u128.pow(12),
        "P" => 10_u128.pow(15),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        _ => 10_u128.checked_pow(suffix.strip_prefix(['e', 'E'])?.parse().ok()?)?,
    };
    nano.checked_mul(factor)
}

/// The level that a runtime's handler stands for.
fn level(handler: Option<&str>) -> Result<Option<&'static str>, WorkloadRefusal> {
    match handler {
        None => Ok(None),
        Some("runsc" | "gvisor") => Ok(Some("container")),
        Some(name) if name == "kata" || name.starts_with("kata-") => Ok(Some("microvm")),
        Some(name) => {
            let reason = format!(
                "its handler is `{name}`; offleash has levels for `runsc` (gVisor) and `kata` (virtual machines)"
            );
            refuse("podTemplate.spec.runtimeClassName", reason)
        }
    }
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod workload_tests;
