//! The routes by which E2B's SDKs build templates: a build is asked for, files are uploaded, it is started, and followed.

use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use offleash_core::build::instruction::BuildInstruction;
use offleash_core::template::StartCommand;
use offleash_daemon::{
    BuildInstructions, BuildLogLine, BuildRequest, InstructionsBase, MAX_LOG_PAGE, RequestedBuild, TemplateBuildView,
    UploadState,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::done;
use crate::control::{ApiRequest, ControlPlane};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::PathSegments;
use crate::http::json::RequestBody;
use crate::http::{failure, query, time};

/// How long the next piece of an archive may take.
const PIECE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);
/// What in the query of an upload is its token.
const TOKEN: &str = "token";

/// `POST /v3/templates` and its elders.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewBuild {
    name: Option<String>,
    /// What elders call the name.
    alias: Option<String>,
    tags: Option<Vec<String>>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mib: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownRequest<'a> {
    #[serde(rename = "templateID")]
    template: &'a str,
    #[serde(rename = "buildID")]
    build: &'a str,
    public: bool,
    names: [&'a str; 1],
    aliases: [&'a str; 1],
    tags: &'a [String],
}

pub(crate) async fn request(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let new: NewBuild = body.read().await?;
    let name = new.name.or(new.alias).filter(|name| !name.is_empty());
    let request = BuildRequest {
        name: name.ok_or_else(|| ApiRefusal::bad_request("name: must be there"))?,
        tags: new.tags.unwrap_or_default(),
        cpus: new.cpu_count,
        memory_mib: new.memory_mib,
    };
    let made = asked.whole(|daemon, caller| async move { daemon.request_build(&caller, request).await });
    let RequestedBuild {
        template,
        build,
        name,
        public,
        tags,
    } = &made.await?;
    let shown = ShownRequest {
        template,
        build,
        public: *public,
        names: [name],
        aliases: [name],
        tags,
    };
    Ok(answer::json(StatusCode::ACCEPTED, &shown))
}

/// `POST /v2/templates/{template}/builds/{build}`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BuildStart {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<ImageRegistry>,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    steps: Vec<BuildInstruction>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
}

/// What is shown to a registry. Others than a name and a password are not understood.
#[derive(Deserialize)]
struct ImageRegistry {
    r#type: String,
    username: Option<String>,
    password: Option<String>,
}

impl ImageRegistry {
    fn login(self) -> Result<(String, String), ApiRefusal> {
        match (self.r#type.as_str(), self.username, self.password) {
            ("registry", Some(username), Some(password)) => Ok((username, password)),
            ("registry", ..) => Err(ApiRefusal::bad_request(
                "fromImageRegistry: `username` and `password` must be there",
            )),
            ("aws", ..) => Err(ApiRefusal::unsupported("credentials of AWS for a registry are")),
            ("gcp", ..) => Err(ApiRefusal::unsupported(
                "credentials of Google Cloud for a registry are",
            )),
            _ => Err(ApiRefusal::bad_request("fromImageRegistry: `type` must be `registry`")),
        }
    }
}

impl BuildStart {
    fn instructions(self) -> Result<BuildInstructions, ApiRefusal> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let base = match (given(self.from_image), given(self.from_template)) {
            (Some(image), None) => InstructionsBase::Image(image),
            (None, Some(template)) => InstructionsBase::Template(template),
            (None, None) => return Err(ApiRefusal::bad_request("fromImage or fromTemplate: one must be there")),
            (Some(_), Some(_)) => {
                return Err(ApiRefusal::bad_request("fromImage and fromTemplate exclude each other"));
            }
        };
        let login = self.from_image_registry.map(ImageRegistry::login).transpose()?;
        Ok(BuildInstructions {
            base,
            login,
            instructions: self.steps,
            force: self.force,
            start: StartCommand {
                start: given(self.start_cmd),
                ready: given(self.ready_cmd),
            },
        })
    }
}

pub(crate) async fn start(
    asked: &ApiRequest<'_>,
    [template, build, _]: PathSegments<'_>,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let start: BuildStart = body.read().await?;
    let instructions = start.instructions()?;
    let (template, build) = (query::decoded(template), query::decoded(build));
    let started =
        asked.whole(|daemon, caller| async move { daemon.start_build(&caller, &template, &build, instructions).await });
    started.await?;
    Ok(answer::empty(StatusCode::ACCEPTED))
}

/// A line as SDKs read it.
#[derive(Debug, Serialize)]
struct ShownLine {
    timestamp: String,
    message: String,
    level: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
}

impl From<BuildLogLine> for ShownLine {
    fn from(line: BuildLogLine) -> Self {
        Self {
            timestamp: time::text(line.at),
            message: line.line,
            level: line.level,
            step: line.step,
        }
    }
}

fn level_rank(level: &str) -> Option<usize> {
    ["debug", "info", "warn", "error"]
        .iter()
        .position(|known| *known == level)
}

/// The lowest level that is wanted.
fn least(pairs: &[(String, String)]) -> Result<usize, ApiRefusal> {
    match query::value(pairs, "level").filter(|level| !level.is_empty()) {
        None => Ok(0),
        Some(level) => level_rank(level).ok_or_else(|| ApiRefusal::bad_request("level: is none")),
    }
}

pub(crate) async fn status(
    asked: &ApiRequest<'_>,
    [template, build, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let pairs = query::pairs(asked.query());
    let from = query::number(&pairs, "logsOffset", 0..=u64::MAX)?.unwrap_or(0);
    let limit = query::number(&pairs, "limit", 0..=MAX_LOG_PAGE)?.unwrap_or(MAX_LOG_PAGE);
    let least = least(&pairs)?;
    let (template, build) = (query::decoded(template), query::decoded(build));
    let refused = |error| asked.refused(&error);
    let daemon = asked.daemon();
    // In this order: of one that has ended, every line can be read.
    let view = daemon.build_status(&asked.caller, &template, &build).map_err(refused)?;
    let lines = daemon.build_log(&asked.caller, &template, &build, from, limit).await;
    let lines = lines.map_err(refused)?.into_iter();
    let lines: Vec<ShownLine> = lines
        .filter(|line| level_rank(&line.level).unwrap_or(0) >= least)
        .map(ShownLine::from)
        .collect();
    let TemplateBuildView {
        id,
        template,
        status,
        reason,
        ..
    } = view;
    let mut shown = json!({
        "templateID": template, "buildID": id, "status": status, "logs": [], "logEntries": lines,
    });
    if let Some(reason) = reason {
        shown["reason"] = match reason.step {
            Some(step) => json!({ "message": reason.message, "step": step, "logEntries": [] }),
            None => json!({ "message": reason.message, "logEntries": [] }),
        };
    }
    Ok(answer::json(StatusCode::OK, &shown))
}

pub(crate) async fn logs(
    asked: &ApiRequest<'_>,
    [template, build, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let pairs = query::pairs(asked.query());
    let from = query::number(&pairs, "cursor", 0..=time::LATEST * 1000)?.map(time::of_unix_ms);
    let limit = query::number(&pairs, "limit", 0..=MAX_LOG_PAGE)?.unwrap_or(MAX_LOG_PAGE);
    let least = least(&pairs)?;
    let is_backward = match query::value(&pairs, "direction") {
        None | Some("" | "forward") => false,
        Some("backward") => true,
        Some(_) => return Err(ApiRefusal::bad_request("direction: must be `forward` or `backward`")),
    };
    let (template, build) = (query::decoded(template), query::decoded(build));
    let mut all = Vec::new();
    loop {
        let next = all.last().map_or(0, |line: &BuildLogLine| line.number + 1);
        let page = asked
            .daemon()
            .build_log(&asked.caller, &template, &build, next, MAX_LOG_PAGE);
        let page = page.await.map_err(|error| asked.refused(&error))?;
        if page.is_empty() {
            break;
        }
        all.extend(page);
    }
    all.retain(|line| level_rank(&line.level).unwrap_or(0) >= least);
    all.retain(|line| {
        from.is_none_or(|from| match is_backward {
            true => line.at <= from,
            false => line.at >= from,
        })
    });
    if is_backward {
        all.reverse();
    }
    all.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let lines: Vec<ShownLine> = all.into_iter().map(ShownLine::from).collect();
    Ok(answer::json(StatusCode::OK, &json!({ "logs": lines })))
}

/// Says whether an archive is here, or where it is to be put.
pub(crate) async fn file(
    asked: &ApiRequest<'_>,
    [template, hash, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let (template, hash) = (query::decoded(template), query::decoded(hash));
    let known = asked.daemon().build_upload(&asked.caller, &template, &hash).await;
    let UploadState { present, token } = known.map_err(|error| asked.refused(&error))?;
    let server = own_address(asked.control, &asked.parts.headers);
    let url = format!(
        "{server}/templates/{}/files/{hash}?{TOKEN}={token}",
        query::encoded(&template)
    );
    Ok(answer::json(
        StatusCode::CREATED,
        &json!({ "present": present, "url": url }),
    ))
}

/// The address by which the client has reached us, which was checked; a proxy before us may speak TLS.
fn own_address(control: &ControlPlane, headers: &HeaderMap) -> String {
    let url = &control.address().url;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = match text("x-forwarded-proto") {
        Some("https") => "https",
        _ => url.split_once("://").map_or("http", |(scheme, _)| scheme),
    };
    let is_host = |host: &&str| {
        host.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte))
    };
    match text("host").filter(is_host) {
        Some(host) if host.contains(['.', ':']) || host == "localhost" => format!("{scheme}://{host}"),
        // Such as a client's on the owner's socket.
        _ => url.clone(),
    }
}

/// An archive that arrives for whoever shows the token of its place.
#[derive(Debug)]
pub(crate) struct UploadCall<'a> {
    pub(crate) control: &'a ControlPlane,
    pub(crate) parts: &'a http::request::Parts,
    /// As the path has it.
    pub(crate) hash: &'a str,
    pub(crate) body: RequestBody,
}

pub(crate) async fn upload(call: UploadCall<'_>) -> Result<Response<Body>, ApiRefusal> {
    let refused = |error| match error {
        offleash_daemon::DaemonError::Unauthorized => ApiRefusal::new(
            StatusCode::FORBIDDEN,
            "the token of this upload is used up or not valid",
        )
        .final_answer(),
        error => failure::refusal(call.control.journal(), &error, false),
    };
    let pairs = query::pairs(call.parts.uri.query());
    let token = query::value(&pairs, TOKEN).unwrap_or_default().to_owned();
    let Some(mut incoming) = call.body.into_incoming() else {
        return Err(ApiRefusal::bad_request("the body was read already"));
    };
    // A client that says no length could send anything; SDKs say it.
    let announced = incoming.size_hint().exact();
    let announced =
        announced.ok_or_else(|| ApiRefusal::new(StatusCode::LENGTH_REQUIRED, "`content-length` must be there"))?;
    let writer = call
        .control
        .daemon()
        .receive_upload(&token, &query::decoded(call.hash), announced)
        .await;
    // Nothing is read of what is refused: the connection is closed.
    let mut writer = writer.map_err(|error| refused(error).closing())?;
    loop {
        let frame = tokio::time::timeout(PIECE_TIMEOUT, incoming.frame()).await;
        let frame =
            frame.map_err(|_| ApiRefusal::new(StatusCode::REQUEST_TIMEOUT, "the body took too long").closing())?;
        let Some(frame) = frame else { break };
        let cut = |_| ApiRefusal::bad_request("the body ended early or is not what its head announced");
        if let Ok(piece) = frame.map_err(cut)?.into_data() {
            writer.write(piece).await.map_err(|error| refused(error).closing())?;
        }
    }
    writer.finish().await.map_err(refused)?;
    Ok(answer::empty(StatusCode::OK))
}

#[derive(Debug, Deserialize)]
struct UpdateBody {
    public: Option<bool>,
}

pub(crate) async fn update(
    asked: &ApiRequest<'_>,
    template: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let UpdateBody { public } = body.read().await?;
    let template = query::decoded(template);
    let name = match public {
        Some(public) => {
            asked
                .daemon()
                .set_template_public(&asked.caller, &template, public)
                .await
        }
        None => asked
            .daemon()
            .built_template(&asked.caller, &template)
            .map(|view| view.name),
    };
    let name = name.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &json!({ "names": [name] })))
}

#[derive(Debug, Deserialize)]
struct AssignBody {
    target: String,
    tags: Vec<String>,
}

pub(crate) async fn assign_tags(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let AssignBody { target, tags } = body.read().await?;
    let assigned =
        asked.whole(|daemon, caller| async move { daemon.assign_template_tags(&caller, &target, &tags).await });
    let (build, tags) = assigned.await?;
    Ok(answer::json(
        StatusCode::CREATED,
        &json!({ "buildID": build, "tags": tags }),
    ))
}

#[derive(Debug, Deserialize)]
struct RemoveTagsBody {
    name: String,
    tags: Vec<String>,
}

pub(crate) async fn remove_tags(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let RemoveTagsBody { name, tags } = body.read().await?;
    asked
        .whole(|daemon, caller| async move { daemon.remove_template_tags(&caller, &name, &tags).await })
        .await?;
    Ok(done())
}

pub(crate) fn tags(asked: &ApiRequest<'_>, template: &str) -> Result<Response<Body>, ApiRefusal> {
    let tags = asked.daemon().template_tags(&asked.caller, &query::decoded(template));
    let tags = tags.map_err(|error| asked.refused(&error))?;
    let shown: Vec<_> = tags
        .iter()
        .map(|tag| json!({ "tag": tag.tag, "buildID": tag.build, "createdAt": time::text(tag.assigned_at) }))
        .collect();
    Ok(answer::json(StatusCode::OK, &shown))
}

pub(crate) fn count_tags(asked: &ApiRequest<'_>, template: &str) -> Result<Response<Body>, ApiRefusal> {
    let tags = asked.daemon().template_tags(&asked.caller, &query::decoded(template));
    let tags = tags.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &json!({ "total": tags.len() })))
}

pub(crate) fn has_tag(asked: &ApiRequest<'_>, template: &str) -> Result<Response<Body>, ApiRefusal> {
    let pairs = query::pairs(asked.query());
    let tag = query::value(&pairs, "tag").unwrap_or_default().trim().to_lowercase();
    let tags = asked.daemon().template_tags(&asked.caller, &query::decoded(template));
    let tags = tags.map_err(|error| asked.refused(&error))?;
    let is_there = tags.iter().any(|known| known.tag == tag);
    Ok(answer::json(
        StatusCode::OK,
        &json!({ "exists": is_there, "normalizedTag": tag }),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(text: &str) -> Result<BuildInstructions, ApiRefusal> {
        serde_json::from_str::<BuildStart>(text).unwrap().instructions()
    }

    #[test]
    fn what_cannot_be_is_answered_typed() {
        for (text, status) in [
            ("{}", 400),
            (r#"{"fromImage":"a","fromTemplate":"b"}"#, 400),
            (
                r#"{"fromImage":"a","fromImageRegistry":{"type":"registry","username":"u"}}"#,
                400,
            ),
            (r#"{"fromImage":"a","fromImageRegistry":{"type":"other"}}"#, 400),
            (
                r#"{"fromImage":"a","fromImageRegistry":{"type":"aws","awsRegion":"x"}}"#,
                501,
            ),
            (
                r#"{"fromImage":"a","fromImageRegistry":{"type":"gcp","serviceAccountJson":"x"}}"#,
                501,
            ),
        ] {
            assert_eq!(started(text).unwrap_err().status.as_u16(), status, "{text}");
        }
        let text = r#"{"fromImage":"a","startCmd":"","readyCmd":"true","fromImageRegistry":
            {"type":"registry","username":"u","password":"p"},"steps":[{"type":"RUN","args":["x"]}],"force":true}"#;
        let found = started(text).unwrap();
        assert_eq!(found.login, Some(("u".to_owned(), "p".to_owned())));
        assert_eq!((found.start.start, found.start.ready.as_deref()), (None, Some("true")));
        assert!(found.force && found.instructions.len() == 1);
    }
}
