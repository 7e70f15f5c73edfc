use super::*;

#[test]
fn a_header_is_set_or_taken_away_for_a_host() {
    let set = HeaderRule::parse_set("api.example.com X-Team:  agents of:acme ").unwrap();
    assert_eq!((set.name(), set.value()), ("x-team", Some("agents of:acme")));
    assert!(set.concerns(&"API.example.com.".parse().unwrap()));
    assert!(!set.concerns(&"example.com".parse().unwrap()));
    let removed = HeaderRule::parse_remove("*.example.com Cookie").unwrap();
    assert_eq!((removed.name(), removed.value()), ("cookie", None));
    assert_eq!(removed.to_string(), "network.remove_headers: *.example.com cookie");
    assert!(set.specificity() > removed.specificity());
}

#[test]
fn a_value_is_shown_nowhere() {
    let set = HeaderRule::parse_set("api.example.com Authorization: Bearer hunter2").unwrap();
    assert!(!format!("{set} {set:?}").contains("hunter2"));
    for text in [
        "api.example.com Authorization: hunter2\u{7}",
        "api.example.comAuthorization:hunter2",
    ] {
        let error = HeaderRule::parse_set(text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[test]
fn what_is_wrong_with_a_value_is_said_without_it() {
    for (value, part) in [
        ("".to_owned(), "no value"),
        (" ".to_owned(), "no value"),
        ("hunter2\nX-B: c".to_owned(), "line end"),
        ("hünter2".to_owned(), "not ASCII"),
        ("hunter2".repeat(1000), "7000 bytes"),
    ] {
        let error = HeaderRule::parse_set(&format!("api.example.com X-Team:{value}")).unwrap_err();
        assert!(error.to_string().contains(part), "{value:?}: {error}");
        assert!(!format!("{error} {:?}", error.hint()).contains("nter2"), "{error}");
    }
}

#[test]
fn what_is_no_rule_is_refused() {
    for text in [
        "",
        "api.example.com",
        "X-Team: agents",
        "api.example.com X-Team",
        "api.example.com X Team: agents",
        "api.example.com X-Team : agents",
        "api.example.com : agents",
        "api.example.com X-Team:",
        "api.example.com X-Team: a\r\nHost: evil.example",
        "api.example.com X-Team: a\0",
        "api.example.com X-Team: é",
        "* X-Team: agents",
        "*.com X-Team: agents",
        "0.0.0.0/0 X-Team: agents",
        "api.example.com Host: evil.example",
        "api.example.com Content-Length: 3",
        "api.example.com transfer-encoding: chunked",
        "api.example.com Connection: close",
    ] {
        let error = HeaderRule::parse_set(text).unwrap_err();
        assert!(error.hint().is_some(), "{text}");
    }
    for text in [
        "",
        "api.example.com",
        "api.example.com Host",
        "api.example.com Cookie: a",
        "*.com Cookie",
    ] {
        HeaderRule::parse_remove(text).unwrap_err();
    }
}
