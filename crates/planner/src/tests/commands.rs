use offleash_core::level::Level;

use super::*;

#[test]
fn denied_commands_are_hidden_by_every_name() {
    let (_directory, host) = host_with_home();
    let bin = host.cwd.join("tool/bin");
    executable(&bin.join("real"), "#!/bin/sh\n");
    fs::hard_link(bin.join("real"), bin.join("twin")).unwrap();
    symlink("real", bin.join("alias")).unwrap();
    executable(&bin.join("other"), "#!/bin/sh\n");
    for denied in ["real", "twin", "alias", "al*", &format!("{}/alias", bin.display())] {
        let mut spec = spec(&host, &format!("[commands]\ndeny = [\"{denied}\"]"));
        spec.toolchains = vec![host.cwd.join("tool").into()];
        let (plan, _) = plan_of(&spec, &host, "other").unwrap();
        assert!(
            is_hidden(&plan, &bin.join("real")) && is_hidden(&plan, &bin.join("twin")),
            "{denied}"
        );
        assert!(
            !is_hidden(&plan, &bin.join("other")) && !is_hidden(&plan, &bin.join("alias")),
            "{denied}"
        );
        let name = if denied.starts_with('/') {
            denied
        } else {
            denied.trim_end_matches('*')
        };
        let name = if name == "al" { "alias" } else { name };
        assert!(
            matches!(plan_of(&spec, &host, name), Err(PlanError::CommandDenied { .. })),
            "{denied}"
        );
    }
}

#[test]
fn what_is_allowed_brings_its_interpreters() {
    let (_directory, host) = host_with_home();
    executable(&host.cwd.join("tool/bin/script"), "#!/usr/bin/env sh\n");
    let mut spec = spec(&host, "[commands]\nallow = [\"script\"]");
    spec.toolchains = vec![host.cwd.join("tool").into()];
    let (plan, _) = plan_of(&spec, &host, "script").unwrap();
    let names = |name: &str| {
        plan.executables
            .iter()
            .any(|path| path.file_name().is_some_and(|found| found == name))
    };
    let shell = fs::canonicalize("/bin/sh").unwrap();
    assert!(
        names("script") && names("env") && plan.executables.contains(&shell),
        "{:?}",
        plan.executables
    );
    assert!(
        plan.executables
            .iter()
            .any(|path| path.to_str().unwrap().contains("/ld-")),
        "{:?}",
        plan.executables
    );
    assert!(!names("ls"));
    assert!(matches!(
        plan_of(&spec, &host, "ls"),
        Err(PlanError::CommandDenied { .. })
    ));
}

#[test]
fn an_empty_allow_list_runs_nothing() {
    let (_directory, host) = host_with_home();
    for policy in ["[commands]\nallow = []", "[commands]\nallow = [\"no-such-program\"]"] {
        for command in ["true", "no-such-program"] {
            let result = plan_of(&spec(&host, policy), &host, command);
            assert!(
                matches!(result, Err(PlanError::CommandDenied { .. })),
                "{policy} {command}"
            );
        }
    }
    assert!(
        plan_of(&spec(&host, ""), &host, "true")
            .unwrap()
            .0
            .executables
            .is_empty()
    );
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let (_directory, host) = host_with_home();
    let spec = spec(&host, "");
    let run = |command: &[OsString]| resolve(&spec, &host, command, "r1".parse().unwrap(), Path::new("/run"));
    assert!(matches!(run(&[]), Err(PlanError::NoCommand)));
    assert!(matches!(run(&["".into()]), Err(PlanError::NoCommand)));
    assert!(matches!(
        run(&["a".into(), "b\0".into()]),
        Err(PlanError::NulInArgument { position: 1 })
    ));
}

#[test]
fn a_command_that_is_only_outside_says_how_to_get_it_inside() {
    let (_directory, mut host) = host_with_home();
    let home = host.home.clone().unwrap();
    executable(&home.join(".cargo/bin/cargo"), "");
    executable(&home.join("mine/tool"), "");
    host.env = vec![(
        "PATH".into(),
        std::env::join_paths([home.join(".cargo/bin"), home.join("mine")]).unwrap(),
    )];
    let hint = |name: &str| find_outside(OsStr::new(name), Level::Process, &host);
    assert!(hint("cargo").unwrap().ends_with("grant it with `--toolchain cargo`"));
    assert!(
        hint("tool")
            .unwrap()
            .ends_with(&format!("grant it with `--toolchain {}`", home.join("mine").display()))
    );
    assert_eq!(hint("no-such-program"), None);
    let tool = home.join("mine/tool").display().to_string();
    assert!(
        hint(&tool)
            .unwrap()
            .starts_with(&format!("`{tool}` is on the host and not inside; "))
    );
    // What is inside as well is not found for another reason.
    host.env = vec![("PATH".into(), "/usr/bin".into())];
    let hint = |level| find_outside(OsStr::new("env"), level, &host).unwrap();
    let inside = hint(Level::Process);
    assert!(inside.contains("`PATH`") && !inside.contains("--toolchain"), "{inside}");
    // Where no program of the host runs, it is not for want of a name.
    for level in [Level::Wasm, Level::Simulated] {
        let hint = hint(level);
        assert!(
            hint.contains("runs no program of the host") && !hint.contains("`PATH`"),
            "{hint}"
        );
    }
}

#[test]
fn an_interpreter_that_is_a_pipe_is_not_waited_for() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let (_directory, host) = host_with_home();
    let bin = host.cwd.join("tool/bin");
    executable(&bin.join("script"), &format!("#!{}/pipe\n", bin.display()));
    mknodat(CWD, bin.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let mut spec = spec(&host, "[commands]\nallow = [\"script\"]");
    spec.toolchains = vec![host.cwd.join("tool").into()];
    let (plan, _) = plan_of(&spec, &host, "script").unwrap();
    assert!(plan.executables.contains(&bin.join("script")), "{:?}", plan.executables);
}
