use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> SecretSpec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_secret_has_a_name_a_source_hosts_and_places() {
    let secret = parsed("API_KEY=env:REAL_KEY@api.example.com,*.example.org#header:X-Api-Key,query:key");
    assert_eq!(secret.name, "API_KEY");
    assert_eq!(secret.source, SecretSource::Variable("REAL_KEY".to_owned()));
    assert_eq!(secret.hosts_text(), "api.example.com, *.example.org");
    assert_eq!(
        secret.places,
        [
            SecretPlace::Header("x-api-key".to_owned()),
            SecretPlace::Query("key".to_owned())
        ]
    );
    assert!(secret.is_for(&Host::parse("API.example.com.").unwrap()));
    assert!(secret.is_for(&Host::parse("a.example.org").unwrap()));
    assert!(!secret.is_for(&Host::parse("example.org").unwrap()));
    assert!(!secret.is_for(&Host::parse("api.example.com.evil.example").unwrap()));
}

#[test]
fn what_follows_the_last_at_sign_are_hosts() {
    let secret = parsed("K=file:/keys/me@work#1/key@api.example.com#bearer");
    assert_eq!(secret.source, SecretSource::File("/keys/me@work#1/key".to_owned()));
    assert_eq!(secret.hosts_text(), "api.example.com");
    assert_eq!(secret.places, [SecretPlace::Bearer]);
}

#[test]
fn display_reads_back_as_the_same() {
    for text in [
        "K=env:V@api.example.com",
        "K=file:/a@b@10.0.0.0/8,[2001:db8::1]#basic",
        "AWS_ACCESS_KEY_ID=env:ID@*.amazonaws.com#sigv4",
        "K=env:V@a.example#header:x-k,query:q,bearer",
        "GIT=env:V@git.example#basic:x-access-token",
    ] {
        assert_eq!(parsed(text).to_string(), text);
    }
}

#[test]
fn what_is_no_secret_is_refused_with_a_hint() {
    let cases = [
        ("K", "NAME=SOURCE@HOST"),
        ("=env:V@a.example", "name of a variable"),
        ("1K=env:V@a.example", "name of a variable"),
        ("K-1=env:V@a.example", "name of a variable"),
        ("LD_PRELOAD=env:V@a.example", "changes what programs load"),
        ("K=env:V", "names no host"),
        ("K=env:V@", "names no host"),
        ("K=env:V@*", "every host"),
        ("K=env:V@*.com", "nothing to do with each other"),
        ("K=env:V@*.co.uk", "nothing to do with each other"),
        ("K=env:V@0.0.0.0/0", "nothing to do with each other"),
        ("K=env:V@a.example,", "empty"),
        ("K=V@a.example", "no source"),
        ("K=env:@a.example", "no source"),
        ("K=file:@a.example", "no source"),
        ("K=env:V@a.example#", "no place"),
        ("K=env:V@a.example#cookie", "no place"),
        ("K=env:V@a.example#header:", "no name of a header"),
        ("K=env:V@a.example#header:a b", "no name of a header"),
        ("K=env:V@a.example#header:Host", "belongs to the connection"),
        ("K=env:V@a.example#query:", "has a name"),
        ("K=env:V@a.example#sigv4", "which part"),
        ("AWS_ACCESS_KEY_ID=env:V@a.example#sigv4,bearer", "only place"),
        ("K=env:V@a.example#bearer,basic:me", "only place"),
        ("K=env:V@a.example#basic:", "no name of a user"),
        ("K=env:V@a.example#basic:me:too", "no name of a user"),
        ("K=env:V@a.example#basic:me you", "no name of a user"),
    ];
    for (text, expected) in cases {
        let error = text.parse::<SecretSpec>().unwrap_err();
        assert!(error.to_string().contains(expected), "{text}: {error}");
        assert!(error.hint().is_some(), "{text}");
    }
}

#[test]
fn a_value_given_in_place_of_a_source_is_not_repeated() {
    for text in ["K=hunter2hunter2@a.example", "hunter2hunter2"] {
        let error = text.parse::<SecretSpec>().unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[test]
fn the_parts_of_a_signing_key_belong_together() {
    let together = |texts: &[&str]| {
        let secrets: Vec<_> = texts.iter().map(|text| parsed(text)).collect();
        check_together(&secrets)
    };
    let id = "AWS_ACCESS_KEY_ID=env:I@*.amazonaws.com#sigv4";
    let key = "AWS_SECRET_ACCESS_KEY=env:K@*.amazonaws.com#sigv4";
    let token = "AWS_SESSION_TOKEN=env:T@*.amazonaws.com#sigv4";
    assert_eq!(together(&[id, key]), Ok(()));
    assert_eq!(together(&[token, key, id]), Ok(()));
    assert_eq!(together(&["K=env:V@a.example", "L=env:V@a.example"]), Ok(()));
    assert_eq!(
        together(&[
            "K=env:V@a.team.example#basic:me",
            "L=env:V@*.team.example#basic:me",
            "M=env:V@a.team.example#basic"
        ]),
        Ok(())
    );
    for (texts, expected) in [
        (&[id] as &[&str], "AWS_SECRET_ACCESS_KEY"),
        (&[key], "AWS_ACCESS_KEY_ID"),
        (&[token, id], "AWS_SECRET_ACCESS_KEY"),
        (
            &[id, "OTHER_SECRET_ACCESS_KEY=env:K@*.amazonaws.com#sigv4"],
            "AWS_SECRET_ACCESS_KEY",
        ),
        (
            &[id, "AWS_SECRET_ACCESS_KEY=env:K@a.example#sigv4"],
            "AWS_SECRET_ACCESS_KEY",
        ),
        (&["K=env:V@a.example", "K=env:V@b.example"], "twice"),
        (
            &["K=env:V@a.example,b.example#basic:me", "L=env:W@b.example#basic:you"],
            "both sign in to `b.example`",
        ),
    ] {
        let error = together(texts).unwrap_err();
        assert!(error.to_string().contains(expected), "{texts:?}: {error}");
    }
}

#[test]
fn a_value_is_shown_to_nobody() {
    let value = SecretValue::new(b"hunter2hunter2".to_vec()).unwrap();
    assert_eq!(format!("{value} {value:?} {value:#?}"), "**** **** ****");
    let secret = NamedSecret {
        spec: parsed("K=env:V@a.example"),
        placeholder: placeholder(b"hunter2hunter2"),
        value,
    };
    assert!(!format!("{secret:?}").contains("hunter2"));
}

#[test]
fn a_value_is_one_line_of_a_plausible_length() {
    assert_eq!(SecretValue::new(b"12345678\n".to_vec()).unwrap().expose(), b"12345678");
    assert_eq!(
        SecretValue::new(b"12345678\r\n".to_vec()).unwrap().expose(),
        b"12345678"
    );
    assert_eq!(
        SecretValue::new("pässwörd".into()).unwrap().expose(),
        "pässwörd".as_bytes()
    );
    for (bytes, expected) in [
        (&b""[..], ValueError::Empty),
        (b"\n", ValueError::Empty),
        (b"1234567", ValueError::Short),
        (b"1234\n5678", ValueError::LineEnd),
        (b"12345678\n\n", ValueError::LineEnd),
        (b"1234\r5678", ValueError::LineEnd),
        (b"1234\x005678", ValueError::Control),
        (b"1234\x1b5678", ValueError::Control),
        (&[b'a'; MAX_VALUE + 1], ValueError::Long),
    ] {
        assert_eq!(SecretValue::new(bytes.to_vec()).unwrap_err(), expected);
    }
}

/// A placeholder, with bytes that only look random.
fn placeholder(value: &[u8]) -> Placeholder {
    let value = SecretValue::new(value.to_vec()).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let fill = |bytes: &mut [u8]| {
        for byte in bytes {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = state.to_be_bytes()[0];
        }
        Ok::<(), core::convert::Infallible>(())
    };
    Placeholder::plausible(&value, fill).unwrap()
}

#[test]
fn placeholders_look_like_what_they_stand_for() {
    for (value, beginning, alphabet, length) in [
        ("sk-proj-abcDEF0123456789abcDEF0123456789", "sk-proj-", "", 40),
        ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "ghp_", "", 40),
        ("AKIAIOSFODNN7EXAMPLE", "AKIA", "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 30),
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", "", 40),
        ("0123456789abcdef0123456789abcdef", "", "0123456789abcdef", 32),
        ("0123456789ABCDEF0123456789ABCDEF", "", "0123456789ABCDEF", 32),
        ("hunter2hunter2", "", "abcdefghijklmnopqrstuvwxyz0123456789", 26),
        ("with a space & more", "", "", 24),
        (
            "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.TJVA95OrM7E2cBab30RMHrHDcEfxjoYZgeFONFh7HgQ",
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.",
            "",
            92,
        ),
    ] {
        let placeholder = placeholder(value.as_bytes());
        let text = placeholder.as_str();
        let rest = text.strip_prefix(beginning).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(text.len(), length, "{value}: {text}");
        let fits = |character: char| {
            character.is_ascii_alphanumeric() && (alphabet.is_empty() || alphabet.contains(character))
        };
        assert!(rest.chars().all(fits), "{value}: {text}");
    }
}

proptest! {
    #[test]
    fn placeholders_need_no_escape_and_have_128_random_bits(value in "[!-~]{8,200}") {
        let placeholder = placeholder(value.as_bytes());
        let text = placeholder.as_str();
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)));
        prop_assert!(text.len() >= 24);
        prop_assert!(text != value);
        prop_assert!(text.len() == value.len() || text.len() <= 32 + 13);
    }

    #[test]
    fn placeholders_are_as_random_as_what_fills_them(first in any::<[u8; 64]>(), second in any::<[u8; 64]>()) {
        prop_assume!(first != second);
        let value = SecretValue::new(b"0123456789abcdef0123456789abcdef".to_vec()).unwrap();
        let with = |bytes: [u8; 64]| {
            Placeholder::plausible(&value, |into: &mut [u8]| {
                into.copy_from_slice(&bytes);
                Ok::<(), core::convert::Infallible>(())
            })
        };
        let digits = |bytes: [u8; 64]| bytes[..32].iter().map(|byte| byte % 16).collect::<Vec<_>>();
        prop_assert_eq!(with(first) == with(second), digits(first) == digits(second));
    }

    #[test]
    fn no_text_breaks_the_reader(text in "\\PC{0,60}", noise in "[A-Z]{1,3}=(env|file):[a-z/@#]{0,9}@[a-z.*,#:]{0,20}") {
        for text in [text, noise] {
            if let Ok(secret) = text.parse::<SecretSpec>() {
                prop_assert_eq!(&secret.to_string().parse::<SecretSpec>().unwrap(), &secret);
            }
        }
    }
}

#[test]
fn places_of_the_connection_are_no_usual_headers() {
    let usual: BTreeSet<&str> = ["authorization", "x-api-key", "cookie", "proxy-authorization"].into();
    for name in &usual {
        assert!(SecretPlace::is_usual_header(name), "{name}");
    }
    for name in ["host", "content-length", "transfer-encoding", "referer", "user-agent"] {
        assert!(!SecretPlace::is_usual_header(name), "{name}");
    }
}
