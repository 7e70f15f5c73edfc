//! One SandboxClaim: a Sandbox from the pool that it names, or one that is made for it.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::runtime::controller::Action;
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use crate::conditions::{self, Finding};
use crate::context::{Context, ReconcileError, SharedContext, trying};
use crate::kinds::{
    ClaimedSandbox, InjectionPolicy, Sandbox, SandboxClaim, SandboxClaimStatus, SandboxTemplate, SandboxWarmPool,
    ShutdownPolicy, words,
};
use crate::pool;
use crate::report::READY;

/// When a claim is looked at again that waits for something that is not watched.
const RETRY: Duration = Duration::from_secs(5);

/// What a claim came to.
enum Outcome {
    /// It has this Sandbox.
    Bound(Box<Sandbox>),
    /// It has none: the reason, and the words.
    Unbound(&'static str, String),
}

/// Brings one claim nearer to its Sandbox.
pub(crate) async fn reconcile(seen: Arc<SandboxClaim>, context: SharedContext) -> Result<Action, ReconcileError> {
    let namespace = seen.namespace().ok_or(ReconcileError::NoObject("namespace"))?;
    let api: Api<SandboxClaim> = context.api(&namespace);
    let read = trying("read a SandboxClaim", api.get_opt(&seen.name_any()).await)?;
    // What it owns goes with it, by the cluster's own garbage collection.
    let Some(claim) = read.filter(|claim| claim.metadata.deletion_timestamp.is_none()) else {
        return Ok(Action::await_change());
    };
    let pools: Api<SandboxWarmPool> = context.api(&namespace);
    let pool = trying("look for the pool", pools.get_opt(&claim.spec.warm_pool_ref.name).await)?;
    // A claim says nothing of controllers: it is of the one that serves its pool.
    if !pool
        .as_ref()
        .map_or_else(|| context.is_ours(&claim), |pool| context.is_ours(pool))
    {
        return Ok(Action::await_change());
    }
    let lifecycle = claim.spec.lifecycle.clone().unwrap_or_default();
    let left = lifecycle.shutdown_time.as_ref().map(|time| context.until(time.0));
    if left == Some(None) {
        return expire(&context, &claim, lifecycle.shutdown_policy).await;
    }
    let outcome = match bound(&context, &claim).await? {
        Some(sandbox) => Outcome::Bound(Box::new(sandbox)),
        None => bind(&context, &claim, pool.as_ref()).await?,
    };
    let is_bound = matches!(outcome, Outcome::Bound(_));
    write(&context, &claim, outcome).await?;
    let again = if is_bound { context.config.resync } else { RETRY };
    Ok(Action::requeue(left.flatten().map_or(again, |left| left.min(again))))
}

/// The Sandbox that a claim has, as things are now: also one that it got a moment before the controller died.
async fn bound(context: &Context, claim: &SandboxClaim) -> Result<Option<Sandbox>, ReconcileError> {
    let sandboxes: Api<Sandbox> = context.api(&claim.namespace().unwrap_or_default());
    let selector = format!("{}={}", words::CLAIM_UID, claim.uid().unwrap_or_default());
    let listed = trying(
        "list the Sandboxes of a claim",
        sandboxes.list(&ListParams::default().labels(&selector)).await,
    )?;
    let is_of = |sandbox: &Sandbox| {
        let mut owners = sandbox
            .owner_references()
            .iter()
            .filter(|owner| owner.controller == Some(true));
        owners.any(|owner| Some(&owner.uid) == claim.metadata.uid.as_ref())
    };
    Ok(listed.items.into_iter().find(is_of))
}

/// Gets a claim a Sandbox.
async fn bind(
    context: &Context,
    claim: &SandboxClaim,
    pool: Option<&SandboxWarmPool>,
) -> Result<Outcome, ReconcileError> {
    let Some(pool) = pool else {
        let told = format!("there is no SandboxWarmPool `{}`", claim.spec.warm_pool_ref.name);
        return Ok(Outcome::Unbound("WarmPoolNotFound", told));
    };
    let templates: Api<SandboxTemplate> = context.api(&claim.namespace().unwrap_or_default());
    let name = &pool.spec.sandbox_template_ref.name;
    let Some(template) = trying("look for the template", templates.get_opt(name).await)? else {
        return Ok(Outcome::Unbound(
            "TemplateNotFound",
            format!("there is no SandboxTemplate `{name}`"),
        ));
    };
    if let Err((reason, told)) = check(claim, &template) {
        return Ok(Outcome::Unbound(reason, told));
    }
    if claim.spec.env.is_empty() && claim.spec.additional_pod_metadata.is_empty() {
        let mut waiting = pool::members(context, pool).await?;
        let hash = pool::hash_of(&template.spec.blueprint);
        let is_current = |sandbox: &Sandbox| sandbox.labels().get(words::TEMPLATE_HASH) == Some(&hash);
        waiting.sort_by_key(|sandbox| (!is_current(sandbox), sandbox.creation_timestamp(), sandbox.name_any()));
        for sandbox in waiting.into_iter().filter(pool::is_ready) {
            match adopt(context, claim, &sandbox).await {
                Ok(adopted) => return Ok(Outcome::Bound(Box::new(adopted))),
                // Another claim has it, or it has changed: the next one.
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
    }
    make(context, claim, &template).await
}

/// Whether a claim may ask for what it asks for.
fn check(claim: &SandboxClaim, template: &SandboxTemplate) -> Result<(), (&'static str, String)> {
    if !claim.spec.volume_claim_templates.is_empty() {
        let told = "spec.volumeClaimTemplates: sandboxes have no claims of storage".to_owned();
        return Err(("VolumeClaimTemplatesError", told));
    }
    let containers = &template.spec.blueprint.pod_template.spec["containers"];
    let container = containers[0]["name"].as_str().unwrap_or_default();
    check_metadata(claim, template)?;
    let policy = template.spec.env_vars_injection_policy;
    for variable in &claim.spec.env {
        let refuse = |told: String| Err(("EnvVarsError", format!("spec.env[{}]: {told}", variable.name)));
        if policy == InjectionPolicy::Disallowed {
            return refuse("the template lets claims set no variables".to_owned());
        }
        if !variable.container_name.is_empty() && variable.container_name != container {
            return refuse(format!("the template has no container `{}`", variable.container_name));
        }
        let there = containers[0]["env"].as_array().into_iter().flatten();
        if policy == InjectionPolicy::Allowed && there.into_iter().any(|there| there["name"] == json!(variable.name)) {
            return refuse("the template has it already, and lets claims override nothing".to_owned());
        }
    }
    Ok(())
}

/// Whether a claim's labels and annotations say nothing that is the template's to say, or the cluster's.
fn check_metadata(claim: &SandboxClaim, template: &SandboxTemplate) -> Result<(), (&'static str, String)> {
    let (given, there) = (
        &claim.spec.additional_pod_metadata,
        &template.spec.blueprint.pod_template.metadata,
    );
    for (field, given, there) in [
        ("labels", &given.labels, &there.labels),
        ("annotations", &given.annotations, &there.annotations),
    ] {
        for (name, value) in given {
            let refuse = |told: &str| {
                let place = format!("spec.additionalPodMetadata.{field}[{name}]");
                Err(("PodMetadataError", format!("{place}: {told}")))
            };
            if is_reserved(name) {
                return refuse("names of offleash and of Kubernetes are the template's to say");
            }
            if there.get(name).is_some_and(|there| there != value) {
                return refuse("the template says something else");
            }
        }
    }
    Ok(())
}

/// Whether a label or an annotation of this name is read by this controller, or by the cluster.
fn is_reserved(name: &str) -> bool {
    let domain = name.split_once('/').map_or("", |(domain, _)| domain);
    let is_of = |owner: &str| {
        domain
            .strip_suffix(owner)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    ["offleash", "k8s.io", "x-k8s.io", "kubernetes.io"]
        .into_iter()
        .any(is_of)
}

/// Makes a Sandbox of a pool a claim's, if it is still as it was read.
async fn adopt(context: &Context, claim: &SandboxClaim, sandbox: &Sandbox) -> Result<Sandbox, ReconcileError> {
    let labels = json!({ words::WARM_POOL: null, words::CLAIM_UID: claim.uid() });
    let owners: Vec<_> = claim.controller_owner_ref(&()).into_iter().collect();
    context
        .patch(sandbox, json!({ "labels": labels, "ownerReferences": owners }))
        .await
}

/// Makes a Sandbox for a claim; it has the claim's name, so that there is one however often this begins.
async fn make(context: &Context, claim: &SandboxClaim, template: &SandboxTemplate) -> Result<Outcome, ReconcileError> {
    let mut sandbox = pool::sandbox_of(context, template);
    sandbox.metadata.name = Some(claim.name_any());
    sandbox.metadata.namespace = claim.namespace();
    sandbox.metadata.owner_references = Some(claim.controller_owner_ref(&()).into_iter().collect());
    let labels = sandbox.labels_mut();
    labels.insert(words::CLAIM_UID.to_owned(), claim.uid().unwrap_or_default());
    labels.insert(words::LAUNCH_TYPE.to_owned(), "cold".to_owned());
    let pod = &mut sandbox.spec.blueprint.pod_template;
    let beside = &claim.spec.additional_pod_metadata;
    pod.metadata.labels.extend(beside.labels.clone());
    pod.metadata.annotations.extend(beside.annotations.clone());
    set_variables(&mut pod.spec, claim);
    let sandboxes: Api<Sandbox> = context.api(&claim.namespace().unwrap_or_default());
    match sandboxes.create(&PostParams::default(), &sandbox).await {
        Ok(made) => Ok(Outcome::Bound(Box::new(made))),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let told = format!("there is a Sandbox `{}` that is not this claim's", claim.name_any());
            Ok(Outcome::Unbound("AdoptionConflict", told))
        }
        Err(error) => trying("make the Sandbox of a claim", Err(error)),
    }
}

/// Puts a claim's variables into the container.
fn set_variables(spec: &mut Value, claim: &SandboxClaim) {
    if claim.spec.env.is_empty() {
        return;
    }
    let env = &mut spec["containers"][0]["env"];
    let mut all: Vec<Value> = env.as_array().cloned().unwrap_or_default();
    for variable in &claim.spec.env {
        all.retain(|there| there["name"] != json!(variable.name));
        all.push(json!({ "name": variable.name, "value": variable.value }));
    }
    *env = Value::Array(all);
}

/// Ends what a claim has whose time is up.
async fn expire(context: &Context, claim: &SandboxClaim, policy: ShutdownPolicy) -> Result<Action, ReconcileError> {
    match policy {
        ShutdownPolicy::Delete => context.delete(claim, DeleteParams::default()).await?,
        ShutdownPolicy::DeleteForeground => context.delete(claim, DeleteParams::foreground()).await?,
        ShutdownPolicy::Retain => {
            if let Some(sandbox) = bound(context, claim)
                .await?
                .filter(|sandbox| sandbox.metadata.deletion_timestamp.is_none())
            {
                context.delete(&sandbox, DeleteParams::default()).await?;
            }
            write(
                context,
                claim,
                Outcome::Unbound("ClaimExpired", "its time is up".to_owned()),
            )
            .await?;
        }
    }
    Ok(Action::await_change())
}

/// Tells of a claim what there is of its Sandbox.
async fn write(context: &Context, claim: &SandboxClaim, outcome: Outcome) -> Result<(), ReconcileError> {
    let mut status = SandboxClaimStatus {
        conditions: claim.status.conditions.clone(),
        sandbox: ClaimedSandbox::default(),
    };
    let ready = match &outcome {
        Outcome::Unbound(reason, told) => Finding::new(READY, false, reason, told.clone()),
        Outcome::Bound(sandbox) => {
            status.sandbox = ClaimedSandbox {
                name: sandbox.name_any(),
                pod_ips: sandbox.status.pod_ips.clone(),
            };
            let mirrored = sandbox
                .status
                .conditions
                .iter()
                .find(|condition| condition.type_ == READY);
            match mirrored {
                Some(there) => Finding::new(READY, there.status == "True", &there.reason, there.message.clone()),
                None => Finding::new(READY, false, "SandboxNotReady", "the Sandbox was made"),
            }
        }
    };
    conditions::set(
        &mut status.conditions,
        &ready,
        claim.metadata.generation,
        conditions::now(),
    );
    context.patch_status(claim, &claim.status, &status).await?;
    let name = match &outcome {
        Outcome::Bound(sandbox) => Some(sandbox.name_any()),
        Outcome::Unbound(..) => None,
    };
    if claim.annotations().get(words::SANDBOX_NAME) != name.as_ref() && name.is_some() {
        let api: Api<SandboxClaim> = context.api(&claim.namespace().unwrap_or_default());
        let change = kube::api::Patch::Merge(json!({ "metadata": { "annotations": { words::SANDBOX_NAME: name } } }));
        let patched = api
            .patch(&claim.name_any(), &kube::api::PatchParams::default(), &change)
            .await;
        trying("name the Sandbox of a claim", patched)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: Value) -> SandboxClaim {
        let mut spec = spec;
        spec["warmPoolRef"] = json!({ "name": "pool" });
        serde_json::from_value(json!({ "metadata": { "name": "c" }, "spec": spec })).unwrap()
    }

    fn template(policy: &str) -> SandboxTemplate {
        let container = json!({ "name": "main", "env": [{ "name": "A", "value": "1" }] });
        let spec =
            json!({ "podTemplate": { "spec": { "containers": [container] } }, "envVarsInjectionPolicy": policy });
        serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap()
    }

    #[test]
    fn variables_of_a_claim_are_those_that_the_template_allows() {
        let new = claim(json!({ "env": [{ "name": "B", "value": "2" }] }));
        let other = claim(json!({ "env": [{ "name": "A", "value": "2" }] }));
        let elsewhere = claim(json!({ "env": [{ "name": "B", "value": "2", "containerName": "side" }] }));
        for (policy, allowed) in [
            ("Disallowed", [false, false]),
            ("Allowed", [true, false]),
            ("Overrides", [true, true]),
        ] {
            let template = template(policy);
            assert_eq!(
                [&new, &other].map(|claim| check(claim, &template).is_ok()),
                allowed,
                "{policy}"
            );
            assert!(check(&elsewhere, &template).is_err());
        }
        let mut spec = template("Overrides").spec.blueprint.pod_template.spec;
        set_variables(&mut spec, &other);
        set_variables(&mut spec, &new);
        assert_eq!(
            spec["containers"][0]["env"],
            json!([{ "name": "A", "value": "2" }, { "name": "B", "value": "2" }])
        );
    }

    #[test]
    fn a_claim_says_nothing_that_is_the_templates_to_say() {
        let mut template = template("Allowed");
        let metadata = json!({ "labels": { "team": "a" }, "annotations": { "sidecar.example/inject": "false" } });
        template.spec.blueprint.pod_template.metadata = serde_json::from_value(metadata).unwrap();
        for (metadata, is_fine) in [
            (
                json!({ "labels": { "team": "a", "user": "b", "example.org/user": "c" } }),
                true,
            ),
            (json!({ "annotations": { "note": "b", "noffleash/x": "c" } }), true),
            (json!({ "labels": { "team": "b" } }), false),
            (json!({ "annotations": { "sidecar.example/inject": "true" } }), false),
            (json!({ "annotations": { "offleash/template": "another" } }), false),
            (json!({ "annotations": { "offleash/suspend-mode": "full" } }), false),
            (json!({ "labels": { "agents.x-k8s.io/claim-uid": "u" } }), false),
            (json!({ "labels": { "app.kubernetes.io/name": "offleash" } }), false),
        ] {
            let checked = check(&claim(json!({ "additionalPodMetadata": metadata })), &template);
            assert_eq!(
                checked.map_err(|(reason, _)| reason),
                if is_fine { Ok(()) } else { Err("PodMetadataError") },
                "{metadata}"
            );
        }
    }

    #[test]
    fn storage_of_a_claim_is_refused() {
        let asked = claim(json!({ "volumeClaimTemplates": [{}] }));
        assert_eq!(
            check(&asked, &template("Allowed")).unwrap_err().0,
            "VolumeClaimTemplatesError"
        );
    }
}
