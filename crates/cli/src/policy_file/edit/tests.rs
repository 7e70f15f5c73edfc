use super::*;

fn place(host: &str, port: u16) -> Place {
    Place {
        host: Host::parse(host).unwrap(),
        port,
        protocol: SpokenProtocol::usual(port),
    }
}

#[track_caller]
fn allowed(text: &str, places: &[(&str, u16)]) -> String {
    let places = places.iter().map(|(host, port)| place(host, *port)).collect();
    let edited = allow(text, &places).unwrap();
    assert_eq!(edited.denied, Vec::<String>::new());
    let rules = rules_of(&edited.text).unwrap();
    for place in &places {
        let verdict = rules.decide(&place.host, place.port).verdict;
        assert_eq!(verdict, RuleVerdict::Allow, "{place:?} in {}", edited.text);
    }
    edited.text
}

#[test]
fn rules_come_behind_those_that_are_there_and_all_else_stays() {
    for (before, places, after) in [
        (
            "",
            &[("a.example", 443)][..],
            "[network]\nallow = [\"a.example:443\"]\n",
        ),
        (
            "# mine\nids = \"single\" # one\n",
            &[("a.example", 443), ("a.example", 22), ("b.example", 80)],
            "# mine\nids = \"single\" # one\n\n[network]\nallow = [\"a.example:22,443\", \"b.example:80\"]\n",
        ),
        (
            "[network] # reach\nallow = [\"x.example\"] # these\n\n# limits\n[limits]\nmemory = \"1G\"\n",
            &[("a.example", 443)],
            "[network] # reach\nallow = [\"x.example\", \"a.example:443\"] # these\n\n# limits\n[limits]\nmemory = \"1G\"\n",
        ),
        (
            "network = { allow = [\"x.example\"] }\n",
            &[("a.example", 443)],
            "network = { allow = [\"x.example\", \"a.example:443\"] }\n",
        ),
        (
            "[network]\nallow = [\n  # first\n  \"x.example\", # about x\n  # the end\n]\n",
            &[("a.example", 443), ("b.example", 443)],
            "[network]\nallow = [\n  # first\n  \"x.example\", # about x\n  # the end\n  \"a.example:443\",\n  \"b.example:443\",\n]\n",
        ),
        (
            "[network]\nallow = [\n  \"x.example\"\n]\n",
            &[("a.example", 443)],
            "[network]\nallow = [\n  \"x.example\",\n  \"a.example:443\",\n]\n",
        ),
        (
            "network.deny = [\"y.example\"]\n",
            &[("[2001:db8::1]", 443)],
            "network.deny = [\"y.example\"]\nnetwork.allow = [\"[2001:db8::1]:443\"]\n",
        ),
    ] {
        assert_eq!(allowed(before, places), after, "{before}");
    }
}

#[test]
fn what_is_allowed_already_is_not_written_again() {
    for text in [
        "[network]\nallow = [\"*.example.com\"]\n",
        "[network]\nallow = [\"a.example.com:1-1000\"]\nask = [\"*.example.com\"]\n",
    ] {
        assert_eq!(allowed(text, &[("a.example.com", 443), ("a.example.com", 80)]), text);
    }
}

#[test]
fn a_rule_that_would_ask_all_the_same_is_narrowed_or_goes() {
    for (before, port, after) in [
        (
            "ask = [\"a.b.example\"]",
            443,
            "ask = [\"a.b.example:80\"]\nallow = [\"a.b.example:443\"]",
        ),
        (
            "ask = [\"a.b.example:443\"]",
            443,
            "ask = []\nallow = [\"a.b.example:443\"]",
        ),
        (
            "ask = [\"a.b.example:1-3\"]",
            2,
            "ask = [\"a.b.example:1,3\"]\nallow = [\"a.b.example:2\"]",
        ),
        (
            "ask = [\"*.b.example\"]",
            443,
            "ask = [\"*.b.example\"]\nallow = [\"a.b.example:443\"]",
        ),
        (
            "ask = [\n  # one\n  \"a.b.example:443\", # of them\n  \"b.example\", # another\n]",
            443,
            "ask = [\n  # one\n # of them\n  \"b.example\", # another\n]\nallow = [\"a.b.example:443\"]",
        ),
        (
            "ask = [\n  \"b.example\", # one\n  \"a.b.example:443\", # another\n]",
            443,
            "ask = [\n  \"b.example\", # one\n # another\n]\nallow = [\"a.b.example:443\"]",
        ),
    ] {
        let text = allowed(&format!("[network]\n{before}\n"), &[("a.b.example", port)]);
        assert_eq!(text, format!("[network]\n{after}\n"));
    }
}

#[test]
fn another_protocol_than_usual_is_written() {
    let places = [Place {
        protocol: SpokenProtocol::Tcp,
        ..place("a.example", 443)
    }];
    let edited = allow("[network]\nallow = [\"b.example\"]\n", &places.into()).unwrap();
    assert!(edited.text.contains("\"a.example:443/tcp\""), "{}", edited.text);
}

#[test]
fn what_is_denied_stays_so() {
    let text = "[network]\ndeny = [\"a.example\"]\n";
    let edited = allow(text, &[place("a.example", 443), place("b.example", 80)].into()).unwrap();
    assert_eq!(edited.denied, ["`a.example:443`"]);
    assert_eq!(
        edited.text,
        "[network]\ndeny = [\"a.example\"]\nallow = [\"b.example:80\"]\n"
    );
}

#[test]
fn a_policy_without_a_network_is_not_given_one() {
    for text in ["network = \"none\"\n", "network = 1\n", "nonsense = 1\n", "["] {
        assert!(allow(text, &[place("a.example", 443)].into()).is_err(), "{text}");
    }
}
