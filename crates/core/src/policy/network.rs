//! The table `[network]` of a policy.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use toml::Spanned;

use crate::approval::ApprovalRules;
use crate::network::secret::SecretSpec;
use crate::network::upstream_proxy;
use crate::network::{HeaderRule, MethodRule, NetworkRule, PortGivenError, RuleVerdict};
use crate::spec::NetworkSpec;
use crate::written::{WrongText, one, wrong};

/// `"none"`, or a table of rules.
pub(super) enum NetworkValue {
    None,
    Rules(Box<NetworkRules>),
}

/// The keys of `[network]`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct NetworkRules {
    internet: bool,
    allow: Vec<Spanned<String>>,
    ask: Vec<Spanned<String>>,
    deny: Vec<Spanned<String>>,
    ask_timeout: Option<Spanned<String>>,
    methods: Vec<Spanned<String>>,
    set_headers: Vec<Spanned<String>>,
    remove_headers: Vec<Spanned<String>>,
    dns_servers: Vec<Spanned<String>>,
    upstream_proxy: Option<Spanned<String>>,
    no_proxy: Vec<Spanned<String>>,
    proxy_variables: bool,
    publish: Vec<Spanned<PortText>>,
    host_ports: Vec<Spanned<PortText>>,
    secret: Vec<Spanned<SecretTable>>,
}

/// One `[[network.secret]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct SecretTable {
    name: String,
    source: String,
    hosts: Vec<String>,
    #[serde(default)]
    places: Vec<String>,
}

impl SecretTable {
    fn into_spec(self) -> Result<SecretSpec, String> {
        let hosts: Vec<&str> = self.hosts.iter().map(String::as_str).collect();
        let places: Vec<&str> = self.places.iter().map(String::as_str).collect();
        SecretSpec::from_parts(&self.name, &self.source, &hosts, &places).map_err(|error| error.to_string())
    }
}

/// The secrets, each with an error where it stands.
fn secrets(written: Vec<Spanned<SecretTable>>) -> Result<Vec<SecretSpec>, WrongText> {
    let mut secrets = Vec::with_capacity(written.len());
    for secret in written {
        let start = secret.span().start;
        let at = |message: String| (start, message);
        secrets.push(secret.into_inner().into_spec().map_err(at)?);
        if let Some((last, before)) = secrets.split_last()
            && before.iter().any(|other| other.name == last.name)
        {
            return Err(at(format!("secret `{}` is given twice", last.name)));
        }
    }
    Ok(secrets)
}

/// A number or a string.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a port, such as 8000 or \"8000:3000\"")]
enum PortText {
    Number(u16),
    Text(String),
}

impl PortText {
    fn parse<T: FromStr<Err = PortGivenError>>(list: &[Spanned<Self>]) -> Result<Vec<T>, WrongText> {
        let parsed = list.iter().map(|spanned| {
            let parsed = match spanned.get_ref() {
                Self::Number(port) => port.to_string().parse(),
                Self::Text(text) => text.parse(),
            };
            parsed.map_err(|error: PortGivenError| wrong(spanned, &error))
        });
        parsed.collect()
    }
}

impl NetworkValue {
    pub(super) fn into_spec(self) -> Result<NetworkSpec, WrongText> {
        let Self::Rules(rules) = self else {
            return Ok(NetworkSpec::default());
        };
        let mut spec = NetworkSpec::default();
        for (verdict, texts) in [
            (RuleVerdict::Allow, &rules.allow),
            (RuleVerdict::Ask, &rules.ask),
            (RuleVerdict::Deny, &rules.deny),
        ] {
            for text in texts {
                let rule = NetworkRule::parse(verdict, text.get_ref());
                spec.policy.rules.push(rule.map_err(|error| wrong(text, &error))?);
            }
        }
        if let Some(text) = &rules.ask_timeout {
            spec.asks.timeout = Some(ApprovalRules::timeout_of(text.get_ref()).map_err(|error| wrong(text, &error))?);
        }
        for text in &rules.methods {
            let rule: MethodRule = one(text)?;
            spec.add_method_rule(rule).map_err(|error| wrong(text, &error))?;
        }
        for text in &rules.remove_headers {
            let rule = HeaderRule::parse_remove(text.get_ref()).map_err(|error| wrong(text, &error))?;
            spec.requests.headers.push(rule);
        }
        for text in &rules.set_headers {
            let rule = HeaderRule::parse_set(text.get_ref()).map_err(|error| wrong(text, &error))?;
            spec.requests.headers.push(rule);
        }
        for text in &rules.dns_servers {
            let added = spec.add_dns_server(one(text)?);
            added.map_err(|error| wrong(text, &error))?;
        }
        spec.upstream_proxy = rules.upstream_proxy.as_ref().map(one).transpose()?;
        for text in &rules.no_proxy {
            let host = upstream_proxy::parse_direct(text.get_ref());
            spec.no_proxy.push(host.map_err(|error| wrong(text, &error))?);
        }
        spec.internet = rules.internet;
        spec.proxy_variables = rules.proxy_variables;
        spec.secrets = secrets(rules.secret)?;
        spec.publish = PortText::parse(&rules.publish)?;
        spec.host_ports = PortText::parse(&rules.host_ports)?;
        Ok(spec)
    }
}

impl<'de> Deserialize<'de> for NetworkValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrTable;
        impl<'de> Visitor<'de> for WordOrTable {
            type Value = NetworkValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", or a table with the keys `allow`, `ask` and `deny`")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<NetworkValue, E> {
                if word == "none" {
                    Ok(NetworkValue::None)
                } else {
                    Err(E::invalid_value(de::Unexpected::Str(word), &self))
                }
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<NetworkValue, A::Error> {
                NetworkRules::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(|rules| NetworkValue::Rules(Box::new(rules)))
            }
        }
        deserializer.deserialize_any(WordOrTable)
    }
}
