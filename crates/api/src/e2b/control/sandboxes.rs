//! The routes of sandboxes.

use http::{HeaderValue, Response, StatusCode};
use offleash_daemon::{Caller, Daemon, ForkRequest};

use super::request::{self, CallVersion};
use super::shapes::{
    ConnectBody, CreatedSandbox, ForkBody, ForkOutcome, ListedSandbox, LogsAnswer, LogsPage, NewSandbox, PauseBody,
    RefreshBody, SandboxDetail, ShownEvent, ShownMetric, TimeoutBody,
};
use super::{done, shapes};
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::http::query;
use crate::http::time;
use crate::telemetry::{self, SpanOperation};

pub(crate) async fn create(
    asked: &ApiRequest<'_>,
    body: RequestBody,
    version: CallVersion,
) -> Result<Response<Body>, ApiRefusal> {
    let new: NewSandbox = body.read().await?;
    let request = request::create(new, version, asked.idempotency_key())?;
    let created = asked.whole(|daemon, caller| async move { daemon.create(&caller, request).await });
    let view = telemetry::of(SpanOperation::Create, created, |view| view.id.clone()).await?;
    let sandbox = CreatedSandbox::of(&view, asked.domain());
    Ok(answer::json(StatusCode::CREATED, &sandbox))
}

pub(crate) fn list(asked: &ApiRequest<'_>, version: CallVersion) -> Result<Response<Body>, ApiRefusal> {
    let filter = request::filter(asked.query(), version)?;
    let page = asked.daemon().list(&asked.caller, &filter);
    let page = page.map_err(|error| asked.refused(&error))?;
    let listed: Vec<ListedSandbox<'_>> = page.sandboxes.iter().map(ListedSandbox::of).collect();
    let mut response = answer::json(StatusCode::OK, &listed);
    let headers = response.headers_mut();
    if let Some(next) = page.next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        headers.insert("x-next-token", next);
    }
    headers.insert("x-total-running", HeaderValue::from(page.total_running));
    Ok(response)
}

pub(crate) fn get(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let view = asked.daemon().get(&asked.caller, asked.sandbox_id(given)?);
    let view = view.map_err(|error| asked.refused(&error))?;
    let detail = SandboxDetail::of(&view, asked.domain());
    Ok(answer::json(StatusCode::OK, &detail))
}

pub(crate) async fn kill(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let named = id.clone();
    let killed = asked.whole(|daemon, caller| async move { daemon.kill(&caller, &id).await });
    telemetry::of(SpanOperation::Kill, killed, |_| named.clone()).await?;
    Ok(done())
}

pub(crate) async fn connect(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let connect: ConnectBody = body.read().await?;
    let connected = |daemon: Daemon, caller: Caller| async move {
        match connect.memory {
            Some(false) => daemon.connect_rebooted(&caller, &id, connect.timeout).await,
            _ => daemon.connect(&caller, &id, connect.timeout).await,
        }
    };
    let (view, resumed) = telemetry::of(SpanOperation::Resume, asked.whole(connected), |(view, _)| {
        view.id.clone()
    })
    .await?;
    let status = if resumed { StatusCode::CREATED } else { StatusCode::OK };
    Ok(answer::json(status, &CreatedSandbox::of(&view, asked.domain())))
}

pub(crate) async fn resume(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let connect: ConnectBody = body.read().await?;
    let resumed = |daemon: Daemon, caller: Caller| async move {
        match connect.memory {
            Some(false) => daemon.resume_rebooted(&caller, &id, connect.timeout).await,
            _ => daemon.resume(&caller, &id, connect.timeout).await,
        }
    };
    let view = telemetry::of(SpanOperation::Resume, asked.whole(resumed), |view| view.id.clone()).await?;
    let sandbox = CreatedSandbox::of(&view, asked.domain());
    Ok(answer::json(StatusCode::CREATED, &sandbox))
}

pub(crate) async fn set_timeout(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let TimeoutBody { timeout } = body.read().await?;
    asked
        .whole(|daemon, caller| async move { daemon.set_timeout(&caller, &id, timeout).await })
        .await?;
    Ok(done())
}

pub(crate) async fn refresh(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let RefreshBody { duration } = body.read().await?;
    asked
        .whole(|daemon, caller| async move { daemon.refresh(&caller, &id, duration).await })
        .await?;
    Ok(done())
}

pub(crate) async fn pause(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let PauseBody {
        memory,
        require_healthy_guest,
    } = body.read().await?;
    let named = id.clone();
    let paused = asked.whole(|daemon, caller| async move {
        match (memory, require_healthy_guest) {
            (Some(false), _) => daemon.put_away(&caller, &id).await,
            (_, Some(true)) => daemon.pause_healthy(&caller, &id).await,
            _ => daemon.pause(&caller, &id).await,
        }
    });
    telemetry::of(SpanOperation::Pause, paused, |_| named.clone()).await?;
    Ok(done())
}

pub(crate) async fn fork(asked: &ApiRequest<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let ForkBody { timeout, count } = body.read().await?;
    let request = ForkRequest {
        count: count.unwrap_or(1),
        timeout_seconds: timeout,
        ..ForkRequest::default()
    };
    let forks = asked.forks(given, request).await?;
    let shown: Vec<ForkOutcome<'_>> = forks
        .iter()
        .map(|fork| match fork {
            Ok(view) => ForkOutcome::Sandbox(CreatedSandbox::of(view, asked.domain())),
            Err(refusal) => ForkOutcome::Error {
                code: refusal.status.as_u16(),
                message: refusal.message.clone(),
            },
        })
        .collect();
    Ok(answer::json(StatusCode::CREATED, &shown))
}

pub(crate) async fn set_network(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let network: shapes::NetworkBody = body.read().await?;
    let network = request::network(network)?;
    asked
        .whole(|daemon, caller| async move { daemon.set_network(&caller, &id, network).await })
        .await?;
    Ok(done())
}

/// How many lines, metrics or events are answered with at most.
const MAX_LINES: u32 = 1000;

pub(crate) async fn metrics(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?;
    let pairs = query::pairs(asked.query());
    let at = |name| Ok::<_, ApiRefusal>(query::number(&pairs, name, 0..=time::LATEST)?.map(time::of_unix_seconds));
    let metrics = asked
        .daemon()
        .metrics(&asked.caller, id, at("start")?, at("end")?)
        .await;
    let metrics = metrics.map_err(|error| asked.refused(&error))?;
    let shown: Vec<ShownMetric> = metrics.iter().map(ShownMetric::from).collect();
    Ok(answer::json(StatusCode::OK, &shown))
}

pub(crate) async fn logs(
    asked: &ApiRequest<'_>,
    given: &str,
    version: CallVersion,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?;
    let wanted = request::logs(asked.query(), version)?;
    let lines = asked.daemon().logs(&asked.caller, id, wanted).await;
    let lines = lines.map_err(|error| asked.refused(&error))?;
    Ok(match version {
        CallVersion::First => answer::json(StatusCode::OK, &LogsAnswer::of(&lines)),
        CallVersion::Second => answer::json(StatusCode::OK, &LogsPage::of(&lines)),
    })
}

pub(crate) async fn events(asked: &ApiRequest<'_>, given: Option<&str>) -> Result<Response<Body>, ApiRefusal> {
    let id = given.map(|given| asked.sandbox_id(given)).transpose()?;
    let pairs = query::pairs(asked.query());
    let limit = query::number(&pairs, "limit", 1..=MAX_LINES)?.unwrap_or(MAX_EVENTS);
    let events = asked.daemon().events(&asked.caller, id, 0, true, limit).await;
    let events = events.map_err(|error| asked.refused(&error))?;
    let shown: Vec<ShownEvent<'_>> = events.iter().map(ShownEvent::of).collect();
    Ok(answer::json(StatusCode::OK, &shown))
}

/// How many events are answered with if nothing is said.
const MAX_EVENTS: u32 = 100;
