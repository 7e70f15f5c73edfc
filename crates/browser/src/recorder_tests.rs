//! What a recorder makes of browsers, honest ones and others.

use proptest::prelude::*;

use super::*;
use crate::bounds::MAX_TEXT;

const NOW: Duration = Duration::from_millis(5_500);

fn attached(recorder: &mut Recorder, session: &str, kind: &str) -> Taken {
    let event = json!({
        "method": "Target.attachedToTarget",
        "params": { "sessionId": session, "targetInfo": { "targetId": format!("page-{session}"), "type": kind } },
    });
    recorder.take(&event.to_string(), NOW)
}

fn said(recorder: &mut Recorder, session: &str, method: &str, params: Value) -> Taken {
    let event = json!({ "method": method, "sessionId": session, "params": params });
    recorder.take(&event.to_string(), NOW)
}

fn params(taken: &Taken) -> Map<String, Value> {
    match &taken.items[..] {
        [RecordedItem::Entry { params, .. }] => params.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_answers_and_the_console_of_pages_are_taken() {
    let mut recorder = Recorder::new(false);
    let told = attached(&mut recorder, "s", "page");
    assert!(told.commands.iter().any(|command| command.contains("Network.enable")));
    assert!(!told.commands.iter().any(|command| command.contains("startScreencast")));
    let request = json!({ "requestId": "1", "type": "Document", "request": { "method": "GET", "url": "http://a/", "headers": { "Cookie": "x" } } });
    let taken = params(&said(&mut recorder, "s", "Network.requestWillBeSent", request));
    assert_eq!(
        json!(taken),
        json!({ "requestId": "1", "type": "Document", "method": "GET", "url": "http://a/" })
    );
    let console = json!({ "type": "log", "args": [{ "value": "a" }, { "value": 1 }, { "description": "Object" }] });
    let taken = params(&said(&mut recorder, "s", "Runtime.consoleAPICalled", console));
    assert_eq!(json!(taken), json!({ "type": "log", "text": "a 1 Object" }));
}

#[test]
fn who_was_not_announced_and_what_nobody_looks_for_is_passed_over() {
    let mut recorder = Recorder::new(true);
    let console = json!({ "type": "log", "args": [] });
    assert_eq!(
        said(&mut recorder, "s", "Runtime.consoleAPICalled", console.clone()),
        Taken::default()
    );
    assert_eq!(attached(&mut recorder, "s", "browser"), Taken::default());
    attached(&mut recorder, "s", "page");
    assert_eq!(
        said(&mut recorder, "s", "DOM.documentUpdated", json!({})),
        Taken::default()
    );
    recorder.take(
        r#"{"method": "Target.detachedFromTarget", "params": {"sessionId": "s"}}"#,
        NOW,
    );
    assert_eq!(
        said(&mut recorder, "s", "Runtime.consoleAPICalled", console),
        Taken::default()
    );
}

#[test]
fn a_flood_is_counted_and_not_kept() {
    let mut recorder = Recorder::new(false);
    attached(&mut recorder, "s", "page");
    let console = json!({ "type": "log", "args": [{ "value": "é".repeat(3 * MAX_TEXT) }] });
    let kept: usize = (0..MAX_ENTRIES_PER_SECOND + 7)
        .map(|_| {
            said(&mut recorder, "s", "Runtime.consoleAPICalled", console.clone())
                .items
                .len()
        })
        .sum();
    assert_eq!(kept, MAX_ENTRIES_PER_SECOND as usize);
    // Whether anything more comes or not.
    let later = recorder.pass(NOW + Duration::from_secs(1));
    assert_eq!(params(&later)["count"], 7);
    assert_eq!(recorder.pass(NOW + Duration::from_secs(2)), Taken::default());
    let taken = params(&said(&mut recorder, "s", "Runtime.consoleAPICalled", console));
    assert_eq!(taken["text"].as_str().unwrap().chars().count(), MAX_TEXT);
}

#[test]
fn what_is_long_is_counted_and_not_looked_into() {
    let mut recorder = Recorder::new(false);
    attached(&mut recorder, "s", "page");
    let console = json!({ "type": "log", "args": vec![json!({ "value": 1 }); 50_000] });
    assert_eq!(
        said(&mut recorder, "s", "Runtime.consoleAPICalled", console),
        Taken::default()
    );
    let later = recorder.take(r#"{"method": "x"}"#, NOW + Duration::from_secs(1));
    assert_eq!(params(&later)["count"], 1);
}

#[test]
fn targets_have_a_bound() {
    let mut recorder = Recorder::new(false);
    for number in 0..MAX_TARGETS {
        assert!(!attached(&mut recorder, &number.to_string(), "page").commands.is_empty());
    }
    assert!(attached(&mut recorder, "one more", "page").commands.is_empty());
}

#[test]
fn pictures_are_taken_and_few_of_them_kept() {
    let mut recorder = Recorder::new(true);
    assert!(
        attached(&mut recorder, "s", "page")
            .commands
            .last()
            .unwrap()
            .contains("startScreencast")
    );
    let frame = json!({ "data": "aGk=", "sessionId": 3 });
    for number in 0..MAX_FRAMES_PER_SECOND + 2 {
        let taken = said(&mut recorder, "s", "Page.screencastFrame", frame.clone());
        assert_eq!(taken.items.len(), usize::from(number < MAX_FRAMES_PER_SECOND));
        assert!(taken.commands[0].contains("screencastFrameAck"));
    }
    for data in ["<script>", &"a".repeat(MAX_FRAME + 1)] {
        let mut recorder = Recorder::new(true);
        attached(&mut recorder, "s", "page");
        let frame = json!({ "data": data, "sessionId": 3 });
        assert!(said(&mut recorder, "s", "Page.screencastFrame", frame).items.is_empty());
    }
}

proptest! {
    #[test]
    fn whatever_a_browser_says_is_taken_or_passed_over(text in ".{0,400}") {
        let mut recorder = Recorder::new(true);
        attached(&mut recorder, "s", "page");
        prop_assert_eq!(recorder.take(&text, NOW), Taken::default());
    }

    #[test]
    fn fields_of_any_kind_are_passed_over(value in prop_oneof![Just(json!(null)), Just(json!([1])), Just(json!({"a": 1})), Just(json!(1e300))]) {
        let mut recorder = Recorder::new(true);
        attached(&mut recorder, "s", "page");
        for method in ["Network.requestWillBeSent", "Runtime.consoleAPICalled", "Page.screencastFrame", "Target.attachedToTarget"] {
            let fields = json!({ "requestId": value, "request": value, "args": value, "data": value, "sessionId": value, "targetInfo": value });
            said(&mut recorder, "s", method, fields);
        }
    }
}

#[test]
fn addresses_are_kept_without_the_name_and_the_password_of_a_user() {
    for (url, kept) in [
        ("http://user:secret@a.example/b@c?d=e@f", "http://a.example/b@c?d=e@f"),
        ("https://u@p@a.example", "https://a.example"),
        ("//user:secret@a.example/", "//a.example/"),
        ("ws://user:secret@a.example?x", "ws://a.example?x"),
        ("http://user:secret@a.example\\@b", "http://a.example\\@b"),
        ("http://a.example/x//y@z", "http://a.example/x//y@z"),
        ("/b//c@d", "/b//c@d"),
        ("data:,//a@b", "data:,//a@b"),
        ("mailto:a@b.example", "mailto:a@b.example"),
    ] {
        assert_eq!(without_user(url), kept);
    }
    let mut recorder = Recorder::new(false);
    attached(&mut recorder, "S", "page");
    let answered = json!({ "requestId": "1", "response": { "url": "http://u:p@a.example/", "status": 302,
        "headers": { "Location": "http://u:p@b.example/" } } });
    let told = params(&said(&mut recorder, "S", "Network.responseReceived", answered));
    assert_eq!(told["url"], "http://a.example/");
    assert_eq!(told["headers"]["location"], "http://b.example/");
}
