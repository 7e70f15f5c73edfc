//! Why the daemon does not do what it was asked.

use std::borrow::Cow;
use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained};
use offleash_images::ImageError;
use offleash_store::{StateError, VolumeError};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::templates::TemplateError;
use offleash_sys::spawn::SpawnError;
use rustix::io::Errno;

use crate::inspection_error::InspectionError;
use crate::registry::RegistryError;
use crate::session_error::SessionError;

/// What a key has too many of where no sandbox of it can be put away.
pub(crate) const PUT_AWAY_QUOTA: &str = "sandboxes paused without memory";

/// Why the daemon does not do what it was asked.
///
/// What `Display` says is meant for the caller and names nothing of the host; sources may, and are for the log.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// There is no such sandbox, or it is somebody else's.
    #[error("sandbox `{}` not found", .id.escape_debug())]
    NotFound {
        /// What was asked for.
        id: String,
    },
    /// Something else is being done with the sandbox, or it is not in the state for it.
    #[error("sandbox `{id}` {why}")]
    Conflict {
        /// The sandbox.
        id: String,
        /// As in `is already paused`.
        why: Cow<'static, str>,
    },
    /// Another sandbox of the key has the name.
    #[error("sandbox `{id}` is called `{name}` already")]
    NameTaken {
        /// The name.
        name: String,
        /// Who has it.
        id: String,
    },
    /// What was to be paused only if it is healthy is not: the guest in it does not answer.
    #[error("the guest of sandbox `{id}` does not answer; it runs on")]
    GuestUnresponsive {
        /// The sandbox.
        id: String,
    },
    /// The key has all that it may have.
    #[error("the quota of this key is used up: {used} of {quota} {what}, {asked} more asked for")]
    QuotaExceeded {
        /// `sandboxes`, `CPUs`, `MiB of memory` or `MiB of disk`.
        what: &'static str,
        /// How much it may have.
        quota: u64,
        /// How much it has.
        used: u64,
        /// How much more it asked for.
        asked: u64,
    },
    /// The machine has too little left.
    #[error("the machine is short of {what}; try again later")]
    Overloaded {
        /// `memory`, `processes`, `disk`, `sandboxes` …
        what: &'static str,
        /// After how long it may be worth a try.
        retry_after: Duration,
    },
    /// There are as many sandboxes, of all keys, as the owner lets there be.
    #[error("there is no place for another sandbox; try again later")]
    Full {
        /// How many that are.
        most: usize,
    },
    /// A call of ours failed because something ran out.
    #[error("the machine is short of {what}; try again later")]
    Short {
        /// As in `file descriptors`.
        what: &'static str,
        /// Which call, and what it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The request itself is wrong.
    #[error("{field}: {why}")]
    Invalid {
        /// Which field, as the API calls it.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The files of a sandbox are not copied for a fork or a snapshot.
    #[error("the files of sandbox `{id}` are not copied: {why}")]
    NotCopied {
        /// The sandbox.
        id: String,
        /// Why not.
        why: String,
        /// What kind of failure it is.
        kind: ErrorKind,
    },
    /// The contexts of code of a sandbox are not carried to a fork.
    #[error("sandbox `{id}`: {why}")]
    Contexts {
        /// The sandbox.
        id: String,
        /// Why not; where a context has what cannot be carried, which of it and why.
        why: String,
        /// What kind of failure it is.
        kind: ErrorKind,
        /// What to do.
        hint: Option<String>,
    },
    /// There is no such template.
    #[error("template `{}` not found", .name.escape_debug())]
    UnknownTemplate {
        /// What was asked for.
        name: String,
    },
    /// The caller has no such snapshot.
    #[error("snapshot `{}` not found", .name.escape_debug())]
    UnknownSnapshot {
        /// What was asked for.
        name: String,
    },
    /// The sandbox has no such checkpoint.
    #[error("sandbox `{id}` has no checkpoint `{}`", .name.escape_debug())]
    UnknownCheckpoint {
        /// The sandbox.
        id: String,
        /// What was asked for.
        name: String,
    },
    /// The image is not here that a snapshot of a file lies over.
    #[error("the snapshot lies over the image `{}` ({digest}), which is not here", .image.escape_debug())]
    MissingOrigin {
        /// What it was called.
        image: String,
        /// The digest of its manifest.
        digest: String,
    },
    /// There is a snapshot, and no sandbox can be made of it.
    #[error("snapshot `{id}` {why}")]
    SnapshotUnusable {
        /// The snapshot.
        id: String,
        /// Why not.
        why: String,
    },
    /// The caller has no such secret.
    #[error("secret `{}` not found", .name.escape_debug())]
    UnknownSecret {
        /// What was asked for.
        name: String,
    },
    /// The caller has a secret of this name.
    #[error("there is a secret `{}` already", .name.escape_debug())]
    SecretExists {
        /// The name.
        name: String,
    },
    /// The caller has no such webhook.
    #[error("webhook `{}` not found", .id.escape_debug())]
    UnknownWebhook {
        /// What was asked for.
        id: String,
    },
    /// A session of a browser, or a context of such.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The template is being built, which is done once for all.
    #[error("template `{name}` is being built ({installs}); try again in a moment")]
    TemplateBuilding {
        /// The template.
        name: String,
        /// What it installs.
        installs: String,
        /// After how long it may be worth a try.
        retry_after: Duration,
    },
    /// The template could not be built.
    #[error("template `{name}` could not be built; the server's log says why")]
    TemplateFailed {
        /// The template.
        name: String,
    },
    /// Snapshots lie over the template.
    #[error("snapshots lie over template `{name}`; remove them first")]
    TemplateHasSnapshots {
        /// The template.
        name: String,
    },
    /// What a sandbox of the template starts did not become ready.
    #[error("the start command of template `{name}` failed: {why}")]
    StartFailed {
        /// The template.
        name: String,
        /// What happened, with the last that it said.
        why: String,
    },
    /// The template has no such build.
    #[error("build `{}` not found", .id.escape_debug())]
    UnknownBuild {
        /// What was asked for.
        id: String,
    },
    /// The build is not in the state for it.
    #[error("build `{id}` {why}")]
    BuildConflict {
        /// The build.
        id: String,
        /// As in `was started already`.
        why: &'static str,
    },
    /// What was sent is too large.
    #[error("{why}")]
    TooLarge {
        /// How large it may be.
        why: String,
    },
    /// Sandboxes use the template.
    #[error("template `{name}` is used by sandboxes")]
    TemplateInUse {
        /// The template.
        name: String,
    },
    /// There is no such image.
    #[error("there is no image `{}` on this server", .name.escape_debug())]
    UnknownImage {
        /// What was asked for.
        name: String,
    },
    /// The server's configuration does not let the caller use the image.
    #[error("this server does not allow the image `{}`", .name.escape_debug())]
    ImageNotAllowed {
        /// What was asked for.
        name: String,
    },
    /// The image is being pulled or unpacked, which is done once for all.
    #[error("image `{}` is being pulled or unpacked; try again in a moment", .name.escape_debug())]
    ImageFetching {
        /// The image.
        name: String,
        /// After how long it may be worth a try.
        retry_after: Duration,
    },
    /// The image could not be pulled or unpacked.
    #[error("image `{}` could not be made ready: {message}", .name.escape_debug())]
    ImageFailed {
        /// The image.
        name: String,
        /// What kind of failure it is.
        kind: ErrorKind,
        /// What was tried, and why it failed.
        message: String,
        /// What to do.
        hint: Option<String>,
        /// Whether that says nothing of this machine.
        is_about_image: bool,
    },
    /// Something of an image failed.
    #[error("the images cannot be used")]
    Images(#[from] ImageError),
    /// Something of a template failed.
    #[error("the templates cannot be used")]
    Templates(#[from] TemplateError),
    /// A volume cannot be made, used or removed.
    #[error("{}", told(.0))]
    Volume(#[from] VolumeError),
    /// A volume and its bucket cannot be brought to the same.
    #[error("{message}")]
    NotSynchronised {
        /// What kind of failure it is.
        kind: ErrorKind,
        /// What was tried, and why it failed.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
    /// A sandbox cannot have its volumes as asked.
    #[error("{why}")]
    NotMounted {
        /// Why not.
        why: String,
        /// What kind of failure it is.
        kind: ErrorKind,
    },
    /// This machine or this level cannot do it.
    #[error("{what} is not supported: {why}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// Why it cannot be done.
        why: String,
    },
    /// This machine cannot make such a sandbox, whoever asks.
    #[error("this machine cannot make such a sandbox at this level")]
    Unmakeable {
        /// What its supervisor said, for the owner.
        source: SupervisorError,
    },
    /// No key, or none that is valid.
    #[error("the API key is missing or not valid")]
    Unauthorized,
    /// The key may not do that.
    #[error("this key does not have the scope `{scope}`")]
    Forbidden {
        /// What it would need.
        scope: &'static str,
    },
    /// The server's configuration does not let callers have that.
    #[error("this server does not allow {what}")]
    NotAllowed {
        /// What was asked for.
        what: &'static str,
        /// What the owner of the server would have to set.
        setting: &'static str,
    },
    /// A person who had to be asked did not allow it.
    #[error("{what}: {why}")]
    ApprovalDenied {
        /// What was not done.
        what: String,
        /// Why not.
        why: String,
    },
    /// A tool is asked for, or more of it than there is for the caller.
    #[error("tools: `{}` is not shown to be within what is granted", .grant.escape_debug())]
    ToolsNotGranted {
        /// What was asked for.
        grant: String,
    },
    /// There is no such question, or it was decided.
    #[error("approval `{}` is not open", .id.escape_debug())]
    UnknownApproval {
        /// What was asked for.
        id: String,
    },
    /// No such host was allowed for good for the caller's sandboxes.
    #[error("allowed host `{}` not found", .id.escape_debug())]
    UnknownAllowedHost {
        /// What was asked for.
        id: String,
    },
    /// There is no such call, or nobody waits for its answer any more.
    #[error("sandbox `{id}` waits for no answer to call {call}")]
    UnknownCall {
        /// The sandbox.
        id: String,
        /// Which call.
        call: u64,
    },
    /// Something cannot be looked at from outside.
    #[error(transparent)]
    Inspection(#[from] InspectionError),
    /// The daemon is ending.
    #[error("the daemon is ending; try again in a moment")]
    Draining,
    /// The owner wants no new sandboxes here.
    #[error("this server is drained: it takes no new sandboxes")]
    Drained,
    /// The process that holds the sandbox failed, or did not answer.
    #[error("the sandbox's supervisor failed: {tried}")]
    Supervisor {
        /// What was asked of it.
        tried: &'static str,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The registry failed.
    #[error("the registry failed")]
    Store(#[from] RegistryError),
    /// The state directory cannot be used.
    #[error("the state directory cannot be used")]
    State(#[from] StateError),
    /// Another daemon works on the state directory.
    #[error("another daemon works on this state directory")]
    AlreadyRunning,
    /// The host failed us.
    #[error("cannot {tried}")]
    Host {
        /// What was tried, as in `start a supervisor`.
        tried: &'static str,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl DaemonError {
    pub(crate) fn not_found(id: &str) -> Self {
        Self::NotFound { id: id.to_owned() }
    }

    pub(crate) fn conflict(id: &str, why: impl Into<Cow<'static, str>>) -> Self {
        Self::Conflict {
            id: id.to_owned(),
            why: why.into(),
        }
    }

    pub(crate) fn invalid(field: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { field, why: why.into() }
    }

    pub(crate) fn host(tried: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| match shortage(&source) {
            Some(what) => Self::Short {
                what,
                source: Box::new(source),
            },
            None => Self::Host {
                tried,
                source: Box::new(source),
            },
        }
    }

    pub(crate) fn supervisor(tried: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source = source.into();
        match shortage(&*source) {
            Some(what) => Self::Short { what, source },
            None => Self::Supervisor { tried, source },
        }
    }

    /// Why a sandbox was not made.
    pub(crate) fn of_making(error: SupervisorError) -> Self {
        match error {
            SupervisorError::NotMade {
                kind: ErrorKind::Unsupported,
                ..
            } => Self::Unmakeable { source: error },
            other => Self::supervisor("make a sandbox", other),
        }
    }

    /// What the supervisor of a sandbox that was not made said, and what to do about it, for the owner of the machine: it
    /// may name paths of the host.
    pub fn cause_for_owner(&self) -> Option<(String, Option<String>)> {
        let error = match self {
            Self::Unmakeable { source } => source,
            Self::Supervisor { source, .. } | Self::Short { source, .. } => source.downcast_ref()?,
            _ => return None,
        };
        match error {
            SupervisorError::NotMade { message, hint, .. } => Some((message.clone(), hint.clone())),
            _ => None,
        }
    }

    /// What is wrong with a sandbox that has volumes, where its supervisor says so: somebody may have taken one since it was
    /// looked at, and whether it fits where it is to be only the supervisor knows.
    pub(crate) fn of_volumes(self) -> Self {
        let Self::Supervisor { source, .. } = &self else {
            return self;
        };
        match source.downcast_ref() {
            Some(SupervisorError::NotMade {
                kind: kind @ (ErrorKind::Conflict | ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Denied),
                message,
                ..
            }) => Self::NotMounted {
                why: message.clone(),
                kind: *kind,
            },
            _ => self,
        }
    }

    /// What the refusal of a sandbox's supervisor is to whoever asked the daemon.
    pub(crate) fn of_supervisor(tried: &'static str, id: &str, error: SupervisorError) -> Self {
        match error {
            SupervisorError::Gone => Self::not_found(id),
            SupervisorError::Unsupported { operation } => Self::Unsupported {
                what: tried.to_owned(),
                why: format!("this machine cannot {operation}"),
            },
            SupervisorError::TrustStores(why) => {
                let why = format!("keeps its trust stores from being extended, which headers in `rules` need: {why}");
                Self::conflict(id, why)
            }
            other => Self::supervisor(tried, other),
        }
    }
}

impl Explained for DaemonError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. }
            | Self::UnknownTemplate { .. }
            | Self::UnknownImage { .. }
            | Self::UnknownBuild { .. }
            | Self::UnknownSnapshot { .. }
            | Self::UnknownCheckpoint { .. }
            | Self::MissingOrigin { .. }
            | Self::UnknownApproval { .. }
            | Self::UnknownAllowedHost { .. }
            | Self::UnknownCall { .. }
            | Self::UnknownWebhook { .. }
            | Self::UnknownSecret { .. } => ErrorKind::NotFound,
            Self::Conflict { .. }
            | Self::SnapshotUnusable { .. }
            | Self::NameTaken { .. }
            | Self::SecretExists { .. }
            | Self::GuestUnresponsive { .. }
            | Self::AlreadyRunning
            | Self::BuildConflict { .. }
            | Self::TemplateHasSnapshots { .. }
            | Self::TemplateInUse { .. } => ErrorKind::Conflict,
            Self::QuotaExceeded { .. } | Self::TooLarge { .. } => ErrorKind::Exhausted,
            Self::NotMounted { kind, .. }
            | Self::NotSynchronised { kind, .. }
            | Self::NotCopied { kind, .. }
            | Self::Contexts { kind, .. }
            | Self::ImageFailed { kind, .. } => *kind,
            Self::Session(source) => source.kind(),
            Self::Overloaded { .. }
            | Self::Full { .. }
            | Self::Short { .. }
            | Self::Draining
            | Self::Drained
            | Self::TemplateBuilding { .. }
            | Self::ImageFetching { .. }
            | Self::StartFailed { .. }
            | Self::TemplateFailed { .. } => ErrorKind::Unavailable,
            Self::Templates(source) => source.kind(),
            Self::Images(source) => source.kind(),
            Self::Volume(source) => source.kind(),
            Self::Inspection(source) => source.kind(),
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Unsupported { .. } | Self::Unmakeable { .. } => ErrorKind::Unsupported,
            Self::Unauthorized
            | Self::Forbidden { .. }
            | Self::NotAllowed { .. }
            | Self::ApprovalDenied { .. }
            | Self::ToolsNotGranted { .. }
            | Self::ImageNotAllowed { .. } => ErrorKind::Denied,
            Self::Supervisor { .. } | Self::Host { .. } => ErrorKind::Internal,
            Self::Store(source) => source.kind(),
            Self::State(source) => source.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::AlreadyRunning => Some("end it first, or name another directory with `--state DIR`".into()),
            Self::Unauthorized => Some("`offleash key create` makes a key and shows it once".into()),
            Self::NotAllowed { setting, .. } => Some(format!("`{setting}` in the server's configuration allows it")),
            Self::Full { most } => Some(format!(
                "`sandboxes.max` of the server's configuration is {most}: raise it, or remove some that `offleash ls` lists"
            )),
            Self::QuotaExceeded {
                what: PUT_AWAY_QUOTA, ..
            } => Some(
                "remove some of them, or raise `lifecycle.max_put_away` of the server's configuration; without that one may be \
                 paused with its memory"
                    .into(),
            ),
            Self::NotCopied {
                kind: ErrorKind::Exhausted,
                ..
            } => Some("remove files in it that are not needed".into()),
            Self::UnknownImage { .. } => Some(
                "`offleash image pull NAME` on the server's machine fetches it, with the server's state directory; \
                 `images.pull = \"missing\"` in the server's configuration lets the server do so"
                    .into(),
            ),
            Self::ImageNotAllowed { .. } => Some(
                "`images.allow` in the server's configuration, or that of the key in `images.keys`, allows it".into(),
            ),
            Self::ToolsNotGranted { .. } => Some(
                "the owner of the server declares tools in the file that `tools.policy` names, and grants them to keys with \
                 `offleash key create --tool-grant`"
                    .into(),
            ),
            Self::UnknownApproval { .. } => Some("`offleash approvals ls` lists those that are".into()),
            Self::UnknownAllowedHost { .. } => Some("`offleash approvals allowed` lists those that are".into()),
            Self::UnknownSnapshot { .. } => Some("`offleash snapshot ls` lists the snapshots".into()),
            Self::UnknownCheckpoint { id, .. } => Some(format!("`offleash checkpoints {id}` lists its checkpoints")),
            Self::UnknownTemplate { .. } => Some("`offleash template ls` lists the templates".into()),
            Self::MissingOrigin { image, digest } => {
                let name = image.split('@').next().unwrap_or(image);
                Some(format!(
                    "fetch just that one with `offleash image pull {}@{digest}`, or load it from a file with `offleash image load`",
                    without_tag(name)
                ))
            }
            Self::SnapshotUnusable { id, .. } => Some(format!(
                "make another snapshot of a sandbox that is made now; `offleash snapshot rm {id}` removes this one"
            )),
            Self::Session(source) => source.hint(),
            Self::TemplateInUse { .. } => {
                Some("end them first; `offleash ls` lists them, among which those of the warm pool are not".into())
            }
            Self::Volume(source) => source.hint(),
            Self::Inspection(source) => source.hint(),
            Self::Images(source) => source.hint(),
            Self::Contexts { hint, .. } | Self::ImageFailed { hint, .. } | Self::NotSynchronised { hint, .. } => {
                hint.clone()
            }
            Self::Store(source) => source.hint(),
            Self::State(source) => source.hint(),
            _ => None,
        }
    }
}

/// A colon behind the last slash begins a tag, another one a port.
fn without_tag(name: &str) -> &str {
    let path = name.rfind('/').map_or(0, |slash| slash + 1);
    name[path..].find(':').map_or(name, |colon| &name[..path + colon])
}

/// What a caller is told of an error of volumes: nothing of where they are on the host.
fn told(error: &VolumeError) -> String {
    match error {
        VolumeError::File(source) if source.kind() == ErrorKind::Exhausted => {
            "the machine is short of disk space".to_owned()
        }
        VolumeError::File(_) | VolumeError::State(_) | VolumeError::Measuring { .. } => {
            "the volume cannot be used".to_owned()
        }
        error => error.to_string(),
    }
}

/// What ran out, if that is why something failed: another try later may succeed, and nothing is wrong with us.
fn shortage(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(what) = own_shortage(error) {
            return Some(what);
        }
        next = error.source();
    }
    None
}

fn own_shortage(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        // What is wrapped is not among the sources.
        let inner = error.get_ref().and_then(|inner| shortage(inner));
        return inner.or_else(|| missing(Errno::from_io_error(error)?));
    }
    if let Some(SpawnError::Step { errno, .. } | SpawnError::NotExecutable { errno }) = error.downcast_ref() {
        return missing(*errno);
    }
    match error.downcast_ref() {
        Some(SupervisorError::NotMade {
            kind: ErrorKind::Exhausted,
            ..
        }) => Some("disk space or memory"),
        Some(SupervisorError::File { errno, .. } | SupervisorError::NotStarted { errno, .. }) => {
            missing(Errno::from_raw_os_error(*errno))
        }
        _ => None,
    }
}

fn missing(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::MFILE | Errno::NFILE => Some("file descriptors"),
        Errno::NOMEM => Some("memory"),
        // That is what clone(2) says of too many.
        Errno::AGAIN => Some("processes"),
        Errno::NOSPC | Errno::DQUOT => Some("disk space"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
