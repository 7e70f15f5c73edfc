//! The log of a server: JSON lines on standard error.

use std::error::Error;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use offleash_api::{Event, Journal, RequestEvent};
use offleash_core::level::DegradeMode;
use offleash_isolation::probe::{FeatureCheck, FeatureStatus};
use serde_json::{Value, json};

use super::builds::BuildBar;
use crate::args::LogArg;
use crate::failure::Failure;
use crate::terminal;

/// How often it is said that there are too many clients.
const FULL_EVERY: Duration = Duration::from_secs(1);
/// The longest path that is written.
const MAX_PATH: usize = 512;

/// Writes what happens as JSON lines.
#[derive(Debug)]
pub(super) struct JsonLines {
    what: LogArg,
    full: Mutex<Option<Instant>>,
    /// That of the build that goes on.
    pub(super) bar: BuildBar,
}

impl JsonLines {
    pub(super) fn new(what: LogArg) -> Self {
        Self {
            what,
            full: Mutex::default(),
            bar: BuildBar::default(),
        }
    }

    /// Says what is not enforced here, unless `groups` are to be had, and what comes of it.
    pub(super) fn limits(&self, groups: &FeatureCheck, degrade: DegradeMode) {
        if self.what != LogArg::None
            && let Some(line) = about_limits(groups, degrade)
        {
            self.write(line);
        }
    }

    /// Says that no sandbox can be made, unless `namespaces` can.
    pub(super) fn namespaces(&self, namespaces: &FeatureCheck) {
        if self.what != LogArg::None
            && let Some(line) = about_namespaces(namespaces)
        {
            self.write(line);
        }
    }

    /// Says what is wrong with the configuration without keeping the server from anything.
    pub(super) fn warning(&self, warning: Failure) {
        if self.what != LogArg::None {
            let (told, hint) = warning.into_words();
            self.write(json!({ "level": "warn", "event": "configuration", "told": told, "hint": hint }));
        }
    }

    /// Writes a line about something that failed.
    pub(super) fn trouble(&self, line: &Value) {
        if self.what != LogArg::None {
            self.write(line.clone());
        }
    }

    /// Says what becomes of the server itself.
    pub(super) fn server(&self, told: &str) {
        if self.what != LogArg::None {
            self.write(json!({ "level": "info", "event": "server", "told": told }));
        }
    }

    /// Writes a line with the time, beside the bar of a build if there is one.
    pub(super) fn write(&self, mut line: Value) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        line["at_ms"] = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).into();
        // What others put into a path can neither end the line nor drive a terminal.
        if let Ok(line) = terminal::json_line(&line) {
            self.bar.aside(|| terminal::complain_at_length(&line));
        }
    }

    /// Whether it is to be said once more that there are too many.
    fn says_full(&self) -> bool {
        let Ok(mut last) = self.full.lock() else {
            return false;
        };
        let due = last.is_none_or(|last| last.elapsed() >= FULL_EVERY);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

impl Journal for JsonLines {
    fn record(&self, event: &Event<'_>) {
        let line = match (self.what, event) {
            (LogArg::None, _) | (LogArg::Errors, Event::Request(_)) => return,
            (LogArg::Requests, Event::Request(request)) => described(request),
            (_, Event::Failure { told, cause }) => {
                json!({ "level": "error", "event": "failure", "told": told, "causes": causes(*cause) })
            }
            (_, Event::Accept { error }) => {
                json!({ "level": "error", "event": "accept", "causes": [error.to_string()] })
            }
            (_, Event::Full { most, address }) => {
                if !self.says_full() {
                    return;
                }
                json!({ "level": "warn", "event": "full", "most": most, "address": address })
            }
        };
        self.write(line);
    }
}

fn about_namespaces(namespaces: &FeatureCheck) -> Option<Value> {
    let mend = namespaces.mend.as_ref();
    (namespaces.status != FeatureStatus::Ok).then(|| {
        json!({
            "level": "warn",
            "event": "not_made",
            "lacks": namespaces.needed_for,
            "found": namespaces.found,
            "effect": "no sandbox of level `process` or above can be made",
            "setting": "sandboxes.level",
            "hint": mend.map(|mend| mend.explanation.as_str()),
            "commands": mend.map(|mend| mend.commands.as_slice()).unwrap_or_default(),
        })
    })
}

fn about_limits(groups: &FeatureCheck, degrade: DegradeMode) -> Option<Value> {
    if groups.status == FeatureStatus::Ok {
        return None;
    }
    let effect = match degrade {
        DegradeMode::Allow => "sandboxes are made all the same, held by what stands in; each lists what nothing holds",
        DegradeMode::Refuse => {
            "sandboxes are made, held by what stands in; those of which nothing holds something are refused"
        }
    };
    let mend = groups.mend.as_ref();
    // The mend is for a run; it does the same for a server.
    let commands = mend.map(|mend| {
        mend.commands
            .iter()
            .map(|command| command.replace(" run …", " serve …"))
    });
    Some(json!({
        "level": "warn",
        "event": "not_enforced",
        "lacks": groups.needed_for,
        "found": groups.found,
        "effect": effect,
        "setting": "sandboxes.degrade",
        "hint": mend.map(|mend| mend.explanation.as_str()),
        "commands": commands.map(Vec::from_iter).unwrap_or_default(),
    }))
}

fn described(request: &RequestEvent<'_>) -> Value {
    let end = request.path.floor_char_boundary(MAX_PATH);
    json!({
        "level": "info",
        "event": "request",
        "peer": request.peer.map(|peer| peer.to_string()),
        "key": request.key,
        "sandbox": request.sandbox,
        "port": request.port,
        "method": request.method,
        "path": &request.path[..end],
        "status": request.status,
        "took_us": u64::try_from(request.took.as_micros()).unwrap_or(u64::MAX),
    })
}

/// What `error` says, and what is behind it.
fn causes(error: &dyn Error) -> Vec<String> {
    let mut causes = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes
}

#[cfg(test)]
mod tests {
    use offleash_isolation::probe::{FeatureRemedy, groups};

    use super::*;

    #[test]
    fn a_machine_that_can_make_no_sandbox_is_told_of() {
        let check = |status| FeatureCheck {
            status,
            found: "making the namespaces of a sandbox failed".to_owned(),
            mend: Some(FeatureRemedy {
                explanation: "allow them".to_owned(),
                commands: vec!["sudo sysctl --system".to_owned()],
            }),
            ..groups()
        };
        assert_eq!(about_namespaces(&check(FeatureStatus::Ok)), None);
        let line = about_namespaces(&check(FeatureStatus::Missing)).unwrap();
        assert_eq!(line["level"], "warn");
        assert!(line["effect"].as_str().unwrap().contains("no sandbox"), "{line}");
        assert_eq!(line["commands"][0], "sudo sysctl --system");
    }

    #[test]
    fn what_cannot_be_enforced_is_named_with_what_comes_of_it() {
        let missing = FeatureCheck {
            status: FeatureStatus::Limited,
            found: "version 2; not memory: it is not delegated".to_owned(),
            mend: Some(FeatureRemedy {
                explanation: "delegate it".to_owned(),
                commands: vec!["systemd-run --scope offleash run …".to_owned()],
            }),
            ..groups()
        };
        let line = about_limits(&missing, DegradeMode::Allow).unwrap();
        assert_eq!(line["level"], "warn");
        assert!(line["found"].as_str().unwrap().contains("not memory"), "{line}");
        assert!(line["effect"].as_str().unwrap().contains("made all the same"), "{line}");
        assert_eq!(line["commands"][0], "systemd-run --scope offleash serve …");
        let line = about_limits(&missing, DegradeMode::Refuse).unwrap();
        assert!(line["effect"].as_str().unwrap().contains("refused"), "{line}");
        let whole = FeatureCheck {
            status: FeatureStatus::Ok,
            ..missing
        };
        assert_eq!(about_limits(&whole, DegradeMode::Allow), None);
    }
}
