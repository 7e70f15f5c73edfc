//! What is looked at again and again: all sandboxes in few words, what the machine offers, and whether it takes more.

use http::{Response, StatusCode};
use offleash_daemon::{DaemonError, DrainState, SandboxSummary, UsageSample};
use offleash_supervisor::probe::{FeatureCheck, FeatureStatus, LevelReport};
use schemars::JsonSchema;
use serde::Serialize;

use super::shapes::LimitsAnswer;
use crate::control::ApiRequest;
use crate::control::listing::state_word;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::time;

/// The caller's sandboxes in few words.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Overview")]
pub(crate) struct OverviewAnswer {
    /// When this was so.
    at: String,
    /// How many sandboxes the caller has, or all have for the scope `admin`.
    total: u64,
    /// Whether the server is drained: it takes no new sandboxes.
    draining: bool,
    /// The newest of them, 2000 at most, the newest first.
    sandboxes: Vec<SandboxSummaryAnswer>,
}

/// The ids of all sandboxes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SandboxIds")]
pub(crate) struct IdsAnswer {
    /// All ids, whosever the sandboxes are, in no order.
    ids: Vec<String>,
    /// Whether the server is drained: it takes no new sandboxes.
    draining: bool,
}

/// Whether the server takes new sandboxes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Drain")]
pub(crate) struct DrainAnswer {
    /// Whether it is drained: it takes no new sandboxes.
    draining: bool,
    /// How many sandboxes there are, whosever they are.
    sandboxes: u64,
}

/// A sandbox in few words.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SandboxSummary")]
pub(crate) struct SandboxSummaryAnswer {
    /// Its id.
    id: String,
    /// What it is called.
    name: Option<String>,
    /// Its template, or the name of its image behind `image:`.
    template: String,
    /// `running` or `paused`.
    state: String,
    /// Whether it is paused because nobody used it.
    asleep: bool,
    /// How it is isolated, as in `process`.
    level: String,
    /// When it was handed out.
    started_at: String,
    /// When its time is up.
    ends_at: String,
    /// What it may use.
    limits: LimitsAnswer,
    /// What it used when that was sampled last; `null` if it was not yet, or does not run.
    used: Option<SampleAnswer>,
}

/// What a sandbox used at one moment.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UsageSample")]
pub(crate) struct SampleAnswer {
    /// When.
    at: String,
    /// How much of one CPU it used since the sample before, percent; two CPUs are 200.
    cpu_percent: f64,
    /// Memory, bytes.
    memory_bytes: u64,
    /// Disk, bytes.
    disk_bytes: u64,
}

/// What the machine offers.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Machine")]
pub(crate) struct MachineAnswer {
    /// Each level, the weakest first.
    levels: Vec<LevelAnswer>,
    /// What was looked at, the most important first.
    checks: Vec<CheckAnswer>,
}

/// Whether a level can be used.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Level")]
pub(crate) struct LevelAnswer {
    /// As in `process`.
    level: String,
    /// Whether it can be used here.
    available: bool,
    /// What it stands on, or what it lacks.
    why: String,
}

/// One feature of the machine.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Check")]
pub(crate) struct CheckAnswer {
    /// As in `cgroups`.
    name: String,
    /// `ok`, `limited` or `missing`.
    status: String,
    /// What was found.
    found: String,
    /// What does not work without it.
    needed_for: String,
    /// What to do where it is not whole; `offleash doctor` prints commands for it.
    mend: Option<String>,
}

impl From<SandboxSummary> for SandboxSummaryAnswer {
    fn from(summary: SandboxSummary) -> Self {
        Self {
            id: summary.id,
            name: summary.name,
            template: summary.template,
            state: state_word(summary.state).to_owned(),
            asleep: summary.asleep,
            level: summary.level,
            started_at: time::text(summary.started_at),
            ends_at: time::text(summary.end_at),
            limits: summary.limits.into(),
            used: summary.usage.map(SampleAnswer::from),
        }
    }
}

impl From<UsageSample> for SampleAnswer {
    fn from(sample: UsageSample) -> Self {
        Self {
            at: time::text(sample.at),
            cpu_percent: sample.cpu_used_pct,
            memory_bytes: sample.memory_used,
            disk_bytes: sample.disk_used,
        }
    }
}

impl From<&LevelReport> for LevelAnswer {
    fn from(report: &LevelReport) -> Self {
        Self {
            level: report.level.name().to_owned(),
            available: report.available,
            why: report.why.clone(),
        }
    }
}

impl From<&FeatureCheck> for CheckAnswer {
    fn from(check: &FeatureCheck) -> Self {
        let status = match check.status {
            FeatureStatus::Ok => "ok",
            FeatureStatus::Limited => "limited",
            FeatureStatus::Missing => "missing",
        };
        Self {
            name: check.name.to_owned(),
            status: status.to_owned(),
            found: check.found.clone(),
            needed_for: check.needed_for.to_owned(),
            mend: check.mend.as_ref().map(|mend| mend.explanation.clone()),
        }
    }
}

pub(crate) fn overview(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let overview = asked.daemon().overview(&asked.caller);
    let overview = overview.map_err(|error| asked.refused(&error))?;
    let told = OverviewAnswer {
        at: time::text(std::time::SystemTime::now()),
        total: u64::try_from(overview.total).unwrap_or(u64::MAX),
        draining: asked.daemon().is_drained(),
        sandboxes: overview.sandboxes.into_iter().map(Into::into).collect(),
    };
    Ok(answer::json(StatusCode::OK, &told))
}

pub(crate) fn ids(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let ids = asked.daemon().sandbox_ids(&asked.caller);
    let ids = ids.map_err(|error| asked.refused(&error))?;
    let draining = asked.daemon().is_drained();
    Ok(answer::json(StatusCode::OK, &IdsAnswer { ids, draining }))
}

pub(crate) fn drain_state(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    drain_answer(asked, asked.daemon().drain_state(&asked.caller))
}

pub(crate) fn drain(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    drain_answer(asked, asked.daemon().set_drained(&asked.caller, true))
}

pub(crate) fn end_drain(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    drain_answer(asked, asked.daemon().set_drained(&asked.caller, false))
}

fn drain_answer(asked: &ApiRequest<'_>, state: Result<DrainState, DaemonError>) -> Result<Response<Body>, ApiRefusal> {
    let state = state.map_err(|error| asked.refused(&error))?;
    let told = DrainAnswer {
        draining: state.is_drained,
        sandboxes: u64::try_from(state.sandboxes).unwrap_or(u64::MAX),
    };
    Ok(answer::json(StatusCode::OK, &told))
}

pub(crate) async fn machine(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let report = asked.daemon().machine(&asked.caller).await;
    let report = report.map_err(|error| asked.refused(&error))?;
    let told = MachineAnswer {
        levels: report.levels.iter().map(LevelAnswer::from).collect(),
        checks: report.checks.iter().map(CheckAnswer::from).collect(),
    };
    Ok(answer::json(StatusCode::OK, &told))
}
