//! Questions about connections, commands and checkpoints of sandboxes of a daemon: they wait for whoever may answer, and nobody's
//! answer denies.

use std::time::{Duration, Instant};

use offleash_core::approval::{ApprovalAnswer, ApprovalSubject};
use offleash_daemon::{ApprovalView, Caller, Daemon, DaemonError, Quota, Scope, Scopes};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::StartExec;
use tokio::task::JoinHandle;

use super::world::{World, create_with, output, test, within};

/// Connects, and says how that ended.
const CONNECT: &str =
    "exec 2>/dev/null; bash -c 'exec 3<>/dev/tcp/asked.example/443 && cat <&3' && echo ended || echo refused";

async fn question(daemon: &Daemon, caller: &Caller) -> ApprovalView {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(open) = within(daemon.approvals(caller)).await.unwrap().pop() {
            return open;
        }
        assert!(Instant::now() < deadline, "nobody is asked");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_connection_waits_for_an_answer_which_is_logged() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create_with(&daemon, |request| {
            request.network.ask_out = vec!["asked.example:443".to_owned()]
        })
        .await;
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        let connecting = tokio::spawn(async move { output(&supervisor, CONNECT).await });
        let open = question(&daemon, &me).await;
        assert!(open.id.starts_with(&format!("{}-n", made.id)), "{open:?}");
        assert!(
            matches!(&open.about, ApprovalSubject::Connection { host, port: 443, .. } if host.to_string() == "asked.example"),
            "{open:?}"
        );
        assert!(
            open.rule.as_deref().is_some_and(|rule| rule.contains("asked.example")),
            "{open:?}"
        );
        assert!(!connecting.is_finished());
        let other = format!("{}-n{}", made.id, u64::MAX);
        for unknown in [&other, "i-n1", "n1", &open.id.replace("-n", "-")] {
            let answered = within(daemon.decide(&me, unknown, ApprovalAnswer::Once)).await;
            assert!(
                matches!(answered, Err(DaemonError::UnknownApproval { .. })),
                "{unknown}: {answered:?}"
            );
        }
        within(daemon.decide(&me, &open.id, ApprovalAnswer::Denied))
            .await
            .unwrap();
        assert_eq!(within(connecting).await.unwrap(), "refused\n");
        let again = within(daemon.decide(&me, &open.id, ApprovalAnswer::Once)).await;
        assert!(matches!(again, Err(DaemonError::UnknownApproval { .. })), "{again:?}");
        // It is denied for the sandbox's life, and nobody is asked again.
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        assert_eq!(output(&supervisor, CONNECT).await, "refused\n");
        let audit = world.site.succeed(["audit", "show"]);
        assert!(
            audit.contains("approval_decided") && audit.contains("asked.example:443"),
            "{audit}"
        );
        within(daemon.kill(&me, &made.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn nobody_who_answers_in_time_denies() {
    test(async {
        let world = World::new();
        let daemon = world
            .daemon_with(|config| config.tools.ask_timeout = Duration::from_millis(300))
            .await;
        let me = Caller::local();
        let made = create_with(&daemon, |request| {
            request.network.ask_out = vec!["asked.example".to_owned()]
        })
        .await;
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        assert_eq!(output(&supervisor, CONNECT).await, "refused\n");
        assert!(within(daemon.approvals(&me)).await.unwrap().is_empty());
        let audit = world.site.succeed(["audit", "show"]);
        let decided: Vec<&str> = audit.lines().filter(|line| line.contains("approval_decided")).collect();
        assert!(decided.len() == 1 && decided[0].contains("timeout"), "{audit}");
        within(daemon.kill(&me, &made.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn what_is_allowed_for_good_is_asked_about_no_more_for_that_key_and_template() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let asking = |request: &mut offleash_daemon::CreateRequest| {
            request.network.ask_out = vec!["*.asked.example:443".to_owned(), "asked.example:443".to_owned()];
        };
        let first = create_with(&daemon, asking).await;
        let supervisor = daemon.supervisor(&first.id).await.unwrap();
        let connecting = tokio::spawn(async move { output(&supervisor, CONNECT).await });
        let open = question(&daemon, &me).await;
        within(daemon.decide(&me, &open.id, ApprovalAnswer::Always))
            .await
            .unwrap();
        within(connecting).await.unwrap();
        let allowed = daemon.allowed_hosts(&me).unwrap();
        assert_eq!(
            (allowed.len(), allowed[0].rule.as_str(), &allowed[0].sandbox),
            (1, "asked.example:443", &first.id)
        );
        // Once more it is no question.
        let again = within(daemon.decide(&me, &open.id, ApprovalAnswer::Always)).await;
        assert!(matches!(again, Err(DaemonError::UnknownApproval { .. })), "{again:?}");
        assert_eq!(daemon.allowed_hosts(&me).unwrap(), allowed);

        let decided = || {
            let audit = world.site.succeed(["audit", "show"]);
            audit.lines().filter(|line| line.contains("approval_decided")).count()
        };
        let second = create_with(&daemon, asking).await;
        let supervisor = daemon.supervisor(&second.id).await.unwrap();
        output(&supervisor, CONNECT).await;
        assert_eq!(decided(), 1);

        within(daemon.forget_allowed_host(&me, &allowed[0].id)).await.unwrap();
        let forgotten = within(daemon.forget_allowed_host(&me, &allowed[0].id)).await;
        assert!(
            matches!(forgotten, Err(DaemonError::UnknownAllowedHost { .. })),
            "{forgotten:?}"
        );
        let third = create_with(&daemon, asking).await;
        let supervisor = daemon.supervisor(&third.id).await.unwrap();
        let connecting = tokio::spawn(async move { output(&supervisor, CONNECT).await });
        let open = question(&daemon, &me).await;
        within(daemon.decide(&me, &open.id, ApprovalAnswer::Denied))
            .await
            .unwrap();
        within(connecting).await.unwrap();
        for sandbox in [first, second, third] {
            within(daemon.kill(&me, &sandbox.id)).await.unwrap();
        }
        world.emptied().await;
    });
}

#[test]
fn what_is_no_host_is_not_asked_about() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let mut request = offleash_daemon::CreateRequest::default();
        request.network.ask_out = vec!["*".to_owned()];
        let refused = within(daemon.create(&Caller::local(), request)).await;
        assert!(matches!(refused, Err(DaemonError::Invalid { .. })), "{refused:?}");
    });
}

/// A key of somebody who makes sandboxes.
fn maker() -> Caller {
    Caller {
        key_id: "maker".to_owned(),
        scopes: Scopes(vec![Scope::Create]),
        quota: Quota::default(),
        tools: None,
    }
}

/// Starts a line, as a client does that waits for it.
async fn starting(daemon: &Daemon, id: &str, line: &str) -> JoinHandle<Result<(), SupervisorError>> {
    let supervisor = daemon.supervisor(id).await.unwrap();
    let start = StartExec {
        argv: ["/bin/sh", "-c", line].map(|word| word.as_bytes().to_vec()).into(),
        ..StartExec::default()
    };
    tokio::spawn(async move { supervisor.start(start).await.map(drop) })
}

#[test]
fn a_command_that_is_named_waits_for_an_answer() {
    test(async {
        let world = World::new();
        let daemon = world
            .daemon_with(|config| config.lifecycle.ask_before = vec!["dd".parse().unwrap()])
            .await;
        let owner = Caller::local();
        let request = offleash_daemon::CreateRequest {
            lifecycle: offleash_daemon::LifecycleRequest {
                ask_before: Some(vec!["rm -rf".to_owned(), "mkfifo".to_owned()]),
                ..offleash_daemon::LifecycleRequest::default()
            },
            ..offleash_daemon::CreateRequest::default()
        };
        let me = maker();
        let made = within(daemon.create(&me, request)).await.unwrap();

        // Who waits no more is not asked about.
        let left = starting(&daemon, &made.id, "rm -rf /tmp/x").await;
        let open = question(&daemon, &me).await;
        left.abort();
        while !within(daemon.approvals(&me)).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let late = within(daemon.decide(&me, &open.id, ApprovalAnswer::Once)).await;
        assert!(matches!(late, Err(DaemonError::UnknownApproval { .. })), "{late:?}");

        let denied = starting(&daemon, &made.id, "touch /tmp/made; rm -rf /tmp/x").await;
        let open = question(&daemon, &me).await;
        assert!(
            matches!(&open.about, ApprovalSubject::Command { argv } if argv.len() == 3)
                && open.rule.as_deref() == Some("ask_before: rm -rf"),
            "{open:?}"
        );
        assert!(!denied.is_finished());
        let for_good = within(daemon.decide(&me, &open.id, ApprovalAnswer::Always)).await;
        assert!(matches!(for_good, Err(DaemonError::Unsupported { .. })), "{for_good:?}");
        within(daemon.decide(&me, &open.id, ApprovalAnswer::Denied))
            .await
            .unwrap();
        let refused = within(denied).await.unwrap();
        assert!(
            matches!(refused, Err(SupervisorError::NotAllowed { .. })),
            "{refused:?}"
        );
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        assert_eq!(output(&supervisor, "ls /tmp").await, "");

        // Allowed for the sandbox, it is asked about no more.
        let allowed = starting(&daemon, &made.id, "rm -rf /tmp/x").await;
        let open = question(&daemon, &me).await;
        within(daemon.decide(&me, &open.id, ApprovalAnswer::Run)).await.unwrap();
        within(allowed).await.unwrap().unwrap();
        assert_eq!(output(&supervisor, "rm -rf /tmp/x && echo gone").await, "gone\n");

        // That hides nothing else in the same line.
        let hidden = starting(&daemon, &made.id, "rm -rf /tmp/x; mkfifo /tmp/pipe").await;
        let open = question(&daemon, &me).await;
        assert_eq!(open.rule.as_deref(), Some("ask_before: mkfifo"));
        within(daemon.decide(&me, &open.id, ApprovalAnswer::Denied))
            .await
            .unwrap();
        assert!(within(hidden).await.unwrap().is_err());

        // What the owner's rule asks, the owner's keys answer.
        let waiting = starting(&daemon, &made.id, "dd if=/dev/null").await;
        let open = question(&daemon, &me).await;
        let own = within(daemon.decide(&me, &open.id, ApprovalAnswer::Once)).await;
        assert!(matches!(own, Err(DaemonError::Forbidden { .. })), "{own:?}");
        assert!(!waiting.is_finished());
        within(daemon.decide(&owner, &open.id, ApprovalAnswer::Once))
            .await
            .unwrap();
        within(waiting).await.unwrap().unwrap();

        // Where both ask, both answer.
        let twice = starting(&daemon, &made.id, "dd if=/dev/null; mkfifo /tmp/pipe").await;
        for (who, rule) in [(&owner, "ask_before: dd"), (&me, "ask_before: mkfifo")] {
            let open = question(&daemon, &me).await;
            assert_eq!(open.rule.as_deref(), Some(rule));
            within(daemon.decide(who, &open.id, ApprovalAnswer::Once))
                .await
                .unwrap();
        }
        within(twice).await.unwrap().unwrap();

        let audit = world.site.succeed(["audit", "show"]);
        let decided: Vec<&str> = audit.lines().filter(|line| line.contains("approval_decided")).collect();
        assert_eq!(decided.len(), 6, "{audit}");
        assert!(
            decided[0].contains("rm -rf /tmp/x") && decided[0].contains("denied"),
            "{audit}"
        );
        // Nobody waits for an answer about a sandbox that is gone.
        let ends = starting(&daemon, &made.id, "mkfifo /tmp/other").await;
        question(&daemon, &me).await;
        within(daemon.kill(&me, &made.id)).await.unwrap();
        assert!(within(ends).await.unwrap().is_err());
        world.emptied().await;
    });
}

#[test]
fn a_sandbox_is_put_back_when_somebody_allows_it() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let made = create_with(&daemon, |request| request.lifecycle.ask_before_restore = Some(true)).await;
        let checkpoint = within(daemon.create_checkpoint(&me, &made.id, None)).await.unwrap();
        let supervisor = daemon.supervisor(&made.id).await.unwrap();
        output(&supervisor, "touch ~/later").await;
        for (answer, there) in [(ApprovalAnswer::Denied, "later\n"), (ApprovalAnswer::Once, "")] {
            let (daemon, caller) = (&daemon, &me);
            let restoring = daemon.restore(caller, &made.id, &checkpoint.id);
            let answering = async {
                let open = question(daemon, caller).await;
                assert!(
                    matches!(&open.about, ApprovalSubject::Restore { checkpoint: of } if *of == checkpoint.id),
                    "{open:?}"
                );
                within(daemon.decide(caller, &open.id, answer)).await.unwrap();
            };
            let (restored, ()) = within(async { tokio::join!(restoring, answering) }).await;
            match answer.allows() {
                true => drop(restored.unwrap()),
                false => assert!(
                    matches!(restored, Err(DaemonError::ApprovalDenied { .. })),
                    "{restored:?}"
                ),
            }
            let supervisor = daemon.supervisor(&made.id).await.unwrap();
            assert_eq!(output(&supervisor, "ls ~").await, there);
        }
        within(daemon.kill(&me, &made.id)).await.unwrap();
        world.emptied().await;
    });
}
