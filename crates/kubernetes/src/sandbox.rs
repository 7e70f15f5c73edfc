//! One Sandbox: placed by its placeholder, made by the daemon of that node, told of in its status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::controller::Action;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::conditions::Finding;
use crate::context::{Context, ReconcileError, SharedContext, trying};
use crate::daemons::FoundDaemon;
use crate::ending::{Ending, end, find, is_node, no_daemon, placeholder_of, remove_placeholder};
use crate::kinds::{OperatingMode, Sandbox, SandboxTemplate, ShutdownPolicy, words};
use crate::native::{NativeError, NativePolicy, NativeSandbox, NativeView};
use crate::network_policy::policy;
use crate::placeholder::{Placement, is_placeholder_of, placeholder, placement_of, scheduler_words};
use crate::record::{CONTROLLER_LABEL, NAME_LABEL, NAMESPACE_LABEL, SandboxRecord, UID_LABEL, sandbox_name};
use crate::report::{POD_SCHEDULED, SUSPENDED, StatusReport, reasons};
use crate::service;
use crate::workload::{Workload, WorkloadRefusal, limits_of_pod, pod_spec, workload};

/// How long a sandbox lives that nobody extends; then it is put away, because the controller is gone.
const TIME: u64 = 60 * 60;
/// It is extended when less than this is left.
const EXTEND_BELOW: i64 = 40 * 60;
/// When what failed is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Starts the command once, and does not wait for it: its words go to a file.
const START: &str = r#"mkdir "/tmp/.offleash-command-$1" 2>/dev/null || exit 0
log="/tmp/.offleash-command-$1/output"; shift
command -v "$1" >/dev/null || { echo "$1: not found" >&2; exit 127; }
nohup "$@" </dev/null >"$log" 2>&1 &"#;

/// Brings one Sandbox nearer to what it is to be.
pub(crate) async fn reconcile(seen: Arc<Sandbox>, context: SharedContext) -> Result<Action, ReconcileError> {
    let namespace = seen.namespace().ok_or(ReconcileError::NoObject("namespace"))?;
    let api: Api<Sandbox> = context.api(&namespace);
    // What was seen may be old, and what is made twice cannot be taken back.
    let read = trying("read a Sandbox", api.get_opt(&seen.name_any()).await)?;
    let Some(mut sandbox) = read.filter(|read| context.is_ours(read)) else {
        return Ok(Action::await_change());
    };
    if sandbox.metadata.deletion_timestamp.is_some() {
        return finish(&context, &sandbox).await;
    }
    if !sandbox.finalizers().iter().any(|name| name == words::FINALIZER) {
        let mut all = sandbox.finalizers().to_vec();
        all.push(words::FINALIZER.to_owned());
        sandbox = context.patch(&sandbox, json!({ "finalizers": all })).await?;
    }
    let left = sandbox.spec.shutdown_time.as_ref().map(|time| context.until(time.0));
    if left == Some(None) {
        return expire(&context, &sandbox).await;
    }
    let again = left
        .flatten()
        .map_or(context.config.resync, |left| left.min(context.config.resync));
    match sandbox.spec.operating_mode {
        OperatingMode::Running => run(&context, sandbox, again).await,
        OperatingMode::Suspended => suspend(&context, sandbox, again).await,
    }
}

/// Ends the sandbox of an object that is being deleted, and lets the object go when that is proved.
async fn finish(context: &Context, sandbox: &Sandbox) -> Result<Action, ReconcileError> {
    if !sandbox.finalizers().iter().any(|name| name == words::FINALIZER) {
        return Ok(Action::await_change());
    }
    if let Ending::Unknown(reason) = end(context, sandbox, &SandboxRecord::of(sandbox)).await? {
        let mut report = StatusReport::of(sandbox);
        report.not_ready(
            reasons::DAEMON_UNAVAILABLE,
            format!("deletion waits for the sandbox's end: {reason}"),
        );
        return report.write(context, sandbox, Some(RETRY)).await;
    }
    remove_placeholder(context, sandbox).await?;
    let others: Vec<&String> = sandbox
        .finalizers()
        .iter()
        .filter(|name| *name != words::FINALIZER)
        .collect();
    context.patch(sandbox, json!({ "finalizers": others })).await?;
    context
        .config
        .log
        .info(&format!("sandbox of {} has ended", crate::context::shown(sandbox)));
    Ok(Action::await_change())
}

/// Ends what there is of a Sandbox whose time is up.
async fn expire(context: &Context, sandbox: &Sandbox) -> Result<Action, ReconcileError> {
    let record = SandboxRecord::of(sandbox);
    let mut report = StatusReport::of(sandbox);
    if let Ending::Unknown(reason) = end(context, sandbox, &record).await? {
        report.not_ready(
            reasons::EXPIRED,
            format!("its time is up, and its end is not proved yet: {reason}"),
        );
        return report.write(context, sandbox, Some(RETRY)).await;
    }
    remove_placeholder(context, sandbox).await?;
    service::remove(context, sandbox).await?;
    if sandbox.spec.shutdown_policy == Some(ShutdownPolicy::Delete) {
        context.delete(sandbox, DeleteParams::default()).await?;
        return Ok(Action::await_change());
    }
    let ended = SandboxRecord {
        attempt: record.attempt,
        ..SandboxRecord::default()
    };
    let sandbox = ended.write(context, sandbox).await?;
    report.not_ready(reasons::EXPIRED, "its time is up");
    report.no_pod();
    report.service("", String::new());
    report.write(context, &sandbox, None).await
}

/// Keeps a sandbox's files, and nothing that runs.
async fn suspend(context: &Context, sandbox: Sandbox, again: Duration) -> Result<Action, ReconcileError> {
    let mut record = SandboxRecord::of(&sandbox);
    let mut report = StatusReport::of(&sandbox);
    let annotations = &sandbox.spec.blueprint.pod_template.metadata.annotations;
    let wants_memory = annotations.get(words::SUSPEND_MODE).and_then(|mode| mode.as_str()) == Some("full");
    // Memory is kept where a placeholder holds its place, so that the quota counts it.
    let mode = match wants_memory && placeholder_of(context, &sandbox).await?.is_some() {
        true => "full",
        false => "filesystem",
    };
    let mut told = "there was nothing to keep".to_owned();
    if let Some(node) = record.node.clone() {
        match paused(context, &sandbox, &record, &node, mode).await {
            Ok(Some(id)) => {
                told = format!(
                    "sandbox `{id}` is paused on node `{node}`, which keeps its {}",
                    kept(mode)
                );
                record.id = Some(id);
            }
            Ok(None) if !is_node(context, &node).await? => {
                report.recreated(
                    "NodeGone",
                    format!("node `{node}` is gone, and with it what the sandbox had"),
                );
                record = SandboxRecord {
                    attempt: record.attempt,
                    ..SandboxRecord::default()
                };
            }
            Ok(None) => {}
            Err(error) => {
                let mut unknown = Finding::new(SUSPENDED, false, reasons::DAEMON_UNAVAILABLE, error.clone());
                "Unknown".clone_into(&mut unknown.status);
                report.set(&unknown);
                report.not_ready(reasons::DAEMON_UNAVAILABLE, error);
                return report.write(context, &sandbox, Some(RETRY)).await;
            }
        }
    }
    let sandbox = record.write(context, &sandbox).await?;
    // Files cost the node no memory, and the quota is given back; what keeps memory keeps its place.
    if mode != "full" {
        remove_placeholder(context, &sandbox).await?;
        report.no_pod();
    }
    service::remove(context, &sandbox).await?;
    report.service("", String::new());
    report.set(&Finding::new(SUSPENDED, true, "PodTerminated", told));
    report.not_ready(reasons::SUSPENDED, "the Sandbox is suspended");
    report.write(context, &sandbox, Some(again)).await
}

fn kept(mode: &str) -> &'static str {
    if mode == "full" { "files and memory" } else { "files" }
}

/// Pauses the sandbox of a record; answers its id, or that there is none.
async fn paused(
    context: &Context,
    sandbox: &Sandbox,
    record: &SandboxRecord,
    node: &str,
    mode: &str,
) -> Result<Option<String>, String> {
    let Some(found) = context.daemons.of(node) else {
        let is_there = is_node(context, node).await.map_err(|error| error.to_string())?;
        return if is_there { Err(no_daemon(node)) } else { Ok(None) };
    };
    let words = |error: NativeError| error.to_string();
    let Some(view) = find(&found, sandbox, record).await.map_err(words)? else {
        return Ok(None);
    };
    let keeps_too_much = view.is_paused() && mode != "full" && view.pause_mode.as_deref() == Some("full");
    if keeps_too_much {
        found.daemon.resume(&view.id, TIME).await.map_err(words)?;
    }
    if keeps_too_much || !view.is_paused() {
        found.daemon.pause(&view.id, mode).await.map_err(words)?;
    }
    Ok(Some(view.id))
}

/// Pauses a sandbox whose place nothing holds any more, and says so behind what is said. Whoever deletes placeholders, and uses the
/// quota for others, would have sandboxes that nobody counts.
async fn without_place(context: &Context, sandbox: &Sandbox) -> String {
    let record = SandboxRecord::of(sandbox);
    let Some(node) = &record.node else {
        return String::new();
    };
    match paused(context, sandbox, &record, node, "filesystem").await {
        Ok(Some(id)) => format!("; sandbox `{id}` is paused until it has a place"),
        Ok(None) => String::new(),
        Err(error) => format!("; {error}"),
    }
}

/// Sees to it that the sandbox runs where its placeholder is.
async fn run(context: &Context, sandbox: Sandbox, again: Duration) -> Result<Action, ReconcileError> {
    let mut report = StatusReport::of(&sandbox);
    if !report.is_suspended() {
        report.set(&Finding::new(
            SUSPENDED,
            false,
            "NotSuspended",
            "the Sandbox is not suspended",
        ));
    }
    let mut wanted = match wanted(context, &sandbox).await? {
        Ok(wanted) => wanted,
        Err(refusal) => {
            let mut told = refusal.to_string();
            // What is there keeps its place, so that the quota counts it, as upstream's pods outlive a change of their template.
            if SandboxRecord::of(&sandbox).node.is_none() {
                remove_placeholder(context, &sandbox).await?;
                report.no_pod();
            } else if placeholder_of(context, &sandbox).await?.is_none() {
                told += &without_place(context, &sandbox).await;
            }
            report.not_ready(reasons::NOT_SUPPORTED, told);
            return report.write(context, &sandbox, Some(again)).await;
        }
    };
    let pods: Api<Pod> = context.api(&sandbox.namespace().unwrap_or_default());
    let there = trying("look for the placeholder", pods.get_opt(&sandbox.name_any()).await)?;
    let Some(pod) = there else {
        return place(context, &sandbox, &pods, report).await;
    };
    if !is_placeholder_of(&pod, &sandbox) {
        let name = sandbox.name_any();
        let paused = without_place(context, &sandbox).await;
        let told = format!("a pod `{name}` is there that this controller did not make{paused}");
        report.not_ready(reasons::NAME_TAKEN, told);
        return report.write(context, &sandbox, Some(again)).await;
    }
    let (status, reason, message) = scheduler_words(&pod);
    let mut scheduled = Finding::new(POD_SCHEDULED, true, &reason, message.clone());
    status.clone_into(&mut scheduled.status);
    report.set(&scheduled);
    match placement_of(&pod) {
        Placement::Bound(node) => {
            // What the quota counted is what the sandbox gets, whatever the template says by now; a LimitRange's defaults are there, too.
            match limits_of_pod(&pod) {
                Ok(limits) => wanted.workload.limits = limits,
                Err(refusal) => {
                    report.not_ready(reasons::NOT_SUPPORTED, refusal.to_string());
                    return report.write(context, &sandbox, Some(again)).await;
                }
            }
            hold(context, sandbox, &node, &wanted, report, again).await
        }
        Placement::Waiting => {
            let told = format!("the scheduler has not placed it ({reason}): {message}");
            report.not_ready(reasons::DEPENDENCIES_NOT_READY, told);
            report.write(context, &sandbox, Some(again)).await
        }
        Placement::Ending => {
            report.not_ready(
                reasons::DEPENDENCIES_NOT_READY,
                "its placeholder was evicted, and is placed anew",
            );
            report.write(context, &sandbox, Some(RETRY)).await
        }
        Placement::Over => {
            context.delete(&pod, DeleteParams::default()).await?;
            report.not_ready(
                reasons::DEPENDENCIES_NOT_READY,
                "its placeholder has ended, and is placed anew",
            );
            report.write(context, &sandbox, Some(RETRY)).await
        }
    }
}

/// What is asked of a daemon for a Sandbox.
#[derive(Debug)]
struct WantedSandbox {
    workload: Workload,
    policy: Option<NativePolicy>,
}

/// What a Sandbox asks for, with its RuntimeClass and its template's network policy, or what of it is not there.
async fn wanted(
    context: &Context,
    sandbox: &Sandbox,
) -> Result<Result<WantedSandbox, WorkloadRefusal>, ReconcileError> {
    let blueprint = &sandbox.spec.blueprint;
    let class = pod_spec(&blueprint.pod_template)
        .ok()
        .and_then(|spec| spec.runtime_class_name);
    let mut handler = None;
    if let Some(class) = class.filter(|class| !class.is_empty()) {
        let classes: Api<RuntimeClass> = Api::all(context.client.0.clone());
        let Some(found) = trying("look for the RuntimeClass", classes.get_opt(&class).await)? else {
            return Ok(Err(WorkloadRefusal {
                field: "spec.podTemplate.spec.runtimeClassName".to_owned(),
                reason: format!("the cluster has no RuntimeClass `{class}`"),
            }));
        };
        handler = Some(found.handler);
    }
    let mut rules = Ok(None);
    if let Some(name) = sandbox.annotations().get(words::TEMPLATE_REF) {
        let templates: Api<SandboxTemplate> = context.api(&sandbox.namespace().unwrap_or_default());
        let template = trying("look for the SandboxTemplate", templates.get_opt(name).await)?;
        rules = template.map_or(Ok(None), |template| policy(&template.spec));
    }
    Ok(workload(blueprint, handler.as_deref()).and_then(|workload| {
        Ok(WantedSandbox {
            workload,
            policy: rules?,
        })
    }))
}

/// Makes the placeholder: where the files of a suspended sandbox are, and anywhere otherwise.
async fn place(
    context: &Context,
    sandbox: &Sandbox,
    pods: &Api<Pod>,
    mut report: StatusReport,
) -> Result<Action, ReconcileError> {
    let mut pinned = SandboxRecord::of(sandbox).node.filter(|_| report.is_suspended());
    if let Some(node) = &pinned
        && !is_node(context, node).await?
    {
        report.recreated(
            "NodeGone",
            format!("node `{node}` is gone, and with it what the sandbox had"),
        );
        pinned = None;
    }
    let pod = match placeholder(sandbox, &context.placeholders, pinned.as_deref()) {
        Ok(pod) => pod,
        Err(refusal) => {
            report.not_ready(reasons::NOT_SUPPORTED, refusal.to_string());
            return report.write(context, sandbox, None).await;
        }
    };
    match pods.create(&PostParams::default(), &pod).await {
        Ok(_) => report.not_ready(
            reasons::DEPENDENCIES_NOT_READY,
            "its placeholder waits for the scheduler",
        ),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        // A quota that is used up, or a policy that refuses pods: the cluster's own words.
        Err(kube::Error::Api(status)) if status.is_forbidden() || status.is_invalid() => {
            let paused = without_place(context, sandbox).await;
            let told = format!("the API server refuses its placeholder: {}{paused}", status.message);
            report.not_ready(reasons::DEPENDENCIES_NOT_READY, told);
        }
        Err(error) => return trying("make the placeholder", Err(error)),
    }
    report.write(context, sandbox, Some(RETRY)).await
}

/// Sees to it that the daemon of `node` has the sandbox, and no other daemon.
async fn hold(
    context: &Context,
    sandbox: Sandbox,
    node: &str,
    wanted: &WantedSandbox,
    mut report: StatusReport,
    again: Duration,
) -> Result<Action, ReconcileError> {
    let mut sandbox = sandbox;
    let mut record = SandboxRecord::of(&sandbox);
    if let Some(old) = record.node.clone().filter(|old| old != node) {
        match end(context, &sandbox, &record).await? {
            Ending::Unknown(reason) => {
                let told = format!("it is to be on node `{node}`, and may still be on `{old}`: {reason}");
                report.not_ready(reasons::DAEMON_UNAVAILABLE, told);
                return report.write(context, &sandbox, Some(RETRY)).await;
            }
            ended => {
                let (reason, how) = match ended {
                    Ending::NodeGone => ("NodeGone", "is gone"),
                    _ => ("NodeDrained", "gave up its placeholder"),
                };
                let told =
                    format!("node `{old}` {how}; the sandbox was made anew on `{node}`, without the files that it had");
                report.recreated(reason, told);
                record = record.next_at(node);
            }
        }
    }
    let Some(found) = context.daemons.of(node) else {
        report.not_ready(reasons::DAEMON_UNAVAILABLE, no_daemon(node));
        return report.write(context, &sandbox, Some(RETRY)).await;
    };
    let made = make(context, &mut sandbox, &mut record, &found, wanted, &mut report).await?;
    let message = match made {
        Ok(view) => format!("sandbox `{}` runs on node `{node}` at level `{}`", view.id, view.level),
        Err((reason, told)) => {
            report.not_ready(reason, told);
            let pause = if reason == reasons::DAEMON_UNAVAILABLE {
                RETRY
            } else {
                again
            };
            return report.write(context, &sandbox, Some(pause)).await;
        }
    };
    let service = service::serve(context, &sandbox, &found.addresses, node).await?;
    let (name, fqdn) = service.unwrap_or_default();
    report.service(&name, fqdn);
    report.set(&Finding::new(
        SUSPENDED,
        false,
        "NotSuspended",
        "the Sandbox is not suspended",
    ));
    report.ready(node, found.addresses, message);
    report.write(context, &sandbox, Some(again)).await
}

/// Why a sandbox is not there: the reason of a condition, and the words.
type Unmade = (&'static str, String);

fn unmade(error: &NativeError) -> Unmade {
    let reason = if error.is_final() {
        reasons::DAEMON_REFUSED
    } else {
        reasons::DAEMON_UNAVAILABLE
    };
    (reason, error.to_string())
}

/// Finds the sandbox of a record, or makes it, and brings it up to date.
async fn make(
    context: &Context,
    sandbox: &mut Sandbox,
    record: &mut SandboxRecord,
    found: &FoundDaemon,
    wanted: &WantedSandbox,
    report: &mut StatusReport,
) -> Result<Result<NativeView, Unmade>, ReconcileError> {
    let daemon = &found.daemon;
    let there = match record.node {
        Some(_) => match find(found, sandbox, record).await {
            Ok(there) => there,
            Err(error) => return Ok(Err(unmade(&error))),
        },
        None => None,
    };
    let digest = wanted.policy.as_ref().map(|policy| digest_of(context, sandbox, policy));
    let view = match there {
        Some(view) => {
            // A template may have changed before the placeholder was made anew. What a sandbox may use is said when it is made.
            if let Some(resource) = view.limits.more_than(&wanted.workload.limits) {
                let paused = without_place(context, sandbox).await;
                let told = format!("the sandbox has more {resource} than its placeholder counts{paused}");
                return Ok(Err((reasons::NOT_SUPPORTED, told)));
            }
            record.id = Some(view.id.clone());
            view
        }
        None => {
            if let Some(lost) = record.id.take() {
                let told = format!(
                    "the daemon of node `{}` has sandbox `{lost}` no more; it was made anew, without its files",
                    daemon.node
                );
                report.recreated("DaemonLostSandbox", told);
                *record = record.next_at(&daemon.node);
            } else if record.node.is_none() {
                *record = record.next_at(&daemon.node);
            }
            *sandbox = record.write(context, sandbox).await?;
            let asked = asked(&context.config.name, sandbox, wanted);
            let key = format!("{}-{}", sandbox_name(sandbox), record.attempt);
            match daemon.create(&asked, &key).await {
                Ok(view) => {
                    record.id = Some(view.id.clone());
                    record.policy.clone_from(&digest);
                    view
                }
                // It was made meanwhile: the next look finds it by its name.
                Err(error) if error.is_conflict() => return Ok(Err((reasons::DAEMON_UNAVAILABLE, error.to_string()))),
                Err(error) => return Ok(Err(unmade(&error))),
            }
        }
    };
    if view.is_paused() && !wanted.workload.keeps_memory && record.is_command_started {
        // Its processes are gone: the command is started once more, under another number.
        record.attempt = record.attempt.saturating_add(1);
        record.is_command_started = false;
    }
    *sandbox = record.write(context, sandbox).await?;
    let ready = bring_up(found, record, &view, wanted, digest).await;
    *sandbox = record.write(context, sandbox).await?;
    Ok(ready.map(|()| view))
}

/// Has a sandbox run, for long enough, with its rules and its command.
async fn bring_up(
    found: &FoundDaemon,
    record: &mut SandboxRecord,
    view: &NativeView,
    wanted: &WantedSandbox,
    digest: Option<String>,
) -> Result<(), Unmade> {
    let daemon = &found.daemon;
    let failed = |error: NativeError| unmade(&error);
    if view.is_paused() || is_nearly_over(view) {
        daemon.resume(&view.id, TIME).await.map_err(failed)?;
    }
    if let Some(policy) = wanted.policy.as_ref().filter(|_| record.policy != digest) {
        daemon.set_policy(&view.id, policy).await.map_err(failed)?;
        record.policy = digest;
    }
    if wanted.workload.command.is_empty() || record.is_command_started {
        return Ok(());
    }
    let words = ["/bin/sh", "-c", START, "sh"].map(str::to_owned);
    let argv: Vec<String> = words
        .into_iter()
        .chain([record.attempt.to_string()])
        .chain(wanted.workload.command.iter().cloned())
        .collect();
    let command = json!({ "argv": argv, "cwd": wanted.workload.directory, "timeout_ms": 30_000 });
    match daemon.run(&view.id, &command).await.map_err(failed)? {
        (Some(0), _) => {
            record.is_command_started = true;
            Ok(())
        }
        (_, told) => Err((
            reasons::COMMAND_NOT_STARTED,
            format!("the container's command did not start: {}", told.trim()),
        )),
    }
}

fn is_nearly_over(view: &NativeView) -> bool {
    let ends: Option<Timestamp> = view.ends_at.parse().ok();
    ends.is_none_or(|ends| ends.as_second() - Timestamp::now().as_second() < EXTEND_BELOW)
}

/// The create of a Sandbox.
fn asked(controller: &str, sandbox: &Sandbox, wanted: &WantedSandbox) -> NativeSandbox {
    let workload = &wanted.workload;
    let label = |name: &str, value: Option<String>| Some((name.to_owned(), value?));
    let mut metadata: BTreeMap<String, String> = [
        Some((UID_LABEL.to_owned(), sandbox.uid().unwrap_or_default())),
        Some((CONTROLLER_LABEL.to_owned(), controller.to_owned())),
        label(NAMESPACE_LABEL, sandbox.namespace()),
        label(NAME_LABEL, sandbox.metadata.name.clone()),
    ]
    .into_iter()
    .flatten()
    .collect();
    metadata.extend(
        workload
            .level
            .map(|level| ("offleash.level".to_owned(), level.to_owned())),
    );
    NativeSandbox {
        template: workload.template.clone(),
        image: workload.image.clone(),
        name: sandbox_name(sandbox),
        timeout_seconds: TIME,
        metadata,
        env: workload.env.clone(),
        pause_on_timeout: true,
        pause_mode: "filesystem",
        limits: workload.limits,
        policy: wanted.policy.clone(),
    }
}

/// A digest of a policy that nobody else can tell beforehand: whoever may write a Sandbox writes what is on record of it.
fn digest_of(context: &Context, sandbox: &Sandbox, policy: &NativePolicy) -> String {
    let key = Sha256::digest(context.config.key.reveal());
    let digest = Sha256::new()
        .chain_update(key)
        .chain_update(sandbox.uid().unwrap_or_default())
        .chain_update(json!(policy).to_string());
    let digest = digest.finalize();
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
