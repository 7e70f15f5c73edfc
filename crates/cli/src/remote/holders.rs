//! Which sandboxes of a daemon hold something that somebody wants to remove.

use std::path::Path;

use offleash_api::client::{Client, SOCKET, encoded};
use serde_json::Value;

use crate::failure::Failure;

/// How many are named.
const NAMED: usize = 10;

/// Sandboxes of the daemon at `state` that `holds` finds, by their ids; none if no daemon answers.
pub(crate) fn sandboxes(state: &Path, holds: impl Fn(&Value) -> bool) -> Vec<String> {
    let Ok(client) = Client::new(&state.join(SOCKET)) else {
        return Vec::new();
    };
    let pages = pages(&client, "/v1/sandboxes?", "sandboxes", "after");
    let held = pages.iter().filter(|sandbox| holds(sandbox));
    held.filter_map(|sandbox| sandbox["id"].as_str().map(str::to_owned))
        .collect()
}

/// Snapshots of the daemon at `state` that `holds` finds, as `ID` or `ID (NAME)`; none if no daemon answers.
pub(crate) fn snapshots(state: &Path, holds: impl Fn(&Value) -> bool) -> Vec<String> {
    let Ok(client) = Client::new(&state.join(SOCKET)) else {
        return Vec::new();
    };
    let pages = pages(&client, "/v1/snapshots?", "snapshots", "nextToken");
    let held = pages.iter().filter(|snapshot| holds(snapshot));
    held.filter_map(|snapshot| {
        let id = snapshot["id"].as_str()?;
        Some(match snapshot["name"].as_str() {
            Some(name) => format!("{id} ({name})"),
            None => id.to_owned(),
        })
    })
    .collect()
}

/// All entries of a list that comes in pages, as far as they can be had.
fn pages(client: &Client, path: &str, list: &str, parameter: &str) -> Vec<Value> {
    let (mut all, mut next) = (Vec::new(), None::<String>);
    loop {
        let asked = match &next {
            Some(token) => format!("{path}{parameter}={}", encoded(token)),
            None => path.trim_end_matches('?').to_owned(),
        };
        let Ok(page) = client.get(&asked) else { return all };
        all.extend(page[list].as_array().cloned().unwrap_or_default());
        match page["next"].as_str() {
            Some(token) if next.as_deref() != Some(token) => next = Some(token.to_owned()),
            _ => return all,
        }
    }
}

/// A failure that says who holds what is in use, where that is known.
pub(crate) fn named(failure: Failure, what: &str, holders: &[String]) -> Failure {
    match holders {
        [] => failure,
        holders => failure.with_cause(format!("{what}: {}", shown(holders))),
    }
}

/// Some of a list, and how many more there are.
pub(crate) fn shown(names: &[String]) -> String {
    match names.len().checked_sub(NAMED) {
        Some(more @ 1..) => format!("{} and {more} more", names[..NAMED].join(", ")),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<String> = (0..12).map(|number| format!("n{number}")).collect();
        assert_eq!(shown(&names[..2]), "n0, n1");
        assert_eq!(shown(&names[..10]).matches(", ").count(), 9);
        assert!(shown(&names).ends_with("n9 and 2 more"), "{}", shown(&names));
    }
}
