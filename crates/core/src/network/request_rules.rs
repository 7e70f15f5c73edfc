//! All that is asked of the requests to hosts.

use crate::network::header_rule::HeaderRule;
use crate::network::host::Host;
use crate::network::http_rule::MethodRules;

/// Which requests pass, and what becomes of their headers. None means that requests are not looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct RequestRules {
    /// Which requests pass.
    pub methods: MethodRules,
    /// Headers that are set or taken away, in any order.
    pub headers: Vec<HeaderRule>,
    /// Which of those count for a request.
    pub scope: HeaderScope,
}

/// Which rules for headers count for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum HeaderScope {
    /// All that are about its host. A request without TLS is refused where one sets a header, unless a rule for
    /// connections says that the clear is meant.
    #[default]
    EveryHost,
    /// Those of the most specific host alone, and only over TLS: what goes in the clear is carried as it came.
    SpecificHostOverTls,
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
        if self.scope == HeaderScope::SpecificHostOverTls {
            let most = about.iter().map(|rule| rule.specificity()).max();
            about.retain(|rule| Some(rule.specificity()) == most);
        }
        about.sort_by_key(|rule| (rule.value().is_some(), rule.specificity()));
        about
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> RequestRules {
        RequestRules {
            headers: vec![
                HeaderRule::parse_set("api.example.com X-Team: one").unwrap(),
                HeaderRule::parse_set("*.example.com X-Team: all").unwrap(),
                HeaderRule::parse_set("*.example.com X-Wide: all").unwrap(),
                HeaderRule::parse_set("*.deep.example.com X-Team: deep").unwrap(),
                HeaderRule::parse_remove("api.example.com X-Team").unwrap(),
                HeaderRule::parse_set("other.example.com X-Team: other").unwrap(),
            ],
            ..RequestRules::default()
        }
    }

    fn values(rules: &RequestRules, host: &str) -> Vec<Option<String>> {
        let host = host.parse().unwrap();
        let about = rules.headers_for(&host);
        about.iter().map(|rule| rule.value().map(str::to_owned)).collect()
    }

    #[test]
    fn the_more_specific_rule_for_a_header_is_applied_last() {
        let rules = rules();
        let all = Some("all".to_owned());
        assert_eq!(
            values(&rules, "api.example.com"),
            [None, all.clone(), all, Some("one".to_owned())]
        );
        assert!(rules.concern(&"api.example.com".parse().unwrap()));
        assert!(!rules.concern(&"example.com".parse().unwrap()));
    }

    #[test]
    fn the_rules_of_less_specific_hosts_do_not_count_where_hosts_stand_apart() {
        let rules = RequestRules {
            scope: HeaderScope::SpecificHostOverTls,
            ..rules()
        };
        let expected = |value: &str| Some(value.to_owned());
        assert_eq!(values(&rules, "api.example.com"), [None, expected("one")]);
        assert_eq!(values(&rules, "a.deep.example.com"), [expected("deep")]);
        assert_eq!(values(&rules, "a.example.com"), [expected("all"), expected("all")]);
        assert_eq!(values(&rules, "example.com"), []);
    }
}
