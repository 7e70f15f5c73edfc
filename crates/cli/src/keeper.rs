//! `offleash keeper`: the process that holds one sandbox for a daemon. Nobody calls it by hand, so no help names it.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::ExitCode;

use offleash_isolation::limits::measure_as_superuser;
use offleash_manager::keeper::hold;
use offleash_manager::keeper::order::SandboxOrder;
use offleash_planner::base::{self, CopyOrder};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::{EXIT_FAILURE, Failure};
use crate::terminal;

/// Where it writes what it has to complain of, in its sandbox's directory.
const COMPLAINTS: &str = "keeper.log";

/// Reads an order on standard input, answers with one line on standard output, and serves until the sandbox ends.
pub(crate) fn keeper() -> ExitCode {
    offleash_sys::process::keep_free_memory();
    give_up_protection();
    match read_order::<SandboxOrder>() {
        Ok(order) => {
            // Without it nobody reads why this ended.
            let _opened = terminal::complain_to(&order.directory.as_path().join(COMPLAINTS));
            match hold(&order, answer) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::from(EXIT_FAILURE),
            }
        }
        Err(failure) => failure.print(),
    }
}

/// `offleash remove-layer STATE ID`: removes what a sandbox left that is gone. A daemon has it done, because it takes a
/// process with one thread; no help names it either.
pub(crate) fn remove_layer(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let (state, id, rest) = (words.next(), words.next(), words.next());
    let id = id.and_then(|id| id.to_str()?.parse().ok());
    let (Some(state), Some(id), None) = (state, id, rest) else {
        return Failure::new("expected a state directory and the id of a sandbox").print();
    };
    match base::remove_left(Path::new(&state), &id) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => Failure::from_error(&error).print(),
    }
}

/// `offleash copy-layer`: reads an order on standard input, copies what a sandbox wrote for another one, and answers with one
/// line on standard output. A daemon has it done, for the same reason.
pub(crate) fn copy_layer() -> ExitCode {
    let order: CopyOrder = match read_order() {
        Ok(order) => order,
        Err(failure) => return failure.print(),
    };
    match base::copy(&order, answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(EXIT_FAILURE),
    }
}

/// `offleash measure-layer`: measures what a sandbox wrote, for its supervisor, which may not enter all of it.
pub(crate) fn measure_layer() -> ExitCode {
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

fn read_order<Order: DeserializeOwned>() -> Result<Order, Failure> {
    let mut text = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut text);
    read.map_err(|error| Failure::new(format!("cannot read the order on standard input: {error}")))?;
    serde_json::from_slice(&text).map_err(|error| {
        Failure::new(format!("the order on standard input cannot be understood: {error}"))
            .with_hint("`offleash serve` starts keepers; use `offleash run` to run a command")
    })
}

/// Says what came of it, and lets go of the streams: whoever reads them waits for their end.
fn answer(answer: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_vec(answer).map_err(io::Error::other)?;
    terminal::answer_and_leave(&[line.as_slice(), b"\n"].concat())
}
