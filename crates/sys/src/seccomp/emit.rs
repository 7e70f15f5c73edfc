//! Turns the table into a program for the kernel's classic BPF machine.
//!
//! The program finds the number by binary search over ranges of equal verdict; single numbers that differ from both
//! neighbours are picked out by one comparison each instead of splitting their range in three. It uses only the
//! instructions that the kernel's own simulation understands (`seccomp_is_const_allow` in `kernel/seccomp.c`): since
//! Linux 5.11 calls that are allowed whatever their arguments are therefore answered from a bitmap and never run it.
//!
//! Classic BPF jumps only forwards, so the program is built from its end to its start: whoever jumps already knows
//! where to, and no jump is ever patched.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W,
    SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_USER_NOTIF, sock_filter,
};

use super::FilterOptions;
use super::rule::{ArgumentTest, ArgumentWord, CallRule, TableEntry, number_of};
use super::table;

/// `AUDIT_ARCH_*` of the only calling convention let in (`include/uapi/linux/audit.h`).
#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

// Offsets in `struct seccomp_data`; the low half of an argument comes first on these little-endian machines.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

/// What a call that is not in the table gets.
const UNKNOWN: u32 = SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();

/// The program for these options, in the order in which the kernel runs it.
pub(super) fn program(options: &FilterOptions) -> Vec<sock_filter> {
    program_on(ARCHITECTURE, table::by_number, options)
}

/// The same for an architecture on which calls have the numbers that `line_of` says.
pub(super) fn program_on(
    architecture: u32,
    line_of: impl Fn(usize) -> Option<&'static TableEntry>,
    options: &FilterOptions,
) -> Vec<sock_filter> {
    let unknown = JumpTarget::Answer(UNKNOWN);
    let target = |number: u32| match line_of(usize::try_from(number).unwrap_or(usize::MAX)) {
        Some(entry) => JumpTarget::of(entry.rule(options), options.notify),
        None => unknown,
    };
    program_of(architecture, &NumberRanges::by(target, unknown), options.notify)
}

/// The program that lets pass what `rule` has a rule for, and answers `otherwise` to every other call.
pub(super) fn program_by(rule: impl Fn(u32) -> Option<&'static CallRule>, otherwise: i32) -> Vec<sock_filter> {
    let unknown = JumpTarget::Answer(SECCOMP_RET_ERRNO | otherwise.cast_unsigned());
    let target = |number| rule(number).map_or(unknown, |rule| JumpTarget::of(rule, false));
    program_of(ARCHITECTURE, &NumberRanges::by(target, unknown), false)
}

/// As [`program_by`], with the rules of these lists, by number.
pub(super) fn program_of_lists(
    lists: [&'static [(libc::c_long, &'static CallRule)]; 2],
    otherwise: i32,
) -> Vec<sock_filter> {
    program_by(|number| rule_in(lists, number), otherwise)
}

/// The rule for a call in these lists.
pub(super) fn rule_in(
    lists: [&'static [(libc::c_long, &'static CallRule)]; 2],
    number: u32,
) -> Option<&'static CallRule> {
    let mut all = lists.into_iter().flatten();
    all.find_map(|(known, rule)| (number_of(*known) == number).then_some(*rule))
}

fn program_of(architecture: u32, ranges: &NumberRanges, notify: bool) -> Vec<sock_filter> {
    let mut builder = ProgramBuilder::new(notify);
    let kill = builder.result(SECCOMP_RET_KILL_PROCESS);
    let search = builder.search(ranges);
    let by_number = builder.load(NUMBER_AT, search);
    let right_architecture = builder.branch(BPF_JEQ, architecture, by_number, kill);
    builder.load(ARCHITECTURE_AT, right_architecture);
    builder.finish()
}

/// What numbers lead to.
#[derive(Clone, Copy)]
enum JumpTarget {
    Answer(u32),
    Decision(&'static CallRule),
}

impl JumpTarget {
    fn of(rule: &'static CallRule, notify: bool) -> JumpTarget {
        match rule {
            CallRule::Allow => JumpTarget::Answer(SECCOMP_RET_ALLOW),
            CallRule::Observe | CallRule::Supply => JumpTarget::Answer(SECCOMP_RET_USER_NOTIF),
            CallRule::Admit if notify => JumpTarget::Answer(SECCOMP_RET_USER_NOTIF),
            CallRule::Admit => JumpTarget::Answer(SECCOMP_RET_ERRNO | libc::EAGAIN.cast_unsigned()),
            CallRule::Offer if notify => JumpTarget::Answer(SECCOMP_RET_USER_NOTIF),
            CallRule::Offer => JumpTarget::Answer(SECCOMP_RET_ALLOW),
            CallRule::Mediate if notify => JumpTarget::Answer(SECCOMP_RET_USER_NOTIF),
            CallRule::Mediate => JumpTarget::Answer(SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
            CallRule::Refuse(refusal) if refusal.notified && notify => JumpTarget::Answer(SECCOMP_RET_USER_NOTIF),
            CallRule::Refuse(refusal) => JumpTarget::Answer(SECCOMP_RET_ERRNO | u32::from(refusal.errno)),
            CallRule::When { .. } => JumpTarget::Decision(rule),
        }
    }

    fn is(self, other: JumpTarget) -> bool {
        match (self, other) {
            (JumpTarget::Answer(one), JumpTarget::Answer(another)) => one == another,
            (JumpTarget::Decision(one), JumpTarget::Decision(another)) => std::ptr::eq(one, another),
            _ => false,
        }
    }
}

/// Neighbouring numbers with the same target; the next one's start is the end.
struct NumberRange {
    first: u32,
    target: JumpTarget,
}

/// All numbers, as few ranges as possible: numbers that interrupt a range are picked out of it.
struct NumberRanges {
    ranges: Vec<NumberRange>,
    picked: Vec<(u32, JumpTarget)>,
}

impl NumberRanges {
    /// By what `target` says of each number of the table, and with `beyond` for every one above.
    fn by(target: impl Fn(u32) -> JumpTarget, beyond: JumpTarget) -> NumberRanges {
        let mut found = NumberRanges {
            ranges: Vec::with_capacity(128),
            picked: Vec::with_capacity(64),
        };
        let end = u32::try_from(table::END).unwrap_or(u32::MAX);
        for number in 0..end {
            found.add(number, target(number));
        }
        found.add(end, beyond);
        found.picked.sort_unstable_by_key(|(number, _)| *number);
        found
    }

    fn add(&mut self, first: u32, target: JumpTarget) {
        if self.ranges.last().is_some_and(|range| range.target.is(target)) {
            return;
        }
        match self.interrupted(first, target) {
            Some(resumed) => self.picked.extend(
                self.ranges
                    .drain(resumed + 1..)
                    .map(|range| (range.first, range.target)),
            ),
            None => self.ranges.push(NumberRange { first, target }),
        }
    }

    /// The range with this target from which only single numbers lead up to `next`.
    fn interrupted(&self, mut next: u32, target: JumpTarget) -> Option<usize> {
        for (index, range) in self.ranges.iter().enumerate().rev() {
            if range.target.is(target) {
                return Some(index);
            }
            if next - range.first != 1 {
                return None;
            }
            next = range.first;
        }
        None
    }

    fn picked_in(&self, first: u32, end: u32) -> &[(u32, JumpTarget)] {
        let from = self.picked.partition_point(|(number, _)| *number < first);
        let to = self.picked.partition_point(|(number, _)| *number < end);
        &self.picked[from..to]
    }
}

/// An instruction already built, by its distance from the end of the program.
#[derive(Clone, Copy)]
struct InstructionLabel(usize);

struct ProgramBuilder {
    /// Last instruction first.
    backwards: Vec<sock_filter>,
    notify: bool,
    results: Vec<(u32, InstructionLabel)>,
    /// Decisions already built, with and without loading their argument.
    decisions: Vec<(&'static CallRule, bool, InstructionLabel)>,
}

impl ProgramBuilder {
    fn new(notify: bool) -> ProgramBuilder {
        ProgramBuilder {
            backwards: Vec::with_capacity(160),
            notify,
            results: Vec::with_capacity(8),
            decisions: Vec::with_capacity(64),
        }
    }

    fn finish(mut self) -> Vec<sock_filter> {
        self.backwards.reverse();
        self.backwards
    }

    fn search(&mut self, ranges: &NumberRanges) -> InstructionLabel {
        self.search_in(ranges, 0, ranges.ranges.len())
    }

    /// Finds the number among the ranges `from..to`.
    fn search_in(&mut self, ranges: &NumberRanges, from: usize, to: usize) -> InstructionLabel {
        if to - from == 1 {
            return self.leaf(ranges, from);
        }
        let middle = from.midpoint(to);
        let above = self.search_in(ranges, middle, to);
        let below = self.search_in(ranges, from, middle);
        self.branch(BPF_JGE, ranges.ranges[middle].first, above, below)
    }

    /// Inside one range: the picked numbers one by one, then the range's own target.
    fn leaf(&mut self, ranges: &NumberRanges, index: usize) -> InstructionLabel {
        let range = &ranges.ranges[index];
        let end = ranges.ranges.get(index + 1).map_or(u32::MAX, |next| next.first);
        let mut rest = self.target(range.target);
        for (number, target) in ranges.picked_in(range.first, end) {
            let picked = self.target(*target);
            rest = self.branch(BPF_JEQ, *number, picked, rest);
        }
        rest
    }

    fn target(&mut self, target: JumpTarget) -> InstructionLabel {
        self.target_after(target, None)
    }

    /// As `target`, when the machine already holds an argument under a mask.
    fn target_after(&mut self, target: JumpTarget, loaded: Option<(ArgumentWord, u32)>) -> InstructionLabel {
        match target {
            JumpTarget::Answer(answer) => self.result(answer),
            JumpTarget::Decision(rule) => self.decision(rule, loaded),
        }
    }

    fn decision(&mut self, rule: &'static CallRule, loaded: Option<(ArgumentWord, u32)>) -> InstructionLabel {
        let CallRule::When {
            word,
            mask,
            test,
            then,
            otherwise,
        } = rule
        else {
            return self.target(JumpTarget::of(rule, self.notify));
        };
        let needed = Some((*word, *mask));
        let must_load = loaded != needed;
        if let Some((_, _, label)) = self
            .decisions
            .iter()
            .find(|(built, load, _)| std::ptr::eq(*built, rule) && *load == must_load)
        {
            return *label;
        }
        let otherwise = self.target_after(JumpTarget::of(otherwise, self.notify), needed);
        let then = self.target_after(JumpTarget::of(then, self.notify), needed);
        let (operation, operand) = match *test {
            ArgumentTest::Equals(value) => (BPF_JEQ, value),
            ArgumentTest::AnyBit(bits) => (BPF_JSET, bits),
            ArgumentTest::AtLeast(value) => (BPF_JGE, value),
        };
        let mut start = self.branch(operation, operand, then, otherwise);
        if must_load {
            start = self.load_argument(*word, *mask, start);
        }
        self.decisions.push((rule, must_load, start));
        start
    }

    fn load_argument(&mut self, word: ArgumentWord, mask: u32, next: InstructionLabel) -> InstructionLabel {
        let offset = match word {
            ArgumentWord::Low(argument) => ARGUMENTS_AT + 8 * u32::from(argument),
            ArgumentWord::High(argument) => ARGUMENTS_AT + 8 * u32::from(argument) + 4,
        };
        if mask == u32::MAX {
            return self.load(offset, next);
        }
        let masked = self.before(BPF_ALU | BPF_AND | BPF_K, mask, next);
        self.load(offset, masked)
    }

    /// Loads the 32 bits at `offset`, then goes on at `next`.
    fn load(&mut self, offset: u32, next: InstructionLabel) -> InstructionLabel {
        self.before(BPF_LD | BPF_W | BPF_ABS, offset, next)
    }

    /// The end of the program with this answer; each answer is built once.
    fn result(&mut self, answer: u32) -> InstructionLabel {
        if let Some((_, label)) = self.results.iter().find(|(known, _)| *known == answer) {
            return *label;
        }
        let label = self.push(BPF_RET | BPF_K, answer, 0, 0);
        self.results.push((answer, label));
        label
    }

    fn branch(
        &mut self,
        operation: u32,
        operand: u32,
        then: InstructionLabel,
        otherwise: InstructionLabel,
    ) -> InstructionLabel {
        let then = self.near(then);
        let otherwise = self.near(otherwise);
        // `near` keeps both within reach of the eight bits that a conditional jump has.
        let offset = |label: InstructionLabel| u8::try_from(self.distance(label)).unwrap_or(u8::MAX);
        let (then, otherwise) = (offset(then), offset(otherwise));
        self.push(BPF_JMP | operation | BPF_K, operand, then, otherwise)
    }

    /// A label that a conditional jump built next, or after one more instruction, can reach.
    fn near(&mut self, label: InstructionLabel) -> InstructionLabel {
        if self.distance(label) < usize::from(u8::MAX) {
            label
        } else {
            self.jump(label)
        }
    }

    /// An instruction that runs straight into `next`.
    fn before(&mut self, code: u32, operand: u32, next: InstructionLabel) -> InstructionLabel {
        if self.distance(next) != 0 {
            self.jump(next);
        }
        self.push(code, operand, 0, 0)
    }

    fn jump(&mut self, label: InstructionLabel) -> InstructionLabel {
        // Programs end at 4096 instructions (BPF_MAXINSNS), far below 32 bits.
        let distance = u32::try_from(self.distance(label)).unwrap_or(u32::MAX);
        self.push(BPF_JMP | BPF_JA, distance, 0, 0)
    }

    /// How many instructions lie between the one built next and `label`.
    fn distance(&self, label: InstructionLabel) -> usize {
        self.backwards.len() - 1 - label.0
    }

    #[expect(clippy::cast_possible_truncation, reason = "every BPF code fits in eight bits")]
    fn push(&mut self, code: u32, operand: u32, then: u8, otherwise: u8) -> InstructionLabel {
        self.backwards.push(sock_filter {
            code: code as u16,
            jt: then,
            jf: otherwise,
            k: operand,
        });
        InstructionLabel(self.backwards.len() - 1)
    }
}
