use http::Request;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION};
use offleash_core::network::secret::{Placeholder, SecretSpec, SecretValue};
use proptest::prelude::*;

use super::*;

/// Secrets from how they are described and their values; placeholders are filled with bytes that only look random.
pub(super) fn secrets(described: &[(&str, &str)]) -> Secrets {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut fill = |bytes: &mut [u8]| {
        for byte in bytes {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = state.to_be_bytes()[0];
        }
        Ok::<(), std::convert::Infallible>(())
    };
    let secret = |(spec, value): &(&str, &str)| {
        let value = SecretValue::new(value.as_bytes().to_vec()).unwrap();
        NamedSecret {
            spec: spec.parse::<SecretSpec>().unwrap(),
            placeholder: Placeholder::plausible(&value, &mut fill).unwrap(),
            value,
        }
    };
    Secrets::new(described.iter().map(secret).collect(), Journal::default())
}

pub(super) fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}

pub(super) fn to(host: &Host) -> Recipient<'_> {
    Recipient { host, port: 443 }
}

/// A request, in which `{0}` is the first placeholder, and so on.
pub(super) fn request(secrets: &Secrets, target: &str, headers: &[(&str, &str)]) -> Parts {
    let filled = |text: &str| {
        let mut text = text.to_owned();
        for (number, secret) in secrets.all.iter().enumerate() {
            text = text.replace(&format!("{{{number}}}"), secret.placeholder.as_str());
        }
        text
    };
    let mut builder = Request::get(filled(target));
    for (name, value) in headers {
        builder = builder.header(*name, filled(value));
    }
    builder.body(()).unwrap().into_parts().0
}

fn used(prepared: Prepared) -> Used {
    match prepared {
        Prepared::Ready(used) => used,
        Prepared::NeedsBody(_) => panic!("its body is not signed"),
    }
}

pub(crate) const REAL: &str = "sk-REAL/real+real&real=0123456789";

fn one(places: &str) -> Secrets {
    secrets(&[(&format!("KEY=env:X@api.example.com,*.example.org{places}"), REAL)])
}

fn prepared(secrets: &Secrets, name: &str, mut parts: Parts) -> Result<(Parts, Used), Misused> {
    let host = host(name);
    let used = used(secrets.prepare(to(&host), &mut parts, false)?);
    Ok((parts, used))
}

fn basic(credentials: &str) -> String {
    format!("Basic {}", data_encoding::BASE64.encode(credentials.as_bytes()))
}

#[test]
fn the_value_stands_where_the_placeholder_stood() {
    let secrets = one("");
    let cases = [
        ("authorization", "Bearer {0}", format!("Bearer {REAL}")),
        ("Authorization", "token {0}", format!("token {REAL}")),
        ("x-api-key", "{0}", REAL.to_owned()),
        ("x-two", "{0},{0}", format!("{REAL},{REAL}")),
        ("cookie", "a=b; session={0}", format!("a=b; session={REAL}")),
    ];
    for (name, value, expected) in cases {
        let parts = request(&secrets, "/", &[(name, value)]);
        let (parts, used) = prepared(&secrets, "api.example.com", parts).unwrap();
        assert_eq!(parts.headers[name], expected, "{name}");
        assert!(parts.headers[name].is_sensitive());
        assert_eq!(used.names, ["KEY"]);
        assert_eq!(parts.headers[ACCEPT_ENCODING], "identity");
    }
}

#[test]
fn the_value_stands_in_the_credentials_of_a_user() {
    for places in ["", "#basic", "#header:authorization"] {
        let secrets = one(places);
        let placeholder = secrets.all[0].placeholder.as_str().to_owned();
        for (sent, expected) in [
            (format!("me:{placeholder}"), format!("me:{REAL}")),
            (format!("{placeholder}:x"), format!("{REAL}:x")),
        ] {
            let parts = request(&secrets, "/", &[("authorization", &basic(&sent))]);
            let (parts, used) = prepared(&secrets, "a.example.org", parts).unwrap();
            assert_eq!(parts.headers[AUTHORIZATION], basic(&expected));
            assert_eq!(used.names, ["KEY"]);
        }
    }
}

#[test]
fn the_gateway_signs_in_whatever_the_sandbox_sends() {
    let secrets = secrets(&[
        ("GIT=env:G@git.example.com#basic:x-access-token", "ghp_real0123456789"),
        ("WIDE=env:W@*.example.com#basic:wide", "wide-real-0123456789"),
        ("PLAIN=env:P@git.example.com#header:x-key", "plain-real-0123456789"),
    ]);
    let placeholder = secrets.all[0].placeholder.as_str();
    let told = basic("x-access-token:ghp_real0123456789");
    let covered = format!("Basic {}", "*".repeat(told.len() - 6));
    let dummy = basic("me:dummy");
    let own = basic(&format!("me:{placeholder}"));
    for sent in [
        None,
        Some(dummy.as_str()),
        Some(own.as_str()),
        Some("Bearer {0}"),
        Some("Basic me:{0}"),
    ] {
        let headers: Vec<(&str, &str)> = sent.map(|sent| ("authorization", sent)).into_iter().collect();
        let parts = request(
            &secrets,
            "/owner/repository.git/info/refs?service=git-upload-pack",
            &headers,
        );
        let (parts, used) = prepared(&secrets, "git.example.com", parts).unwrap();
        let all: Vec<_> = parts.headers.get_all(AUTHORIZATION).iter().collect();
        assert_eq!(all, [&basic("x-access-token:ghp_real0123456789")], "{sent:?}");
        assert!(all[0].is_sensitive());
        assert_eq!(used.names, ["GIT"]);
        // What it is sent as is taken out of answers, too.
        assert_eq!(masked(&used.mask.unwrap(), &[told.as_bytes()]), covered.as_bytes());
    }
    // The more specific host counts; a host of nobody gets nothing.
    let (parts, _) = prepared(&secrets, "a.example.com", request(&secrets, "/", &[])).unwrap();
    assert_eq!(parts.headers[AUTHORIZATION], basic("wide:wide-real-0123456789"));
    let (parts, _) = prepared(
        &secrets,
        "example.org",
        request(&secrets, "/", &[("authorization", &dummy)]),
    )
    .unwrap();
    assert_eq!(parts.headers[AUTHORIZATION], dummy);
    // Its placeholder is refused everywhere else, and so are those of others.
    for (target, headers) in [
        ("/{0}", vec![]),
        ("/", vec![("x-a", "{0}")]),
        ("/", vec![("authorization", "Basic {2}")]),
    ] {
        let (expected, parts) = (
            headers.iter().any(|(name, _)| *name == "authorization"),
            request(&secrets, target, &headers),
        );
        // What stands in the credentials is replaced as a whole.
        assert_eq!(
            prepared(&secrets, "git.example.com", parts).is_ok(),
            expected,
            "{target} {headers:?}"
        );
        prepared(&secrets, "other.org", request(&secrets, target, &headers)).unwrap_err();
    }
    // In the clear, a host that was told does not tell it.
    let mut parts = request(&secrets, "/", &[]);
    let mask = secrets.mask_in_the_clear(&host("git.example.com"), &mut parts).unwrap();
    assert!(parts.headers.get(AUTHORIZATION).is_none());
    assert_eq!(masked(&mask, &[told.as_bytes()]), covered.as_bytes());
}

#[test]
fn a_user_and_a_placeholder_are_encoded_where_that_is_left_to_the_gateway() {
    let secrets = one("#header:authorization");
    for (sent, expected) in [
        ("Basic me:{0}", basic(&format!("me:{REAL}"))),
        ("basic {0}:x", basic(&format!("{REAL}:x"))),
        ("Basic me:mine", "Basic me:mine".to_owned()),
        ("Basic {0}", format!("Basic {REAL}")),
    ] {
        let parts = request(&secrets, "/", &[("authorization", sent)]);
        let (parts, _) = prepared(&secrets, "api.example.com", parts).unwrap();
        assert_eq!(parts.headers[AUTHORIZATION], expected, "{sent}");
    }
}

#[test]
fn the_value_is_encoded_in_a_query() {
    let secrets = one("#query:key");
    let parts = request(&secrets, "/v1/a%20b?&a=%41&key={0}&key&b", &[]);
    let (parts, used) = prepared(&secrets, "api.example.com", parts).unwrap();
    assert_eq!(
        parts.uri.to_string(),
        "/v1/a%20b?&a=%41&key=sk-REAL%2Freal%2Breal%26real%3D0123456789&key&b"
    );
    assert_eq!(used.names, ["KEY"]);
}

#[test]
fn several_secrets_stand_in_one_request() {
    let secrets = secrets(&[
        ("USER=env:U@api.example.com", "user-real-0123"),
        ("PASSWORD=env:P@api.example.com", "password-real-0123"),
        ("KEY=env:K@api.example.com#query:k", "key-real-0123"),
    ]);
    let credentials = format!("{}:{}", secrets.all[0].placeholder, secrets.all[1].placeholder);
    let parts = request(
        &secrets,
        "/?k={2}",
        &[("authorization", &basic(&credentials)), ("x-again", "{1} {0}")],
    );
    let (parts, mut used) = prepared(&secrets, "api.example.com", parts).unwrap();
    assert_eq!(parts.headers[AUTHORIZATION], basic("user-real-0123:password-real-0123"));
    assert_eq!(parts.headers["x-again"], "password-real-0123 user-real-0123");
    assert_eq!(parts.uri, "/?k=key-real-0123");
    used.names.sort();
    assert_eq!(used.names, ["KEY", "PASSWORD", "USER"]);
}

#[test]
fn a_placeholder_elsewhere_is_refused() {
    let encoded = |secrets: &Secrets| basic(&format!("me:{}", secrets.all[0].placeholder));
    type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);
    let cases: [Case; 16] = [
        ("", "/{0}", &[]),
        ("", "/?key={0}", &[]),
        ("", "/", &[("user-agent", "{0}")]),
        ("", "/", &[("referer", "https://a.example/?{0}")]),
        ("", "/", &[("host", "{0}")]),
        ("#bearer", "/", &[("x-api-key", "{0}")]),
        ("#bearer", "/", &[("authorization", "token {0}")]),
        ("#basic", "/", &[("authorization", "Bearer {0}")]),
        ("#header:x-api-key", "/", &[("authorization", "Bearer {0}")]),
        ("#header:x-api-key", "/", &[("x-api-key2", "{0}")]),
        ("#header:x-api-key,query:key", "/?key2={0}", &[("x-api-key", "{0}")]),
        ("#query:key", "/?{0}=1", &[]),
        ("#query:key", "/?key={0}", &[("x-api-key", "{0}")]),
        ("#bearer", "/", &[("authorization", "basic")]),
        ("#query:key", "/", &[("authorization", "basic")]),
        ("#header:x-api-key", "/", &[("authorization", "basic")]),
    ];
    for (places, target, headers) in cases {
        let secrets = one(places);
        let basic = encoded(&secrets);
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (*name, if *value == "basic" { basic.as_str() } else { *value }))
            .collect();
        let parts = request(&secrets, target, &headers);
        let misused = prepared(&secrets, "api.example.com", parts).unwrap_err();
        assert_eq!(misused.secret, "KEY", "{places} {target} {headers:?}");
        assert!(!misused.reason.contains("real"), "{}", misused.reason);
    }
}

#[test]
fn a_placeholder_in_another_spelling_is_found() {
    let secrets = one("#query:key");
    let placeholder = secrets.all[0].placeholder.as_str().to_owned();
    let escaped: String = placeholder.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let twice = escaped.replace('%', "%25");
    let partly = placeholder.replacen('s', "%73", 1);
    for text in [&escaped, &twice, &partly] {
        for target in [format!("/?key={text}"), format!("/{text}/x"), format!("/?{text}")] {
            for name in ["api.example.com", "other.example"] {
                let parts = request(&secrets, &target, &[]);
                prepared(&secrets, name, parts).unwrap_err();
            }
        }
        let parts = request(&secrets, "/", &[("x-a", text)]);
        prepared(&secrets, "other.example", parts).unwrap_err();
    }
    let parts = request(&secrets, "/", &[(&placeholder.to_ascii_lowercase(), "x")]);
    prepared(&secrets, "other.example", parts).unwrap_err();
}

#[test]
fn other_hosts_get_neither_value_nor_placeholder() {
    let secrets = one("");
    let credentials = basic(&format!("me:{}", secrets.all[0].placeholder));
    for name in [
        "other.example",
        "example.org",
        "api.example.com.other.example",
        "10.0.0.1",
        "xapi.example.com",
    ] {
        for (target, header, value) in [
            ("/", "authorization", "Bearer {0}"),
            ("/", "authorization", credentials.as_str()),
            ("/", "x-any", "x{0}x"),
            ("/x/{0}", "a", "b"),
            ("/?a={0}", "a", "b"),
        ] {
            let parts = request(&secrets, target, &[(header, value)]);
            let misused = prepared(&secrets, name, parts).unwrap_err();
            assert!(
                misused.reason.contains("api.example.com, *.example.org"),
                "{}",
                misused.reason
            );
        }
        let parts = request(
            &secrets,
            "/",
            &[("accept-encoding", "br"), ("authorization", "Bearer x")],
        );
        let before = format!("{parts:?}");
        let (after, used) = prepared(&secrets, name, parts).unwrap();
        assert_eq!(format!("{after:?}"), before);
        assert!(used.mask.is_none() && used.names.is_empty());
    }
}

#[test]
fn a_secret_for_one_host_is_not_for_that_of_another() {
    let secrets = secrets(&[
        ("ONE=env:A@one.example.com", "value-of-one"),
        ("TWO=env:B@two.example.com", "value-of-two"),
    ]);
    let parts = request(&secrets, "/", &[("authorization", "Bearer {0}"), ("x-other", "{1}")]);
    assert_eq!(prepared(&secrets, "one.example.com", parts).unwrap_err().secret, "TWO");
    let parts = request(&secrets, "/", &[("authorization", "Bearer {0}")]);
    let (parts, used) = prepared(&secrets, "one.example.com", parts).unwrap();
    assert_eq!(parts.headers[AUTHORIZATION], "Bearer value-of-one");
    assert_eq!(used.names, ["ONE"]);
}

#[test]
fn without_tls_no_head_has_a_placeholder() {
    let secrets = one("");
    let placeholder = secrets.all[0].placeholder.as_str();
    let escaped: String = placeholder.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let credentials = basic(&format!("me:{placeholder}"));
    for head in [
        format!("GET /{placeholder} HTTP/1.1\r\nHost: a\r\n\r\n"),
        format!("GET /?{escaped} HTTP/1.1\r\nHost: a\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {placeholder}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: a\r\nAuthorization:{credentials}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: a\r\nX-{placeholder}: b\r\n\r\n"),
    ] {
        assert_eq!(
            secrets
                .check_plain(to(&host("api.example.com")), head.as_bytes())
                .unwrap_err()
                .secret,
            "KEY",
            "{head}"
        );
    }
    assert_eq!(
        secrets.check_plain(to(&host("api.example.com")), b"GET /sk- HTTP/1.1\r\nHost: a\r\n\r\n"),
        Ok(())
    );
    assert!(
        secrets
            .check_clear(to(&host("api.example.com")), &request(&secrets, "/", &[("a", "{0}")]))
            .is_err()
    );
    assert!(
        secrets
            .check_clear(to(&host("api.example.com")), &request(&secrets, "/", &[("a", "b")]))
            .is_ok()
    );
    let label = format!("{placeholder}.example.com").to_ascii_lowercase();
    assert!(secrets.misused_in_question(label.as_bytes()));
    assert!(!secrets.misused_in_question(b"example.com"));
}

fn masked(mask: &Mask, pieces: &[&[u8]]) -> Vec<u8> {
    let mut masker = mask.body();
    let mut all = Vec::new();
    for piece in pieces {
        all.extend_from_slice(&masker.push(bytes::Bytes::copy_from_slice(piece)));
    }
    all.extend_from_slice(&masker.finish());
    all
}

fn mask_of(secrets: &Secrets) -> Mask {
    let parts = request(secrets, "/", &[]);
    let (_, used) = prepared(secrets, "api.example.com", parts).unwrap();
    used.mask.unwrap()
}

#[test]
fn values_are_taken_out_of_headers_of_answers() {
    let secrets = one("");
    let mask = mask_of(&secrets);
    let mut headers = http::HeaderMap::new();
    headers.insert("x-echo", format!("a {REAL} b {REAL}").parse().unwrap());
    headers.insert(
        "location",
        "/?k=sk-REAL%2Freal%2Breal%26real%3D0123456789".parse().unwrap(),
    );
    headers.insert("x-other", "untouched".parse().unwrap());
    mask.headers(&mut headers);
    let placeholder = secrets.all[0].placeholder.as_str();
    assert_eq!(headers["x-echo"], format!("a {placeholder} b {placeholder}"));
    assert_eq!(headers["location"], format!("/?k={placeholder}"));
    assert_eq!(headers["x-other"], "untouched");
}

#[test]
fn values_are_taken_out_however_what_is_not_a_letter_is_escaped() {
    let secrets = secrets(&[(
        "KEY=env:X@api.example.com",
        "0123456789abcdefABCDEF/word+fedcba9876543210==",
    )]);
    let mask = mask_of(&secrets);
    for escaped in ["%2f", "&#47;", "\\u002f", "/ ", "&sol;"] {
        let told = format!("a 0123456789abcdefABCDEF{escaped}word{escaped}fedcba9876543210{escaped} b");
        let bytes = masked(&mask, &[told.as_bytes()]);
        let text = String::from_utf8(bytes).unwrap();
        assert!(!text.contains("0123456789") && !text.contains("fedcba"), "{text}");
        assert_eq!(text.len(), told.len());
        assert!(text.starts_with("a ") && text.ends_with(" b"), "{text}");
    }
}

#[test]
fn values_are_taken_out_of_names_of_headers() {
    let secrets = secrets(&[("KEY=env:X@api.example.com", "Real-Value-0123")]);
    let mut headers = http::HeaderMap::new();
    headers.insert("x-real-value-0123", "a".parse().unwrap());
    headers.insert("x-other", "b".parse().unwrap());
    mask_of(&secrets).headers(&mut headers);
    assert_eq!(headers.keys().collect::<Vec<_>>(), ["x-other"]);
}

#[test]
fn credentials_are_found_in_the_form_in_which_they_were_sent() {
    let secrets = one("");
    let credentials = basic(&format!("me:{}", secrets.all[0].placeholder));
    let parts = request(&secrets, "/", &[("authorization", &credentials)]);
    let (parts, used) = prepared(&secrets, "api.example.com", parts).unwrap();
    let sent = parts.headers[AUTHORIZATION]
        .to_str()
        .unwrap()
        .strip_prefix("Basic ")
        .unwrap()
        .to_owned();
    let echo = format!("{{\"authorization\": \"Basic {sent}\"}}");
    let seen = String::from_utf8(masked(&used.mask.unwrap(), &[echo.as_bytes()])).unwrap();
    assert!(!seen.contains(&sent), "{seen}");
    assert_eq!(seen.len(), echo.len());
}

/// What is taken out of answers of `api.example.com`, which knows `REAL`.
pub(crate) fn mask() -> Mask {
    mask_of(&one(""))
}

#[test]
fn lines_are_not_held_and_neither_is_for_long_what_is_no_beginning_of_a_value() {
    let mut masker = mask().body();
    let event = bytes::Bytes::from_static(b"data: hello\n\n");
    assert_eq!(masker.push(event.clone()), event);
    assert_eq!(masker.push(bytes::Bytes::from_static(b"a sk-RE")), "");
    assert_eq!(masker.pause(), "a ");
    assert_eq!(masker.push(bytes::Bytes::from_static(b"ST api")), "");
    assert_eq!(masker.pause(), "sk-REST api");
    assert!(masker.finish().is_empty());
    // A whole value may be among what is held.
    masker.push(bytes::Bytes::copy_from_slice(REAL.as_bytes()));
    let told = masker.pause();
    assert!(told.len() == REAL.len() && told != REAL, "{told:?}");
}

/// Code that knows how a value begins could try what follows, one byte after the other.
#[test]
fn how_a_body_is_cut_says_nothing_of_how_a_value_begins() {
    let cut = |end: &[u8]| {
        let mut masker = mask().body();
        let pieces = [&[b'x'; 200], end, &[b'y'; 3], end].map(bytes::Bytes::copy_from_slice);
        let mut lengths: Vec<usize> = pieces.into_iter().map(|piece| masker.push(piece).len()).collect();
        lengths.push(masker.finish().len());
        lengths
    };
    for length in 1..REAL.len() {
        let beginning = REAL.as_bytes().get(..length).unwrap();
        assert_eq!(cut(beginning), cut(&vec![b'z'; length]), "{length}");
    }
}

#[test]
fn what_became_of_secrets_is_told_without_their_values() {
    let secrets = one("");
    for (name, value) in [
        ("api.example.com", "{0}"),
        ("api.example.com", "{0}"),
        ("other.example", "{0}"),
    ] {
        let parts = request(&secrets, "/", &[("x-key", value)]);
        let _ = prepared(&secrets, name, parts);
    }
    let told = secrets.journal.take().secrets;
    assert!(!format!("{told:?}").contains("REAL"), "{told:?}");
    let told: Vec<_> = told
        .iter()
        .map(|(used, times)| (used.secret.as_str(), used.host.as_str(), used.refused.is_some(), *times))
        .collect();
    assert_eq!(
        told,
        [("KEY", "api.example.com", false, 2), ("KEY", "other.example", true, 1)]
    );
}

proptest! {
    #[test]
    fn a_body_has_no_value_however_it_is_cut(
        body in proptest::collection::vec(prop_oneof![Just(REAL.to_owned()), "[a-z0-9 /s-]{0,9}", Just(REAL[..7].to_owned()), Just(REAL.replace('/', "\\/"))], 0..12),
        cuts in proptest::collection::vec(0_usize..200, 0..30),
    ) {
        let secrets = one("");
        let mask = mask_of(&secrets);
        let body = body.concat().into_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut <= body.len()).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts {
            pieces.push(&body[from..cut]);
            from = cut;
        }
        pieces.push(&body[from..]);
        let seen = masked(&mask, &pieces);
        prop_assert_eq!(seen.len(), body.len());
        prop_assert!(memchr::memmem::find(&seen, REAL.as_bytes()).is_none());
        // Nothing else is touched, and it is the same as in one piece.
        prop_assert_eq!(&seen, &masked(&mask, &[&body]));
        if memchr::memmem::find(&body, b"REAL").is_none() {
            prop_assert_eq!(&seen, &body);
        }
    }

    #[test]
    fn no_request_has_a_placeholder_and_no_other_host_a_value(
        to_named in any::<bool>(),
        places in prop_oneof![Just(""), Just("#bearer"), Just("#basic"), Just("#header:x-k,query:q")],
        target in "/([a-z{}0%]|\\{0\\}){0,4}(\\?([a-z&=]|q=|\\{0\\}|%7b){0,6})?",
        headers in proptest::collection::vec((prop_oneof![Just("authorization"), Just("x-k"), Just("via"), Just("x-{0}")], "(Bearer |basic |x|\\{0\\}|%41){0,4}"), 0..4),
    ) {
        let secrets = one(places);
        let placeholder = secrets.all[0].placeholder.as_str();
        let target = target.replace("{0}", placeholder).replace(['{', '}'], "");
        prop_assume!(target.parse::<http::Uri>().is_ok());
        let mut builder = Request::get(&target);
        for (name, value) in &headers {
            builder = builder.header(name.replace("{0}", placeholder), value.replace("{0}", placeholder));
        }
        let mut parts = builder.body(()).unwrap().into_parts().0;
        let had = format!("{parts:?}").contains(placeholder);
        let name = if to_named { "api.example.com" } else { "other.example" };
        let prepared = secrets.prepare(to(&host(name)), &mut parts, false);
        let sent = format!("{} {:?}", parts.uri, parts.headers.iter().map(|(name, value)| (name, value.as_bytes().escape_ascii().to_string())).collect::<Vec<_>>());
        match prepared {
            Ok(_) => {
                prop_assert!(!sent.contains(placeholder), "{}", sent);
                prop_assert!(to_named || !had);
                prop_assert!(to_named || !sent.contains("sk-REAL"));
            }
            Err(misused) => prop_assert!(!misused.reason.contains("REAL")),
        }
        if !to_named {
            prop_assert!(!sent.contains("REAL"), "{}", sent);
        }
    }
}
