//! Bodies as the SDKs send them, and answers as they read them.

use super::messages::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, EntryInfo, FileType, FilesystemEvent, GetWatcherEventsRequest,
    GetWatcherEventsResponse, ListDirRequest, StatResponse, WatchDirRequest, WatchDirResponse,
};
use super::messages::process::{
    ConnectRequest, DataEvent, EndEvent, KeepAlive, ProcessEvent, SendInputRequest, SendSignalRequest, StartEvent,
    StartRequest, StartResponse, StreamInputRequest, UpdateRequest,
};
use crate::e2b::connect::{ConnectMessage, MessageCodec, Timestamp};

fn json<M: ConnectMessage>(text: &str) -> M {
    MessageCodec::Json.decode(text.as_bytes()).unwrap()
}

fn written<M: ConnectMessage>(message: &M) -> String {
    String::from_utf8(MessageCodec::Json.encode(message).unwrap().to_vec()).unwrap()
}

#[test]
fn a_command_is_started() {
    let request: StartRequest = json(
        r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hi"],"envs":{"A":"b"},"cwd":"/tmp"},"stdin":false}"#,
    );
    let process = request.process.unwrap();
    assert_eq!(process.cmd, "/bin/bash");
    assert_eq!(process.args, ["-l", "-c", "echo hi"]);
    assert_eq!(process.envs["A"], "b");
    assert_eq!((process.cwd.as_deref(), request.stdin), (Some("/tmp"), Some(false)));
    let request: StartRequest = json(
        r#"{"process":{"cmd":"/bin/bash","args":["-i","-l"],"envs":{"TERM":"xterm-256color"}},
            "pty":{"size":{"cols":80,"rows":24}},"tag":"t"}"#,
    );
    let size = request.pty.unwrap().size.unwrap();
    assert_eq!((size.cols, size.rows, request.tag.as_deref()), (80, 24, Some("t")));
}

#[test]
fn a_command_is_started_in_binary_form() {
    // field 1: { 1: "sh", 2: "-c", 3: {1: "A", 2: "b"}, 4: "/" }, field 4: false
    let bytes = b"\x0a\x12\x0a\x02sh\x12\x02-c\x1a\x06\x0a\x01A\x12\x01b\x22\x01/\x20\x00";
    let bytes = [&bytes[..1], &[19], &bytes[2..]].concat();
    let request: StartRequest = MessageCodec::Proto.decode(&bytes).unwrap();
    let process = request.process.unwrap();
    assert_eq!((process.cmd.as_str(), process.args), ("sh", vec!["-c".to_owned()]));
    assert_eq!((process.envs["A"].as_str(), process.cwd.as_deref()), ("b", Some("/")));
    assert_eq!(request.stdin, Some(false));
}

#[test]
fn commands_are_selected_fed_and_ended() {
    let request: SendSignalRequest = json(r#"{"process":{"pid":7},"signal":"SIGNAL_SIGKILL"}"#);
    assert_eq!((request.process.unwrap().pid, request.signal), (Some(7), 9));
    assert_eq!(
        json::<SendSignalRequest>(r#"{"process":{"tag":"t"},"signal":15}"#).signal,
        15
    );
    for nothing in ["{}", r#"{"signal":null}"#, r#"{"signal":"SIGNAL_UNSPECIFIED"}"#] {
        assert_eq!(json::<SendSignalRequest>(nothing).signal, 0, "{nothing}");
    }
    for wrong in [
        r#"{"signal":"SIGKILL"}"#,
        r#"{"signal":4294967296}"#,
        r#"{"signal":9.0}"#,
    ] {
        assert!(
            MessageCodec::Json
                .decode::<SendSignalRequest>(wrong.as_bytes())
                .is_err(),
            "{wrong}"
        );
    }
    let request: SendInputRequest = json(r#"{"process":{"pid":7},"input":{"stdin":"aGk="}}"#);
    assert_eq!(request.input.unwrap().stdin.unwrap(), b"hi");
    let request: SendInputRequest = json(r#"{"process":{"pid":7},"input":{"pty":"aGk="}}"#);
    assert_eq!(request.input.unwrap().pty.unwrap(), b"hi");
    assert!(
        json::<StreamInputRequest>(r#"{"start":{"process":{"pid":7}}}"#)
            .start
            .is_some()
    );
    let data = json::<StreamInputRequest>(r#"{"data":{"input":{"stdin":"aGk="}}}"#)
        .data
        .unwrap();
    assert_eq!(data.input.unwrap().stdin.unwrap(), b"hi");
    assert!(json::<StreamInputRequest>(r#"{"keepalive":{}}"#).keepalive.is_some());
    assert_eq!(
        json::<ConnectRequest>(r#"{"process":{"pid":"7"}}"#)
            .process
            .unwrap()
            .pid,
        Some(7)
    );
    assert!(
        json::<UpdateRequest>(r#"{"process":{"pid":7},"pty":{"size":{"cols":1,"rows":2}}}"#)
            .pty
            .is_some()
    );
}

#[test]
fn events_are_told() {
    let event = |event| written(&StartResponse { event: Some(event) });
    let none = ProcessEvent::default;
    let start = Some(StartEvent { pid: 7 });
    assert_eq!(
        event(ProcessEvent { start, ..none() }),
        r#"{"event":{"start":{"pid":7}}}"#
    );
    let data = Some(DataEvent {
        stdout: Some(b"hi\n\xff".to_vec()),
        ..DataEvent::default()
    });
    assert_eq!(
        event(ProcessEvent { data, ..none() }),
        r#"{"event":{"data":{"stdout":"aGkK/w=="}}}"#
    );
    let end = Some(EndEvent {
        exit_code: -1,
        exited: false,
        status: "signal: killed".to_owned(),
        error: Some("signal: killed".to_owned()),
    });
    assert_eq!(
        event(ProcessEvent { end, ..none() }),
        r#"{"event":{"end":{"exitCode":-1,"exited":false,"status":"signal: killed","error":"signal: killed"}}}"#
    );
    let keepalive = Some(KeepAlive {});
    assert_eq!(
        event(ProcessEvent { keepalive, ..none() }),
        r#"{"event":{"keepalive":{}}}"#
    );
    // An exit code is a `sint32`: -1 is 1 on the wire.
    let end = EndEvent {
        exit_code: -1,
        ..EndEvent::default()
    };
    assert_eq!(&MessageCodec::Proto.encode(&end).unwrap()[..], b"\x08\x01");
}

#[test]
fn files_are_listed_and_watched() {
    let request: ListDirRequest = json(r#"{"path":"/home/user","depth":1}"#);
    assert_eq!((request.path.as_str(), request.depth), ("/home/user", 1));
    let request: ListDirRequest = json(r#"{"path":null,"depth":"2"}"#);
    assert_eq!((request.path.as_str(), request.depth), ("", 2));
    let request: WatchDirRequest =
        json(r#"{"path":"/x","recursive":true,"includeEntry":true,"allowNetworkMounts":false}"#);
    assert!(request.recursive && request.include_entry);
    let request: CreateWatcherRequest = json(r#"{"path":"/x","recursive":null,"include_entry":true}"#);
    assert!(!request.recursive && request.include_entry);
    let id: GetWatcherEventsRequest = json(r#"{"watcherId":"w1"}"#);
    let watcher_id = id.watcher_id;
    assert_eq!(written(&CreateWatcherResponse { watcher_id }), r#"{"watcherId":"w1"}"#);
    let entry = EntryInfo {
        name: "a".to_owned(),
        r#type: FileType::File.into(),
        path: "/x/a".to_owned(),
        size: 5,
        mode: 0o644,
        permissions: "-rw-r--r--".to_owned(),
        owner: "user".to_owned(),
        group: "user".to_owned(),
        modified_time: Some(Timestamp {
            seconds: 1_700_000_000,
            nanos: 5_000_000,
        }),
        ..EntryInfo::default()
    };
    let text = r#"{"entry":{"name":"a","type":"FILE_TYPE_FILE","path":"/x/a","size":"5","mode":420,"permissions":"-rw-r--r--","owner":"user","group":"user","modifiedTime":"2023-11-14T22:13:20.005Z"}}"#;
    let entry = Some(entry);
    assert_eq!(written(&StatResponse { entry: entry.clone() }), text);
    assert_eq!(json::<StatResponse>(text).entry, entry);
    let event = FilesystemEvent {
        name: "a".to_owned(),
        r#type: 5,
        entry: None,
    };
    let events = vec![event.clone()];
    let text = r#"{"events":[{"name":"a","type":"EVENT_TYPE_CHMOD"}]}"#;
    assert_eq!(written(&GetWatcherEventsResponse { events }), text);
    let told = WatchDirResponse {
        filesystem: Some(event),
        ..WatchDirResponse::default()
    };
    assert_eq!(
        written(&told),
        r#"{"filesystem":{"name":"a","type":"EVENT_TYPE_CHMOD"}}"#
    );
}

/// A choice between fields that says two things is seen, and not taken for the last of them.
#[test]
fn of_a_choice_every_field_that_was_set_is_seen() {
    let both = br#"{"process":{"pid":7,"tag":"t"}}"#;
    let selector = MessageCodec::Json
        .decode::<ConnectRequest>(both)
        .unwrap()
        .process
        .unwrap();
    assert_eq!((selector.pid, selector.tag.as_deref()), (Some(7), Some("t")));
    let bytes = MessageCodec::Proto
        .encode(&ConnectRequest {
            process: Some(selector.clone()),
        })
        .unwrap();
    assert_eq!(
        MessageCodec::Proto.decode::<ConnectRequest>(&bytes).unwrap().process,
        Some(selector)
    );
}
