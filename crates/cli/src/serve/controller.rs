//! `offleash controller`: Kubernetes' objects of agent-sandbox's kinds, served by the daemons of its nodes.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use offleash_core::text::Text;
use offleash_kubernetes::{ControllerConfig, ControllerLog, DaemonKey, PodAccount};
use serde_json::json;

use super::journal::JsonLines;
use super::prepare_process;
use crate::args::ControllerArgs;
use crate::end_signal::end_signal;
use crate::failure::Failure;
use crate::key::read_private_key;

/// How long a Lease holds that nobody renews, as other controllers have it.
const LEASE: Duration = Duration::from_secs(15);
/// How often what is at rest is looked at.
const RESYNC: Duration = Duration::from_secs(30);

pub(crate) fn controller(arguments: &ControllerArgs) -> Result<ExitCode, Failure> {
    let account = match &arguments.api_server {
        Some(url) => PodAccount {
            url: url.clone(),
            token: arguments.token_file.clone(),
            authority: arguments.api_server_ca.clone(),
        },
        None => {
            let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
            let (host, port) = (variable("KUBERNETES_SERVICE_HOST"), variable("KUBERNETES_SERVICE_PORT"));
            PodAccount::of_pod(host.as_deref(), port.as_deref())?
        }
    };
    let namespace = match &arguments.namespace {
        Some(namespace) => namespace.clone(),
        None => own_namespace(&PodAccount::namespace_file())?,
    };
    let lines = Arc::new(JsonLines::new(arguments.log));
    let machine = rustix::system::uname();
    let config = ControllerConfig {
        name: arguments.name.clone(),
        identity: format!("{}_{}", machine.nodename().to_string_lossy(), std::process::id()),
        account,
        namespace,
        watched: arguments.watch.clone(),
        daemons: arguments.daemons.clone(),
        daemon_port: arguments.daemon_port,
        key: DaemonKey::new(read_private_key(&arguments.key_file)?.reveal()),
        pause_image: arguments.pause_image.clone(),
        cluster_domain: arguments.cluster_domain.clone(),
        lease_duration: LEASE,
        resync: RESYNC,
        log: Arc::new(ControllerLines(Arc::clone(&lines))),
    };
    prepare_process();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start the threads of the controller: {error}")))?;
    let result = runtime.block_on(async {
        let end = end_signal()?;
        let ended = async {
            let signal = end.await;
            lines.server(&format!("told to end by {signal}"));
        };
        offleash_kubernetes::run(config, ended).await.map_err(Failure::from)
    });
    // What is not done by now is done by the next one.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

/// The namespace of this pod.
fn own_namespace(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::from_error(&error)
            .while_trying(format!("reading the namespace of this pod in `{}`", Text::from(file)))
            .with_hint("say `--namespace`, where the daemons' pods are")
    })?;
    Ok(text.trim().to_owned())
}

/// Lines of the controller among those of a server.
#[derive(Debug)]
struct ControllerLines(Arc<JsonLines>);

impl ControllerLog for ControllerLines {
    fn info(&self, told: &str) {
        self.0.server(told);
    }

    fn warning(&self, told: &str) {
        self.0
            .trouble(&json!({ "level": "warn", "event": "controller", "told": told }));
    }
}
