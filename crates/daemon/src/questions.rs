//! Questions that the daemon itself asks: before a command is started, and before a sandbox is put back to a checkpoint.
//!
//! What waits is a request. If its client leaves, or the daemon ends, the question is gone, and what it was about was not done. A command is
//! known by its words alone ([`CommandTrigger`]): what programs start by themselves is not seen.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use offleash_core::approval::{ApprovalAnswer, ApprovalSubject};
use offleash_core::command_trigger::CommandTrigger;
use offleash_core::log_level::LogLevel;
use offleash_core::text::Text;
use offleash_store::{AuditEvent, AuditLog, StateDirectory};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::tools::OpenApproval;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::config::DaemonConfig;
use crate::error::DaemonError;
use crate::jobs::blocking;
use crate::registry_handle::RegistryHandle;
use crate::sandboxes::SandboxEntry;

/// Questions of one sandbox that wait at once.
const MAX_OPEN: usize = 16;
/// What the rule about restores is called.
const BEFORE_RESTORE: &str = "ask_before_restore";
/// A longer command nobody can look at, bytes.
const MAX_COMMAND: usize = 64 * 1024;
/// How much of a command its error says, bytes.
const MAX_SAID: usize = 200;
/// Rules that were allowed for a sandbox, of all sandboxes; who loses one is asked again.
const MAX_ALLOWED: usize = 10_000;

/// What the daemon asks, and what waits for an answer.
#[derive(Debug)]
pub(crate) struct DaemonQuestions {
    state: StateDirectory,
    time: Duration,
    /// The owner's rules, which hold in every sandbox.
    before: Vec<CommandTrigger>,
    before_restore: bool,
    waiting: std::sync::Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    latest: u64,
    open: BTreeMap<u64, Open>,
    /// Sandboxes and rules about which nobody is asked again.
    allowed: HashSet<(String, String)>,
}

#[derive(Debug)]
struct Open {
    sandbox: String,
    about: ApprovalSubject,
    rule: AskingRule,
    until: Instant,
    answer: oneshot::Sender<ApprovalAnswer>,
}

/// Why somebody is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AskingRule {
    text: String,
    /// Whether it is the owner's: then who made the sandbox does not answer.
    is_owners: bool,
}

/// Takes a question back when nobody waits for its answer any more.
struct Withdrawn<'a> {
    questions: &'a DaemonQuestions,
    id: u64,
}

impl Drop for Withdrawn<'_> {
    fn drop(&mut self) {
        self.questions.with(|waiting| waiting.open.remove(&self.id));
    }
}

impl DaemonQuestions {
    pub(crate) fn new(state: StateDirectory, config: &DaemonConfig) -> Self {
        Self {
            state,
            time: config.tools.ask_timeout,
            before: config.lifecycle.ask_before.clone(),
            before_restore: config.lifecycle.ask_before_restore,
            waiting: std::sync::Mutex::default(),
        }
    }

    /// Asks before a command with these words is started in a sandbox, if a rule says so.
    ///
    /// # Errors
    /// `NotAllowed`.
    pub(crate) async fn before_command(
        &self,
        entry: &SandboxEntry,
        registry: Option<&Arc<RegistryHandle>>,
        argv: &[Vec<u8>],
    ) -> Result<(), SupervisorError> {
        let rules = self.rules_of_command(entry, argv);
        if rules.is_empty() {
            return Ok(());
        }
        let about = ApprovalSubject::Command {
            argv: argv.iter().map(|word| Text(word.clone())).collect(),
        };
        let not_allowed = |why: String| {
            let argv: Vec<String> = argv.iter().map(|word| Text(word.clone()).to_string()).collect();
            let mut command = argv.join(" ");
            command.truncate(command.floor_char_boundary(MAX_SAID));
            SupervisorError::NotAllowed { command, why }
        };
        if argv.iter().map(Vec::len).sum::<usize>() > MAX_COMMAND {
            let why = format!("somebody has to be asked, and it is longer than the {MAX_COMMAND} bytes that are shown");
            return Err(not_allowed(why));
        }
        for rule in rules {
            let answer = self.ask(entry, registry, about.clone(), rule).await;
            if !answer.allows() {
                return Err(not_allowed(answer.to_string()));
            }
        }
        Ok(())
    }

    /// Asks before a sandbox is put back to a checkpoint, if a rule says so.
    ///
    /// # Errors
    /// `ApprovalDenied`.
    pub(crate) async fn before_restore(
        &self,
        entry: &SandboxEntry,
        registry: &Arc<RegistryHandle>,
        checkpoint: &str,
    ) -> Result<(), DaemonError> {
        let is_owners = self.before_restore;
        let is_asked = is_owners || entry.specification().lifecycle.ask_before_restore;
        if !is_asked || self.is_allowed(entry, BEFORE_RESTORE) {
            return Ok(());
        }
        let rule = AskingRule {
            text: BEFORE_RESTORE.to_owned(),
            is_owners,
        };
        let about = ApprovalSubject::Restore {
            checkpoint: checkpoint.to_owned(),
        };
        match self.ask(entry, Some(registry), about, rule).await {
            answer if answer.allows() => Ok(()),
            answer => Err(DaemonError::ApprovalDenied {
                what: format!("sandbox `{}` was not put back", entry.name()),
                why: answer.to_string(),
            }),
        }
    }

    /// The first rule of the owner's that is about the command, and the first one of who made the sandbox: neither answers for the
    /// other. One that was allowed in this sandbox hides no other: a line has many commands.
    fn rules_of_command(&self, entry: &SandboxEntry, argv: &[Vec<u8>]) -> Vec<AskingRule> {
        let find = |triggers: &[CommandTrigger], is_owners| {
            let meant = triggers.iter().filter(|trigger| trigger.matches(argv));
            let mut rules = meant.map(|trigger| format!("ask_before: {trigger}"));
            let text = rules.find(|text| !self.is_allowed(entry, text))?;
            Some(AskingRule { text, is_owners })
        };
        let owners = find(&self.before, true);
        let makers = find(&entry.specification().lifecycle.ask_before, false);
        // The same words twice are one question, which is the owner's.
        let makers = makers.filter(|rule| owners.as_ref().is_none_or(|owners| owners.text != rule.text));
        owners.into_iter().chain(makers).collect()
    }

    /// Whether nobody is asked again in this sandbox what the rule asks.
    fn is_allowed(&self, entry: &SandboxEntry, rule: &str) -> bool {
        let allowed = (entry.name().to_owned(), rule.to_owned());
        self.with(|waiting| waiting.allowed.contains(&allowed))
    }

    async fn ask(
        &self,
        entry: &SandboxEntry,
        registry: Option<&Arc<RegistryHandle>>,
        about: ApprovalSubject,
        rule: AskingRule,
    ) -> ApprovalAnswer {
        let answer = match self.open(entry.name(), about.clone(), rule.clone()) {
            None => ApprovalAnswer::TooMany,
            Some((id, answered)) => {
                let _withdrawn = Withdrawn { questions: self, id };
                if let Some(registry) = registry {
                    let line = format!("somebody is asked about {}", about.on_record());
                    registry.log(entry.name(), LogLevel::Info, line);
                }
                match timeout(self.time, answered).await {
                    Ok(Ok(answer)) => answer,
                    Ok(Err(_)) | Err(_) => ApprovalAnswer::Timeout,
                }
            }
        };
        if answer == ApprovalAnswer::Run {
            self.with(|waiting| {
                if waiting.allowed.len() < MAX_ALLOWED {
                    waiting.allowed.insert((entry.name().to_owned(), rule.text.clone()));
                }
            });
        }
        self.note(entry, registry, &about, &rule, answer).await;
        answer
    }

    fn open(
        &self,
        sandbox: &str,
        about: ApprovalSubject,
        rule: AskingRule,
    ) -> Option<(u64, oneshot::Receiver<ApprovalAnswer>)> {
        let (answer, answered) = oneshot::channel();
        self.with(|waiting| {
            if waiting.open.values().filter(|open| open.sandbox == sandbox).count() >= MAX_OPEN {
                return None;
            }
            waiting.latest += 1;
            let open = Open {
                sandbox: sandbox.to_owned(),
                about,
                rule,
                until: Instant::now() + self.time,
                answer,
            };
            waiting.open.insert(waiting.latest, open);
            Some((waiting.latest, answered))
        })
    }

    /// Puts it in the audit log and in that of the sandbox. One that cannot be written changes nothing of the answer.
    async fn note(
        &self,
        entry: &SandboxEntry,
        registry: Option<&Arc<RegistryHandle>>,
        about: &ApprovalSubject,
        rule: &AskingRule,
        answer: ApprovalAnswer,
    ) {
        let about = about.on_record();
        if let Some(registry) = registry {
            registry.log(entry.name(), LogLevel::Info, format!("{about}: {answer}"));
        }
        let event = AuditEvent {
            event: "approval_decided".to_owned(),
            run: Some(entry.id().clone()),
            data: json!({ "about": about, "rule": rule.text, "answer": answer }),
        };
        let log = AuditLog::new(&self.state);
        let _logged = blocking("write to the audit log", move || log.append(&event)).await;
    }

    /// What waits of one sandbox, the oldest first; whether each is to be answered by the owner's keys alone.
    pub(crate) fn of_sandbox(&self, sandbox: &str) -> Vec<(OpenApproval, bool)> {
        let now = Instant::now();
        let open = |(id, open): (&u64, &Open)| {
            let left = open.until.saturating_duration_since(now);
            let shown = OpenApproval {
                id: *id,
                about: open.about.clone(),
                rule: Some(open.rule.text.clone()),
                left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            };
            (open.sandbox == sandbox).then_some((shown, open.rule.is_owners))
        };
        self.with(|waiting| waiting.open.iter().filter_map(open).collect())
    }

    /// Whether the owner's keys alone may answer a question of this sandbox; `None` where it is not open.
    pub(crate) fn is_owners(&self, sandbox: &str, id: u64) -> Option<bool> {
        self.with(|waiting| {
            let open = waiting.open.get(&id).filter(|open| open.sandbox == sandbox)?;
            Some(open.rule.is_owners)
        })
    }

    /// Answers a question of this sandbox; whether it was open.
    pub(crate) fn decide(&self, sandbox: &str, id: u64, answer: ApprovalAnswer) -> bool {
        let taken = self.with(|waiting| match waiting.open.get(&id) {
            Some(open) if open.sandbox == sandbox => waiting.open.remove(&id),
            _ => None,
        });
        taken.is_some_and(|open| open.answer.send(answer).is_ok())
    }

    /// Forgets what was allowed for a sandbox that has ended, and what is asked about it: whoever waits for an answer waits no more.
    pub(crate) fn forget(&self, sandbox: &str) {
        self.with(|waiting| {
            waiting.allowed.retain(|(of, _)| of != sandbox);
            waiting.open.retain(|_, open| open.sandbox != sandbox);
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut Waiting) -> T) -> T {
        work(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
