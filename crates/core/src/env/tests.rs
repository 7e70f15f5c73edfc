use proptest::prelude::*;

use super::*;

fn rules(pass: &[&str]) -> EnvRules {
    EnvRules {
        pass: pass.iter().map(|text| text.parse().unwrap()).collect(),
        set: Vec::new(),
    }
}

fn passed(pass: &[&str], name: &str) -> bool {
    rules(pass).decide(OsStr::new(name)).passed
}

#[test]
fn the_default_is_a_short_allowlist() {
    for name in ["LANG", "LC_ALL", "TERM", "NO_COLOR", "TZ"] {
        assert!(passed(&[], name), "{name}");
    }
    for name in ["PATH", "HOME", "DISPLAY", "SSH_AUTH_SOCK", "LANGX", "XTERM", "", "lang"] {
        assert!(!passed(&[], name), "{name}");
    }
}

#[test]
fn secrets_are_passed_only_when_named_in_full() {
    for name in [
        "GITHUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "MYSQL_PWD",
        "OPENAI_API_KEY",
        "npm_config_token",
        "SSH_AUTH_SOCK",
        "DBUS_SESSION_BUS_ADDRESS",
        "DATABASE_URL",
        "X_PAT",
        "KEY2",
    ] {
        assert!(!passed(&["*"], name), "{name}");
        assert!(passed(&[name], name), "{name}");
    }
    for name in [
        "GIT_AUTHOR_NAME",
        "KEYBOARD",
        "MONKEY",
        "PWD",
        "SSL_CERT_FILE",
        "NIX_SSL_CERT_FILE",
        "COMPASS",
        "PATTERN",
        "CI",
    ] {
        assert!(passed(&["*"], name), "{name}");
    }
}

#[test]
fn loader_variables_are_passed_only_when_named_in_full() {
    for name in [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "GLIBC_TUNABLES",
        "BASH_ENV",
        "NODE_OPTIONS",
        "JAVA_TOOL_OPTIONS",
    ] {
        assert!(!passed(&["*"], name), "{name}");
        assert!(passed(&[name], name), "{name}");
    }
}

#[test]
fn every_pattern_of_our_own_can_be_read() {
    assert_eq!(DEFAULTS.len(), DEFAULT_PASS.len());
    assert_eq!(LOADERS.len(), LOADER_VARIABLES.len());
}

#[test]
fn what_is_set_wins_and_what_was_withheld_is_told() {
    let mut rules = rules(&["*"]);
    rules.add(OsStr::new("A=1=2")).unwrap();
    rules.add(OsStr::new("A=3")).unwrap();
    let host = [("A", "host"), ("B", "b"), ("MY_TOKEN", "t")].map(|(name, value)| (name.into(), value.into()));
    let variables: Vec<_> = rules.resolve(&host).into_iter().collect();
    assert_eq!(variables, [("A".into(), "3".into()), ("B".into(), "b".into())]);
    assert_eq!(rules.withheld(&host), ["MY_TOKEN"]);
}

#[test]
fn variables_that_cannot_exist_are_refused() {
    let mut rules = EnvRules::default();
    assert_eq!(rules.add(OsStr::new("")), Err(EnvError::EmptyName));
    assert_eq!(rules.add(OsStr::new("=x")), Err(EnvError::EmptyName));
    assert_eq!(
        rules.add(OsStr::new("A\0")),
        Err(EnvError::NulInName(Text::from("A\0")))
    );
    for assignment in ["A\nB=1", "A\nB"] {
        assert_eq!(
            rules.add(OsStr::new(assignment)),
            Err(EnvError::NewlineInName(Text::from("A\nB")))
        );
    }
    assert_eq!(
        rules.add(OsStr::new("A=\0")),
        Err(EnvError::NulInValue { name: Text::from("A") })
    );
    assert_eq!(
        rules.assign(OsStr::new("A=B"), OsStr::new("")),
        Err(EnvError::EqualsInName(Text::from("A=B")))
    );
    assert!("A[".parse::<EnvPattern>().is_err());
    assert_eq!(rules, EnvRules::default());
}

proptest! {
    #[test]
    fn no_pattern_with_a_wildcard_passes_a_secret(prefix in "[A-Z]{0,4}", pattern in "[A-Z_*?]{0,6}\\*") {
        let name = format!("{prefix}_TOKEN");
        prop_assert!(!passed(&[&pattern], &name));
    }
}
