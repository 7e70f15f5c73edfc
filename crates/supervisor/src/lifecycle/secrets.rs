//! The secrets of a run: their values are read here, for the gateway alone, and the sandbox gets placeholders.
//!
//! Whatever would carry a value into the sandbox on another way is refused before anything is made.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::network::secret::{
    MAX_VALUE, NamedSecret, Placeholder, SecretError, SecretSource, SecretSpec, SecretValue, ValueError, check_together,
};
use offleash_core::plan::{Environment, Plan, PlanEntry, PlanNode};
use offleash_core::spec::SandboxSpec;
use offleash_core::text::Text;
use offleash_sys::process;
use offleash_sys::rlimit::{self, LimitedResource};
use zeroize::Zeroize as _;

use offleash_planner::{PlanningHost, absolute};

/// What forbids dumps of memory altogether, those to a program included (core(5)).
const NO_CORE_DUMP: u64 = 1;

/// Secrets that cannot be used as asked.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// They do not go together.
    #[error(transparent)]
    Together(#[from] SecretError),
    /// The variable of the source is not set.
    #[error("secret `{name}`: variable `{variable}` is not set")]
    NotSet {
        /// The secret.
        name: String,
        /// The variable.
        variable: String,
    },
    /// The file of the source cannot be read.
    #[error("secret `{name}`: cannot read `{}`", Text::from(path))]
    Unreadable {
        /// The secret.
        name: String,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What was read is no value.
    #[error("secret `{name}` from `{from}`: {reason}")]
    Value {
        /// The secret.
        name: String,
        /// Its source.
        from: SecretSource,
        /// What is wrong with it.
        reason: ValueError,
    },
    /// Its variable is set or passed by another rule, or is one that every sandbox has.
    #[error("secret `{name}`: the variable `{name}` is set already, by `{rule}`")]
    Set {
        /// The secret.
        name: String,
        /// What sets it.
        rule: String,
    },
    /// A variable that the sandbox would have contains the value.
    #[error(
        "secret `{name}`: its value would enter the sandbox in variable `{}`",
        Text::from(variable)
    )]
    InVariable {
        /// The secret.
        name: String,
        /// The variable.
        variable: OsString,
    },
    /// The command contains the value.
    #[error("secret `{0}`: the command contains its value")]
    InCommand(String),
    /// The file of the source can be read inside.
    #[error("secret `{name}`: its file can be read inside, at `{}`", Text::from(inside))]
    FileInside {
        /// The secret.
        name: String,
        /// Where.
        inside: PathBuf,
    },
    /// The kernel has no random bytes, or does not forbid dumps of memory.
    #[error("cannot {action}")]
    Host {
        /// What.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// The secrets of a run, and the variables by which the sandbox knows of them.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// The gateway takes them.
    pub(super) secrets: Vec<NamedSecret>,
    pub(super) variables: Environment,
}

/// Reads the secrets that `spec` asks for, for a sandbox of this plan and environment.
///
/// # Errors
/// [`SecretsError`] when one cannot be read, or would enter the sandbox.
pub(super) fn ready(
    spec: &SandboxSpec,
    host: &PlanningHost,
    plan: &Plan,
    environment: &Environment,
    command: &[OsString],
) -> Result<Ready, SecretsError> {
    let asked = &spec.network.secrets;
    if asked.is_empty() {
        return Ok(Ready::default());
    }
    check_together(asked)?;
    forbid_dumps()?;
    for secret in asked {
        check_name(secret, spec, environment)?;
    }
    let secrets = asked
        .iter()
        .map(|secret| read(secret, host, plan))
        .collect::<Result<Vec<NamedSecret>, _>>()?;
    for secret in &secrets {
        check_ways_in(secret, environment, command)?;
    }
    let variable = |secret: &NamedSecret| (OsString::from(&secret.spec.name), secret.placeholder.as_str().into());
    Ok(Ready {
        variables: secrets.iter().map(variable).collect(),
        secrets,
    })
}

/// Wipes the values that came from variables of this process, here and in its environment: the gateway is to have them alone.
pub(super) fn forget_sources(asked: &[SecretSpec], host: &mut PlanningHost) {
    for secret in asked {
        let SecretSource::Variable(variable) = &secret.source else {
            continue;
        };
        for (_, value) in host
            .env
            .iter_mut()
            .filter(|(name, _)| name.as_os_str() == variable.as_str())
        {
            std::mem::take(value).into_vec().zeroize();
        }
        // With another thread it stays where it is: nobody is to write what that may read.
        let _wiped = process::wipe_variable(variable.as_bytes());
    }
}

fn forbid_dumps() -> Result<(), SecretsError> {
    rlimit::lower(LimitedResource::Core, NO_CORE_DUMP).map_err(|error| SecretsError::Host {
        action: "forbid dumps of memory with secrets in it",
        source: error.source.into(),
    })?;
    Ok(())
}

fn check_name(secret: &SecretSpec, spec: &SandboxSpec, environment: &Environment) -> Result<(), SecretsError> {
    let name = OsStr::new(&secret.name);
    let verdict = spec.env.decide(name);
    let set = |rule: String| SecretsError::Set {
        name: secret.name.clone(),
        rule,
    };
    if verdict.passed {
        return Err(set(verdict.rule));
    }
    if environment.iter().any(|(variable, _)| variable == name) {
        return Err(set("system: every sandbox has its own".to_owned()));
    }
    Ok(())
}

fn read(secret: &SecretSpec, host: &PlanningHost, plan: &Plan) -> Result<NamedSecret, SecretsError> {
    let name = || secret.name.clone();
    let bytes = match &secret.source {
        SecretSource::Variable(variable) => host
            .variable(variable)
            .map(|value| value.as_bytes().to_vec())
            .ok_or_else(|| SecretsError::NotSet {
                name: name(),
                variable: variable.clone(),
            })?,
        SecretSource::File(path) => {
            let path = absolute(Path::new(path), host);
            if let Some(inside) = path
                .canonicalize()
                .ok()
                .and_then(|path| seen_inside(&plan.entries, &path))
            {
                return Err(SecretsError::FileInside { name: name(), inside });
            }
            read_file(&path).map_err(|source| SecretsError::Unreadable {
                name: name(),
                path,
                source,
            })?
        }
    };
    let value = SecretValue::new(bytes).map_err(|reason| SecretsError::Value {
        name: name(),
        from: secret.source.clone(),
        reason,
    })?;
    let random = |bytes: &mut [u8]| rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty()).map(|_| ());
    let placeholder = Placeholder::plausible(&value, random).map_err(|error| SecretsError::Host {
        action: "read random bytes",
        source: error.into(),
    })?;
    Ok(NamedSecret {
        spec: secret.clone(),
        value,
        placeholder,
    })
}

/// Reads no more than what a value may have, and enough to see that it has more.
pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let most = u64::try_from(MAX_VALUE).unwrap_or(u64::MAX).saturating_add(3);
    let mut bytes = Vec::with_capacity(MAX_VALUE + 3);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Where a file of the host can be read inside.
fn seen_inside(entries: &[PlanEntry], file: &Path) -> Option<PathBuf> {
    entries.iter().find_map(|entry| {
        let (PlanNode::Bind { source: root, .. }
        | PlanNode::Overlay { lower: root, .. }
        | PlanNode::Base { lower: root, .. }) = &entry.node
        else {
            return None;
        };
        let rest = file.strip_prefix(root).ok()?;
        let inside: PathBuf = entry.target.join(rest).components().collect();
        let deciding = entries.iter().rev().find(|entry| inside.starts_with(&entry.target))?;
        std::ptr::eq(deciding, entry).then_some(inside)
    })
}

/// Refuses what would carry the value in, however it got there.
fn check_ways_in(secret: &NamedSecret, environment: &Environment, command: &[OsString]) -> Result<(), SecretsError> {
    let value = secret.value.expose();
    let contains = |text: &OsStr| text.as_bytes().windows(value.len()).any(|part| part == value);
    if let Some((variable, _)) = environment.iter().find(|(_, text)| contains(text)) {
        return Err(SecretsError::InVariable {
            name: secret.spec.name.clone(),
            variable: variable.clone(),
        });
    }
    if command.iter().any(|argument| contains(argument)) {
        return Err(SecretsError::InCommand(secret.spec.name.clone()));
    }
    Ok(())
}

impl Explained for SecretsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Together(error) => error.kind(),
            Self::NotSet { .. } => ErrorKind::NotFound,
            Self::Unreadable { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Invalid,
            },
            Self::Host { .. } => ErrorKind::Internal,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Together(error) => return error.hint(),
            Self::Value { reason, .. } => return reason.hint(),
            Self::NotSet { name, variable } => {
                format!("export `{variable}` before offleash is started, or give `--secret {name}` another source")
            }
            Self::Unreadable { name, .. } => format!("give `--secret {name}` a file that exists and that you may read"),
            Self::Set { .. } => "inside, the variable holds a placeholder; leave it out of `--env` and `[env]`, or name the secret differently".to_owned(),
            Self::InVariable { variable, .. } => format!(
                "leave `{}` out of `--env` and `[env]`",
                Text::from(variable)
            ),
            Self::InCommand(name) => format!("write `${name}` in its place, in a shell string or a script"),
            Self::FileInside { inside, .. } => format!(
                "move the file, or hide it with `--deny {}`",
                Text::from(inside)
            ),
            Self::Host { .. } => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use offleash_core::spec::MountAccess;

    use super::*;

    fn entry(target: &str, node: PlanNode) -> PlanEntry {
        PlanEntry {
            target: target.into(),
            node,
            rule: String::new(),
        }
    }

    #[test]
    fn a_file_that_can_be_read_inside_is_found_and_a_hidden_one_is_not() {
        let entries = [
            entry(
                "/w",
                PlanNode::Overlay {
                    lower: "/home/me/project".into(),
                    layer: "/x".into(),
                },
            ),
            entry("/w/.env", PlanNode::Hidden { directory: false }),
            entry(
                "/data/one",
                PlanNode::Bind {
                    source: "/srv/one".into(),
                    access: MountAccess::Ro,
                },
            ),
        ];
        let seen = |path: &str| seen_inside(&entries, Path::new(path)).map(|inside| inside.display().to_string());
        assert_eq!(seen("/home/me/project/key").as_deref(), Some("/w/key"));
        assert_eq!(seen("/srv/one").as_deref(), Some("/data/one"));
        assert_eq!(seen("/home/me/project/.env"), None);
        assert_eq!(seen("/home/me/key"), None);
    }
}
