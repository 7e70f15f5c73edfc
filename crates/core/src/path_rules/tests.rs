use proptest::prelude::*;

use super::*;

fn anchors() -> PatternAnchors<'static> {
    PatternAnchors {
        workspace: Some(Path::new("/w")),
        home: Some(Path::new("/home/u")),
    }
}

fn pattern(text: &str) -> PathPattern {
    text.parse().unwrap()
}

fn rules(list: &[(PathAccess, &str)]) -> PathRules {
    let mut rules = PathRules::default();
    for (access, text) in list {
        add(&mut rules, *access, pattern(text));
    }
    rules
}

fn add(rules: &mut PathRules, access: PathAccess, pattern: PathPattern) {
    match access {
        PathAccess::Write => rules.write.push(pattern),
        PathAccess::Read => rules.read.push(pattern),
        PathAccess::Protected => rules.protect.push(pattern),
        PathAccess::Denied => rules.deny.push(pattern),
    }
}

fn access(rules: &PathRules, path: &str) -> Option<PathAccess> {
    rules.decide(Path::new(path), anchors()).map(|verdict| verdict.access)
}

#[test]
fn the_most_specific_rule_wins() {
    use PathAccess::{Denied, Protected, Read, Write};
    for (list, path, expected) in [
        (&[(Read, "/a"), (Denied, "/a/b")][..], "/a/b/c", Some(Denied)),
        (&[(Denied, "/a"), (Read, "/a/b")], "/a/b/c", Some(Read)),
        (&[(Denied, "/a"), (Read, "/a/b")], "/a/c", Some(Denied)),
        (&[(Read, "src"), (Denied, "**/.env")], "/w/src/deep/.env", Some(Denied)),
        (&[(Read, "src/.env"), (Denied, "**/.env")], "/w/src/.env", Some(Read)),
        (
            &[(Write, "/a"), (Read, "/a"), (Protected, "/a"), (Denied, "/a")],
            "/a",
            Some(Denied),
        ),
        (
            &[(Write, "/a"), (Read, "/a"), (Protected, "/a")],
            "/a/b",
            Some(Protected),
        ),
        (&[(Read, "/a"), (Denied, "/a/**")], "/a/b", Some(Denied)),
        (&[(Read, "/a"), (Denied, "/a/**")], "/a", Some(Read)),
        (&[(Denied, "/a/*")], "/a/b/c", Some(Denied)),
        (&[(Denied, "/a/*")], "/a", None),
        (&[(Denied, "~/.ssh")], "/home/u/.ssh/id", Some(Denied)),
        (&[(Denied, "~/.ssh")], "/home/other/.ssh/id", None),
        (&[(Denied, "**")], "/w/x", Some(Denied)),
        (&[(Denied, "/")], "/x", Some(Denied)),
        (&[(Denied, "/a")], "/ab", None),
        (&[(Denied, "/a/**/z")], "/a/z", Some(Denied)),
        (&[(Denied, "/a/**/z")], "/a/b/c/z/d", Some(Denied)),
        (&[], "/x", None),
    ] {
        assert_eq!(access(&rules(list), path), expected, "{list:?} {path}");
    }
}

#[test]
fn a_verdict_names_its_rule() {
    let verdict = rules(&[(PathAccess::Denied, "**/.env")])
        .decide(Path::new("/w/.env"), anchors())
        .unwrap();
    assert_eq!(verdict.rule, "filesystem.deny: **/.env");
}

#[test]
fn patterns_that_could_mean_something_else_are_refused() {
    for text in ["", "a/../b", "..", "~root/x", "a\0b", "/a/[", "x\\"] {
        assert!(text.parse::<PathPattern>().is_err(), "{text:?}");
    }
}

#[test]
fn the_base_is_what_has_no_wildcard() {
    for (text, base) in [
        ("/a/b", "/a/b"),
        ("/a/*/b", "/a"),
        ("**/x", "/w"),
        ("~/x/**", "/home/u/x"),
        ("/", "/"),
    ] {
        assert_eq!(
            pattern(text).base(anchors()).as_deref(),
            Some(Path::new(base)),
            "{text}"
        );
    }
    assert_eq!(pattern("x").base(PatternAnchors::default()), None);
}

#[test]
fn a_path_with_wildcard_characters_can_be_meant_literally() {
    let odd = Path::new("/a/[x]*?\\");
    let literal = PathPattern::literal(odd).unwrap();
    assert!(!literal.is_glob());
    assert_eq!(literal.base(anchors()).as_deref(), Some(odd));
    assert!(literal.names(odd, anchors()));
}

fn any_access() -> impl Strategy<Value = PathAccess> {
    prop_oneof![
        Just(PathAccess::Write),
        Just(PathAccess::Read),
        Just(PathAccess::Protected),
        Just(PathAccess::Denied)
    ]
}

fn any_list() -> impl Strategy<Value = Vec<(PathAccess, String)>> {
    let text = "(/w/|/|)(a|b|\\*|\\*\\*|a\\*|\\?)(/(a|b|\\*|\\*\\*)){0,3}";
    prop::collection::vec((any_access(), text), 0..8)
}

fn build(list: &[(PathAccess, String)]) -> PathRules {
    rules(
        &list
            .iter()
            .map(|(access, text)| (*access, text.as_str()))
            .collect::<Vec<_>>(),
    )
}

proptest! {
    #[test]
    fn denying_a_path_exactly_always_denies_it(list in any_list(), path in "/w(/(a|b|c)){1,4}") {
        let mut rules = build(&list);
        rules.deny.push(pattern(&path));
        prop_assert_eq!(access(&rules, &path), Some(PathAccess::Denied));
    }

    #[test]
    fn the_order_of_rules_never_matters(
        (list, shuffled) in any_list().prop_flat_map(|list| (Just(list.clone()), Just(list).prop_shuffle())),
        path in "/w(/(a|b|c)){0,4}",
    ) {
        prop_assert_eq!(access(&build(&list), &path), access(&build(&shuffled), &path));
    }

    #[test]
    fn a_rule_on_a_parent_never_overrides_one_on_the_child(
        parent in any_access(), child in any_access(), path in "/w(/(a|b)){1,3}",
    ) {
        let deeper = format!("{path}/c");
        let rules = rules(&[(parent, &path), (child, &deeper)]);
        prop_assert_eq!(access(&rules, &deeper), Some(child));
        prop_assert_eq!(access(&rules, &format!("{deeper}/d")), Some(child));
    }

    #[test]
    fn one_more_deny_never_grants(list in any_list(), more in "(/w/|)(a|b|\\*)(/(a|b|\\*\\*)){0,2}",
                                  path in "/w(/(a|b|c)){0,4}") {
        let before = access(&build(&list), &path);
        let mut rules = build(&list);
        rules.deny.push(pattern(&more));
        let after = access(&rules, &path);
        prop_assert!(after == before || after == Some(PathAccess::Denied));
    }

    #[test]
    fn no_text_panics(text: Vec<u8>, path: String) {
        if let Ok(pattern) = PathPattern::parse(&text) {
            pattern.covers(Path::new(&path), anchors());
            pattern.base(anchors());
        }
    }
}
