//! `offleash mcp`: tools for an agent host, over standard input and output.
//!
//! Nothing but the protocol goes to standard output. Each sandbox is held by a process of its own ([`crate::supervise`]), which
//! reads the same arguments and ends with this one.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use offleash_core::spec::RootChoice;
use offleash_core::text::Text;
use offleash_daemon::local::{LocalConfig, LocalSandboxes};
use offleash_supervisor::lifecycle::open_state;
use offleash_supervisor::templates;

use crate::args::{McpArgs, SandboxArgs};
use crate::end_signal::end_signal;
use crate::failure::Failure;
use crate::image::ImageSource;
use crate::server_at::ServerAt;
use crate::{image, specify, terminal};

/// How long a command may take where no limit says so.
const MAX_LENGTH: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn mcp(arguments: &McpArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    if arguments.server {
        return through_server(arguments, state);
    }
    // What is wrong with it is said now, and not with the first call.
    let spec = specify::specify(&arguments.sandbox)?;
    if let Some(cwd) = arguments.sandbox.cwd.as_deref() {
        specify::directory_inside(cwd)?;
    }
    if let Some(workspace) = &spec.workspace
        && !workspace.path.is_dir()
    {
        return Err(Failure::new(format!(
            "the workspace `{}` is not a directory",
            Text::from(&workspace.path)
        ))
        .with_hint("name one with `--workspace DIR`, or say `--no-workspace`"));
    }
    if let RootChoice::Base {
        template: Some(name), ..
    } = &spec.root
    {
        templates::require(&open_state(state)?, name)?;
    }
    if let Some(name) = &arguments.image {
        // Pulled and unpacked now: whoever speaks waits for less time, and as long as there is one thread.
        let source = ImageSource {
            pull: arguments.pull,
            registry: &arguments.registry,
            is_quiet: false,
            state,
        };
        image::root(name, source)?;
    }
    let longest = spec
        .limits
        .wall_time
        .map_or(MAX_LENGTH, |wall| Duration::from_millis(wall.0));
    let complaints = terminal::complaints()
        .map_err(|error| Failure::new(format!("cannot use standard error: {error}")).with_hint("leave it open"))?;
    let sandboxes = Arc::new(LocalSandboxes::new(LocalConfig {
        state: state.map(Path::to_owned),
        arguments: std::env::args_os().skip(1).collect(),
        complaints,
    })?);
    if !spec.network.reaches_out() && spec.network.host_ports.is_empty() {
        terminal::complain("offleash: sandboxes have no network; `--allow HOST` lets them reach a host");
    }
    // One thread, which is this one: supervisors end with the thread that started them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start an event loop: {error}")))?;
    let spoken = runtime.block_on(converse(&sandboxes, longest));
    // Nobody waits for what may still be read.
    runtime.shutdown_background();
    spoken.map(|()| ExitCode::SUCCESS)
}

/// The daemon has the sandboxes; this only carries what is said.
fn through_server(arguments: &McpArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    if arguments.sandbox != SandboxArgs::default() || arguments.image.is_some() {
        return Err(
            Failure::new("`--server` goes with no option that says what a sandbox is: the server makes them").with_hint(
                "leave the others out, and `create_sandbox` takes `template` or `image`, `internet`, `env` and `timeout_seconds`; or \
                 leave `--server` out",
            ),
        );
    }
    let client = ServerAt::Here(state).client()?;
    let (input, output) = terminal::conversation();
    client.tools(input, output)?;
    Ok(ExitCode::SUCCESS)
}

async fn converse(sandboxes: &Arc<LocalSandboxes>, longest: Duration) -> Result<(), Failure> {
    let end = end_signal()?;
    let (input, output) = terminal::conversation();
    let spoken = tokio::select! {
        spoken = offleash_api::mcp::speak(Arc::clone(sandboxes), longest, input, output) => spoken,
        _ = end => Ok(()),
    };
    sandboxes.end_all().await;
    spoken.map_err(|error| {
        Failure::from_error(&error).with_hint("`offleash mcp` is started by an agent host, which speaks first")
    })
}
