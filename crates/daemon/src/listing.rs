//! What callers see of their sandboxes.

use std::collections::BTreeMap;
use std::time::SystemTime;

use data_encoding::BASE64URL_NOPAD;
use offleash_supervisor::clock::{UnixMs, to_ms};

use crate::caller::Caller;
use crate::error::DaemonError;
use crate::sandboxes::{SandboxFacts, SandboxTable};
use crate::specification::written;
use crate::template_names;
use crate::view::{SandboxPage, VisibleState};

/// Bytes of a page, but for what every sandbox has; one that has more is a page of its own.
const MAX_BYTES: usize = 1024 * 1024;

/// Where a page ended: when its last sandbox was started, and its id.
type PagePosition = (UnixMs, String);

/// Which sandboxes a list shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListFilter {
    /// Labels that they must have, all of them.
    pub metadata: BTreeMap<String, String>,
    /// In which states they are; in any if empty.
    pub states: Vec<VisibleState>,
    /// Of which template they are.
    pub template: Option<String>,
    /// Those that were started later than this.
    pub started_after: Option<SystemTime>,
    /// The oldest first instead of the newest.
    pub ascending: bool,
    /// How many at most, 1 to 100.
    pub limit: usize,
    /// Where a page before ended, as it said ([`SandboxPage::next`]).
    pub after: Option<String>,
}

/// Entries of a page.
pub const MAX_LISTED: usize = 100;

impl Default for ListFilter {
    fn default() -> Self {
        Self {
            metadata: BTreeMap::new(),
            states: Vec::new(),
            template: None,
            started_after: None,
            ascending: false,
            limit: MAX_LISTED,
            after: None,
        }
    }
}

/// The caller's sandboxes, everybody's for one with the scope `admin`, page by page. A page ends before its limit where
/// sandboxes with much to tell of them would make it large.
///
/// # Errors
/// `Invalid` for a limit that is not between 1 and 100, and for a place that no page ended at.
pub(crate) fn page_of(
    sandboxes: &SandboxTable,
    caller: &Caller,
    filter: &ListFilter,
) -> Result<SandboxPage, DaemonError> {
    if filter.limit == 0 || filter.limit > MAX_LISTED {
        let why = format!("must be between 1 and {MAX_LISTED}");
        return Err(DaemonError::invalid("limit", why));
    }
    let after = filter.after.as_deref().map(position_of).transpose()?;
    let (mut found, mut total_running) = (Vec::new(), 0);
    for entry in sandboxes.all() {
        let position = entry.read(|facts| {
            if !caller.sees(facts.key_id()) {
                return None;
            }
            let state = facts.visible_state();
            total_running += usize::from(state == Some(VisibleState::Running));
            let is_listed = state.is_some_and(|state| matches(facts, state, filter));
            is_listed.then(|| (facts.row().started_ms, facts.row().id.clone()))
        });
        found.extend(position.map(|position| (position, entry)));
    }
    found.sort_by(|left, right| {
        let ascending = left.0.cmp(&right.0);
        if filter.ascending {
            ascending
        } else {
            ascending.reverse()
        }
    });
    let beyond = |position: &PagePosition| match &after {
        Some(after) if filter.ascending => position > after,
        Some(after) => position < after,
        None => true,
    };
    let rest = found.into_iter().filter(|(position, _)| beyond(position));
    let (page, is_last) = first_of(rest, filter.limit, |(_, entry)| entry.read(weight));
    let next = page.last().filter(|_| !is_last).map(|(position, _)| text_of(position));
    Ok(SandboxPage {
        // One may have begun to end since it was found.
        sandboxes: page.iter().filter_map(|(_, entry)| entry.view()).collect(),
        next,
        total_running,
    })
}

/// The sandbox whose services ask for a token that `is_right`.
pub(crate) fn find_by_access_token(sandboxes: &SandboxTable, is_right: impl Fn(&str) -> bool) -> Option<String> {
    let entries = sandboxes.all();
    let mut found = entries.iter().filter(|entry| {
        entry
            .read(|facts| facts.visible_state().is_some() && facts.row().access_token.as_deref().is_some_and(&is_right))
    });
    found.next().map(|entry| entry.id().to_string())
}

/// As many of `rest` as are no more than `limit` and, by `weight`, no more than [`MAX_BYTES`], but at least one; and whether
/// these are all.
fn first_of<T>(rest: impl Iterator<Item = T>, limit: usize, weight: impl Fn(&T) -> usize) -> (Vec<T>, bool) {
    let (mut page, mut bytes) = (Vec::new(), 0);
    for one in rest {
        bytes += weight(&one);
        if page.len() == limit || (!page.is_empty() && bytes > MAX_BYTES) {
            return (page, false);
        }
        page.push(one);
    }
    (page, true)
}

/// How many bytes are told of a sandbox that its creator chose.
fn weight(facts: &SandboxFacts) -> usize {
    let network = &facts.specification().network;
    let labels = facts.row().metadata.iter();
    let labels = labels.map(|(name, value)| written(name) + written(value));
    let lists = network.allow_out.iter().chain(&network.deny_out);
    let headers = network.headers.iter().map(|(host, headers)| {
        let fields = headers.iter();
        let fields = fields.map(|(name, value)| written(name) + written(value));
        written(host) + fields.sum::<usize>()
    });
    labels.sum::<usize>() + lists.map(|text| written(text)).sum::<usize>() + headers.sum::<usize>()
}

fn matches(facts: &SandboxFacts, state: VisibleState, filter: &ListFilter) -> bool {
    let row = facts.row();
    let labelled = |(name, value): (&String, &String)| row.metadata.get(name) == Some(value);
    // As it is told, a sandbox's own time is the end of those that are no later.
    let later = |time: SystemTime| row.started_ms >= to_ms(time);
    (filter.states.is_empty() || filter.states.contains(&state))
        && filter.metadata.iter().all(labelled)
        && filter
            .template
            .as_ref()
            .is_none_or(|template| template == template_names::shown(&row.template))
        && filter.started_after.is_none_or(later)
}

fn text_of((started_ms, id): &PagePosition) -> String {
    BASE64URL_NOPAD.encode(format!("{started_ms}__{id}").as_bytes())
}

fn position_of(text: &str) -> Result<PagePosition, DaemonError> {
    let read = || {
        let decoded = String::from_utf8(BASE64URL_NOPAD.decode(text.as_bytes()).ok()?).ok()?;
        let (started_ms, id) = decoded.split_once("__")?;
        Some((started_ms.parse().ok()?, id.to_owned()))
    };
    read().ok_or_else(|| DaemonError::invalid("nextToken", "is none that a page ended with"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_bounded_in_entries_and_bytes() {
        let paged = |weights: &[usize], limit| first_of(weights.iter().copied(), limit, |weight| *weight);
        assert_eq!(paged(&[], 2), (vec![], true));
        assert_eq!(paged(&[1, 1], 2), (vec![1, 1], true));
        assert_eq!(paged(&[1, 1, 1], 2), (vec![1, 1], false));
        let half = MAX_BYTES / 2;
        assert_eq!(paged(&[half, half, 1], 9), (vec![half, half], false));
        assert_eq!(paged(&[MAX_BYTES * 2, 1], 9), (vec![MAX_BYTES * 2], false));
        assert_eq!(paged(&[0, MAX_BYTES * 2], 9), (vec![0], false));
    }

    #[test]
    fn positions_are_read_back() {
        let position = (1_700_000_000_123, "iabc".to_owned());
        assert_eq!(position_of(&text_of(&position)).unwrap(), position);
        for bad in ["", "!", "aGVsbG8", "é", &BASE64URL_NOPAD.encode(b"x__iabc")] {
            assert!(position_of(bad).is_err(), "{bad:?}");
        }
    }
}
