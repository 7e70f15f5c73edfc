//! Sandboxes that go from one machine to another: what is said of one beside its files, one that is made of that, and the end of
//! the one that was left.
//!
//! Files go as a snapshot ([`crate::snapshots`]). A sandbox keeps its id, its tokens, its name, its labels, its rules and what was
//! left of its time, and is its key's wherever that is known by the same hash. What is said of one is for another daemon of
//! this version, and comes by the hands of an admin. Deliberately not here: who asks whom, and in which order (`api::front`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use offleash_core::id::{RunId, SandboxName};
use offleash_core::level::Level;
use serde::{Deserialize, Serialize};

use crate::caller::{Caller, LOCAL_KEY};
use crate::config::DaemonConfig;
use crate::create_spec::{CreateSpec, KeptIdentity};
use crate::creating::SandboxCreator;
use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::error::DaemonError;
use crate::history::{EndCause, who};
use crate::jobs::CallerPresence;
use crate::lifecycle::{Lifecycle, LifecycleRequest, PauseMode};
use crate::putting_away::PauseReason;
use crate::random;
use crate::registry::{SandboxState, SnapshotKind, SnapshotState};
use crate::request::{
    BROWSER_LABEL, CreateRequest, DESKTOP_LABEL, LimitsRequest, NAME_LABEL, NetworkSettings, OnTimeout,
};
use crate::sandbox_sources::SandboxSources;
use crate::sandbox_tools::ToolsRequest;
use crate::sandboxes::SandboxEntry;
use crate::secret_use;
use crate::transitions::SandboxChanger;
use crate::view::{SandboxLimits, SandboxView, VisibleState};

/// The field that refusals of a description name.
const SANDBOX: &str = "sandbox";
/// The least that one that runs has left when it was on its way.
const LEAST_LEFT: Duration = Duration::from_secs(1);

/// A sandbox that can go to another machine, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxTransfer {
    /// Its id.
    pub id: String,
    /// Whether it runs or is paused.
    pub state: VisibleState,
    /// How often it has changed: one that was resumed meanwhile has another number.
    pub changes: i64,
    /// What is left of its time, if that does not run.
    pub left: Option<Duration>,
    /// All that another daemon is told of it.
    pub description: String,
}

/// What another daemon is told of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TransferDescription {
    id: String,
    /// SHA-256 of its key, hexadecimal.
    key: String,
    is_asleep: bool,
    left_ms: Option<u64>,
    labels: BTreeMap<String, String>,
    env: BTreeMap<String, String>,
    access_token: Option<String>,
    traffic_token: Option<String>,
    on_timeout: OnTimeout,
    auto_resume: bool,
    network: NetworkSettings,
    limits: SandboxLimits,
    level: Option<Level>,
    lifecycle: Lifecycle,
}

/// Gives sandboxes away, and takes them in.
#[derive(Debug)]
pub(crate) struct SandboxTransfers {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    sources: SandboxSources,
    creator: Arc<SandboxCreator>,
    changer: Arc<SandboxChanger>,
    ender: Arc<SandboxEnder>,
}

impl SandboxTransfers {
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        sources: SandboxSources,
        creator: Arc<SandboxCreator>,
        changer: Arc<SandboxChanger>,
        ender: Arc<SandboxEnder>,
    ) -> Self {
        Self {
            core,
            config,
            sources,
            creator,
            changer,
            ender,
        }
    }

    /// Says all of a sandbox that another machine has to know.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` for one that has something that stays on this machine, `Store`.
    pub(crate) fn describe(&self, caller: &Caller, id: &str) -> Result<SandboxTransfer, DaemonError> {
        let entry = self.core.sandboxes.find(caller, id)?;
        let state = entry.visible_state().ok_or_else(|| DaemonError::not_found(id))?;
        let stays = |why: String| DaemonError::conflict(entry.name(), why);
        if let Some(why) = self.what_stays(&entry)? {
            return Err(stays(why.to_owned()));
        }
        let (row, specification) = (entry.row(), entry.specification());
        let key = row.key_id.clone().unwrap_or_default();
        let key = self.core.registry.look_up(|registry| registry.key(&key))?;
        let key = key.ok_or_else(|| stays("is of a key that is not there any more".to_owned()))?;
        let left = specification.left().filter(|_| state == VisibleState::Paused);
        let description = TransferDescription {
            id: row.id.clone(),
            key: hexadecimal(&key.hash),
            is_asleep: specification.asleep,
            left_ms: left.and_then(|left| u64::try_from(left.as_millis()).ok()),
            on_timeout: OnTimeout::of(&row),
            labels: row.metadata,
            env: specification.env.clone(),
            access_token: row.access_token,
            traffic_token: row.traffic_token,
            auto_resume: row.auto_resume,
            network: specification.network.clone(),
            limits: specification.limits,
            level: specification.asked_level,
            lifecycle: specification.lifecycle.clone(),
        };
        Ok(SandboxTransfer {
            id: row.id,
            state,
            changes: row.generation,
            left,
            // Maps with keys that are strings, strings and numbers: nothing that could fail.
            description: serde_json::to_string(&description).unwrap_or_default(),
        })
    }

    /// What a sandbox has that no other machine has, if anything.
    fn what_stays(&self, entry: &SandboxEntry) -> Result<Option<&'static str>, DaemonError> {
        let (row, specification) = (entry.row(), entry.specification());
        let network = &specification.network;
        let has_password = network
            .egress_proxy
            .as_ref()
            .is_some_and(|proxy| proxy.password.is_some());
        let found = [
            (
                row.key_id.as_deref() == Some(LOCAL_KEY),
                "is the machine's owner's, who is nobody elsewhere",
            ),
            (
                !specification.volumes.is_empty(),
                "has volumes, which stay on this machine",
            ),
            (
                !specification.tools.is_empty(),
                "has tools, whose calls are counted on this machine",
            ),
            (
                row.metadata.contains_key(BROWSER_LABEL),
                "is a session of a browser, which is a process",
            ),
            (
                row.metadata.contains_key(DESKTOP_LABEL),
                "is a desktop, which is a process",
            ),
            (
                !secret_use::used(network).is_empty(),
                "uses secrets, which stay on this machine",
            ),
            (has_password, "has a proxy with a password, which is told to nobody"),
            (
                network.named_by_owner,
                "has rules of the machine's owner, which mean something else elsewhere",
            ),
            (
                specification.allow_ptrace,
                "may trace its programs, which is this machine's to allow",
            ),
        ];
        if let Some((_, why)) = found.into_iter().find(|(is_so, _)| *is_so) {
            return Ok(Some(why));
        }
        let of_sandbox = |registry: &crate::registry::Registry| registry.snapshots_of_sandbox(entry.name());
        let all = self.core.registry.look_up(of_sandbox)?;
        let has_checkpoints = all
            .iter()
            .any(|row| row.kind == SnapshotKind::Checkpoint && row.state == SnapshotState::Ready);
        Ok(has_checkpoints.then_some("has checkpoints, which stay on this machine"))
    }

    /// Makes a sandbox of what another daemon said of it, and of a snapshot of its files; one that is to be paused is put away.
    ///
    /// # Errors
    /// `Invalid` for a description that is none, and for a key that is not here; `Conflict` where there is a sandbox of that id;
    /// those of a create.
    pub(crate) async fn take(
        self: &Arc<Self>,
        caller: &Caller,
        snapshot: &str,
        description: &str,
        is_paused: bool,
    ) -> Result<SandboxView, DaemonError> {
        self.core.jobs.check_new()?;
        let said: TransferDescription = serde_json::from_str(description)
            .map_err(|_| DaemonError::invalid(SANDBOX, "is not what a server of this version says of one"))?;
        let id = checked_id(&said.id)?;
        let owner = self.owner(&said.key)?;
        let is_asleep = said.is_asleep;
        let spec = self.spec_of(caller, &owner, snapshot, said).await?;
        let listener = CallerPresence::default();
        let (transfers, listens, by) = (Arc::clone(self), listener.is_there(), who(caller));
        let work = async move {
            let entry = transfers.creator.create_as(id, &spec).await?;
            if is_paused {
                let reason = PauseReason {
                    why: format!("as it was where it came from, by {by}"),
                    is_sleep: is_asleep,
                };
                let turn = entry.turn_soon().await?;
                let put_away = transfers
                    .changer
                    .pause(&entry, PauseMode::Filesystem, &reason, &turn)
                    .await;
                drop(turn);
                if let Err(error) = put_away {
                    let cause = EndCause::killed("it could not be paused as it was where it came from");
                    transfers.ender.end_unless_ending(&entry, cause).await;
                    return Err(error);
                }
            }
            if listens.load(Ordering::Acquire) {
                return entry.view().ok_or_else(|| DaemonError::not_found(entry.name()));
            }
            // Whoever brings it has not heard that it is here, and keeps the other one.
            transfers.ender.end_unclaimed(&entry);
            Err(DaemonError::not_found(entry.name()))
        };
        let taken = self.core.jobs.detached(work).await;
        drop(listener);
        taken
    }

    /// Who has the key with that hash here.
    fn owner(&self, hash: &str) -> Result<Caller, DaemonError> {
        let keys = self.core.registry.look_up(crate::registry::Registry::keys)?;
        let found = keys
            .into_iter()
            .find(|key| key.revoked_ms.is_none() && hexadecimal(&key.hash) == hash);
        let unknown = || DaemonError::invalid("key", "the key that the sandbox is of is not known here");
        let key = found.ok_or_else(unknown)?;
        Ok(Caller {
            key_id: key.id,
            scopes: key.scopes,
            quota: key.quota,
            tools: key.tools,
        })
    }

    async fn spec_of(
        &self,
        caller: &Caller,
        owner: &Caller,
        snapshot: &str,
        said: TransferDescription,
    ) -> Result<CreateSpec, DaemonError> {
        let (lifecycle, kept) = (
            said.lifecycle.clone(),
            KeptIdentity {
                access_token: said.access_token.clone(),
                traffic_token: said.traffic_token.clone(),
                by: who(caller),
            },
        );
        let mut request = request_of(snapshot, said, &self.config)?;
        let basis = self.sources.snapshots.begin_create(caller, &mut request).await?;
        let basis = basis.ok_or_else(|| DaemonError::UnknownSnapshot {
            name: snapshot.to_owned(),
        })?;
        let mut spec = CreateSpec::of(owner, request, &self.config)?;
        let template = &spec.request.template;
        spec.held = self.sources.origins.of_snapshot(owner, template, basis.build()).await?;
        spec.specification.build = spec.origin().build;
        basis.check(&spec.specification)?;
        spec.specification.lifecycle = lifecycle;
        spec.specification.snapshot = Some(basis.id);
        spec.snapshot = Some(basis.held);
        spec.volumes_mib = self.sources.volumes.size_of(owner).await?;
        spec.kept = Some(kept);
        Ok(spec)
    }

    /// Ends a paused sandbox that is elsewhere now, if it has changed so often and no more since it was described.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` for one that has changed since.
    pub(crate) async fn end(self: &Arc<Self>, caller: &Caller, id: &str, changes: i64) -> Result<(), DaemonError> {
        let entry = self.core.sandboxes.find(caller, id)?;
        let (transfers, by) = (Arc::clone(self), who(caller));
        let work = async move {
            let turn = entry.turn_soon().await?;
            let is_same = matches!(entry.state(), SandboxState::Paused | SandboxState::PutAway)
                && entry.row().generation == changes;
            if !is_same {
                return Err(DaemonError::conflict(entry.name(), "was used or changed meanwhile"));
            }
            let cause = EndCause::killed(format!("as {by} moved it to another machine"));
            transfers.ender.end(&entry, cause, turn).await;
            Ok(())
        };
        self.core.jobs.detached(work).await
    }
}

/// What is asked for, of all that was said.
fn request_of(
    snapshot: &str,
    mut said: TransferDescription,
    config: &DaemonConfig,
) -> Result<CreateRequest, DaemonError> {
    let invalid = |why: String| DaemonError::invalid(SANDBOX, why);
    if said.network.named_by_owner {
        return Err(invalid("has rules of another machine's owner".to_owned()));
    }
    let name = said.labels.remove(NAME_LABEL);
    let name: Option<SandboxName> = name
        .map(|name| name.parse())
        .transpose()
        .map_err(|error: offleash_core::id::SandboxNameError| invalid(error.to_string()))?;
    let left = said.left_ms.map_or(config.default_timeout, Duration::from_millis);
    let left = left.clamp(LEAST_LEFT, config.max_timeout);
    let limits = said.limits;
    Ok(CreateRequest {
        snapshot: Some(snapshot.to_owned()),
        timeout_seconds: Some(left.as_secs()),
        name,
        metadata: said.labels,
        env: said.env,
        secure: said.access_token.is_some(),
        on_timeout: said.on_timeout,
        auto_resume: said.auto_resume,
        lifecycle: LifecycleRequest::default(),
        network: said.network,
        limits: LimitsRequest {
            cpus: Some(limits.cpus),
            memory_mib: Some(limits.memory_mib),
            disk_mib: Some(limits.disk_mib),
            pids: Some(limits.pids),
        },
        tools: ToolsRequest {
            grants: Some(Vec::new()),
            answered: Vec::new(),
        },
        ..CreateRequest::default()
    })
}

/// An id as daemons make them: it becomes names of directories here.
fn checked_id(id: &str) -> Result<RunId, DaemonError> {
    let invalid = || DaemonError::invalid(SANDBOX, "has an id that no server gives");
    match random::is_sandbox_id(id) {
        true => id.parse().map_err(|_| invalid()),
        false => Err(invalid()),
    }
}

fn hexadecimal(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> TransferDescription {
        TransferDescription {
            id: format!("i{}", "0".repeat(19)),
            key: hexadecimal(&[0x0a; 32]),
            is_asleep: false,
            left_ms: Some(90_500),
            labels: [(NAME_LABEL, "mine"), ("a", "b")]
                .map(|(label, value)| (label.to_owned(), value.to_owned()))
                .into(),
            env: BTreeMap::new(),
            access_token: Some("token".to_owned()),
            traffic_token: None,
            on_timeout: OnTimeout::Pause,
            auto_resume: true,
            network: NetworkSettings::default(),
            limits: DaemonConfig::default().default_limits,
            level: None,
            lifecycle: Lifecycle::default(),
        }
    }

    #[test]
    fn what_is_said_of_a_sandbox_is_read_back_whole_or_not_at_all() {
        let text = serde_json::to_string(&said()).unwrap();
        assert_eq!(serde_json::from_str::<TransferDescription>(&text).unwrap(), said());
        let whole: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
        for name in ["id", "key", "labels", "network", "limits", "lifecycle", "is_asleep"] {
            let mut part = whole.clone();
            part.remove(name).unwrap();
            let part = serde_json::to_string(&part).unwrap();
            assert!(serde_json::from_str::<TransferDescription>(&part).is_err(), "{name}");
        }
        let more = text.replacen('{', "{\"root\": true, ", 1);
        assert!(serde_json::from_str::<TransferDescription>(&more).is_err());
    }

    #[test]
    fn a_request_is_made_of_what_was_said_within_what_may_be_asked_for_here() {
        let config = DaemonConfig::default();
        let request = request_of("s1", said(), &config).unwrap();
        assert_eq!(request.name.unwrap().as_str(), "mine");
        assert_eq!(request.metadata, BTreeMap::from([("a".to_owned(), "b".to_owned())]));
        assert_eq!((request.timeout_seconds, request.secure), (Some(90), true));
        let left = |left_ms| {
            let request = request_of("s1", TransferDescription { left_ms, ..said() }, &config);
            request.unwrap().timeout_seconds.unwrap()
        };
        assert_eq!(left(Some(3)), 1);
        assert_eq!(left(Some(u64::MAX)), config.max_timeout.as_secs());
        assert_eq!(left(None), config.default_timeout.as_secs());
        let owned = TransferDescription {
            network: NetworkSettings {
                named_by_owner: true,
                ..NetworkSettings::default()
            },
            ..said()
        };
        assert!(request_of("s1", owned, &config).is_err());
    }

    #[test]
    fn an_id_that_is_no_servers_own_is_refused() {
        assert!(checked_id(&said().id).is_ok());
        for wrong in [
            "",
            "i",
            "../../etc",
            "s0000000000000000000",
            "i00000000000000000/0",
            "I0000000000000000000",
        ] {
            assert!(checked_id(wrong).is_err(), "{wrong}");
        }
    }
}
