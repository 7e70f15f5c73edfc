//! Which sandboxes a list shows, and the words for what they do.

use offleash_daemon::{ListFilter, MAX_LISTED, VisibleState};

use crate::http::answer::ApiRefusal;
use crate::http::{query, time};

/// Which sandboxes a list is to show.
pub(crate) fn list_filter(query: Option<&str>) -> Result<ListFilter, ApiRefusal> {
    let pairs = query::pairs(query);
    let value = |name: &str| query::value(&pairs, name).filter(|value| !value.is_empty());
    let mut filter = ListFilter {
        // A query within the query, whose names and values the SDKs encode once more.
        metadata: query::pairs(value("metadata"))
            .into_iter()
            .map(|(name, value)| (query::decoded(&name), query::decoded(&value)))
            .collect(),
        template: value("template").map(str::to_owned),
        after: value("nextToken").map(str::to_owned),
        ..ListFilter::default()
    };
    for states in pairs.iter().filter(|(name, _)| name == "state") {
        for word in states.1.split(',').filter(|word| !word.is_empty()) {
            filter.states.push(state(word)?);
        }
    }
    filter.ascending = match value("order") {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(_) => return Err(ApiRefusal::bad_request("order: must be `asc` or `desc`")),
    };
    if let Some(text) = value("startedAfter") {
        let time = time::parse(text);
        filter.started_after =
            Some(time.ok_or_else(|| ApiRefusal::bad_request("startedAfter: must be a time of RFC 3339"))?);
    }
    filter.limit = query::number(&pairs, "limit", 1..=MAX_LISTED)?.unwrap_or(MAX_LISTED);
    Ok(filter)
}

fn state(word: &str) -> Result<VisibleState, ApiRefusal> {
    match word {
        "running" => Ok(VisibleState::Running),
        "paused" => Ok(VisibleState::Paused),
        _ => Err(ApiRefusal::bad_request("state: must be `running`, `paused` or both")),
    }
}

/// The word for a state.
pub(crate) fn state_word(state: VisibleState) -> &'static str {
    match state {
        VisibleState::Running => "running",
        VisibleState::Paused => "paused",
    }
}
