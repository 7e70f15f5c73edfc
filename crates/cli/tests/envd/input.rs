//! Input of commands, also of those that read none.

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, frame, received};
use crate::support::processes::eventually;

const JSON: (&str, &str) = ("Content-Type", "application/json");
const STREAM: (&str, &str) = ("Content-Type", "application/connect+json");
/// More than pipes and what is passed on ahead hold together.
const MUCH: usize = 512 << 10;

/// Starts `sh -c SCRIPT` with input, found by `tag`, and waits until it runs; its output comes from what is answered.
fn begin(sandbox: &Sandbox, tag: &str, script: &str) -> std::net::TcpStream {
    let start = json!({"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "tag": tag}).to_string();
    let output = sandbox.send("POST /process.Process/Start", true, &[STREAM], &frame(start.as_bytes()));
    let runs = || {
        let listed = sandbox.call("process.Process/List", "{}").json();
        listed["processes"]
            .as_array()?
            .iter()
            .any(|one| one["tag"] == tag)
            .then_some(())
    };
    eventually("the command runs", runs);
    output
}

/// The message that gives so many bytes to the command of that tag.
fn much(tag: &str) -> String {
    let bytes = BASE64.encode(&vec![b'x'; MUCH]);
    json!({"process": {"tag": tag}, "input": {"stdin": bytes}}).to_string()
}

/// Everything that a command wrote on its standard output.
fn written(output: std::net::TcpStream) -> String {
    let messages = received(output).messages();
    let text = |message: &Value| {
        let data = message["event"]["data"]["stdout"].as_str()?;
        Some(String::from_utf8(BASE64.decode(data.as_bytes()).unwrap()).unwrap())
    };
    messages.iter().filter_map(text).collect()
}

#[test]
fn input_is_streamed() {
    let sandbox = Sandbox::new();
    let start = json!({"process": {"cmd": "/bin/cat"}, "tag": "t"}).to_string();
    let output = sandbox.send("POST /process.Process/Start", true, &[STREAM], &frame(start.as_bytes()));
    let found = || sandbox.call("process.Process/List", "{}").json()["processes"][0]["tag"] == "t";
    eventually("the command runs", || found().then_some(()));
    let messages = [
        json!({"start": {"process": {"tag": "t"}}}),
        json!({"data": {"input": {"stdin": "aGkK"}}}),
        json!({"keepalive": {}}),
    ];
    let frames: Vec<u8> = messages
        .iter()
        .flat_map(|message| frame(message.to_string().as_bytes()))
        .collect();
    let answer = sandbox.ask("POST /process.Process/StreamInput", &[STREAM], &frames);
    assert_eq!(answer.frames(), [(0, b"{}".to_vec()), (2, b"{}".to_vec())]);
    let closed = sandbox.call("process.Process/CloseStdin", r#"{"process":{"tag":"t"}}"#);
    assert_eq!(closed.status, 200, "{closed:?}");
    let messages = received(output).messages();
    assert_eq!(messages[1]["event"]["data"]["stdout"], "aGkK", "{messages:?}");
    let unknown = frame(json!({"start": {"process": {"pid": 99999}}}).to_string().as_bytes());
    let answer = sandbox.ask("POST /process.Process/StreamInput", &[STREAM], &unknown);
    assert_eq!(answer.messages()[0]["error"]["code"], "not_found");
}

#[test]
fn a_command_that_reads_nothing_holds_up_nobody_longer_than_he_wants() {
    let sandbox = Sandbox::new();
    // Of what it was given when it did not read, it counts what it finds when it does.
    let script = "until bash -c 'read -t 0'; do sleep 0.05; done; touch /tmp/begun
        until test -e /tmp/go; do sleep 0.05; done; exec wc -c";
    let output = begin(&sandbox, "t", script);
    let give =
        |fields: &[(&str, &str)]| sandbox.send("POST /process.Process/SendInput", true, fields, much("t").as_bytes());
    // What is passed on already holds up the rest.
    let begun = give(&[JSON]);
    eventually("input is passed on", || {
        (sandbox.ask("GET /files?path=/tmp/begun", &[], b"").status == 200).then_some(())
    });
    let late = received(give(&[JSON, ("Connect-Timeout-Ms", "300")]));
    assert_eq!(
        (late.status, &late.json()["code"]),
        (504, &"deadline_exceeded".into()),
        "{late:?}"
    );
    let by_stream = json!({"data": {"input": {"stdin": BASE64.encode(&vec![b'x'; MUCH])}}}).to_string();
    let frames = [json!({"start": {"process": {"tag": "t"}}}).to_string(), by_stream];
    let frames: Vec<u8> = frames.iter().flat_map(|message| frame(message.as_bytes())).collect();
    let fields = [("Connect-Timeout-Ms", "300")];
    let all = [&[STREAM][..], &fields].concat();
    let late = sandbox.ask("POST /process.Process/StreamInput", &all, &frames);
    assert_eq!(late.messages()[0]["error"]["code"], "deadline_exceeded", "{late:?}");
    let close = json!({"process": {"tag": "t"}}).to_string();
    let late = sandbox.ask("POST /process.Process/CloseStdin", &[JSON, fields[0]], close.as_bytes());
    assert_eq!(
        (late.status, &late.json()["code"]),
        (504, &"deadline_exceeded".into()),
        "{late:?}"
    );
    // Of those who hang up nothing waits any longer, so that more of them than may wait can come.
    for _ in 0..2 {
        let waiting: Vec<_> = (0..40).map(|_| give(&[JSON])).collect();
        drop(waiting);
    }
    let refused = || {
        let answer = received(give(&[JSON, ("Connect-Timeout-Ms", "300")]));
        (answer.status == 504).then_some(())
    };
    eventually("those who hung up are forgotten", refused);
    assert_eq!(
        sandbox
            .ask(
                "POST /files?path=/tmp/go",
                &[("Content-Type", "application/octet-stream")],
                b""
            )
            .status,
        200
    );
    // Its input was never ended, so it is ended now; what was begun to be passed on is there whole, and no more.
    eventually("its input can be ended", || {
        (sandbox.call("process.Process/CloseStdin", &close).status == 200).then_some(())
    });
    assert_eq!(received(begun).status, 200);
    let count: usize = written(output).trim().parse().unwrap();
    assert_eq!(count, MUCH);
}

#[test]
fn those_who_wait_to_give_input_are_bounded_and_told_of_the_end() {
    let sandbox = Sandbox::new();
    // Somebody else holds its input open, so that what nobody reads is not dropped in the moment in which it dies.
    let apart = "exec 3<&0; setsid sh -c ': > /tmp/apart; exec sleep 1000' > /dev/null 2>&1 & exec sleep 1000";
    let output = begin(&sandbox, "t", apart);
    eventually("its input is held", || {
        (sandbox.ask("GET /files?path=/tmp/apart", &[], b"").status == 200).then_some(())
    });
    let give = |fields: &[(&str, &str)]| {
        let fields = [&[JSON], fields].concat();
        sandbox.send("POST /process.Process/SendInput", true, &fields, much("t").as_bytes())
    };
    let waiting: Vec<_> = (0..70).map(|_| give(&[])).collect();
    let refused = eventually("no more may wait", || {
        let answer = received(give(&[("Connect-Timeout-Ms", "300")]));
        (answer.status != 504).then_some(answer)
    });
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (429, &"resource_exhausted".into()),
        "{refused:?}"
    );
    let kill = json!({"process": {"tag": "t"}, "signal": "SIGNAL_SIGKILL"}).to_string();
    assert_eq!(sandbox.call("process.Process/SendSignal", &kill).status, 200);
    let told: Vec<u16> = waiting.into_iter().map(|one| received(one).status).collect();
    // Those who waited hear of the end, the others that they were too many.
    assert!(told.iter().all(|status| [404, 429].contains(status)), "{told:?}");
    assert!(told.iter().filter(|status| **status == 404).count() >= 60, "{told:?}");
    assert_eq!(written(output), "");
}
