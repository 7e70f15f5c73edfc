//! `offleash front`: one address before the servers of several machines.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use offleash_api::{Front, FrontConfig, Listen, TlsFiles};

use super::config::check_domain_flag;
use super::journal::JsonLines;
use super::{explained, inherited, memory, prepare_process};
use crate::args::{FrontArgs, ListenAt};
use crate::end_signal::end_signal;
use crate::failure::Failure;
use crate::key::read_private_key;
use crate::terminal;

/// Threads that pass requests on.
const MAX_THREADS: usize = 8;
/// How long requests may go on once the front is told to end.
const DRAIN: Duration = Duration::from_secs(10);

pub(crate) fn front(arguments: &FrontArgs) -> Result<ExitCode, Failure> {
    if let Some(domain) = &arguments.domain {
        check_domain_flag(domain)?;
    }
    for (number, node) in arguments.node.iter().enumerate() {
        if arguments.node[..number].iter().any(|other| other.name() == node.name()) {
            let told = format!("node {node} is named twice");
            return Err(Failure::new(told).with_hint("name each once; `=WEIGHT` behind it gives it a larger share"));
        }
    }
    for (number, name) in arguments.nodes_dns.iter().enumerate() {
        let told = name.to_string();
        if arguments.nodes_dns[..number]
            .iter()
            .any(|other| other.to_string() == told)
        {
            return Err(Failure::new(format!("the name {told} is said twice")));
        }
    }
    let files = (arguments.tls_cert.clone(), arguments.tls_key.clone());
    let ListenAt(listen) = arguments.listen;
    let listen = match inherited()? {
        Some(listener) => Listen::Inherited(listener),
        None => Listen::Address(listen),
    };
    let config = FrontConfig {
        listen,
        tls: match files {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            _ => None,
        },
        insecure_public: arguments.insecure_public,
        domain: arguments.domain.clone(),
        nodes: arguments.node.clone(),
        names: arguments.nodes_dns.clone(),
        authorities: arguments.node_ca.iter().cloned().collect(),
        key: read_private_key(&arguments.key_file)?,
        drain: DRAIN,
    };
    let lines = JsonLines::new(arguments.log);
    if let Some(told) = in_the_clear(arguments) {
        lines.server(&told);
    }
    prepare_process();
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, MAX_THREADS));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start the threads of the front: {error}")))?;
    runtime.block_on(run(config, Arc::new(lines)))?;
    // What is not done by now was cut, and nobody waits for it.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// Where keys can be read between the front and nodes.
fn in_the_clear(arguments: &FrontArgs) -> Option<String> {
    let nodes = arguments.node.iter().filter(|node| node.is_in_the_clear());
    let names = arguments.nodes_dns.iter().filter(|name| name.is_in_the_clear());
    let open: Vec<String> = nodes
        .map(ToString::to_string)
        .chain(names.map(ToString::to_string))
        .collect();
    (!open.is_empty()).then(|| {
        let open = open.join(", ");
        format!("not encrypted on the way to {open}: whoever listens between has the front's key and those of clients")
    })
}

async fn run(config: FrontConfig, lines: Arc<JsonLines>) -> Result<(), Failure> {
    let end = end_signal()?;
    let front = Front::bind(config, Arc::clone(&lines) as _)
        .await
        .map_err(|error| explained(&error))?;
    front.check().await.map_err(|error| explained(&error))?;
    let url = front.url();
    terminal::print(format!("export E2B_API_URL={url}\nexport E2B_SANDBOX_URL={url}\n").as_bytes())?;
    super::manager::tell("READY=1");
    memory::give_back();
    front
        .run(async {
            let signal = end.await;
            super::manager::tell("STOPPING=1");
            lines.server(&format!("told to end by {signal}: no more requests are taken"));
        })
        .await;
    lines.server("ended; nodes and their sandboxes go on");
    Ok(())
}
