//! The settings file of Anthropic's sandbox-runtime (`srt`, `~/.srt-settings.json`), as far as it can be honoured.
//!
//! Pure. What is mapped, with the meaning that `srt` 0.0.8x gives it on Linux:
//!
//! | srt | here |
//! |---|---|
//! | `allowWrite` with `.` | workspace `rw`; without, workspace `ro` |
//! | other `allowWrite` | `filesystem.write`; `/tmp` is the sandbox's own |
//! | `denyWrite` | `filesystem.protect`: what lies outside every `allowWrite` is read-only anyway |
//! | `denyRead`, `credentials.files` with `deny` | `filesystem.deny`, unless `allowRead` has the same path |
//! | `allowRead` | `filesystem.read` |
//! | `allowedDomains` | `network.allow`, at every port unless one is named; none: no network, as always |
//! | `deniedDomains`, `deniedResolvedAddresses` | `network.deny`, also for allowed hosts that a denied pattern covers |
//! | `enableWeakerNestedSandbox` | `degrade = "allow"`, and the record lists what was not enforced |
//! | `git.safeDirectories` | `safe.directory` by `GIT_CONFIG_COUNT` |
//!
//! Stricter than `srt`, and no error: it lets everything be read that `denyRead` does not name, here only the system,
//! the workspace and `allowRead` can be; it passes the whole environment, here only the allowlist passes; names that
//! lead to private addresses are refused here unless the address is allowed, too; port 443 is TLS and port 80 HTTP, to
//! the name that was allowed; nobody is asked about other hosts. Settings of
//! macOS and Windows, of violation messages and of helper programs mean nothing here. Whatever else asks for something
//! that cannot be done is one error that names every such key.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::{ErrorKind, Explained};
use crate::level::DegradeMode;
use crate::path_rules::{PathPattern, PathRules};
use crate::policy::{Policy, WorkspaceChoice};
use crate::spec::WorkspaceMode;
use crate::text::one_line;

mod network;

use network::NetworkSettings;

/// A settings file that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SrtError {
    /// It is no JSON, a key is unknown or a value has the wrong type.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// It asks for what cannot be done.
    #[error("settings that cannot be honoured: {}", .keys.join(", "))]
    CannotHonour {
        /// Each key with its path, and the reason where the key alone does not say it.
        keys: Vec<String>,
    },
}

impl Explained for SrtError {
    fn kind(&self) -> ErrorKind {
        match self {
            SrtError::Syntax { .. } => ErrorKind::Invalid,
            SrtError::CannotHonour { .. } => ErrorKind::Unsupported,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            SrtError::Syntax { .. } => None,
            SrtError::CannotHonour { .. } => {
                Some("remove these keys from a copy of the file, and pass that one".to_owned())
            }
        }
    }
}

/// Reads a settings file as a policy.
///
/// # Errors
/// When it is no such file, or asks for something that cannot be done.
pub fn parse(text: &str) -> Result<Policy, SrtError> {
    let settings: SrtSettings = serde_json::from_str(text).map_err(|error| SrtError::Syntax {
        line: error.line(),
        column: error.column(),
        message: message_of(&error),
    })?;
    settings.into_policy().map_err(|keys| SrtError::CannotHonour { keys })
}

/// The message without the position, which serde_json appends.
fn message_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    one_line(text.strip_suffix(&position).unwrap_or(&text).as_bytes()).into_owned()
}

/// What is asked for and cannot be done, collected so that one error names everything.
#[derive(Default)]
struct RefusedSettings(Vec<String>);

impl RefusedSettings {
    fn when(&mut self, asked: bool, key: &str) {
        if asked {
            self.0.push(key.to_owned());
        }
    }

    fn patterns(&mut self, key: &str, list: &[String]) -> Vec<PathPattern> {
        let mut patterns = Vec::new();
        for text in list {
            match text.parse() {
                Ok(pattern) => patterns.push(pattern),
                Err(error) => self.0.push(format!("{key} ({error})")),
            }
        }
        patterns
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct SrtSettings {
    #[serde(default)]
    network: NetworkSettings,
    #[serde(default)]
    filesystem: FilesystemSettings,
    #[serde(default)]
    credentials: CredentialSettings,
    #[serde(default)]
    enable_weaker_nested_sandbox: bool,
    #[serde(default)]
    git: GitSettings,
    #[serde(rename = "ignoreViolations", default)]
    _ignore_violations: BTreeMap<String, Vec<String>>,
    #[serde(rename = "enableWeakerNetworkIsolation", default)]
    _enable_weaker_network_isolation: bool,
    #[serde(rename = "allowAppleEvents", default)]
    _allow_apple_events: bool,
    #[serde(rename = "allowPty", default)]
    _allow_pty: bool,
    #[serde(rename = "mandatoryDenySearchDepth")]
    _mandatory_deny_search_depth: Option<u8>,
    #[serde(rename = "ripgrep")]
    _ripgrep: Option<IgnoredAny>,
    #[serde(rename = "seccomp")]
    _seccomp: Option<IgnoredAny>,
    #[serde(rename = "windows")]
    _windows: Option<IgnoredAny>,
    #[serde(rename = "bwrapPath")]
    _bwrap_path: Option<String>,
    #[serde(rename = "socatPath")]
    _socat_path: Option<String>,
    #[serde(rename = "javaAgentJarPath")]
    _java_agent_jar_path: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, expecting = "an object")]
struct FilesystemSettings {
    disabled: bool,
    deny_read: Vec<String>,
    allow_read: Vec<String>,
    allow_write: Vec<String>,
    deny_write: Vec<String>,
    allow_git_config: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, expecting = "an object")]
struct CredentialSettings {
    files: Vec<CredentialFile>,
    env_vars: Vec<CredentialVariable>,
    allow_plaintext_inject: bool,
    aws_pairs: Vec<IgnoredAny>,
    sigv4: Option<IgnoredAny>,
}

/// Further keys describe masking, and so come with a mode that is refused.
#[derive(Deserialize)]
struct CredentialFile {
    path: String,
    mode: CredentialMode,
}

#[derive(Deserialize)]
struct CredentialVariable {
    #[serde(rename = "name")]
    _name: String,
    mode: CredentialMode,
}

#[derive(PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CredentialMode {
    Deny,
    Mask,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, expecting = "an object")]
struct GitSettings {
    safe_directories: Vec<String>,
}

impl SrtSettings {
    fn into_policy(self) -> Result<Policy, Vec<String>> {
        let mut refusals = RefusedSettings::default();
        let network = self.network.into_spec(&mut refusals);
        let denied_files = self.credentials.denied_files(&mut refusals);
        let mut policy = Policy {
            network: Some(network),
            ..Policy::default()
        };
        self.filesystem.apply_to(&mut policy, &denied_files, &mut refusals);
        policy.env.set = self.git.variables();
        if self.enable_weaker_nested_sandbox {
            policy.degrade = Some(DegradeMode::Allow);
        }
        if refusals.0.is_empty() {
            Ok(policy)
        } else {
            Err(refusals.0)
        }
    }
}

impl CredentialSettings {
    /// The files to hide; variables need nothing, because none is passed unless it is named.
    fn denied_files(self, refusals: &mut RefusedSettings) -> Vec<String> {
        let masks = |mode: &CredentialMode| *mode == CredentialMode::Mask;
        refusals.when(
            self.files.iter().any(|file| masks(&file.mode)),
            "credentials.files (mode mask)",
        );
        refusals.when(
            self.env_vars.iter().any(|variable| masks(&variable.mode)),
            "credentials.envVars (mode mask)",
        );
        refusals.when(self.allow_plaintext_inject, "credentials.allowPlaintextInject");
        refusals.when(!self.aws_pairs.is_empty(), "credentials.awsPairs");
        refusals.when(self.sigv4.is_some(), "credentials.sigv4");
        self.files.into_iter().map(|file| file.path).collect()
    }
}

impl FilesystemSettings {
    fn apply_to(&self, policy: &mut Policy, denied_files: &[String], refusals: &mut RefusedSettings) {
        refusals.when(self.disabled, "filesystem.disabled");
        refusals.when(self.allow_git_config, "filesystem.allowGitConfig");
        let written = refusals.patterns("filesystem.allowWrite", &self.allow_write);
        let read = refusals.patterns("filesystem.allowRead", &self.allow_read);
        let mut deny = refusals.patterns("filesystem.denyRead", &self.deny_read);
        // In srt `allowRead` wins over the same path in `denyRead`; here a deny wins every tie.
        deny.retain(|pattern| !read.contains(pattern));
        deny.extend(refusals.patterns("credentials.files", denied_files));
        let mode = if written.iter().any(PathPattern::is_workspace) {
            WorkspaceMode::Rw
        } else {
            WorkspaceMode::Ro
        };
        policy.workspace = Some(WorkspaceChoice::Mode(mode));
        policy.paths = PathRules {
            read,
            write: written
                .into_iter()
                .filter(|pattern| !pattern.is_workspace() && !is_tmp(pattern))
                .collect(),
            deny,
            protect: refusals.patterns("filesystem.denyWrite", &self.deny_write),
        };
    }
}

/// Whether the directory is one that every sandbox has for itself.
fn is_tmp(pattern: &PathPattern) -> bool {
    let base = pattern.base(crate::path_rules::PatternAnchors::default());
    base.is_some_and(|base| ["/tmp", "/var/tmp", "/dev/shm"].iter().any(|own| base.starts_with(own)))
}

impl GitSettings {
    fn variables(&self) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
        if self.safe_directories.is_empty() {
            return Vec::new();
        }
        let mut set = vec![(
            "GIT_CONFIG_COUNT".into(),
            self.safe_directories.len().to_string().into(),
        )];
        for (index, directory) in self.safe_directories.iter().enumerate() {
            set.push((format!("GIT_CONFIG_KEY_{index}").into(), "safe.directory".into()));
            set.push((format!("GIT_CONFIG_VALUE_{index}").into(), directory.into()));
        }
        set
    }
}

#[cfg(test)]
mod tests;
