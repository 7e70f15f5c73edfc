//! Frames against arbitrary bytes, arbitrary messages and arbitrary cuts.

use offleash_protocol::{
    Dialogue, ExecCommand, ExitReport, FrameError, FromGuest, GuestIds, GuestStream, HEADER, MAX_STRINGS,
    MessageDecoder, SandboxUsage, StartFailure, StdinKind, TmpfsUsage, ToGuest, encode,
};
use proptest::prelude::*;

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

fn exec() -> impl Strategy<Value = ExecCommand> {
    let stdin = prop_oneof![Just(StdinKind::Null), Just(StdinKind::Stream)];
    let lists = (
        prop::collection::vec(text(), 0..8),
        prop::collection::vec((text(), text()), 0..8),
        text(),
    );
    let user = prop::option::of(any::<(u32, u32)>().prop_map(|(uid, gid)| GuestIds { uid, gid }));
    let rest = (
        any::<u32>(),
        stdin,
        any::<Option<(u16, u16)>>(),
        any::<Option<i16>>(),
        user,
    );
    (lists, rest).prop_map(
        |((argv, env, cwd), (exec, stdin, tty, oom_score_adj, user))| ExecCommand {
            exec,
            argv,
            env,
            cwd,
            stdin,
            tty,
            oom_score_adj,
            user,
        },
    )
}

fn to_guest() -> impl Strategy<Value = ToGuest> {
    prop_oneof![
        exec().prop_map(ToGuest::Exec),
        (any::<u32>(), text()).prop_map(|(exec, bytes)| ToGuest::Input { exec, bytes }),
        any::<u32>().prop_map(|exec| ToGuest::CloseInput { exec }),
        (any::<u32>(), any::<i32>(), any::<bool>()).prop_map(|(exec, signal, group)| ToGuest::Signal {
            exec,
            signal,
            group
        }),
        any::<(u32, u16, u16)>().prop_map(|(exec, rows, columns)| ToGuest::Resize { exec, rows, columns }),
        prop::option::of(any::<(u32, u32)>().prop_map(|(uid, gid)| GuestIds { uid, gid }))
            .prop_map(|user| ToGuest::Files { user }),
        Just(ToGuest::Usage),
        Just(ToGuest::Shutdown),
        text().prop_map(|path| ToGuest::ServeSudo { path }),
    ]
}

fn failure() -> impl Strategy<Value = StartFailure> {
    prop_oneof![
        Just(StartFailure::NotFound),
        any::<i32>().prop_map(|errno| StartFailure::NotExecutable { errno }),
        any::<i32>().prop_map(|errno| StartFailure::Directory { errno }),
        (".*", any::<i32>()).prop_map(|(step, errno)| StartFailure::Other { step, errno }),
    ]
}

fn end() -> impl Strategy<Value = ExitReport> {
    prop_oneof![
        any::<u8>().prop_map(|code| ExitReport::Exited { code }),
        any::<i32>().prop_map(|signal| ExitReport::Signaled { signal }),
        failure().prop_map(ExitReport::NotStarted),
    ]
}

fn tmpfs() -> impl Strategy<Value = TmpfsUsage> {
    (text(), any::<[u64; 4]>()).prop_map(|(path, [used, total, files_used, files_total])| TmpfsUsage {
        path,
        used,
        total,
        files_used,
        files_total,
    })
}

fn from_guest() -> impl Strategy<Value = FromGuest> {
    let stream = prop_oneof![Just(GuestStream::Stdout), Just(GuestStream::Stderr)];
    prop_oneof![
        any::<u32>().prop_map(|version| FromGuest::Ready { version }),
        any::<(u32, u32)>().prop_map(|(exec, pid)| FromGuest::Started { exec, pid }),
        (any::<u32>(), stream, text()).prop_map(|(exec, stream, bytes)| FromGuest::Output { exec, stream, bytes }),
        any::<(u32, u32)>().prop_map(|(exec, count)| FromGuest::InputTaken { exec, count }),
        (any::<u32>(), end(), any::<[u64; 3]>()).prop_map(|(exec, end, [user_us, system_us, max_rss_kib])| {
            FromGuest::Ended {
                exec,
                end,
                user_us,
                system_us,
                max_rss_kib,
            }
        }),
        (any::<(u32, [u64; 3])>(), prop::collection::vec(tmpfs(), 0..5)).prop_map(|((processes, numbers), tmpfs)| {
            let [shm_bytes, memory_kills, refused_processes] = numbers;
            FromGuest::UsageReport(SandboxUsage {
                processes,
                shm_bytes,
                tmpfs,
                memory_kills,
                refused_processes,
            })
        }),
        ".*".prop_map(|text| FromGuest::Problem { text }),
    ]
}

/// Pushes the stream in pieces that end at the cuts, and takes what comes out after each.
fn decode_in_pieces<M: Dialogue>(stream: &[u8], mut cuts: Vec<usize>) -> Result<(Vec<M>, usize), FrameError> {
    cuts.push(stream.len());
    cuts.sort_unstable();
    let (mut decoder, mut messages, mut start) = (MessageDecoder::new(), Vec::new(), 0);
    for cut in cuts {
        let end = cut.min(stream.len());
        decoder.push(&stream[start..end]);
        start = end;
        while let Some(message) = decoder.next()? {
            messages.push(message);
        }
    }
    Ok((messages, decoder.pending()))
}

fn check_roundtrip<M: Dialogue + PartialEq + std::fmt::Debug>(messages: Vec<M>, cuts: Vec<usize>) {
    let stream: Vec<u8> = messages
        .iter()
        .flat_map(|message| encode(message).expect("small messages fit"))
        .collect();
    assert_eq!(decode_in_pieces(&stream, cuts), Ok((messages, 0)));
}

/// A frame whose body is `body`, however long the header says.
fn frame(length: u32, body: &[u8]) -> Vec<u8> {
    [&length.to_le_bytes()[..], body].concat()
}

proptest! {
    #[test]
    fn messages_to_the_guest_survive_any_cut(
        messages in prop::collection::vec(to_guest(), 0..5),
        cuts in prop::collection::vec(0usize..3000, 0..8),
    ) {
        check_roundtrip(messages, cuts);
    }

    #[test]
    fn messages_from_the_guest_survive_any_cut(
        messages in prop::collection::vec(from_guest(), 0..5),
        cuts in prop::collection::vec(0usize..3000, 0..8),
    ) {
        check_roundtrip(messages, cuts);
    }

    #[test]
    fn arbitrary_streams_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), cut in 0usize..2000) {
        let _ = decode_in_pieces::<ToGuest>(&bytes, vec![cut]);
        let _ = decode_in_pieces::<FromGuest>(&bytes, vec![cut]);
    }

    /// Random bytes rarely pass the header, so here the header is right and the body is not.
    #[test]
    fn arbitrary_bodies_never_panic(body in prop::collection::vec(any::<u8>(), 1..500)) {
        let stream = frame(u32::try_from(body.len()).unwrap(), &body);
        for result in [
            decode_in_pieces::<ToGuest>(&stream, vec![]).map(|_| ()),
            decode_in_pieces::<FromGuest>(&stream, vec![]).map(|_| ()),
        ] {
            let expected = matches!(result, Ok(()) | Err(FrameError::Malformed { .. }));
            prop_assert!(expected);
        }
    }

    /// One byte of a right stream is changed: whatever comes out, it is no panic.
    #[test]
    fn a_damaged_message_never_panics(message in to_guest(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut stream = encode(&message).unwrap();
        let at = at.index(stream.len());
        stream[at] = byte;
        let _ = decode_in_pieces::<ToGuest>(&stream, vec![]);
    }
}

#[test]
fn a_message_survives_a_cut_at_every_byte() {
    let message = FromGuest::Output {
        exec: 7,
        stream: GuestStream::Stderr,
        bytes: b"one\0two\xff".to_vec(),
    };
    let stream = encode(&message).unwrap();
    for cut in 0..=stream.len() {
        assert_eq!(
            decode_in_pieces::<FromGuest>(&stream, vec![cut]),
            Ok((vec![message.clone()], 0))
        );
    }
}

#[test]
fn a_length_out_of_bounds_is_refused_before_the_body_arrives() {
    for length in [0, FromGuest::MAX_FRAME + 1, usize::try_from(u32::MAX).unwrap()] {
        let mut decoder = MessageDecoder::<FromGuest>::new();
        decoder.push(&u32::try_from(length).unwrap().to_le_bytes());
        assert_eq!(
            decoder.next(),
            Err(FrameError::Size {
                length,
                limit: FromGuest::MAX_FRAME
            })
        );
    }
}

#[test]
fn an_error_is_final() {
    let mut decoder = MessageDecoder::<FromGuest>::new();
    decoder.push(&frame(1, &[0xff]));
    let error = decoder.next().unwrap_err();
    decoder.push(&encode(&FromGuest::Ready { version: 1 }).unwrap());
    assert_eq!(decoder.next(), Err(error));
    assert_eq!(decoder.pending(), 0);
}

#[test]
fn bytes_behind_a_message_in_its_frame_are_refused() {
    let mut stream = encode(&ToGuest::Usage).unwrap();
    stream.push(0);
    stream[0] += 1;
    assert!(decode_in_pieces::<ToGuest>(&stream, vec![]).is_err());
}

fn command(argv: Vec<Vec<u8>>) -> ToGuest {
    let (env, cwd) = (vec![(b"PATH".to_vec(), b"/bin".to_vec())], b"/".to_vec());
    ToGuest::Exec(ExecCommand {
        exec: 1,
        argv,
        env,
        cwd,
        stdin: StdinKind::Null,
        tty: None,
        oom_score_adj: None,
        user: None,
    })
}

#[test]
fn an_argument_list_of_six_mebibytes_fits() {
    let message = command(vec![vec![b'x'; 128 * 1024]; 48]);
    let stream = encode(&message).unwrap();
    assert_eq!(
        decode_in_pieces::<ToGuest>(&stream, vec![100_000, 5_000_000])
            .unwrap()
            .0,
        [message]
    );
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_the_buffer_as_it_was() {
    let large = FromGuest::Problem {
        text: "x".repeat(FromGuest::MAX_FRAME),
    };
    let mut out = b"before".to_vec();
    let refused = offleash_protocol::encode_into(&large, &mut out);
    assert!(matches!(refused, Err(FrameError::Size { .. })));
    assert_eq!(out, b"before");
    let many = command(vec![Vec::new(); MAX_STRINGS + 1]);
    assert!(matches!(encode(&many), Err(FrameError::Malformed { .. })));
    assert!(encode(&command(vec![Vec::new(); MAX_STRINGS])).is_ok());
}

/// A list entry of one byte becomes a `Vec` of 24: a frame of them must not become eight times 24 MiB.
#[test]
fn a_frame_full_of_empty_strings_is_refused() {
    let list = vec![0u8; ToGuest::MAX_FRAME - 16];
    let mut body = vec![0, 1];
    let mut count = list.len();
    while count > 0x7f {
        body.push(u8::try_from(count & 0x7f).unwrap() | 0x80);
        count >>= 7;
    }
    body.push(u8::try_from(count).unwrap());
    body.extend_from_slice(&list);
    let stream = frame(u32::try_from(body.len()).unwrap(), &body);
    assert_eq!(
        decode_in_pieces::<ToGuest>(&stream, vec![]),
        Err(FrameError::Malformed {
            length: stream.len() - HEADER
        })
    );
}
