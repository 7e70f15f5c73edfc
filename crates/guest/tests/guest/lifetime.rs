//! Signals, and how everything ends: on request, with the host, and by force.

use crate::harness::{Guest, Role, command, eventually, lives, program, roles, shell, start, start_program};
use offleash_protocol::{ExecCommand, ExitReport, StdinKind, ToGuest};

#[test]
fn a_signal_reaches_the_process_or_its_group() {
    for role in roles() {
        let mut guest = start(role);
        let script = "trap 'echo caught' USR1; sh -c 'trap \"echo child\" USR1; echo ready; while :; do sleep 0.01; done' & while :; do sleep 0.01; done";
        for (group, both) in [(false, false), (true, true)] {
            let exec = guest.exec(shell(script));
            guest.wait_for_output(exec, "ready");
            guest.send(&ToGuest::Signal {
                exec,
                signal: 10,
                group,
            });
            guest.wait_for_output(exec, "caught");
            if both {
                guest.wait_for_output(exec, "child");
            }
            guest.send(&ToGuest::Signal {
                exec,
                signal: 9,
                group: true,
            });
            let outcome = guest.wait(exec);
            assert_eq!(
                (outcome.end.clone(), outcome.text().contains("child")),
                (Some(ExitReport::Signaled { signal: 9 }), both)
            );
        }
        guest.wait_until_alone();
    }
}

#[test]
fn a_group_kill_reaches_jobs_of_the_session() {
    for role in roles() {
        let mut guest = start(role);
        // With job control the background job has a process group of its own.
        let script = "set -m; sleep 60 & echo ready; wait";
        let exec = guest.exec(shell(script));
        guest.wait_for_output(exec, "ready");
        guest.send(&ToGuest::Signal {
            exec,
            signal: 9,
            group: true,
        });
        guest.wait(exec);
        guest.wait_until_alone();
    }
}

#[test]
fn signals_to_what_is_not_there_do_nothing() {
    let mut guest = start(Role::Subreaper);
    let exec = guest.exec(command(&["true"]));
    guest.wait(exec);
    for (exec, signal) in [(exec, 9), (4711, 9), (exec, 1000), (exec, -1)] {
        guest.send(&ToGuest::Signal {
            exec,
            signal,
            group: true,
        });
    }
    guest.send(&ToGuest::Input {
        exec,
        bytes: b"x".to_vec(),
    });
    guest.send(&ToGuest::CloseInput { exec });
    guest.send(&ToGuest::Resize {
        exec,
        rows: 1,
        columns: 1,
    });
    assert_eq!(guest.run(command(&["echo", "still"])).text(), "still\n");
}

/// Processes that ignore signals, left their session, or were orphaned.
const STUBBORN: &str = "trap '' TERM HUP INT; \
    setsid sh -c 'trap \"\" TERM HUP; sleep 600 & echo p$!; sh -c \"sleep 600 & echo p\\$!\"; sleep 600' & \
    sleep 600 & kill -STOP $!; echo p$!; sleep 600";

fn stubborn(guest: &mut Guest) -> Vec<u32> {
    let exec = guest.exec(shell(STUBBORN));
    // They are told in whole lines, in whatever order.
    let told = |guest: &Guest| -> Vec<u32> {
        let text = guest.outcome(exec).text();
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        lines.filter_map(|line| line.strip_prefix('p')?.parse().ok()).collect()
    };
    guest.pump_until(|guest| told(guest).len() == 3);
    let mut pids = told(guest);
    let outcome = guest.outcome(exec);
    assert_eq!(pids.len(), 3, "{outcome:?}");
    pids.extend(outcome.pid);
    pids
}

#[test]
fn everything_dies_with_the_host() {
    for role in roles() {
        let mut guest = start(role);
        let pids = stubborn(&mut guest);
        guest.hang_up();
        assert_eq!(guest.exit_code(), 70);
        if role == Role::Subreaper {
            assert!(pids.iter().all(|pid| !lives(*pid)), "gone before the guest itself");
        }
    }
}

#[test]
fn everything_dies_at_a_shutdown() {
    for role in roles() {
        let mut guest = start(role);
        let pids = stubborn(&mut guest);
        guest.send(&ToGuest::Shutdown);
        assert_eq!(guest.exit_code(), 0);
        if role == Role::Subreaper {
            assert!(pids.iter().all(|pid| !lives(*pid)));
        }
    }
}

#[test]
fn everything_dies_at_a_malformed_frame() {
    let too_long = u32::MAX.to_le_bytes().to_vec();
    for bytes in [too_long, vec![0; 4], vec![1, 0, 0, 0, 0xff], vec![2, 0, 0, 0, 6, 0]] {
        let mut guest = start(Role::Subreaper);
        let exec = guest.exec(command(&["sleep", "600"]));
        guest.pump_until(|guest| guest.outcome(exec).pid.is_some());
        let pid = guest.outcome(exec).pid.unwrap();
        guest.send_bytes(&bytes);
        assert_eq!(guest.exit_code(), 71, "{bytes:?}");
        assert!(!lives(pid));
    }
}

#[test]
fn a_number_in_use_is_malformed() {
    let mut guest = start(Role::Subreaper);
    let exec = guest.exec(command(&["sleep", "600"]));
    guest.send(&ToGuest::Exec(ExecCommand {
        exec,
        ..command(&["true"])
    }));
    assert_eq!(guest.exit_code(), 71);
}

/// Commands die with a guest that was killed, by the kernel's doing.
#[test]
fn commands_die_with_a_guest_that_is_killed() {
    let mut guest = start(Role::Subreaper);
    let exec = guest.exec(ExecCommand {
        stdin: StdinKind::Stream,
        ..command(&["sleep", "600"])
    });
    guest.pump_until(|guest| guest.outcome(exec).pid.is_some());
    let pid = guest.outcome(exec).pid.unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(guest.pid()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    guest.exit_code();
    eventually("the command dies", || !lives(pid));
}

#[test]
fn the_guest_ignores_signals() {
    for role in roles() {
        let mut guest = start(role);
        let target = if role == Role::Init { "1" } else { "$PPID" };
        let outcome = guest.run(shell(&format!(
            "for s in TERM INT HUP USR1 QUIT PIPE 34 64; do kill -$s {target}; done; echo sent"
        )));
        assert_eq!(outcome.text(), "sent\n", "{}", String::from_utf8_lossy(&outcome.stderr));
        assert_eq!(guest.run(command(&["echo", "here"])).text(), "here\n");
    }
}

#[test]
fn the_guest_cannot_be_looked_into() {
    let mut guest = start(Role::Subreaper);
    let outcome = guest.run(shell("stat -c %u /proc/$PPID/environ; cat /proc/$PPID/environ | wc -c"));
    let lines: Vec<String> = outcome.text().lines().map(str::to_owned).collect();
    // Its files belong to root, which is what not being dumpable looks like (proc(5)); there is nothing in it anyway.
    assert_eq!(lines, ["0", "0"]);
}

#[test]
fn it_refuses_to_be_an_init_where_it_is_not() {
    for argv in [vec![program()], vec![program(), b"other".to_vec()]] {
        let mut guest = start_program(&argv);
        guest.pump_until(|_| false);
        assert_eq!(guest.exit_code(), 72);
    }
}

#[test]
fn usage_tells_processes_and_memory() {
    for role in roles() {
        let mut guest = start(role);
        let exec = guest.exec(shell("sleep 600 & sleep 600 & echo ready; wait"));
        guest.wait_for_output(exec, "ready");
        let usage = guest.usage();
        assert_eq!(usage.processes, 3);
        assert_eq!(usage.shm_bytes, 0);
        assert_eq!(role == Role::Subreaper, usage.tmpfs.is_empty(), "{usage:?}");
    }
}
