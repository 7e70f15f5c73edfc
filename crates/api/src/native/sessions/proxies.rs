//! The proxy of a session: Browserbase's `proxies`, Steel's `proxyUrl` and `useProxy`.
//!
//! It is asked by the gateway, which has judged each connection before; the browser knows nothing of it.

use offleash_core::network::upstream_proxy::{ProxyKind, UpstreamProxy};
use offleash_daemon::EgressProxy;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::http::answer::ApiRefusal;

/// The proxies of a session, as Browserbase has them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "SessionProxies")]
pub(crate) enum ProxiesBody {
    /// `false`: there are none of the server's own.
    Switch(bool),
    /// One, for everything.
    List(Vec<ProxyBody>),
}

/// A proxy of somebody's.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "SessionProxy")]
pub(crate) struct ProxyBody {
    /// `external`.
    #[serde(rename = "type")]
    kind: String,
    /// `socks5://HOST:PORT`.
    server: Option<String>,
    /// Who asks, if it wants to know.
    username: Option<String>,
    /// Never told again.
    password: Option<String>,
    /// Not there: a session has one proxy for everything.
    domain_pattern: Option<String>,
}

/// Whether a session has a proxy, as Steel has it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "SessionProxyUse")]
pub(crate) enum ProxyUse {
    /// `false`: there are none of the server's own.
    Switch(bool),
    /// A proxy of somebody's.
    Server {
        /// `socks5://[USER:PASSWORD@]HOST:PORT`.
        server: String,
    },
}

/// The proxy that is asked for in one of three ways.
///
/// # Errors
/// 400 for what is no proxy, and for two; 501 for those that are not asked here.
pub(super) fn egress_proxy(
    proxies: Option<ProxiesBody>,
    url: Option<String>,
    how: Option<ProxyUse>,
) -> Result<Option<EgressProxy>, ApiRefusal> {
    let listed = match proxies {
        None | Some(ProxiesBody::Switch(false)) => None,
        Some(ProxiesBody::Switch(true)) => return Err(ApiRefusal::unsupported("`proxies` of the server's own are")),
        Some(ProxiesBody::List(list)) => listed(list)?,
    };
    let used = match how {
        None | Some(ProxyUse::Switch(false)) => None,
        Some(ProxyUse::Switch(true)) => return Err(ApiRefusal::unsupported("`useProxy` of the server's own is")),
        Some(ProxyUse::Server { server }) => Some(of_url("useProxy", &server)?),
    };
    let named = url.map(|url| of_url("proxyUrl", &url)).transpose()?;
    let mut all = [listed, used, named].into_iter().flatten();
    match (all.next(), all.next()) {
        (_, Some(_)) => Err(ApiRefusal::bad_request("proxyUrl: a session has one proxy")),
        (first, None) => Ok(first),
    }
}

fn listed(list: Vec<ProxyBody>) -> Result<Option<EgressProxy>, ApiRefusal> {
    let mut list = list.into_iter();
    let Some(proxy) = list.next() else { return Ok(None) };
    if list.next().is_some() || proxy.domain_pattern.is_some() {
        return Err(ApiRefusal::unsupported(
            "`proxies` for some hosts and not for others are",
        ));
    }
    if proxy.kind != "external" {
        return Err(ApiRefusal::unsupported("`proxies` of another type than `external` are"));
    }
    let server = proxy.server.unwrap_or_default();
    let of_server = of_url("proxies", &server)?;
    let username = proxy.username.or(of_server.username);
    let password = proxy.password.or(of_server.password);
    Ok(Some(EgressProxy {
        username,
        password,
        ..of_server
    }))
}

/// The proxy of a URL. The errors say nothing of what it has of a password.
fn of_url(field: &str, url: &str) -> Result<EgressProxy, ApiRefusal> {
    let proxy = UpstreamProxy::parse(url);
    let proxy = proxy.map_err(|error| ApiRefusal::bad_request(format!("{field}: {error}")))?;
    if proxy.kind == ProxyKind::Http {
        let what = "proxies of a session that are not asked by SOCKS 5 (`socks5://HOST:PORT`) are";
        return Err(ApiRefusal::unsupported(what));
    }
    let credentials = proxy.credentials.as_ref();
    let password = credentials.map(|credentials| credentials.expose_password().to_owned());
    Ok(EgressProxy {
        address: format!("{}:{}", proxy.host, proxy.port),
        username: credentials.map(|credentials| credentials.expose_name().to_owned()),
        password: password.filter(|password| !password.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::native::sessions::NewSession;

    fn read(text: &str) -> Result<Option<EgressProxy>, ApiRefusal> {
        let new: NewSession = serde_json::from_str(text).unwrap();
        egress_proxy(new.proxies, new.proxy_url, new.use_proxy)
    }

    #[test]
    fn one_proxy_is_named_in_any_of_the_ways() {
        for text in [
            r#"{"proxies": [{"type": "external", "server": "socks5://p.example:1081", "username": "me", "password": "s3cret"}]}"#,
            r#"{"proxyUrl": "socks5://me:s3cret@p.example:1081"}"#,
            r#"{"useProxy": {"server": "socks5h://me:s3cret@p.example:1081"}}"#,
        ] {
            let proxy = read(text).unwrap().unwrap();
            assert_eq!(
                (
                    proxy.address.as_str(),
                    proxy.username.as_deref(),
                    proxy.password.as_deref()
                ),
                ("p.example:1081", Some("me"), Some("s3cret")),
                "{text}"
            );
        }
        let six = read(r#"{"proxyUrl": "socks5://[2001:db8::1]:1080"}"#).unwrap().unwrap();
        assert_eq!((six.address.as_str(), six.username), ("[2001:db8::1]:1080", None));
        for none in ["{}", r#"{"proxies": false, "useProxy": false}"#, r#"{"proxies": []}"#] {
            assert_eq!(read(none).unwrap(), None, "{none}");
        }
    }

    #[test]
    fn what_is_not_there_is_refused_without_telling_a_password() {
        for (text, status) in [
            (r#"{"proxies": true}"#, StatusCode::NOT_IMPLEMENTED),
            (r#"{"useProxy": true}"#, StatusCode::NOT_IMPLEMENTED),
            (
                r#"{"proxyUrl": "http://me:s3cret@p.example:1"}"#,
                StatusCode::NOT_IMPLEMENTED,
            ),
            (r#"{"proxies": [{"type": "browserbase"}]}"#, StatusCode::NOT_IMPLEMENTED),
            (
                r#"{"proxies": [{"type": "external", "server": "socks5://p:1", "domainPattern": "x"}]}"#,
                StatusCode::NOT_IMPLEMENTED,
            ),
            (r#"{"proxies": [{"type": "external"}]}"#, StatusCode::BAD_REQUEST),
            (
                r#"{"proxyUrl": "socks5://me:s3cret@p.example:0"}"#,
                StatusCode::BAD_REQUEST,
            ),
            (
                r#"{"proxyUrl": "socks5://a:1", "useProxy": {"server": "socks5://b:1"}}"#,
                StatusCode::BAD_REQUEST,
            ),
        ] {
            let refusal = read(text).unwrap_err();
            assert_eq!(refusal.status, status, "{text}");
            assert!(!refusal.message.contains("s3cret"), "{}", refusal.message);
        }
    }
}
