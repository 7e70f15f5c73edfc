//! The policy file `offleash.toml`: typed, every key known, errors with line and column.
//!
//! Pure: reading the file, and finding it, is the caller's business. Precedence: flags over policy over defaults.
//! Single values replace; lists of paths, variables, mounts and denied commands add up, so that a deny is never lost;
//! `commands.allow` replaces. Of path rules the most specific wins, whoever wrote it ([`crate::path_rules`]).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use toml::Spanned;

use crate::command::CommandRules;
use crate::command_trigger::CommandTrigger;
use crate::env::EnvRules;
use crate::gpu::GpuChoice;
use crate::level::{DegradeMode, ESCALATING, Level, LevelChoice};
use crate::limits::{LimitName, Limits};
use crate::monitor::MonitorRule;
use crate::path_rules::PathRules;
use crate::spec::{
    IdChoice, MAX_WARM, MountAccess, MountSpec, NetworkSpec, SandboxSpec, TmpfsSpec, VolumeMount, WorkspaceMode,
};
use crate::text::Text;
use crate::tool::{DeclaredTool, ToolGrant};
use crate::units::{Bytes, Millis};
use crate::volume::{VolumeKey, VolumeName};
use crate::written::{self, WrongText, all};

mod monitors;
mod network;
mod reference;
mod tools;

pub use reference::{KeyDoc, reference};

use monitors::MonitorEntry;
use network::NetworkValue;
use tools::ToolEntry;

/// What a policy says; what it does not mention stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Which level.
    pub level: Option<LevelChoice>,
    /// The floor below which nothing runs.
    pub min_level: Option<Level>,
    /// Whether a weaker enforcement is acceptable.
    pub degrade: Option<DegradeMode>,
    /// What happens to changes in the workspace, or that there is none.
    pub workspace: Option<WorkspaceChoice>,
    /// Rules of the file system.
    pub paths: PathRules,
    /// Further host paths.
    pub mounts: Vec<MountSpec>,
    /// Volumes of the owner's.
    pub volumes: Vec<VolumeMount>,
    /// Further empty directories.
    pub tmpfs: Vec<TmpfsSpec>,
    /// Toolchains by name or path.
    pub toolchains: Vec<OsString>,
    /// Which executables may be run.
    pub commands: CommandRules,
    /// Which variables are passed and set.
    pub env: EnvRules,
    /// Limits with their values as text, which [`Limits::set`] accepts.
    pub limits: BTreeMap<LimitName, String>,
    /// The network.
    pub network: Option<NetworkSpec>,
    /// How user ids are mapped.
    pub ids: Option<IdChoice>,
    /// Whether processes may trace each other.
    pub allow_ptrace: Option<bool>,
    /// The graphics cards that the sandbox is given.
    pub gpu: Option<GpuChoice>,
    /// Tools that code inside may call.
    pub tools: Vec<DeclaredTool>,
    /// What is granted of tools.
    pub tool_grants: Option<Vec<ToolGrant>>,
    /// How many sandboxes wait for later runs.
    pub warm: Option<u8>,
    /// Rules of monitoring: those that change built-in ones, and others.
    pub monitors: Vec<MonitorRule>,
    /// When sandboxes of a server sleep, and when checkpoints of them are made; of no run.
    pub lifecycle: LifecyclePolicy,
}

/// When a sandbox of a server sleeps, and when checkpoints of it are made by themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LifecyclePolicy {
    /// After how long it sleeps while nobody uses it; zero is never.
    pub idle: Option<Millis>,
    /// Whether its sleep keeps memory and processes.
    pub idle_memory: Option<bool>,
    /// How often a checkpoint is made; zero is never.
    pub checkpoint_every: Option<Millis>,
    /// Commands before which one is made.
    pub checkpoint_before: Vec<CommandTrigger>,
    /// How many of those are kept.
    pub checkpoint_keep: Option<u64>,
    /// Commands before which a person is asked.
    pub ask_before: Vec<CommandTrigger>,
    /// Whether a person is asked before it is put back to a checkpoint.
    pub ask_before_restore: bool,
}

/// A workspace mode, or no workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceChoice {
    /// There is one, and this happens to changes.
    Mode(WorkspaceMode),
    /// There is none.
    None,
}

/// A policy that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct PolicyError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong there.
    pub message: String,
}

impl crate::error::Explained for PolicyError {
    fn kind(&self) -> crate::error::ErrorKind {
        crate::error::ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        Some(
            "`offleash policy keys` lists every key; `offleash policy check FILE` reads a policy without running"
                .to_owned(),
        )
    }
}

impl Policy {
    /// Whether a person is asked about calls of a tool.
    pub fn asks_about_tools(&self) -> bool {
        ToolGrant::ask_of(&self.tools, self.tool_grants.as_deref())
    }

    /// Reads the text of a policy file.
    ///
    /// # Errors
    /// Where the text is no TOML, a key is unknown, or a value is not what its key takes.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let file: PolicyFile = toml::from_str(text).map_err(|error| {
            PolicyError::at(
                text,
                error.span().map_or(0, |span| span.start),
                &in_words(error.message()),
            )
        })?;
        file.into_policy()
            .map_err(|(start, message)| PolicyError::at(text, start, &message))
    }

    /// Applies the policy to a spec that holds the defaults; flags are applied afterwards.
    ///
    /// A workspace mode is set only where `spec` has a workspace: which directory it is, a policy does not say.
    pub fn apply_to(&self, spec: &mut SandboxSpec) {
        replace(&mut spec.level, self.level);
        replace(&mut spec.degrade, self.degrade);
        if let Some(network) = &self.network {
            spec.network = network.clone();
        }
        spec.ids = self.ids.or(spec.ids);
        replace(&mut spec.allow_ptrace, self.allow_ptrace);
        replace(&mut spec.warm, self.warm);
        spec.gpu = self.gpu.clone().or_else(|| spec.gpu.take());
        spec.min_level = self.min_level.or(spec.min_level);
        match (self.workspace, &mut spec.workspace) {
            (Some(WorkspaceChoice::Mode(mode)), Some(workspace)) => workspace.mode = mode,
            (Some(WorkspaceChoice::None), workspace) => *workspace = None,
            _ => {}
        }
        spec.paths.extend(&self.paths);
        spec.mounts.extend_from_slice(&self.mounts);
        spec.volumes.extend_from_slice(&self.volumes);
        spec.tmpfs.extend_from_slice(&self.tmpfs);
        spec.toolchains.extend_from_slice(&self.toolchains);
        spec.tools.extend_from_slice(&self.tools);
        spec.monitors.extend_from_slice(&self.monitors);
        if let Some(grants) = &self.tool_grants {
            spec.tool_grants = Some(grants.clone());
        }
        if let Some(allow) = &self.commands.allow {
            spec.commands.allow = Some(allow.clone());
        }
        spec.commands.deny.extend_from_slice(&self.commands.deny);
        spec.env.pass.extend_from_slice(&self.env.pass);
        spec.env.set.extend_from_slice(&self.env.set);
        for (name, text) in &self.limits {
            // Every value was accepted by `Limits::set` when the policy was read.
            let accepted = spec.limits.set(*name, text);
            debug_assert_eq!(accepted, Ok(()));
        }
    }
}

fn replace<T>(value: &mut T, by: Option<T>) {
    if let Some(by) = by {
        *value = by;
    }
}

impl PolicyError {
    /// What is wrong at `offset`, in bytes, of `text`.
    pub fn at(text: &str, offset: usize, message: &str) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: crate::text::one_line(message.trim_end().as_bytes()).into_owned(),
        }
    }
}

/// What a parser says, in the words of the file instead of those of its types.
fn in_words(message: &str) -> String {
    message
        .replace("expected a sequence", "expected a list")
        .replace("expected i64", "expected a number")
}

/// The file as written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
struct PolicyFile {
    #[serde(deserialize_with = "some_level")]
    level: Option<LevelChoice>,
    min_level: Option<Level>,
    degrade: Option<DegradeMode>,
    network: Option<NetworkValue>,
    ids: Option<IdChoice>,
    allow_ptrace: Option<bool>,
    gpu: Option<Spanned<String>>,
    warm: Option<Spanned<i64>>,
    toolchains: Vec<String>,
    tool: Vec<ToolEntry>,
    tool_grants: Option<Vec<Spanned<String>>>,
    filesystem: FilesystemTable,
    mount: Vec<MountEntry>,
    volume: Vec<VolumeEntry>,
    tmpfs: Vec<TmpfsEntry>,
    monitor: Vec<MonitorEntry>,
    commands: CommandsTable,
    env: EnvTable,
    limits: BTreeMap<LimitKey, Spanned<LimitText>>,
    lifecycle: LifecycleTable,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
struct LifecycleTable {
    idle: Option<Spanned<String>>,
    idle_memory: Option<bool>,
    checkpoint_every: Option<Spanned<String>>,
    checkpoint_before: Vec<Spanned<String>>,
    checkpoint_keep: Option<Spanned<i64>>,
    ask_before: Vec<Spanned<String>>,
    ask_before_restore: bool,
}

impl LifecycleTable {
    fn into_policy(self) -> Result<LifecyclePolicy, WrongText> {
        let keep = self.checkpoint_keep.map(|keep| {
            let wrong = (keep.span().start, "it is a number from 1 on".to_owned());
            u64::try_from(keep.into_inner())
                .ok()
                .filter(|keep| *keep > 0)
                .ok_or(wrong)
        });
        Ok(LifecyclePolicy {
            idle: self.idle.as_ref().map(written::one).transpose()?,
            idle_memory: self.idle_memory,
            checkpoint_every: self.checkpoint_every.as_ref().map(written::one).transpose()?,
            checkpoint_before: all(&self.checkpoint_before)?,
            checkpoint_keep: keep.transpose()?,
            ask_before: all(&self.ask_before)?,
            ask_before_restore: self.ask_before_restore,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
struct FilesystemTable {
    workspace: Option<WorkspaceWord>,
    read: Vec<Spanned<String>>,
    write: Vec<Spanned<String>>,
    deny: Vec<Spanned<String>>,
    protect: Vec<Spanned<String>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WorkspaceWord {
    Overlay,
    Rw,
    Ro,
    None,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct MountEntry {
    source: PathBuf,
    target: Spanned<PathBuf>,
    #[serde(default)]
    access: MountAccess,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct VolumeEntry {
    name: Spanned<String>,
    target: Spanned<PathBuf>,
    access: Option<MountAccess>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct TmpfsEntry {
    target: Spanned<PathBuf>,
    size: Option<SizeValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
struct CommandsTable {
    allow: Option<Vec<Spanned<String>>>,
    deny: Vec<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
struct EnvTable {
    pass: Vec<Spanned<String>>,
    set: BTreeMap<Spanned<String>, Spanned<String>>,
}

impl PolicyFile {
    /// The policy, or the offset and the text of what is wrong.
    fn into_policy(self) -> Result<Policy, WrongText> {
        let set = written::variables(&self.env.set)?;
        let mut limits = BTreeMap::new();
        for (LimitKey(name), value) in self.limits {
            let start = value.span().start;
            let LimitText(text) = value.into_inner();
            Limits::default()
                .set(name, &text)
                .map_err(|error| (start, error.to_string()))?;
            limits.insert(name, text);
        }
        let FilesystemTable {
            workspace,
            read,
            write,
            deny,
            protect,
        } = self.filesystem;
        Ok(Policy {
            level: self.level,
            min_level: self.min_level,
            degrade: self.degrade,
            workspace: workspace.map(WorkspaceChoice::from),
            paths: PathRules {
                read: all(&read)?,
                write: all(&write)?,
                deny: all(&deny)?,
                protect: all(&protect)?,
            },
            mounts: self
                .mount
                .into_iter()
                .map(MountEntry::into_spec)
                .collect::<Result<_, _>>()?,
            volumes: self
                .volume
                .into_iter()
                .map(VolumeEntry::into_spec)
                .collect::<Result<_, _>>()?,
            tmpfs: self
                .tmpfs
                .into_iter()
                .map(TmpfsEntry::into_spec)
                .collect::<Result<_, _>>()?,
            tools: self
                .tool
                .into_iter()
                .map(ToolEntry::into_tool)
                .collect::<Result<_, _>>()?,
            tool_grants: self.tool_grants.as_deref().map(all).transpose()?,
            toolchains: self.toolchains.into_iter().map(OsString::from).collect(),
            commands: CommandRules {
                allow: self.commands.allow.as_deref().map(all).transpose()?,
                deny: all(&self.commands.deny)?,
            },
            env: EnvRules {
                pass: all(&self.env.pass)?,
                set,
            },
            limits,
            network: self.network.map(NetworkValue::into_spec).transpose()?,
            ids: self.ids,
            allow_ptrace: self.allow_ptrace,
            gpu: self.gpu.as_ref().map(written::one).transpose()?,
            lifecycle: self.lifecycle.into_policy()?,
            warm: self.warm.map(warm).transpose()?,
            monitors: monitors::rules(&self.monitor)?,
        })
    }
}

fn warm(value: Spanned<i64>) -> Result<u8, WrongText> {
    let start = value.span().start;
    let number = value.into_inner();
    let number = u8::try_from(number).ok().filter(|number| *number <= MAX_WARM);
    number.ok_or_else(|| (start, format!("`warm` is a number from 0 to {MAX_WARM}")))
}

impl From<WorkspaceWord> for WorkspaceChoice {
    fn from(word: WorkspaceWord) -> Self {
        match word {
            WorkspaceWord::Overlay => Self::Mode(WorkspaceMode::Overlay),
            WorkspaceWord::Rw => Self::Mode(WorkspaceMode::Rw),
            WorkspaceWord::Ro => Self::Mode(WorkspaceMode::Ro),
            WorkspaceWord::None => Self::None,
        }
    }
}

impl MountEntry {
    fn into_spec(self) -> Result<MountSpec, WrongText> {
        Ok(MountSpec {
            source: self.source,
            target: inside(self.target)?,
            access: self.access,
        })
    }
}

impl VolumeEntry {
    fn into_spec(self) -> Result<VolumeMount, WrongText> {
        let start = self.name.span().start;
        let name: Result<VolumeName, _> = self.name.into_inner().parse();
        Ok(VolumeMount {
            volume: VolumeKey::Name(name.map_err(|error| (start, error.to_string()))?),
            target: inside(self.target)?,
            access: self.access.unwrap_or(MountAccess::Rw),
        })
    }
}

impl TmpfsEntry {
    fn into_spec(self) -> Result<TmpfsSpec, WrongText> {
        Ok(TmpfsSpec {
            target: inside(self.target)?,
            size: self.size.map(|SizeValue(bytes)| bytes),
        })
    }
}

/// A place in a sandbox at which something is mounted.
fn inside(target: Spanned<PathBuf>) -> Result<PathBuf, WrongText> {
    let (start, path) = (target.span().start, target.into_inner());
    match (path.is_absolute(), path.parent()) {
        (true, Some(_)) => Ok(path),
        (true, None) => Err((start, "nothing is mounted at `/`".to_owned())),
        (false, _) => Err((start, format!("`{}` is not absolute", Text::from(&path)))),
    }
}

fn some_level<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LevelChoice>, D::Error> {
    let word = String::deserialize(deserializer)?;
    if word == "auto" {
        return Ok(Some(LevelChoice::Auto));
    }
    if word == ESCALATING {
        return Ok(Some(LevelChoice::Escalating));
    }
    word.parse()
        .map(|level| Some(LevelChoice::Exactly(level)))
        .map_err(de::Error::custom)
}

/// The name of a limit that a sandbox has.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct LimitKey(LimitName);

impl<'de> Deserialize<'de> for LimitKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let found = LimitName::ALL.into_iter().find(|name| name.name() == word);
        found
            .map(Self)
            .ok_or_else(|| de::Error::unknown_variant(&word, &LIMIT_WORDS))
    }
}

/// Their names.
static LIMIT_WORDS: [&str; LimitName::ALL.len()] = {
    let mut words = [""; LimitName::ALL.len()];
    let mut index = 0;
    while index < words.len() {
        words[index] = LimitName::ALL[index].name();
        index += 1;
    }
    words
};

/// A number or a string, as the text that [`Limits::set`] reads.
struct LimitText(String);

impl<'de> Deserialize<'de> for LimitText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarValue;
        impl Visitor<'_> for ScalarValue {
            type Value = LimitText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or a string such as \"512M\", \"30s\" or \"unlimited\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LimitText, E> {
                Ok(LimitText(text.to_owned()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<LimitText, E> {
                Ok(LimitText(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<LimitText, E> {
                Ok(LimitText(number.to_string()))
            }
        }
        deserializer.deserialize_any(ScalarValue)
    }
}

/// A size as a string or a number of bytes.
struct SizeValue(Bytes);

impl<'de> Deserialize<'de> for SizeValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let LimitText(text) = LimitText::deserialize(deserializer)?;
        let size: Bytes = text.parse().map_err(de::Error::custom)?;
        // To tmpfs(5) a size of 0 means no limit.
        if size.0 == 0 {
            Err(de::Error::custom("a size of 0 holds nothing"))
        } else {
            Ok(Self(size))
        }
    }
}

#[cfg(test)]
mod tests;
