//! Which languages there are, in the base and in the templates that the owner names: each is asked, and what it said is kept for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use offleash_daemon::{BASE_TEMPLATE, Caller, CreateRequest, Daemon, NetworkSettings, SandboxView};
use offleash_supervisor::service::client::SupervisorClient;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::StartExec;

use super::LanguageRuntime;
use super::table::LANGUAGES;
use super::version::{RuntimeVersion, VersionSelector};
use crate::commands::{self, CommandFailure, OutputBounds};
use crate::http::failure;
use crate::journal::Journal;

/// How long an answer is believed: what the machine has changes.
const BELIEVED: Duration = Duration::from_secs(300);
/// How long the sandbox in which languages are asked may live, in seconds; and how long asking may take.
const ASKING_SECONDS: u64 = 120;
const ASKING_MS: u64 = 60_000;
/// What all of them may say.
const MAX_SAID: usize = 64 * 1024;

/// What is known.
#[derive(Debug)]
pub(crate) struct RuntimeCatalog {
    /// The templates that are asked beside the base.
    templates: Vec<String>,
    known: Mutex<BTreeMap<String, KnownRuntimes>>,
    /// One sandbox is asked at a time; who comes meanwhile has its answer.
    asking: tokio::sync::Mutex<()>,
}

/// What one template said.
#[derive(Debug, Clone)]
struct KnownRuntimes {
    at: Instant,
    runtimes: Arc<Vec<LanguageRuntime>>,
}

/// Where languages are asked for.
#[derive(Clone, Copy)]
pub(crate) struct CatalogReader<'a> {
    pub(crate) daemon: &'a Daemon,
    /// Where it is told that a template could not be asked.
    pub(crate) journal: &'a dyn Journal,
}

impl RuntimeCatalog {
    pub(crate) fn new(templates: Vec<String>) -> Self {
        Self {
            templates,
            known: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// Every language of every place, the base's first.
    ///
    /// A template that cannot be asked has none, and the owner is told.
    ///
    /// # Errors
    /// When the base cannot be asked: whatever the daemon refuses the caller.
    pub(crate) async fn all(&self, reader: CatalogReader<'_>) -> Result<Vec<LanguageRuntime>, CommandFailure> {
        let mut all = self.of(reader, BASE_TEMPLATE).await?.to_vec();
        for template in &self.templates {
            match self.of(reader, template).await {
                Ok(runtimes) => all.extend(runtimes.iter().cloned()),
                Err(cause) => {
                    let told = format!("the languages of template `{}` are not known", template.escape_debug());
                    failure::record(reader.journal, &told, &cause);
                }
            }
        }
        Ok(all)
    }

    /// The newest of a language whose version is meant; `None` where there is none.
    ///
    /// # Errors
    /// As [`Self::all`].
    pub(crate) async fn find(
        &self,
        reader: CatalogReader<'_>,
        language: &str,
        version: &VersionSelector,
    ) -> Result<Option<LanguageRuntime>, CommandFailure> {
        let all = self.all(reader).await?.into_iter();
        // Of two that are the same, the first is that of the base.
        let meant = all.filter(|runtime| runtime.language.goes_by(language) && version.matches(runtime.version));
        Ok(meant.reduce(|best, other| if other.version > best.version { other } else { best }))
    }

    async fn of(&self, reader: CatalogReader<'_>, template: &str) -> Result<Arc<Vec<LanguageRuntime>>, CommandFailure> {
        if let Some(known) = self.known(template) {
            return Ok(known);
        }
        let _turn = self.asking.lock().await;
        if let Some(known) = self.known(template) {
            return Ok(known);
        }
        let runtimes = Arc::new(ask(reader, template).await?);
        let known = KnownRuntimes {
            at: Instant::now(),
            runtimes: Arc::clone(&runtimes),
        };
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(template.to_owned(), known);
        Ok(runtimes)
    }

    fn known(&self, template: &str) -> Option<Arc<Vec<LanguageRuntime>>> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(template).filter(|known| known.at.elapsed() < BELIEVED)?;
        Some(Arc::clone(&known.runtimes))
    }
}

/// Asks every language for its version, in a sandbox that is nobody's but the owner's: what it says is believed for all keys.
async fn ask(reader: CatalogReader<'_>, template: &str) -> Result<Vec<LanguageRuntime>, CommandFailure> {
    let request = CreateRequest {
        template: template.to_owned(),
        timeout_seconds: Some(ASKING_SECONDS),
        network: no_network(),
        ..CreateRequest::default()
    };
    let exec = StartExec {
        argv: ["/bin/sh", "-c", &questions()]
            .map(|word| word.as_bytes().to_vec())
            .to_vec(),
        timeout_ms: Some(ASKING_MS),
        ..StartExec::default()
    };
    let bounds = OutputBounds {
        of_stream: MAX_SAID,
        ..OutputBounds::default()
    };
    let work = |_: SandboxView, supervisor: SupervisorClient| async move {
        commands::executed(&supervisor, exec, None, bounds).await
    };
    let (_, outcome) = commands::in_new_sandbox(reader.daemon, &Caller::local(), request, false, work).await?;
    // One that was ended before it had said all may have had more.
    match outcome.exit_code {
        Some(0) => Ok(answers(&outcome.stdout, template)),
        _ => Err(CommandFailure::Supervisor(SupervisorError::Gone)),
    }
}

/// What a sandbox has that reaches nothing.
pub(super) fn no_network() -> NetworkSettings {
    NetworkSettings {
        internet: Some(false),
        ..NetworkSettings::default()
    }
}

/// A script that writes a line for each language: its number, and what it says.
fn questions() -> String {
    let question = |(number, language): (usize, &super::LanguageEntry)| {
        let program = language.probe.split_whitespace().next().unwrap_or_default();
        let probe = language.probe;
        format!(
            "command -v {program} >/dev/null 2>&1 && said=$({{ {probe}; }} 2>/dev/null </dev/null) && printf '%s %s\\n' {number} \
             \"$(printf '%s' \"$said\" | head -n 1)\"\n"
        )
    };
    let all: String = LANGUAGES.iter().enumerate().map(question).collect();
    all + "true\n"
}

/// What came of it; lines that nobody asked for are passed over.
fn answers(said: &[u8], template: &str) -> Vec<LanguageRuntime> {
    let said = String::from_utf8_lossy(said);
    let mut found: Vec<LanguageRuntime> = Vec::new();
    for line in said.lines() {
        let Some((number, version)) = line.split_once(' ') else {
            continue;
        };
        let language = number.parse().ok().and_then(|number: usize| LANGUAGES.get(number));
        let version = RuntimeVersion::found_in(version);
        if let (Some(language), Some(version)) = (language, version)
            && found.iter().all(|known| known.language != language)
        {
            let template = template.to_owned();
            found.push(LanguageRuntime {
                language,
                version,
                template,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_languages_say_is_read_and_nothing_else() {
        let said = b"0 3.11.7\n0 9.9.9\n1 v20.1.2\n999 1.2\nx 1.2\n3\n5 \n\xff\xfe\n4 12.2.0\n";
        let found = answers(said, "base");
        let told: Vec<_> = found
            .iter()
            .map(|runtime| (runtime.language.name, runtime.version.to_string()))
            .collect();
        let expected = [("python", "3.11.7"), ("javascript", "20.1.2"), ("c", "12.2.0")];
        assert_eq!(told, expected.map(|(name, version)| (name, version.to_owned())));
    }
}
