//! `offleash drain`: a server that takes no new sandboxes, before its machine goes.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::args::DrainArgs;
use crate::failure::Failure;
use crate::server_at::ServerAt;
use crate::terminal;

const DRAIN: &str = "/v1/drain";
/// How often it is looked whether sandboxes are left.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn drain(arguments: &DrainArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    if arguments.undo {
        client.delete(DRAIN)?;
    }
    let mut state = match arguments.undo || arguments.status {
        true => client.get(DRAIN)?,
        false => client.post(DRAIN, &json!({}))?,
    };
    terminal::print(format!("{}\n", told(&state)).as_bytes())?;
    while arguments.wait && sandboxes(&state) > 0 {
        std::thread::sleep(LOOK_EVERY);
        let now = client.get(DRAIN)?;
        if now != state {
            terminal::print(format!("{}\n", told(&now)).as_bytes())?;
        }
        if !is_drained(&now) {
            return Err(Failure::new("the server takes new sandboxes again")
                .with_hint("it was started anew, or somebody ended the drain"));
        }
        state = now;
    }
    Ok(ExitCode::SUCCESS)
}

fn sandboxes(state: &Value) -> u64 {
    state["sandboxes"].as_u64().unwrap_or_default()
}

fn is_drained(state: &Value) -> bool {
    state["draining"].as_bool() == Some(true)
}

fn told(state: &Value) -> String {
    let words = match is_drained(state) {
        true => "drained: takes no new sandboxes",
        false => "open: takes new sandboxes",
    };
    match sandboxes(state) {
        1 => format!("{words}; 1 sandbox is left"),
        count => format!("{words}; {count} sandboxes are left"),
    }
}
