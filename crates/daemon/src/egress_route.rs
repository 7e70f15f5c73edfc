//! From E2B's `dnsServers` and `egressProxy` to the way out of a gateway.
//!
//! Both are asked by this machine in the sandbox's place: so only what is public is, whatever the lists of what may be
//! reached say.

use std::net::{IpAddr, Ipv4Addr};

use offleash_core::network::dns_server::MAX_DNS_SERVERS;
use offleash_core::network::{AddressClass, Host, classify};
use offleash_supervisor::service::order::{ProxyOrder, WayOutOrder};

use crate::error::DaemonError;
use crate::request::{EgressProxy, NetworkSettings};

/// The way out of `settings`.
///
/// # Errors
/// `Invalid` for what is no address or not public, and for credentials that SOCKS cannot say.
pub(crate) fn order(settings: &NetworkSettings) -> Result<WayOutOrder, DaemonError> {
    Ok(WayOutOrder {
        dns_servers: dns_servers(&settings.dns_servers)?,
        proxy: settings.egress_proxy.as_ref().map(proxy).transpose()?,
    })
}

/// That whoever asks may name the proxy: a key names what the owner of the machine says, where that is said.
///
/// # Errors
/// `NotAllowed`.
pub(crate) fn check_named(settings: &NetworkSettings, allowed: Option<&[String]>) -> Result<(), DaemonError> {
    let (Some(proxy), Some(allowed)) = (&settings.egress_proxy, allowed) else {
        return Ok(());
    };
    let is_named = allowed.iter().any(|one| one.eq_ignore_ascii_case(&proxy.address));
    match is_named || settings.named_by_owner {
        true => Ok(()),
        false => Err(DaemonError::NotAllowed {
            what: "this egress proxy",
            setting: "sandboxes.egress_proxies",
        }),
    }
}

/// The servers for names, all of which are public; the gateway looks again, when it knows the machine's own addresses.
fn dns_servers(list: &[String]) -> Result<Vec<String>, DaemonError> {
    let invalid = |why: String| DaemonError::invalid("dnsServers", why);
    if list.len() > MAX_DNS_SERVERS {
        return Err(invalid(format!("more than {MAX_DNS_SERVERS} entries")));
    }
    for text in list {
        let address: Option<Ipv4Addr> = text.parse().ok();
        let address = address.ok_or_else(|| invalid(format!("`{}` is not an IPv4 address", text.escape_debug())))?;
        check_public(address.into()).map_err(invalid)?;
    }
    Ok(list.to_vec())
}

fn proxy(asked: &EgressProxy) -> Result<ProxyOrder, DaemonError> {
    let invalid = |why: String| DaemonError::invalid("egressProxy", why);
    let order = ProxyOrder {
        address: asked.address.clone(),
        credentials: match (&asked.username, &asked.password) {
            (None, None) => None,
            (None, Some(_)) => return Err(invalid("a password needs a username".into())),
            (Some(name), password) => Some((name.clone(), password.clone().unwrap_or_default())),
        },
    };
    let proxy = order.proxy().map_err(|error| invalid(error.to_string()))?;
    match proxy.host {
        Host::Address(address) => check_public(address).map_err(invalid)?,
        // Where a name leads is looked at each time that it is asked.
        Host::Name(_) => {}
    }
    Ok(order)
}

fn check_public(address: IpAddr) -> Result<(), String> {
    match classify(address) {
        AddressClass::Public => Ok(()),
        class => Err(format!("{address} is {class}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_proxies_that_the_owner_lists_where_he_lists_any() {
        let with = |named_by_owner: bool| NetworkSettings {
            egress_proxy: Some(EgressProxy {
                address: "Proxy.example:1080".to_owned(),
                ..EgressProxy::default()
            }),
            named_by_owner,
            ..NetworkSettings::default()
        };
        let (listed, other) = (["proxy.example:1080".to_owned()], ["proxy.example:1081".to_owned()]);
        for allowed in [None, Some(&listed[..])] {
            check_named(&with(false), allowed).unwrap();
        }
        for allowed in [&other[..], &[]] {
            let refused = check_named(&with(false), Some(allowed));
            assert!(matches!(refused, Err(DaemonError::NotAllowed { .. })));
            check_named(&with(true), Some(allowed)).unwrap();
            check_named(&NetworkSettings::default(), Some(allowed)).unwrap();
        }
    }

    #[test]
    fn servers_on_the_way_are_public_and_can_be_asked() {
        let with = |servers: &[&str], proxy: Option<(&str, Option<&str>, Option<&str>)>| NetworkSettings {
            dns_servers: servers.iter().map(ToString::to_string).collect(),
            egress_proxy: proxy.map(|(address, username, password)| EgressProxy {
                address: address.to_owned(),
                username: username.map(str::to_owned),
                password: password.map(str::to_owned),
            }),
            ..NetworkSettings::default()
        };
        let told = order(&with(
            &["9.9.9.9", "1.1.1.1"],
            Some(("proxy.example:1080", Some("me"), Some("s3cret"))),
        ))
        .unwrap();
        assert_eq!(told.dns_servers, ["9.9.9.9", "1.1.1.1"]);
        assert!(!format!("{told:?}").contains("s3cret"));
        let proxy = told.proxy.unwrap().proxy().unwrap();
        assert_eq!(proxy.credentials.unwrap().expose_password(), "s3cret");
        for servers in [
            &["127.0.0.53"][..],
            &["10.0.0.1"],
            &["169.254.169.254"],
            &["0.0.0.0"],
            &["2620:fe::fe"],
            &["dns.example"],
            &["9.9.9.9:53"],
            &["9.9.9.9"; 11],
        ] {
            assert!(order(&with(servers, None)).is_err(), "{servers:?}");
        }
        let long = "x".repeat(256);
        for (address, username, password) in [
            ("", None, None),
            ("proxy.example", None, None),
            ("socks5://proxy.example:1080", None, None),
            ("10.0.0.1:1080", None, None),
            ("[::1]:1080", None, None),
            ("127.0.0.1:1080", None, None),
            ("proxy.example:1080", None, Some("s3cret")),
            ("proxy.example:1080", Some(""), Some("s3cret")),
            ("proxy.example:1080", Some(long.as_str()), None),
            ("proxy.example:1080", Some("me"), Some(&long)),
        ] {
            let error = order(&with(&[], Some((address, username, password)))).unwrap_err();
            assert!(matches!(error, DaemonError::Invalid { .. }), "{error:?}");
            assert!(!format!("{error:?}{error}").contains("s3cret"), "{error}");
        }
    }
}
