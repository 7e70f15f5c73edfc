//! Requests to file workers and their answers, against arbitrary bytes, arbitrary messages and arbitrary cuts.

use offleash_protocol::files::{
    ChangeKind, DATA_CHUNK, DATA_PREFIX, ENTRIES_CHUNK, FileEntry, FileReply, FileRequest, LinkTarget, WatchedChange,
    frame_data, framed_data,
};
use offleash_protocol::{Dialogue, FrameError, MessageDecoder, encode};
use proptest::prelude::*;

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

fn pairs() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
    prop::collection::vec((text(), text()), 0..4)
}

fn request() -> impl Strategy<Value = FileRequest> {
    prop_oneof![
        text().prop_map(|path| FileRequest::Stat { path }),
        (text(), any::<u32>()).prop_map(|(path, depth)| FileRequest::List { path, depth }),
        text().prop_map(|path| FileRequest::MakeDirectory { path }),
        (text(), text()).prop_map(|(source, destination)| FileRequest::Rename { source, destination }),
        text().prop_map(|path| FileRequest::Remove { path }),
        (text(), any::<u64>(), any::<Option<u64>>()).prop_map(|(path, offset, length)| FileRequest::Read {
            path,
            offset,
            length
        }),
        (text(), pairs()).prop_map(|(path, metadata)| FileRequest::Write { path, metadata }),
        text().prop_map(|bytes| FileRequest::Data { bytes }),
        Just(FileRequest::Finish),
        (text(), any::<bool>(), any::<bool>()).prop_map(|(path, recursive, entries)| FileRequest::Watch {
            path,
            recursive,
            entries
        }),
    ]
}

fn entry() -> impl Strategy<Value = FileEntry> {
    let target = (text(), any::<Option<u32>>()).prop_map(|(path, mode)| LinkTarget { path, mode });
    let names = (text(), text(), text(), pairs(), prop::option::of(target));
    let numbers = any::<(u32, u64, u32, u32, i64, u32)>();
    (names, numbers).prop_map(
        |((path, owner, group, metadata, target), (mode, size, uid, gid, modified_s, modified_ns))| FileEntry {
            path,
            mode,
            size,
            uid,
            gid,
            owner,
            group,
            modified_s,
            modified_ns,
            target,
            metadata,
        },
    )
}

fn change() -> impl Strategy<Value = WatchedChange> {
    let kind = prop::sample::select(vec![
        ChangeKind::Create,
        ChangeKind::Write,
        ChangeKind::Remove,
        ChangeKind::Rename,
        ChangeKind::Chmod,
        ChangeKind::Overflow,
    ]);
    (text(), kind, prop::option::of(entry())).prop_map(|(name, kind, entry)| WatchedChange { name, kind, entry })
}

fn reply() -> impl Strategy<Value = FileReply> {
    prop_oneof![
        entry().prop_map(FileReply::Entry),
        prop::collection::vec(entry(), 0..4).prop_map(FileReply::Entries),
        text().prop_map(|bytes| FileReply::Data { bytes }),
        Just(FileReply::Done),
        prop::collection::vec(change(), 0..4).prop_map(FileReply::Changed),
        (".*", any::<i32>()).prop_map(|(step, errno)| FileReply::Failed { step, errno }),
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
    let frames = messages
        .iter()
        .map(|message| encode(message).expect("small messages fit"));
    let stream: Vec<u8> = frames.flatten().collect();
    assert_eq!(decode_in_pieces(&stream, cuts), Ok((messages, 0)));
}

fn frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("a short body");
    [&length.to_le_bytes()[..], body].concat()
}

proptest! {
    #[test]
    fn requests_survive_any_cut(
        messages in prop::collection::vec(request(), 0..5),
        cuts in prop::collection::vec(0usize..3000, 0..8),
    ) {
        check_roundtrip(messages, cuts);
    }

    #[test]
    fn answers_survive_any_cut(
        messages in prop::collection::vec(reply(), 0..5),
        cuts in prop::collection::vec(0usize..3000, 0..8),
    ) {
        check_roundtrip(messages, cuts);
    }

    #[test]
    fn arbitrary_streams_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), cut in 0usize..2000) {
        let _ = decode_in_pieces::<FileRequest>(&bytes, vec![cut]);
        let _ = decode_in_pieces::<FileReply>(&bytes, vec![cut]);
    }

    /// The header is right, and so is the kind; the rest is not.
    #[test]
    fn arbitrary_bodies_never_panic(kind in 0u8..12, body in prop::collection::vec(any::<u8>(), 0..500)) {
        let stream = frame(&[&[kind], &body[..]].concat());
        for result in [
            decode_in_pieces::<FileRequest>(&stream, vec![]).map(|_| ()),
            decode_in_pieces::<FileReply>(&stream, vec![]).map(|_| ()),
        ] {
            let expected = matches!(result, Ok(()) | Err(FrameError::Malformed { .. }));
            prop_assert!(expected);
        }
    }

    #[test]
    fn a_damaged_answer_never_panics(reply in reply(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut stream = encode(&reply).unwrap();
        let at = at.index(stream.len());
        stream[at] = byte;
        let _ = decode_in_pieces::<FileReply>(&stream, vec![]);
    }

    #[test]
    fn data_framed_in_place_is_what_encoding_makes_of_it(
        length in prop_oneof![0usize..300, 16_000usize..17_000, DATA_CHUNK - 100..=DATA_CHUNK],
        byte in any::<u8>(),
    ) {
        let mut buffer = vec![byte; DATA_PREFIX + length];
        let bytes = vec![byte; length];
        prop_assert_eq!(frame_data(&mut buffer, length), encode(&FileReply::Data { bytes }).unwrap());
    }
}

#[test]
fn large_pieces_are_known_by_their_first_bytes() {
    let framed = |request: &FileRequest| {
        let frame = encode(request).unwrap();
        let prefix = frame.first_chunk().copied().expect("long enough");
        framed_data(prefix).map(|length| frame[DATA_PREFIX..].len() == length)
    };
    for length in [16_384, 16_385, 100_000, DATA_CHUNK] {
        let bytes = vec![0xff; length];
        assert_eq!(framed(&FileRequest::Data { bytes }), Some(true), "{length}");
    }
    for length in [10, 200, 16_383, DATA_CHUNK + 1] {
        let bytes = vec![0xff; length];
        assert_eq!(framed(&FileRequest::Data { bytes }), None, "{length}");
    }
    let path = vec![b'x'; 20_000];
    assert_eq!(framed(&FileRequest::Remove { path }), None);
    let bytes = vec![0xff; DATA_CHUNK];
    let mut frame = encode(&FileRequest::Data { bytes }).unwrap();
    frame[0] += 1;
    assert_eq!(framed_data(frame.first_chunk().copied().expect("long enough")), None);
}

/// An entry of a dozen bytes takes some hundred in memory: a frame of them must not become twenty times its size.
#[test]
fn more_entries_than_allowed_are_refused() {
    let entries = |count| FileReply::Entries(vec![FileEntry::default(); count]);
    let most = encode(&entries(ENTRIES_CHUNK)).unwrap();
    assert!(decode_in_pieces::<FileReply>(&most, vec![]).is_ok());
    let more = encode(&entries(ENTRIES_CHUNK + 1)).unwrap();
    assert!(decode_in_pieces::<FileReply>(&more, vec![]).is_err());
    let change = WatchedChange {
        name: Vec::new(),
        kind: ChangeKind::Write,
        entry: None,
    };
    let more = encode(&FileReply::Changed(vec![change; ENTRIES_CHUNK + 1])).unwrap();
    assert!(decode_in_pieces::<FileReply>(&more, vec![]).is_err());
    let metadata = vec![(Vec::new(), Vec::new()); 2000];
    let annotated = encode(&FileReply::Entry(FileEntry {
        metadata,
        ..FileEntry::default()
    }));
    assert!(annotated.is_err());
}
