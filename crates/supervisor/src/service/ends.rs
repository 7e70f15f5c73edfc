//! Ends of drivers of contexts that nobody was told of, or that a later daemon is to know of.

use std::collections::VecDeque;

use offleash_core::exec::ExecEnd;

use super::message::{ExitedProcess, MAX_NOTE, MAX_TAG, ProcessInfo};

/// More than a sandbox may have contexts; what one takes is bounded by its tag, directory and note.
const MAX_COUNT: usize = 64;

/// What is to be kept of the end of a driver that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum EndRetention {
    /// How it ends.
    #[default]
    End,
    /// That as well as a note.
    Noted(String),
    /// Nothing.
    Nothing,
}

impl EndRetention {
    pub(super) fn new(note: Option<String>) -> Self {
        note.map_or(Self::Nothing, Self::Noted)
    }
}

/// Those that are kept, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Ends {
    kept: VecDeque<ExitedProcess>,
}

impl Ends {
    pub(super) fn all(&self) -> impl Iterator<Item = &ExitedProcess> {
        self.kept.iter()
    }

    /// Keeps the end of a driver as far as it is wanted.
    pub(super) fn keep(&mut self, process: &ProcessInfo, end: &ExecEnd, wanted: EndRetention) {
        let note = match wanted {
            EndRetention::End => None,
            EndRetention::Noted(note) => Some(note),
            EndRetention::Nothing => return,
        };
        let Some(tag) = process.tag.clone() else { return };
        self.forget(&tag);
        if self.kept.len() >= MAX_COUNT {
            self.kept.pop_front();
        }
        self.kept.push_back(ExitedProcess {
            tag,
            cwd: process.cwd.clone(),
            end: end.clone(),
            note,
        });
    }

    /// Adds a note to one that has come, or forgets it.
    pub(super) fn note(&mut self, tag: &str, wanted: EndRetention) {
        let EndRetention::Noted(note) = wanted else {
            self.forget(tag);
            return;
        };
        if let Some(exited) = self.kept.iter_mut().find(|exited| exited.tag == tag) {
            exited.note = Some(note);
        }
    }

    pub(super) fn forget(&mut self, tag: &str) {
        self.kept.retain(|exited| exited.tag != tag);
    }
}

/// Whether a request about an end is of a size that can be kept.
pub(super) fn fits(tag: &str, note: Option<&str>) -> bool {
    tag.len() <= MAX_TAG && note.is_none_or(|note| note.len() <= MAX_NOTE)
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
        ends.all()
            .map(|exited| (&*exited.tag, exited.note.as_deref()))
            .collect()
    }

    #[test]
    fn the_last_end_of_each_is_kept_unless_nobody_wants_it() {
        let mut ends = Ends::default();
        let end = ExecEnd::Exited { code: 4 };
        ends.keep(&process("a"), &end, EndRetention::End);
        ends.keep(&process("b"), &end, EndRetention::Noted("why".to_owned()));
        ends.keep(&process("c"), &end, EndRetention::Nothing);
        assert_eq!(noted(&ends), [("a", None), ("b", Some("why"))]);
        ends.note("a", EndRetention::Noted("told".to_owned()));
        ends.note("b", EndRetention::Nothing);
        ends.note("c", EndRetention::Noted("late".to_owned()));
        assert_eq!(noted(&ends), [("a", Some("told"))]);
        ends.keep(&process("a"), &ExecEnd::Exited { code: 5 }, EndRetention::End);
        let kept: Vec<_> = ends.all().cloned().collect();
        let last = ExitedProcess {
            tag: "a".to_owned(),
            cwd: b"/srv".to_vec(),
            end: ExecEnd::Exited { code: 5 },
            note: None,
        };
        assert_eq!(kept, [last]);
        for number in 0..2 * MAX_COUNT {
            ends.keep(&process(&number.to_string()), &end, EndRetention::End);
        }
        assert_eq!(ends.all().count(), MAX_COUNT);
    }
}
