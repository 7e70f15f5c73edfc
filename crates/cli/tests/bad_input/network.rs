//! Rules and times of the network that mean nothing, or too much; and a network that cannot be had.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;

use super::assert_refused;
use super::support::{Site, stderr};

/// Text that is no rule, and the word by which the user finds out why.
const NO_RULE: [(&str, &str); 19] = [
    ("", "empty"),
    ("*", "every host"),
    ("*.*.example.com", "`*` stands in front"),
    ("exa*mple.com", "`*` stands in front"),
    ("https://example.com", "URL"),
    ("example.com:0", "1 to 65535"),
    ("example.com:99999", "1 to 65535"),
    ("example.com:443-80", "from the lower"),
    ("example.com:", "missing"),
    ("example.com/udp", "no protocol"),
    ("exam ple.com", "which no host has"),
    ("example.com\n", "which no host has"),
    ("user@example.com", "which no host has"),
    ("a..example.com", "empty label"),
    ("-a.example.com", "hyphen"),
    ("10.0.0.1/8", "after its first 8"),
    ("10.0.0.0/33", "leading bits"),
    ("2001:db8::1", "brackets"),
    ("256.256.256.256", "is none"),
];

/// Text that would let too much through, and may be denied.
const TOO_WIDE: [&str; 5] = ["*.com", "*.co.uk", "*.github.io", "0.0.0.0/0", "[::]/0"];

#[test]
fn a_pattern_that_means_nothing_is_refused_with_the_flag() {
    let site = Site::new();
    let learned = site.root().join("learned.toml");
    let learn = learned.to_str().unwrap();
    for (text, word) in NO_RULE {
        for flag in ["--allow", "--ask", "--deny-host"] {
            assert_refused(&site, &["run", &format!("{flag}={text}"), "--", "true"], &[flag, word]);
        }
        let given = format!("--learn-allow={text}");
        assert_refused(
            &site,
            &["run", "--learn", learn, &given, "--", "true"],
            &["--learn-allow", word],
        );
    }
    let bytes = OsStr::from_bytes(b"\xff.example.com");
    for flag in ["--allow", "--ask", "--deny-host"] {
        site.refuse([OsStr::new("run"), OsStr::new(flag), bytes, OsStr::new("true")]);
    }
    assert!(!learned.exists());
}

#[test]
fn a_pattern_that_means_everybody_lets_nobody_through() {
    let site = Site::new();
    for text in TOO_WIDE {
        for flag in ["--allow", "--ask"] {
            assert_refused(&site, &["run", flag, text, "--", "true"], &[flag, "would mean"]);
        }
        site.succeed(["run", "-q", "--deny-host", text, "--", "true"]);
    }
}

#[test]
fn a_policy_says_where_its_rule_is_wrong() {
    let site = Site::new();
    let rules = NO_RULE.into_iter().chain(TOO_WIDE.map(|text| (text, "would mean")));
    for (text, word) in rules {
        for key in ["allow", "ask"] {
            let text = text.replace('\n', "\\n");
            site.write(
                "bad.toml",
                format!("[network]\n{key} = [\"example.org\", \"{text}\"]\n"),
            );
            for arguments in [
                &["policy", "check", "bad.toml"][..],
                &["run", "--policy", "bad.toml", "--", "true"],
                &["explain", "connect", "example.com:443", "--policy", "bad.toml"],
            ] {
                assert_refused(&site, arguments, &["bad.toml:2:", word]);
            }
        }
    }
    for (text, word) in [("0", "no time"), ("soon", "not a number"), ("-1s", "negative")] {
        site.write("bad.toml", format!("[network]\nask_timeout = \"{text}\"\n"));
        assert_refused(
            &site,
            &["run", "--policy", "bad.toml", "--", "true"],
            &["bad.toml:2:", word],
        );
    }
}

#[test]
fn a_pattern_is_answered_with_what_could_be_written() {
    let site = Site::new();
    for (text, hint) in [
        ("*", "name the hosts"),
        ("*.com", "example.com"),
        ("2001:db8::1", "[2001:db8::1]"),
        ("10.0.0.1/8", "10.0.0.0/8"),
    ] {
        assert_refused(&site, &["run", "--allow", text, "--", "true"], &["hint: ", hint]);
    }
}

#[test]
fn rules_for_requests_and_proxies_are_answered_with_what_could_be_written() {
    let site = Site::new();
    for (flags, words) in [
        (
            ["--allow-method", "api.example.com/v1"],
            ["methods, a space", "GET,HEAD"],
        ),
        (["--allow-method", "get api.example.com/"], ["`get`", "capitals"]),
        (
            ["--allow-method", "GET https://api.example.com/"],
            ["GET https", "example.com"],
        ),
        (
            ["--set-header", "api.example.com X-Team:"],
            ["no value", "`x-team: value`"],
        ),
        (
            ["--set-header", "X-Team: agents"],
            ["a host, a space", "api.example.com X-Team"],
        ),
        (
            ["--remove-header", "Cookie"],
            ["a host, a space", "api.example.com Cookie"],
        ),
        (["--upstream-proxy", "http://proxy"], ["no port", "`http://HOST:3128`"]),
        (
            ["--upstream-proxy", "me@proxy:80"],
            ["user name or a password", "env:VARIABLE"],
        ),
        (["--no-proxy", "2001:db8::1"], ["brackets", "[2001:db8::1]"]),
    ] {
        let arguments = [&["run", "--allow", "example.com"], &flags[..], &["--", "true"]].concat();
        assert_refused(&site, &arguments, &[flags[0], words[0], "hint: ", words[1]]);
    }
}

#[test]
fn a_policy_of_the_workspace_is_told_what_in_it_gives_more() {
    let site = Site::new();
    site.write(
        "offleash.toml",
        "[network]\nallow = [\"evil.example\"]\ndeny = [\"a.example\"]\n",
    );
    assert_refused(
        &site,
        &["run", "--", "true"],
        &["network.allow (`evil.example`)", "--no-policy"],
    );
}

/// What is asked for and does nothing, and the words by which the user finds out.
const NO_EFFECT: [(&[&str], [&str; 2]); 14] = [
    (
        &["--set-header", "example.com X-A: b"],
        ["nothing may be reached", "--allow HOST"],
    ),
    (
        &["--allow", "a.example", "--set-header", "b.example X-A: c"],
        ["no rule allows `b.example`", "--allow b.example"],
    ),
    (
        &["--allow", "a.example", "--remove-header", "*.b.example Cookie"],
        ["no rule allows `*.b.example`", "--allow *.b.example"],
    ),
    (
        &["--allow", "a.example", "--secret", "KEY=env:HOME@b.example"],
        ["secret `KEY`", "--allow b.example"],
    ),
    (&["--proxy-variables"], ["`--proxy-variables`", "--allow HOST"]),
    (
        &["--upstream-proxy", "http://proxy:3128"],
        ["`--upstream-proxy`", "--allow HOST"],
    ),
    (
        &["--allow", "a.example", "--no-proxy", "b.example"],
        ["no upstream proxy", "--upstream-proxy"],
    ),
    (
        &["--allow", "a.example", "--ask-timeout", "1m"],
        ["nothing is asked", "--ask HOST"],
    ),
    (
        &[
            "--allow",
            "a.example",
            "--set-header",
            "a.example X: 1",
            "--set-header",
            "a.example X: 2",
        ],
        ["two values", "one value"],
    ),
    (
        &[
            "--allow",
            "a.example",
            "--set-header",
            "a.example X: 1",
            "--remove-header",
            "a.example X",
        ],
        ["both set and removed", "leave the rule"],
    ),
    (
        &["--deny-host", "a.example/http"],
        ["every protocol", "leave the protocol out"],
    ),
    (
        &["--allow", "127.0.0.1:5432"],
        ["the sandbox itself", "--host-port 5432"],
    ),
    (&["--allow", "[::1]:5432"], ["the sandbox itself", "--host-port 5432"]),
    (&["--allow", "localhost"], ["the sandbox itself", "--host-port PORT"]),
];

#[test]
fn flags_that_do_nothing_are_refused() {
    let site = Site::new();
    for (flags, words) in NO_EFFECT {
        let arguments = [&["run"], flags, &["--", "sh", "-c", "touch ran"]].concat();
        assert_refused(&site, &arguments, &words);
    }
    let explained = ["explain", "connect", "a.example:443", "--proxy-variables"];
    assert_refused(&site, &explained, &["`--proxy-variables`"]);
    assert_eq!(site.succeed(["runs", "--json"]).trim(), "[]", "nothing ran");
}

#[test]
fn keys_of_a_policy_that_do_nothing_are_refused() {
    let site = Site::new();
    for (keys, word) in [
        ("set_headers = [\"b.example X: 1\"]", "no rule allows `b.example`"),
        ("set_headers = [\"a.example X: 1\", \"a.example X: 2\"]", "two values"),
        ("no_proxy = [\"b.example\"]", "no upstream proxy"),
        ("ask_timeout = \"5s\"", "nothing is asked"),
        ("deny = [\"b.example/tls\"]", "every protocol"),
        (
            "[[network.secret]]\nname = \"K\"\nsource = \"env:V\"\nhosts = [\"b.example\"]",
            "secret `K`",
        ),
    ] {
        site.write("named.toml", format!("[network]\nallow = [\"a.example\"]\n{keys}\n"));
        assert_refused(&site, &["run", "--policy", "named.toml", "--", "true"], &[word]);
        let checked = site.offleash(["policy", "check", "named.toml"]).output().unwrap();
        let told = format!("{}{}", String::from_utf8_lossy(&checked.stdout), stderr(&checked));
        assert!(told.contains(word), "{keys}: {told}");
    }
    // What a policy lacks, flags may give.
    site.write("named.toml", "[network]\nset_headers = [\"a.example X: 1\"]\n");
    let answer = site.succeed([
        "explain",
        "connect",
        "a.example:443",
        "--policy",
        "named.toml",
        "--allow",
        "a.example",
    ]);
    assert!(answer.starts_with("a.example:443: allowed"), "{answer}");
}

#[test]
fn a_time_for_questions_in_which_nobody_could_answer_is_refused() {
    let site = Site::new();
    for text in ["0", "0s", "", "soon", "-1s", "1d"] {
        let arguments = [
            "run",
            "--ask",
            "example.com",
            &format!("--ask-timeout={text}"),
            "--",
            "true",
        ];
        assert_refused(&site, &arguments, &["--ask-timeout"]);
    }
}

#[test]
fn a_file_that_cannot_be_learned_into_is_refused_before_anything_runs() {
    let site = Site::new();
    let policy = site.write("policy.toml", "[network]\nallow = [\"example.com\"]\n");
    symlink(&policy, site.workspace().join("link.toml")).unwrap();
    site.write("nonsense.toml", "nonsense = 1\n");
    for (file, word) in [
        ("missing/learned.toml", "no directory"),
        (".", "not a regular file"),
        ("/dev/null", "not a regular file"),
        ("link.toml", "symbolic link"),
        ("nonsense.toml", "nonsense"),
        ("policy.toml/below", "cannot"),
    ] {
        let arguments = ["run", "--learn", file, "--", "sh", "-c", "touch ran"];
        assert_refused(&site, &arguments, &["cannot learn into", word]);
    }
    assert_eq!(site.succeed(["runs", "--json"]).trim(), "[]", "nothing ran");
    let text = fs::read_to_string(&policy).unwrap();
    assert_eq!(text, "[network]\nallow = [\"example.com\"]\n");
}

#[test]
fn flags_that_contradict_each_other_are_refused() {
    let site = Site::new();
    for arguments in [
        &["run", "--network", "none", "--ask", "example.com", "true"][..],
        &["run", "--network", "none", "--learn", "learned.toml", "true"],
        &["run", "--network", "none", "--set-header", "a.example X: 1", "true"],
        &["run", "--network", "none", "--remove-header", "a.example X", "true"],
        &["run", "--network", "none", "--ask-timeout", "1m", "true"],
        &["run", "--network", "none", "--proxy-variables", "true"],
        &["run", "--network", "none", "--upstream-proxy", "env", "true"],
        &["run", "--network", "none", "--no-proxy", "a.example", "true"],
        &["run", "--learn-allow", "example.com", "true"],
        &["run", "--network", "host", "true"],
    ] {
        let output = site.offleash(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {}", stderr(&output));
    }
}
