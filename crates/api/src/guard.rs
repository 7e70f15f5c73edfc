//! Which names a server may be called by, and which pages of a browser may call it.
//!
//! A page can make a name of its own point to 127.0.0.1 (DNS rebinding) and then speak to whatever listens there as if
//! it were its own server; it cannot choose what its browser says in `Host` and `Origin`. Pure.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::ORIGIN;

/// The names and pages that are welcome.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guard {
    /// Whether only names of this machine are answered to.
    pub(crate) local_only: bool,
    /// The domain that is ours, with everything below it; in lower case.
    pub(crate) domain: Option<String>,
    /// Origins of browsers that may call although they are others', as in `https://app.example`.
    pub(crate) origins: Vec<String>,
}

impl Guard {
    /// Whether a request addressed to `host` is one that we answer.
    pub(crate) fn knows_host(&self, host: Option<&str>) -> bool {
        if !self.local_only {
            return true;
        }
        // Programs that do not say whom they speak to are no browsers.
        host.is_none_or(|host| is_local(host) || self.is_ours(host))
    }

    fn is_ours(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let Some(domain) = &self.domain else {
            return false;
        };
        host.strip_suffix(domain.as_str())
            .is_some_and(|left| left.is_empty() || left.ends_with('.'))
    }

    /// Whether the page that calls, if one does, is our own or was allowed. `authority` is what the request is
    /// addressed to, with its port.
    pub(crate) fn welcomes(&self, headers: &HeaderMap, authority: Option<&str>) -> bool {
        let mut origins = headers.get_all(ORIGIN).iter();
        origins.all(|origin| {
            let origin = origin.to_str().unwrap_or("");
            self.allows(origin) || own(origin, authority)
        })
    }

    /// Whether `origin` was allowed by name.
    pub(crate) fn allows(&self, origin: &str) -> bool {
        self.origins.iter().any(|allowed| allowed == origin)
    }
}

/// Whether a page came from what the request is addressed to.
fn own(origin: &str, authority: Option<&str>) -> bool {
    let plain = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    match (plain, authority) {
        (Some(plain), Some(authority)) => plain.eq_ignore_ascii_case(authority),
        _ => false,
    }
}

fn is_local(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let named = host == "localhost" || host.ends_with(".localhost");
    named || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn guard() -> Guard {
        Guard {
            local_only: true,
            domain: Some("box.test".to_owned()),
            origins: vec!["https://app.example".to_owned()],
        }
    }

    #[test]
    fn names_of_others_are_not_ours() {
        for host in [
            "localhost",
            "LOCALHOST",
            "a.localhost",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "box.test",
            "8000-i1.BOX.test",
        ] {
            assert!(guard().knows_host(Some(host)), "{host}");
        }
        assert!(guard().knows_host(None));
        for host in [
            "",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "xbox.test",
            "box.test.evil.example",
            "0x7f.1",
            "192.168.0.1",
            "0.0.0.0",
        ] {
            assert!(!guard().knows_host(Some(host)), "{host}");
        }
    }

    #[test]
    fn any_name_will_do_for_a_public_address() {
        let guard = Guard {
            local_only: false,
            ..guard()
        };
        assert!(guard.knows_host(Some("sandboxes.example")));
    }

    #[test]
    fn pages_of_others_are_not_welcome() {
        let with = |origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ORIGIN, HeaderValue::from_static(origin));
            headers
        };
        let here = Some("127.0.0.1:3000");
        assert!(guard().welcomes(&HeaderMap::new(), here));
        assert!(guard().welcomes(&with("http://127.0.0.1:3000"), here));
        assert!(guard().welcomes(&with("https://app.example"), here));
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://127.0.0.1:3001",
            "file://127.0.0.1:3000",
            "https://app.example.evil",
        ] {
            assert!(!guard().welcomes(&with(origin), here), "{origin}");
        }
        assert!(!guard().welcomes(&with("http://127.0.0.1:3000"), None));
        let mut both = with("http://127.0.0.1:3000");
        both.append(ORIGIN, HeaderValue::from_static("http://evil.example"));
        assert!(!guard().welcomes(&both, here));
    }
}
