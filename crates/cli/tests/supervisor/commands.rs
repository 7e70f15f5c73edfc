//! Commands in a sandbox that is kept.

use offleash_core::exec::ExecEnd;
use offleash_supervisor::service::message::{Selector, StartExec};
use offleash_supervisor::service::{ExecNews, SupervisorError};

use super::world::{Kept, collect, piece, shell, test, until, within};

#[test]
fn a_command_runs_with_the_sandbox_s_variables_and_its_own() {
    test(async {
        let kept = Kept::new().await;
        let mut start = shell("echo $OWN $MINE $HOME $USER; pwd; echo no >&2; exit 3");
        start.env = vec![(b"MINE".to_vec(), b"too".to_vec())];
        let (text, end) = collect(kept.supervisor.start(start).await.unwrap()).await;
        assert_eq!(text, "value too /home/user user\n/home/user\n");
        assert_eq!(end, Some(ExecEnd::Exited { code: 3 }));
        let mut start = shell("pwd");
        start.cwd = Some(b"/tmp".to_vec());
        assert_eq!(collect(kept.supervisor.start(start).await.unwrap()).await.0, "/tmp\n");
    });
}

#[test]
fn what_cannot_be_started_says_why() {
    test(async {
        let kept = Kept::new().await;
        let start = |argv: &[&str], change: fn(&mut StartExec)| {
            let mut start = StartExec {
                argv: argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
                ..StartExec::default()
            };
            change(&mut start);
            kept.supervisor.start(start)
        };
        let error = start(&["no-such-program"], |_| {}).await.unwrap_err();
        assert!(matches!(error, SupervisorError::NotFound), "{error:?}");
        let error = start(&["/etc"], |_| {}).await.unwrap_err();
        assert!(matches!(error, SupervisorError::NotExecutable { .. }), "{error:?}");
        let error = start(&["true"], |start| start.cwd = Some(b"/nowhere".to_vec()))
            .await
            .unwrap_err();
        assert!(matches!(error, SupervisorError::Directory { errno: 2 }), "{error:?}");
        let error = start(&["true"], |start| start.user = Some("nobody".to_owned()))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, SupervisorError::InvalidUser(name) if name == "nobody"),
            "{error:?}"
        );
        for (argv, change) in [
            (&[][..], (|_| {}) as fn(&mut StartExec)),
            (&[""], |_| {}),
            (&["true", "a\0b"], |_| {}),
            (&["true"], |start| start.env = vec![(b"A=B".to_vec(), b"c".to_vec())]),
            (&["true"], |start| start.env = vec![(Vec::new(), b"c".to_vec())]),
        ] {
            let error = start(argv, change).await.unwrap_err();
            assert!(matches!(error, SupervisorError::Invalid { .. }), "{argv:?} {error:?}");
        }
        assert_eq!(kept.output("echo still there").await, "still there\n");
    });
}

#[test]
fn input_reaches_a_command_in_order_and_ends_when_closed() {
    test(async {
        let kept = Kept::new().await;
        let mut start = shell("cat");
        start.stdin = true;
        let stream = kept.supervisor.start(start).await.unwrap();
        let which = Selector::Pid(stream.pid());
        let supervisor = kept.supervisor.clone();
        let input: Vec<u8> = (0..3_000_000_u32)
            .map(|number| (number % 251).to_le_bytes()[0])
            .collect();
        let given = input.clone();
        let feeding = tokio::spawn(async move {
            supervisor.input(&which, given).await.unwrap();
            supervisor.close_input(&which).await.unwrap();
            supervisor.input(&which, b"more".to_vec()).await
        });
        let mut stream = stream;
        let mut output = Vec::new();
        let end = loop {
            match within(stream.next()).await.unwrap() {
                Some(ExecNews::Output { bytes, .. }) => output.extend(bytes),
                Some(ExecNews::Ended(end)) => break end,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(end, ExecEnd::Exited { code: 0 });
        assert!(output == input);
        let late = feeding.await.unwrap().unwrap_err();
        assert!(
            matches!(late, SupervisorError::InputClosed | SupervisorError::NoProcess),
            "{late:?}"
        );
        let silent = kept.shell("sleep 1000").await;
        let which = Selector::Pid(silent.pid());
        let error = kept.supervisor.input(&which, b"x".to_vec()).await.unwrap_err();
        assert!(matches!(error, SupervisorError::InputClosed), "{error:?}");
        let error = kept.supervisor.resize(&which, 3, 4).await.unwrap_err();
        assert!(matches!(error, SupervisorError::NoTerminal), "{error:?}");
    });
}

#[test]
fn a_terminal_has_the_size_that_it_is_given() {
    test(async {
        let kept = Kept::new().await;
        let mut start = shell("stty size; read line; stty size; echo \"<$line>\"");
        start.tty = Some((30, 70));
        start.stdin = true;
        let mut stream = kept.supervisor.start(start).await.unwrap();
        until(&mut stream, "30 70").await;
        let which = Selector::Pid(stream.pid());
        kept.supervisor.resize(&which, 11, 22).await.unwrap();
        kept.supervisor.input(&which, b"hello\n".to_vec()).await.unwrap();
        let (rest, end) = collect(stream).await;
        assert!(rest.contains("11 22") && rest.contains("<hello>"), "{rest:?}");
        assert_eq!(end, Some(ExecEnd::Exited { code: 0 }));
    });
}

#[test]
fn signals_reach_commands_and_only_those_that_run() {
    test(async {
        let kept = Kept::new().await;
        let mut stream = kept
            .shell("trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.01; done")
            .await;
        until(&mut stream, "ready").await;
        let which = Selector::Pid(stream.pid());
        kept.supervisor.signal(&which, 10).await.unwrap();
        let (rest, end) = collect(stream).await;
        assert_eq!((rest.as_str(), end), ("got\n", Some(ExecEnd::Exited { code: 7 })));
        let error = kept.supervisor.signal(&which, 10).await.unwrap_err();
        assert!(matches!(error, SupervisorError::NoProcess), "{error:?}");
        let error = kept.supervisor.signal(&which, 1000).await.unwrap_err();
        assert!(matches!(error, SupervisorError::Invalid { .. }), "{error:?}");
        let stream = kept.shell("sleep 1000 & wait").await;
        kept.supervisor.signal(&Selector::Pid(stream.pid()), 9).await.unwrap();
        assert_eq!(collect(stream).await.1, Some(ExecEnd::Signaled { signal: 9 }));
    });
}

#[test]
fn a_command_is_killed_when_its_time_is_over() {
    test(async {
        let kept = Kept::new().await;
        let mut start = shell("sleep 1000 & wait");
        start.timeout_ms = Some(50);
        let (text, end) = collect(kept.supervisor.start(start).await.unwrap()).await;
        assert_eq!(
            (text.as_str(), end),
            ("[timed out]", Some(ExecEnd::Signaled { signal: 9 }))
        );
    });
}

#[test]
fn a_command_is_found_by_pid_and_tag_and_its_end_for_a_while() {
    test(async {
        let kept = Kept::new().await;
        let mut start = shell("read line; echo \"$line\"");
        start.stdin = true;
        start.tag = Some("a tag".to_owned());
        let first = kept.supervisor.start(start).await.unwrap();
        let pid = first.pid();
        let tag = Selector::Tag("a tag".to_owned());
        let found = kept.supervisor.processes().await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].pid, found[0].tag.as_deref()), (pid, Some("a tag")));
        assert_eq!(found[0].argv[0], b"/bin/sh");
        let second = kept.supervisor.attach(&tag).await.unwrap();
        let third = kept.supervisor.attach(&Selector::Pid(pid)).await.unwrap();
        assert_eq!((second.pid(), third.pid()), (pid, pid));
        kept.supervisor.input(&tag, b"for all\n".to_vec()).await.unwrap();
        for stream in [first, second, third] {
            assert_eq!(
                collect(stream).await,
                ("for all\n".to_owned(), Some(ExecEnd::Exited { code: 0 }))
            );
        }
        let late = kept.supervisor.attach(&tag).await.unwrap();
        assert_eq!(collect(late).await, (String::new(), Some(ExecEnd::Exited { code: 0 })));
        assert_eq!(kept.supervisor.processes().await.unwrap(), []);
        for unknown in [Selector::Pid(99_999), Selector::Pid(0), Selector::Tag(String::new())] {
            let error = kept.supervisor.attach(&unknown).await.unwrap_err();
            assert!(matches!(error, SupervisorError::NoProcess), "{error:?}");
        }
    });
}

#[test]
fn what_is_kept_of_a_command_is_bounded() {
    test(async {
        let kept = Kept::new().await;
        for (tag, cwd) in [(257, None), (3_900_000, None), (1, Some(4096))] {
            let mut start = shell("true");
            start.tag = Some("t".repeat(tag));
            start.cwd = cwd.map(|length| [b"/", &vec![b'x'; length - 1][..]].concat());
            let error = kept.supervisor.start(start).await.unwrap_err();
            assert!(matches!(error, SupervisorError::Invalid { .. }), "{tag}: {error:?}");
        }
        let mut start = shell("sleep 60");
        start.tag = Some("t".repeat(256));
        start.stdin = true;
        let running = kept.supervisor.start(start).await.unwrap();
        // Input that nobody reads is taken up to a bound, by however many clients.
        let which = Selector::Pid(running.pid());
        let (told, mut outcomes) = tokio::sync::mpsc::channel(48);
        for _ in 0..48 {
            let (supervisor, which, told) = (kept.supervisor.clone(), which.clone(), told.clone());
            tokio::spawn(async move {
                let outcome = supervisor.input(&which, vec![0; 1024 * 1024]).await;
                let _nobody_listens_any_more = told.send(outcome).await;
            });
        }
        for _ in 0..15 {
            let error = within(outcomes.recv()).await.unwrap().unwrap_err();
            assert!(matches!(error, SupervisorError::Exhausted { .. }), "{error:?}");
        }
        kept.supervisor.signal(&which, 9).await.unwrap();
    });
}

#[test]
fn a_thousand_commands_leave_nothing_behind() {
    test(async {
        let kept = Kept::new().await;
        for round in 0..10 {
            let mut streams = Vec::new();
            for number in 0..100 {
                let script = format!("echo {round} {number}");
                streams.push((kept.shell(&script).await, format!("{round} {number}\n")));
            }
            for (stream, expected) in streams {
                assert_eq!(collect(stream).await, (expected, Some(ExecEnd::Exited { code: 0 })));
            }
        }
        assert_eq!(kept.supervisor.processes().await.unwrap(), []);
        let open = std::fs::read_dir(format!("/proc/{}/fd", kept.hello.pid))
            .unwrap()
            .count();
        assert!(open < 64, "{open} descriptors");
    });
}

#[test]
fn a_slow_reader_slows_its_command_and_no_other() {
    test(async {
        let kept = Kept::new().await;
        let script = "i=0; while [ $i -lt 400 ]; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > /tmp/count; done";
        let mut slow = kept.shell(script).await;
        assert!(!piece(&mut slow).await.is_empty());
        // It comes to rest long before its end, and others go on meanwhile.
        let mut before = String::new();
        loop {
            let now = kept.output("cat /tmp/count 2>/dev/null; sleep 0.2").await;
            if !now.is_empty() && now == before {
                break;
            }
            before = now;
        }
        assert!(before.trim().parse::<u32>().unwrap() < 400, "{before}");
        let (rest, end) = collect(slow).await;
        assert_eq!(end, Some(ExecEnd::Exited { code: 0 }));
        assert!(rest.len() > 20 * 1024 * 1024, "{}", rest.len());
    });
}

#[test]
fn a_client_that_goes_leaves_its_command_running() {
    test(async {
        let kept = Kept::new().await;
        let stream = kept.shell("i=0; while [ $i -lt 100 ]; do head -c 65536 /dev/zero; i=$((i+1)); done; echo done > /tmp/done; sleep 1000").await;
        let which = Selector::Pid(stream.pid());
        drop(stream);
        while kept.output("cat /tmp/done 2>/dev/null; true").await != "done\n" {}
        kept.supervisor.signal(&which, 15).await.unwrap();
        let end = collect(kept.supervisor.attach(&which).await.unwrap()).await.1;
        assert_eq!(end, Some(ExecEnd::Signaled { signal: 15 }));
    });
}
