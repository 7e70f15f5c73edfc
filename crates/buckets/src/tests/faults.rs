//! Servers that do not do what they should.

use std::sync::atomic::{AtomicUsize, Ordering};

use offleash_core::error::{ErrorKind, Explained as _};

use super::{BOTH, is_get, names, whys};
use crate::BucketError;
use crate::testing::{Answer, STALL, Setting, exists, honest, tag_of};

#[test]
fn a_server_that_lies_about_an_object_brings_nothing_into_the_volume() {
    let setting = Setting::new();
    for name in ["digest", "long", "short", "tag", "whole"] {
        setting.server.put(name, "0123456789");
    }
    let tag = tag_of(b"0123456789");
    setting.server.fault(move |request, _| {
        let answer = |body: &str| Answer::status(200, body).with("ETag", &tag);
        match request.key.as_str() {
            _ if !is_get(request) => None,
            "digest" => Some(answer("9876543210")),
            "tag" => Some(Answer::status(200, "0123456789").with("ETag", "\"other\"")),
            "short" => {
                let mut cut = answer("0123456789");
                cut.ends_at = 4;
                Some(cut)
            }
            "long" => Some(answer("0123456789 and more").with("Transfer-Encoding", "identity")),
            _ => None,
        }
    });
    let crate::SyncOutcome { report, failure } = setting.try_sync(BOTH);
    // An answer that breaks off again and again is one of the connection.
    assert!(matches!(failure, Some(BucketError::Unreachable { .. })), "{failure:?}");
    assert_eq!(names(&report.failed), ["digest", "long"], "{report:?}");
    assert!(whys(&report.failed).contains("ETag"), "{report:?}");
    setting.server.lock().objects.remove("short");
    let report = setting.sync(BOTH);
    assert_eq!(
        (names(&report.failed), report.fetched),
        (vec!["digest".into(), "long".into(), "tag".into()], 1)
    );
    for name in ["digest", "long", "short", "tag"] {
        assert!(!exists(&setting.path(name)), "{name}");
    }
    assert_eq!(setting.incoming(), 0);
    // Once it is honest, all is as it should be.
    setting.server.no_fault();
    assert_eq!(setting.sync(BOTH).fetched, 3);
}

#[test]
fn what_passes_is_tried_again() {
    let setting = Setting::new();
    setting.server.put("a", "first");
    setting.write("b", "second");
    let failed = AtomicUsize::new(0);
    let contents = std::sync::Arc::clone(&setting.server.contents);
    setting.server.fault(move |request, _| {
        // The first two of each kind: a page, an object, a write, whose answer is lost although it was carried out.
        let number = failed.fetch_add(1, Ordering::Relaxed);
        match (request.method.as_str(), number) {
            ("GET", 0 | 2) => Some(Answer::error(503, "SlowDown")),
            ("PUT", 4) => {
                let answer = honest(request, &mut contents.lock().unwrap());
                assert_eq!(answer.status, 200);
                Some(Answer::error(500, "InternalError"))
            }
            _ => None,
        }
    });
    let report = setting.sync(BOTH);
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(setting.read("a").unwrap(), b"first");
    assert_eq!(setting.server.get("b").unwrap(), b"second");
}

#[test]
fn a_server_that_does_not_help_ends_it_with_a_reason() {
    type Case = (&'static str, fn() -> Answer, ErrorKind, &'static str);
    let cases: [Case; 8] = [
        (
            "GET",
            || Answer::error(403, "SignatureDoesNotMatch"),
            ErrorKind::Denied,
            "SignatureDoesNotMatch: said the server",
        ),
        (
            "GET",
            || Answer::error(404, "NoSuchBucket"),
            ErrorKind::NotFound,
            "has no bucket `bucket`",
        ),
        (
            "GET",
            || Answer::error(301, "PermanentRedirect").with("Location", "https://evil.example/bucket"),
            ErrorKind::Unsupported,
            "https://evil.example/bucket",
        ),
        (
            "GET",
            || Answer::status(200, "<html>no list</html>"),
            ErrorKind::Internal,
            "cannot be understood",
        ),
        (
            "GET",
            || Answer::error(500, "InternalError"),
            ErrorKind::Unavailable,
            "status 500",
        ),
        (
            "PUT",
            || Answer::error(501, "NotImplemented"),
            ErrorKind::Unsupported,
            "If-Match",
        ),
        ("PUT", || Answer::status(200, ""), ErrorKind::Internal, "ETag"),
        ("PUT", || Answer::error(507, "Full"), ErrorKind::Unavailable, "507"),
    ];
    for (method, answer, kind, expected) in cases {
        let setting = Setting::new();
        setting.write("here", "1");
        setting
            .server
            .fault(move |request, _| (request.method == method).then(answer));
        let failure = setting.try_sync(BOTH).failure.unwrap();
        assert_eq!(failure.kind(), kind, "{failure:?}");
        assert!(failure.to_string().contains(expected), "{failure}");
        assert!(failure.hint().is_some(), "{failure}");
    }
    // An object that may not be read is left as it is; others are fetched.
    let setting = Setting::new();
    for name in ["a", "b"] {
        setting.server.put(name, name);
    }
    setting
        .server
        .fault(|request, _| (request.key == "a").then(|| Answer::error(403, "InvalidObjectState")));
    let report = setting.sync(BOTH);
    assert_eq!((names(&report.failed), report.fetched), (vec!["a".to_owned()], 1));
}

#[test]
fn a_server_that_says_nothing_any_more_is_given_up() {
    let setting = Setting::new();
    setting.server.put("a", "0123456789");
    setting.server.fault(|request, _| {
        let mut answer = Answer::status(200, "0123456789").with("ETag", tag_of(b"0123456789"));
        (answer.ends_at, answer.stalls) = (4, true);
        is_get(request).then_some(answer)
    });
    setting.stall.set(STALL);
    let failure = setting.try_sync(BOTH).failure.unwrap();
    assert!(
        matches!(failure, BucketError::Stalled { .. }) && failure.kind() == ErrorKind::Timeout,
        "{failure:?}"
    );
    assert!(!exists(&setting.path("a")));
    assert_eq!(setting.incoming(), 0);
}

#[test]
fn a_list_has_an_end() {
    let setting = Setting::new();
    for number in 0..25 {
        setting.server.put(&format!("{number:02}"), "x");
    }
    setting.server.page(10);
    assert_eq!(setting.sync(BOTH).fetched, 25);
    // It never ends: with the same place to go on from, with another one each time, with no objects at all.
    let page = |token: usize, objects: usize| {
        let contents: String = (0..objects)
            .map(|number| format!("<Contents><Key>{token}-{number}</Key><ETag>x</ETag><Size>1</Size></Contents>"))
            .collect();
        Answer::status(
            200,
            format!(
                "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>true</IsTruncated>\
                 <NextContinuationToken>{token}</NextContinuationToken>{contents}</ListBucketResult>"
            ),
        )
    };
    setting.server.fault(move |_, _| Some(page(1, 1)));
    let failure = setting.try_sync(BOTH).failure.unwrap();
    assert!(matches!(failure, BucketError::BadAnswer { .. }), "{failure:?}");
    setting.server.fault(move |_, number| Some(page(number, 1000)));
    let failure = setting.try_sync(BOTH).failure.unwrap();
    assert!(
        matches!(failure, BucketError::TooMany { .. }) && failure.kind() == ErrorKind::Exhausted,
        "{failure:?}"
    );
    setting.server.fault(move |_, number| Some(page(number, 0)));
    let failure = setting.try_sync(BOTH).failure.unwrap();
    assert!(matches!(failure, BucketError::TooMany { .. }), "{failure:?}");
    // And what was not asked for is not listed.
    let setting = Setting::of("s3://bucket/mine", false);
    setting.server.fault(move |_, _| Some(page(1, 1)));
    let failure = setting.try_sync(BOTH).failure.unwrap();
    assert!(failure.to_string().contains("not asked for"), "{failure}");
}

#[test]
fn a_list_of_what_is_no_name_or_no_list_brings_nothing_into_the_volume() {
    let list = |head: &str, key: &str| {
        let xml = format!(
            "{head}<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>false</IsTruncated>\
             <Contents><Key>{key}</Key><ETag>{}</ETag><Size>1</Size></Contents></ListBucketResult>",
            tag_of(b"x").replace('"', "")
        );
        Answer::status(200, xml)
    };
    let mut bomb = "<!DOCTYPE l [<!ENTITY a0 \"aaaaaaaaaa\">".to_owned();
    for number in 1..12 {
        bomb += &format!("<!ENTITY a{number} \"{}\">", format!("&a{};", number - 1).repeat(10));
    }
    bomb += "]>";
    let file = "<!DOCTYPE l [<!ENTITY f SYSTEM \"file:///etc/passwd\">]>";
    // A name that is none is left out; a list that is none ends it.
    let cases = [
        (list("", &"x".repeat(1 << 20)), true),
        (list("", "..&#47;out"), true),
        (list("", "&#47;etc&#47;x"), true),
        (list("", "a\0b"), false),
        (list("", "&#0;"), false),
        (list(&bomb, "&a11;"), false),
        (list(file, "&f;"), false),
        (list("", &"x".repeat(17 << 20)), false),
        (Answer::status(200, vec![0xff; 100]), false),
    ];
    for (number, (answer, is_left_out)) in cases.into_iter().enumerate() {
        let setting = Setting::new();
        setting.server.fault(move |request, _| {
            Some(match request.key.is_empty() {
                true => answer.clone(),
                false => Answer::status(200, "x").with("ETag", tag_of(b"x")),
            })
        });
        let crate::SyncOutcome { report, failure } = setting.try_sync(BOTH);
        let left_out = report.left_out.count == 1;
        assert_eq!(
            (left_out, failure.is_none(), report.fetched),
            (is_left_out, is_left_out, 0),
            "{number}: {failure:?} {report:?}"
        );
        assert_eq!(setting.incoming(), 0, "{number}");
        assert_eq!(std::fs::read_dir(setting.path("")).unwrap().count(), 0, "{number}");
    }
}

#[test]
fn a_signed_request_follows_no_redirect() {
    let elsewhere = Setting::new();
    let address = elsewhere.server.address.clone();
    for status in [301, 302, 303, 307, 308] {
        let setting = Setting::new();
        setting.server.put("a", "0123456789");
        setting.write("b", "1");
        let to = format!("{address}/bucket/a");
        setting.server.fault(move |request, _| {
            (!request.key.is_empty()).then(|| Answer::status(status, "").with("Location", &to))
        });
        let failure = setting.try_sync(BOTH).failure.unwrap();
        assert!(
            matches!(failure, BucketError::Redirected { .. }),
            "{status}: {failure:?}"
        );
        assert!(!exists(&setting.path("a")));
    }
    assert_eq!(elsewhere.server.lock().requests.len(), 0);
}
