//! Commands and code that are run and waited for.

use std::collections::BTreeMap;

use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};

use super::toolbox::{ToolCommand, Toolbox};
use crate::commands::{CommandOutcome, MAX_OUTPUT, OutputBounds, output_text};
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::languages;

/// Where code is while it runs.
const CODE_DIRECTORY: &str = "/tmp/.offleash-code";
/// The longest time that a command may be given, in seconds.
pub(super) const MAX_SECONDS: u64 = 24 * 60 * 60;

#[derive(Debug, Default, Deserialize)]
struct NewCommand {
    command: Option<String>,
    cwd: Option<String>,
    envs: Option<BTreeMap<String, String>>,
    /// Seconds; zero is none.
    timeout: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
struct NewCode {
    code: Option<String>,
    language: Option<String>,
    argv: Option<Vec<String>>,
    envs: Option<BTreeMap<String, String>>,
    timeout: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExecuteAnswer {
    exit_code: i32,
    result: String,
    /// Charts are drawn by contexts of code, which another API has.
    #[serde(skip_serializing_if = "Option::is_none")]
    artifacts: Option<NoCharts>,
}

#[derive(Debug, Serialize)]
struct NoCharts {
    charts: [(); 0],
}

/// Both streams, in the order in which they came.
pub(super) const IN_ORDER: OutputBounds = OutputBounds {
    of_stream: MAX_OUTPUT,
    in_order: true,
    ends: false,
};

/// A line for the shell of the sandbox.
pub(super) fn shell(line: &str) -> Vec<String> {
    ["/bin/bash", "-l", "-c", line].map(str::to_owned).to_vec()
}

pub(crate) async fn execute(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let new: NewCommand = body.read().await?;
    let line = new.command.filter(|line| !line.trim().is_empty());
    let line = line.ok_or_else(|| ApiRefusal::bad_request("command: there must be one"))?;
    let timeout_ms = timeout(new.timeout)?;
    let toolbox = Toolbox::open(asked, given).await?;
    let command = ToolCommand {
        argv: shell(&line),
        env: new.envs.unwrap_or_default(),
        cwd: new.cwd,
        timeout_ms,
        bounds: IN_ORDER,
    };
    told(toolbox.run(command).await?, None)
}

pub(crate) async fn run_code(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let new: NewCode = body.read().await?;
    let code = new
        .code
        .ok_or_else(|| ApiRefusal::bad_request("code: there must be some"))?;
    let name = new.language.unwrap_or_else(|| "python".to_owned());
    let language = languages::find_language(&name).filter(|language| language.is_interpreted());
    let language = language.ok_or_else(|| {
        let what = format!("code in `{}` by this API is", name.escape_debug());
        ApiRefusal::unsupported(&what)
    })?;
    let timeout_ms = timeout(new.timeout)?;
    let toolbox = Toolbox::open(asked, given).await?;
    let file = format!("{CODE_DIRECTORY}/{}.{}", super::sessions::new_id(), language.extension);
    write(&toolbox, &file, code.as_bytes()).await?;
    let command = ToolCommand {
        argv: language.command(&file, &new.argv.unwrap_or_default()),
        env: new.envs.unwrap_or_default(),
        timeout_ms,
        bounds: IN_ORDER,
        ..ToolCommand::default()
    };
    let outcome = toolbox.run(command).await;
    // It may have removed itself.
    let _gone = toolbox.files().await?.remove(file.as_bytes()).await;
    told(outcome?, Some(NoCharts { charts: [] }))
}

/// Writes a file of ours.
pub(super) async fn write(toolbox: &Toolbox<'_>, path: &str, contents: &[u8]) -> Result<(), ApiRefusal> {
    let mut files = toolbox.files().await?;
    let refused = |error| toolbox.refused(&error);
    let mut writer = files.write(path.as_bytes(), Vec::new()).await.map_err(refused)?;
    writer.send(contents).await.map_err(refused)?;
    writer.finish().await.map_err(refused)?;
    Ok(())
}

fn timeout(seconds: Option<u64>) -> Result<Option<u64>, ApiRefusal> {
    match seconds {
        None | Some(0) => Ok(None),
        Some(seconds) if seconds <= MAX_SECONDS => Ok(Some(seconds * 1000)),
        Some(_) => Err(ApiRefusal::bad_request(format!(
            "timeout: it may be {MAX_SECONDS} seconds"
        ))),
    }
}

fn told(outcome: CommandOutcome, artifacts: Option<NoCharts>) -> Result<Response<Body>, ApiRefusal> {
    if outcome.timed_out {
        let message = "the command took longer than its timeout, and was ended";
        return Err(ApiRefusal::new(StatusCode::REQUEST_TIMEOUT, message).final_answer());
    }
    let told = ExecuteAnswer {
        exit_code: outcome.shell_code(),
        result: output_text(outcome.both),
        artifacts,
    };
    Ok(answer::json(StatusCode::OK, &told))
}
