//! Sessions of browsers and their contexts in the native REST, in the words of Browserbase's and Steel's where these agree.

mod proxies;
mod shapes;

use http::{HeaderMap, Response, StatusCode};
use offleash_daemon::{
    BrowserRequest, BrowserSessionView, ContextChoice, ContextRecord, LOCAL_KEY, LimitsRequest, NetworkSettings, Scope,
};
use serde::de::IgnoredAny;

pub(crate) use self::shapes::{
    BrowserContextAnswer, BrowserContextList, NewBrowserContext, NewSession, ReleaseAnswer, SessionAnswer,
    SessionDebug, SessionHar, SessionList, SessionLogs, SessionRecording, SessionUpdate,
};
use self::shapes::{BrowserSettings, PageAnswer, ViewportBody};
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::{self, BROWSER_PREFIX};
use crate::http::json::RequestBody;
use crate::http::query;
use crate::telemetry::{self, SpanOperation};

/// What a session is told to be released by.
const REQUEST_RELEASE: &str = "REQUEST_RELEASE";

/// Refuses what other servers have and this one has not: whoever asks for it is not to believe that it is there.
fn refuse_missing(new: &NewSession, settings: &BrowserSettings) -> Result<(), ApiRefusal> {
    let is_set = |field: &Option<serde_json::Value>| {
        let value = field.as_ref();
        value.is_some_and(|value| !value.is_null() && *value != serde_json::Value::Bool(false))
    };
    let missing = [
        (
            "`extensionId` is",
            is_set(&new.extension_id) || is_set(&settings.extension_id),
        ),
        ("`region` is", is_set(&new.region)),
        ("`isSelenium` is", is_set(&new.is_selenium)),
        ("`stealthConfig` is", is_set(&new.stealth_config)),
        ("`sessionContext` is", is_set(&new.session_context)),
        ("`blockAds` is", is_set(&new.block_ads) || is_set(&settings.block_ads)),
        (
            "`solveCaptcha` is",
            is_set(&new.solve_captcha) || is_set(&settings.solve_captchas),
        ),
        ("`fingerprint` is", is_set(&settings.fingerprint)),
        ("`advancedStealth` is", is_set(&settings.advanced_stealth)),
        ("`keepAlive` of `false` is", new.keep_alive == Some(false)),
    ];
    match missing.iter().find(|(_, is_asked_for)| *is_asked_for) {
        Some((what, _)) => Err(ApiRefusal::unsupported(what)),
        None => Ok(()),
    }
}

/// What the daemon is asked for.
fn request(new: NewSession) -> Result<BrowserRequest, ApiRefusal> {
    let mut new = new;
    let settings = new.browser_settings.take().unwrap_or_default();
    refuse_missing(&new, &settings)?;
    let context = settings.context.map(|context| ContextChoice {
        context: context.id,
        persist: context.persist.unwrap_or(false),
    });
    let allow = new.allow.unwrap_or_default();
    let limits = new.limits.unwrap_or_default();
    Ok(BrowserRequest {
        template: new.template,
        options: offleash_daemon::BrowserOptions {
            viewport: settings
                .viewport
                .or(new.dimensions)
                .map(ViewportBody::read)
                .transpose()?,
            user_agent: word("userAgent", new.user_agent)?,
            locale: word("locale", new.locale)?,
            time_zone: word("timezone", new.timezone)?,
        },
        timeout_seconds: new.timeout,
        context,
        pictures: settings.record_session.unwrap_or(false),
        network: NetworkSettings {
            // Names open something only where everything else is closed.
            internet: new.internet.or((!allow.is_empty()).then_some(false)),
            allow_out: allow,
            deny_out: new.deny.unwrap_or_default(),
            egress_proxy: proxies::egress_proxy(new.proxies, new.proxy_url, new.use_proxy)?,
            ..NetworkSettings::default()
        },
        limits: LimitsRequest {
            cpus: limits.cpus,
            memory_mib: limits.memory_mib,
            disk_mib: limits.disk_mib,
            pids: limits.pids,
        },
        metadata: new.user_metadata.unwrap_or_default(),
    })
}

fn word<T: std::str::FromStr<Err: std::fmt::Display>>(
    field: &str,
    given: Option<String>,
) -> Result<Option<T>, ApiRefusal> {
    let word = given.as_deref().map(str::parse).transpose();
    word.map_err(|error| ApiRefusal::bad_request(format!("{field}: {error}")))
}

/// What a caller calls the server.
pub(super) fn address(asked: &ApiRequest<'_>) -> String {
    let url = &asked.control.address().url;
    let headers = &asked.parts.headers;
    let host = destination::authority(&asked.parts.uri, headers);
    match host.filter(|_| asked.caller.key_id != LOCAL_KEY) {
        Some(host) => format!("{}://{host}", scheme(url, headers)),
        None => url.clone(),
    }
}

/// How a caller speaks to the server: as a front or a proxy before it says, and over TLS if the server does otherwise.
///
/// A caller that says so itself gets an address of its own making, which nobody else is told.
fn scheme<'u>(url: &'u str, headers: &HeaderMap) -> &'u str {
    let own = url.split_once("://").map_or("http", |(scheme, _)| scheme);
    let passed_on = headers.get("x-forwarded-proto").map(|proto| proto.as_bytes());
    let said = |scheme: &&str| passed_on.is_some_and(|proto| proto.eq_ignore_ascii_case(scheme.as_bytes()));
    ["https", "http"].into_iter().find(said).unwrap_or(own)
}

/// Where a session's browser is reached, by who shows its token.
fn connect_url(asked: &ApiRequest<'_>, view: &BrowserSessionView) -> Option<String> {
    // A key that may only look drives nothing.
    let token = view
        .token
        .as_deref()
        .filter(|_| asked.caller.scopes.allow(Scope::Create))?;
    let address = address(asked).replacen("http", "ws", 1);
    Some(format!("{address}{BROWSER_PREFIX}{}?token={token}", view.id))
}

fn told(asked: &ApiRequest<'_>, view: BrowserSessionView) -> SessionAnswer {
    let url = connect_url(asked, &view);
    SessionAnswer::of(view, url)
}

/// The id in a path; what cannot be one is an id that nobody has.
fn session_id<'s>(asked: &ApiRequest<'_>, given: &'s str) -> Result<&'s str, ApiRefusal> {
    let unknown = || {
        let id = query::decoded(given);
        asked.refused(&offleash_daemon::SessionError::UnknownSession { id }.into())
    };
    destination::is_id(given).then_some(given).ok_or_else(unknown)
}

pub(crate) async fn create(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let request = request(body.read().await?)?;
    let created = asked.whole(|daemon, caller| async move { daemon.create_session(&caller, request).await });
    let view = telemetry::of(SpanOperation::Create, created, |view| view.id.clone()).await?;
    Ok(answer::json(StatusCode::CREATED, &told(asked, view)))
}

pub(crate) async fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let pairs = query::pairs(asked.query());
    let status = query::value(&pairs, "status").filter(|status| !status.is_empty());
    let mut all = asked
        .daemon()
        .sessions(&asked.caller)
        .await
        .map_err(|error| asked.refused(&error))?;
    all.retain(|view| status.is_none_or(|status| view.status.as_str() == status));
    let sessions = all.into_iter().map(|view| told(asked, view)).collect();
    Ok(answer::json(StatusCode::OK, &SessionList { sessions }))
}

async fn view(asked: &ApiRequest<'_>, given: &str) -> Result<BrowserSessionView, ApiRefusal> {
    let found = asked.daemon().session(&asked.caller, session_id(asked, given)?).await;
    found.map_err(|error| asked.refused(&error))
}

pub(crate) async fn get(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let view = view(asked, given).await?;
    Ok(answer::json(StatusCode::OK, &told(asked, view)))
}

pub(crate) async fn debug(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let view = view(asked, given).await?;
    let pages = asked.daemon().session_pages(&asked.caller, &view.id).await;
    let pages = pages.map_err(|error| asked.refused(&error))?;
    let seen = format!("{}/ui/#/browsers/{}", address(asked), view.id);
    let debug = SessionDebug {
        debugger_url: seen.clone(),
        debugger_fullscreen_url: seen,
        ws_url: connect_url(asked, &view).unwrap_or_default(),
        pages: pages.into_iter().map(PageAnswer::from).collect(),
    };
    Ok(answer::json(StatusCode::OK, &debug))
}

pub(crate) async fn logs(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let lines = asked
        .daemon()
        .session_log(&asked.caller, session_id(asked, given)?)
        .await;
    let lines = lines.map_err(|error| asked.refused(&error))?;
    Ok(answer::written(StatusCode::OK, listed("logs", &lines)))
}

pub(crate) async fn har(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let har = asked
        .daemon()
        .session_har(&asked.caller, session_id(asked, given)?)
        .await;
    let har = har.map_err(|error| asked.refused(&error))?;
    Ok(answer::written(StatusCode::OK, har))
}

pub(crate) async fn recording(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let lines = asked
        .daemon()
        .session_recording(&asked.caller, session_id(asked, given)?)
        .await;
    let lines = lines.map_err(|error| asked.refused(&error))?;
    Ok(answer::written(StatusCode::OK, listed("frames", &lines)))
}

/// Lines of JSON as a list; one that was cut when the server was is left out.
pub(super) fn listed(name: &str, lines: &[u8]) -> Vec<u8> {
    let mut text = format!("{{\"{name}\":[").into_bytes();
    let whole = lines
        .split(|byte| *byte == b'\n')
        .filter(|line| str::from_utf8(line).is_ok_and(|line| serde_json::from_str::<IgnoredAny>(line).is_ok()));
    for (number, line) in whole.enumerate() {
        if number > 0 {
            text.push(b',');
        }
        text.extend_from_slice(line);
    }
    text.extend_from_slice(b"]}");
    text
}

async fn released(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let id = session_id(asked, given)?.to_owned();
    let released = asked.whole(|daemon, caller| async move { daemon.release_session(&caller, &id).await });
    let view = released.await?;
    let answer = ReleaseAnswer {
        success: true,
        message: view.reason.clone().unwrap_or_default(),
        session: told(asked, view),
    };
    Ok(answer::json(StatusCode::OK, &answer))
}

pub(crate) async fn release(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    released(asked, given).await
}

pub(crate) async fn update(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let update: SessionUpdate = body.read().await?;
    match update.status.as_deref() {
        Some(REQUEST_RELEASE) => released(asked, given).await,
        _ => Err(ApiRefusal::bad_request(format!("status: must be `{REQUEST_RELEASE}`"))),
    }
}

/// What other servers answer there, and this one by the files of the session's sandbox.
pub(crate) async fn files(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    view(asked, given).await?;
    let what = "routes for downloads and uploads of a session, whose files are those of the sandbox with its id, are";
    Err(ApiRefusal::unsupported(what))
}

pub(crate) fn extensions() -> Result<Response<Body>, ApiRefusal> {
    Err(ApiRefusal::unsupported("extensions of browsers are"))
}

pub(crate) async fn create_context(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let new: NewBrowserContext = body.read().await?;
    let created = asked.whole(|daemon, caller| async move { daemon.create_browser_context(&caller, new.name).await });
    Ok(answer::json(
        StatusCode::CREATED,
        &BrowserContextAnswer::from(created.await?),
    ))
}

pub(crate) async fn list_contexts(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let all = asked.daemon().browser_contexts(&asked.caller).await;
    let all: Vec<ContextRecord> = all.map_err(|error| asked.refused(&error))?;
    let contexts = all.into_iter().map(BrowserContextAnswer::from).collect();
    Ok(answer::json(StatusCode::OK, &BrowserContextList { contexts }))
}

pub(crate) async fn get_context(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let found = asked
        .daemon()
        .browser_context(&asked.caller, &query::decoded(given))
        .await;
    let found = found.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &BrowserContextAnswer::from(found)))
}

pub(crate) async fn remove_context(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let which = query::decoded(given);
    asked
        .whole(|daemon, caller| async move { daemon.remove_browser_context(&caller, &which).await })
        .await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BrowserRequest, ApiRefusal> {
        request(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn what_is_not_there_is_refused_and_its_absence_is_not() {
        for text in [
            r#"{"extensionId": "x"}"#,
            r#"{"proxies": true}"#,
            r#"{"solveCaptcha": true}"#,
            r#"{"keepAlive": false}"#,
            r#"{"browserSettings": {"advancedStealth": true}}"#,
            r#"{"browserSettings": {"blockAds": true}}"#,
        ] {
            assert_eq!(read(text).unwrap_err().status, StatusCode::NOT_IMPLEMENTED, "{text}");
        }
        assert!(
            read(r#"{"projectId": "p", "proxies": false, "keepAlive": true, "browserSettings": {"blockAds": false}}"#)
                .is_ok()
        );
    }

    #[test]
    fn values_are_checked_and_named_as_they_were_given() {
        for (text, field) in [
            (r#"{"locale": "a b"}"#, "locale"),
            (r#"{"timezone": "/etc"}"#, "timezone"),
            (r#"{"userAgent": "\n"}"#, "userAgent"),
            (r#"{"dimensions": {"width": 0, "height": 1}}"#, "viewport"),
        ] {
            let refusal = read(text).unwrap_err();
            assert!(refusal.message.starts_with(field), "{text}: {refusal:?}");
        }
    }

    #[test]
    fn names_that_are_allowed_close_everything_else() {
        let internet = |text: &str| read(text).unwrap().network.internet;
        assert_eq!(internet("{}"), None);
        assert_eq!(internet(r#"{"allow": ["a.example"]}"#), Some(false));
        assert_eq!(internet(r#"{"allow": ["192.0.2.1"], "internet": true}"#), Some(true));
    }

    #[test]
    fn a_line_that_was_cut_is_left_out() {
        let text = listed("logs", b"{\"a\":1}\n{\"b\":2}\n{\"c\":");
        assert_eq!(text, br#"{"logs":[{"a":1},{"b":2}]}"#);
        assert_eq!(listed("logs", b""), br#"{"logs":[]}"#);
    }

    #[test]
    fn an_address_is_one_of_tls_where_a_front_says_so() {
        for (url, proto, expected) in [
            ("http://a:1", None, "http"),
            ("http://a:1", Some("https"), "https"),
            ("http://a:1", Some("http"), "http"),
            ("http://a:1", Some("javascript"), "http"),
            ("https://a:1", None, "https"),
            ("https://a:1", Some("http"), "http"),
            ("https://a:1", Some("javascript"), "https"),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(proto) = proto {
                headers.insert("x-forwarded-proto", http::HeaderValue::from_static(proto));
            }
            assert_eq!(scheme(url, &headers), expected, "{url} {proto:?}");
        }
    }
}
