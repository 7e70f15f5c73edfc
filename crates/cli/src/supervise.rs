//! `offleash supervise ROLE`: the process that holds one sandbox, or does one thing for one. Nobody calls it by hand, so no help
//! names it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use offleash_core::error::ErrorKind;
use offleash_core::spec::{NetworkSpec, RootChoice};
use offleash_isolation::limits::measure_as_superuser;
use offleash_isolation::microvm;
use offleash_planner::base::{self, ChangesAnswer, ChangesOrder, CopyOrder, SnapshotOrder, SnapshotStep};
use offleash_supervisor::buckets::{SyncVolumeOrder, sync_for_daemon};
use offleash_supervisor::frames::{self, Message, frame};
use offleash_supervisor::images::{FetchOrder, fetch};
use offleash_supervisor::roles::{RemoveOrder, SupervisorRole};
use offleash_supervisor::service::answer::LaunchAnswer;
use offleash_supervisor::service::hold;
use offleash_supervisor::service::local::{LocalOrder, LocalSpec, hold_local};
use offleash_supervisor::service::order::SupervisorOrder;
use offleash_supervisor::snapshot_archives::{self, ArchiveAnswer, PackOrder, UnpackOrder};
use offleash_supervisor::tools::{self, ToolsOrder};

use crate::args::{self, Arguments, Command, McpArgs, PullArg, RegistryArgs};
use crate::failure::{EXIT_FAILURE, Failure};
use crate::image::ImageSource;
use crate::python::Python;
use crate::{alone, bucket, image, run, specify, template, terminal, warm};

/// Where a sandbox's supervisor writes what it has to complain of, in the sandbox's directory.
const COMPLAINTS: &str = "supervisor.log";

/// Does what the role says that is the first of `words`.
pub(crate) fn supervise(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let role = words.next().and_then(|word| SupervisorRole::of(word.to_str()?));
    match (role, words.next()) {
        (Some(SupervisorRole::Sandbox), None) => alone(sandbox),
        (Some(SupervisorRole::Local), None) => alone(local),
        (Some(SupervisorRole::Prewarmed), None) => alone(warm::hold),
        (Some(SupervisorRole::CopyLayer), None) => alone(copy_layer),
        (Some(SupervisorRole::CopySnapshot), None) => alone(copy_snapshot),
        (Some(SupervisorRole::PackSnapshot), None) => alone(pack_snapshot),
        (Some(SupervisorRole::UnpackSnapshot), None) => alone(unpack_snapshot),
        (Some(SupervisorRole::RemoveLayer), None) => alone(remove_layer),
        (Some(SupervisorRole::ShowChanges), None) => alone(show_changes),
        (Some(SupervisorRole::MeasureLayer), None) => alone(measure_layer),
        (Some(SupervisorRole::BuildTemplate), None) => alone(template::builder),
        (Some(SupervisorRole::FetchImage), None) => alone(fetch_image),
        (Some(SupervisorRole::SyncVolume), None) => alone(sync_volume),
        (Some(SupervisorRole::ServeTools), None) => serve_tools(),
        (Some(SupervisorRole::CarryVm), first) => {
            let numbers = first.into_iter().chain(words);
            let template: Vec<i32> = numbers.filter_map(|number| number.to_str()?.parse().ok()).collect();
            alone(|| carry_vm(&template))
        }
        (Some(SupervisorRole::BecomeHypervisor), Some(name)) => {
            let words: Vec<OsString> = std::iter::once(name).chain(words).collect();
            alone(|| Failure::from_error(&microvm::become_hypervisor(&words)).print())
        }
        (Some(SupervisorRole::SimulatedWorker), None) => alone(simulated_worker),
        (Some(SupervisorRole::WasmWorker), None) => alone(wasm_worker),
        (Some(SupervisorRole::CompileInterpreter), Some(language)) => match words.next() {
            Some(directory) => alone(|| compile_interpreter(&language, Path::new(&directory))),
            None => ExitCode::from(EXIT_FAILURE),
        },
        _ => Failure::new("expected the role of a process that offleash starts itself")
            .with_hint("`offleash run` runs a command")
            .print(),
    }
}

/// Holds a sandbox for a daemon: reads an order, answers, and serves until the sandbox ends.
fn sandbox() -> ExitCode {
    offleash_sys::process::keep_free_memory();
    give_up_protection();
    match read_order::<SupervisorOrder>() {
        Ok(order) => {
            // Without it nobody reads why this ended.
            let _opened = terminal::complain_to(&order.directory.as_path().join(COMPLAINTS));
            exit_code(hold(&order, |made| terminal::answer_and_leave(&frame(made)?)).is_ok())
        }
        Err(failure) => failure.print(),
    }
}

/// Holds a sandbox for `offleash mcp`, whose arguments say what it is, and records it as a run.
fn local() -> ExitCode {
    offleash_sys::process::keep_free_memory();
    let order: LocalOrder = match read_order() {
        Ok(order) => order,
        Err(failure) => return failure.print(),
    };
    let program = std::iter::once(OsString::from("offleash"));
    let arguments = match args::parsed::<Arguments>(program.chain(frames::words(&order.arguments))) {
        Ok(arguments) => arguments,
        Err(error) => return Failure::new(error.to_string()).print(),
    };
    terminal::speak_as(&frames::words(&order.arguments));
    let Command::Mcp(asked) = arguments.command else {
        return Failure::new("expected the arguments of `offleash mcp`").print();
    };
    match specified(&asked, arguments.state, order) {
        Ok(order) => serve_local(order),
        Err(failure) => {
            let (message, hint) = failure.into_words();
            let kind = ErrorKind::Invalid;
            // Whoever waits for it hears of nothing otherwise.
            let _told = answer_and_complain(&LaunchAnswer::NotMade { kind, message, hint });
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

fn specified(asked: &McpArgs, state: Option<PathBuf>, order: LocalOrder) -> Result<LocalSpec, Failure> {
    let mut spec = specify::specify(&asked.sandbox)?;
    match &asked.image {
        Some(name) => spec.root = here(name, &asked.registry, state.as_deref())?,
        // Code is what it is for: that has the libraries of the usual template where that is built.
        None => drop(Python::choose(&asked.sandbox, &mut spec, state.as_deref())?),
    }
    let cwd = asked.sandbox.cwd.as_deref();
    let cwd = cwd.map(specify::directory_inside).transpose()?;
    bucket::fetch(&spec.volumes, state.as_deref(), false)?;
    Ok(LocalSpec {
        spec,
        id: order.id,
        state,
        directory: order.directory.as_path().to_owned(),
        cwd: cwd.map(|cwd| Path::new(&cwd).to_owned()),
        command: vec!["offleash".into(), "mcp".into()],
    })
}

/// The root of the image of `offleash mcp`, which has pulled it.
fn here(name: &str, registry: &RegistryArgs, state: Option<&Path>) -> Result<RootChoice, Failure> {
    let source = ImageSource {
        pull: Some(PullArg::Never),
        registry,
        is_quiet: true,
        state,
    };
    image::root(name, source)
}

fn serve_local(order: LocalSpec) -> ExitCode {
    let network: NetworkSpec = order.spec.network.clone();
    let (volumes, state) = (order.spec.volumes.clone(), order.state.clone());
    match hold_local(order, answer_and_complain) {
        Ok(Some(report)) => {
            // What could not be sent was said, and stays in the volume.
            let _sent = bucket::send(&volumes, state.as_deref());
            run::tell(&report.record, &network, &report.notes);
            if let Some(error) = report.unkept {
                terminal::complain(&Failure::from(error).to_string());
            }
            if let Some(held_back) = report.held_back {
                terminal::complain(&format!("offleash: {held_back}"));
            }
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::from(EXIT_FAILURE),
        Err(error) => Failure::from(error).print(),
    }
}

/// Says what came of an order, and goes on with standard error alone.
fn answer_and_complain(answer: &LaunchAnswer) -> io::Result<()> {
    terminal::answer_and_stay(&frame(answer)?)
}

/// Removes what a sandbox left that is gone. A daemon has it done, because it takes a process with one thread.
fn remove_layer() -> ExitCode {
    let removed = read_order().and_then(|order: RemoveOrder| {
        let remove = if order.is_snapshot {
            base::remove_snapshot
        } else {
            base::remove_left
        };
        remove(order.state.as_path(), &order.id).map_err(|error| Failure::from_error(&error))
    });
    match removed {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.print(),
    }
}

/// Copies what a sandbox wrote for another one. A daemon has it done, for the same reason.
fn copy_layer() -> ExitCode {
    match read_order::<CopyOrder>() {
        Ok(order) => exit_code(base::copy(&order, |copied| terminal::answer_and_leave(&frame(copied)?)).is_ok()),
        Err(failure) => failure.print(),
    }
}

/// Shows what was changed in a sandbox. A daemon has it done, for the same reason.
fn show_changes() -> ExitCode {
    match read_order::<ChangesOrder>() {
        Ok(order) => {
            let told = |answer: &ChangesAnswer| terminal::answer_and_leave(&frame(answer)?);
            exit_code(base::show_changes(&order, told).is_ok())
        }
        Err(failure) => failure.print(),
    }
}

/// Pulls and unpacks an image for a daemon, for the same reason.
fn fetch_image() -> ExitCode {
    match read_order::<FetchOrder>() {
        Ok(order) => {
            let answer = fetch(&order);
            exit_code(
                frame(&answer)
                    .and_then(|answer| terminal::answer_and_leave(&answer))
                    .is_ok(),
            )
        }
        Err(failure) => failure.print(),
    }
}

/// Brings a volume and its bucket to the same for a daemon, which has the network done elsewhere.
fn sync_volume() -> ExitCode {
    match read_order::<SyncVolumeOrder>() {
        Ok(order) => {
            let answer = sync_for_daemon(&order);
            exit_code(
                frame(&answer)
                    .and_then(|answer| terminal::answer_and_leave(&answer))
                    .is_ok(),
            )
        }
        Err(failure) => failure.print(),
    }
}

/// Takes calls of tools for a sandbox, whose socket is descriptor 3, and says at its end how often each was called.
fn serve_tools() -> ExitCode {
    let order = match read_order::<ToolsOrder>() {
        Ok(order) => order,
        Err(failure) => return failure.print(),
    };
    let adopt = |number| offleash_sys::spawn::adopt_descriptor(number).map_err(io::Error::from);
    let has_door = order.has_door;
    let door = || has_door.then(|| adopt(5)).transpose();
    let sockets = adopt(3).and_then(|calls| Ok((calls, adopt(4)?, door()?)));
    let served = sockets.and_then(|(calls, questions, door)| tools::serve(order, calls, questions, door));
    let told = served.and_then(|report| terminal::answer_and_leave(&frame(&report)?));
    exit_code(told.is_ok())
}

/// Carries the virtual machine of the sandbox that this is the first process of.
fn carry_vm(template: &[i32]) -> ExitCode {
    match microvm::carry(template) {
        Ok(why) => {
            terminal::complain(&why);
            ExitCode::SUCCESS
        }
        Err(error) => Failure::from_error(&error).print(),
    }
}

/// Is the worker of a simulated shell.
fn simulated_worker() -> ExitCode {
    exit_code(offleash_wasm::run_shell_worker().is_ok())
}

/// Compiles an interpreter of scripts, and says on standard error why not.
fn compile_interpreter(language: &OsStr, directory: &Path) -> ExitCode {
    match offleash_wasm::compile_interpreter(language, directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain(&error.to_string());
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

/// Is the worker that runs WebAssembly.
fn wasm_worker() -> ExitCode {
    exit_code(offleash_wasm::run_worker().is_ok())
}

/// Makes a snapshot of what a sandbox wrote, in steps. What is written to descriptor 3 says that the sandbox stands still.
fn copy_snapshot() -> ExitCode {
    const STANDS_STILL: &str = "/proc/self/fd/3";
    let told = |step: &SnapshotStep| terminal::answer_on(&frame(step)?);
    let may_go_on = || std::fs::File::open(STANDS_STILL)?.read_exact(&mut [0]);
    match read_order::<SnapshotOrder>() {
        Ok(order) => exit_code(base::make_snapshot(&order, told, may_go_on).is_ok()),
        Err(failure) => failure.print(),
    }
}

/// Packs a snapshot into descriptor 3. A daemon has it done, because it takes a process with one thread.
fn pack_snapshot() -> ExitCode {
    with_archive(|order: PackOrder, archive, told| snapshot_archives::pack(&order, archive, told))
}

/// Takes in a snapshot from descriptor 3. A daemon has it done, for the same reason.
fn unpack_snapshot() -> ExitCode {
    with_archive(|order: UnpackOrder, archive, told| snapshot_archives::unpack(&order, archive, told))
}

fn with_archive<Order: Message>(
    act: impl FnOnce(Order, &std::fs::File, fn(&ArchiveAnswer) -> io::Result<()>) -> io::Result<()>,
) -> ExitCode {
    let told = |answer: &ArchiveAnswer| terminal::answer_on(&frame(answer)?);
    let archive = offleash_sys::spawn::adopt_descriptor(3);
    match (read_order::<Order>(), archive) {
        (Ok(order), Ok(archive)) => exit_code(act(order, &archive.into(), told).is_ok()),
        (Err(failure), _) => failure.print(),
        (_, Err(error)) => Failure::new(format!("the archive is not on descriptor 3: {error}")).print(),
    }
}

/// Measures what a sandbox wrote, for its supervisor, which may not enter all of it.
fn measure_layer() -> ExitCode {
    let mut found = Vec::new();
    let measured = measure_as_superuser(&mut found);
    match measured.and_then(|()| terminal::answer_and_leave(&found)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => Failure::new(format!("cannot measure the layer on descriptor 3: {error}")).print(),
    }
}

/// When memory runs out the kernel may spare the daemon that started us; what holds a sandbox is not spared.
fn give_up_protection() {
    const ADJUSTMENT: &str = "/proc/self/oom_score_adj";
    let inherited = std::fs::read_to_string(ADJUSTMENT).unwrap_or_default();
    if inherited.starts_with('-') {
        // Raising it is always permitted.
        let _raised = std::fs::write(ADJUSTMENT, "0");
    }
}

/// The order on standard input.
pub(crate) fn read_order<Order: Message>() -> Result<Order, Failure> {
    frames::read(io::stdin().lock()).map_err(|error| {
        Failure::new(format!("the order on standard input cannot be read: {error}"))
            .with_hint("offleash starts such processes itself; use `offleash run` to run a command")
    })
}

fn exit_code(has_succeeded: bool) -> ExitCode {
    match has_succeeded {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(EXIT_FAILURE),
    }
}
