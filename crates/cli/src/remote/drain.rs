//! `offleash drain`: a server that takes no new sandboxes, before its machine goes; and a node of a front whose sandboxes go elsewhere.

use std::process::ExitCode;
use std::time::Duration;

use offleash_api::client::Client;
use offleash_core::text::Text;
use serde_json::{Value, json};

use super::field;
use crate::args::DrainArgs;
use crate::failure::{EXIT_FAILURE, Failure};
use crate::server_at::ServerAt;
use crate::terminal;

const DRAIN: &str = "/v1/drain";
const FRONT_DRAIN: &str = "/v1/front/drain";
/// How often what is left at a node is moved, if it can be by then.
const MOVE_AGAIN: Duration = Duration::from_secs(10);
/// How often it is looked whether sandboxes are left.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn drain(arguments: &DrainArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    if let Some(node) = &arguments.node {
        return move_away(&client, node, arguments.wait);
    }
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

/// Has a front drain one of its nodes, and says what became of its sandboxes.
fn move_away(client: &Client, node: &str, waits: bool) -> Result<ExitCode, Failure> {
    loop {
        let report = client.post(FRONT_DRAIN, &json!({ "node": node }))?;
        let all = |what: &str| report[what].as_array().map(Vec::as_slice).unwrap_or_default();
        let (moved, waiting, failed) = (all("moved"), all("waiting"), all("failed"));
        let counts = format!(
            "{} moved, {} waiting, {} failed",
            moved.len(),
            waiting.len(),
            failed.len()
        );
        terminal::print(format!("{} is drained: {counts}\n", Text::from(node)).as_bytes())?;
        for (word, stays) in [("waits", waiting), ("failed", failed)] {
            for one in stays {
                let (id, why) = (
                    Text::from(field(one, "id").as_str()),
                    Text::from(field(one, "why").as_str()),
                );
                terminal::complain(&format!("offleash: sandbox `{id}` {word}: {why}"));
            }
        }
        if !waits || waiting.len() + failed.len() == 0 {
            return Ok(match failed.is_empty() {
                true => ExitCode::SUCCESS,
                false => ExitCode::from(EXIT_FAILURE),
            });
        }
        std::thread::sleep(MOVE_AGAIN);
    }
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
