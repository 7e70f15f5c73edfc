//! Tests of the protocol: bytes as clients send them, and bytes as they never should.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http_body::Body;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::Full;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::frame::{Frame, FrameDecoder, HEADER, end_frame, message_frame};
use super::reply::collected;
use super::*;

/// One field of each kind.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Sample {
    #[prost(string, optional, tag = "1")]
    some_text: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    #[serde(with = "json::bytes")]
    bytes: Option<Vec<u8>>,
    #[prost(uint32, optional, tag = "3")]
    #[serde(deserialize_with = "json::integer")]
    number: Option<u32>,
    #[prost(int64, tag = "4")]
    #[serde(with = "json::wide")]
    wide: i64,
    #[prost(string, repeated, tag = "5")]
    #[serde(deserialize_with = "json::nullable")]
    list: Vec<String>,
    #[prost(message, optional, boxed, tag = "6")]
    inner: Option<Box<Sample>>,
}

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let pair =
        |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    fields.iter().map(pair).collect()
}

fn json(text: &str) -> Result<Sample, ConnectError> {
    MessageCodec::Json.decode(text.as_bytes())
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

#[test]
fn json_is_read_as_protocol_buffers_allow() {
    let expected = Sample {
        some_text: Some("x".to_owned()),
        bytes: Some(vec![0xfb, 0xff]),
        number: Some(7),
        wide: -9_007_199_254_740_993,
        list: Vec::new(),
        inner: None,
    };
    for text in [
        r#"{"someText":"x","bytes":"+/8=","number":7,"wide":"-9007199254740993"}"#,
        r#"{"someText":"x","bytes":"+/8","number":"7","wide":-9007199254740993,"list":null}"#,
        r#"{"someText":"x","bytes":"-_8=","number":7.0,"wide":"-9007199254740993","inner":null,"unknown":[{}]}"#,
        r#"{"someText":"\u0078","bytes":"-_8","number":7e0,"wide":"-9007199254740993","list":[]}"#,
    ] {
        assert_eq!(json(text).unwrap(), expected, "{text}");
    }
    assert_eq!(json("{}").unwrap(), Sample::default());
    // What is unknown is passed over without going down into it.
    let unknown = format!(r#"{{"unknown":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(json(&unknown).unwrap(), Sample::default());
}

#[test]
fn json_that_is_no_such_message_is_refused() {
    let deep = format!("{}{}", r#"{"inner":"#.repeat(10_000), "}".repeat(10_000));
    for text in [
        "",
        "null",
        "[",
        "{",
        r#"{"number":-1}"#,
        r#"{"number":4294967296}"#,
        r#"{"number":1.5}"#,
        r#"{"number":1e308}"#,
        r#"{"number":NaN}"#,
        r#"{"number":true}"#,
        r#"{"number":"x"}"#,
        r#"{"bytes":"?"}"#,
        r#"{"bytes":[1]}"#,
        r#"{"someText":"a","someText":"b"}"#,
        r#"{"someText":"\ud800"}"#,
        r#"{} {}"#,
        &deep,
    ] {
        let error = json(text).unwrap_err();
        assert_eq!(
            error.code,
            ConnectCode::InvalidArgument,
            "{}",
            &text[..text.len().min(60)]
        );
    }
}

#[test]
fn both_forms_say_the_same() {
    let message = Sample {
        some_text: Some("é\u{0}".to_owned()),
        bytes: Some(vec![0, 255]),
        number: Some(0),
        wide: i64::MIN,
        list: vec![String::new(), "b".to_owned()],
        inner: Some(Box::default()),
    };
    for codec in [MessageCodec::Json, MessageCodec::Proto] {
        let bytes = codec.encode(&message).unwrap();
        assert_eq!(codec.decode::<Sample>(&bytes).unwrap(), message);
    }
}

#[test]
fn frames_are_taken_out_of_bytes_however_they_arrive() {
    let frames = [
        message_frame(b"one").unwrap(),
        message_frame(b"").unwrap(),
        end_frame(None),
    ]
    .concat();
    for size in 1..=frames.len() {
        let mut decoder = FrameDecoder::new(16);
        let mut found = Vec::new();
        for piece in frames.chunks(size) {
            decoder.push(piece);
            while let Some(frame) = decoder.next().unwrap() {
                found.push(frame);
            }
        }
        let message = |bytes: &'static [u8]| Frame::Message(Bytes::from_static(bytes));
        assert_eq!(found, [message(b"one"), message(b""), Frame::End]);
        assert!(decoder.is_empty());
    }
}

#[test]
fn frames_are_bounded_before_they_arrive() {
    let refused = |bytes: &[u8]| {
        let mut decoder = FrameDecoder::new(MAX_MESSAGE);
        decoder.push(bytes);
        decoder.next().unwrap_err().code
    };
    assert_eq!(refused(&[0, 0xff, 0xff, 0xff, 0xff]), ConnectCode::ResourceExhausted);
    assert_eq!(refused(&[0, 0, 0x40, 0, 1]), ConnectCode::ResourceExhausted);
    assert_eq!(refused(&[1, 0, 0, 0, 1]), ConnectCode::Unimplemented);
    assert_eq!(refused(&[3, 0, 0, 0, 1]), ConnectCode::Unimplemented);
    assert_eq!(refused(&[4, 0, 0, 0, 1]), ConnectCode::InvalidArgument);
    // Browsers' and proxies' pages are no frames.
    assert_eq!(refused(b"<html>"), ConnectCode::InvalidArgument);
}

#[test]
fn the_end_of_a_stream_says_how_it_ended() {
    assert_eq!(&end_frame(None)[HEADER..], b"{}");
    let error = ConnectError::new(ConnectCode::NotFound, "no \"x\"");
    let frame = end_frame(Some(&error));
    assert_eq!(frame[0], 2);
    assert_eq!(
        &frame[HEADER..],
        br#"{"error":{"code":"not_found","message":"no \"x\""}}"#
    );
}

#[test]
fn a_stream_is_read_to_its_end() {
    let mut bytes = message_frame(br#"{"number":1}"#).unwrap().to_vec();
    bytes.extend_from_slice(&message_frame(br#"{"number":2}"#).unwrap());
    let read = |bytes: Vec<u8>| {
        block_on(async {
            let mut frames = MessageFrames::new(MessageCodec::Json, Full::new(Bytes::from(bytes)));
            let mut found = Vec::new();
            while let Some(message) = frames.next::<Sample>().await? {
                found.push(message.number());
            }
            Ok::<_, ConnectError>(found)
        })
    };
    assert_eq!(read(bytes.clone()), Ok(vec![1, 2]));
    let ended = [bytes.as_slice(), &end_frame(None), b"more"].concat();
    assert_eq!(read(ended), Ok(vec![1, 2]));
    bytes.pop();
    assert_eq!(read(bytes).unwrap_err().code, ConnectCode::InvalidArgument);
}

#[test]
fn a_message_is_bounded_before_it_is_read() {
    let read = |length: usize| {
        let body = Full::new(Bytes::from(vec![b' '; length]));
        block_on(read_message::<Sample, _>(MessageCodec::Json, body))
            .unwrap_err()
            .code
    };
    assert_eq!(read(MAX_MESSAGE + 1), ConnectCode::ResourceExhausted);
    assert_eq!(read(MAX_MESSAGE), ConnectCode::InvalidArgument);
}

/// A body of which the rest never comes.
struct Stalled(Option<Bytes>);

impl Body for Stalled {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        self.0.take().map_or(Poll::Pending, |bytes| {
            Poll::Ready(Some(Ok(http_body::Frame::data(bytes))))
        })
    }
}

#[test]
fn a_message_that_does_not_arrive_is_not_waited_for() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // Its clock goes on by itself while everything waits.
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let stalled = || Stalled(Some(Bytes::from_static(b"{")));
    let unary = runtime.block_on(read_message::<Sample, _>(MessageCodec::Json, stalled()));
    assert_eq!(unary.unwrap_err().code, ConnectCode::DeadlineExceeded);
    let stream = runtime.block_on(MessageFrames::new(MessageCodec::Json, stalled()).only::<Sample>());
    assert_eq!(stream.unwrap_err().code, ConnectCode::DeadlineExceeded);
}

#[test]
fn an_answer_that_is_too_large_is_an_error() {
    let sample = |length: usize| Sample {
        some_text: Some("\u{1}".repeat(length)),
        ..Sample::default()
    };
    let code = |codec: MessageCodec, length| codec.encode(&sample(length)).map(|_| ()).map_err(|error| error.code);
    // JSON writes six bytes for each of these.
    for (codec, most) in [(MessageCodec::Json, MAX_ANSWER / 6), (MessageCodec::Proto, MAX_ANSWER)] {
        assert_eq!(code(codec, most - 100), Ok(()));
        assert_eq!(code(codec, most + 1), Err(ConnectCode::ResourceExhausted));
    }
}

#[test]
fn calls_are_known_by_their_content() {
    for (content, expected) in [
        ("application/json", Some((CallKind::Unary, MessageCodec::Json))),
        (
            "Application/JSON; charset=utf-8",
            Some((CallKind::Unary, MessageCodec::Json)),
        ),
        ("application/proto", Some((CallKind::Unary, MessageCodec::Proto))),
        ("application/connect+json", Some((CallKind::Stream, MessageCodec::Json))),
        (
            "application/connect+proto",
            Some((CallKind::Stream, MessageCodec::Proto)),
        ),
        ("application/grpc", None),
        ("text/plain", None),
    ] {
        let call = ConnectCall::of(&headers(&[("content-type", content)]));
        assert_eq!(call.map(|call| (call.kind, call.codec)), expected, "{content}");
    }
    assert_eq!(ConnectCall::of(&HeaderMap::new()), None);
}

#[test]
fn what_cannot_be_understood_is_refused() {
    let check = |kind, name, value| {
        let codec = MessageCodec::Json;
        ConnectCall { kind, codec }
            .check(&headers(&[(name, value)]))
            .map_err(|error| error.code)
    };
    assert_eq!(check(CallKind::Unary, "connect-protocol-version", "1"), Ok(()));
    assert_eq!(
        check(CallKind::Unary, "connect-protocol-version", "2"),
        Err(ConnectCode::InvalidArgument)
    );
    assert_eq!(check(CallKind::Unary, "content-encoding", "identity"), Ok(()));
    assert_eq!(
        check(CallKind::Unary, "content-encoding", "gzip"),
        Err(ConnectCode::Unimplemented)
    );
    assert_eq!(check(CallKind::Stream, "content-encoding", "gzip"), Ok(()));
    assert_eq!(
        check(CallKind::Stream, "connect-content-encoding", "br"),
        Err(ConnectCode::Unimplemented)
    );
}

#[test]
fn timeouts_are_numbers() {
    let timeout = |value| ConnectCall::timeout(&headers(&[("connect-timeout-ms", value)]));
    assert_eq!(ConnectCall::timeout(&HeaderMap::new()), Ok(None));
    assert_eq!(timeout("0"), Ok(None));
    assert_eq!(timeout("60000"), Ok(Some(Duration::from_secs(60))));
    for wrong in ["", "-1", "+1", "1.5", "1e3", "99999999999", "x"] {
        assert_eq!(
            timeout(wrong).unwrap_err().code,
            ConnectCode::InvalidArgument,
            "{wrong}"
        );
    }
}

#[test]
fn a_unary_call_fails_with_a_status_and_a_stream_within_itself() {
    let error = ConnectError::new(ConnectCode::Unauthenticated, "no");
    let answer = |kind| {
        let codec = MessageCodec::Proto;
        block_on(collected(refuse(ConnectCall { kind, codec }, &error)))
    };
    let (status, body) = answer(CallKind::Unary);
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(&body.unwrap()[..], br#"{"code":"unauthenticated","message":"no"}"#);
    let (status, body) = answer(CallKind::Stream);
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body.unwrap(), end_frame(Some(&error)));
}

#[test]
fn a_stream_yields_messages_and_says_how_it_ended() {
    let message = Sample::default();
    let frame = message_frame(&MessageCodec::Json.encode(&message).unwrap()).unwrap();
    let answered = |end: fn() -> Result<(), StreamEnd>| {
        let message = message.clone();
        let response = stream(MessageCodec::Json, |outgoing| async move {
            // More than may wait for a client that does not read.
            for _ in 0..20 {
                outgoing.send(&message).await?;
            }
            end()
        });
        block_on(collected(response)).1
    };
    let messages = frame.repeat(20);
    assert_eq!(
        answered(|| Ok(())).unwrap(),
        [messages.as_slice(), &end_frame(None)].concat()
    );
    let error = || ConnectError::new(ConnectCode::DeadlineExceeded, "late");
    let failed = answered(|| Err(ConnectError::new(ConnectCode::DeadlineExceeded, "late").into())).unwrap();
    assert_eq!(failed, [messages.as_slice(), &end_frame(Some(&error()))].concat());
    // The connection is cut, which no client takes for the end.
    assert!(answered(|| Err(StreamEnd::Cut)).is_err());
}

#[test]
fn what_serves_a_stream_is_dropped_with_it() {
    let alive = std::sync::Arc::new(());
    let held = std::sync::Arc::clone(&alive);
    let response = stream(MessageCodec::Json, |_| async move {
        std::future::pending::<()>().await;
        drop(held);
        Ok(())
    });
    assert_eq!(std::sync::Arc::strong_count(&alive), 2);
    drop(response);
    assert_eq!(std::sync::Arc::strong_count(&alive), 1);
}

proptest! {
    #[test]
    fn no_bytes_break_the_codecs(bytes: Vec<u8>) {
        for codec in [MessageCodec::Json, MessageCodec::Proto] {
            let _ = codec.decode::<Sample>(&bytes);
        }
    }

    #[test]
    fn no_bytes_break_the_frames(pieces: Vec<Vec<u8>>, flags in 0_u8..4, length in 0_u32..40) {
        let mut decoder = FrameDecoder::new(32);
        decoder.push(&[flags]);
        decoder.push(&length.to_be_bytes());
        for piece in pieces {
            decoder.push(&piece);
            while let Ok(Some(_)) = decoder.next() {}
        }
    }

    #[test]
    fn what_is_encoded_is_decoded(text: String, bytes: Vec<u8>, number: u32, wide: i64, list: Vec<String>) {
        let message = Sample {
            some_text: Some(text),
            bytes: Some(bytes),
            number: Some(number),
            wide,
            list,
            inner: None,
        };
        for codec in [MessageCodec::Json, MessageCodec::Proto] {
            let encoded = codec.encode(&message).unwrap();
            prop_assert_eq!(&codec.decode::<Sample>(&encoded).unwrap(), &message);
        }
    }
}

/// A message, and an end that comes later.
struct Late {
    message: Option<Bytes>,
    turns: u32,
    is_read: Arc<AtomicBool>,
}

impl Body for Late {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(http_body::Frame::data(message))));
        }
        if self.turns > 0 {
            self.turns -= 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.is_read.store(true, Ordering::Relaxed);
        Poll::Ready(None)
    }
}

#[test]
fn what_follows_the_only_message_is_read_though_nobody_waits_for_it() {
    let is_read = Arc::new(AtomicBool::new(false));
    let body = Late {
        message: Some(message_frame(br#"{"number":1}"#).unwrap()),
        turns: 5,
        is_read: Arc::clone(&is_read),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let message = MessageFrames::new(MessageCodec::Json, body)
            .only::<Sample>()
            .await
            .unwrap();
        assert_eq!(message.unwrap().number(), 1);
        assert!(!is_read.load(Ordering::Relaxed));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    });
    assert!(is_read.load(Ordering::Relaxed));
}
