//! All that is asked of the requests to hosts.

use crate::network::header_rule::HeaderRule;
use crate::network::host::Host;
use crate::network::http_rule::MethodRules;

/// Which requests pass, and what becomes of their headers. None means that requests are not looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestRules {
    /// Which requests pass.
    pub methods: MethodRules,
    /// Headers that are set or taken away, in any order.
    pub headers: Vec<HeaderRule>,
}

impl RequestRules {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.methods.rules.is_empty() && self.headers.is_empty()
    }

    /// Whether any rule is about `host`, so that its requests have to be seen.
    pub fn concern(&self, host: &Host) -> bool {
        self.methods.concern(host) || self.headers.iter().any(|rule| rule.concerns(host))
    }

    /// The rules for headers of requests to `host` in the order in which they are applied: what is taken away first,
    /// then what is set, the most specific last.
    pub fn headers_for<'a>(&'a self, host: &'a Host) -> Vec<&'a HeaderRule> {
        let mut about: Vec<&HeaderRule> = self.headers.iter().filter(|rule| rule.concerns(host)).collect();
        about.sort_by_key(|rule| (rule.value().is_some(), rule.specificity()));
        about
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_specific_rule_for_a_header_is_applied_last() {
        let rules = RequestRules {
            headers: vec![
                HeaderRule::parse_set("api.example.com X-Team: one").unwrap(),
                HeaderRule::parse_set("*.example.com X-Team: all").unwrap(),
                HeaderRule::parse_remove("api.example.com X-Team").unwrap(),
                HeaderRule::parse_set("other.example.com X-Team: other").unwrap(),
            ],
            ..RequestRules::default()
        };
        let host = "api.example.com".parse().unwrap();
        let values: Vec<Option<&str>> = rules.headers_for(&host).iter().map(|rule| rule.value()).collect();
        assert_eq!(values, [None, Some("all"), Some("one")]);
        assert!(rules.concern(&host) && !rules.concern(&"example.com".parse().unwrap()));
    }
}
