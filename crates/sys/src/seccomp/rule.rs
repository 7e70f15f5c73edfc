//! What happens to one system call: the words of the table.
//!
//! A rule is a small decision over the arguments, kept as data so that the filter ([`super::emit`]), the answer to a
//! notification ([`super::notify`]) and the tests read the same thing. Deliberately not here: which call has which
//! rule ([`super::table`]).

use super::FilterOptions;

/// A decision over the arguments of one system call.
#[derive(Debug)]
pub(super) enum CallRule {
    /// The kernel carries the call out.
    Allow,
    /// The call fails.
    Refuse(CallRefusal),
    /// The supervisor records the call, and lets the kernel carry it out.
    Observe,
    /// The supervisor lets the kernel carry it out, or has it fail for now (`EAGAIN`), as it does without one. Nothing in
    /// memory decides about the call.
    Admit,
    /// The supervisor carries the call out, or refuses it; without one it fails with `EPERM`.
    Mediate,
    /// The supervisor gives the descriptor that the call answers; without one it fails with `ENOSYS`.
    Supply,
    /// The supervisor lets the kernel carry it out, as happens without one, or does so in its stead. Nothing is decided
    /// about the call either way: whatever its memory says by then, the kernel judges it.
    Offer,
    /// Depends on 32 bits of one argument.
    When {
        word: ArgumentWord,
        mask: u32,
        test: ArgumentTest,
        then: &'static CallRule,
        otherwise: &'static CallRule,
    },
}

/// The half of an argument that a condition reads.
///
/// Numbers have only a low half: every one tested is a 32-bit one (or is cut to 32 bits by the kernel), so a comparison
/// of 64 bits could be evaded by setting a high bit that the kernel ignores. A pointer has both, and a test for null
/// that left the high one out would take a page at 4 GiB for null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentWord {
    /// The low half of the argument at this position.
    Low(u8),
    /// The high half of the argument at this position.
    High(u8),
}

impl ArgumentWord {
    /// These 32 bits of a call's arguments.
    pub(super) fn of(self, arguments: &[u64; 6]) -> u32 {
        match self {
            ArgumentWord::Low(argument) => low_half(arguments[usize::from(argument)]),
            ArgumentWord::High(argument) => low_half(arguments[usize::from(argument)] >> 32),
        }
    }
}

/// What an argument is compared with, after masking.
#[derive(Debug, Clone, Copy)]
pub(super) enum ArgumentTest {
    Equals(u32),
    AnyBit(u32),
    AtLeast(u32),
}

impl ArgumentTest {
    pub(super) fn holds(self, value: u32) -> bool {
        match self {
            ArgumentTest::Equals(expected) => value == expected,
            ArgumentTest::AnyBit(bits) => value & bits != 0,
            ArgumentTest::AtLeast(least) => value >= least,
        }
    }
}

/// How and why a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallRefusal {
    /// The error that the program sees; with 0 it takes the call for done.
    pub(super) errno: u16,
    /// Whether the supervisor is told, where there is one. Not for calls that ordinary programs try and do without.
    pub(super) notified: bool,
    /// What the call would have done, where it depends on the arguments.
    pub(super) reason: Option<&'static str>,
}

impl CallRule {
    /// Follows the decision for these arguments to its end, which is anything but `When`.
    pub(super) fn decide(&'static self, arguments: &[u64; 6]) -> &'static CallRule {
        let mut rule = self;
        while let CallRule::When {
            word,
            mask,
            test,
            then,
            otherwise,
        } = rule
        {
            let value = word.of(arguments) & mask;
            rule = if test.holds(value) { then } else { otherwise };
        }
        rule
    }
}

/// The 32 bits that the kernel looks at where an argument is a number.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the point of it: the kernel ignores the high half too"
)]
pub(super) const fn low_half(argument: u64) -> u32 {
    argument as u32
}

/// One line of the table.
#[derive(Debug)]
pub(super) struct TableEntry {
    pub(super) name: &'static str,
    pub(super) number: u32,
    /// The rule without options.
    pub(super) rule: &'static CallRule,
    /// An option that replaces the rule.
    pub(super) switch: Option<RuleSwitch>,
    /// Another option that replaces the rule, unless `switch` does.
    pub(super) second: Option<RuleSwitch>,
    /// Who needs the call, or why it is refused.
    pub(super) reason: &'static str,
}

/// An option that changes the rule of a call, and the rule it then has.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleSwitch {
    pub(super) option: fn(&FilterOptions) -> bool,
    pub(super) rule: &'static CallRule,
}

impl TableEntry {
    /// The rule under these options.
    pub(super) fn rule(&self, options: &FilterOptions) -> &'static CallRule {
        let mut switches = [self.switch, self.second].into_iter().flatten();
        let first_on = switches.find(|switch| (switch.option)(options));
        first_on.map_or(self.rule, |switch| switch.rule)
    }
}

/// Makes a line of the table; `name` is the number's constant, such as `SYS_read`.
pub(super) const fn entry(
    name: &'static str,
    number: libc::c_long,
    rule: &'static CallRule,
    switch: Option<RuleSwitch>,
    reason: &'static str,
) -> TableEntry {
    TableEntry {
        name: name.split_at("SYS_".len()).1,
        number: number_of(number),
        rule,
        switch,
        second: None,
        reason,
    }
}

impl TableEntry {
    /// The same with `rule` under `option`, unless the first option is on.
    pub(super) const fn or(self, option: fn(&FilterOptions) -> bool, rule: &'static CallRule) -> Self {
        Self {
            second: Some(RuleSwitch { option, rule }),
            ..self
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked in the line above"
)]
pub(super) const fn number_of(number: libc::c_long) -> u32 {
    assert!(number >= 0 && number < 1024, "a system call's number");
    number as u32
}
