//! Tests of what requests for commands mean, and of how their ends are told.

use std::collections::BTreeMap;

use super::super::messages::process::PtySize;
use super::*;

fn config(command: &str) -> ProcessConfig {
    ProcessConfig {
        cmd: command.to_owned(),
        ..ProcessConfig::default()
    }
}

fn started(process: ProcessConfig, pty: Option<Pty>, stdin: Option<bool>) -> Result<StartExec, (ConnectCode, String)> {
    let request = StartRequest {
        process: Some(process),
        pty,
        stdin,
        ..StartRequest::default()
    };
    start_exec(request, &BTreeMap::new(), None, None).map_err(told)
}

fn told(failure: ServiceFailure) -> (ConnectCode, String) {
    match failure {
        ServiceFailure::Told(error) => (error.code, error.message),
        ServiceFailure::Gone => panic!("gone"),
    }
}

#[test]
fn a_command_gets_input_unless_it_is_told_not_to() {
    assert!(started(config("a"), None, None).unwrap().stdin);
    assert!(!started(config("a"), None, Some(false)).unwrap().stdin);
    assert!(started(config("a"), Some(Pty::default()), Some(false)).unwrap().stdin);
}

fn tagged(tag: &str) -> Result<StartExec, (ConnectCode, String)> {
    let request = StartRequest {
        process: Some(config("a")),
        tag: Some(tag.to_owned()),
        ..StartRequest::default()
    };
    start_exec(request, &BTreeMap::new(), None, None).map_err(told)
}

#[test]
fn tags_are_bounded() {
    assert_eq!(tagged(&"t".repeat(256)).unwrap().tag.map(|tag| tag.len()), Some(256));
    assert_eq!(tagged(&"t".repeat(257)).unwrap_err().0, ConnectCode::InvalidArgument);
}

#[test]
fn nobody_passes_a_command_for_an_interpreter() {
    for rest in ["python", "python:default", "bash:default"] {
        let forged = format!("offleash-context:{}:{rest}", "0123456789abcdef".repeat(2));
        assert_eq!(tagged(&forged).unwrap_err().0, ConnectCode::InvalidArgument, "{forged}");
    }
    assert!(tagged("offleash-context").is_ok());
}

#[test]
fn variables_of_a_command_win_over_those_of_the_sandbox() {
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    let request = StartRequest {
        process: Some(ProcessConfig {
            envs: map(&[("B", "mine"), ("C", "mine")]),
            ..config("a")
        }),
        ..StartRequest::default()
    };
    let everywhere = map(&[("A", "everywhere"), ("B", "everywhere")]);
    let start = start_exec(request, &everywhere, None, None).map_err(told).unwrap();
    let pair = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    assert_eq!(
        start.env,
        [pair("A", "everywhere"), pair("B", "mine"), pair("C", "mine")]
    );
}

#[test]
fn terminals_have_a_size() {
    let sized = |cols, rows| Pty {
        size: Some(PtySize { cols, rows }),
    };
    let tty = |pty| started(config("a"), Some(pty), None).map(|start| start.tty);
    assert_eq!(tty(sized(100, 30)), Ok(Some((30, 100))));
    assert_eq!(tty(sized(0, 0)), Ok(Some((24, 80))));
    assert_eq!(tty(Pty::default()), Ok(Some((24, 80))));
    assert_eq!(tty(sized(65_536, 0)).unwrap_err().0, ConnectCode::InvalidArgument);
}

#[test]
fn the_directory_is_left_to_the_supervisor_where_it_is_the_home() {
    for (cwd, expected) in [
        (None, None),
        (Some(""), None),
        (Some("~"), None),
        (Some("~/x"), Some("x")),
        (Some("x/y"), Some("x/y")),
        (Some("/x/../y"), Some("/x/../y")),
    ] {
        let process = ProcessConfig {
            cwd: cwd.map(str::to_owned),
            ..config("a")
        };
        let found = started(process, None, None).unwrap().cwd;
        assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{cwd:?}");
    }
}

#[test]
fn what_cannot_be_executed_is_refused() {
    let variables = |name: &str, value: &str| ProcessConfig {
        envs: BTreeMap::from([(name.to_owned(), value.to_owned())]),
        ..config("a")
    };
    let argument = ProcessConfig {
        args: vec!["a\0b".to_owned()],
        ..config("a")
    };
    let home = ProcessConfig {
        cwd: Some("~root".to_owned()),
        ..config("a")
    };
    for process in [
        config(""),
        ProcessConfig::default(),
        config("a\0"),
        argument,
        home,
        variables("", "x"),
        variables("A=B", "x"),
        variables("A\0", "x"),
        variables("A", "x\0y"),
    ] {
        let (code, _) = started(process.clone(), None, None).unwrap_err();
        assert_eq!(code, ConnectCode::InvalidArgument, "{process:?}");
    }
}

#[test]
fn ends_are_told_in_the_words_of_go() {
    let told = |ended| {
        let end = end(&ended).unwrap();
        (end.exit_code, end.exited, end.status, end.error)
    };
    assert_eq!(
        told(ExecEnd::Exited { code: 0 }),
        (0, true, "exit status 0".to_owned(), None)
    );
    let failed = "exit status 3".to_owned();
    assert_eq!(
        told(ExecEnd::Exited { code: 3 }),
        (3, true, failed.clone(), Some(failed))
    );
    let killed = "signal: killed".to_owned();
    assert_eq!(
        told(ExecEnd::Signaled { signal: 9 }),
        (-1, false, killed.clone(), Some(killed))
    );
    assert_eq!(told(ExecEnd::Signaled { signal: 40 }).2, "signal: signal 40");
    assert_eq!(end(&ExecEnd::Lost), None);
}

#[test]
fn output_comes_in_pieces_that_clients_take() {
    let sizes = |stream, length: usize, is_terminal| -> Vec<(usize, usize, usize)> {
        let length_of = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        output(stream, vec![b'x'; length], is_terminal)
            .map(|event| event.data.unwrap())
            .map(|data| (length_of(&data.stdout), length_of(&data.stderr), length_of(&data.pty)))
            .collect()
    };
    assert_eq!(sizes(OutputStream::Stdout, 3, false), [(3, 0, 0)]);
    assert_eq!(
        sizes(OutputStream::Stderr, 65_536, false),
        [(0, 32_768, 0), (0, 32_768, 0)]
    );
    assert_eq!(
        sizes(OutputStream::Stdout, 20_000, true),
        [(0, 0, 16_384), (0, 0, 3616)]
    );
}

#[test]
fn processes_are_selected_by_pid_or_tag() {
    let by = |pid, tag: Option<&str>| {
        selector(Some(ProcessSelector {
            pid,
            tag: tag.map(str::to_owned),
        }))
    };
    assert_eq!(by(Some(7), None), Ok(Selector::Pid(7)));
    assert_eq!(by(None, Some("t")), Ok(Selector::Tag("t".to_owned())));
    assert_eq!(by(None, None).unwrap_err().code, ConnectCode::InvalidArgument);
    assert_eq!(selector(None).unwrap_err().code, ConnectCode::InvalidArgument);
    let (code, message) = told(no_process(SupervisorError::NoProcess, &Selector::Pid(7)));
    assert_eq!(
        (code, message.as_str()),
        (ConnectCode::NotFound, "process with pid 7 not found")
    );
}

#[test]
fn a_missing_directory_is_named() {
    let cwd = || Some("/gone".to_owned());
    let (code, message) = told(not_started(SupervisorError::Directory { errno: 2 }, "ls", cwd()));
    assert_eq!(
        (code, message.as_str()),
        (ConnectCode::InvalidArgument, "cwd '/gone' does not exist")
    );
    let (code, _) = told(not_started(SupervisorError::NotFound, "nope", None));
    assert_eq!(code, ConnectCode::InvalidArgument);
    let (code, message) = told(not_started(SupervisorError::InvalidUser("x".to_owned()), "ls", cwd()));
    assert_eq!(
        (code, message.as_str()),
        (ConnectCode::Unauthenticated, "invalid username: 'x'")
    );
}
