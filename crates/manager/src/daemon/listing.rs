//! What callers see of their sandboxes.

use std::time::SystemTime;

use data_encoding::BASE64URL_NOPAD;
use offleash_store::registry::{Scope, UnixMs};

use super::Daemon;
use super::error::DaemonError;
use super::request::{ListFilter, MOST_LISTED};
use super::table::Facts;
use super::view::{Caller, Page, SandboxView, State};
use crate::clock::to_ms;

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

    /// The caller's sandboxes, everybody's for one with the scope `admin`, page by page.
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
                found.push(((facts.row.started_ms, facts.row.id.clone()), facts.view()));
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
        let mut rest = found.into_iter().filter(|(place, _)| beyond(place));
        let page: Vec<_> = rest.by_ref().take(filter.limit).collect();
        let next = page
            .last()
            .filter(|_| rest.next().is_some())
            .map(|(place, _)| text_of(place));
        Ok(Page {
            sandboxes: page.into_iter().filter_map(|(_, view)| view).collect(),
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

fn matches(facts: &Facts, state: State, filter: &ListFilter) -> bool {
    let row = &facts.row;
    let labelled = |(name, value): (&String, &String)| row.metadata.get(name) == Some(value);
    let later = |time: SystemTime| row.started_ms > to_ms(time);
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
    fn places_are_read_back() {
        let place = (1_700_000_000_123, "iabc".to_owned());
        assert_eq!(place_of(&text_of(&place)).unwrap(), place);
        for bad in ["", "!", "aGVsbG8", "é", &BASE64URL_NOPAD.encode(b"x__iabc")] {
            assert!(place_of(bad).is_err(), "{bad:?}");
        }
    }
}
