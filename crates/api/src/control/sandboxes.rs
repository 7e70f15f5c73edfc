//! The routes of sandboxes.

use std::future::Future;

use http::{HeaderValue, Response, StatusCode};
use offleash_daemon::{Caller, Daemon, DaemonError, ForkRequest, Forks, SandboxView};

use super::request::{self, Version, unsupported};
use super::shapes::{
    Connect, Detail, Fork, Forked, Listed, Logs, LogsV2, NewSandbox, Pause, Refresh, Sandbox, ShownEvent, ShownMetric,
    Timeout,
};
use super::{Asked, done, shapes};
use crate::answer::{self, Refusal};
use crate::body::Body;
use crate::json::RequestBody;
use crate::trace::{self, Operation};
use crate::{query, route, time};

const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The id in a path; what cannot be one is an id that nobody has.
pub(crate) fn id<'a>(asked: &Asked<'_>, id: &'a str) -> Result<&'a str, Refusal> {
    if route::is_id(id) {
        return Ok(id);
    }
    // As it was typed, not as paths write it.
    let id = percent_encoding::percent_decode_str(id)
        .decode_utf8_lossy()
        .into_owned();
    Err(asked.refused(&DaemonError::NotFound { id }))
}

/// What the creator calls its request, so that a repeated one makes no second sandbox.
pub(crate) fn idempotency_key(asked: &Asked<'_>) -> Option<String> {
    let key = asked.parts.headers.get(IDEMPOTENCY_KEY)?;
    // What is no text is no such key, and refused as one.
    Some(key.to_str().unwrap_or("").to_owned())
}

/// Does something that goes on when the client goes away meanwhile.
pub(crate) async fn whole<F, T>(asked: &Asked<'_>, work: impl FnOnce(Daemon, Caller) -> F) -> Result<T, Refusal>
where
    F: Future<Output = Result<T, DaemonError>> + Send + 'static,
    T: Send + 'static,
{
    let work = work(asked.state.daemon.clone(), asked.caller.clone());
    match tokio::spawn(trace::carry(work)).await {
        Ok(result) => result.map_err(|error| asked.refused(&error)),
        Err(error) => {
            let told = "the request failed";
            crate::failure::record(&*asked.state.journal, told, &error);
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, told))
        }
    }
}

pub(crate) async fn create(asked: &Asked<'_>, body: RequestBody, version: Version) -> Result<Response<Body>, Refusal> {
    let new: NewSandbox = body.read().await?;
    let request = request::create(new, version, idempotency_key(asked))?;
    let created = whole(
        asked,
        |daemon, caller| async move { daemon.create(&caller, request).await },
    );
    let view = trace::of(Operation::Create, created, |view| view.id.clone()).await?;
    let sandbox = Sandbox::of(&view, asked.state.shown_domain());
    Ok(answer::json(StatusCode::CREATED, &sandbox))
}

pub(crate) fn list(asked: &Asked<'_>, version: Version) -> Result<Response<Body>, Refusal> {
    let filter = request::filter(asked.query(), version)?;
    let page = asked.state.daemon.list(&asked.caller, &filter);
    let page = page.map_err(|error| asked.refused(&error))?;
    let listed: Vec<Listed<'_>> = page.sandboxes.iter().map(Listed::of).collect();
    let mut response = answer::json(StatusCode::OK, &listed);
    let headers = response.headers_mut();
    if let Some(next) = page.next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        headers.insert("x-next-token", next);
    }
    headers.insert("x-total-running", HeaderValue::from(page.total_running));
    Ok(response)
}

pub(crate) fn get(asked: &Asked<'_>, given: &str) -> Result<Response<Body>, Refusal> {
    let view = asked.state.daemon.get(&asked.caller, id(asked, given)?);
    let view = view.map_err(|error| asked.refused(&error))?;
    let detail = Detail::of(&view, asked.state.shown_domain());
    Ok(answer::json(StatusCode::OK, &detail))
}

pub(crate) async fn kill(asked: &Asked<'_>, given: &str) -> Result<Response<Body>, Refusal> {
    let id = id(asked, given)?.to_owned();
    whole(asked, |daemon, caller| async move { daemon.kill(&caller, &id).await }).await?;
    Ok(done())
}

pub(crate) async fn connect(asked: &Asked<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, Refusal> {
    let id = id(asked, given)?.to_owned();
    let connect: Connect = body.read().await?;
    refuse_cold(connect.memory)?;
    let connected = |daemon: Daemon, caller: Caller| async move { daemon.connect(&caller, &id, connect.timeout).await };
    let (view, resumed) = trace::of(Operation::Resume, whole(asked, connected), |(view, _)| view.id.clone()).await?;
    let status = if resumed { StatusCode::CREATED } else { StatusCode::OK };
    Ok(answer::json(status, &Sandbox::of(&view, asked.state.shown_domain())))
}

pub(crate) async fn resume(asked: &Asked<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, Refusal> {
    let id = id(asked, given)?.to_owned();
    let connect: Connect = body.read().await?;
    refuse_cold(connect.memory)?;
    let resumed = |daemon: Daemon, caller: Caller| async move { daemon.resume(&caller, &id, connect.timeout).await };
    let view = trace::of(Operation::Resume, whole(asked, resumed), |view| view.id.clone()).await?;
    let sandbox = Sandbox::of(&view, asked.state.shown_domain());
    Ok(answer::json(StatusCode::CREATED, &sandbox))
}

/// Refuses to throw memory away, which pausing keeps here.
fn refuse_cold(memory: Option<bool>) -> Result<(), Refusal> {
    match memory {
        Some(false) => Err(unsupported("pausing and resuming without memory is")),
        _ => Ok(()),
    }
}

pub(crate) async fn set_timeout(asked: &Asked<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, Refusal> {
    let id = id(asked, given)?.to_owned();
    let Timeout { timeout } = body.read().await?;
    whole(asked, |daemon, caller| async move {
        daemon.set_timeout(&caller, &id, timeout).await
    })
    .await?;
    Ok(done())
}

pub(crate) async fn refresh(asked: &Asked<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, Refusal> {
    let id = id(asked, given)?.to_owned();
    let Refresh { duration } = body.read().await?;
    whole(asked, |daemon, caller| async move {
        daemon.refresh(&caller, &id, duration).await
    })
    .await?;
    Ok(done())
}

pub(crate) async fn pause(asked: &Asked<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, Refusal> {
    let id = id(asked, given)?.to_owned();
    let Pause {
        memory,
        require_healthy_guest,
    } = body.read().await?;
    refuse_cold(memory)?;
    whole(asked, |daemon, caller| async move {
        match require_healthy_guest {
            Some(true) => daemon.pause_healthy(&caller, &id).await,
            _ => daemon.pause(&caller, &id).await,
        }
    })
    .await?;
    Ok(done())
}

/// Makes forks for a caller who may make sandboxes.
pub(crate) async fn forks(
    asked: &Asked<'_>,
    given: &str,
    request: ForkRequest,
) -> Result<Vec<Result<SandboxView, Refusal>>, Refusal> {
    let id = id(asked, given)?.to_owned();
    let forks = whole(asked, |daemon, caller| async move {
        daemon.fork(&caller, &id, request).await
    });
    let first = |forks: &Forks| {
        forks
            .iter()
            .flatten()
            .next()
            .map(|view| view.id.clone())
            .unwrap_or_default()
    };
    let forks = trace::of(Operation::Create, forks, first).await?;
    Ok(forks
        .into_iter()
        .map(|fork| fork.map_err(|error| asked.refused(&error)))
        .collect())
}

pub(crate) async fn fork(asked: &Asked<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, Refusal> {
    let Fork { timeout, count } = body.read().await?;
    let request = ForkRequest {
        count: count.unwrap_or(1),
        timeout_seconds: timeout,
        ..ForkRequest::default()
    };
    let forks = forks(asked, given, request).await?;
    let shown: Vec<Forked<'_>> = forks
        .iter()
        .map(|fork| match fork {
            Ok(view) => Forked::Sandbox(Sandbox::of(view, asked.state.shown_domain())),
            Err(refusal) => Forked::Error {
                code: refusal.status.as_u16(),
                message: refusal.message.clone(),
            },
        })
        .collect();
    Ok(answer::json(StatusCode::CREATED, &shown))
}

pub(crate) async fn set_network(asked: &Asked<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, Refusal> {
    let id = id(asked, given)?.to_owned();
    let network: shapes::Network = body.read().await?;
    let network = request::network(network)?;
    whole(asked, |daemon, caller| async move {
        daemon.set_network(&caller, &id, network).await
    })
    .await?;
    Ok(done())
}

/// How many lines, metrics or events are answered with at most.
const MOST_LINES: u32 = 1000;

pub(crate) async fn metrics(asked: &Asked<'_>, given: &str) -> Result<Response<Body>, Refusal> {
    let id = id(asked, given)?;
    let pairs = query::pairs(asked.query());
    let at = |name| Ok::<_, Refusal>(query::number(&pairs, name, 0..=time::LATEST)?.map(time::of_unix_seconds));
    let metrics = asked
        .state
        .daemon
        .metrics(&asked.caller, id, at("start")?, at("end")?)
        .await;
    let metrics = metrics.map_err(|error| asked.refused(&error))?;
    let shown: Vec<ShownMetric> = metrics.iter().map(ShownMetric::from).collect();
    Ok(answer::json(StatusCode::OK, &shown))
}

pub(crate) async fn logs(asked: &Asked<'_>, given: &str, version: Version) -> Result<Response<Body>, Refusal> {
    let id = id(asked, given)?;
    let wanted = request::logs(asked.query(), version)?;
    let lines = asked.state.daemon.logs(&asked.caller, id, wanted).await;
    let lines = lines.map_err(|error| asked.refused(&error))?;
    Ok(match version {
        Version::First => answer::json(StatusCode::OK, &Logs::of(&lines)),
        Version::Second => answer::json(StatusCode::OK, &LogsV2::of(&lines)),
    })
}

pub(crate) async fn events(asked: &Asked<'_>, given: Option<&str>) -> Result<Response<Body>, Refusal> {
    let id = given.map(|given| id(asked, given)).transpose()?;
    let pairs = query::pairs(asked.query());
    let limit = query::number(&pairs, "limit", 1..=MOST_LINES)?.unwrap_or(MOST_EVENTS);
    let events = asked.state.daemon.events(&asked.caller, id, 0, true, limit).await;
    let events = events.map_err(|error| asked.refused(&error))?;
    let shown: Vec<ShownEvent<'_>> = events.iter().map(ShownEvent::of).collect();
    Ok(answer::json(StatusCode::OK, &shown))
}

/// How many events are answered with if nothing is said.
const MOST_EVENTS: u32 = 100;
