//! One SandboxWarmPool: as many Sandboxes as are asked for wait in it.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::core::ObjectMeta;
use kube::runtime::controller::Action;
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::conditions;
use crate::context::{Context, ReconcileError, SharedContext, trying};
use crate::kinds::{
    Sandbox, SandboxBlueprint, SandboxSpec, SandboxTemplate, SandboxWarmPool, SandboxWarmPoolStatus,
    UpdateStrategyKind, words,
};
use crate::report::READY;

/// The most that are made or deleted at once.
const BATCH: usize = 50;
/// When a pool is looked at again whose template is not there.
const RETRY: Duration = Duration::from_secs(10);

/// Brings one pool nearer to its size.
pub(crate) async fn reconcile(seen: Arc<SandboxWarmPool>, context: SharedContext) -> Result<Action, ReconcileError> {
    let namespace = seen.namespace().ok_or(ReconcileError::NoObject("namespace"))?;
    let api: Api<SandboxWarmPool> = context.api(&namespace);
    let read = trying("read a SandboxWarmPool", api.get_opt(&seen.name_any()).await)?;
    let read = read.filter(|pool| context.is_ours(pool) && pool.metadata.deletion_timestamp.is_none());
    let Some(pool) = read else {
        return Ok(Action::await_change());
    };
    let templates: Api<SandboxTemplate> = context.api(&namespace);
    let template = trying(
        "look for the template",
        templates.get_opt(&pool.spec.sandbox_template_ref.name).await,
    )?;
    let members = members(&context, &pool).await?;
    let wanted = usize::try_from(pool.spec.replicas.unwrap_or(1)).unwrap_or_default();
    let strategy = pool
        .spec
        .update_strategy
        .as_ref()
        .map(|strategy| strategy.kind)
        .unwrap_or_default();
    let hash = template.as_ref().map(|template| hash_of(&template.spec.blueprint));
    let change = plan(&members, wanted, hash.as_deref(), strategy);
    for member in &change.remove {
        context.delete(member, DeleteParams::default()).await?;
    }
    let mut made = Vec::new();
    if let Some(template) = &template {
        let sandboxes: Api<Sandbox> = context.api(&namespace);
        for _ in 0..change.make {
            let member = member_of(&context, &pool, template);
            made.push(trying(
                "make a Sandbox of a pool",
                sandboxes.create(&PostParams::default(), &member).await,
            )?);
        }
    }
    let removed: Vec<_> = change.remove.iter().map(kube::ResourceExt::uid).collect();
    let left: Vec<_> = members
        .iter()
        .filter(|member| !removed.contains(&member.uid()))
        .chain(&made)
        .collect();
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let status = SandboxWarmPoolStatus {
        replicas: count(left.len()),
        ready_replicas: count(left.iter().filter(|member| is_ready(member)).count()),
        selector: format!("{}={}", words::WARM_POOL, name_hash(&pool.name_any())),
        observed_generation: pool.metadata.generation.unwrap_or_default(),
    };
    context.patch_status(&pool, &pool.status, &status).await?;
    let again = if template.is_none() {
        RETRY
    } else {
        context.config.resync
    };
    Ok(Action::requeue(again))
}

/// What is to be done to a pool.
#[derive(Debug, Default)]
pub(crate) struct PoolChange {
    remove: Vec<Sandbox>,
    make: usize,
}

/// What is to be done to a pool with these members: those of an older template go where it says so, then those that are too many, the
/// ones that are not ready first. Without a template nothing is made.
fn plan(members: &[Sandbox], wanted: usize, hash: Option<&str>, strategy: UpdateStrategyKind) -> PoolChange {
    let is_stale = |member: &Sandbox| {
        hash.is_some_and(|hash| member.labels().get(words::TEMPLATE_HASH).is_none_or(|has| has != hash))
    };
    let (stale, mut fresh): (Vec<Sandbox>, Vec<Sandbox>) = members
        .iter()
        .cloned()
        .partition(|member| strategy == UpdateStrategyKind::Recreate && is_stale(member));
    // What is kept longest comes first: ready, of this template, old.
    fresh.sort_by_key(|member| (!is_ready(member), is_stale(member), member.creation_timestamp()));
    let extra = if fresh.len() > wanted {
        fresh.split_off(wanted)
    } else {
        Vec::new()
    };
    let make = wanted.saturating_sub(fresh.len()).min(BATCH);
    PoolChange {
        remove: stale.into_iter().chain(extra).take(BATCH).collect(),
        make: if hash.is_some() { make } else { 0 },
    }
}

/// Sandboxes that wait in a pool, as they are now: what was made a moment ago counts.
pub(crate) async fn members(context: &Context, pool: &SandboxWarmPool) -> Result<Vec<Sandbox>, ReconcileError> {
    let sandboxes: Api<Sandbox> = context.api(&pool.namespace().unwrap_or_default());
    let selector = format!(
        "{}={},{}={}",
        words::WARM_POOL,
        name_hash(&pool.name_any()),
        words::CONTROLLER,
        context.config.name
    );
    let listed = trying(
        "list the Sandboxes of a pool",
        sandboxes.list(&ListParams::default().labels(&selector)).await,
    )?;
    let is_member = |sandbox: &Sandbox| {
        let mut owners = sandbox
            .owner_references()
            .iter()
            .filter(|owner| owner.controller == Some(true));
        sandbox.metadata.deletion_timestamp.is_none()
            && owners.any(|owner| Some(&owner.uid) == pool.metadata.uid.as_ref())
    };
    Ok(listed.items.into_iter().filter(is_member).collect())
}

/// Whether a Sandbox can be used.
pub(crate) fn is_ready(sandbox: &Sandbox) -> bool {
    conditions::holds(&sandbox.status.conditions, READY)
}

/// A Sandbox that waits.
fn member_of(context: &Context, pool: &SandboxWarmPool, template: &SandboxTemplate) -> Sandbox {
    let mut sandbox = sandbox_of(context, template);
    sandbox.metadata.generate_name = Some(format!("{}-", pool.name_any()));
    sandbox.metadata.namespace = pool.namespace();
    sandbox.metadata.owner_references = Some(pool.controller_owner_ref(&()).into_iter().collect());
    let labels = sandbox.labels_mut();
    labels.insert(words::WARM_POOL.to_owned(), name_hash(&pool.name_any()));
    labels.insert(words::LAUNCH_TYPE.to_owned(), "warm".to_owned());
    sandbox
}

/// A Sandbox of a template, without name and owner.
pub(crate) fn sandbox_of(context: &Context, template: &SandboxTemplate) -> Sandbox {
    let labels = [
        (words::CONTROLLER, context.config.name.clone()),
        (words::TEMPLATE_HASH, hash_of(&template.spec.blueprint)),
    ];
    let annotations = [(words::TEMPLATE_REF, template.name_any())];
    let owned = |(name, value): (&str, String)| (name.to_owned(), value);
    Sandbox {
        api_version: Sandbox::api_version(&()).into_owned(),
        kind: Sandbox::kind(&()).into_owned(),
        metadata: ObjectMeta {
            labels: Some(labels.into_iter().map(owned).collect()),
            annotations: Some(annotations.into_iter().map(owned).collect()),
            ..ObjectMeta::default()
        },
        spec: SandboxSpec {
            blueprint: template.spec.blueprint.clone(),
            ..SandboxSpec::default()
        },
        ..Sandbox::default()
    }
}

/// A digest of what a Sandbox is made of; fields in the order of their names.
pub(crate) fn hash_of(blueprint: &SandboxBlueprint) -> String {
    short_digest(&json!(blueprint).to_string())
}

/// A digest of a name that is a label's value, however long the name is.
pub(crate) fn name_hash(name: &str) -> String {
    short_digest(name)
}

fn short_digest(text: &str) -> String {
    Sha256::digest(text.as_bytes())
        .iter()
        .take(5)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, hash: &str, is_ready: bool) -> Sandbox {
        let ready = if is_ready { "True" } else { "False" };
        let object = json!({
            "metadata": { "name": name, "uid": name, "labels": { words::TEMPLATE_HASH: hash } }, "spec": {},
            "status": { "conditions": [
                { "type": "Ready", "status": ready, "reason": "A", "message": "", "lastTransitionTime": "2026-11-29T00:00:00Z" },
            ] },
        });
        serde_json::from_value(object).unwrap()
    }

    fn names(change: &PoolChange) -> Vec<String> {
        change.remove.iter().map(kube::ResourceExt::name_any).collect()
    }

    #[test]
    fn a_pool_is_filled_and_emptied_to_its_size() {
        let members = [member("a", "h", false), member("b", "h", true), member("c", "h", true)];
        let change = plan(&members, 5, Some("h"), UpdateStrategyKind::OnReplenish);
        assert_eq!((change.make, names(&change)), (2, vec![]));
        let change = plan(&members, 1, Some("h"), UpdateStrategyKind::OnReplenish);
        assert_eq!((change.make, names(&change)), (0, vec!["c".to_owned(), "a".to_owned()]));
        assert_eq!(
            plan(&members, 1000, Some("h"), UpdateStrategyKind::OnReplenish).make,
            BATCH
        );
        let change = plan(&members, 9, None, UpdateStrategyKind::Recreate);
        assert_eq!((change.make, names(&change)), (0, vec![]));
    }

    #[test]
    fn those_of_an_older_template_go_where_the_pool_says_so() {
        let members = [member("old", "h1", true), member("new", "h2", true)];
        let change = plan(&members, 2, Some("h2"), UpdateStrategyKind::OnReplenish);
        assert_eq!((change.make, names(&change)), (0, vec![]));
        let change = plan(&members, 2, Some("h2"), UpdateStrategyKind::Recreate);
        assert_eq!((change.make, names(&change)), (1, vec!["old".to_owned()]));
    }

    #[test]
    fn the_digest_of_a_template_is_of_what_it_says_and_not_of_how() {
        let of = |text: &str| hash_of(&serde_json::from_str(text).unwrap());
        let one = of(r#"{"podTemplate": {"spec": {"a": 1, "b": [2]}}}"#);
        assert_eq!(one, of(r#"{"podTemplate": {"spec": {"b": [2], "a": 1}}}"#));
        assert_ne!(one, of(r#"{"podTemplate": {"spec": {"a": 1, "b": [3]}}}"#));
    }
}
