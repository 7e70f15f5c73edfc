//! Which secrets the headers of a sandbox use.

use std::collections::{BTreeMap, BTreeSet};

use crate::request::NetworkSettings;

/// What stands in a header for a secret.
pub(crate) const BEGIN: &str = "${e2b.secrets.";
pub(crate) const END: char = '}';

/// What a gateway was told: the names that are used, and which version of each there was.
pub(crate) type SecretVersions = BTreeMap<String, Option<(String, i64)>>;

/// A secret that headers name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct SecretUse {
    pub(crate) hosts: BTreeSet<String>,
    pub(crate) headers: BTreeSet<String>,
}

/// The names of secrets in the value of a header; `Err` for a placeholder that is none of a secret, or not whole.
pub(crate) fn names_in(value: &str) -> Result<Vec<&str>, ()> {
    let mut names = Vec::new();
    let mut rest = value;
    while let Some(at) = rest.find("${e2b.") {
        let name = rest[at..].strip_prefix(BEGIN).and_then(|rest| rest.split_once(END));
        let (name, behind) = name.filter(|(name, _)| !name.is_empty()).ok_or(())?;
        names.push(name);
        rest = behind;
    }
    Ok(names)
}

/// The secrets that the headers of a sandbox name, by these names.
pub(crate) fn used(settings: &NetworkSettings) -> BTreeMap<String, SecretUse> {
    let mut used: BTreeMap<String, SecretUse> = BTreeMap::new();
    for (host, headers) in &settings.headers {
        for (header, value) in headers {
            for name in names_in(value).unwrap_or_default() {
                let of_name = used.entry(name.to_owned()).or_default();
                of_name.hosts.insert(host.clone());
                of_name.headers.insert(header.to_ascii_lowercase());
            }
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_found_whole_or_not_at_all() {
        assert_eq!(names_in("Bearer x"), Ok(vec![]));
        assert_eq!(
            names_in("a ${e2b.secrets.one} ${e2b.secrets.Two-2}"),
            Ok(vec!["one", "Two-2"])
        );
        for bad in [
            "${e2b.identity.tokens.aws}",
            "${e2b.secrets.}",
            "${e2b.secrets.x",
            "${e2b.secrets.a} ${e2b.",
        ] {
            assert_eq!(names_in(bad), Err(()), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_for_the_hosts_and_headers_that_name_it() {
        let headers = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect()
        };
        let settings = NetworkSettings {
            headers: BTreeMap::from([
                (
                    "a.test".to_owned(),
                    headers(&[("Authorization", "Bearer ${e2b.secrets.k}"), ("X", "y")]),
                ),
                ("b.test".to_owned(), headers(&[("X-Key", "${e2b.secrets.k}")])),
            ]),
            ..NetworkSettings::default()
        };
        let used = used(&settings);
        let texts = |all: &[&str]| all.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
        assert_eq!(used.len(), 1);
        assert_eq!(used["k"].hosts, texts(&["a.test", "b.test"]));
        assert_eq!(used["k"].headers, texts(&["authorization", "x-key"]));
    }
}
