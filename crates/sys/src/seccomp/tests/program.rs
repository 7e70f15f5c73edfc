//! The compiled program against the table, number by number.

use super::all_options;
use super::machine::{Call, run};
use crate::seccomp::emit::{self, ARCHITECTURE};
use crate::seccomp::rule::{ArgumentWord, CallRule, TableEntry};
use crate::seccomp::{FilterOptions, TableVerdict, compile, explain, known_names, table};
use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_USER_NOTIF};

const ENOSYS: u32 = SECCOMP_RET_ERRNO | 38;

/// What the table, read without the compiler, says about a call.
fn expected(options: &FilterOptions, number: u32, arguments: &[u64; 6]) -> u32 {
    let Some(entry) = table::by_number(number as usize) else {
        return ENOSYS;
    };
    match entry.rule(options).decide(arguments) {
        CallRule::Allow => SECCOMP_RET_ALLOW,
        CallRule::Observe | CallRule::Supply => SECCOMP_RET_USER_NOTIF,
        CallRule::Admit if options.notify => SECCOMP_RET_USER_NOTIF,
        CallRule::Admit => SECCOMP_RET_ERRNO | 11,
        CallRule::Mediate if options.notify => SECCOMP_RET_USER_NOTIF,
        CallRule::Mediate => SECCOMP_RET_ERRNO | 1,
        CallRule::Offer if options.notify => SECCOMP_RET_USER_NOTIF,
        CallRule::Offer => SECCOMP_RET_ALLOW,
        CallRule::Refuse(refusal) if refusal.notified && options.notify => SECCOMP_RET_USER_NOTIF,
        CallRule::Refuse(refusal) => SECCOMP_RET_ERRNO | u32::from(refusal.errno),
        CallRule::When { .. } => panic!("a decision ends in an outcome"),
    }
}

/// Arguments that rules compare with, their neighbours, and noise, repeatable.
struct Arguments(u64);

impl Arguments {
    fn next(&mut self) -> u64 {
        // xorshift64 (Marsaglia 2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn argument(&mut self) -> u64 {
        const INTERESTING: [u64; 48] = [
            0,
            1,
            2,
            3,
            4,
            5,
            6,
            10,
            16,
            17,
            22,
            35,
            40,
            58,
            62,
            78,
            79,
            80,
            262,
            0o100,
            0o20_000_000,
            0o4755,
            0o2755,
            0o755,
            0o020_644,
            0o060_644,
            0o100_644,
            0o010_644,
            0x5412,
            0x541c,
            0x541d,
            0x5423,
            0x5413,
            1024,
            1026,
            1038,
            1039,
            0x4030_5828,
            0x4030_582a,
            0x4030_5839,
            0x40000,
            0x1000_0000,
            0x4000_0000,
            0x0002_0000,
            0x5356_4d41,
            0x5961_6d61,
            0xffff_ffff,
            0x8_0001,
        ];
        let noise = self.next();
        let picked = INTERESTING[(noise >> 40) as usize % INTERESTING.len()];
        match noise & 7 {
            0 => noise,
            1 => picked | noise << 32,
            2 => picked | 1 << 32,
            _ => picked,
        }
    }

    fn six(&mut self) -> [u64; 6] {
        std::array::from_fn(|_| self.argument())
    }
}

/// Whether a rule looks at the high half of an argument, as only a test for a null pointer does.
fn looks_at_high_half(rule: &CallRule, argument: usize) -> bool {
    let CallRule::When {
        word, then, otherwise, ..
    } = rule
    else {
        return false;
    };
    matches!(word, ArgumentWord::High(read) if usize::from(*read) == argument)
        || looks_at_high_half(then, argument)
        || looks_at_high_half(otherwise, argument)
}

#[test]
fn only_the_new_limit_of_prlimit_is_a_pointer_to_the_filter() {
    for options in all_options() {
        let looks = |entry: &&TableEntry| (0..6).any(|argument| looks_at_high_half(entry.rule(&options), argument));
        let names: Vec<_> = table::entries().filter(looks).map(|entry| entry.name).collect();
        assert_eq!(names, ["prlimit64"]);
    }
}

#[test]
fn every_number_gets_what_the_table_says_under_all_options() {
    for options in all_options() {
        let program = emit::program(&options);
        for number in 0..1024 {
            let answer = run(&program, &Call::of(number, [0; 6]));
            assert_eq!(
                answer.action,
                expected(&options, number, &[0; 6]),
                "number {number} under {options:?}"
            );
        }
    }
}

#[test]
fn every_condition_decides_as_the_table_says_and_ignores_high_halves_of_numbers() {
    let mut arguments = Arguments(0x9e37_79b9_7f4a_7c15);
    for options in all_options() {
        let program = emit::program(&options);
        let conditional = table::entries().filter(|entry| matches!(entry.rule(&options), CallRule::When { .. }));
        for entry in conditional {
            for _ in 0..300 {
                let given = arguments.six();
                let answer = run(&program, &Call::of(entry.number, given)).action;
                assert_eq!(
                    answer,
                    expected(&options, entry.number, &given),
                    "{} {given:x?}",
                    entry.name
                );
                let raised: [u64; 6] = std::array::from_fn(|index| {
                    let noise = arguments.next() << 32;
                    let pointer = looks_at_high_half(entry.rule(&options), index);
                    if pointer { given[index] } else { given[index] ^ noise }
                });
                assert_eq!(
                    answer,
                    run(&program, &Call::of(entry.number, raised)).action,
                    "{} {raised:x?}",
                    entry.name
                );
            }
        }
    }
}

#[test]
fn every_other_architecture_is_killed_whatever_the_number() {
    let program = emit::program(&FilterOptions::default());
    for architecture in [
        0x4000_0003,
        0x4000_0028,
        0xc000_003e ^ 0xc000_00b7 ^ ARCHITECTURE,
        0,
        u32::MAX,
    ] {
        for number in 0..1024 {
            let call = Call {
                architecture,
                ..Call::of(number, [0; 6])
            };
            assert_eq!(run(&program, &call).action, SECCOMP_RET_KILL_PROCESS, "{call:x?}");
        }
    }
}

#[test]
fn x32_and_numbers_from_the_future_do_not_exist() {
    let program = emit::program(&FilterOptions::default());
    let x32 = (0..1024).map(|number| 0x4000_0000 | number);
    let future = [480, 1024, 0x3fff_ffff, 0x8000_0000, u32::MAX];
    for number in x32.chain(future) {
        assert_eq!(
            run(&program, &Call::of(number, [0; 6])).action,
            ENOSYS,
            "number {number:#x}"
        );
    }
}

/// A tenth of a microsecond an instruction at install, on a floor of 23 (measured on Linux 6.18).
#[test]
fn the_program_is_small() {
    let count = |options| compile(&options).instructions();
    let plain = count(FilterOptions::default());
    let longest = all_options().map(count).max().unwrap_or_default();
    println!("{plain} instructions, at most {longest} with options");
    assert!(plain <= 167, "{plain}");
    assert!(longest <= 197, "{longest}");
}

#[test]
fn at_most_220_calls_are_reachable() {
    let reachable = table::entries()
        .filter(|entry| !matches!(entry.rule, CallRule::Refuse(_)))
        .count();
    println!("{reachable} calls are reachable");
    assert!(reachable <= 220, "{reachable}");
}

/// The kernel answers from a bitmap what its simulation (`seccomp_is_const_allow`) finds to be allowed by number alone.
#[test]
fn calls_without_conditions_never_run_the_program() {
    let program = emit::program(&FilterOptions::default());
    for entry in table::entries().filter(|entry| matches!(entry.rule, CallRule::Allow)) {
        let answer = run(&program, &Call::of(entry.number, [0; 6]));
        assert!(!answer.looked_at_arguments, "{}", entry.name);
    }
}

#[test]
fn every_answer_comes_within_24_instructions() {
    let program = emit::program(&FilterOptions::default());
    let mut arguments = Arguments(7);
    for number in 0..1024 {
        let answer = run(&program, &Call::of(number, arguments.six()));
        assert!(answer.steps <= 24, "number {number} takes {} steps", answer.steps);
    }
}

#[test]
fn every_line_explains_itself() {
    for name in known_names() {
        let explanation = explain(name).expect("a known name");
        assert_eq!(explanation.name, name);
        assert!(explanation.reason.len() >= 4, "{name}: {}", explanation.reason);
        if let TableVerdict::Refused { errno } = explanation.verdict {
            let fallback = name == "fallocate" && errno == libc::EOPNOTSUPP;
            assert!(
                fallback || matches!(errno, libc::EPERM | libc::ENOSYS),
                "{name}: {errno}"
            );
        }
    }
    assert_eq!(
        explain("mount").expect("known").verdict,
        TableVerdict::Refused { errno: libc::EPERM }
    );
    assert_eq!(
        explain("clone3").expect("known").verdict,
        TableVerdict::Refused { errno: libc::ENOSYS }
    );
    assert_eq!(explain("read").expect("known").verdict, TableVerdict::Allowed);
    assert_eq!(explain("ioctl").expect("known").verdict, TableVerdict::Conditional);
    assert_eq!(explain("no_such_call"), None);
}

/// The kernel's own entries of user probes; newer kernels do not ask any filter about them.
#[cfg(target_arch = "x86_64")]
#[test]
fn user_probes_are_not_in_the_table() {
    let longest_list = FilterOptions {
        allow_ptrace: true,
        ..FilterOptions::default()
    };
    for number in [335, 336] {
        assert!(table::by_number(number as usize).is_none(), "number {number}");
        assert_eq!(
            run(&emit::program(&longest_list), &Call::of(number, [0; 6])).action,
            ENOSYS
        );
    }
}
