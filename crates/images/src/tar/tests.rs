use proptest::prelude::*;

use super::testing::{RawHeader, TarBuilder};
use super::*;

/// All entries with their contents, or why there are none.
fn read(bytes: &[u8]) -> Result<Vec<(TarEntry, Vec<u8>)>, LayerRefusal> {
    let mut archive = Archive::new(bytes);
    let mut entries = Vec::new();
    while let Some(entry) = archive.next().map_err(|error| error.reason)? {
        let mut contents = Vec::new();
        let mut buffer = [0; 100];
        loop {
            match archive.read_contents(&mut buffer).map_err(LayerRefusal::of_reading)? {
                0 => break,
                read => contents.extend(&buffer[..read]),
            }
        }
        entries.push((entry, contents));
    }
    Ok(entries)
}

fn first(tar: TarBuilder) -> Result<(TarEntry, Vec<u8>), LayerRefusal> {
    Ok(read(&tar.end())?.remove(0))
}

#[test]
fn names_are_read_in_each_of_their_forms() {
    let long = "long/".repeat(1000) + "name";
    let (entry, contents) = first(TarBuilder::default().file(&long, b"x")).unwrap();
    assert_eq!((entry.path.len(), contents), (5004, b"x".to_vec()));
    let (entry, _) = first(TarBuilder::default().symlink("a", &long)).unwrap();
    assert_eq!((entry.kind, entry.link.len()), (EntryKind::Symlink, 5004));
    let pax = TarBuilder::default().pax(&[("path", long.as_bytes()), ("linkpath", b"to"), ("uid", b"70000")]);
    let (entry, _) = first(pax.hard_link("short", "other")).unwrap();
    assert_eq!(
        (entry.path.len(), entry.link.as_slice(), entry.uid),
        (5004, &b"to"[..], 70_000)
    );
    let prefixed = RawHeader::new(b'0', b"name").with(345, b"prefix/of");
    let (entry, _) = first(TarBuilder::default().raw(prefixed, b"")).unwrap();
    assert_eq!(entry.path, b"prefix/of/name");
    // GNU has something else where POSIX has the prefix.
    let gnu = RawHeader::new(b'0', b"name")
        .with(257, b"ustar  \0")
        .with(345, b"00000000000");
    assert_eq!(first(TarBuilder::default().raw(gnu, b"")).unwrap().0.path, b"name");
}

#[test]
fn numbers_are_read_in_each_of_their_forms() {
    let base256 = |value: u64| [&[0x80, 0, 0, 0][..], &value.to_be_bytes()].concat();
    let header = RawHeader::new(b'0', b"a")
        .with(124, &base256(3))
        .with(108, &[0x80, 0, 0, 0, 0, 1, 0, 0]);
    let (entry, contents) = first(TarBuilder::default().raw(header, b"abc")).unwrap();
    assert_eq!((entry.stored, entry.uid, contents), (3, 65_536, b"abc".to_vec()));
    let spaces = RawHeader::new(b'0', b"a").with(124, b"          3 ");
    assert_eq!(first(TarBuilder::default().raw(spaces, b"abc")).unwrap().0.stored, 3);
    let before = RawHeader::new(b'0', b"a").with(136, &[0xff; 12]);
    assert_eq!(
        first(TarBuilder::default().raw(before, b"")).unwrap().0.modified,
        (-1, 0)
    );
    let pax = TarBuilder::default().pax(&[("mtime", b"-1.25")]).file("a", b"");
    assert_eq!(first(pax).unwrap().0.modified, (-2, 750_000_000));
}

#[test]
fn sizes_that_are_none_are_refused() {
    let refused = |header: RawHeader| first(TarBuilder::default().raw(header, b"")).unwrap_err();
    let sized = |bytes: &[u8]| refused(RawHeader::new(b'0', b"a").with(124, bytes));
    assert_eq!(sized(&[0xff; 12]), LayerRefusal::NegativeSize);
    assert_eq!(
        sized(&[0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        LayerRefusal::BadNumber
    );
    assert_eq!(sized(b"-0000000001\0"), LayerRefusal::BadNumber);
    assert_eq!(sized(b"00000000009\0"), LayerRefusal::BadNumber);
    assert_eq!(sized(b"77777777777\0"), LayerRefusal::Truncated);
    for (size, refusal) in [
        (&b"-1"[..], LayerRefusal::NegativeSize),
        (b"99999999999999999999", LayerRefusal::BadNumber),
        (b"1 ", LayerRefusal::BadNumber),
        (b"18446744073709551615", LayerRefusal::Truncated),
    ] {
        assert_eq!(
            first(TarBuilder::default().pax(&[("size", size)]).file("a", b"")).unwrap_err(),
            refusal
        );
    }
    let long = RawHeader::new(b'L', b"a").size(MAX_EXTENDED_HEADER + 1);
    assert_eq!(refused(long), LayerRefusal::BadExtendedHeader);
}

#[test]
fn extended_headers_that_are_none_are_refused() {
    for text in [
        &b"5 a=\n"[..],
        b"0 a=b\n",
        b"99 a=b\n",
        b"6 a=b ",
        b"6 =ab\n",
        b"x a=b\n",
        b"\xff\xff",
        b"6 aab\n",
    ] {
        let header = RawHeader::new(b'x', b"pax").size(text.len() as u64);
        let read = first(TarBuilder::default().raw(header, text).file("a", b""));
        let is_fine = text == b"5 a=\n";
        assert_eq!(read.is_ok(), is_fine, "{text:?}");
    }
    let endless = (0..MAX_HEADERS_OF_AN_ENTRY).fold(TarBuilder::default(), |tar, _| tar.pax(&[("a", b"b")]));
    assert_eq!(
        first(endless.file("a", b"")).unwrap_err(),
        LayerRefusal::BadExtendedHeader
    );
}

#[test]
fn sparse_files_are_read_in_each_of_their_forms() {
    let map = |pieces: &[(u64, u64)], size| {
        Some(SparseMap {
            pieces: pieces.to_vec(),
            size,
        })
    };
    let octal = |number: u64| format!("{number:011o}\0");
    let old = RawHeader::new(b'S', b"a").size(3);
    let old = old.with(386, (octal(0) + &octal(1) + &octal(4096) + &octal(2)).as_bytes());
    let old = old.with(483, octal(9000).as_bytes());
    let (entry, contents) = first(TarBuilder::default().raw(old, b"abc")).unwrap();
    assert_eq!(
        (entry.sparse, contents),
        (map(&[(0, 1), (4096, 2)], 9000), b"abc".to_vec())
    );

    let with_map: &[(&str, &[u8])] = &[
        ("GNU.sparse.map", b"0,1,4096,2"),
        ("GNU.sparse.size", b"9000"),
        ("GNU.sparse.name", b"real"),
    ];
    let (entry, _) = first(TarBuilder::default().pax(with_map).file("a", b"abc")).unwrap();
    assert_eq!(
        (entry.sparse, entry.path),
        (map(&[(0, 1), (4096, 2)], 9000), b"real".to_vec())
    );

    let repeated: &[(&str, &[u8])] = &[
        ("GNU.sparse.size", b"9000"),
        ("GNU.sparse.offset", b"0"),
        ("GNU.sparse.numbytes", b"1"),
        ("GNU.sparse.offset", b"4096"),
        ("GNU.sparse.numbytes", b"2"),
    ];
    let (entry, _) = first(TarBuilder::default().pax(repeated).file("a", b"abc")).unwrap();
    assert_eq!(entry.sparse, map(&[(0, 1), (4096, 2)], 9000));

    let newest: &[(&str, &[u8])] = &[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.realsize", b"9000"),
    ];
    let mut text = b"2\n0\n1\n4096\n2\n".to_vec();
    text.resize(512, 0);
    text.extend(b"abc");
    let (entry, contents) = first(TarBuilder::default().pax(newest).file("a", &text)).unwrap();
    assert_eq!(
        (entry.sparse, contents),
        (map(&[(0, 1), (4096, 2)], 9000), b"abc".to_vec())
    );
}

#[test]
fn maps_that_lie_are_refused() {
    for (numbers, size) in [
        ("0,2", "9000"),
        ("0,3,1,0", "9000"),
        ("4096,3", "4000"),
        ("0", "9000"),
        ("18446744073709551615,3", "9000"),
        ("0,3", "99999999999999"),
        ("-1,3", "9000"),
    ] {
        let records: &[(&str, &[u8])] = &[
            ("GNU.sparse.map", numbers.as_bytes()),
            ("GNU.sparse.size", size.as_bytes()),
        ];
        assert!(
            first(TarBuilder::default().pax(records).file("a", b"abc")).is_err(),
            "{numbers}"
        );
    }
    let records: &[(&str, &[u8])] = &[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.realsize", b"9"),
    ];
    for text in ["99999999\n", "1\n0\n", "x\n", "1111111111111111111111111111111"] {
        let mut text = text.as_bytes().to_vec();
        text.resize(512, b'0');
        assert!(first(TarBuilder::default().pax(records).file("a", &text)).is_err());
    }
}

#[test]
fn an_archive_that_was_cut_or_damaged_is_refused() {
    let whole = TarBuilder::default().file("a", &[1; 700]).end();
    for cut in [1, 511, 513, 1000, 1300] {
        assert_eq!(read(&whole[..cut]).unwrap_err(), LayerRefusal::Truncated, "{cut}");
    }
    // Without the zeros at its end it is whole.
    assert_eq!(read(&whole[..1536]).unwrap().len(), 1);
    let mut damaged = whole;
    damaged[3] ^= 1;
    assert_eq!(read(&damaged).unwrap_err(), LayerRefusal::BadChecksum);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        let _read = read(&bytes);
    }

    #[test]
    fn any_header_is_read_or_refused(
        flag in any::<u8>(),
        changes in proptest::collection::vec((0_usize..512, any::<u8>()), 0..20),
        contents in proptest::collection::vec(any::<u8>(), 0..1500),
    ) {
        let mut header = RawHeader::new(flag, b"name").size(contents.len() as u64);
        for (at, byte) in changes {
            header.0[at] = byte;
        }
        let _read = read(&TarBuilder::default().raw(header, &contents).file("after", b"x").end());
    }

    #[test]
    fn records_are_read_as_they_were_written(
        records in proptest::collection::btree_map("[a-z.]{1,30}", proptest::collection::vec(any::<u8>(), 1..200), 0..9)
    ) {
        let pairs: Vec<(String, &[u8])> = records.iter().map(|(key, value)| (format!("SCHILY.xattr.user.{key}"), &**value)).collect();
        let pairs: Vec<(&str, &[u8])> = pairs.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        let (entry, _) = first(TarBuilder::default().pax(&pairs).file("a", b"")).unwrap();
        let expected: Vec<(Vec<u8>, Vec<u8>)> =
            records.into_iter().map(|(key, value)| (format!("user.{key}").into_bytes(), value)).collect();
        prop_assert_eq!(entry.attributes, expected);
    }
}
