//! One step of a build: a run in a sandbox, whose last lines are told if it fails.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use offleash_core::build::secrets::StepSecrets;
use offleash_core::limits::LimitName;
use offleash_core::network::{DomainName, Host, classify};
use offleash_core::record::{ConnectionRecord, ConnectionVerdict, NetworkUse, Outcome};
use offleash_core::spec::{IdChoice, SandboxSpec};
use offleash_core::text::Text;
use offleash_core::units::Bytes;
use offleash_sys::signals::SignalQueue;

use super::build::{Progress, USUAL_DISK};
use super::error::TemplateError;
use super::lines::LinesIo;
use crate::lifecycle::{self, RunRequest};

/// How many of the places that a step may not reach are named before the rest is only counted.
const NAMED: usize = 5;

/// What the sandboxes of a build have in common.
pub(crate) struct StepSandbox<'a> {
    pub(crate) spec: SandboxSpec,
    pub(crate) state: &'a Path,
}

/// A command of a step.
pub(crate) struct StepCommand<'a> {
    /// What it is called in messages.
    pub(crate) title: &'a str,
    pub(crate) argv: Vec<OsString>,
    /// Where it starts; where its root says if absent.
    pub(crate) cwd: Option<&'a str>,
    /// Who runs it; the usual user if absent.
    pub(crate) user: Option<&'a str>,
    /// Those of its variables of which no line has the value.
    pub(crate) secrets: &'a StepSecrets,
    /// What an exit code means that is no failure of the command's own.
    pub(crate) meaning: &'a dyn Fn(u8) -> Option<TemplateError>,
}

impl StepSandbox<'_> {
    /// How many ids the sandboxes have.
    pub(crate) fn ids(&self) -> Result<IdChoice, TemplateError> {
        let found = lifecycle::ids_of_own_root(&self.spec);
        found.map_err(|source| TemplateError::Sandbox {
            step: "the first step".to_owned(),
            source: Box::new(source),
        })
    }

    pub(crate) fn run(
        &self,
        step: StepCommand<'_>,
        signals: &SignalQueue,
        progress: &mut dyn Progress,
    ) -> Result<(), TemplateError> {
        let request = RunRequest {
            spec: self.spec.clone(),
            command: step.argv.clone(),
            purpose: Some("template build"),
            cwd: step.cwd.map(Into::into),
            user: step.user.map(str::to_owned),
            tty: None,
            capture: 0,
            state: Some(self.state.to_owned()),
            started: Instant::now(),
        };
        let mut door = LinesIo::hiding(signals, progress, step.secrets);
        let ran = lifecycle::run(&request, &mut door);
        let seen = door.finish();
        let failed = |source| TemplateError::Sandbox {
            step: step.title.to_owned(),
            source: Box::new(source),
        };
        let report = ran.map_err(failed)?;
        let network = report.record.network.as_ref();
        let led_inside = network.map(|network| led_inside(network, &self.spec.network.policy.inward));
        led_inside.into_iter().flatten().for_each(|told| progress.note(&told));
        if let Some(failure) = report.failure {
            return Err(failed(failure));
        }
        match self.judge(&step, &report.record.outcome) {
            Some(_) if seen.was_interrupted => Err(TemplateError::Interrupted),
            Some(TemplateError::Step {
                step, how, hint: known, ..
            }) => Err(TemplateError::Step {
                hint: known.or_else(|| Some(hint(report.record.network.as_ref()))),
                step,
                how,
                last_lines: seen.last_lines,
            }),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn judge(&self, step: &StepCommand<'_>, outcome: &Outcome) -> Option<TemplateError> {
        let how = match outcome {
            Outcome::Exited { code: 0 } => return None,
            Outcome::Exited { code } => match (step.meaning)(*code) {
                Some(meant) => return Some(meant),
                None => format!("exit code {code}"),
            },
            Outcome::Interrupted { .. } => return Some(TemplateError::Interrupted),
            Outcome::Signaled { name, .. } => format!("ended by {name}"),
            Outcome::LimitExceeded {
                limit: LimitName::Workspace,
                ..
            } => {
                return Some(TemplateError::TooLarge {
                    step: step.title.to_owned(),
                    limit: self.spec.limits.workspace.unwrap_or(USUAL_DISK),
                });
            }
            Outcome::LimitExceeded { limit, value } => format!(
                "it reached its limit of {} ({})",
                limit.name(),
                limit.row().show(*value)
            ),
            Outcome::EndedByRule { rule } => format!("ended by rule `{rule}` of monitoring"),
            Outcome::OutOfMemory { limit } => format!("out of memory (limit {})", Bytes(*limit)),
            Outcome::CommandNotFound { .. } => {
                let program = step.argv.first().map(Text::from);
                format!(
                    "there is no program `{}`",
                    program.as_ref().map(ToString::to_string).unwrap_or_default()
                )
            }
            Outcome::NotExecutable { reason } => reason.clone(),
            Outcome::CommandDenied { rule } => format!("refused by the rule `{rule}`"),
            Outcome::Failed { message } => message.clone(),
        };
        Some(TemplateError::Step {
            step: step.title.to_owned(),
            how,
            last_lines: Vec::new(),
            hint: None,
        })
    }
}

fn hint(network: Option<&NetworkUse>) -> String {
    const INDEXES: &str = "an index of your own is named with `--index-url URL`, or with `--build-env PIP_INDEX_URL` if that is \
                           set here";
    let Some(network) = network else {
        return "the lines above say why; it has no network, and `--allow HOST` lets it reach a host".to_owned();
    };
    let judged = judged(network);
    if !judged.is_empty() {
        return judged.into_iter().take(NAMED).collect::<Vec<_>>().join("; ");
    }
    let refused = refused(network);
    if refused.is_empty() {
        return format!("the lines above say why; what else it has to reach is allowed with `--allow HOST`; {INDEXES}");
    }
    let more = match refused.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named: Vec<String> = refused.into_iter().take(NAMED).collect();
    format!(
        "it may not reach {}{more}, which `--allow HOST` allows; {INDEXES}",
        named.join(", ")
    )
}

/// What was reached in networks of the owner's by names that may lead there, each once.
fn led_inside(network: &NetworkUse, inward: &[(DomainName, u16)]) -> BTreeSet<String> {
    let made = network
        .connections
        .iter()
        .filter(|seen| seen.verdict == ConnectionVerdict::Allowed);
    made.filter_map(|seen| {
        let address = seen.address?;
        let class = classify(address);
        let is_inward = inward
            .iter()
            .any(|(name, port)| name.as_str() == seen.host && *port == seen.port);
        (is_inward && class.is_of_a_network()).then(|| {
            format!(
                "`{}:{}` leads to {address}, {class}, which the package manager's own configuration allows",
                seen.host, seen.port
            )
        })
    })
    .collect()
}

/// Why connections were refused that a rule allows, as where a name leads into a private network, each once.
fn judged(network: &NetworkUse) -> BTreeSet<String> {
    let refused = network.connections.iter().filter(|seen| {
        let is_allowed = seen
            .rule
            .as_deref()
            .is_some_and(|rule| rule.starts_with("network.allow"));
        seen.verdict == ConnectionVerdict::Refused && is_allowed
    });
    refused
        .filter_map(|seen| {
            let reason = seen.reason.as_ref()?;
            let told = format!("`{}:{}` was refused: {reason}", seen.host, seen.port);
            Some(Text::from(told.as_str()).to_string())
        })
        .collect()
}

/// The names and places that no rule is about, each once.
fn refused(network: &NetworkUse) -> BTreeSet<String> {
    let is_refused = |seen: &&ConnectionRecord| seen.verdict == ConnectionVerdict::Refused && seen.rule.is_none();
    let places = network.connections.iter().filter(is_refused);
    let places = places.map(|seen| match Host::parse(&seen.host) {
        Ok(Host::Address(IpAddr::V6(address))) => format!("[{address}]:{}", seen.port),
        _ => format!("{}:{}", seen.host, seen.port),
    });
    let all = network.refused_names.keys().cloned().chain(places);
    all.map(|place| Text::from(place.as_str()).to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(host: &str, verdict: ConnectionVerdict, rule: Option<&str>) -> ConnectionRecord {
        ConnectionRecord {
            rule: rule.map(ToOwned::to_owned),
            ..ConnectionRecord::seen(host, 443, verdict)
        }
    }

    #[test]
    fn a_hint_names_what_no_rule_allowed_and_nothing_else() {
        let network = NetworkUse {
            connections: vec![
                connection("192.0.2.7", ConnectionVerdict::Refused, None),
                connection("192.0.2.7", ConnectionVerdict::Refused, None),
                connection("2001:db8::1", ConnectionVerdict::Refused, None),
                connection(
                    "denied.example",
                    ConnectionVerdict::Refused,
                    Some("network.deny: denied.example"),
                ),
                connection("good.example", ConnectionVerdict::Allowed, None),
            ],
            refused_names: [("odd\u{1b}.example".to_owned(), 2)].into(),
            ..NetworkUse::default()
        };
        let told = hint(Some(&network));
        assert!(
            told.starts_with("it may not reach $'odd\\x1b.example', 192.0.2.7:443, [2001:db8::1]:443, which"),
            "{told}"
        );
        assert!(hint(None).contains("no network"));
        assert!(!hint(Some(&NetworkUse::default())).contains("no network"));
    }

    #[test]
    fn a_hint_says_why_what_a_rule_allows_was_refused() {
        let mut refused = connection("pypi.org", ConnectionVerdict::Refused, Some("network.allow: pypi.org"));
        refused.reason = Some("pypi.org leads to 10.0.0.1; `--allow 10.0.0.1:443` allows that".to_owned());
        let network = NetworkUse {
            connections: vec![refused.clone(), refused],
            ..NetworkUse::default()
        };
        assert_eq!(
            hint(Some(&network)),
            "`pypi.org:443` was refused: pypi.org leads to 10.0.0.1; `--allow 10.0.0.1:443` allows that"
        );
    }

    #[test]
    fn what_a_name_led_to_inside_is_told_once() {
        let reached = |host: &str, address: &str| ConnectionRecord {
            address: Some(address.parse().unwrap()),
            ..connection(host, ConnectionVerdict::Allowed, None)
        };
        let network = NetworkUse {
            connections: vec![
                reached("index.corp", "10.0.0.1"),
                reached("index.corp", "10.0.0.1"),
                reached("index.corp", "93.184.216.34"),
                reached("other.corp", "10.0.0.1"),
            ],
            ..NetworkUse::default()
        };
        let told = led_inside(&network, &[("index.corp".parse().unwrap(), 443)]);
        assert_eq!(told.len(), 1);
        assert!(
            told.first()
                .unwrap()
                .starts_with("`index.corp:443` leads to 10.0.0.1, a private address"),
            "{told:?}"
        );
        assert!(led_inside(&network, &[("index.corp".parse().unwrap(), 80)]).is_empty());
    }

    #[test]
    fn of_many_a_few_are_named() {
        let network = NetworkUse {
            refused_names: (0..NAMED + 3).map(|number| (format!("n{number}.example"), 1)).collect(),
            ..NetworkUse::default()
        };
        assert!(hint(Some(&network)).contains("n4.example and 3 more, which"));
    }
}
