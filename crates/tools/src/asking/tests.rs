use offleash_core::tool::{DeclaredTool, ToolCaller};
use offleash_core::units::Millis;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::desk::{DeskStep, MAX_SHOWN};

fn desk() -> ToolDesk {
    let tool = DeclaredTool {
        name: "pay".parse().expect("a name"),
        description: String::new(),
        parameters: json!({"type": "object"}).to_string(),
        caller: ToolCaller::Program {
            argv: vec!["true".to_owned()],
        },
        timeout: Millis(1000),
        grant: "pay where amount < 100 calls 2 ask".parse().expect("a grant"),
    };
    ToolDesk::new(vec![tool], None).expect("a desk")
}

fn asking() -> (Asking, UnboundedReceiver<AskNotice>) {
    let (notices, heard) = unbounded_channel();
    (Asking::new(notices, Duration::from_secs(60)), heard)
}

fn call(desk: &mut ToolDesk, amount: u32) -> JudgedCall {
    let request = json!({"form": "json", "tool": "pay", "parameters": {"amount": amount}});
    match desk.take(request.to_string().as_bytes()) {
        DeskStep::Ask(call) => call,
        other => panic!("{other:?}"),
    }
}

/// The question that was put.
fn asked(heard: &mut UnboundedReceiver<AskNotice>) -> ApprovalQuestion {
    match heard.try_recv() {
        Ok(AskNotice::Asked(question)) => question,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_is_asked_about_at_a_time_and_an_answer_is_for_its_own_question() {
    let (mut desk, (mut asking, mut heard)) = (desk(), asking());
    asking.take(1, call(&mut desk, 1));
    asking.take(2, call(&mut desk, 2));
    assert!(asking.next(&desk).is_none());
    let first = asked(&mut heard);
    assert_eq!(
        first.about,
        ApprovalSubject::ToolCall {
            tool: "pay".to_owned(),
            parameters: "{\"amount\":1}".to_owned()
        }
    );
    assert!(asking.next(&desk).is_none() && heard.try_recv().is_err());
    assert!(asking.answered(first.id + 1, ApprovalAnswer::Run).is_none());
    let decided = asking.answered(first.id, ApprovalAnswer::Once).expect("its call");
    assert!(decided.number == 1 && decided.answer.allows());
    assert!(matches!(desk.approve(decided.call), DeskStep::Call(_)));
    // The next one is another question: once was for that call.
    assert!(asking.next(&desk).is_none());
    assert_ne!(asked(&mut heard).id, first.id);
    assert!(asking.answered(first.id, ApprovalAnswer::Run).is_none());
}

#[test]
fn a_run_is_for_the_tool_and_its_grant_holds_all_the_same() {
    let (mut desk, (mut asking, mut heard)) = (desk(), asking());
    (1..=3).for_each(|number| asking.take(number, call(&mut desk, number)));
    assert!(asking.next(&desk).is_none());
    let question = asked(&mut heard);
    let decided = asking.answered(question.id, ApprovalAnswer::Run).expect("its call");
    assert!(matches!(desk.approve(decided.call), DeskStep::Call(_)));
    let decided = asking.next(&desk).expect("decided without a question");
    assert!(matches!(desk.approve(decided.call), DeskStep::Call(_)));
    // Two calls are granted, however often a person agrees.
    let decided = asking.next(&desk).expect("decided without a question");
    assert!(matches!(desk.approve(decided.call), DeskStep::Answer(_)));
    assert!(heard.try_recv().is_err());
    assert_eq!(desk.uses().first().map(|uses| (uses.calls, uses.refused)), Some((2, 1)));
}

#[test]
fn what_was_denied_is_denied_again_without_a_question() {
    let (mut desk, (mut asking, mut heard)) = (desk(), asking());
    asking.take(1, call(&mut desk, 7));
    assert!(asking.next(&desk).is_none());
    let id = asked(&mut heard).id;
    assert!(
        !asking
            .answered(id, ApprovalAnswer::Denied)
            .expect("its call")
            .answer
            .allows()
    );
    asking.take(2, call(&mut desk, 7));
    assert_eq!(asking.next(&desk).expect("decided").answer, ApprovalAnswer::Denied);
    asking.take(3, call(&mut desk, 8));
    assert!(asking.next(&desk).is_none());
    asked(&mut heard);
}

#[test]
fn nobody_who_answers_is_a_denial_and_callers_who_leave_take_their_question_back() {
    let (mut desk, (mut asking, mut heard)) = (desk(), asking());
    asking.take(1, call(&mut desk, 1));
    assert!(asking.next(&desk).is_none() && asking.due().is_some());
    let id = asked(&mut heard).id;
    let decided = asking.timed_out().expect("its call");
    assert_eq!(decided.answer, ApprovalAnswer::Timeout);
    assert_eq!(heard.try_recv(), Ok(AskNotice::TimedOut(id)));
    assert!(asking.answered(id, ApprovalAnswer::Run).is_none());

    asking.take(2, call(&mut desk, 1));
    assert!(asking.next(&desk).is_none() && asking.has(2) && asking.len() == 1);
    let id = asked(&mut heard).id;
    asking.forget(2);
    assert_eq!(heard.try_recv(), Ok(AskNotice::Withdrawn(id)));
    assert!(!asking.has(2) && asking.due().is_none());

    drop(heard);
    asking.take(3, call(&mut desk, 1));
    assert_eq!(asking.next(&desk).expect("decided").answer, ApprovalAnswer::NoTerminal);
}

#[test]
fn questions_are_bounded_and_what_is_not_shown_is_not_asked() {
    let (mut desk, (mut asking, mut heard)) = (desk(), asking());
    for _ in 0..MAX_QUESTIONS {
        asking.take(1, call(&mut desk, 1));
        assert!(asking.next(&desk).is_none());
        let id = asked(&mut heard).id;
        asking.answered(id, ApprovalAnswer::Timeout);
    }
    asking.take(1, call(&mut desk, 1));
    assert_eq!(asking.next(&desk).expect("decided").answer, ApprovalAnswer::TooMany);
    let request = json!({"form": "json", "tool": "pay", "parameters": {"amount": 1, "note": "x".repeat(MAX_SHOWN)}});
    assert!(matches!(desk.take(request.to_string().as_bytes()), DeskStep::Answer(_)));
}
