use super::*;
use crate::network::routes::deliver_everything_here;
use crate::network::tests::{SOURCES, in_namespace};

/// Asks for what no kernel has, behind what every kernel has.
fn commit_with_unknown_expression() -> Result<(), NetworkError> {
    let mut ruleset = RulesetWriter::new();
    let mut table = ruleset.table(HeaderLayout::ipv4(SOURCES.v4));
    table.chain(ChainHook::Arriving);
    table.rule(ChainHook::Arriving, "accepting", "filter", |rule| {
        rule.for_own().accept();
    });
    table.rule(ChainHook::Arriving, "asking for the unknown", "the unknown", |rule| {
        rule.expression("offleash", |_| {});
    });
    commit(&ruleset.finish())
}

#[test]
fn what_the_kernel_does_not_know_is_missing_and_nothing_is_left_of_the_rest() {
    in_namespace(|| {
        let error = commit_with_unknown_expression().unwrap_err();
        let expected = NetworkError::Missing {
            step: "asking for the unknown",
            part: "the unknown",
            source: Errno::NOENT.into(),
        };
        assert_eq!(format!("{error:?}"), format!("{expected:?}"));
        assert_eq!(
            error.to_string(),
            "asking for the unknown: this kernel has no the unknown"
        );
        let ipv6 = deliver_everything_here(SOURCES).unwrap();
        let filters = RedirectFilters {
            sources: SOURCES,
            ipv6,
            listener: 1,
            dns: 53,
            first_packets: FirstPackets::Passed,
        };
        assert_eq!(
            lead_to_listener(&filters).unwrap(),
            (RedirectMethod::Proxy, FirstPackets::Passed)
        );
    });
}

#[test]
fn only_what_is_unknown_is_missing() {
    let refusal = |needs, source| RequestRefusal {
        number: 3,
        step: "making",
        needs,
        source,
        words: String::new(),
    };
    let is_missing = |refusal| matches!(explain(refusal), NetworkError::Missing { .. });
    assert!(is_missing(refusal(Some("nat"), Errno::NOENT)));
    assert!(is_missing(refusal(Some("nf_tables"), Errno::OPNOTSUPP)));
    assert!(!is_missing(refusal(None, Errno::NOENT)));
    for other in [Errno::PERM, Errno::EXIST, Errno::NOMEM, Errno::INVAL] {
        assert!(!is_missing(refusal(Some("nat"), other)));
    }
}
