//! Drains that move sandboxes, with nodes that fail at each step.

use serde_json::json;

use super::*;

const LISTS: (&str, NodeDoing) = HAS;
const DRAINS: (&str, NodeDoing) = ("POST /v1/drain", NodeDoing::Answers(200, r#"{"draining": true}"#));
const DESCRIBES: (&str, NodeDoing) = (
    "GET /v1/sandboxes/i1/transfer",
    NodeDoing::Answers(
        200,
        r#"{"id": "i1", "state": "running", "changes": 7, "left_seconds": 60, "description": "said"}"#,
    ),
);
const PAUSES: (&str, NodeDoing) = ("POST /v1/sandboxes/i1/pause", NodeDoing::Answers(200, "{}"));
const SNAPSHOTS: (&str, NodeDoing) = (
    "POST /v1/sandboxes/i1/snapshots",
    NodeDoing::Answers(201, r#"{"id": "s1"}"#),
);
const EXPORTS: (&str, NodeDoing) = ("GET /v1/snapshots/s1/export", NodeDoing::Answers(200, "abc"));
const RESUMES: (&str, NodeDoing) = ("POST /v1/sandboxes/i1/resume", NodeDoing::Answers(200, "{}"));
const ENDS: (&str, NodeDoing) = (
    "DELETE /v1/sandboxes/i1/transfer?changes=7",
    NodeDoing::Answers(204, ""),
);
const ENDS_NOT: (&str, NodeDoing) = (
    "DELETE /v1/sandboxes/i1/transfer",
    NodeDoing::Answers(409, r#"{"message": "sandbox `i1` was used or changed meanwhile"}"#),
);
const IS_THERE: (&str, NodeDoing) = ("GET /v1/sandboxes/i1 ", NodeDoing::Answers(200, "{}"));
const KILLS: (&str, NodeDoing) = ("DELETE /v1/sandboxes/i1 ", NodeDoing::Answers(204, ""));
const IMPORTS: (&str, NodeDoing) = (
    "POST /v1/snapshots/import",
    NodeDoing::AnswersAndEnds(r#"{"id": "s2"}"#),
);
const MAKES: (&str, NodeDoing) = ("POST /v1/transfers", NodeDoing::Answers(201, r#"{"id": "i1"}"#));
const MAKES_NOT: (&str, NodeDoing) = (
    "POST /v1/transfers",
    NodeDoing::Answers(400, r#"{"message": "key: not known here"}"#),
);
const FIRST: &[(&str, NodeDoing)] = &[
    LISTS, DRAINS, DESCRIBES, PAUSES, SNAPSHOTS, EXPORTS, RESUMES, ENDS, IS_THERE,
];
const SECOND: &[(&str, NodeDoing)] = &[EMPTY, IMPORTS, MAKES, KILLS, IS_THERE];
/// One that lists what was moved to it.
const KEEPS: &[(&str, NodeDoing)] = &[
    (
        "/v1/overview/ids",
        NodeDoing::AnswersUntil("POST /v1/transfers", r#"{"ids": []}"#, r#"{"ids": ["i1"]}"#),
    ),
    IMPORTS,
    MAKES,
    KILLS,
    IS_THERE,
];

/// What a front says that drains the first of two nodes.
fn drained(first: &FakeNode, second: &FakeNode) -> (RunningFront, Value) {
    let front = RunningFront::before(&[first, second]);
    let body = json!({ "node": first.address.to_string() }).to_string();
    let more = format!("Connection: close\r\nContent-Length: {}\r\n", body.len());
    let asked = [head("POST /v1/front/drain", &more).as_slice(), body.as_bytes()].concat();
    let said = answer(front.send(&asked));
    assert_eq!(status(&said), "200", "{said}");
    let (_, said) = said.split_once("\r\n\r\n").unwrap();
    (front, serde_json::from_str(said).unwrap())
}

#[test]
fn a_sandbox_of_a_drained_node_is_found_where_it_went() {
    let (first, second) = (FakeNode::start(FIRST), FakeNode::start(KEEPS));
    let (front, said) = drained(&first, &second);
    let moved = json!([{ "id": "i1", "node": second.address.to_string() }]);
    assert_eq!(
        (&said["moved"], &said["waiting"], &said["failed"]),
        (&moved, &json!([]), &json!([]))
    );
    let order = [
        "POST /v1/sandboxes/i1/pause",
        "POST /v1/sandboxes/i1/snapshots",
        "GET /v1/snapshots/s1/export",
        "DELETE /v1/snapshots/s1",
        "DELETE /v1/sandboxes/i1/transfer?changes=7",
    ];
    let asked = first.asked();
    let places: Vec<_> = order
        .iter()
        .map(|part| asked.iter().position(|line| line.contains(part)).expect(part))
        .collect();
    assert!(places.is_sorted(), "{asked:?}");
    assert_eq!(first.count("resume") + second.count("DELETE /v1/sandboxes"), 0);
    assert_eq!(second.count("DELETE /v1/snapshots/s2"), 1);
    // The first one lists it still, and answered later than it went.
    let lists = [first.count("/v1/overview/ids"), second.count("/v1/overview/ids")];
    until("two lists of both", || {
        first.count("/v1/overview/ids") > lists[0] + 1 && second.count("/v1/overview/ids") > lists[1] + 1
    });
    assert_eq!(status(&front.ask("GET /v1/sandboxes/i1")), "200");
    assert_eq!((first.count("i1 HTTP"), second.count("GET /v1/sandboxes/i1 ")), (0, 1));
}

#[test]
fn a_sandbox_stays_and_goes_on_whichever_step_fails() {
    const WAITS: &[(&str, NodeDoing)] = &[
        LISTS,
        DRAINS,
        (
            "GET /v1/sandboxes/i1/transfer",
            NodeDoing::Answers(409, r#"{"message": "has volumes"}"#),
        ),
        IS_THERE,
    ];
    const NO_SNAPSHOT: &[(&str, NodeDoing)] = &[
        LISTS,
        DRAINS,
        DESCRIBES,
        PAUSES,
        (
            "POST /v1/sandboxes/i1/snapshots",
            NodeDoing::Answers(507, r#"{"message": "no room"}"#),
        ),
        RESUMES,
        IS_THERE,
    ];
    const USED: &[(&str, NodeDoing)] = &[
        LISTS, DRAINS, DESCRIBES, PAUSES, SNAPSHOTS, EXPORTS, RESUMES, ENDS_NOT, IS_THERE,
    ];
    const CUT: &[(&str, NodeDoing)] = &[
        LISTS,
        DRAINS,
        DESCRIBES,
        PAUSES,
        SNAPSHOTS,
        ("/export", NodeDoing::BreaksOff),
        RESUMES,
        IS_THERE,
    ];
    const TAKES_NOT: &[(&str, NodeDoing)] = &[
        EMPTY,
        ("POST /v1/snapshots/import", NodeDoing::BreaksOff),
        KILLS,
        IS_THERE,
    ];
    const NO_KEY: &[(&str, NodeDoing)] = &[EMPTY, IMPORTS, MAKES_NOT, KILLS, IS_THERE];
    for (first, second, how, why, resumes, kills) in [
        (WAITS, SECOND, "waiting", "has volumes", 0, 0),
        (NO_SNAPSHOT, SECOND, "failed", "no room", 1, 0),
        (CUT, SECOND, "failed", "speaking with node", 1, 0),
        (FIRST, TAKES_NOT, "failed", "speaking with node", 1, 0),
        (FIRST, NO_KEY, "failed", "not known here", 1, 1),
        (USED, SECOND, "failed", "used or changed", 1, 1),
    ] {
        let (first, second) = (FakeNode::start(first), FakeNode::start(second));
        let (front, said) = drained(&first, &second);
        assert_eq!(said["moved"], json!([]), "{why}: {said}");
        let told = said[how][0]["why"].as_str().unwrap_or_default();
        assert!(told.contains(why), "{why}: {said}");
        assert_eq!(first.count("/resume"), resumes, "{why}");
        assert_eq!(second.count("DELETE /v1/sandboxes/i1 "), kills, "{why}");
        assert_eq!(status(&front.ask("GET /v1/sandboxes/i1")), "200", "{why}");
        assert_eq!(first.count("GET /v1/sandboxes/i1 "), 1, "{why}");
    }
}

#[test]
fn a_drain_is_the_nodes_own_to_allow() {
    let refuses = FakeNode::start(&[
        LISTS,
        ("POST /v1/drain", NodeDoing::Answers(403, r#"{"message": "no"}"#)),
    ]);
    let front = RunningFront::before(&[&refuses]);
    for (name, key, expected) in [
        (refuses.address.to_string(), KEY, "403"),
        ("elsewhere:1".to_owned(), KEY, "404"),
        (refuses.address.to_string(), "", "401"),
    ] {
        let body = json!({ "node": name }).to_string();
        let asked = format!(
            "POST /v1/front/drain HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {key}\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let said = answer(front.send(asked.as_bytes()));
        assert_eq!(status(&said), expected, "{said}");
    }
    assert_eq!(refuses.count("i1"), 0);
}
