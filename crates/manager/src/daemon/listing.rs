//! What callers see of their sandboxes.

use std::time::SystemTime;

use data_encoding::BASE64URL_NOPAD;
use offleash_store::registry::{Scope, UnixMs};

use super::Daemon;
use super::error::DaemonError;
use super::request::{ListFilter, MOST_LISTED};
use super::specification::written;
use super::table::Facts;
use super::view::{Caller, Page, SandboxView, State};
use crate::clock::to_ms;

/// Bytes of a page, but for what every sandbox has; one that has more is a page of its own.
const MOST_BYTES: usize = 1024 * 1024;

/// Where a page ended: when its last sandbox was started, and its id.
type Place = (UnixMs, String);

impl Daemon {
    /// A sandbox.
    ///
    /// # Errors
    /// `NotFound`, also for another key's; `Forbidden`.
    pub fn get(&self, caller: &Caller, id: &str) -> Result<SandboxView, DaemonError> {
        caller.require(Scope::Read)?;
        let entry = self.inner.table.find(caller, id)?;
        entry.view().ok_or_else(|| DaemonError::not_found(id))
    }

    /// The caller's sandboxes, everybody's for one with the scope `admin`, page by page. A page ends before its limit where
    /// sandboxes with much to tell of them would make it large.
    ///
    /// # Errors
    /// `Forbidden`; `Invalid` for a limit that is not between 1 and 100, and for a place that no page ended at.
    pub fn list(&self, caller: &Caller, filter: &ListFilter) -> Result<Page, DaemonError> {
        caller.require(Scope::Read)?;
        if filter.limit == 0 || filter.limit > MOST_LISTED {
            let why = format!("must be between 1 and {MOST_LISTED}");
            return Err(DaemonError::invalid("limit", why));
        }
        let after = filter.after.as_deref().map(place_of).transpose()?;
        let (mut found, mut total_running) = (Vec::new(), 0);
        for entry in self.inner.table.all() {
            let facts = entry.lock();
            if !caller.sees(facts.row.key_id.as_deref()) {
                continue;
            }
            let state = facts.visible_state();
            total_running += usize::from(state == Some(State::Running));
            if state.is_some_and(|state| matches(&facts, state, filter)) {
                let place = (facts.row.started_ms, facts.row.id.clone());
                drop(facts);
                found.push((place, entry));
            }
        }
        found.sort_by(|left, right| {
            let ascending = left.0.cmp(&right.0);
            if filter.ascending {
                ascending
            } else {
                ascending.reverse()
            }
        });
        let beyond = |place: &Place| match &after {
            Some(after) if filter.ascending => place > after,
            Some(after) => place < after,
            None => true,
        };
        let rest = found.into_iter().filter(|(place, _)| beyond(place));
        let (page, is_last) = page_of(rest, filter.limit, |(_, entry)| weight(&entry.lock()));
        let next = page.last().filter(|_| !is_last).map(|(place, _)| text_of(place));
        Ok(Page {
            // One may have begun to end since it was found.
            sandboxes: page.iter().filter_map(|(_, entry)| entry.view()).collect(),
            next,
            total_running,
        })
    }

    /// The sandbox whose services ask for a token that `is_right`, for requests that do not say which one they are for.
    pub fn find_by_access_token(&self, is_right: impl Fn(&str) -> bool) -> Option<String> {
        let entries = self.inner.table.all();
        let mut found = entries.iter().filter(|entry| {
            let facts = entry.lock();
            facts.visible_state().is_some() && facts.row.access_token.as_deref().is_some_and(&is_right)
        });
        found.next().map(|entry| entry.id.to_string())
    }
}

/// As many of `rest` as are no more than `limit` and, by `weight`, no more than [`MOST_BYTES`], but at least one; and whether
/// these are all.
fn page_of<T>(rest: impl Iterator<Item = T>, limit: usize, weight: impl Fn(&T) -> usize) -> (Vec<T>, bool) {
    let (mut page, mut bytes) = (Vec::new(), 0);
    for one in rest {
        bytes += weight(&one);
        if page.len() == limit || (!page.is_empty() && bytes > MOST_BYTES) {
            return (page, false);
        }
        page.push(one);
    }
    (page, true)
}

/// How many bytes are told of a sandbox that its creator chose.
fn weight(facts: &Facts) -> usize {
    let network = &facts.specification.network;
    let labels = facts.row.metadata.iter();
    let labels = labels.map(|(name, value)| written(name) + written(value));
    let lists = network.allow_out.iter().chain(&network.deny_out);
    let headers = network.headers.iter().map(|(host, headers)| {
        let fields = headers.iter();
        let fields = fields.map(|(name, value)| written(name) + written(value));
        written(host) + fields.sum::<usize>()
    });
    labels.sum::<usize>() + lists.map(|text| written(text)).sum::<usize>() + headers.sum::<usize>()
}

fn matches(facts: &Facts, state: State, filter: &ListFilter) -> bool {
    let row = &facts.row;
    let labelled = |(name, value): (&String, &String)| row.metadata.get(name) == Some(value);
    // As it is told, a sandbox's own time is the end of those that are no later.
    let later = |time: SystemTime| row.started_ms >= to_ms(time);
    (filter.states.is_empty() || filter.states.contains(&state))
        && filter.metadata.iter().all(labelled)
        && filter
            .template
            .as_ref()
            .is_none_or(|template| *template == row.template)
        && filter.started_after.is_none_or(later)
}

fn text_of((started_ms, id): &Place) -> String {
    BASE64URL_NOPAD.encode(format!("{started_ms}__{id}").as_bytes())
}

fn place_of(text: &str) -> Result<Place, DaemonError> {
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
        let paged = |weights: &[usize], limit| page_of(weights.iter().copied(), limit, |weight| *weight);
        assert_eq!(paged(&[], 2), (vec![], true));
        assert_eq!(paged(&[1, 1], 2), (vec![1, 1], true));
        assert_eq!(paged(&[1, 1, 1], 2), (vec![1, 1], false));
        let half = MOST_BYTES / 2;
        assert_eq!(paged(&[half, half, 1], 9), (vec![half, half], false));
        assert_eq!(paged(&[MOST_BYTES * 2, 1], 9), (vec![MOST_BYTES * 2], false));
        assert_eq!(paged(&[0, MOST_BYTES * 2], 9), (vec![0], false));
    }

    #[test]
    fn places_are_read_back() {
        let place = (1_700_000_000_123, "iabc".to_owned());
        assert_eq!(place_of(&text_of(&place)).unwrap(), place);
        for bad in ["", "!", "aGVsbG8", "é", &BASE64URL_NOPAD.encode(b"x__iabc")] {
            assert!(place_of(bad).is_err(), "{bad:?}");
        }
    }
}
