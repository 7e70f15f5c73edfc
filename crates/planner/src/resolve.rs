//! From a spec to its plan: each part of the spec adds its entries, in an order in which later ones cover earlier ones.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use offleash_core::level::{Level, LevelChoice};
use offleash_core::network::port_given;
use offleash_core::path_rules::PatternAnchors;
use offleash_core::plan::{NetworkDoors, Plan};
use offleash_core::spec::{RootChoice, SandboxSpec};

use super::error::PlanError;
use super::host::{ExecBasis, PlanningHost};
use super::{
    base_entries, commands, environment, etc, git_system, gpu, image, mounts, program_search, reach, rules, system,
    toolchain, tools, tree, trust, workspace,
};

/// The name of the machine inside.
const HOSTNAME: &str = "sandbox";

/// Resolves `spec`, for a run of `command`, into a plan and what its executions start from.
///
/// With `LevelChoice::Auto` the plan says `process`; the caller, who knows what the machine offers, may put another.
/// Layers are named `run_directory/layers/N` and not made.
///
/// # Errors
/// When something asked for does not exist, must not be given, or contradicts itself; nothing has been changed then.
pub fn resolve(
    spec: &SandboxSpec,
    host: &PlanningHost,
    command: &[OsString],
    id: RunId,
    run_directory: &Path,
) -> Result<(Plan, ExecBasis), PlanError> {
    resolve_for(spec, host, Some(check_command(command)?), id, run_directory)
}

/// The same for a sandbox whose command is not known yet.
///
/// # Errors
/// As [`resolve`], but for what concerns the command.
pub fn resolve_without_command(
    spec: &SandboxSpec,
    host: &PlanningHost,
    id: RunId,
    run_directory: &Path,
) -> Result<(Plan, ExecBasis), PlanError> {
    resolve_for(spec, host, None, id, run_directory)
}

fn resolve_for(
    spec: &SandboxSpec,
    host: &PlanningHost,
    program: Option<&OsStr>,
    id: RunId,
    run_directory: &Path,
) -> Result<(Plan, ExecBasis), PlanError> {
    let level = check_level(spec)?;
    spec.network.check(spec.asks_about_tools())?;
    port_given::check_together(&spec.network.publish, &spec.network.host_ports)?;
    let ids = spec.ids.unwrap_or(host.ids);
    let users = base_entries::users(&spec.root, ids);
    let user = users.first().cloned().unwrap_or_else(system::user);
    let mut tree = tree::EntryTree::default();
    let network = spec.network.needs_gateway();
    match &spec.root {
        RootChoice::System => {
            tree.add_system(system::entries(&spec.limits, &user));
            tree.add_system(etc::entries(
                &user,
                HOSTNAME,
                network,
                host.trust.as_ref(),
                host.known.as_deref(),
            ));
        }
        RootChoice::Base { .. } => {
            let template = host.base.as_ref().ok_or(PlanError::NoTemplate)?;
            tree.add_system(base_entries::entries(template, &users, &spec.limits));
            tree.add_system(etc::of_the_network(HOSTNAME, network));
            tree.add_system(host.trust.iter().flat_map(trust::own_entries));
        }
        RootChoice::Image(image) => {
            let template = host.base.as_ref().ok_or(PlanError::NoTemplate)?;
            tree.add_system(base_entries::entries_of_kernel(template, &spec.limits));
            tree.add_system(etc::of_the_network(HOSTNAME, network));
            tree.add_system(host.trust.iter().flat_map(trust::own_entries));
            tree.add_system(image::own_entries(image, ids, tree.view()));
        }
    }

    let workspace = match &spec.workspace {
        Some(workspace) => Some(add_workspace(workspace, host, run_directory, &mut tree)?),
        None => None,
    };
    mounts::add(&spec.mounts, host, workspace.as_deref(), &mut tree)?;
    mounts::add_volumes(&spec.volumes, host, &mut tree)?;
    mounts::add_tmpfs(&spec.tmpfs, &spec.limits, &mut tree)?;
    let mut added = toolchain::add(&spec.toolchains, host, workspace.as_deref(), &mut tree)?;
    gpu::add(spec.gpu.as_ref(), Path::new("/"), &mut tree, &mut added)?;
    tree.add_system(tools::entries(&spec.tools));
    added.path.splice(0..0, tools::directory(&spec.tools));
    added.variables.extend(tools::variables(&spec.tools));

    let home = host.home.as_deref().map(reach::existing);
    let anchors = PatternAnchors {
        workspace: workspace.as_deref(),
        home: home.as_deref(),
    };
    rules::grant(&spec.paths, anchors, host, &mut tree)?;
    rules::deny(&spec.paths, anchors, workspace.as_deref(), &mut tree)?;
    hide_state(host, &mut tree);

    let start = image::home(&spec.root, &user.home, tree.view());
    let cwd = image::directory(&spec.root).unwrap_or_else(|| workspace::directory(workspace.as_deref(), host, start));
    let search_path = environment::search_path(&spec.root, &added);
    if let Some(program) = program {
        let found = program_search::find(program, &search_path, &cwd, tree.view());
        commands::check(program, &spec.commands, found.as_ref())?;
    }
    commands::deny(&spec.commands, &search_path, &mut tree)?;
    let executables = commands::only(&spec.commands, &search_path, tree.view())?;
    if spec.commands.allow.is_some() && executables.is_empty() {
        let rule = "commands.allow: nothing in the list exists in the sandbox".to_owned();
        return Err(PlanError::CommandDenied {
            command: program.unwrap_or_default().into(),
            rule,
        });
    }

    let mut own = environment::of_the_sandbox(&user, &search_path, &added, &cwd, spec.network.opens());
    own.extend(git_system::variable(&search_path, &cwd, tree.view()));
    own.extend(environment::of_sanitizers(spec.allow_ptrace));
    own.extend(host.base.iter().flat_map(|base| base.variables.iter().cloned()));
    let told = spec.network.variables().into_iter();
    own.extend(told.map(|(name, value)| (name.into(), value.into())));
    let env = environment::resolve(&spec.env, host, own)?;
    let plan = Plan {
        id,
        level,
        runtime: None,
        vm: None,
        degrade: spec.degrade,
        entries: tree.into_order(),
        user: base_entries::first_user(&spec.root, ids),
        users: users.clone(),
        ids,
        hostname: HOSTNAME.to_owned(),
        limits: spec.limits.clone(),
        network,
        network_ports: spec
            .network
            .policy
            .reachable_ports(offleash_core::plan::MAX_LISTENERS)
            .unwrap_or_default(),
        network_doors: NetworkDoors {
            services: spec.network.host_ports.iter().map(|given| given.inside).collect(),
            entrance: spec.network.has_entrance(),
        },
        allow_ptrace: spec.allow_ptrace,
        pausable: spec.pausable,
        memory_end: spec.memory_end,
        descent: spec.descent,
        executables,
        guest: None,
        run_directory: run_directory.to_path_buf(),
    };
    let basis = ExecBasis {
        env,
        cwd,
        user,
        users,
        search_path,
    };
    Ok((plan, basis))
}

fn check_command(command: &[OsString]) -> Result<&OsStr, PlanError> {
    let program = command
        .first()
        .filter(|program| !program.is_empty())
        .ok_or(PlanError::NoCommand)?;
    match command.iter().position(|argument| argument.as_bytes().contains(&0)) {
        Some(position) => Err(PlanError::NulInArgument { position }),
        None => Ok(program),
    }
}

fn check_level(spec: &SandboxSpec) -> Result<Level, PlanError> {
    let LevelChoice::Exactly(level) = spec.level else {
        return Ok(Level::Process);
    };
    match spec.min_level {
        Some(min_level) if level < min_level => Err(PlanError::BelowMinimum { level, min_level }),
        _ => Ok(level),
    }
}

fn add_workspace(
    spec: &offleash_core::spec::WorkspaceSpec,
    host: &PlanningHost,
    run_directory: &Path,
    tree: &mut tree::EntryTree,
) -> Result<PathBuf, PlanError> {
    let path = workspace::resolve(spec, host)?;
    for entry in workspace::entries(&path, spec.mode, host, run_directory) {
        tree.add("workspace", entry, true)?;
    }
    Ok(path)
}

/// What a mount shows of our own state is hidden: audit log, layers of other runs.
fn hide_state(host: &PlanningHost, tree: &mut tree::EntryTree) {
    let state = reach::existing(&host.state_directory);
    let shown: Vec<PathBuf> = tree
        .view()
        .host_trees()
        .filter_map(|(target, source)| Some(target.join(state.strip_prefix(source).ok()?)))
        .collect();
    for path in shown
        .into_iter()
        .filter(|path| tree.view().host_path(path).as_deref() == Some(&state))
        .collect::<Vec<_>>()
    {
        tree.hide(&path, true, "system: state of offleash".to_owned());
    }
}
