//! Sandboxes in the native REST.

use std::time::Duration;

use http::{Response, StatusCode};
use offleash_core::id::{SandboxName, SandboxNameError};
use offleash_daemon::{
    Caller, CarriedContexts, CreateRequest, Daemon, ForkRequest, IMAGE_PREFIX, LifecycleRequest, LimitsRequest,
    NetworkSettings, OWN_LABELS, OnTimeout, PauseMode, VisibleState,
};

use super::shapes::{
    ForkAnswer, ForkList, NameAnswer, NewForks, NewLimits, NewMetadata, NewPolicy, NewSandbox, PauseBody,
    RefusalAnswer, ResumeBody, SandboxAnswer, SandboxList, SandboxUsage,
};
use crate::control::ApiRequest;
use crate::control::listing::list_filter;
use crate::control::{tools, volumes};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::failure;
use crate::http::json::RequestBody;
use crate::http::query;
use crate::telemetry::{self, SpanOperation};

/// What the daemon is asked for.
pub(crate) fn create_request(new: NewSandbox, idempotency_key: Option<String>) -> Result<CreateRequest, ApiRefusal> {
    let name = new.name.as_deref().map(named).transpose()?;
    let usual = CreateRequest::default();
    let pauses = new.pause_on_timeout.unwrap_or(false);
    let lifecycle = LifecycleRequest {
        timeout_mode: mode("pause_mode", new.pause_mode.as_deref())?.unwrap_or_default(),
        idle: new.idle_seconds.map(Duration::from_secs),
        idle_mode: mode("idle_mode", new.idle_mode.as_deref())?,
        checkpoint_every: new.checkpoint_every_seconds.map(Duration::from_secs),
        checkpoint_before: new.checkpoint_before,
        checkpoint_keep: new.checkpoint_keep,
        ask_before: new.ask_before,
        ask_before_restore: new.ask_before_restore,
    };
    let template = match (new.image, new.template) {
        (Some(_), Some(_)) => return Err(ApiRefusal::bad_request("image: it and `template` exclude each other")),
        (Some(image), None) => format!("{IMAGE_PREFIX}{image}"),
        (None, template) => template.unwrap_or(usual.template),
    };
    Ok(CreateRequest {
        name,
        template,
        snapshot: new.snapshot,
        timeout_seconds: new.timeout_seconds,
        metadata: new.metadata.unwrap_or_default(),
        env: new.env.unwrap_or_default(),
        secure: true,
        on_timeout: if pauses { OnTimeout::Pause } else { OnTimeout::Kill },
        auto_resume: new.auto_resume.unwrap_or(false),
        lifecycle,
        network: settings(new.policy.unwrap_or_default()),
        volumes: volumes::mounts(new.volumes),
        limits: limits(&new.limits.unwrap_or_default()),
        tools: tools::tools(new.tools),
        idempotency_key,
        browser: None,
        desktop: None,
    })
}

fn mode(field: &str, given: Option<&str>) -> Result<Option<PauseMode>, ApiRefusal> {
    let mode = given.map(str::parse).transpose();
    mode.map_err(|why: String| ApiRefusal::bad_request(format!("{field}: {why}")))
}

pub(super) fn named(given: &str) -> Result<SandboxName, ApiRefusal> {
    let name = given.parse();
    name.map_err(|error: SandboxNameError| ApiRefusal::bad_request(format!("name: {error}")))
}

pub(super) fn limits(new: &NewLimits) -> LimitsRequest {
    LimitsRequest {
        cpus: new.cpus,
        memory_mib: new.memory_mib,
        disk_mib: new.disk_mib,
        pids: new.pids,
    }
}

fn settings(new: NewPolicy) -> NetworkSettings {
    NetworkSettings {
        internet: new.internet,
        allow_out: new.allow.unwrap_or_default(),
        deny_out: new.deny.unwrap_or_default(),
        ask_out: new.ask.unwrap_or_default(),
        allow_public_traffic: new.public_ports,
        ..NetworkSettings::default()
    }
}

pub(crate) async fn create(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let new: NewSandbox = body.read().await?;
    let request = create_request(new, asked.idempotency_key())?;
    let created = asked.whole(|daemon, caller| async move { daemon.create(&caller, request).await });
    let view = telemetry::of(SpanOperation::Create, created, |view| view.id.clone()).await?;
    Ok(answer::json(StatusCode::CREATED, &SandboxAnswer::from(view)))
}

pub(crate) fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let page = asked.daemon().list(&asked.caller, &list_filter(asked.query())?);
    let page = page.map_err(|error| asked.refused(&error))?;
    let list = SandboxList {
        sandboxes: page.sandboxes.into_iter().map(SandboxAnswer::from).collect(),
        next: page.next,
    };
    Ok(answer::json(StatusCode::OK, &list))
}

/// One sandbox of the caller's.
fn shown(asked: &ApiRequest<'_>, given: &str) -> Result<SandboxAnswer, ApiRefusal> {
    let view = asked.daemon().get(&asked.caller, asked.sandbox_id(given)?);
    Ok(view.map_err(|error| asked.refused(&error))?.into())
}

pub(crate) fn get(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    Ok(answer::json(StatusCode::OK, &shown(asked, given)?))
}

pub(crate) fn get_policy(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    Ok(answer::json(StatusCode::OK, &shown(asked, given)?.policy))
}

/// What a name stands for.
pub(crate) async fn called(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let ended = query::flag(&query::pairs(asked.query()), "ended")?;
    let given = percent_encoding::percent_decode_str(given).decode_utf8_lossy();
    let name = named(&given)?;
    let found = asked.daemon().called(&asked.caller, &name, ended).await;
    let found = found.map_err(|error| asked.refused(&error))?;
    let told = NameAnswer {
        id: found.own,
        others: found.others,
    };
    Ok(answer::json(StatusCode::OK, &told))
}

pub(crate) async fn kill(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let named = id.clone();
    let killed = asked.whole(|daemon, caller| async move { daemon.kill(&caller, &id).await });
    telemetry::of(SpanOperation::Kill, killed, |_| named.clone()).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

pub(crate) async fn pause(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let body: PauseBody = body.read().await?;
    let mode = mode("mode", body.mode.as_deref())?.unwrap_or_default();
    let named = id.clone();
    let paused = asked.whole(|daemon, caller| async move {
        match mode {
            PauseMode::Full => daemon.pause(&caller, &id).await,
            PauseMode::Filesystem => daemon.put_away(&caller, &id).await,
        }
    });
    telemetry::of(SpanOperation::Pause, paused, |_| named.clone()).await?;
    Ok(answer::json(StatusCode::OK, &shown(asked, given)?))
}

pub(crate) async fn resume(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let ResumeBody {
        timeout_seconds,
        mode: given,
    } = body.read().await?;
    let mode = mode("mode", given.as_deref())?.unwrap_or_default();
    let resumed =
        |daemon: Daemon, caller: Caller| async move { daemon.go_on(&caller, &id, timeout_seconds, mode).await };
    let (view, _) = telemetry::of(SpanOperation::Resume, asked.whole(resumed), |(view, _)| view.id.clone()).await?;
    Ok(answer::json(StatusCode::OK, &SandboxAnswer::from(view)))
}

pub(crate) async fn fork(asked: &ApiRequest<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let NewForks {
        count,
        name,
        timeout_seconds,
        contexts,
    } = body.read().await?;
    let contexts = contexts.as_deref().map(CarriedContexts::parse).transpose();
    let contexts = contexts.map_err(|error| asked.refused(&error))?.unwrap_or_default();
    let request = ForkRequest {
        count: count.unwrap_or(1),
        timeout_seconds,
        contexts,
        name: name.as_deref().map(named).transpose()?,
    };
    let forks = asked.forks(given, request).await?.into_iter().map(|fork| match fork {
        Ok(view) => ForkAnswer {
            sandbox: Some(view.into()),
            error: None,
        },
        Err(refusal) => ForkAnswer {
            sandbox: None,
            error: Some(RefusalAnswer {
                code: refusal.status.as_u16(),
                message: refusal.message,
            }),
        },
    });
    let list = ForkList { forks: forks.collect() };
    Ok(answer::json(StatusCode::CREATED, &list))
}

pub(crate) async fn set_policy(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let policy: NewPolicy = body.read().await?;
    let network = settings(policy);
    asked
        .whole(|daemon, caller| async move { daemon.set_network(&caller, &id, network).await })
        .await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

pub(crate) async fn set_metadata(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let NewMetadata { mut metadata } = body.read().await?;
    let id = asked.sandbox_id(given)?.to_owned();
    let view = asked
        .daemon()
        .get(&asked.caller, &id)
        .map_err(|error| asked.refused(&error))?;
    // Whoever changes one label writes the others as they were read.
    metadata.retain(|label, value| !(label.starts_with(OWN_LABELS) && view.metadata.get(label) == Some(value)));
    asked
        .whole(|daemon, caller| async move { daemon.set_labels(&caller, &id, metadata).await })
        .await?;
    get(asked, given)
}

pub(crate) async fn usage(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?;
    let daemon = &asked.daemon();
    let view = daemon.get(&asked.caller, id).map_err(|error| asked.refused(&error))?;
    if view.state == VisibleState::Paused {
        // Looking at one must not resume it.
        return Err(ApiRefusal::new(StatusCode::CONFLICT, "the sandbox is paused"));
    }
    let supervisor = daemon.supervisor_unless_paused(id).await;
    let supervisor = supervisor.map_err(|error| asked.refused(&error))?;
    let usage = supervisor.usage().await;
    let told = "what the sandbox uses cannot be measured";
    let usage = usage.map_err(|error| failure::refusal_of_supervisor(asked.journal(), told, &error))?;
    Ok(answer::json(StatusCode::OK, &SandboxUsage::from(usage)))
}
