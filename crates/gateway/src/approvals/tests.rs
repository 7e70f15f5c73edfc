//! Questions, with somebody on another thread to answer them.

use std::rc::Rc;
use std::sync::mpsc;

use offleash_core::network::{RuleVerdict, SpokenProtocol};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use super::*;
use crate::questions::Notice;

const FOREVER: Duration = Duration::from_secs(3600);

const ASKED: RuleDecision<'static> = RuleDecision {
    verdict: RuleVerdict::Ask,
    rule: None,
    protocol: SpokenProtocol::Auto,
};

fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}

/// Runs `ask` with somebody who answers each question with what `answer` says of it, and answers what was asked.
fn with_answers<F: Future<Output = ()>>(
    timeout: Duration,
    answer: impl Fn(&ApprovalQuestion) -> Option<ApprovalAnswer> + Send + 'static,
    ask: impl FnOnce(Rc<Approvals>) -> F,
) -> Vec<String> {
    let questions = Questions::new().unwrap();
    let line = questions.clone();
    let (end, ended) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let mut asked = Vec::new();
        let mut is_over = false;
        while !is_over {
            // What was told before the end is read after it.
            is_over = ended.try_recv() != Err(mpsc::TryRecvError::Empty);
            let mut waiting = [PollFd::new(&line, PollFlags::IN)];
            let a_while = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 5_000_000,
            };
            poll(&mut waiting, Some(&a_while)).unwrap();
            for notice in line.take() {
                match notice {
                    Notice::Asked(question) => {
                        asked.push(question.about.to_string());
                        if let Some(approval) = answer(&question) {
                            line.answer(question.id, approval);
                        }
                    }
                    Notice::Withdrawn(id) => asked.push(format!("withdrawn {id}")),
                }
            }
        }
        asked
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let approvals = Rc::new(Approvals::new(questions, timeout));
    LocalSet::new().block_on(&runtime, ask(approvals));
    end.send(()).unwrap();
    thread.join().unwrap()
}

fn connection(approvals: &Rc<Approvals>, name: &str, port: u16) -> JoinHandle<ApprovalAnswer> {
    let (approvals, host) = (Rc::clone(approvals), host(name));
    spawn_local(async move { approvals.ask(&host, port, &ASKED).await })
}

#[test]
fn once_is_for_those_who_waited_and_for_the_run_is_for_all() {
    for (answer, expected) in [
        (
            ApprovalAnswer::Once,
            vec!["a.example:443", "a.example:443", "a.example:80"],
        ),
        (ApprovalAnswer::Run, vec!["a.example:443", "a.example:80"]),
        (ApprovalAnswer::Always, vec!["a.example:443", "a.example:80"]),
    ] {
        let asked = with_answers(
            FOREVER,
            move |_| Some(answer),
            async |approvals| {
                for port in [443, 443, 80] {
                    assert_eq!(approvals.ask(&host("a.example"), port, &ASKED).await, answer);
                }
            },
        );
        assert_eq!(asked, expected, "{answer:?}");
    }
}

#[test]
fn a_host_that_was_denied_is_not_asked_about_again_at_any_port() {
    let answer = |question: &ApprovalQuestion| {
        Some(if question.about.to_string().ends_with(":22") {
            ApprovalAnswer::Denied
        } else {
            ApprovalAnswer::Run
        })
    };
    let asked = with_answers(FOREVER, answer, async |approvals| {
        let a = host("a.example");
        assert_eq!(approvals.ask(&a, 443, &ASKED).await, ApprovalAnswer::Run);
        for port in [22, 22, 80] {
            assert_eq!(approvals.ask(&a, port, &ASKED).await, ApprovalAnswer::Denied);
        }
        assert_eq!(
            approvals.ask(&a, 443, &ASKED).await,
            ApprovalAnswer::Run,
            "what was allowed stays so"
        );
        assert_eq!(approvals.ask(&host("b.example"), 80, &ASKED).await, ApprovalAnswer::Run);
    });
    assert_eq!(asked, ["a.example:443", "a.example:22", "b.example:80"]);
}

#[test]
fn connections_to_the_same_place_wait_for_one_answer() {
    // Once counts for those who wait by then, so the answer comes when all do.
    let (all_wait, told) = mpsc::channel();
    let asked = with_answers(
        FOREVER,
        move |_| told.recv().ok(),
        async |approvals| {
            let all: Vec<_> = (0..20).map(|_| connection(&approvals, "a.example", 443)).collect();
            // Each task has its first turn before this one has its second.
            tokio::task::yield_now().await;
            all_wait.send(ApprovalAnswer::Once).unwrap();
            for one in all {
                assert_eq!(one.await.unwrap(), ApprovalAnswer::Once);
            }
        },
    );
    assert_eq!(asked, ["a.example:443"]);
}

#[test]
fn nobody_answers_and_it_is_denied_and_not_asked_forever() {
    let asked = with_answers(
        Duration::from_millis(20),
        |_| None,
        async |approvals| {
            for _ in 0..5 {
                assert_eq!(
                    approvals.ask(&host("a.example"), 443, &ASKED).await,
                    ApprovalAnswer::Timeout
                );
            }
        },
    );
    assert_eq!(asked, ["a.example:443", "withdrawn 1", "a.example:443", "withdrawn 2"]);
}

#[test]
fn an_answer_to_another_question_answers_nothing() {
    let questions = Questions::new().unwrap();
    let question = |id| ApprovalQuestion {
        id,
        about: ApprovalSubject::Connection {
            host: host("a.example"),
            port: 443,
            protocol: SpokenProtocol::Tls,
        },
        rule: None,
        timeout: FOREVER,
    };
    let (first, mut answer) = questions.open(question);
    questions.answer(first + 1, ApprovalAnswer::Always);
    assert!(answer.try_recv().is_err());
    questions.withdraw(first);
    questions.answer(first, ApprovalAnswer::Always);
    assert!(answer.try_recv().is_err());
    let (second, mut answer) = questions.open(question);
    questions.answer(first, ApprovalAnswer::Always);
    assert!(answer.try_recv().is_err());
    questions.answer(second, ApprovalAnswer::Once);
    assert_eq!(answer.try_recv(), Ok(ApprovalAnswer::Once));
}

#[test]
fn what_waits_is_bounded_and_what_is_beyond_is_denied() {
    let asked = with_answers(
        FOREVER,
        |question| (question.about.to_string().ends_with(":2")).then_some(ApprovalAnswer::Run),
        async |approvals| {
            // Nobody answers the first, so that all others wait.
            let first = connection(&approvals, "a.example", 1);
            let followers: Vec<_> = (0..WAITERS).map(|_| connection(&approvals, "a.example", 1)).collect();
            let others: Vec<_> = (1..WAITING)
                .map(|number| connection(&approvals, &format!("n{number}.example"), 2))
                .collect();
            let all_wait = |known: &Known| {
                known.waiting.len() == WAITING && known.waiting.values().any(|waiters| waiters.len() == WAITERS)
            };
            while !all_wait(&approvals.known.borrow()) {
                tokio::task::yield_now().await;
            }
            assert_eq!(
                approvals.ask(&host("a.example"), 1, &ASKED).await,
                ApprovalAnswer::TooMany
            );
            assert_eq!(
                approvals.ask(&host("late.example"), 2, &ASKED).await,
                ApprovalAnswer::TooMany
            );
            approvals.questions.answer(1, ApprovalAnswer::Once);
            for one in followers.into_iter().chain([first]) {
                assert_eq!(one.await.unwrap(), ApprovalAnswer::Once);
            }
            for other in others {
                assert_eq!(other.await.unwrap(), ApprovalAnswer::Run);
            }
        },
    );
    assert_eq!(asked.len(), WAITING, "{asked:?}");
}

#[test]
fn a_run_has_only_so_many_questions() {
    let asked = with_answers(
        FOREVER,
        |_| Some(ApprovalAnswer::Once),
        async |approvals| {
            for number in 0..MAX_QUESTIONS + 3 {
                let approval = approvals.ask(&host("a.example"), 443, &ASKED).await;
                assert_eq!(approval.allows(), number < MAX_QUESTIONS, "{number}: {approval:?}");
            }
        },
    );
    assert_eq!(asked.len(), MAX_QUESTIONS);
}

#[test]
fn questions_that_nobody_could_be_asked_do_not_count() {
    let asked = with_answers(
        FOREVER,
        |_| Some(ApprovalAnswer::NoTerminal),
        async |approvals| {
            for _ in 0..MAX_QUESTIONS + 3 {
                assert_eq!(
                    approvals.ask(&host("a.example"), 443, &ASKED).await,
                    ApprovalAnswer::NoTerminal
                );
            }
        },
    );
    assert_eq!(asked.len(), MAX_QUESTIONS + 3);
}
