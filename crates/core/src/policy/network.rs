//! The table `[network]` of a policy.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use toml::Spanned;

use crate::network::{Asks, NetworkPolicy, NetworkRule, RuleVerdict};
use crate::spec::NetworkSpec;

/// `"none"`, or a table of rules.
pub(super) enum Network {
    None,
    Rules(NetworkRules),
}

/// The keys of `[network]`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NetworkRules {
    allow: Vec<Spanned<String>>,
    ask: Vec<Spanned<String>>,
    deny: Vec<Spanned<String>>,
    ask_timeout: Option<Spanned<String>>,
}

impl Network {
    pub(super) fn into_spec(self) -> Result<NetworkSpec, (usize, String)> {
        let Self::Rules(rules) = self else {
            return Ok(NetworkSpec::default());
        };
        let mut policy = NetworkPolicy::default();
        for (verdict, texts) in [
            (RuleVerdict::Allow, &rules.allow),
            (RuleVerdict::Ask, &rules.ask),
            (RuleVerdict::Deny, &rules.deny),
        ] {
            for text in texts {
                let rule = NetworkRule::parse(verdict, text.get_ref());
                policy
                    .rules
                    .push(rule.map_err(|error| (text.span().start, error.to_string()))?);
            }
        }
        let mut asks = Asks::default();
        if let Some(text) = rules.ask_timeout {
            asks.timeout = Asks::timeout_of(text.get_ref()).map_err(|error| (text.span().start, error))?;
        }
        Ok(NetworkSpec { policy, asks })
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrTable;
        impl<'de> Visitor<'de> for WordOrTable {
            type Value = Network;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", or a table with the keys `allow`, `ask` and `deny`")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Network, E> {
                if word == "none" {
                    Ok(Network::None)
                } else {
                    Err(E::invalid_value(de::Unexpected::Str(word), &self))
                }
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Network, A::Error> {
                NetworkRules::deserialize(de::value::MapAccessDeserializer::new(map)).map(Network::Rules)
            }
        }
        deserializer.deserialize_any(WordOrTable)
    }
}
