use proptest::prelude::*;

use super::*;

const HELLO: &[u8] = b"RFB 003.008\n\x01\x00";
const FORMAT: [u8; 20] = [0; 20];
const ENCODINGS: &[u8] = b"\x02\0\0\x02\0\0\0\0\xff\xff\xff\x21";
const UPDATE: &[u8] = b"\x03\x01\0\0\0\0\x01\x90\x01\x2c";
const KEY: &[u8] = b"\x04\x01\0\0\0\0\0a";
const POINTER: &[u8] = b"\x05\x01\0\x10\0\x10";
const CUT: &[u8] = b"\x06\0\0\0\0\0\0\x03abc";
const LONG_CUT: &[u8] = b"\x06\0\0\0\xff\xff\xff\xfd\x05\x05\x05";
const SIZE: &[u8] = b"\xfb\0\x01\x90\x01\x2c\x01\0AAAABBBBCCCCDDDD";
const QEMU_KEY: &[u8] = b"\xff\0\0\x01\0\0\0a\0\0\0\x1e";

/// A frame as a page sends it.
fn frame(opcode: u8, last: bool, payload: &[u8]) -> Vec<u8> {
    let mask = [7, 31, 127, 2];
    let mut framed = vec![opcode | if last { 0x80 } else { 0 }];
    match payload.len() {
        short @ 0..126 => framed.push(0x80 | u8::try_from(short).unwrap()),
        wide => {
            framed.push(0x80 | 126);
            framed.extend(u16::try_from(wide).unwrap().to_be_bytes());
        }
    }
    framed.extend(mask);
    framed.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    framed
}

/// What is in frames that the judge wrote.
fn payloads(written: &[u8]) -> Vec<u8> {
    let parts = ClientFrames::default().take(written).unwrap();
    parts
        .into_iter()
        .flat_map(|part| match part {
            FramePart::Data(data) => data,
            FramePart::Control { .. } => Vec::new(),
        })
        .collect()
}

#[test]
fn who_only_looks_asks_for_pictures_and_changes_nothing() {
    let mut judge = ViewerJudge::default();
    let mut passed = |bytes: &[u8]| payloads(&judge.take(&frame(BINARY_FRAME, true, bytes)).unwrap());
    // Whoever comes keeps nobody out, whatever it asks for.
    assert_eq!(passed(HELLO), b"RFB 003.008\n\x01\x01");
    for asks in [&FORMAT, ENCODINGS, UPDATE] {
        assert_eq!(passed(asks), asks, "{asks:?}");
    }
    for drives in [KEY, POINTER, CUT, LONG_CUT, SIZE, QEMU_KEY] {
        assert_eq!(passed(drives), b"", "{drives:?}");
        assert_eq!(passed(UPDATE), UPDATE, "{drives:?}");
    }
    // Many in one frame.
    assert_eq!(
        passed(&[KEY, UPDATE, POINTER, CUT, ENCODINGS].concat()),
        [UPDATE, ENCODINGS].concat()
    );
}

const BINARY_FRAME: u8 = frames::BINARY;

#[test]
fn what_is_not_understood_ends_the_connection() {
    let begun = || {
        let mut judge = ViewerJudge::default();
        judge.take(&frame(BINARY_FRAME, true, HELLO)).unwrap();
        judge
    };
    for unknown in [1, 7, 9, 11, 150, 248, 252] {
        assert_eq!(
            begun().take(&frame(BINARY_FRAME, true, &[unknown; 32])),
            Err(ViewerError::Message),
            "{unknown}"
        );
    }
    for hello in [b"RFB 003.008\n\x02".as_slice(), b"RFB 004.001\n", b"GET / HTTP/1.1\r\n"] {
        let first = ViewerJudge::default().take(&frame(BINARY_FRAME, true, hello));
        assert_eq!(first, Err(ViewerError::Message), "{hello:?}");
    }
    // Not masked; of an extension; of no kind; a control frame in pieces, and one that is too long.
    for broken in [
        b"\x82\x01a".to_vec(),
        [&[0xc2], &frame(BINARY_FRAME, true, UPDATE)[1..]].concat(),
        frame(3, true, UPDATE),
        frame(9, false, b"a"),
        frame(9, true, &[0; 126]),
    ] {
        assert_eq!(begun().take(&broken), Err(ViewerError::Frame), "{broken:?}");
    }
}

#[test]
fn pings_and_farewells_are_passed_on_between_pieces_of_data() {
    let mut judge = ViewerJudge::default();
    judge.take(&frame(BINARY_FRAME, true, HELLO)).unwrap();
    let said = [
        frame(BINARY_FRAME, false, &UPDATE[..3]),
        frame(9, true, b"there?"),
        frame(0, true, &UPDATE[3..]),
        frame(8, true, &[3, 232]),
    ];
    let written = judge.take(&said.concat()).unwrap();
    let parts = ClientFrames::default().take(&written).unwrap();
    let controls: Vec<_> = parts
        .iter()
        .filter(|part| matches!(part, FramePart::Control { .. }))
        .collect();
    assert_eq!(controls.len(), 2, "{parts:?}");
    assert_eq!(payloads(&written), UPDATE);
}

proptest! {
    /// However it is cut into frames and pieces, the same goes on; and no bytes whatever make it fail but by its errors.
    #[test]
    fn what_goes_on_does_not_depend_on_where_it_is_cut(
        cuts in prop::collection::vec(1_usize..40, 1..40),
        pieces in prop::collection::vec(1_usize..40, 1..40),
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let said = [HELLO, KEY, ENCODINGS, CUT, &FORMAT, LONG_CUT, UPDATE, POINTER, SIZE, UPDATE].concat();
        let expected = [b"RFB 003.008\n\x01\x01".as_slice(), ENCODINGS, &FORMAT, UPDATE, UPDATE].concat();
        let mut framed = Vec::new();
        let (mut rest, mut cut) = (said.as_slice(), cuts.iter().cycle());
        while !rest.is_empty() {
            let (now, later) = rest.split_at((*cut.next().unwrap()).min(rest.len()));
            framed.extend(frame(BINARY_FRAME, true, now));
            rest = later;
        }
        let mut judge = ViewerJudge::default();
        let mut passed = Vec::new();
        let (mut rest, mut piece) = (framed.as_slice(), pieces.iter().cycle());
        while !rest.is_empty() {
            let (now, later) = rest.split_at((*piece.next().unwrap()).min(rest.len()));
            passed.extend(judge.take(now).unwrap());
            rest = later;
        }
        prop_assert_eq!(payloads(&passed), expected);
        let _any = judge.take(&noise);
    }
}
