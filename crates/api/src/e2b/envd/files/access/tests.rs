//! Tests of who may read and write files.

use super::*;

const TOKEN: &str = "secret";

fn refused(token: Option<&str>, request: http::request::Builder) -> Option<(u16, String)> {
    let refusal = check(token, &request.body(()).unwrap()).err()?;
    Some((refusal.status.as_u16(), refusal.message))
}

/// The query of a URL for `/a`, signed as the SDKs do.
fn signed(operation: SpanOperation, expiration: Option<i64>) -> String {
    let signed = SignedRequest {
        path: b"/a",
        operation,
        user: "root",
    };
    let signature = signature(signed.begun(), TOKEN, expiration)
        .replace('+', "%2B")
        .replace('/', "%2F");
    let expiration = expiration
        .map(|at| format!("&signature_expiration={at}"))
        .unwrap_or_default();
    format!("/files?path=%2Fa&username=root&signature={signature}{expiration}")
}

#[test]
fn the_token_opens_everything() {
    let with = |token| Request::get("/files?path=/a").header("x-access-token", token);
    assert_eq!(refused(Some(TOKEN), with(TOKEN)), None);
    assert_eq!(refused(None, Request::get("/files")), None);
    let (status, message) = refused(Some(TOKEN), with("secre")).unwrap();
    assert_eq!(
        (status, message.as_str()),
        (401, "access token present in header but does not match")
    );
}

#[test]
fn a_wrong_token_is_not_made_good_by_a_signature() {
    let request = Request::get(signed(SpanOperation::Read, None)).header("x-access-token", "wrong");
    assert_eq!(refused(Some(TOKEN), request).unwrap().0, 401);
}

#[test]
fn a_signature_opens_what_was_signed() {
    assert_eq!(
        refused(Some(TOKEN), Request::get(signed(SpanOperation::Read, None))),
        None
    );
    assert_eq!(
        refused(Some(TOKEN), Request::head(signed(SpanOperation::Read, None))),
        None
    );
    assert_eq!(
        refused(Some(TOKEN), Request::post(signed(SpanOperation::Write, Some(i64::MAX)))),
        None
    );
    let reading = signed(SpanOperation::Read, None);
    let other_path = reading.replace("%2Fa", "%2Fb");
    let other_user = reading.replace("root", "user");
    for request in [
        Request::post(&reading),
        Request::get(&other_path),
        Request::get(&other_user),
        Request::get(format!("{reading}&signature_expiration=99999999999")),
    ] {
        let (status, message) = refused(Some(TOKEN), request).unwrap();
        assert_eq!((status, message.as_str()), (401, "invalid signature"));
    }
}

#[test]
fn what_is_missing_or_late_is_said() {
    for (uri, status, message) in [
        ("/files?path=/a".to_owned(), 401, "missing signature query parameter"),
        (
            signed(SpanOperation::Read, Some(1)),
            401,
            "signature is already expired",
        ),
        (
            "/files?signature=x&signature_expiration=soon".to_owned(),
            400,
            "signature_expiration must be a number",
        ),
    ] {
        assert_eq!(
            refused(Some(TOKEN), Request::get(uri)),
            Some((status, message.to_owned()))
        );
    }
}

#[test]
fn a_signed_url_can_be_tried_with_many_tokens() {
    let of = |uri: &str| SignedUrl::of(&Method::GET, &uri.parse().unwrap());
    let url = of(&signed(SpanOperation::Read, None)).unwrap().unwrap();
    assert!(url.is_shaped() && url.is_signed_by(TOKEN) && !url.is_signed_by("other"));
    assert!(!of("/files?path=/a&signature=v1_x").unwrap().unwrap().is_shaped());
    assert!(of("/files?path=/a").unwrap().is_none());
}

#[test]
fn what_is_longer_than_there_can_be_is_not_hashed() {
    for (path, user, is_refused) in [(4095, 256, false), (4096, 0, true), (60_000, 0, true), (1, 257, true)] {
        let (path, user) = ("a".repeat(path), "u".repeat(user));
        let uri = format!("/files?signature=v1_x&path={path}&username={user}");
        let url = SignedUrl::of(&Method::GET, &uri.parse().unwrap());
        assert_eq!(
            url.err().map(|refusal| refusal.status.as_u16()),
            is_refused.then_some(400)
        );
    }
}
