//! Frames survive every division of their bytes, and nothing else is taken for one.

use proptest::prelude::*;

use super::*;

fn encoded(kind: &str, id: HexId, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{kind} {id} {}\n", payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

fn decode_all(decoder: &mut DriverDecoder, mut bytes: &[u8]) -> Result<Vec<DriverFrame>, FrameError> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        frames.extend(decoder.next(&mut bytes)?);
    }
    Ok(frames)
}

fn id_of(number: u8) -> HexId {
    format!("{number:032x}").parse().unwrap()
}

fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    cuts.sort_unstable();
    let mut from = 0;
    let mut pieces = Vec::new();
    for cut in cuts.into_iter().chain([bytes.len()]) {
        pieces.push(&bytes[from..cut]);
        from = cut;
    }
    pieces
}

const KINDS: [(&str, FrameKind); 13] = [
    ("sync", FrameKind::Sync),
    ("count", FrameKind::Count),
    ("stdout", FrameKind::Stdout),
    ("stderr", FrameKind::Stderr),
    ("text", FrameKind::Text),
    ("json", FrameKind::Json),
    ("omitted", FrameKind::Omitted),
    ("result", FrameKind::Result),
    ("error_name", FrameKind::ErrorName),
    ("error_value", FrameKind::ErrorValue),
    ("error", FrameKind::Error),
    ("truncated", FrameKind::Truncated),
    ("done", FrameKind::Done),
];

proptest! {
    #[test]
    fn any_division_gives_the_same_frames(
        frames in proptest::collection::vec(
            (0..KINDS.len(), any::<u8>(), proptest::collection::vec(any::<u8>(), 0..300)), 0..8),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (kind, number, payload) in frames {
            let (word, kind) = KINDS[kind];
            let id = id_of(number);
            bytes.extend(encoded(word, id, &payload));
            expected.push(DriverFrame { kind, id, payload });
        }
        let mut decoder = DriverDecoder::new();
        let mut found = Vec::new();
        for piece in pieces(&bytes, &cuts) {
            found.extend(decode_all(&mut decoder, piece).unwrap());
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn nothing_that_a_driver_says_is_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode_all(&mut DriverDecoder::new(), &bytes);
    }

    #[test]
    fn an_answer_is_found_behind_anything(
        before in proptest::collection::vec(any::<u8>(), 0..300),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let id = id_of(7);
        let mut bytes = before;
        bytes.extend(encoded("sync", id, b"3"));
        bytes.extend(encoded("stdout", id_of(8), b"x"));
        let mut scanner = Some(SyncScanner::new(id));
        let mut decoder = DriverDecoder::new();
        let mut found = Vec::new();
        for piece in pieces(&bytes, &cuts) {
            let rest = match &mut scanner {
                Some(looking) => match looking.push(piece) {
                    Some(rest) => { scanner = None; rest }
                    None => continue,
                },
                None => piece.to_vec(),
            };
            found.extend(decode_all(&mut decoder, &rest).unwrap());
        }
        prop_assert_eq!(found.len(), 2);
        prop_assert_eq!(&found[0], &DriverFrame { kind: FrameKind::Sync, id, payload: b"3".to_vec() });
    }
}

#[test]
fn what_is_no_frame_is_refused() {
    let id = "0".repeat(32);
    for (line, expected) in [
        (format!("nothing {id} 0\n"), FrameError::Kind),
        (
            format!("done {id} 99999999\n"),
            FrameError::TooLarge { most: MAX_FROM_DRIVER },
        ),
        (format!("done {id} 999999999\n"), FrameError::Line),
        (format!("done {id} -1\n"), FrameError::Line),
        (format!("done {id} +1\n"), FrameError::Line),
        (format!("done {id} \n"), FrameError::Line),
        (format!("done {id}\n"), FrameError::Line),
        (format!("done {id} 1 2\n"), FrameError::Line),
        (format!("done {} 0\n", &id[1..]), FrameError::Line),
        ("\n".to_owned(), FrameError::Line),
        ("done\u{e9}".repeat(12), FrameError::Line),
        ("x".repeat(MAX_LINE), FrameError::Line),
    ] {
        assert_eq!(
            decode_all(&mut DriverDecoder::new(), line.as_bytes()),
            Err(expected),
            "{line:?}"
        );
    }
}

#[test]
fn a_large_frame_takes_no_more_than_what_came_of_it() {
    let mut decoder = DriverDecoder::new();
    let line = format!("text {NOBODY} {MAX_FROM_DRIVER}\n");
    assert_eq!(decode_all(&mut decoder, line.as_bytes()), Ok(Vec::new()));
    assert_eq!(decode_all(&mut decoder, b"abc"), Ok(Vec::new()));
    let (open, _) = decoder.open.as_ref().unwrap();
    assert!(open.payload.capacity() < 1024);
}

#[test]
fn frames_of_the_host_are_bounded() {
    let most = vec![b'x'; MAX_FROM_HOST];
    let frame = HostFrame::Code(NOBODY, &most).encode().unwrap();
    assert!(frame.starts_with(format!("code {NOBODY} {MAX_FROM_HOST}\nx").as_bytes()));
    assert!(frame.len() <= crate::process::MAX_INPUT);
    let more = vec![b'x'; MAX_FROM_HOST + 1];
    let refused = HostFrame::Code(NOBODY, &more).encode();
    assert_eq!(refused, Err(FrameError::TooLarge { most: MAX_FROM_HOST }));
    let run = HostFrame::Run {
        cell: NOBODY,
        output: 5,
        results: 6,
    };
    assert_eq!(run.encode().unwrap(), format!("run {NOBODY} 3\n5 6").as_bytes());
}
