//! The table: every system call that this release knows, its verdict, and who needs it or why it is refused.
//!
//! A call that is not here does not exist for the program (`ENOSYS`), so a kernel that gains calls gains no surface. The
//! lines are grouped by topic; a verdict is one of
//!
//! * `allow`: carried out,
//! * `check`: carried out or not by its arguments ([`super::conditions`]),
//! * `refuse`: `EPERM`, and the supervisor is told, because no ordinary program does this,
//! * `quiet`: `EPERM`, without a record, because ordinary programs try it and live with the answer,
//! * `absent`: `ENOSYS`, for calls that programs probe and then do without,
//! * `debugger`: `refuse`, unless debuggers are allowed.
//!
//! Two numbers are beyond any table: the kernel lets `uretprobe` (335) and `uprobe` (336) of x86-64 pass every filter
//! (`kernel/seccomp.c`); outside a probe of the kernel's the first ends the program and the second fails. To a kernel that
//! does ask, the filter answers that they do not exist.

use super::rule::TableEntry;

macro_rules! allow {
    ($number:ident, $who:literal) => {
        $crate::seccomp::rule::entry(
            stringify!($number),
            $number,
            &$crate::seccomp::conditions::ALLOW,
            None,
            $who,
        )
    };
}
macro_rules! check {
    ($number:ident, $rule:ident, $who:literal) => {
        $crate::seccomp::rule::entry(
            stringify!($number),
            $number,
            &$crate::seccomp::conditions::$rule,
            None,
            $who,
        )
    };
}
macro_rules! refuse {
    ($number:ident, $why:literal) => {
        check!($number, REFUSED, $why)
    };
}
macro_rules! quiet {
    ($number:ident, $why:literal) => {
        check!($number, REFUSED_QUIETLY, $why)
    };
}
macro_rules! absent {
    ($number:ident, $why:literal) => {
        check!($number, ABSENT, $why)
    };
}
/// A call whose rule an option replaces: `switch!(SYS_x, RULE, option => OTHER_RULE, "…")`.
macro_rules! switch {
    ($number:ident, $rule:ident, $option:ident => $other:ident, $who:literal) => {
        $crate::seccomp::rule::entry(
            stringify!($number),
            $number,
            &$crate::seccomp::conditions::$rule,
            Some($crate::seccomp::rule::RuleSwitch {
                option: |options| options.$option,
                rule: &$crate::seccomp::conditions::$other,
            }),
            $who,
        )
    };
}
/// As `switch`, and a second option that counts where the first is off.
macro_rules! switches {
    ($number:ident, $rule:ident, $option:ident => $other:ident, $second:ident => $another:ident, $who:literal) => {
        switch!($number, $rule, $option => $other, $who)
            .or(|options| options.$second, &$crate::seccomp::conditions::$another)
    };
}
macro_rules! debugger {
    ($number:ident, $why:literal) => {
        switch!($number, REFUSED, allow_ptrace => ALLOW, $why)
    };
}

// After the macros, which they use.
mod exchange;
mod files;
mod kernel;
mod programs;

/// Every topic.
static TOPICS: &[&[TableEntry]] = &[
    files::CONTENT,
    files::NAMES,
    files::ATTRIBUTES,
    files::OLD,
    programs::MEMORY,
    programs::THREADS,
    programs::PROCESSES,
    programs::OLD,
    programs::DEBUGGING,
    programs::IDENTITY,
    programs::SIGNALS,
    programs::SCHEDULING,
    programs::TIME,
    exchange::SOCKETS,
    exchange::EVENTS,
    exchange::OLD,
    exchange::SYSTEM_V,
    exchange::ASYNCHRONOUS,
    kernel::MOUNTS,
    kernel::MACHINE,
    kernel::INSIGHT,
    kernel::SELF_RESTRICTION,
    kernel::OLD,
];

/// One more than the newest number in the table; at this one and above, nothing exists.
pub(super) const END: usize = 480;

static BY_NUMBER: [Option<&TableEntry>; END] = index();

/// Puts every entry at its number; two entries for one number do not compile.
const fn index() -> [Option<&'static TableEntry>; END] {
    let mut by_number = [None; END];
    let mut topic = 0;
    while topic < TOPICS.len() {
        let entries = TOPICS[topic];
        let mut line = 0;
        while line < entries.len() {
            let number = entries[line].number as usize;
            assert!(by_number[number].is_none(), "two lines for one system call");
            by_number[number] = Some(&entries[line]);
            line += 1;
        }
        topic += 1;
    }
    by_number
}

/// The line of a system call number.
pub(super) fn by_number(number: usize) -> Option<&'static TableEntry> {
    BY_NUMBER.get(number).copied().flatten()
}

/// Every line, by number.
pub(super) fn entries() -> impl Iterator<Item = &'static TableEntry> {
    BY_NUMBER.iter().copied().flatten()
}
