use proptest::prelude::*;
use serde_json::json;

use super::super::constraint::{Comparison, ParameterPath, Requirement, Scalar};
use super::*;

fn grant(text: &str) -> ToolGrant {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn name(text: &str) -> ToolName {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn allows(text: &str, parameters: Value) -> bool {
    let grants = [grant(text)];
    matches!(
        judge(&grants, &[], &name("pay"), &parameters),
        GrantVerdict::Allowed { .. }
    )
}

#[test]
fn parameters_are_held_to_what_the_grant_says() {
    let text = "pay where amount <= 1000 and currency in [EUR, USD]";
    assert!(allows(text, json!({"amount": 1000, "currency": "EUR"})));
    assert!(allows(text, json!({"amount": 999.99, "currency": "USD", "more": 1})));
    assert!(!allows(text, json!({"amount": 1000.01, "currency": "EUR"})));
    assert!(!allows(text, json!({"amount": 1, "currency": "eur"})));
    assert!(allows(
        "pay where a.b == \"x y\" or c prefix /srv",
        json!({"a": {"b": "x y"}})
    ));
    assert!(allows(
        "pay where a.b == 1 or (c prefix '/srv' and d != 2)",
        json!({"c": "/srv/x", "d": 3})
    ));
}

#[test]
fn what_is_missing_or_of_another_type_passes_nothing() {
    for (condition, parameters) in [
        ("amount <= 1000", json!({})),
        ("amount <= 1000", json!({"amount": "1"})),
        ("amount <= 1000", json!({"amount": null})),
        ("amount <= 1000", json!({"amount": [1]})),
        ("amount <= 1000", json!([1])),
        ("a.b exists", json!({"a": 1})),
        ("a exists", json!({"a": null})),
        ("a != 1", json!({})),
        ("a != 1", json!({"a": {"b": 1}})),
        ("a not in [1]", json!({"a": []})),
        ("a prefix x", json!({"a": 1})),
        ("amount >= 0", json!({"amount": 1e40})),
    ] {
        assert!(
            !allows(&format!("pay where {condition}"), parameters.clone()),
            "{condition} {parameters}"
        );
    }
}

#[test]
fn a_path_below_a_directory_does_not_lead_out_of_it() {
    let text = "pay where p below /srv/data";
    for path in ["/srv/data", "/srv/data/", "/srv/data/a/b"] {
        assert!(allows(text, json!({"p": path})), "{path}");
    }
    for path in [
        "/srv/database",
        "/srv/data/../x",
        "/srv/data/.",
        "srv/data/x",
        "/srv",
        "/srv/data/a\0b",
        "",
    ] {
        assert!(!allows(text, json!({"p": path})), "{path}");
    }
}

#[test]
fn calls_are_counted_and_a_second_grant_takes_over() {
    let grants = [grant("pay where amount < 10 calls 2"), grant("* ask")];
    let call = |used: &[u64], amount: u64| judge(&grants, used, &name("pay"), &json!({"amount": amount}));
    assert_eq!(call(&[], 1), GrantVerdict::Allowed { grant: 0 });
    assert_eq!(call(&[2], 1), GrantVerdict::Ask { grant: 1 });
    assert_eq!(call(&[0], 11), GrantVerdict::Ask { grant: 1 });
    assert_eq!(
        judge(&grants[..1], &[2], &name("pay"), &json!({"amount": 1})),
        GrantVerdict::UsedUp { calls: 2 }
    );
    assert_eq!(
        judge(&grants[..1], &[2], &name("ship"), &json!({})),
        GrantVerdict::NotGranted
    );
    let told = judge(&grants[..1], &[], &name("pay"), &json!({"amount": 11}));
    assert_eq!(
        told,
        GrantVerdict::Parameters {
            wanted: "amount < 10".to_owned()
        }
    );
}

#[test]
fn a_grant_is_written_as_it_is_read() {
    for text in [
        "pay",
        "pay,crm.* calls 3 ask",
        "* where amount <= 1000 and (currency in [\"EUR\", \"USD\"] or note exists)",
        "pay where a not in [1, true] and b prefix \"x\\\"y\" and c below \"/srv\"",
    ] {
        assert_eq!(grant(text).to_string(), text);
        assert_eq!(grant(&grant(text).to_string()), grant(text));
    }
}

#[test]
fn texts_that_are_no_grants_say_where_they_are_wrong() {
    for (text, said) in [
        ("", "`` is no name"),
        ("pay*y", "`pay*y` is no name"),
        ("a b", "`a b` is no name"),
        ("pay where", "`pay where` is no name"),
        ("pay where amount", "at character 7: expected one of <"),
        ("pay where amount <= x", "at character 11: expected a number"),
        ("pay where amount <= 1 2", "at character 13: expected `and`"),
        ("pay where a in []", "expected a value"),
        ("pay where a == \"x", "no closing"),
        ("pay where p below srv", "an absolute path"),
        ("pay calls many", "no number of calls"),
        (
            "pay where \u{1f600} == 1",
            "at character 1: expected a parameter, a value",
        ),
    ] {
        let error = text.parse::<ToolGrant>().expect_err(text).to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
    let deep = format!("pay where {}a exists{}", "(".repeat(17), ")".repeat(17));
    assert!(deep.parse::<ToolGrant>().is_err());
    assert!(
        format!("pay where {}", "a exists and ".repeat(65))
            .parse::<ToolGrant>()
            .is_err()
    );
}

#[test]
fn grants_are_within_others_only_where_that_is_proved() {
    let within = |narrow: &[&str], wide: &[&str]| {
        let of = |texts: &[&str]| texts.iter().map(|text| grant(text)).collect::<Vec<_>>();
        ToolGrant::all_within(&of(narrow), &of(wide)).is_ok()
    };
    let wide = ["pay where amount <= 1000 and currency in [EUR, USD] calls 10", "crm.*"];
    assert!(within(&["pay where amount < 1000 and currency == EUR calls 4"], &wide));
    assert!(within(
        &["pay where amount < 5 and currency == EUR or amount < 9 and currency == USD calls 4"],
        &wide
    ));
    assert!(within(&["crm.read.*", "crm.x where a exists calls 3 ask"], &wide));
    assert!(within(&[], &wide));
    assert!(within(
        &["pay where amount in [1, 2] and currency == EUR calls 10"],
        &wide
    ));
    for wider in [
        "pay where amount <= 1001 and currency == EUR calls 1",
        "pay where amount <= 10 calls 1",
        "pay where amount <= 10 and currency in [EUR, CHF] calls 1",
        "pay where amount <= 10 and currency == EUR",
        "pay where amount <= 10 and currency == EUR calls 11",
        "pay where (amount <= 10 and currency == EUR) or note exists calls 1",
        "crm*",
        "*",
        "ship",
    ] {
        assert!(!within(&[wider], &wide), "{wider}");
    }
    // They share the calls of the one that they are within.
    let five = "pay where amount < 5 and currency == EUR calls 5";
    assert!(within(&[five, five], &wide));
    assert!(!within(
        &[five, five, "pay where amount < 5 and currency == EUR calls 1"],
        &wide
    ));
    // Whoever has to ask cannot give what is not asked about.
    assert!(!within(&["pay"], &["pay ask"]));
    assert!(within(&["pay ask"], &["pay"]));
}

fn comparison() -> impl Strategy<Value = Comparison> {
    let number = || (-3_i64..4).prop_map(|number| number.to_string().parse().expect("a number"));
    let scalar = || {
        prop_oneof![
            number().prop_map(Scalar::Number),
            prop::sample::select(vec!["", "/a", "/a/b", "/ab", "x"]).prop_map(|text| Scalar::Text(text.to_owned())),
            any::<bool>().prop_map(Scalar::Truth),
        ]
    };
    prop_oneof![
        number().prop_map(Comparison::Below),
        number().prop_map(Comparison::AtMost),
        number().prop_map(Comparison::Above),
        number().prop_map(Comparison::AtLeast),
        prop::collection::vec(scalar(), 1..3).prop_map(Comparison::OneOf),
        prop::collection::vec(scalar(), 1..3).prop_map(Comparison::NoneOf),
        prop::sample::select(vec!["", "/", "/a", "/a/"]).prop_map(|text| Comparison::Prefix(text.to_owned())),
        prop::sample::select(vec!["/", "/a", "/a/", "/a/b"]).prop_map(|text| Comparison::Beneath(text.to_owned())),
        Just(Comparison::Exists),
    ]
}

fn constraint() -> impl Strategy<Value = Constraint> {
    let one = (prop::sample::select(vec!["p", "q"]), comparison()).prop_map(|(parameter, comparison)| {
        Constraint::One(Requirement {
            parameter: ParameterPath(vec![parameter.to_owned()]),
            comparison,
        })
    });
    prop_oneof![1 => Just(Constraint::Always), 9 => one].prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(Constraint::All),
            prop::collection::vec(inner, 1..4).prop_map(Constraint::Any),
        ]
    })
}

/// Everything that two parameters can be, of values at and beside those that conditions name.
fn calls() -> Vec<Value> {
    let values = [
        None,
        Some(json!(null)),
        Some(json!([])),
        Some(json!({})),
        Some(json!(true)),
        Some(json!(false)),
        Some(json!("")),
        Some(json!("/")),
        Some(json!("/a")),
        Some(json!("/a/")),
        Some(json!("/a/b")),
        Some(json!("/a/../b")),
        Some(json!("/ab")),
        Some(json!("x")),
    ];
    let numbers = (-8..9).map(|half| Some(json!(f64::from(half) / 2.0)));
    let values: Vec<_> = values.into_iter().chain(numbers).collect();
    let mut calls = Vec::new();
    for p in &values {
        for q in &values {
            let members = [("p", p), ("q", q)].into_iter();
            let given = members.filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)));
            calls.push(Value::Object(given.collect()));
        }
    }
    calls
}

proptest! {
    #[test]
    fn what_is_proved_to_be_narrower_is(narrow in constraint(), wide in constraint()) {
        if domain::implies(&narrow, &wide) {
            for call in calls() {
                prop_assert!(!narrow.allows(&call) || wide.allows(&call), "{} within {}: {}", narrow, wide, call);
            }
        }
    }

    #[test]
    fn a_condition_is_within_itself(constraint in constraint()) {
        prop_assert!(domain::implies(&constraint, &constraint));
    }

    #[test]
    fn a_condition_is_written_as_it_is_read(constraint in constraint(), text in ".{0,60}") {
        let written = constraint.to_string();
        // `always` stands alone when it is read.
        if !written.contains("always") {
            let read: Constraint = written.parse().expect("it was written so");
            for call in calls() {
                prop_assert_eq!(read.allows(&call), constraint.allows(&call));
            }
        }
        let _any_text_is_read_or_refused = text.parse::<Constraint>();
    }
}

#[test]
fn names_alone_ask_for_all_that_may_be_had_and_never_for_more() {
    let grants =
        |texts: &[&str]| -> Vec<ToolGrant> { texts.iter().map(|text| text.parse().expect("a grant")).collect() };
    let ceiling = grants(&["pay where amount < 5 calls 3 ask", "crm.* calls 2", "search"]);
    for (wanted, expected) in [
        (&["pay"][..], Some(&["pay where amount < 5 calls 3 ask"][..])),
        (
            &["*"],
            Some(&["pay where amount < 5 calls 3 ask", "crm.* calls 2", "search"]),
        ),
        (&["crm.find"], Some(&["crm.find calls 2"])),
        (&["s*,pay"], Some(&["pay where amount < 5 calls 3 ask", "search"])),
        (
            &["pay where amount < 4 calls 1 ask"],
            Some(&["pay where amount < 4 calls 1 ask"]),
        ),
        (&[], Some(&[])),
        (&["crm.find", "crm.make"], None),
        (&["pay", "pay"], None),
        (&["pay where amount < 6 calls 1 ask"], None),
        (&["pay calls 1 ask"], None),
        (&["other"], None),
    ] {
        let narrowed = ToolGrant::narrowed(&grants(wanted), &ceiling);
        assert_eq!(narrowed.ok(), expected.map(grants), "{wanted:?}");
    }
}
