//! Templates and builds as callers see them.

use std::collections::BTreeMap;
use std::time::SystemTime;

use offleash_supervisor::clock::from_ms;

use crate::registry::{BuildLogRow, BuildState, BuiltTemplateRow, TemplateBuildRow, TemplateTagRow};
use crate::template_names::{DEFAULT_TAG, in_store};
use crate::view::SandboxLimits;

/// A template that a key built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltTemplateView {
    /// Its id.
    pub id: String,
    /// What its owner calls it.
    pub name: String,
    /// Whose it is: the id of a key.
    pub key_id: String,
    /// The build that each tag means.
    pub tags: BTreeMap<String, String>,
    /// Whether other keys may make sandboxes of it.
    pub public: bool,
    /// When it was first asked for.
    pub created_at: SystemTime,
    /// When something of it changed last.
    pub updated_at: SystemTime,
    /// Its builds, the newest first.
    pub builds: Vec<TemplateBuildView>,
    /// The build that is meant without a tag, or the newest one.
    pub current: Option<TemplateBuildView>,
}

/// A build of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateBuildView {
    /// Its id, a UUID.
    pub id: String,
    /// The template.
    pub template: String,
    /// Where in its life it is: `waiting`, `building`, `ready` or `error`.
    pub status: &'static str,
    /// CPUs that sandboxes of it have.
    pub cpus: u32,
    /// Memory that they have, MiB.
    pub memory_mib: u64,
    /// What it takes on disk.
    pub bytes: u64,
    /// Why it came to nothing.
    pub reason: Option<BuildReason>,
    /// When it was asked for.
    pub created_at: SystemTime,
    /// When its state changed last.
    pub updated_at: SystemTime,
    /// When it ended.
    pub finished_at: Option<SystemTime>,
}

/// Why a build came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildReason {
    /// What happened, with the last lines of the step.
    pub message: String,
    /// The step: `base`, or the number of an instruction from 1.
    pub step: Option<String>,
}

/// A build that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedBuild {
    /// The template's id.
    pub template: String,
    /// The build's.
    pub build: String,
    /// The template's name.
    pub name: String,
    /// Whether other keys may make sandboxes of it.
    pub public: bool,
    /// The tags that the build gets.
    pub tags: Vec<String>,
}

/// A line of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildLogLine {
    /// Its place in the log.
    pub number: u64,
    /// When.
    pub at: SystemTime,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The step, as in [`BuildReason`].
    pub step: Option<String>,
    /// The line.
    pub line: String,
}

/// A tag of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateTagView {
    /// The tag.
    pub tag: String,
    /// The build that it means.
    pub build: String,
    /// Since when.
    pub assigned_at: SystemTime,
}

impl TemplateBuildView {
    /// What it is called among the templates of the state directory; nothing is, if it is not ready.
    pub fn stored_as(&self) -> Option<String> {
        let name = in_store(&self.template, &self.id).ok()?;
        (self.status == "ready").then(|| name.to_string())
    }

    pub(super) fn of(row: TemplateBuildRow, usual: &SandboxLimits) -> Self {
        Self {
            id: row.id,
            template: row.template,
            status: match row.state {
                BuildState::Waiting | BuildState::Queued => "waiting",
                BuildState::Building => "building",
                BuildState::Ready => "ready",
                BuildState::Failed => "error",
            },
            cpus: row.cpus.unwrap_or(usual.cpus),
            memory_mib: row.memory_mib.unwrap_or(usual.memory_mib),
            bytes: row.bytes,
            reason: row.reason.map(|message| BuildReason {
                message,
                step: row.failed_step,
            }),
            created_at: from_ms(row.created_ms),
            updated_at: from_ms(row.updated_ms),
            finished_at: row.finished_ms.map(from_ms),
        }
    }
}

impl BuiltTemplateView {
    pub(super) fn of(
        row: BuiltTemplateRow,
        builds: Vec<TemplateBuildRow>,
        tags: &[TemplateTagRow],
        usual: &SandboxLimits,
    ) -> Self {
        let builds: Vec<TemplateBuildView> = builds
            .into_iter()
            .map(|build| TemplateBuildView::of(build, usual))
            .collect();
        let meant = tags.iter().find(|tag| tag.tag == DEFAULT_TAG).map(|tag| &tag.build);
        let current = builds.iter().find(|build| Some(&build.id) == meant).or(builds.first());
        Self {
            current: current.cloned(),
            builds,
            tags: tags.iter().map(|tag| (tag.tag.clone(), tag.build.clone())).collect(),
            key_id: row.key_id,
            id: row.id,
            name: row.name,
            public: row.public,
            created_at: from_ms(row.created_ms),
            updated_at: from_ms(row.updated_ms),
        }
    }
}

impl From<BuildLogRow> for BuildLogLine {
    fn from(row: BuildLogRow) -> Self {
        Self {
            number: row.number,
            at: from_ms(row.at_ms),
            level: row.level,
            step: row.step,
            line: row.line,
        }
    }
}

impl From<TemplateTagRow> for TemplateTagView {
    fn from(row: TemplateTagRow) -> Self {
        Self {
            tag: row.tag,
            build: row.build,
            assigned_at: from_ms(row.assigned_ms),
        }
    }
}
