//! Desktops in the native REST.

use std::collections::BTreeMap;

use http::{Response, StatusCode};
use offleash_daemon::{
    DesktopOptions, DesktopRequest, DesktopView, Dpi, NetworkSettings, Resolution, Scope, SessionError, view_only_token,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sandboxes::limits;
use super::sessions::{address, listed};
use super::shapes::NewLimits;
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::{self, DESKTOP_PREFIX};
use crate::http::json::RequestBody;
use crate::http::{query, time};
use crate::telemetry::{self, SpanOperation};

/// The page of ours that shows a screen. What names the screen is behind `#`, which no browser sends anywhere.
const VIEWER: &str = "/ui/desktop.html#";

/// A desktop that is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewDesktop {
    /// The template; `desktop` where there is one, or else `base`.
    pub(crate) template: Option<String>,
    /// The width of its screen, pixels, with `height`: 64 to 3840; 1024 if absent.
    pub(crate) width: Option<u16>,
    /// The height of its screen, pixels, with `width`: 64 to 3840; 768 if absent.
    pub(crate) height: Option<u16>,
    /// Pixels an inch, 24 to 480; 96 if absent.
    pub(crate) dpi: Option<u16>,
    /// How long it may last, seconds; 300 if absent.
    pub(crate) timeout_seconds: Option<u64>,
    /// Names, `*.names`, addresses and networks that it may reach. If there are any, nothing else is reached unless `internet`
    /// is `true`.
    pub(crate) allow: Option<Vec<String>>,
    /// Addresses and networks that it may not reach.
    pub(crate) deny: Option<Vec<String>>,
    /// Whether it may reach public addresses at all.
    pub(crate) internet: Option<bool>,
    /// What it may use; 1024 MiB of memory if that is absent.
    pub(crate) limits: Option<NewLimits>,
    /// Whether pictures of its screen are kept; not if absent.
    pub(crate) record: Option<bool>,
    /// Labels.
    pub(crate) metadata: Option<BTreeMap<String, String>>,
}

/// A desktop.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DesktopAnswer {
    /// Its id, which is that of its sandbox.
    id: String,
    /// `RUNNING`, `COMPLETED`, `TIMED_OUT` or `ERROR`.
    status: &'static str,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// When it was made, RFC 3339.
    created_at: String,
    /// When its time is up, RFC 3339.
    expires_at: String,
    /// When it ended, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    /// The page on which its screen is seen and driven, by whoever has this address: a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_url: Option<String>,
    /// Where the Remote Framebuffer Protocol is spoken over WebSocket, by whoever has this address: a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_url: Option<String>,
    /// The page on which its screen is seen, by whoever has this address; nobody drives it there. A secret, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    view_only_url: Option<String>,
    /// The WebSocket of that page, which takes no keys, no mouse and no clipboard.
    #[serde(skip_serializing_if = "Option::is_none")]
    view_only_connect_url: Option<String>,
    /// The width of its screen, pixels.
    width: u16,
    /// The height of its screen, pixels.
    height: u16,
    /// Pixels an inch.
    dpi: u16,
    /// Whether pictures of its screen are kept.
    record: bool,
    /// Its template.
    template: String,
    /// How it is isolated.
    level: String,
    /// Labels.
    metadata: BTreeMap<String, String>,
}

/// Desktops.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DesktopList {
    /// The newest first.
    desktops: Vec<DesktopAnswer>,
}

/// Pictures of the screen of a desktop, the oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DesktopRecording {
    /// Pictures.
    frames: Vec<DesktopFrame>,
}

/// A picture of a screen.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DesktopFrame {
    /// Milliseconds since 1970.
    timestamp: u64,
    /// `screen`.
    page_id: String,
    /// A PNG, in base64.
    data: String,
}

impl DesktopAnswer {
    fn of(asked: &ApiRequest<'_>, view: DesktopView) -> Self {
        // A key that may only look at what there is sees no screen.
        let may_drive = asked.caller.scopes.allow(Scope::Create);
        let token = view.token.as_deref().filter(|_| may_drive);
        let at = address(asked);
        let (resolution, id) = (view.options.resolution, &view.id);
        let looking = token.map(view_only_token);
        let looking = looking.as_deref();
        let socket = |token: &str| {
            let at = at.replacen("http", "ws", 1);
            format!("{at}{DESKTOP_PREFIX}{id}?token={token}")
        };
        Self {
            status: view.status.as_str(),
            reason: view.reason,
            created_at: time::text(view.created_at),
            expires_at: time::text(view.expires_at),
            ended_at: view.ended_at.map(time::text),
            stream_url: token.map(|token| format!("{at}{VIEWER}{id}/{token}")),
            connect_url: token.map(&socket),
            view_only_url: looking.map(|token| format!("{at}{VIEWER}{id}/{token}/view")),
            view_only_connect_url: looking.map(socket),
            width: resolution.width(),
            height: resolution.height(),
            dpi: view.options.dpi.get(),
            record: view.record,
            template: view.template,
            level: view.level,
            metadata: view.metadata,
            id: view.id,
        }
    }
}

/// What the daemon is asked for.
fn request(new: NewDesktop) -> Result<DesktopRequest, ApiRefusal> {
    let refused = |error: &dyn std::fmt::Display| ApiRefusal::bad_request(error.to_string());
    let resolution = match (new.width, new.height) {
        (None, None) => Resolution::default(),
        (Some(width), Some(height)) => Resolution::new(width, height).map_err(|error| refused(&error))?,
        _ => return Err(ApiRefusal::bad_request("width and height: one needs the other")),
    };
    let dpi = new.dpi.map(Dpi::new).transpose();
    let dpi = dpi.map_err(|error| ApiRefusal::bad_request(format!("dpi: {error}")))?;
    let allow = new.allow.unwrap_or_default();
    Ok(DesktopRequest {
        template: new.template,
        options: DesktopOptions {
            resolution,
            dpi: dpi.unwrap_or_default(),
        },
        timeout_seconds: new.timeout_seconds,
        record: new.record.unwrap_or(false),
        network: NetworkSettings {
            // Names open something only where everything else is closed.
            internet: new.internet.or((!allow.is_empty()).then_some(false)),
            allow_out: allow,
            deny_out: new.deny.unwrap_or_default(),
            ..NetworkSettings::default()
        },
        limits: limits(&new.limits.unwrap_or_default()),
        metadata: new.metadata.unwrap_or_default(),
    })
}

/// The id in a path; what cannot be one is an id that nobody has.
fn desktop_id<'s>(asked: &ApiRequest<'_>, given: &'s str) -> Result<&'s str, ApiRefusal> {
    let unknown = || {
        let id = query::decoded(given);
        asked.refused(&SessionError::UnknownDesktop { id }.into())
    };
    destination::is_id(given).then_some(given).ok_or_else(unknown)
}

pub(crate) async fn create(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let request = request(body.read().await?)?;
    let created = asked.whole(|daemon, caller| async move { daemon.create_desktop(&caller, request).await });
    let view = telemetry::of(SpanOperation::Create, created, |view| view.id.clone()).await?;
    Ok(answer::json(StatusCode::CREATED, &DesktopAnswer::of(asked, view)))
}

pub(crate) async fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let all = asked.daemon().desktops(&asked.caller).await;
    let all = all.map_err(|error| asked.refused(&error))?;
    let desktops = all.into_iter().map(|view| DesktopAnswer::of(asked, view)).collect();
    Ok(answer::json(StatusCode::OK, &DesktopList { desktops }))
}

pub(crate) async fn get(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let found = asked.daemon().desktop(&asked.caller, desktop_id(asked, given)?).await;
    let view = found.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &DesktopAnswer::of(asked, view)))
}

pub(crate) async fn recording(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let id = desktop_id(asked, given)?;
    let lines = asked.daemon().desktop_recording(&asked.caller, id).await;
    let lines = lines.map_err(|error| asked.refused(&error))?;
    Ok(answer::written(StatusCode::OK, listed("frames", &lines)))
}

pub(crate) async fn release(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let id = desktop_id(asked, given)?.to_owned();
    let released = asked.whole(|daemon, caller| async move { daemon.release_desktop(&caller, &id).await });
    let view = released.await?;
    Ok(answer::json(StatusCode::OK, &DesktopAnswer::of(asked, view)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<DesktopRequest, ApiRefusal> {
        request(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_screen_is_as_large_as_was_said_or_refused() {
        let size = |text: &str| read(text).unwrap().options.resolution.to_string();
        assert_eq!(size("{}"), "1024x768");
        assert_eq!(size(r#"{"width": 800, "height": 600}"#), "800x600");
        for text in [
            r#"{"width": 800}"#,
            r#"{"height": 600}"#,
            r#"{"width": 1, "height": 1}"#,
            r#"{"width": 3840, "height": 3840}"#,
            r#"{"dpi": 1}"#,
        ] {
            assert_eq!(read(text).unwrap_err().status, StatusCode::BAD_REQUEST, "{text}");
        }
    }

    #[test]
    fn names_that_are_allowed_close_everything_else() {
        let internet = |text: &str| read(text).unwrap().network.internet;
        assert_eq!(internet("{}"), None);
        assert_eq!(internet(r#"{"allow": ["a.example"]}"#), Some(false));
        assert_eq!(internet(r#"{"allow": ["192.0.2.1"], "internet": true}"#), Some(true));
    }
}
