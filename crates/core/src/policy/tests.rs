use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::monitor::{MonitorAction, MonitorFigure};
use crate::spec::WorkspaceSpec;

fn refused(text: &str) -> String {
    Policy::parse(text).unwrap_err().to_string()
}

#[test]
fn a_full_policy_is_read() {
    let policy = Policy::parse(
        r#"
        level = "process"
        min_level = "process-landlock"
        degrade = "allow"
        network = "none"
        ids = "range"
        allow_ptrace = true
        warm = 2
        toolchains = ["pyenv", "/opt/x"]

        [filesystem]
        workspace = "rw"
        read = ["~/data"]
        deny = ["**/.env"]

        [[mount]]
        source = "/srv"
        target = "/data"
        access = "rw"

        [[tmpfs]]
        target = "/scratch"
        size = "64M"

        [commands]
        allow = []
        deny = ["curl"]

        [env]
        pass = ["CI"]
        set = { A = "1" }

        [limits]
        memory = "512M"
        pids = 64
        cpus = 1.5
        wall_time = "unlimited"

        [lifecycle]
        idle = "10m"
        checkpoint_before = ["rm -rf"]
        checkpoint_keep = 3
        ask_before = ["git push"]
        ask_before_restore = true
        "#,
    )
    .unwrap();
    let lifecycle = LifecyclePolicy {
        idle: Some(Millis(600_000)),
        checkpoint_before: vec!["rm -rf".parse().unwrap()],
        checkpoint_keep: Some(3),
        ask_before: vec!["git push".parse().unwrap()],
        ask_before_restore: true,
        ..LifecyclePolicy::default()
    };
    assert_eq!(policy.lifecycle, lifecycle);
    for wrong in [
        "idle = \"soon\"",
        "checkpoint_before = [\"-rf\"]",
        "checkpoint_keep = 0",
        "ask_before = [\"./push\"]",
        "ask_before_restore = 1",
        "sleep = 1",
    ] {
        assert!(
            refused(&format!("[lifecycle]\n{wrong}")).starts_with("line 2, column "),
            "{wrong}"
        );
    }
    let mut spec = SandboxSpec {
        workspace: Some(WorkspaceSpec {
            path: "/w".into(),
            mode: WorkspaceMode::Overlay,
        }),
        ..SandboxSpec::default()
    };
    policy.apply_to(&mut spec);
    assert_eq!(spec.level, LevelChoice::Exactly(Level::Process));
    assert_eq!(spec.min_level, Some(Level::ProcessLandlock));
    assert_eq!(spec.degrade, DegradeMode::Allow);
    assert_eq!(spec.ids, Some(IdChoice::Range));
    assert!(spec.allow_ptrace);
    assert_eq!(spec.warm, 2);
    assert_eq!(spec.workspace.map(|workspace| workspace.mode), Some(WorkspaceMode::Rw));
    assert_eq!(
        spec.mounts,
        [MountSpec {
            source: "/srv".into(),
            target: "/data".into(),
            access: MountAccess::Rw
        }]
    );
    assert_eq!(
        spec.tmpfs,
        [TmpfsSpec {
            target: "/scratch".into(),
            size: Some(Bytes::mib(64))
        }]
    );
    assert_eq!(spec.toolchains, ["pyenv", "/opt/x"]);
    assert!(
        !spec.commands.decide(Path::new("/usr/bin/true")).allowed,
        "an empty allow list allows nothing"
    );
    assert_eq!(spec.env.set, [("A".into(), "1".into())]);
    assert_eq!(spec.limits.memory, Some(Bytes::mib(512)));
    assert_eq!(spec.limits.pids, Some(64));
    assert_eq!(spec.limits.get(LimitName::Cpus), Some(1500));
    assert_eq!(spec.limits.wall_time, None);
}

#[test]
fn an_empty_policy_changes_nothing() {
    assert_eq!(Policy::parse("").unwrap(), Policy::default());
}

#[test]
fn errors_say_where_and_what() {
    for (text, expected) in [
        (
            "levle = \"process\"",
            "line 1, column 1: unknown field `levle`, expected one of ",
        ),
        (
            "\n[filesystem]\n  raed = []",
            "line 3, column 3: unknown field `raed`, expected one of ",
        ),
        ("[[mount]]\nsource = \"/a\"", "line 1, column 1: missing field `target`"),
        (
            "[[mount]]\nsource = \"/a\"\ntarget = \"/b\"\nmode = 1",
            "line 4, column 1: unknown field `mode`",
        ),
        (
            "level = \"vm\"",
            "line 1, column 9: `vm` is not a level: expected auto, ",
        ),
        ("warm = 9", "line 1, column 8: `warm` is a number from 0 to 8"),
        (
            "warm = \"two\"",
            "line 1, column 8: invalid type: string \"two\", expected a number",
        ),
        (
            "env = 3",
            "line 1, column 7: invalid type: integer `3`, expected a table",
        ),
        (
            "[[mount]]\nsource = \"/a\"\ntarget = \"/b\"\n[filesystem]\nread = \"a\"",
            "line 5, column 8: invalid type: string \"a\", expected a list",
        ),
        ("[[tmpfs]]\ntarget = \"a\"", "line 2, column 10: `a` is not absolute"),
        (
            "[[mount]]\nsource = \"/a\"\ntarget = \"/\"",
            "line 3, column 10: nothing is mounted at `/`",
        ),
        (
            "mount = [1]",
            "line 1, column 10: invalid type: integer `1`, expected a table",
        ),
        ("warm = -1", "line 1, column 8: `warm` is a number from 0 to 8"),
        ("degrade = \"yes\"", "line 1, column 11: unknown variant `yes`"),
        (
            "[limits]\nmemory = \"-1\"",
            "line 2, column 10: limit `memory`: `-1` is negative",
        ),
        (
            "[limits]\nmemory = -1",
            "line 2, column 10: limit `memory`: `-1` is negative",
        ),
        (
            "[limits]\npids = 0",
            "line 2, column 8: limit `pids`: `0` is less than 4",
        ),
        ("[limits]\nmemory = 18446744073709551616", "line 2, column 10: "),
        ("[limits]\nram = 1", "line 2, column 1: unknown variant `ram`"),
        (
            "[limits]\ncpus = nan",
            "line 2, column 8: limit `cpus`: `NaN` is not a number",
        ),
        (
            "[filesystem]\ndeny = [\"a\", \"b/../c\"]",
            "line 2, column 14: path pattern `b/../c` contains `..`",
        ),
        (
            "[commands]\ndeny = [\"bin/x\"]",
            "line 2, column 9: command `bin/x` is neither a name nor an absolute path",
        ),
        (
            "[env]\npass = [\"A=B\"]",
            "line 2, column 9: the name of environment variable `A=B` contains `=`",
        ),
        (
            "[env.set]\n\"A=B\" = \"\"",
            "line 2, column 1: the name of environment variable `A=B` contains `=`",
        ),
        (
            "[env.set]\nA = \"\\u0000\"",
            "line 2, column 1: the value of environment variable `A` contains a NUL byte",
        ),
        (
            "[[tmpfs]]\ntarget = \"/a\"\nsize = 0",
            "line 3, column 8: a size of 0 holds nothing",
        ),
        (
            "network = \"host\"",
            "line 1, column 11: invalid value: string \"host\", expected \"none\", or a table with the keys `allow`, `ask` and `deny`",
        ),
        (
            "[network]\nallow = [\n  \"example.com\",\n  \"*\",\n]",
            "line 4, column 3: ",
        ),
        ("[network]\nallow = [\"*.com\"]", "line 2, column 10: "),
        ("[network]\nallowed = []", "line 2, column 1: unknown field `allowed`"),
        ("a = 1\na = 2", "line 2, column 1: duplicate key"),
        ("é = \"", "line 1, column "),
        ("level = \"process\"\nlevel", "line 2, column "),
    ] {
        let message = refused(text);
        assert!(
            message.starts_with(expected),
            "{text:?}\n got: {message}\nwant: {expected}"
        );
    }
}

#[test]
fn every_documented_key_is_read() {
    for doc in reference() {
        let text = match (doc.key.split_once("[]."), doc.key.split_once('.')) {
            (Some((table, key)), _) => {
                let rest = match (table, key) {
                    ("mount", "source") => "target = \"/t\"",
                    ("mount", "target") => "source = \"/s\"",
                    ("mount", _) => "source = \"/s\"\ntarget = \"/t\"",
                    ("volume", "name") => "target = \"/t\"",
                    ("volume", "target") => "name = \"s\"",
                    ("volume", _) => "name = \"s\"\ntarget = \"/t\"",
                    ("tmpfs", "size") => "target = \"/t\"",
                    ("tool", "name") => "program = [\"x\"]",
                    ("tool", "program" | "url" | "mcp") => "name = \"t\"",
                    ("tool", "headers") => "name = \"t\"\nurl = \"https://a.example/\"",
                    ("tool", "mcp_tool") => "name = \"t\"\nmcp = [\"x\"]",
                    ("tool", _) => "name = \"t\"\nprogram = [\"x\"]",
                    ("monitor", "name") => "",
                    ("monitor", _) => "name = \"port-scan\"",
                    ("network.secret", _) => &required_of_secrets(key),
                    _ => "",
                };
                format!("[[{table}]]\n{key} = {}\n{rest}", doc.example)
            }
            (None, Some((table, key))) => format!("[{table}]\n{key} = {}", doc.example),
            (None, None) => format!("{} = {}", doc.key, doc.example),
        };
        assert!(Policy::parse(&text).is_ok(), "{text}\n{}", refused(&text));
        assert!(!doc.doc.is_empty() && !doc.doc.ends_with('.'), "{}", doc.key);
    }
}

/// What every secret has, but for `key`.
fn required_of_secrets(key: &str) -> String {
    let required = [
        ("name", "name = \"K\"\n"),
        ("source", "source = \"env:V\"\n"),
        ("hosts", "hosts = [\"a.example\"]\n"),
    ];
    required
        .iter()
        .filter(|(name, _)| *name != key)
        .map(|(_, line)| *line)
        .collect()
}

#[test]
fn secrets_are_read_and_wrong_ones_are_refused_where_they_stand() {
    let secret = |text: &str| format!("[network]\nallow = [\"a.example\"]\n[[network.secret]]\n{text}");
    let right = secret("name = \"K\"\nsource = \"file:/k\"\nhosts = [\"a.example\"]\nplaces = [\"bearer\"]\n");
    let spec = Policy::parse(&right).unwrap().network.unwrap();
    assert_eq!(spec.secrets[0].to_string(), "K=file:/k@a.example#bearer");
    for (text, expected) in [
        (
            "name = \"K\"\nsource = \"env:V\"\nhosts = []",
            "line 3, column 1: secret `K` names no host",
        ),
        ("name = \"K\"\nsource = \"env:V\"", "missing field `hosts`"),
        (
            "name = \"1\"\nsource = \"env:V\"\nhosts = [\"a.example\"]",
            "no name of a variable",
        ),
        (
            "name = \"K\"\nsource = \"hunter2\"\nhosts = [\"a.example\"]",
            "no source",
        ),
        (
            "name = \"K\"\nvalue = \"hunter2\"\nhosts = [\"a.example\"]",
            "unknown field `value`",
        ),
    ] {
        let message = refused(&secret(text));
        assert!(
            message.contains(expected) && !message.contains("hunter2"),
            "{text}: {message}"
        );
    }
    let twice = format!("{right}[[network.secret]]\nname = \"K\"\nsource = \"env:V\"\nhosts = [\"b.example\"]");
    assert!(refused(&twice).contains("twice"), "{}", refused(&twice));
}

/// The parser lists the keys that it knows when it meets one that it does not.
#[test]
fn every_key_that_is_read_is_documented() {
    let documented: Vec<String> = reference().into_iter().map(|doc| doc.key).collect();
    for (before, prefix) in [
        ("", ""),
        ("[filesystem]\n", "filesystem."),
        ("[[mount]]\n", "mount[]."),
        ("[[volume]]\n", "volume[]."),
        ("[[tmpfs]]\n", "tmpfs[]."),
        ("[[tool]]\n", "tool[]."),
        ("[commands]\n", "commands."),
        ("[env]\n", "env."),
        ("[limits]\n", "limits."),
        ("[network]\n", "network."),
        ("[[network.secret]]\n", "network.secret[]."),
    ] {
        let message = refused(&format!("{before}no_such_key = 1"));
        let known: Vec<&str> = message.split('`').skip(3).step_by(2).collect();
        assert!(known.len() >= 2, "{message}");
        for key in &known {
            assert!(documented.contains(&format!("{prefix}{key}")), "{prefix}{key}");
        }
        let here = |key: &&String| key.strip_prefix(prefix).is_some_and(|rest| !rest.contains('.'));
        assert_eq!(documented.iter().filter(here).count(), known.len(), "{prefix}");
    }
}

proptest! {
    #[test]
    fn flags_win_over_policy_and_policy_over_defaults(policy_mib in 8_u64..100_000, flag_mib in 8_u64..100_000) {
        let policy = Policy::parse(&format!("[limits]\nmemory = \"{policy_mib}M\"")).unwrap();
        let mut spec = SandboxSpec::default();
        policy.apply_to(&mut spec);
        prop_assert_eq!(spec.limits.memory, Some(Bytes::mib(policy_mib)));
        prop_assert_eq!(spec.limits.swap, Limits::default().swap);
        spec.limits.set(LimitName::Memory, &format!("{flag_mib}M")).unwrap();
        prop_assert_eq!(spec.limits.memory, Some(Bytes::mib(flag_mib)));
    }

    #[test]
    fn a_deny_survives_every_further_policy(names in prop::collection::vec("[a-z]{1,6}", 1..5)) {
        let mut spec = SandboxSpec::default();
        for name in &names {
            let text = format!("[commands]\nallow = [\"*\"]\ndeny = [\"{name}\"]\n[filesystem]\ndeny = [\"/{name}\"]");
            Policy::parse(&text).unwrap().apply_to(&mut spec);
        }
        for name in &names {
            prop_assert!(!spec.commands.decide(&Path::new("/usr/bin").join(name)).allowed);
            prop_assert_eq!(spec.paths.deny.iter().filter(|deny| deny.to_string() == format!("/{name}")).count(),
                            names.iter().filter(|other| *other == name).count());
        }
    }

    #[test]
    fn no_text_panics(text: String) {
        let _ = Policy::parse(&text);
    }
}

#[test]
fn rules_of_the_network_are_read_and_none_that_allows_is_no_network() {
    let network = |text: &str| {
        let mut spec = SandboxSpec::default();
        Policy::parse(text).unwrap().apply_to(&mut spec);
        spec.network
    };
    let rules = network("[network]\nallow = [\"pypi.org\", \"github.com:22\"]\ndeny = [\"x.pypi.org\"]");
    let texts: Vec<String> = rules.policy.rules.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "network.allow: pypi.org",
            "network.allow: github.com:22",
            "network.deny: x.pypi.org"
        ]
    );
    for text in [
        "network = \"none\"",
        "[network]",
        "[network]\ndeny = [\"a.example\"]",
        "",
    ] {
        assert!(!network(text).reaches_out(), "{text}");
    }
}

#[test]
fn rules_of_monitoring_are_read_checked_and_handed_on() {
    let text = "[[monitor]]\nname = \"fork-storm\"\naction = \"kill\"\n\n[[monitor]]\nname = \"own\"\nwatch = \"sent\"\n\
        threshold = 5\nwindow = \"1m\"\naction = \"throttle\"\n";
    let policy = Policy::parse(text).unwrap();
    let [storm, own] = &policy.monitors[..] else {
        panic!("{policy:?}");
    };
    assert_eq!((storm.action, storm.threshold), (MonitorAction::Kill, 1500));
    assert_eq!(
        (own.watch, own.window, own.action),
        (MonitorFigure::Sent, Millis(60_000), MonitorAction::Throttle)
    );
    let mut spec = SandboxSpec::default();
    policy.apply_to(&mut spec);
    assert_eq!(spec.monitors, policy.monitors);
    for (wrong, line) in [
        ("name = \"own\"", 2),
        ("name = \"fork-storm\"\nwindow = \"1ms\"", 3),
        ("name = \"fork-storm\"\nthreshold = -1", 3),
        ("name = \"fork-storm\"\naction = \"shout\"", 3),
        ("name = \"own\"\nwatch = \"disk\"\nthreshold = 1", 3),
        ("name = \"fork-storm\"\n[[monitor]]\nname = \"fork-storm\"", 4),
        ("name = \"fork-storm\"\nlevel = 1", 3),
    ] {
        let told = refused(&format!("[[monitor]]\n{wrong}"));
        assert!(told.starts_with(&format!("line {line}, column ")), "{wrong}: {told}");
    }
}
