//! Which names a server may be called by, and which pages of a browser may call it.
//!
//! A page can make a name of its own point to 127.0.0.1 (DNS rebinding) and then speak to whatever listens there as if
//! it were its own server; it cannot choose what its browser says in `Host` and `Origin`. Pure.

use std::net::IpAddr;

use http::header::{FORWARDED, ORIGIN, VIA};
use http::request::Parts;
use http::{HeaderMap, Version};

use crate::http::destination;

/// The names and pages that are welcome.
#[derive(Debug, Clone, Default)]
pub(crate) struct OriginGuard {
    /// Whether only names of this machine are answered to.
    pub(crate) local_only: bool,
    /// The domain that is ours, with everything below it; in lower case.
    pub(crate) domain: Option<String>,
    /// Origins of browsers that may call although they are others', as in `https://app.example`.
    pub(crate) origins: Vec<String>,
}

impl OriginGuard {
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
    /// addressed to, with its port; `None` where no page is ours.
    pub(crate) fn welcomes(&self, headers: &HeaderMap, authority: Option<&str>) -> bool {
        let mut origins = headers.get_all(ORIGIN).iter();
        origins.all(|origin| {
            let origin = origin.to_str().unwrap_or("");
            self.allows(origin) || own(origin, authority)
        })
    }

    /// Whether a request from this machine was made by a program on it, and not passed on for somebody elsewhere.
    ///
    /// Proxies say that they pass something on, keep the name that they were called by, or speak the first version of
    /// HTTP (nginx); one that does none of it cannot be told from a program.
    pub(crate) fn is_direct(&self, parts: &Parts) -> bool {
        let mut names = parts.headers.keys();
        let passed_on = names.any(|name| {
            let name = name.as_str();
            name == FORWARDED.as_str() || name == VIA.as_str() || name == "x-real-ip" || name.starts_with("x-forwarded")
        });
        let host = destination::host(&parts.uri, &parts.headers);
        self.local_only && !passed_on && parts.version == Version::HTTP_11 && host.is_some_and(is_local)
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

    fn guard() -> OriginGuard {
        OriginGuard {
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
        let guard = OriginGuard {
            local_only: false,
            ..guard()
        };
        assert!(guard.knows_host(Some("sandboxes.example")));
    }

    #[test]
    fn what_a_proxy_passes_on_is_not_from_here() {
        let request = |fields: &[(&'static str, &'static str)]| {
            let mut request = http::Request::get("/metrics");
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            request.body(()).unwrap().into_parts().0
        };
        for host in ["127.0.0.1:3000", "localhost", "[::1]:3000"] {
            assert!(guard().is_direct(&request(&[("host", host)])), "{host}");
        }
        for fields in [
            &[("host", "localhost"), ("x-forwarded-for", "192.0.2.1")][..],
            &[("host", "localhost"), ("X-Forwarded-Proto", "https")],
            &[("host", "localhost"), ("forwarded", "for=192.0.2.1")],
            &[("host", "localhost"), ("x-real-ip", "192.0.2.1")],
            &[("host", "localhost"), ("via", "1.1 proxy")],
            &[("host", "api.box.test")],
            &[("host", "box.test:3000")],
            &[],
        ] {
            assert!(!guard().is_direct(&request(fields)), "{fields:?}");
        }
        let mut old = request(&[("host", "localhost")]);
        old.version = Version::HTTP_10;
        assert!(!guard().is_direct(&old));
        let public = OriginGuard {
            local_only: false,
            ..guard()
        };
        assert!(!public.is_direct(&request(&[("host", "localhost")])));
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
