//! The examples of AWS's documentation: <https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>,
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html> and the `get-vanilla` of its test
//! suite for Signature Version 4.

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};

use super::*;
use crate::secrets::tests::{host, request as filled, secrets, to};
use crate::secrets::{Prepared, query};

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The keys of the examples.
fn keys(hosts: &str, secret: &str) -> Secrets {
    secrets(&[
        (
            &format!("AWS_ACCESS_KEY_ID=env:I@{hosts}#sigv4"),
            "AKIAIOSFODNN7EXAMPLE",
        ),
        (&format!("AWS_SECRET_ACCESS_KEY=env:K@{hosts}#sigv4"), secret),
        (&format!("AWS_SESSION_TOKEN=env:T@{hosts}#sigv4"), "token+of/a=session"),
    ])
}

fn example() -> Secrets {
    keys("*.amazonaws.com", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
}

/// Signs as the sandbox does, with the placeholder of the key.
fn sign_inside(secrets: &Secrets, parts: &mut Parts, path: Paths, payload: &str) {
    let id = &secrets.all[0];
    let signed = request::read(parts, id).unwrap().unwrap();
    let canonical = canonical::Request::of(parts, &signed, "example").unwrap();
    let key = secrets.all[1].placeholder.as_str().as_bytes();
    let signature = signature(key, &signed.scope, &signed.date, &canonical.text(&path, payload));
    if signed.in_query() {
        let query = parts.uri.query().unwrap().replace("SIGNATURE", &signature);
        assert!(query::replace(&mut parts.uri, &query));
    } else {
        let value = parts.headers[AUTHORIZATION]
            .to_str()
            .unwrap()
            .replace("SIGNATURE", &signature);
        parts
            .headers
            .insert(AUTHORIZATION, HeaderValue::from_str(&value).unwrap());
    }
}

fn prepare(secrets: &Secrets, name: &str, parts: &mut Parts, body: &[u8]) -> Result<Used, Misused> {
    match secrets.prepare(to(&host(name)), parts, !body.is_empty())? {
        Prepared::Ready(used) => Ok(used),
        Prepared::NeedsBody(signing) => signing.finish(parts, body),
    }
}

fn signature_of(parts: &Parts) -> &str {
    let value = parts.headers[AUTHORIZATION].to_str().unwrap();
    value.rsplit_once("Signature=").unwrap().1
}

fn authorization(scope: &str, headers: &str) -> String {
    format!("AWS4-HMAC-SHA256 Credential={{0}}/{scope}, SignedHeaders={headers}, Signature=SIGNATURE")
}

#[test]
fn the_example_of_a_get_from_s3_has_its_signature() {
    let secrets = example();
    let mut parts = filled(
        &secrets,
        "/test.txt",
        &[
            ("host", "examplebucket.s3.amazonaws.com"),
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", EMPTY),
            ("x-amz-date", "20130524T000000Z"),
            (
                "authorization",
                &authorization(
                    "20130524/us-east-1/s3/aws4_request",
                    "host;range;x-amz-content-sha256;x-amz-date",
                ),
            ),
        ],
    );
    sign_inside(&secrets, &mut parts, Paths::AsSent, EMPTY);
    let used = prepare(&secrets, "examplebucket.s3.amazonaws.com", &mut parts, b"").unwrap();
    assert_eq!(
        parts.headers[AUTHORIZATION],
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
         SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
         Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    );
    assert_eq!(used.names, ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]);
    // What is signed stays, and nobody is told the signature, with which it could be asked again.
    assert_eq!(parts.headers["range"], "bytes=0-9");
    let mask = used.mask.unwrap();
    assert!(mask.parts_were_asked_for());
    let mut answer = http::HeaderMap::new();
    answer.insert("x-echo", format!("a {} b", signature_of(&parts)).parse().unwrap());
    mask.headers(&mut answer);
    assert_eq!(answer["x-echo"], "a  b");
}

#[test]
fn the_example_of_a_put_to_s3_has_its_signature() {
    let secrets = example();
    let digest = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
    let scope = "20130524/us-east-1/s3/aws4_request";
    let covered = "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class";
    let mut parts = filled(
        &secrets,
        "/test%24file.text",
        &[
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("host", "examplebucket.s3.amazonaws.com"),
            ("x-amz-date", "20130524T000000Z"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ("x-amz-content-sha256", digest),
            ("authorization", &authorization(scope, covered)),
        ],
    );
    parts.method = http::Method::PUT;
    sign_inside(&secrets, &mut parts, Paths::AsSent, digest);
    prepare(
        &secrets,
        "examplebucket.s3.amazonaws.com",
        &mut parts,
        b"Welcome to Amazon S3.",
    )
    .unwrap();
    assert_eq!(
        signature_of(&parts),
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    );
}

#[test]
fn the_example_of_a_presigned_get_has_its_signature() {
    let secrets = example();
    let mut parts = filled(
        &secrets,
        "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={0}%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
         &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=SIGNATURE",
        &[("host", "examplebucket.s3.amazonaws.com")],
    );
    sign_inside(&secrets, &mut parts, Paths::AsSent, "UNSIGNED-PAYLOAD");
    prepare(&secrets, "examplebucket.s3.amazonaws.com", &mut parts, b"").unwrap();
    assert_eq!(
        parts.uri.query().unwrap(),
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2F\
         aws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=\
         aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    );
}

#[test]
fn the_plainest_request_of_the_test_suite_has_its_signature() {
    let secrets = secrets(&[
        ("AWS_ACCESS_KEY_ID=env:I@example.amazonaws.com#sigv4", "AKIDEXAMPLE"),
        (
            "AWS_SECRET_ACCESS_KEY=env:K@example.amazonaws.com#sigv4",
            "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        ),
    ]);
    let scope = "20150830/us-east-1/service/aws4_request";
    let mut parts = filled(
        &secrets,
        "/",
        &[
            ("host", "example.amazonaws.com"),
            ("x-amz-date", "20150830T123600Z"),
            ("authorization", &authorization(scope, "host;x-amz-date")),
        ],
    );
    sign_inside(&secrets, &mut parts, Paths::EncodedResolved, EMPTY);
    prepare(&secrets, "example.amazonaws.com", &mut parts, b"").unwrap();
    assert_eq!(
        signature_of(&parts),
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    );
}

#[test]
fn a_body_is_covered_where_nothing_stands_for_it() {
    let secrets = example();
    let body = b"Action=ListUsers&Version=2010-05-08";
    let scope = "20150830/us-east-1/iam/aws4_request";
    let parts = || {
        let mut parts = filled(
            &secrets,
            "/a%20b//c/../d",
            &[
                ("host", "iam.amazonaws.com"),
                ("x-amz-date", "20150830T123600Z"),
                ("authorization", &authorization(scope, "host;x-amz-date")),
            ],
        );
        parts.method = http::Method::POST;
        let digest = Payload::body(body);
        sign_inside(&secrets, &mut parts, Paths::EncodedResolved, &digest.spellings()[0]);
        parts
    };
    let mut right = parts();
    prepare(&secrets, "iam.amazonaws.com", &mut right, body).unwrap();
    let key = secrets.all[1].value.expose();
    let digest = HEXLOWER.encode(digest::digest(&digest::SHA256, body).as_ref());
    let canonical =
        format!("POST\n/a%2520b/d\n\nhost:iam.amazonaws.com\nx-amz-date:20150830T123600Z\n\nhost;x-amz-date\n{digest}");
    let scope = request::read(&parts(), &secrets.all[0]).unwrap().unwrap().scope;
    assert_eq!(
        signature_of(&right),
        signature(key, &scope, "20150830T123600Z", &canonical)
    );
    let misused = prepare(&secrets, "iam.amazonaws.com", &mut parts(), b"another body").unwrap_err();
    assert!(misused.reason.contains("signature"), "{}", misused.reason);
}

#[test]
fn the_token_of_a_session_is_put_in_and_covered() {
    let secrets = example();
    let covered = "host;x-amz-content-sha256;x-amz-date;x-amz-security-token";
    let mut parts = filled(
        &secrets,
        "/x",
        &[
            ("host", "b.s3.amazonaws.com"),
            ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
            ("x-amz-date", "20130524T000000Z"),
            ("x-amz-security-token", "{2}"),
            (
                "authorization",
                &authorization("20130524/us-east-1/s3/aws4_request", covered),
            ),
        ],
    );
    sign_inside(&secrets, &mut parts, Paths::AsSent, "UNSIGNED-PAYLOAD");
    let used = prepare(&secrets, "b.s3.amazonaws.com", &mut parts, b"any").unwrap();
    assert_eq!(parts.headers["x-amz-security-token"], "token+of/a=session");
    assert!(used.names.contains(&"AWS_SESSION_TOKEN".to_owned()));
    let mut presigned = filled(
        &secrets,
        "/x?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={0}%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
         &X-Amz-Date=20130524T000000Z&X-Amz-Security-Token={2}&X-Amz-SignedHeaders=host&X-Amz-Signature=SIGNATURE",
        &[("host", "b.s3.amazonaws.com")],
    );
    sign_inside(&secrets, &mut presigned, Paths::AsSent, "UNSIGNED-PAYLOAD");
    prepare(&secrets, "b.s3.amazonaws.com", &mut presigned, b"").unwrap();
    assert!(
        presigned
            .uri
            .query()
            .unwrap()
            .contains("Token=token%2Bof%2Fa%3Dsession&"),
        "{}",
        presigned.uri
    );
}

#[test]
fn what_cannot_be_signed_anew_is_refused_and_says_why() {
    let secrets = example();
    let scope = "20130524/us-east-1/s3/aws4_request";
    let usual = authorization(scope, "host;x-amz-date");
    let refusal = |headers: &[(&str, &str)], target: &str| {
        let all = [&[("host", "b.s3.amazonaws.com")], headers].concat();
        let mut parts = filled(&secrets, target, &all);
        prepare(&secrets, "b.s3.amazonaws.com", &mut parts, b"")
            .unwrap_err()
            .reason
    };
    let date = ("x-amz-date", "20130524T000000Z");
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Headers, &str, &str); 10] = [
        (&[("authorization", &usual), date], "/", "signature"),
        (
            &[
                ("authorization", &usual),
                date,
                ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
            ],
            "/",
            "signed chunks",
        ),
        (
            &[("authorization", &usual.replace("HMAC", "ECDSA-P256")), date],
            "/",
            "asymmetric",
        ),
        (&[("authorization", "AWS {0}:abc"), date], "/", "otherwise"),
        (&[("authorization", &usual)], "/", "x-amz-date"),
        (
            &[("authorization", &usual), ("x-amz-date", "20130525T000000Z")],
            "/",
            "date",
        ),
        (
            &[("authorization", &usual.replace("x-amz-date", "x-missing")), date],
            "/",
            "x-missing",
        ),
        (&[("authorization", "Bearer {0}")], "/", "otherwise"),
        (&[("x-other", "{0}")], "/", "sigv4"),
        (&[("x-other", "{1}")], "/", "sigv4"),
    ];
    for (headers, target, expected) in cases {
        let reason = refusal(headers, target);
        assert!(reason.contains(expected), "{headers:?}: {reason}");
        assert!(!reason.contains("wJalr"), "{reason}");
    }
}

#[test]
fn a_key_is_of_no_use_to_another_host() {
    let secrets = example();
    let usual = authorization("20130524/us-east-1/s3/aws4_request", "host;x-amz-date");
    let headers = [
        ("host", "other.example"),
        ("x-amz-date", "20130524T000000Z"),
        ("authorization", usual.as_str()),
    ];
    let mut parts = filled(&secrets, "/", &headers);
    sign_inside(&secrets, &mut parts, Paths::AsSent, EMPTY);
    let misused = prepare(&secrets, "other.example", &mut parts, b"").unwrap_err();
    assert!(misused.reason.contains("*.amazonaws.com"), "{}", misused.reason);
    // A request that is signed with other keys is none of ours.
    let own = Request::get("/").header("host", "b.s3.amazonaws.com").header(
        "authorization",
        "AWS4-HMAC-SHA256 Credential=AKIAOWN/20130524/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00",
    );
    let mut own = own.body(()).unwrap().into_parts().0;
    let before = own.headers[AUTHORIZATION].clone();
    assert!(
        prepare(&secrets, "b.s3.amazonaws.com", &mut own, b"")
            .unwrap()
            .names
            .is_empty()
    );
    assert_eq!(own.headers[AUTHORIZATION], before);
}
