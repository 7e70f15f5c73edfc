//! The JSON of sessions and contexts of browsers.

use std::collections::BTreeMap;

use offleash_daemon::{BrowserSessionView, ContextRecord, OwnSandbox, PageInfo, Viewport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::http::answer::ApiRefusal;
use crate::http::time;
use crate::native::sessions::proxies::{ProxiesBody, ProxyUse};
use crate::native::shapes::NewLimits;

/// A session of a browser that is asked for. Fields that other servers have and this one has not are refused with 501.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct NewSession {
    /// Changes nothing.
    pub(crate) project_id: Option<String>,
    /// What the browser is like.
    pub(crate) browser_settings: Option<BrowserSettings>,
    /// How long the session may last, seconds; 300 if absent.
    pub(crate) timeout: Option<u64>,
    /// `true`: a session lasts until its time is up or it is released, whoever connects or hangs up.
    pub(crate) keep_alive: Option<bool>,
    /// Labels.
    pub(crate) user_metadata: Option<BTreeMap<String, String>>,
    /// The size of its windows, as `browserSettings.viewport`.
    pub(crate) dimensions: Option<ViewportBody>,
    /// What the browser calls itself.
    pub(crate) user_agent: Option<String>,
    /// Its language, as in `de-DE`.
    pub(crate) locale: Option<String>,
    /// Its time zone, as in `Europe/Berlin`.
    pub(crate) timezone: Option<String>,
    /// The template; `browser` where there is one, or else `base`.
    pub(crate) template: Option<String>,
    /// Names, `*.names`, addresses and networks that pages may reach. If there are any, nothing else is reached unless `internet`
    /// is `true`.
    pub(crate) allow: Option<Vec<String>>,
    /// Addresses and networks that pages may not reach.
    pub(crate) deny: Option<Vec<String>>,
    /// Whether pages may reach public addresses at all.
    pub(crate) internet: Option<bool>,
    /// What the session may use; 1024 MiB of memory if that is absent.
    pub(crate) limits: Option<NewLimits>,
    /// Not there.
    pub(crate) extension_id: Option<Value>,
    /// The proxy through which pages reach what they may: one of type `external`, asked by SOCKS 5.
    pub(crate) proxies: Option<ProxiesBody>,
    /// The same as a URL: `socks5://[USER:PASSWORD@]HOST:PORT`.
    pub(crate) proxy_url: Option<String>,
    /// The same as `{"server": URL}`.
    pub(crate) use_proxy: Option<ProxyUse>,
    /// Not there.
    pub(crate) region: Option<Value>,
    /// Not there.
    pub(crate) is_selenium: Option<Value>,
    /// Not there.
    pub(crate) stealth_config: Option<Value>,
    /// Not there.
    pub(crate) session_context: Option<Value>,
    /// Not there.
    pub(crate) block_ads: Option<Value>,
    /// Not there.
    pub(crate) solve_captcha: Option<Value>,
}

/// What a browser is like.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct BrowserSettings {
    /// The context that it begins with.
    pub(crate) context: Option<ContextBody>,
    /// The size of its windows.
    pub(crate) viewport: Option<ViewportBody>,
    /// Whether pictures of its pages are kept; not if absent.
    pub(crate) record_session: Option<bool>,
    /// Changes nothing: requests and the console are always logged.
    pub(crate) log_session: Option<bool>,
    /// Not there.
    pub(crate) extension_id: Option<Value>,
    /// Not there.
    pub(crate) block_ads: Option<Value>,
    /// Not there.
    pub(crate) solve_captchas: Option<Value>,
    /// Not there.
    pub(crate) fingerprint: Option<Value>,
    /// Not there.
    pub(crate) advanced_stealth: Option<Value>,
}

/// A context of a session.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SessionContext")]
pub(crate) struct ContextBody {
    /// Its id or its name.
    pub(crate) id: String,
    /// Whether the session saves to it when it is released, which one session at a time does; not if absent.
    pub(crate) persist: Option<bool>,
}

/// The size of a window, pixels.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Viewport")]
pub(crate) struct ViewportBody {
    /// 1 to 4096.
    pub(crate) width: u16,
    /// 1 to 4096.
    pub(crate) height: u16,
}

impl ViewportBody {
    pub(crate) fn read(self) -> Result<Viewport, ApiRefusal> {
        let viewport = Viewport::new(self.width, self.height);
        viewport.map_err(|error| ApiRefusal::bad_request(format!("viewport: {error}")))
    }
}

/// The size of a session's windows, pixels.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SessionViewport")]
pub(crate) struct ViewportAnswer {
    width: u16,
    height: u16,
}

/// A session.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionAnswer {
    /// Its id, which is that of its sandbox.
    id: String,
    /// `RUNNING`, `COMPLETED`, `TIMED_OUT` or `ERROR`.
    status: &'static str,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// When it was made, RFC 3339.
    created_at: String,
    /// When its browser was there, RFC 3339.
    started_at: String,
    /// When its time is up, RFC 3339.
    expires_at: String,
    /// When it ended, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    /// Where the Chrome DevTools Protocol is spoken with its browser, by whoever has this address: a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_url: Option<String>,
    /// The context that it began with.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_id: Option<String>,
    /// Whether it saves to that.
    persist: bool,
    /// `true`.
    keep_alive: bool,
    /// Labels.
    user_metadata: BTreeMap<String, String>,
    /// The size of its windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    viewport: Option<ViewportAnswer>,
    /// What the browser calls itself, if that was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<String>,
    /// Its language, if that was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    locale: Option<String>,
    /// Its time zone, if that was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    timezone: Option<String>,
    /// The proxy through which its pages reach what they may: `HOST:PORT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy: Option<String>,
    /// Whether its browser had been started ahead.
    from_pool: bool,
    /// Whether pictures of its pages are kept.
    record_session: bool,
    /// Its template.
    template: String,
    /// How it is isolated.
    level: String,
    /// Whether the browser keeps a sandbox of its own within that; absent where nobody asked it.
    #[serde(skip_serializing_if = "Option::is_none")]
    browser_sandbox: Option<bool>,
}

impl SessionAnswer {
    pub(crate) fn of(view: BrowserSessionView, connect_url: Option<String>) -> Self {
        let (created, options) = (time::text(view.created_at), view.options);
        Self {
            id: view.id,
            status: view.status.as_str(),
            reason: view.reason,
            started_at: created.clone(),
            created_at: created,
            expires_at: time::text(view.expires_at),
            ended_at: view.ended_at.map(time::text),
            connect_url,
            context_id: view.context,
            persist: view.persist,
            keep_alive: true,
            user_metadata: view.metadata,
            viewport: options.viewport.map(|viewport| ViewportAnswer {
                width: viewport.width(),
                height: viewport.height(),
            }),
            user_agent: options.user_agent.map(String::from),
            locale: options.locale.map(String::from),
            timezone: options.time_zone.map(String::from),
            proxy: view.proxy,
            from_pool: view.pooled,
            record_session: view.pictures,
            template: view.template,
            level: view.level,
            browser_sandbox: view.own_sandbox.map(|own| own == OwnSandbox::Kept),
        }
    }
}

/// Sessions.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionList {
    /// The newest first.
    pub(crate) sessions: Vec<SessionAnswer>,
}

/// A session that was released.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ReleaseAnswer {
    /// `true`.
    pub(crate) success: bool,
    /// What was done, and what was not.
    pub(crate) message: String,
    /// The session.
    #[serde(flatten)]
    pub(crate) session: SessionAnswer,
}

/// What is to become of a session.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct SessionUpdate {
    /// Changes nothing.
    pub(crate) project_id: Option<String>,
    /// `REQUEST_RELEASE`.
    pub(crate) status: Option<String>,
}

/// How a session is looked into.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionDebug {
    /// Where a person sees it: the dashboard, which asks for a key.
    pub(crate) debugger_url: String,
    /// The same.
    pub(crate) debugger_fullscreen_url: String,
    /// As `connectUrl`: a secret.
    pub(crate) ws_url: String,
    /// Its pages, as the browser says.
    pub(crate) pages: Vec<PageAnswer>,
}

/// A page.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "SessionPage")]
pub(crate) struct PageAnswer {
    id: String,
    title: String,
    url: String,
    favicon_url: String,
}

impl From<PageInfo> for PageAnswer {
    fn from(page: PageInfo) -> Self {
        Self {
            id: page.id,
            title: page.title,
            url: page.url,
            favicon_url: page.favicon_url,
        }
    }
}

/// What the browser of a session did, the oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionLogs {
    /// Requests, answers, the console.
    logs: Vec<SessionLogEntry>,
}

/// Something that a browser did.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionLogEntry {
    /// Milliseconds since 1970.
    timestamp: u64,
    /// The page, frame or worker.
    page_id: String,
    /// As the Chrome DevTools Protocol calls it; `offleash.dropped` tells how many of a second were not kept.
    method: String,
    /// What is told of it.
    params: BTreeMap<String, Value>,
}

/// The requests of a session as HAR 1.2.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionHar {
    /// `version`, `creator`, `pages`, `entries`, and `comment` where something of the log was not kept.
    log: BTreeMap<String, Value>,
}

/// Pictures of the pages of a session, the oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionRecording {
    /// Pictures.
    frames: Vec<SessionFrame>,
}

/// A picture of a page.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionFrame {
    /// Milliseconds since 1970.
    timestamp: u64,
    /// The page.
    page_id: String,
    /// A JPEG, in base64.
    data: String,
}

/// A context of browsers that is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct NewBrowserContext {
    /// Changes nothing.
    pub(crate) project_id: Option<String>,
    /// What it is called: letters, digits, `-`, `_` and `.`.
    pub(crate) name: Option<String>,
}

/// A context of browsers.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BrowserContextAnswer {
    /// Its id.
    id: String,
    /// What it is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// When it was made, RFC 3339.
    created_at: String,
    /// When it was saved, or made, RFC 3339.
    updated_at: String,
    /// Bytes of what was saved; 0 if nothing was.
    bytes: u64,
}

/// Contexts of browsers.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BrowserContextList {
    /// By their ids.
    pub(crate) contexts: Vec<BrowserContextAnswer>,
}

impl From<ContextRecord> for BrowserContextAnswer {
    fn from(record: ContextRecord) -> Self {
        let at = |ms: i64| time::text(time::of_unix_ms(u64::try_from(ms).unwrap_or_default()));
        Self {
            id: record.id,
            name: record.name,
            created_at: at(record.created_ms),
            updated_at: at(record.updated_ms),
            bytes: record.bytes,
        }
    }
}
