//! One request: whether it passes, and how it is changed before it is sent on.

use http::header::{COOKIE, HOST, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Uri};
use hyper::body::Body;
use offleash_core::error::Explained as _;
use offleash_core::network::{CanonicalPath, HeaderScope, Host, RequestDecision};

use super::lengths;
use crate::http_head::{Authority, HttpHeadError, MAX_FIELDS, Scheme, check_words, imitated_field};
use crate::http_requests::RequestError;
use crate::policy::Policy;

/// How many rules a refusal names.
const NAMED_RULES: usize = 4;

/// Headers by which servers are asked for another method or path than the one that is judged: frameworks take the
/// former from clients that can only `POST`, the latter from proxies before them.
const OVERRIDES: [&str; 5] = [
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
];

/// Where the requests of a connection go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    /// The name, or the address where none was used.
    pub(crate) host: Host,
    /// The port.
    pub(crate) port: u16,
    /// With TLS, or in the clear.
    pub(crate) scheme: Scheme,
    /// Whether a rule says in so many words that this host is reached in the clear, so that confidential headers may be
    /// set there.
    pub(crate) clear_is_meant: bool,
}

/// Why a request does not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Why, as a sentence for the program that asked.
    pub(crate) reason: String,
    /// The rule that refuses it, as it was written.
    pub(crate) rule: Option<String>,
    /// What could be done.
    pub(crate) hint: Option<String>,
}

/// A request that passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Passed {
    /// Its target as it is sent on.
    pub(super) target: PathAndQuery,
    /// The rule that lets it through.
    pub(super) rule: Option<String>,
}

impl Refused {
    pub(super) fn because(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            rule: None,
            hint: None,
        }
    }
}

impl From<&RequestError> for Refused {
    fn from(error: &RequestError) -> Self {
        Self {
            reason: error.to_string(),
            rule: None,
            hint: Some(error.hint().to_owned()),
        }
    }
}

impl Destination {
    /// As it stands in requests.
    pub(super) fn authority(&self) -> String {
        if self.port == self.scheme.default_port() {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(super) fn scheme_name(&self) -> &'static str {
        match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// Whether a request passes: it must be for the host that the connection was made to, and rules must let it through
/// where there are any.
pub(super) fn judge(policy: &Policy, to: &Destination, parts: &Parts) -> Result<Passed, Refused> {
    let method = &parts.method;
    if [Method::TRACE, Method::CONNECT]
        .iter()
        .any(|never| method.as_str().eq_ignore_ascii_case(never.as_str()))
    {
        return Err(Refused::because(format!("{method} is never let through")));
    }
    let target = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    check_head(parts, target).map_err(|error| Refused::from(&RequestError::from(error)))?;
    check_authority(to, parts)?;
    check_fields(parts)?;
    let rules = policy.requests();
    if !rules.methods.concern(&to.host) {
        let target = PathAndQuery::try_from(target).map_err(|_| Refused::because("its target is none"))?;
        return Ok(Passed { target, rule: None });
    }
    check_overrides(parts)?;
    let path = CanonicalPath::parse(target.as_bytes()).map_err(|error| Refused {
        reason: format!("`{method}` to `{}`: {error}", to.authority()),
        rule: None,
        hint: error.hint(),
    })?;
    let target = PathAndQuery::try_from(path.to_string()).map_err(|_| Refused::because("its target is none"))?;
    match rules.methods.decide(&to.host, method.as_str(), &path) {
        RequestDecision::Unrestricted => Ok(Passed { target, rule: None }),
        RequestDecision::Allowed(rule) => Ok(Passed {
            target,
            rule: Some(format!("network.methods: {rule}")),
        }),
        RequestDecision::Refused => Err(refused_by_rules(policy, to, method, &path)),
    }
}

fn refused_by_rules(policy: &Policy, to: &Destination, method: &Method, path: &CanonicalPath) -> Refused {
    let rules: Vec<String> = policy
        .requests()
        .methods
        .counting_for(&to.host)
        .map(ToString::to_string)
        .collect();
    let named = rules.iter().take(NAMED_RULES).map(|rule| format!("`{rule}`"));
    let more = if rules.len() > NAMED_RULES { " …" } else { "" };
    let named = named.collect::<Vec<_>>().join(", ");
    let host = &to.host;
    // Only what can be copied into a shell as it stands.
    let plain = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%".contains(&byte))
    };
    let example = if plain(path.as_str()) && method.as_str().bytes().all(|byte| byte.is_ascii_uppercase()) {
        format!("{method} {host}{}", path.as_str())
    } else {
        format!("METHODS {host}/PATH")
    };
    Refused {
        reason: format!("`{method} {host}{}` is not let through by {named}{more}", path.as_str()),
        rule: rules.first().map(|rule| format!("network.methods: {rule}")),
        hint: Some(format!("`offleash run --allow-method '{example}'` lets it through")),
    }
}

/// Whether a request that passes has no body that could become a request which nobody has judged: servers differ in
/// whether they read one where none means anything (RFC 9110, 9.3), and take what they leave for the next request.
/// Only where requests are judged: elsewhere that request would pass, too, and there are servers that want such bodies.
/// `DELETE` is not among them: well-known services want a body with it, and read it.
pub(super) fn check_body(policy: &Policy, to: &Destination, method: &Method, body: &impl Body) -> Result<(), Refused> {
    let has_body = !body.is_end_stream() && body.size_hint().exact() != Some(0);
    let means_nothing = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    if !(has_body && means_nothing && policy.requests().methods.concern(&to.host)) {
        return Ok(());
    }
    Err(Refused {
        reason: format!(
            "`{method}` to `{}` has a body, which a server may take for another request that was not judged",
            to.authority()
        ),
        rule: None,
        hint: Some(
            "ask without a body, or by `POST` where the server takes that and a rule lets it through".to_owned(),
        ),
    })
}

/// A request of HTTP/2 becomes one of HTTP/1.1 where the server speaks that: its first line and the number of its fields
/// are what they may be there, where they were judged before. What stands for `Host` is a field, and cookies that were
/// cut are one.
fn check_head(parts: &Parts, target: &str) -> Result<(), HttpHeadError> {
    check_words(parts.method.as_str(), target)?;
    if !target.starts_with('/') && (target, &parts.method) != ("*", &Method::OPTIONS) {
        return Err(HttpHeadError::Target);
    }
    let headers = &parts.headers;
    let cookies = headers.get_all(COOKIE).iter().count();
    let fields = headers.len() - cookies.saturating_sub(1) + usize::from(!headers.contains_key(HOST));
    if fields > MAX_FIELDS {
        return Err(HttpHeadError::ManyFields);
    }
    Ok(())
}

/// Every place of a request that names a host must name the one that the connection was made to.
fn check_authority(to: &Destination, parts: &Parts) -> Result<(), Refused> {
    if let Some(scheme) = parts.uri.scheme_str()
        && !scheme.eq_ignore_ascii_case(to.scheme_name())
    {
        return Err(Refused::because(format!(
            "the request is for `{scheme}`, but the connection is {}",
            to.scheme_name()
        )));
    }
    let in_target = parts.uri.authority().map(http::uri::Authority::as_str);
    let in_headers: Vec<&[u8]> = parts.headers.get_all(HOST).iter().map(HeaderValue::as_bytes).collect();
    if in_headers.len() > 1 {
        return Err(Refused::because("the request names more than one host"));
    }
    let mut named = in_target.map(str::as_bytes).into_iter().chain(in_headers).peekable();
    if named.peek().is_none() {
        return Err(Refused::because("the request names no host"));
    }
    for text in named {
        let is_meant = Authority::parse(text, to.scheme)
            .is_some_and(|asked| asked.port == to.port && Host::parse(&asked.host).is_ok_and(|host| host == to.host));
        if !is_meant {
            return Err(Refused::because(format!(
                "the request is for `{}`, but the connection was made to `{}:{}`",
                printable(text),
                to.host,
                to.port
            )));
        }
    }
    Ok(())
}

/// Nothing may look like a header that decides about host or length to readers to which all punctuation is the same, and
/// the length is said in one way.
fn check_fields(parts: &Parts) -> Result<(), Refused> {
    let imitates = |name: &HeaderName| imitated_field(name.as_str().as_bytes()).filter(|field| name != field);
    if let Some(field) = parts.headers.keys().find_map(imitates) {
        return Err(Refused::because(format!("a header imitates `{field}`")));
    }
    lengths::check_request(&parts.headers).map_err(|error| Refused::because(format!("the request has {error}")))
}

/// Nothing may ask the server for another method or path than the judged ones.
fn check_overrides(parts: &Parts) -> Result<(), Refused> {
    let overrides = |name: &&HeaderName| OVERRIDES.iter().any(|other| is_spelled_like(name, other));
    match parts.headers.keys().find(overrides) {
        None => Ok(()),
        Some(name) => Err(Refused {
            reason: format!("the header `{name}` asks for something else than the request says"),
            rule: None,
            hint: Some("leave the header out, and use the method and the path that are meant".to_owned()),
        }),
    }
}

/// Whether rules are about a header of this name in requests to `host`, or refuse it everywhere.
pub(super) fn is_ruled(policy: &Policy, host: &Host, name: &HeaderName) -> bool {
    let headers = policy.requests().headers_for(host);
    OVERRIDES.iter().any(|other| is_spelled_like(name, other))
        || headers.iter().any(|rule| is_spelled_like(name, rule.name()))
}

/// Whether programs that know headers as variables (RFC 3875, 4.1.18) know both by the same name.
fn is_spelled_like(name: &HeaderName, other: &str) -> bool {
    let plain = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    name.as_str().bytes().map(plain).eq(other.bytes().map(plain))
}

/// What a client wrote, fit to be shown.
fn printable(text: &[u8]) -> String {
    let shown = String::from_utf8_lossy(text.get(..300).unwrap_or(text));
    shown
        .chars()
        .map(|shown| if shown.is_control() { '?' } else { shown })
        .collect()
}

/// Changes a request that passes. It comes without what belongs to one connection, so that a step is the last to
/// say what its headers are; the host, the target and the framing are written behind it and cannot be changed here.
pub(super) fn rewrite(policy: &Policy, to: &Destination, parts: &mut Parts) -> Result<(), Refused> {
    change_headers(policy, to, parts)?;
    Ok(())
}

fn change_headers(policy: &Policy, to: &Destination, parts: &mut Parts) -> Result<(), Refused> {
    if policy.requests().scope == HeaderScope::SpecificHostOverTls && to.scheme == Scheme::Http {
        return Ok(());
    }
    for rule in policy.requests().headers_for(&to.host) {
        let Ok(name) = HeaderName::from_bytes(rule.name().as_bytes()) else {
            return Err(broken_rule(rule));
        };
        let alike = parts.headers.keys().filter(|own| is_spelled_like(own, rule.name()));
        for own in alike.cloned().collect::<Vec<_>>() {
            parts.headers.remove(own);
        }
        match rule.value() {
            None => {}
            Some(_) if to.scheme == Scheme::Http && !to.clear_is_meant => {
                return Err(Refused {
                    reason: format!(
                        "a header is set in requests to `{}`, and the connection has no TLS",
                        to.host
                    ),
                    rule: Some(rule.to_string()),
                    hint: Some(format!(
                        "use https, or name the port of the clear as in `offleash run --allow {}:{}/http`",
                        to.host, to.port
                    )),
                });
            }
            Some(value) => {
                let mut value = HeaderValue::from_str(value).map_err(|_| broken_rule(rule))?;
                value.set_sensitive(true);
                parts.headers.insert(name, value);
            }
        }
    }
    Ok(())
}

/// Rules are checked when they are read; one that cannot be applied lets nothing through.
fn broken_rule(rule: &offleash_core::network::HeaderRule) -> Refused {
    Refused {
        reason: "a rule for headers cannot be applied".to_owned(),
        rule: Some(rule.to_string()),
        hint: None,
    }
}

/// The target of a request in the form that `version` has.
pub(super) fn address(to: &Destination, target: &PathAndQuery, version: http::Version) -> Result<Uri, Refused> {
    let uri = Uri::builder().path_and_query(target.clone());
    let uri = match version {
        http::Version::HTTP_2 => uri.scheme(to.scheme_name()).authority(to.authority()),
        _ => uri,
    };
    uri.build()
        .map_err(|_| Refused::because("its target cannot be written"))
}

#[cfg(test)]
mod tests;
