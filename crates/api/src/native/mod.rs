//! The native REST below `/v1`: what the API of E2B lacks. Its routes are in [`crate::routes`].

pub(crate) mod cells;
pub(crate) mod changes;
pub(crate) mod contexts;
pub(crate) mod desktops;
pub(crate) mod keys;
pub(crate) mod overview;
pub(crate) mod processes;
pub(crate) mod reached;
pub(crate) mod run;
pub(crate) mod sandboxes;
pub(crate) mod server;
pub(crate) mod sessions;
mod shapes;
pub(crate) mod snapshots;
pub(crate) mod templates;
pub(crate) mod tools;
pub(crate) mod transfers;
pub(crate) mod volumes;

pub(crate) use self::cells::{CellEvent, NewCell, NewDefaultCell};
pub(crate) use self::changes::{AppliedAnswer, ApplyBody, ChangesAnswer, DiffAnswer, DiscardBody, RunList};
pub(crate) use self::contexts::{ContextAnswer, ContextList, NewContext};
pub(crate) use self::desktops::{DesktopAnswer, DesktopList, DesktopRecording, NewDesktop};
pub(crate) use self::overview::{DrainAnswer, IdsAnswer, MachineAnswer, OverviewAnswer};
pub(crate) use self::processes::{ProcessesAnswer, SignalBody};
pub(crate) use self::reached::ReachedAnswer;
pub(crate) use self::server::AuditVerificationAnswer;
pub(crate) use self::sessions::{
    BrowserContextAnswer, BrowserContextList, NewBrowserContext, NewSession, ReleaseAnswer, SessionAnswer,
    SessionDebug, SessionHar, SessionList, SessionLogs, SessionRecording, SessionUpdate,
};
pub(crate) use self::shapes::{
    AuditAnswer, ForkList, KeyList, MadeKey, NameAnswer, NewCommand, NewForks, NewKey, NewMetadata, NewPolicy, NewRun,
    NewSandbox, PauseBody, PolicyAnswer, RefusalAnswer, ResumeBody, RunResult, SandboxAnswer, SandboxList,
    SandboxUsage, UsageAnswer, VersionAnswer,
};
pub(crate) use self::snapshots::{
    CheckpointList, NewCheckpoint, NewSnapshot, RestoreBody, SnapshotAnswer, SnapshotList, TAR,
};
pub(crate) use self::templates::{BuiltTemplateAnswer, BuiltTemplateList};
pub(crate) use self::tools::{AllowedHostList, ApprovalList, Approve, CallAnswer, CallEvent, Deny, EVENTS};
pub(crate) use self::transfers::{NewTransfer, TransferAnswer};
pub(crate) use self::volumes::{NewVolume, SyncAnswer, SyncBody, VolumeAnswer, VolumeList};
