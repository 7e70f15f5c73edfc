use proptest::prelude::*;

use super::*;

fn rule(watch: MonitorFigure, threshold: u64, window_ms: u64) -> MonitorRule {
    MonitorRule {
        name: "r".to_owned(),
        watch,
        threshold,
        window: Millis(window_ms),
        action: MonitorAction::Alert,
    }
}

/// When a rule fires over samples of `(at_ms, value)`, and with which figure.
fn firings(rule: &MonitorRule, samples: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut engine = MonitorEngine::new(vec![rule.clone()]);
    let mut found = Vec::new();
    for (at_ms, value) in samples {
        let sample = MonitorSample::at(*at_ms).with(rule.watch, *value);
        found.extend(engine.take(&sample).into_iter().map(|firing| (*at_ms, firing.value)));
    }
    found
}

#[test]
fn what_counts_fires_when_it_grew_enough_within_the_window() {
    let scan = rule(MonitorFigure::RefusedConnections, 50, 5000);
    assert_eq!(firings(&scan, &[(500, 20), (1000, 50)]), [(1000, 50)]);
    // The same number over a longer time is not the same.
    let slow: Vec<(u64, u64)> = (1..100).map(|second| (second * 1000, second * 9)).collect();
    assert_eq!(firings(&scan, &slow), []);
    // A gap in samples makes nothing of what came before it.
    assert_eq!(firings(&scan, &[(1000, 0), (61_000, 60)]), []);
}

#[test]
fn a_level_fires_when_it_was_kept_for_a_whole_window_and_a_peak_does_not() {
    let memory = rule(MonitorFigure::Memory, 100, 2000);
    let at = |values: &[u64]| -> Vec<(u64, u64)> {
        let times = (0_u64..).map(|place| place * 500);
        times.zip(values.iter().copied()).collect()
    };
    assert_eq!(firings(&memory, &at(&[120, 120, 120, 120, 130])), [(2000, 120)]);
    assert_eq!(firings(&memory, &at(&[0, 500, 500, 0, 500, 500, 0])), []);
}

#[test]
fn cpu_time_is_percent_of_one_cpu() {
    let busy = rule(MonitorFigure::Cpu, 150, 2000);
    let two_cpus: Vec<(u64, u64)> = (1..=4).map(|half| (half * 500, half * 1_000_000)).collect();
    assert_eq!(firings(&busy, &two_cpus), [(2000, 200)]);
    let one_cpu: Vec<(u64, u64)> = (1..=20).map(|half| (half * 500, half * 500_000)).collect();
    assert_eq!(firings(&busy, &one_cpu), []);
}

#[test]
fn a_rule_that_fired_is_quiet_longer_each_time_and_ends_at_a_number() {
    let calls = rule(MonitorFigure::RefusedCalls, 10, 1000);
    let steady: Vec<(u64, u64)> = (1..2_000_000)
        .step_by(10)
        .map(|second| (second * 1000, second * 1000))
        .collect();
    let found = firings(&calls, &steady);
    assert_eq!(found.len(), usize::try_from(MAX_FIRINGS).unwrap());
    let pauses: Vec<u64> = found.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert_eq!(pauses[..2], [30_000, 60_000]);
    assert!(pauses.is_sorted(), "{pauses:?}");
    let killing = MonitorRule {
        action: MonitorAction::Throttle,
        ..calls
    };
    let found = firings(&killing, &steady[..30]);
    assert_eq!(found[1].0 - found[0].0, found[2].0 - found[1].0);
}

#[test]
fn what_nobody_knows_fires_nothing_and_time_does_not_go_back() {
    let calls = rule(MonitorFigure::RefusedCalls, 1, 1000);
    let mut engine = MonitorEngine::new(vec![calls]);
    let forks = MonitorSample::at(10).with(MonitorFigure::Forks, 1_000_000);
    assert_eq!(engine.take(&forks), []);
    let early = MonitorSample::at(5).with(MonitorFigure::RefusedCalls, 1_000_000);
    assert_eq!(engine.take(&early), []);
    assert!(engine.watches(&[MonitorFigure::RefusedCalls]) && !engine.watches(&[MonitorFigure::Forks]));
}

#[test]
fn built_in_rules_are_rules_and_none_of_them_touches_the_sandbox() {
    let rules = effective_rules(&[]);
    assert_eq!(rules.len(), BUILTIN_RULES.len());
    assert_eq!(check_rules(&rules), Ok(()));
    for rule in rules {
        assert!(rule.action <= MonitorAction::Alert, "{rule:?}");
        let draft = MonitorRuleDraft {
            name: rule.name.clone(),
            ..MonitorRuleDraft::default()
        };
        assert_eq!(draft.into_rule(), Ok(rule));
    }
}

#[test]
fn an_owner_changes_built_in_rules_adds_some_and_takes_some_away() {
    let draft = |name: &str, action| MonitorRuleDraft {
        name: name.to_owned(),
        action: Some(action),
        ..MonitorRuleDraft::default()
    };
    let kill = draft("fork-storm", MonitorAction::Kill).into_rule().unwrap();
    let off = draft("busy-cpu", MonitorAction::Off).into_rule().unwrap();
    let own = rule(MonitorFigure::Sent, 5, 1000);
    let rules = effective_rules(&[kill.clone(), off, own.clone()]);
    assert_eq!(rules.len(), BUILTIN_RULES.len());
    assert!(rules.contains(&kill) && rules.contains(&own));
    assert!(rules.iter().all(|rule| rule.name != "busy-cpu"));
    assert_eq!(rules.iter().filter(|rule| rule.name == "fork-storm").count(), 1);
}

#[test]
fn a_rule_that_cannot_be_one_is_refused() {
    let whole = MonitorRuleDraft {
        name: "own".to_owned(),
        watch: Some(MonitorFigure::Cpu),
        threshold: Some(1),
        window: None,
        action: None,
    };
    let made = |change: &dyn Fn(&mut MonitorRuleDraft)| {
        let mut draft = whole.clone();
        change(&mut draft);
        draft.into_rule()
    };
    let rule = made(&|_| {}).unwrap();
    assert_eq!((rule.window, rule.action), (DEFAULT_WINDOW, MonitorAction::Alert));
    assert_eq!(
        made(&|draft| draft.threshold = Some(0)),
        Err(MonitorRuleError::Threshold)
    );
    for window in [0, MIN_WINDOW.0 - 1, MAX_WINDOW.0 + 1] {
        assert_eq!(
            made(&|draft| draft.window = Some(Millis(window))),
            Err(MonitorRuleError::Window)
        );
    }
    for name in ["", "Upper", "a b", "a/b", &"x".repeat(MAX_NAME + 1)] {
        let found = made(&|draft| draft.name = name.to_owned());
        assert_eq!(found, Err(MonitorRuleError::Name(name.to_owned())));
    }
    assert!(made(&|draft| draft.name = "x".repeat(MAX_NAME)).is_ok());
    for (key, found) in [
        ("watch", made(&|draft| draft.watch = None)),
        ("threshold", made(&|draft| draft.threshold = None)),
    ] {
        let name = "own".to_owned();
        assert_eq!(found, Err(MonitorRuleError::Missing { key, name }));
    }
    assert_eq!(
        check_rules(&[rule.clone(), rule.clone()]),
        Err(MonitorRuleError::Twice("own".to_owned()))
    );
    assert_eq!(check_rules(&vec![rule; MAX_RULES + 1]), Err(MonitorRuleError::TooMany));
}

#[test]
fn words_are_read_as_they_are_written() {
    for figure in MonitorFigure::ALL {
        assert_eq!(figure.to_string().parse(), Ok(*figure));
        assert_eq!(serde_json::to_value(figure).unwrap(), figure.word());
    }
    for action in MonitorAction::ALL {
        assert_eq!(action.to_string().parse(), Ok(action));
        assert_eq!(serde_json::to_value(action).unwrap(), action.word());
    }
    assert!(MonitorAction::ALL.is_sorted());
    assert!("Kill".parse::<MonitorAction>().is_err() && "io".parse::<MonitorFigure>().is_err());
}

#[test]
fn names_that_carry_data_are_told_from_those_of_hosts() {
    for name in [
        "mzxw6ytboi4dqmjsgeztinjvgy3tqobz.t.example.com",
        "6a09e667bb67ae853c6ef372a54ff53a.exfil.example",
        "k5xw63dbnzxw4ztp.nbqwgztimvzgkytu.t.example.com.",
        &format!("{}.example.com", "aaaaaaaa.".repeat(14).trim_end_matches('.')),
    ] {
        assert!(is_generated_name(name), "{name}");
    }
    for name in [
        "",
        "example.com",
        "files.pythonhosted.org",
        "ec2-52-23-194-121.compute-1.amazonaws.com",
        "d111111abcdef8.cloudfront.net",
        "production.cloudflare.docker.com",
        "objects.githubusercontent.com",
        "internationalisation-documentation.example.com",
        "mzxw6ytboi4dqmjsgeztinjvgy3tqobz.com",
    ] {
        assert!(!is_generated_name(name), "{name}");
    }
}

#[test]
fn first_bytes_of_miners_are_told_from_others() {
    for first in [
        r#"{"id": 1, "method": "mining.subscribe", "params": ["cpuminer/2.5"]}"#,
        r#" {"id":1,"jsonrpc":"2.0","method":"login","params":{"login":"4A","pass":"x","agent":"XMRig"}}"#,
        r#"{"id":1,"method":"eth_submitLogin","params":["0x0"]}"#,
    ] {
        assert!(is_stratum(first.as_bytes()), "{first}");
    }
    for first in [
        "",
        "GET / HTTP/1.1\r\n\r\n\"mining.subscribe\"",
        r#"{"method":"login","user":"me"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#,
        &format!("{{{}\"mining.subscribe\"", " ".repeat(2000)),
    ] {
        assert!(!is_stratum(first.as_bytes()), "{first}");
    }
}

#[test]
fn entropy_is_that_of_the_bytes() {
    assert_eq!(entropy_millibits(b""), 0);
    assert_eq!(entropy_millibits(b"aaaa"), 0);
    assert_eq!(entropy_millibits(b"abab"), 1000);
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(entropy_millibits(&all), 8000);
}

proptest! {
    /// Whatever comes, what is remembered is bounded, and a count is no more than what was counted.
    #[test]
    fn windows_are_bounded_and_invent_nothing(
        steps in proptest::collection::vec((0_u64..5000, 0_u64..200), 1..400),
        window in 1000_u64..20_000,
        threshold in 1_u64..500,
    ) {
        let rules: Vec<MonitorRule> = [MonitorFigure::Hosts, MonitorFigure::Memory, MonitorFigure::Cpu]
            .into_iter()
            .map(|figure| rule(figure, threshold, window))
            .collect();
        let mut engine = MonitorEngine::new(rules);
        let (mut at, mut total) = (0_u64, 0_u64);
        for (step, grown) in steps {
            at += step;
            total += grown;
            let sample = MonitorSample::at(at)
                .with(MonitorFigure::Hosts, total)
                .with(MonitorFigure::Memory, grown)
                .with(MonitorFigure::Cpu, total);
            for firing in engine.take(&sample) {
                prop_assert!(firing.value >= threshold);
                if firing.rule.watch == MonitorFigure::Hosts {
                    prop_assert!(firing.value <= total);
                }
            }
            prop_assert!(engine.remembered() <= 3 * 36);
        }
    }

    /// A steady rate below the threshold never fires, however samples come.
    #[test]
    fn less_than_the_threshold_never_fires(gaps in proptest::collection::vec(1_u64..3000, 1..300)) {
        // One for each 100 ms is 50 in five seconds.
        let scan = rule(MonitorFigure::RefusedConnections, 51, 5000);
        let mut at = 0;
        let samples: Vec<(u64, u64)> = gaps.into_iter().map(|gap| { at += gap; (at, at / 100) }).collect();
        prop_assert_eq!(firings(&scan, &samples), []);
    }

    #[test]
    fn any_bytes_have_a_shape(bytes in proptest::collection::vec(any::<u8>(), 0..2000), name in ".{0,200}") {
        prop_assert!(entropy_millibits(&bytes) <= 8000);
        let _ = (is_stratum(&bytes), is_generated_name(&name));
    }
}
