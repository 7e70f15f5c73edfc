//! What a caller asks to be made, with all that it comes to.

use std::time::Duration;

use offleash_core::id::SandboxName;
use offleash_core::level::Level;
use offleash_interpreter::language::Language;
use offleash_interpreter::state::SavedContext;
use offleash_store::HeldSnapshot;
use offleash_supervisor::clock::{after, own_ms};

use crate::caller::Caller;
use crate::config::DaemonConfig;
use crate::error::DaemonError;
use crate::history::{EventNote, who};
use crate::origin::{HeldOrigin, TemplateOrigin};
use crate::random;
use crate::registry::{EventKind, SandboxRow};
use crate::request::{BROWSER_LABEL, CreateRequest, DESKTOP_LABEL, NAME_LABEL, OnTimeout};
use crate::sandbox_tools::{SandboxTools, ToolsConfig};
use crate::sandboxes::SandboxClaim;
use crate::specification::{self, Specification};

/// Debuggers are the owner's to allow: more of the kernel can be reached where they may work.
pub(crate) fn check_ptrace(
    specification: &Specification,
    caller: &Caller,
    config: &DaemonConfig,
) -> Result<(), DaemonError> {
    match specification.allow_ptrace && !config.allow_ptrace && !caller.is_owner() {
        true => Err(DaemonError::NotAllowed {
            what: "sandboxes with debuggers",
            setting: "sandboxes.allow_ptrace = true",
        }),
        false => Ok(()),
    }
}

/// A level below that of the server is the owner's to ask for.
fn check_level(specification: &Specification, caller: &Caller, config: &DaemonConfig) -> Result<(), DaemonError> {
    let usual = config.level.unwrap_or(Level::Process);
    match specification.asked_level.is_some_and(|asked| asked < usual) && !caller.is_owner() {
        true => Err(DaemonError::NotAllowed {
            what: "sandboxes of a weaker level than the server's",
            setting: "sandboxes.level = \"auto\"",
        }),
        false => Ok(()),
    }
}

/// What a sandbox keeps that was another machine's.
#[derive(Debug)]
pub(crate) struct KeptIdentity {
    pub(crate) access_token: Option<String>,
    pub(crate) traffic_token: Option<String>,
    /// By whom it was brought here.
    pub(crate) by: String,
}

/// A create, checked and settled.
#[derive(Debug)]
pub(crate) struct CreateSpec {
    pub(crate) caller: Caller,
    pub(crate) request: CreateRequest,
    pub(crate) specification: Specification,
    pub(crate) timeout: Duration,
    /// What it is of.
    pub(crate) held: HeldOrigin,
    /// The snapshot that it is of.
    pub(crate) snapshot: Option<HeldSnapshot>,
    /// Contexts of code that are in that.
    pub(crate) saved: Vec<SavedContext>,
    /// What the caller's volumes count beside it, MiB of disk.
    pub(crate) volumes_mib: u64,
    /// What it has already, where it comes from another machine.
    pub(crate) kept: Option<KeptIdentity>,
}

impl CreateSpec {
    pub(crate) fn of(caller: &Caller, mut request: CreateRequest, config: &DaemonConfig) -> Result<Self, DaemonError> {
        if request.metadata.contains_key(NAME_LABEL) {
            let why = format!("label `{NAME_LABEL}` is what `name` sets, which is one sandbox's alone");
            return Err(DaemonError::invalid("metadata", why));
        }
        if let Some(name) = &request.name {
            request.metadata.insert(NAME_LABEL.to_owned(), name.as_str().to_owned());
        }
        if request.metadata.contains_key(BROWSER_LABEL) {
            let why = format!("label `{BROWSER_LABEL}` is what sessions of browsers are known by");
            return Err(DaemonError::invalid("metadata", why));
        }
        if let Some(session) = &request.browser {
            request.metadata.insert(BROWSER_LABEL.to_owned(), session.clone());
        }
        if request.metadata.contains_key(DESKTOP_LABEL) {
            let why = format!("label `{DESKTOP_LABEL}` is what desktops are known by");
            return Err(DaemonError::invalid("metadata", why));
        }
        if let Some(desktop) = &request.desktop {
            request.metadata.insert(DESKTOP_LABEL.to_owned(), desktop.clone());
        }
        request.network.named_by_owner = caller.is_owner();
        let specification = Specification::of(&request, config)?;
        check_ptrace(&specification, caller, config)?;
        check_level(&specification, caller, config)?;
        let timeout = specification::timeout(request.timeout_seconds, config)?;
        Ok(Self {
            caller: caller.clone(),
            request,
            specification,
            timeout,
            held: HeldOrigin::Base,
            snapshot: None,
            saved: Vec::new(),
            volumes_mib: 0,
            kept: None,
        })
    }

    /// What it is of.
    pub(crate) fn origin(&self) -> TemplateOrigin {
        self.held.origin()
    }

    /// Takes over what its template says of its limits, where the caller says nothing.
    ///
    /// # Errors
    /// `Invalid` when that is more than may be asked for now.
    pub(crate) fn take_limits_of_template(&mut self, config: &DaemonConfig) -> Result<(), DaemonError> {
        let Some(template) = self.held.template() else {
            return Ok(());
        };
        let of_template = template.record().limits;
        let asked = &mut self.request.limits;
        asked.cpus = asked.cpus.or(of_template.cpus);
        asked.memory_mib = asked.memory_mib.or(of_template.memory_mib);
        self.specification.limits = specification::limits(asked, config)?;
        Ok(())
    }

    /// Settles which tools it has, once it is known of what it is.
    ///
    /// # Errors
    /// `Invalid`, `ToolsNotGranted`.
    pub(crate) fn settle_tools(&mut self, config: &ToolsConfig) -> Result<(), DaemonError> {
        let (request, template) = (&self.request, self.origin().template);
        self.specification.tools =
            SandboxTools::of(&request.tools, &request.metadata, &self.caller, &template, config)?;
        Ok(())
    }

    /// Whether it asks for nothing that members of the warm pool have not.
    pub(crate) fn is_usual(&self, config: &DaemonConfig) -> bool {
        self.specification.limits == config.default_limits
            && self.is_plain(config)
            && !(self.is_late() && self.has_context(config))
    }

    /// Whether it asks for nothing, but for its limits, that sandboxes that were made ahead have not.
    pub(crate) fn is_plain(&self, config: &DaemonConfig) -> bool {
        self.held.can_wait()
            && self.specification.snapshot.is_none()
            && !self.specification.allow_ptrace
            && self
                .specification
                .asked_level
                .is_none_or(|asked| asked == config.level.unwrap_or(Level::Process))
            && self.specification.volumes.is_empty()
            && self.specification.tools.is_empty()
    }

    /// Whether it has variables that an interpreter would have had to be started with.
    fn is_late(&self) -> bool {
        let mut names = self.request.env.keys();
        names.any(|name| Language::is_read_by_python_at_start(name))
    }

    /// Whether sandboxes like it are to have a context that is ready.
    fn has_context(&self, config: &DaemonConfig) -> bool {
        let recipe = self.held.template().map(|template| &template.record().recipe);
        config.pool.ready_imports(&self.origin().template, recipe).is_some()
    }

    /// Whether it is worth having a copy of a zygote before anybody asks: a fork brings its own contexts.
    pub(crate) fn wants_copy(&self, config: &DaemonConfig) -> bool {
        self.specification.fork_of.is_none()
            && self.specification.snapshot.is_none()
            && self.specification.tools.is_empty()
            && !self.is_late()
            && self.has_context(config)
    }

    /// What it counts against.
    pub(crate) fn claim<'a>(&'a self, config: &'a DaemonConfig) -> SandboxClaim<'a> {
        SandboxClaim {
            owner: &self.caller.key_id,
            quota: &self.caller.quota,
            limits: &self.specification.limits,
            max: config.max_sandboxes,
            volumes_mib: self.volumes_mib,
            idempotency_key: self.request.idempotency_key.as_deref(),
            name: self.request.name.as_ref().map(SandboxName::as_str),
        }
    }

    /// What is told of a sandbox that was made for it.
    pub(crate) fn created(&self, made: &Specification) -> EventNote {
        let (by, template, level) = (who(&self.caller), &self.request.template, &made.level);
        if let Some(kept) = &self.kept {
            let line = format!("moved here by {}, isolated by `{level}`", kept.by);
            return EventNote::new(EventKind::Created, line);
        }
        let line = match &self.specification.fork_of {
            None => match (&self.specification.snapshot, &self.held) {
                (Some(snapshot), _) => format!("created by {by} from snapshot `{snapshot}`, isolated by `{level}`"),
                (None, HeldOrigin::Image(image)) => {
                    let (name, digest) = (image.shown(), &image.digest);
                    format!("created by {by} from image `{name}` ({digest}), isolated by `{level}`")
                }
                _ => format!("created by {by} from template `{template}`, isolated by `{level}`"),
            },
            Some(source) => format!("forked by {by} from sandbox `{source}`, isolated by `{level}`"),
        };
        EventNote::new(EventKind::Created, line)
    }

    /// What of it goes into the row of a sandbox.
    pub(crate) fn fill(&self, row: &mut SandboxRow) -> Result<(), DaemonError> {
        let request = &self.request;
        let closed = request.network.allow_public_traffic == Some(false);
        row.key_id = Some(self.caller.key_id.clone());
        row.metadata.clone_from(&request.metadata);
        row.started_ms = own_ms();
        row.end_ms = after(row.started_ms, self.timeout);
        row.auto_pause = request.on_timeout == OnTimeout::Pause;
        row.auto_resume = request.auto_resume;
        row.access_token = request.secure.then(random::token).transpose()?;
        row.traffic_token = closed.then(random::token).transpose()?;
        row.idempotency_key.clone_from(&request.idempotency_key);
        if let Some(kept) = &self.kept {
            row.access_token.clone_from(&kept.access_token);
            row.traffic_token.clone_from(&kept.traffic_token);
        }
        Ok(())
    }
}
