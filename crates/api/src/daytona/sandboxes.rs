//! Sandboxes: made, found, stopped, started, ended.

use std::time::Duration;

use http::uri::Authority;
use http::{Response, StatusCode};
use offleash_core::id::SandboxName;
use offleash_daemon::{
    BASE_TEMPLATE, Caller, CreateRequest, Daemon, DaemonError, ForkRequest, IMAGE_PREFIX, LifecycleRequest,
    LimitsRequest, ListFilter, MAX_LISTED, NetworkSettings, OnTimeout, PauseMode, SandboxView, SnapshotRequest,
    VisibleState, VolumeMountRequest,
};
use percent_encoding::percent_decode_str;

use super::done;
use super::shapes::{
    Labels, NewMount, NewName, NewSandbox, PreviewAnswer, SandboxAnswer, SandboxPageAnswer, UrlAnswer, own_labels,
};
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::{self, PathSegments};
use crate::http::json::RequestBody;
use crate::http::query;
use crate::telemetry::{self, SpanOperation};

/// After how many minutes a sandbox stops that nobody uses, if nothing is said: as Daytona has it.
const AUTO_STOP_MINUTES: u64 = 15;
/// The longest time that anybody may say in minutes.
const MAX_MINUTES: u64 = 60 * 24 * 366;
const MIB_PER_GIB: u64 = 1024;
/// Every address there is.
const EVERYWHERE: &str = "0.0.0.0/0";

pub(crate) async fn create(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let new: NewSandbox = body.read().await?;
    let longest = asked.daemon().config().max_timeout;
    let request = create_request(new, longest, asked.idempotency_key())?;
    let created = asked.whole(|daemon, caller| async move { daemon.create(&caller, request).await });
    let view = telemetry::of(SpanOperation::Create, created, |view| view.id.clone()).await?;
    Ok(told(asked, view))
}

pub(crate) fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let page = asked.daemon().list(&asked.caller, &filter(asked.query())?);
    let page = page.map_err(|error| asked.refused(&error))?;
    let toolbox = toolbox_url(asked);
    let items = page.sandboxes.into_iter();
    let told = SandboxPageAnswer {
        items: items.map(|view| SandboxAnswer::of(view, toolbox.clone())).collect(),
        next_cursor: page.next,
    };
    Ok(answer::json(StatusCode::OK, &told))
}

pub(crate) async fn get(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    Ok(told(asked, found(asked, given).await?))
}

pub(crate) async fn delete(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let view = found(asked, given).await?;
    let id = view.id.clone();
    let killed = asked.whole(|daemon, caller| async move { daemon.kill(&caller, &id).await });
    telemetry::of(SpanOperation::Kill, killed, |()| view.id.clone()).await?;
    let gone = SandboxAnswer::of(view, toolbox_url(asked)).destroyed();
    Ok(answer::json(StatusCode::OK, &gone))
}

/// Files stay, processes end. One that is stopped stays so.
pub(crate) async fn stop(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    paused(asked, given, PauseMode::Filesystem).await
}

/// Processes are frozen.
pub(crate) async fn pause(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    paused(asked, given, PauseMode::Full).await
}

async fn paused(asked: &ApiRequest<'_>, given: &str, mode: PauseMode) -> Result<Response<Body>, ApiRefusal> {
    let view = found(asked, given).await?;
    if view.state == VisibleState::Paused && view.pause_mode == Some(mode) {
        return Ok(told(asked, view));
    }
    let id = view.id.clone();
    let work = |daemon: Daemon, caller: Caller| async move {
        match mode {
            PauseMode::Full => daemon.pause(&caller, &id).await,
            PauseMode::Filesystem => daemon.put_away(&caller, &id).await,
        }
    };
    telemetry::of(SpanOperation::Pause, asked.whole(work), |()| view.id.clone()).await?;
    Ok(told(asked, found(asked, &view.id).await?))
}

pub(crate) async fn start(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let id = found(asked, given).await?.id;
    let work = |daemon: Daemon, caller: Caller| async move { daemon.go_on(&caller, &id, None, PauseMode::Full).await };
    let (view, _) = telemetry::of(SpanOperation::Resume, asked.whole(work), |(view, _)| view.id.clone()).await?;
    Ok(told(asked, view))
}

pub(crate) async fn fork(asked: &ApiRequest<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let NewName { name } = body.read().await?;
    let id = found(asked, given).await?.id;
    let request = ForkRequest {
        count: 1,
        timeout_seconds: Some(asked.daemon().config().max_timeout.as_secs()),
        name: name.as_deref().map(named).transpose()?,
        ..ForkRequest::default()
    };
    let fork = asked.forks(&id, request).await?.into_iter().next();
    let lost = || ApiRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed");
    Ok(told(asked, fork.ok_or_else(lost)??))
}

/// A snapshot by this name, of which sandboxes are made.
pub(crate) async fn snapshot(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let NewName { name } = body.read().await?;
    let name = name.ok_or_else(|| ApiRefusal::bad_request("name: a snapshot must have one"))?;
    let view = found(asked, given).await?;
    let request = SnapshotRequest {
        name: Some(named(&name)?),
        ..SnapshotRequest::default()
    };
    let id = view.id.clone();
    asked
        .whole(|daemon, caller| async move { daemon.create_snapshot(&caller, &id, request).await })
        .await?;
    Ok(told(asked, found(asked, &view.id).await?))
}

pub(crate) async fn set_labels(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let Labels { labels } = body.read().await?;
    let id = found(asked, given).await?.id;
    let named = id.clone();
    asked
        .whole(|daemon, caller| async move { daemon.set_labels(&caller, &id, labels).await })
        .await?;
    let labels = own_labels(found(asked, &named).await?.metadata);
    Ok(answer::json(StatusCode::OK, &Labels { labels }))
}

pub(crate) async fn set_auto_stop(
    asked: &ApiRequest<'_>,
    [given, minutes, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let idle = Duration::from_secs(60 * minutes_of("interval", minutes)?);
    let id = found(asked, given).await?.id;
    let named = id.clone();
    asked
        .whole(|daemon, caller| async move { daemon.set_idle(&caller, &id, idle).await })
        .await?;
    Ok(told(asked, found(asked, &named).await?))
}

/// It ends in so many minutes.
pub(crate) async fn set_ttl(
    asked: &ApiRequest<'_>,
    [given, minutes, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let minutes = minutes_of("ttlMinutes", minutes)?;
    let view = found(asked, given).await?;
    if minutes == 0 || view.on_timeout != OnTimeout::Kill {
        // What a sandbox does when its time is up is said when it is made.
        return Err(ApiRefusal::unsupported(
            "a time to live for a sandbox that was made without one is",
        ));
    }
    let id = view.id.clone();
    asked
        .whole(|daemon, caller| async move { daemon.set_timeout(&caller, &id, 60 * minutes).await })
        .await?;
    Ok(told(asked, found(asked, &view.id).await?))
}

/// Somebody says that it is used: a request to what is inside is a use, and this is one.
pub(crate) async fn use_now(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    asked.own_sandbox(given).await?;
    Ok(done(StatusCode::CREATED))
}

/// Where a port is reached. Its token is asked for in `x-daytona-preview-token`, or in E2B's header.
pub(crate) async fn preview(
    asked: &ApiRequest<'_>,
    [given, port, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let number: Option<u16> = port.parse().ok();
    let port = number
        .filter(|port| *port > 0)
        .ok_or_else(|| ApiRefusal::bad_request("port: expected a number from 1 to 65535"))?;
    let view = found(asked, given).await?;
    let url = match asked.domain() {
        Some(domain) => format!("{}://{port}-{}.{domain}", scheme(asked), view.id),
        None => format!("{}/_port/{}/{port}", origin(asked), view.id),
    };
    let told = PreviewAnswer {
        url,
        sandbox_id: view.id,
        token: view.traffic_token.unwrap_or_default(),
    };
    Ok(answer::json(StatusCode::OK, &told))
}

pub(crate) async fn toolbox(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    found(asked, given).await?;
    let url = toolbox_url(asked);
    Ok(answer::json(StatusCode::OK, &UrlAnswer { url }))
}

fn told(asked: &ApiRequest<'_>, view: SandboxView) -> Response<Body> {
    answer::json(StatusCode::OK, &SandboxAnswer::of(view, toolbox_url(asked)))
}

/// The caller's sandbox of this id or name.
async fn found(asked: &ApiRequest<'_>, given: &str) -> Result<SandboxView, ApiRefusal> {
    let given = percent_decode_str(given).decode_utf8_lossy();
    let by_id = asked
        .daemon()
        .get(&asked.caller, asked.sandbox_id(&given).unwrap_or_default());
    let missing = match by_id {
        Err(DaemonError::NotFound { .. }) => DaemonError::NotFound { id: given.to_string() },
        other => return other.map_err(|error| asked.refused(&error)),
    };
    let Ok(name) = given.parse::<SandboxName>() else {
        return Err(asked.refused(&missing));
    };
    let named = asked.daemon().called(&asked.caller, &name, false).await;
    let named = named.map_err(|error| asked.refused(&error))?;
    let id = named.own.ok_or_else(|| asked.refused(&missing))?;
    asked
        .daemon()
        .get(&asked.caller, &id)
        .map_err(|error| asked.refused(&error))
}

fn scheme(asked: &ApiRequest<'_>) -> &'static str {
    let is_secured = asked.control.address().url.starts_with("https:");
    // A proxy that speaks TLS says so; the answer is read by whoever says it.
    let proxied = asked.parts.headers.get("x-forwarded-proto");
    match is_secured || proxied.is_some_and(|scheme| scheme == "https") {
        true => "https",
        false => "http",
    }
}

/// What the client called this server.
fn origin(asked: &ApiRequest<'_>) -> String {
    // A proxy or a front calls it otherwise, and says so.
    let proxied = asked.parts.headers.get("x-forwarded-host");
    let proxied = proxied
        .and_then(|host| host.to_str().ok())
        .filter(|host| host.parse::<Authority>().is_ok());
    match proxied.or_else(|| destination::authority(&asked.parts.uri, &asked.parts.headers)) {
        Some(authority) => format!("{}://{authority}", scheme(asked)),
        None => asked.control.address().url.clone(),
    }
}

fn toolbox_url(asked: &ApiRequest<'_>) -> String {
    format!("{}/api/toolbox", origin(asked))
}

fn named(given: &str) -> Result<SandboxName, ApiRefusal> {
    given
        .parse()
        .map_err(|error: offleash_core::id::SandboxNameError| ApiRefusal::bad_request(format!("name: {error}")))
}

fn minutes_of(field: &str, given: &str) -> Result<u64, ApiRefusal> {
    let minutes = given.parse().ok().filter(|minutes| *minutes <= MAX_MINUTES);
    let why = || ApiRefusal::bad_request(format!("{field}: expected minutes, from 0 to {MAX_MINUTES}"));
    minutes.ok_or_else(why)
}

/// What the daemon is asked for. One without a time to live has the longest, and is stopped, not ended, when that is over.
fn create_request(
    new: NewSandbox,
    longest: Duration,
    idempotency_key: Option<String>,
) -> Result<CreateRequest, ApiRefusal> {
    refuse_unsupported(&new)?;
    let template = match (image(&new)?, new.snapshot) {
        (Some(_), Some(_)) => return Err(ApiRefusal::bad_request("snapshot: it and an image exclude each other")),
        (Some(image), None) => format!("{IMAGE_PREFIX}{image}"),
        (None, template) => template.unwrap_or_else(|| BASE_TEMPLATE.to_owned()),
    };
    let ttl = new.ttl_minutes.filter(|minutes| *minutes > 0);
    let checked = |field: &str, minutes: Option<u64>| match minutes {
        Some(minutes) => minutes_of(field, &minutes.to_string()).map(Some),
        None => Ok(None),
    };
    let stops = checked("autoStopInterval", new.auto_stop_interval)?;
    let pauses = checked("autoPauseInterval", new.auto_pause_interval)?.filter(|minutes| *minutes > 0);
    let (idle, idle_mode) = match pauses {
        Some(minutes) => (minutes, PauseMode::Full),
        None => (stops.unwrap_or(AUTO_STOP_MINUTES), PauseMode::Filesystem),
    };
    let ttl = checked("ttlMinutes", ttl)?;
    Ok(CreateRequest {
        template,
        name: new.name.as_deref().map(named).transpose()?,
        timeout_seconds: Some(ttl.map_or(longest.as_secs(), |minutes| 60 * minutes)),
        metadata: new.labels.unwrap_or_default(),
        env: new.env.unwrap_or_default(),
        on_timeout: if ttl.is_some() {
            OnTimeout::Kill
        } else {
            OnTimeout::Pause
        },
        lifecycle: LifecycleRequest {
            timeout_mode: PauseMode::Filesystem,
            idle: Some(Duration::from_secs(60 * idle)),
            idle_mode: Some(idle_mode),
            ..LifecycleRequest::default()
        },
        network: network(
            new.network_block_all,
            new.network_allow_list.as_deref(),
            new.domain_allow_list.as_deref(),
            new.public,
        ),
        limits: LimitsRequest {
            cpus: new.cpu,
            memory_mib: mib("memory", new.memory)?,
            disk_mib: mib("disk", new.disk)?,
            pids: None,
        },
        volumes: new
            .volumes
            .unwrap_or_default()
            .into_iter()
            .map(mount)
            .collect::<Result<_, _>>()?,
        idempotency_key,
        ..CreateRequest::default()
    })
}

fn refuse_unsupported(new: &NewSandbox) -> Result<(), ApiRefusal> {
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    for (is_asked_for, what) in [
        (new.gpu.is_some_and(|count| count > 0), "`gpu` is"),
        (new.kvm == Some(true), "`kvm` is"),
        (new.spot == Some(true), "`spot` is"),
        (is_set(&new.outbound_proxy_url), "`outboundProxyUrl` is"),
        (is_set(&new.otel_endpoint_override), "`otelEndpointOverride` is"),
        (is_set(&new.linked_sandbox), "`linkedSandbox` is"),
        (
            new.secrets.as_ref().is_some_and(|secrets| !secrets.is_empty()),
            "`secrets` is",
        ),
        (
            new.auto_delete_interval.is_some_and(|minutes| minutes >= 0),
            "`autoDeleteInterval` is",
        ),
        (
            new.user.as_ref().is_some_and(|user| user != "user"),
            "a user other than `user` is",
        ),
    ] {
        if is_asked_for {
            return Err(ApiRefusal::unsupported(what));
        }
    }
    Ok(())
}

/// The image that a recipe of one line names.
fn image(new: &NewSandbox) -> Result<Option<String>, ApiRefusal> {
    let Some(build) = &new.build_info else {
        return Ok(None);
    };
    let recipe = build.dockerfile_content.as_deref().unwrap_or_default();
    let mut lines = recipe.lines().map(str::trim).filter(|line| !line.is_empty());
    let image = lines
        .next()
        .and_then(|line| line.split_once(' '))
        .filter(|(word, _)| word.eq_ignore_ascii_case("from"));
    let has_context = build.context_hashes.as_ref().is_some_and(|hashes| !hashes.is_empty());
    match (image, lines.next()) {
        (Some((_, image)), None) if !has_context && !image.contains(' ') => Ok(Some(image.to_owned())),
        _ => Err(ApiRefusal::unsupported("recipes of images with more than a `FROM` are")),
    }
}

fn network(
    blocked: Option<bool>,
    addresses: Option<&str>,
    names: Option<&str>,
    public: Option<bool>,
) -> NetworkSettings {
    let words = |list: Option<&str>| -> Vec<String> {
        let words = list.unwrap_or_default().split(',').map(str::trim);
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let allow_out: Vec<String> = words(addresses).into_iter().chain(words(names)).collect();
    let deny_out = match allow_out.is_empty() {
        true => Vec::new(),
        false => vec![EVERYWHERE.to_owned()],
    };
    NetworkSettings {
        internet: blocked.map(|blocked| !blocked),
        allow_out,
        deny_out,
        allow_public_traffic: Some(public == Some(true)),
        ..NetworkSettings::default()
    }
}

fn mib(field: &str, gib: Option<u64>) -> Result<Option<u64>, ApiRefusal> {
    let Some(gib) = gib else { return Ok(None) };
    let mib = gib.checked_mul(MIB_PER_GIB).filter(|mib| *mib > 0);
    mib.map(Some)
        .ok_or_else(|| ApiRefusal::bad_request(format!("{field}: expected GiB, at least 1")))
}

fn mount(mount: NewMount) -> Result<VolumeMountRequest, ApiRefusal> {
    if mount.subpath.is_some_and(|path| !path.is_empty()) {
        return Err(ApiRefusal::unsupported("`subpath` of a volume is"));
    }
    Ok(VolumeMountRequest {
        volume: mount.volume_id,
        path: mount.mount_path,
        read_only: false,
    })
}

/// Which sandboxes a list shows. What would have to be passed over is refused: who filters does not want all.
fn filter(query: Option<&str>) -> Result<ListFilter, ApiRefusal> {
    let pairs = query::pairs(query);
    let mut filter = ListFilter {
        limit: query::number(&pairs, "limit", 1..=MAX_LISTED)?.unwrap_or(MAX_LISTED),
        ..ListFilter::default()
    };
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        match name.as_str() {
            "limit" | "sort" => {}
            "cursor" => filter.after = Some(value.clone()),
            "labels" => {
                let labels = serde_json::from_str(value);
                filter.metadata =
                    labels.map_err(|_| ApiRefusal::bad_request("labels: expected an object of texts, as JSON"))?;
            }
            "states" | "states[]" => filter.states.extend(value.split(',').filter_map(visible)),
            "order" => filter.ascending = value == "asc",
            "snapshots" | "snapshots[]" if filter.template.is_none() => filter.template = Some(value.clone()),
            "name" => {
                let label = offleash_daemon::NAME_LABEL.to_owned();
                filter.metadata.insert(label, value.clone());
            }
            "includeErroredDeleted" if value == "false" => {}
            other => {
                let what = format!("the filter `{}` is", other.escape_debug());
                return Err(ApiRefusal::unsupported(&what));
            }
        }
    }
    let asks_for_states = pairs
        .iter()
        .any(|(name, value)| name.starts_with("states") && !value.is_empty());
    if asks_for_states && filter.states.is_empty() {
        return Err(ApiRefusal::bad_request(
            "states: expected `started`, `stopped` or `paused`",
        ));
    }
    Ok(filter)
}

fn visible(word: &str) -> Option<VisibleState> {
    match word {
        "started" => Some(VisibleState::Running),
        "stopped" | "paused" => Some(VisibleState::Paused),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<CreateRequest, ApiRefusal> {
        create_request(serde_json::from_str(text).unwrap(), Duration::from_secs(86_400), None)
    }

    #[test]
    fn what_is_not_said_is_as_daytona_has_it() {
        let made = request("{}").unwrap();
        assert_eq!(made.template, "base");
        assert_eq!(made.lifecycle.idle, Some(Duration::from_secs(15 * 60)));
        assert_eq!(made.lifecycle.idle_mode, Some(PauseMode::Filesystem));
        assert_eq!(
            (made.timeout_seconds, made.on_timeout),
            (Some(86_400), OnTimeout::Pause)
        );
        assert_eq!(made.network.allow_public_traffic, Some(false));
    }

    #[test]
    fn what_is_said_finds_its_place() {
        let text = r#"{"name":"box","snapshot":"ml","env":{"A":"b"},"labels":{"c":"d"},"public":true,"cpu":2,"memory":4,"disk":8,
            "autoStopInterval":0,"ttlMinutes":30,"autoDeleteInterval":-1,"networkAllowList":"10.0.0.0/8, 1.1.1.1/32",
            "domainAllowList":"pypi.org","volumes":[{"volumeId":"v","mountPath":"/v"}],"target":"us","unknown":[1]}"#;
        let made = request(text).unwrap();
        assert_eq!(made.name.as_ref().map(SandboxName::as_str), Some("box"));
        assert_eq!(
            (made.template.as_str(), made.lifecycle.idle),
            ("ml", Some(Duration::ZERO))
        );
        assert_eq!((made.timeout_seconds, made.on_timeout), (Some(1800), OnTimeout::Kill));
        assert_eq!(made.network.allow_out, ["10.0.0.0/8", "1.1.1.1/32", "pypi.org"]);
        assert_eq!(
            (made.network.deny_out.as_slice(), made.network.allow_public_traffic),
            (&[EVERYWHERE.to_owned()][..], Some(true))
        );
        assert_eq!(
            (made.limits.cpus, made.limits.memory_mib, made.limits.disk_mib),
            (Some(2), Some(4096), Some(8192))
        );
        assert_eq!(made.volumes[0].path, "/v");
        let image = request(r#"{"buildInfo":{"dockerfileContent":"FROM python:3.12\n"}}"#).unwrap();
        assert_eq!(image.template, format!("{IMAGE_PREFIX}python:3.12"));
    }

    #[test]
    fn what_is_not_there_is_not_pretended() {
        for (status, text) in [
            (501, r#"{"gpu":1}"#),
            (501, r#"{"kvm":true}"#),
            (501, r#"{"autoDeleteInterval":0}"#),
            (501, r#"{"user":"root"}"#),
            (501, r#"{"secrets":[{"A":"b"}]}"#),
            (501, r#"{"volumes":[{"volumeId":"v","mountPath":"/v","subpath":"a"}]}"#),
            (501, r#"{"buildInfo":{"dockerfileContent":"FROM a\nRUN b"}}"#),
            (501, r#"{"buildInfo":{"dockerfileContent":"FROM a AS b"}}"#),
            (400, r#"{"name":"../a"}"#),
            (400, r#"{"memory":0}"#),
            (400, r#"{"memory":18446744073709551615}"#),
            (400, r#"{"autoStopInterval":18446744073709551615}"#),
            (400, r#"{"ttlMinutes":18446744073709551615}"#),
        ] {
            assert_eq!(request(text).unwrap_err().status.as_u16(), status, "{text}");
        }
    }

    #[test]
    fn lists_are_filtered_or_refused() {
        let found = filter(Some(
            "labels=%7B%22a%22%3A%22b%22%7D&limit=3&cursor=c&states=started&order=asc",
        ))
        .unwrap();
        assert_eq!(found.metadata.get("a").map(String::as_str), Some("b"));
        assert_eq!(
            (found.limit, found.after.as_deref(), found.ascending),
            (3, Some("c"), true)
        );
        assert_eq!(found.states, [VisibleState::Running]);
        for (status, query) in [
            (400, "labels=x"),
            (400, "limit=0"),
            (400, "states=error"),
            (501, "minCpu=2"),
        ] {
            assert_eq!(filter(Some(query)).unwrap_err().status.as_u16(), status, "{query}");
        }
    }
}
