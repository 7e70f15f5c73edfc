//! What is put on record of a simulated shell, and on whose word.
//!
//! Which programs it was refused and which ran is what the supervisor answered. Limits of the shell and what it does not have are
//! its own word, which a worker that was taken over can forge: the record says so, and what is kept of it is bounded.

use std::collections::{BTreeMap, BTreeSet};

use offleash_core::record::DenialRecord;
use offleash_core::text::Text;

use crate::engine::EngineKind;
use crate::wire::{Shortfall, ShortfallKind};

/// How many programs are counted by their names, and how many refusals of theirs are told apart.
const MAX_PROGRAMS: usize = 100;
const MAX_DENIALS: usize = 1000;
/// What others are counted as.
const OTHER_PROGRAMS: &str = "others";
/// How many different shortfalls are put on record, and how long each may be, in characters.
const MAX_SHORTFALLS: usize = 100;
const MAX_SHORTFALL: usize = 200;

/// What is put on record.
#[derive(Debug)]
pub(super) struct ShellAccount {
    kind: EngineKind,
    /// What the shell said.
    said: BTreeMap<Shortfall, u64>,
    /// Programs that it was told that it cannot have.
    refused: BTreeSet<String>,
    /// Programs that ran at the next level.
    ran: BTreeMap<String, u64>,
    /// What the supervisor refused it, and what programs at the next level were refused.
    denials: Vec<DenialRecord>,
}

impl ShellAccount {
    /// Nothing yet of an engine of this kind.
    pub(super) const fn of(kind: EngineKind) -> Self {
        Self {
            kind,
            said: BTreeMap::new(),
            refused: BTreeSet::new(),
            ran: BTreeMap::new(),
            denials: Vec::new(),
        }
    }

    /// The shell asked for a program, and was told that it cannot have it.
    pub(super) fn refused_program(&mut self, name: &str) {
        let name = counted_name(name, self.refused.len(), |name| self.refused.contains(name));
        self.refused.insert(name);
    }

    /// A program runs at the next level.
    pub(super) fn ran_program(&mut self, name: &str) {
        let name = counted_name(name, self.ran.len(), |name| self.ran.contains_key(name));
        *self.ran.entry(name).or_default() += 1;
    }

    /// The shell told of these. Of programs only those count that it was refused; what ran was counted as it ran.
    pub(super) fn hear(&mut self, shortfalls: Vec<Shortfall>) {
        for Shortfall { kind, what } in shortfalls {
            let what = shortened(&what);
            let what = match kind {
                ShortfallKind::RanAtProcess => continue,
                ShortfallKind::NeedsProcess if self.refused.contains(&what) => what,
                ShortfallKind::NeedsProcess if self.refused.contains(OTHER_PROGRAMS) => OTHER_PROGRAMS.to_owned(),
                ShortfallKind::NeedsProcess => continue,
                ShortfallKind::Limit | ShortfallKind::Unsupported => what,
            };
            let shortfall = Shortfall { kind, what };
            if self.said.len() < MAX_SHORTFALLS || self.said.contains_key(&shortfall) {
                *self.said.entry(shortfall).or_default() += 1;
            }
        }
    }

    /// Something was beyond a limit that the supervisor keeps.
    pub(super) fn limit(&mut self, what: &str) {
        self.denied(DenialRecord {
            subject: "limit".to_owned(),
            name: Text::from(what),
            rule: format!("limit of level {}", self.kind.level),
            count: 1,
        });
    }

    /// Something was refused.
    pub(super) fn denied(&mut self, denial: DenialRecord) {
        let is_it = |known: &&mut DenialRecord| {
            (&known.subject, &known.name, &known.rule) == (&denial.subject, &denial.name, &denial.rule)
        };
        let has_room = self.denials.len() < MAX_DENIALS;
        match self.denials.iter_mut().find(is_it) {
            Some(known) => known.count = known.count.saturating_add(denial.count),
            None if has_room => self.denials.push(denial),
            None => {}
        }
    }

    /// All of it, for the record.
    pub(super) fn denials(&self) -> Vec<DenialRecord> {
        let said = self.said.iter().map(|(shortfall, count)| {
            let name = self.kind.name;
            let (subject, rule) = match shortfall.kind {
                ShortfallKind::Limit => ("limit", format!("limit of {name}, by its own word")),
                ShortfallKind::Unsupported => ("unsupported", format!("not in {name}, by its own word")),
                ShortfallKind::NeedsProcess | ShortfallKind::RanAtProcess => {
                    ("command", "needs level process".to_owned())
                }
            };
            denial(subject, &shortfall.what, &rule, *count)
        });
        let ran = self
            .ran
            .iter()
            .map(|(name, count)| denial("command", name, "ran at level process", *count));
        said.chain(ran).chain(self.denials.iter().cloned()).collect()
    }
}

fn shortened(what: &str) -> String {
    what.chars().take(MAX_SHORTFALL).collect()
}

/// The name under which a program is counted, where `known` have names of their own.
fn counted_name(name: &str, known: usize, is_known: impl Fn(&str) -> bool) -> String {
    let name = shortened(name);
    match known < MAX_PROGRAMS || is_known(&name) {
        true => name,
        false => OTHER_PROGRAMS.to_owned(),
    }
}

fn denial(subject: &str, name: &str, rule: &str, count: u64) -> DenialRecord {
    DenialRecord {
        subject: subject.to_owned(),
        name: Text::from(name),
        rule: rule.to_owned(),
        count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortfall(kind: ShortfallKind, what: &str) -> Shortfall {
        let what = what.to_owned();
        Shortfall { kind, what }
    }

    fn told(account: &ShellAccount) -> Vec<(String, String, u64)> {
        let denials = account.denials().into_iter();
        denials
            .map(|denial| (denial.name.to_string(), denial.rule, denial.count))
            .collect()
    }

    #[test]
    fn programs_count_by_what_the_supervisor_answered_and_not_by_what_the_shell_says() {
        let mut account = ShellAccount::of(crate::backend::SHELL);
        account.refused_program("perl");
        account.ran_program("git");
        account.hear(vec![
            shortfall(ShortfallKind::RanAtProcess, "rm"),
            shortfall(ShortfallKind::RanAtProcess, "git"),
            shortfall(ShortfallKind::NeedsProcess, "sudo"),
            shortfall(ShortfallKind::NeedsProcess, "perl"),
        ]);
        let line = |name: &str, rule: &str| (name.to_owned(), rule.to_owned(), 1);
        assert_eq!(
            told(&account),
            [line("perl", "needs level process"), line("git", "ran at level process")]
        );
    }

    #[test]
    fn what_is_the_shells_own_word_is_marked_and_bounded() {
        let mut account = ShellAccount::of(crate::backend::SHELL);
        account.limit("standard input");
        let endless = "x".repeat(10_000);
        account.hear(vec![shortfall(ShortfallKind::Limit, &endless)]);
        let said = |number: usize| shortfall(ShortfallKind::Unsupported, &number.to_string());
        account.hear((0..2 * MAX_SHORTFALLS).map(said).collect());
        let told = told(&account);
        assert_eq!(told.len(), MAX_SHORTFALLS + 1);
        let by_its_word = told.iter().filter(|(_, rule, _)| rule.ends_with("by its own word"));
        assert_eq!(by_its_word.count(), MAX_SHORTFALLS);
        assert!(told.iter().all(|(name, ..)| name.len() <= MAX_SHORTFALL));
        assert_eq!(told.last().unwrap().1, "limit of level simulated");
    }

    #[test]
    fn programs_beyond_a_number_are_counted_together() {
        let mut account = ShellAccount::of(crate::backend::SHELL);
        for number in 0..MAX_PROGRAMS + 5 {
            account.ran_program(&format!("p{number}"));
            account.refused_program(&format!("q{number}"));
        }
        account.ran_program("p0");
        account.hear(vec![shortfall(ShortfallKind::NeedsProcess, "q104")]);
        let told = told(&account);
        let count = |name: &str, rule: &str| {
            let line = told
                .iter()
                .find(|line| (line.0.as_str(), line.1.as_str()) == (name, rule));
            line.map(|line| line.2)
        };
        assert_eq!(count("p0", "ran at level process"), Some(2));
        assert_eq!(count("p104", "ran at level process"), None);
        assert_eq!(count(OTHER_PROGRAMS, "ran at level process"), Some(5));
        assert_eq!(count(OTHER_PROGRAMS, "needs level process"), Some(1));
    }

    #[test]
    fn refusals_are_counted_and_bounded() {
        let mut account = ShellAccount::of(crate::backend::SHELL);
        for number in 0..MAX_DENIALS + 7 {
            account.denied(denial("syscall", &number.to_string(), "seccomp", 2));
        }
        account.denied(denial("syscall", "0", "seccomp", 3));
        let denials = account.denials();
        assert_eq!((denials.len(), denials[0].count), (MAX_DENIALS, 5));
    }
}
