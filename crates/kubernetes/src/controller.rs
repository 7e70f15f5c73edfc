//! Puts the controller together: the Lease, the daemons' pods, and a loop for each kind that is served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Client, Resource, ResourceExt as _};

use crate::access;
use crate::config::ControllerConfig;
use crate::context::{ApiClient, Context, ReconcileError, SharedContext, shown};
use crate::daemons::{DaemonDirectory, node_of};
use crate::error::ControllerError;
use crate::kinds::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, words};
use crate::lease::Leadership;
use crate::placeholder::{PlaceholderSettings, labels_of};
use crate::{claim, pool, sandbox, sweep};

/// When what failed is tried again.
const RETRY: Duration = Duration::from_secs(3);
/// When what somebody else changed meanwhile is looked at again.
const AFTER_CONFLICT: Duration = Duration::from_millis(100);
/// How long giving up the Lease may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Serves until `end`, or until another leads.
pub(crate) async fn run(config: ControllerConfig, end: impl Future<Output = ()> + Send) -> Result<(), ControllerError> {
    let client = access::client(&config)?;
    let daemons = labels_of(&config.daemons).ok_or_else(|| ControllerError::Settings {
        what: "the daemons' labels",
        reason: format!("`{}` is not `NAME=VALUE,…`", config.daemons.escape_debug()),
    })?;
    check_kinds(&client, &config).await?;
    let leases = Api::namespaced(client.clone(), &config.namespace);
    let lease = format!("offleash-controller-{}", config.name);
    let mut leadership = Leadership::new(leases, lease, config.identity.clone(), config.lease_duration);
    let log = Arc::clone(&config.log);
    let result = tokio::select! {
        () = end => Ok(()),
        lost = async {
            leadership.acquire(|told| log.info(told)).await?;
            log.info(&format!("`{}` leads, and serves what is labelled `{}={}`", config.identity, words::CONTROLLER, config.name));
            let served = serve(client, config, daemons);
            tokio::select! {
                error = leadership.keep() => Err(error),
                () = served => Ok(()),
            }
        } => lost,
    };
    if result.is_ok() {
        // Whoever waits for it waits until it is over otherwise.
        let _released = tokio::time::timeout(RELEASE_TIMEOUT, leadership.release()).await;
    }
    result
}

/// Whether the cluster has the kinds, and lets this account read them.
async fn check_kinds(client: &Client, config: &ControllerConfig) -> Result<(), ControllerError> {
    let refused = |error: kube::Error| {
        let is_refusal = matches!(&error, kube::Error::Api(status) if (400..500).contains(&status.code));
        let reason = match error {
            kube::Error::Api(status) => status.message.clone(),
            kube::Error::Service(source) => chain_of(&*source),
            other => other.to_string(),
        };
        ControllerError::ApiServer {
            tried: "list Sandboxes",
            reason,
            is_refusal,
        }
    };
    let sandboxes: Api<Sandbox> = watched(client, config);
    sandboxes.list(&ListParams::default().limit(1)).await.map_err(refused)?;
    let pools: Api<SandboxWarmPool> = watched(client, config);
    pools
        .list(&ListParams::default().limit(1))
        .await
        .map(drop)
        .map_err(refused)
}

/// An error and its causes.
fn chain_of(error: &(dyn std::error::Error + 'static)) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        told = format!("{told}: {error}");
        cause = error.source();
    }
    told
}

/// The objects of one kind that are served.
fn watched<K>(client: &Client, config: &ControllerConfig) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match &config.watched {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Runs the loops.
async fn serve(client: Client, config: ControllerConfig, daemons: BTreeMap<String, String>) {
    let ours = watcher::Config::default().labels(&format!("{}={}", words::CONTROLLER, config.name));
    let all = watcher::Config::default;
    let (pods, writer) = reflector::store();
    let context = Arc::new(Context {
        client: ApiClient(client.clone()),
        placeholders: PlaceholderSettings {
            controller: config.name.clone(),
            image: config.pause_image.clone(),
            namespace: config.namespace.clone(),
            daemons,
        },
        daemons: DaemonDirectory {
            pods,
            port: config.daemon_port,
            key: config.key.clone(),
        },
        config: config.clone(),
    });
    let sandboxes = Controller::new(watched::<Sandbox>(&client, &config), ours.clone());
    let known = sandboxes.store();
    let daemon_pods = || Api::<Pod>::namespaced(client.clone(), &config.namespace);
    let of_daemons = watcher::Config::default().labels(&config.daemons);
    let followed = follow_daemons(daemon_pods(), of_daemons.clone(), writer, &config);
    let sandboxes =
        sandboxes
            .owns(watched::<Pod>(&client, &config), ours.clone())
            .watches(daemon_pods(), of_daemons, move |pod| sandboxes_of(&known, &pod));
    let pools = Controller::new(watched::<SandboxWarmPool>(&client, &config), ours.clone());
    let waiting = pools.store();
    let pools = pools.owns(watched::<Sandbox>(&client, &config), ours.clone()).watches(
        watched::<SandboxTemplate>(&client, &config),
        all(),
        move |template| pools_of(&waiting, &template),
    );
    let claims = Controller::new(watched::<SandboxClaim>(&client, &config), all())
        .owns(watched::<Sandbox>(&client, &config), ours);
    let finished = (
        drive(
            sandboxes.run(sandbox::reconcile, policy, Arc::clone(&context)),
            &context,
        ),
        drive(pools.run(pool::reconcile, policy, Arc::clone(&context)), &context),
        drive(claims.run(claim::reconcile, policy, Arc::clone(&context)), &context),
    );
    tokio::join!(followed, sweep::run(&context), finished.0, finished.1, finished.2);
}

/// Pools of a template.
fn pools_of(pools: &Store<SandboxWarmPool>, template: &SandboxTemplate) -> Vec<ObjectRef<SandboxWarmPool>> {
    let is_of = |pool: &SandboxWarmPool| {
        pool.namespace() == template.namespace() && pool.spec.sandbox_template_ref.name == template.name_any()
    };
    pools
        .state_filter(is_of)
        .iter()
        .map(|pool| ObjectRef::from_obj(&**pool))
        .collect()
}

/// Sandboxes that a daemon's coming or going concerns: those of its node, and those that are on none yet.
fn sandboxes_of(sandboxes: &Store<Sandbox>, daemon: &Pod) -> Vec<ObjectRef<Sandbox>> {
    let is_concerned = |sandbox: &Sandbox| {
        let node = sandbox.annotations().get(words::NODE).map(String::as_str);
        node.is_none() || node == node_of(daemon)
    };
    let concerned = sandboxes.state_filter(is_concerned);
    concerned
        .iter()
        .map(|sandbox| ObjectRef::from_obj(&**sandbox))
        .collect()
}

/// Keeps what is known of the daemons' pods up to date.
async fn follow_daemons(pods: Api<Pod>, selected: watcher::Config, writer: Writer<Pod>, config: &ControllerConfig) {
    let stream = watcher(pods, selected)
        .default_backoff()
        .reflect(writer)
        .touched_objects();
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        if let Err(error) = event {
            config.log.warning(&format!("following the daemons' pods: {error}"));
        }
    }
}

/// When an object is looked at again whose reconciliation failed.
fn policy<K: Resource>(object: Arc<K>, error: &ReconcileError, context: SharedContext) -> Action {
    if error.is_conflict() {
        return Action::requeue(AFTER_CONFLICT);
    }
    context.config.log.warning(&format!("{}: {error}", shown(&*object)));
    Action::requeue(RETRY)
}

/// Runs a loop, and says what it says.
async fn drive<K, E>(
    stream: impl Stream<Item = Result<(ObjectRef<K>, Action), kube::runtime::controller::Error<ReconcileError, E>>>,
    context: &Context,
) where
    K: Resource<DynamicType = ()>,
    E: std::error::Error + 'static,
{
    let mut stream = std::pin::pin!(stream);
    while let Some(done) = stream.next().await {
        if let Err(kube::runtime::controller::Error::QueueError(error)) = done {
            context.config.log.warning(&format!("watching: {error}"));
        }
    }
}
