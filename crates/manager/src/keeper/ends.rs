//! Ends of drivers of contexts that nobody was told of, or that a later daemon is to know of.

use std::collections::VecDeque;

use offleash_core::exec::ExecEnd;

use super::message::{LONGEST_NOTE, LONGEST_TAG, PastInfo, ProcessInfo};

/// More than a sandbox may have contexts; what one takes is bounded by its tag, directory and note.
const MOST: usize = 64;

/// What is to be kept of the end of a driver that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Wanted {
    /// How it ends.
    #[default]
    End,
    /// That as well as a note.
    Noted(String),
    /// Nothing.
    Nothing,
}

impl Wanted {
    pub(super) fn new(note: Option<String>) -> Self {
        note.map_or(Self::Nothing, Self::Noted)
    }
}

/// Those that are kept, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Ends {
    kept: VecDeque<PastInfo>,
}

impl Ends {
    pub(super) fn all(&self) -> impl Iterator<Item = &PastInfo> {
        self.kept.iter()
    }

    /// Keeps the end of a driver as far as it is wanted.
    pub(super) fn keep(&mut self, process: &ProcessInfo, end: &ExecEnd, wanted: Wanted) {
        let note = match wanted {
            Wanted::End => None,
            Wanted::Noted(note) => Some(note),
            Wanted::Nothing => return,
        };
        let Some(tag) = process.tag.clone() else { return };
        self.forget(&tag);
        if self.kept.len() >= MOST {
            self.kept.pop_front();
        }
        self.kept.push_back(PastInfo {
            tag,
            cwd: process.cwd.clone(),
            end: end.clone(),
            note,
        });
    }

    /// Adds a note to one that has come, or forgets it.
    pub(super) fn note(&mut self, tag: &str, wanted: Wanted) {
        let Wanted::Noted(note) = wanted else {
            self.forget(tag);
            return;
        };
        if let Some(past) = self.kept.iter_mut().find(|past| past.tag == tag) {
            past.note = Some(note);
        }
    }

    pub(super) fn forget(&mut self, tag: &str) {
        self.kept.retain(|past| past.tag != tag);
    }
}

/// Whether a request about an end is of a size that can be kept.
pub(super) fn fits(tag: &str, note: Option<&str>) -> bool {
    tag.len() <= LONGEST_TAG && note.is_none_or(|note| note.len() <= LONGEST_NOTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(tag: &str) -> ProcessInfo {
        ProcessInfo {
            pid: 7,
            tag: Some(tag.to_owned()),
            argv: Vec::new(),
            env: Vec::new(),
            cwd: b"/srv".to_vec(),
            user: "user".to_owned(),
            tty: false,
        }
    }

    fn noted(ends: &Ends) -> Vec<(&str, Option<&str>)> {
        ends.all().map(|past| (&*past.tag, past.note.as_deref())).collect()
    }

    #[test]
    fn the_last_end_of_each_is_kept_unless_nobody_wants_it() {
        let mut ends = Ends::default();
        let end = ExecEnd::Exited { code: 4 };
        ends.keep(&process("a"), &end, Wanted::End);
        ends.keep(&process("b"), &end, Wanted::Noted("why".to_owned()));
        ends.keep(&process("c"), &end, Wanted::Nothing);
        assert_eq!(noted(&ends), [("a", None), ("b", Some("why"))]);
        ends.note("a", Wanted::Noted("told".to_owned()));
        ends.note("b", Wanted::Nothing);
        ends.note("c", Wanted::Noted("late".to_owned()));
        assert_eq!(noted(&ends), [("a", Some("told"))]);
        ends.keep(&process("a"), &ExecEnd::Exited { code: 5 }, Wanted::End);
        let kept: Vec<_> = ends.all().cloned().collect();
        let last = PastInfo {
            tag: "a".to_owned(),
            cwd: b"/srv".to_vec(),
            end: ExecEnd::Exited { code: 5 },
            note: None,
        };
        assert_eq!(kept, [last]);
        for number in 0..2 * MOST {
            ends.keep(&process(&number.to_string()), &end, Wanted::End);
        }
        assert_eq!(ends.all().count(), MOST);
    }
}
