use proptest::prelude::*;

use super::*;

fn path(target: &str) -> CanonicalPath {
    target.parse().unwrap_or_else(|error| panic!("{target}: {error}"))
}

#[test]
fn spellings_of_a_path_are_one_path() {
    for (target, canonical) in [
        ("/", "/"),
        ("/v1/items", "/v1/items"),
        ("/v1/items/", "/v1/items/"),
        ("/%76%31/%7eme", "/v1/~me"),
        ("/a%2db%5Fc", "/a-b_c"),
        ("/a%2a%3f%23", "/a%2A%3F%23"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/a%20b", "/a%20b"),
        ("/100%25", "/100%25"),
        ("/a;b=c/d", "/a;b=c/d"),
        ("/...", "/..."),
        ("/.well-known/x", "/.well-known/x"),
        ("/@scope/name", "/@scope/name"),
        ("/a?b=%2e%2e", "/a?b=%2e%2e"),
        ("/a?", "/a?"),
        ("/a?x=/../y", "/a?x=/../y"),
    ] {
        assert_eq!(path(target).to_string(), canonical, "{target}");
    }
    assert_eq!((path("/a?b?c").as_str(), path("/a?b?c").query()), ("/a", Some("b?c")));
    assert_eq!(path("/a").query(), None);
}

#[test]
fn paths_that_servers_read_differently_are_refused() {
    type Kind = fn(&PathError) -> bool;
    let dots: Kind = |error| matches!(error, PathError::Dots(_));
    let empty: Kind = |error| matches!(error, PathError::EmptySegment(_));
    let encoded: Kind = |error| matches!(error, PathError::Encoded { .. });
    let byte: Kind = |error| matches!(error, PathError::Byte { .. });
    let escape: Kind = |error| matches!(error, PathError::Escape(_));
    let relative: Kind = |error| matches!(error, PathError::NotAbsolute(_));
    let text: Kind = |error| matches!(error, PathError::NotText(_));
    for (target, kind) in [
        (&b"/v1/../admin"[..], dots),
        (b"/v1/./x", dots),
        (b"/..", dots),
        (b"/.", dots),
        (b"/%2e%2e/admin", dots),
        (b"/v1/.%2E/admin", dots),
        (b"/v1/..;/admin", dots),
        (b"/v1/..;a=b/admin", dots),
        (b"/v1/..%3b/admin", dots),
        (b"/v1/%2e%2e%3Bx/admin", dots),
        (b"//evil.com/x", empty),
        (b"/v1//x", empty),
        (b"/v1/;/x", empty),
        (b"/v1/;x", empty),
        (b"/v1//", empty),
        (b"/v1%2fadmin", encoded),
        (b"/v1%2Fadmin", encoded),
        (b"/v1%5cadmin", encoded),
        (b"/v1%00", encoded),
        (b"/v1%0d%0aHost:x", encoded),
        (b"/v1%7f", encoded),
        (b"/v1/%252e%252e/x", encoded),
        (b"/v1%252fadmin", encoded),
        (b"/v1%25%32%66", encoded),
        (b"/v1%2525%32f", encoded),
        (b"/v1/%25%32%65%25%32%65/x", encoded),
        (b"/v1\\admin", byte),
        (b"/v1/..\\admin", byte),
        (b"/v1 x", byte),
        (b"/v1\0", byte),
        (b"/v1\r\n", byte),
        (b"/v1#x", byte),
        (b"/v1?a#x", byte),
        (b"/v1?a b", byte),
        ("/é".as_bytes(), byte),
        (b"/\xff", byte),
        (b"/%", escape),
        (b"/%2", escape),
        (b"/%zz", escape),
        (b"/%+1", escape),
        (b"/%u002e", escape),
        (b"", relative),
        (b"*", relative),
        (b"v1", relative),
        (b"?x", relative),
        (b"http://evil.com/", relative),
        (b"/%c0%ae%c0%ae/", text),
        (b"/%c0%af", text),
        (b"/%ff", text),
    ] {
        let error = match CanonicalPath::parse(target) {
            Ok(path) => panic!("{} is {path}", String::from_utf8_lossy(target)),
            Err(error) => error,
        };
        assert!(kind(&error), "{}: {error:?}", String::from_utf8_lossy(target));
        assert!(error.hint().is_some());
    }
    let long = format!("/{}", "a".repeat(MAX_TARGET));
    assert!(matches!(
        CanonicalPath::parse(long.as_bytes()),
        Err(PathError::TooLong { .. })
    ));
}

/// What lenient servers make of a path: decoded once more, parameters cut off, dots resolved.
fn as_a_lenient_server_reads_it(path: &str) -> Vec<String> {
    let mut resolved: Vec<String> = Vec::new();
    let decoded = decode(&decode(path)).replace('\\', "/");
    for segment in decoded.split('/').skip(1) {
        match segment.split(';').next().unwrap_or_default() {
            "." => {}
            ".." => {
                resolved.pop();
            }
            _ => resolved.push(segment.to_owned()),
        }
    }
    resolved
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        match hex_byte(after) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(b'%');
                rest = after;
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

proptest! {
    #[test]
    fn a_canonical_path_is_its_own_canonical_form(target in "/([a-c.%;/?0-9ef]|%2[0-9a-fA-F]){0,20}") {
        if let Ok(canonical) = CanonicalPath::parse(target.as_bytes()) {
            prop_assert_eq!(path(&canonical.to_string()), canonical);
        }
    }

    #[test]
    fn no_server_leaves_the_directory_that_a_path_begins_with(rest in "([a.;/]|%2[eEfF]|%5[cC]|%25|%3[bB]|\\.\\.){0,12}") {
        if let Ok(canonical) = CanonicalPath::parse(format!("/v1/{rest}").as_bytes()) {
            let read = as_a_lenient_server_reads_it(canonical.as_str());
            prop_assert_eq!(read.len(), canonical.as_str().split('/').count() - 1, "{}", canonical);
            prop_assert_eq!(read.first().map(String::as_str), Some("v1"), "{}", canonical);
        }
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>, text: String) {
        let _ = (CanonicalPath::parse(&bytes), CanonicalPath::parse(format!("/{text}").as_bytes()));
    }
}
