//! Builds a template: each step of the recipe is a run over the same layer, which is kept when all have succeeded.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use offleash_core::error::Explained as _;
use offleash_core::limits::{LimitName, Limits};
use offleash_core::network::{DomainName, Host, NetworkRule, RuleVerdict, classify};
use offleash_core::record::{ConnectionRecord, ConnectionVerdict, NetworkUse, Outcome};
use offleash_core::spec::{IdChoice, NetworkSpec, RootChoice, SandboxSpec};
use offleash_core::template::{PackageManager, Recipe, TemplateName};
use offleash_core::text::Text;
use offleash_core::units::Bytes;
use offleash_isolation::limits::LayerMeter;
use offleash_store::{NewTemplate, StateDirectory, TemplateRecord, remove_directory};
use offleash_sys::signals::SignalQueue;

use super::error::TemplateError;
use super::lines::{LinesIo, signals};
use super::remove_abandoned;
use crate::lifecycle::{self, RunRequest};
use offleash_planner::base::{ReadyBase, remove_layer};
use offleash_planner::recipes::steps::{self, RecipeStep};
use offleash_planner::recipes::{IndexConfiguration, RecipeIndexes};

/// What a template may take on disk whose owner does not say.
pub const USUAL_DISK: Bytes = Bytes(8 << 30);

/// Files, directories and links that a template may consist of.
const MAX_FILES: u64 = 2_000_000;

/// How many of the places that a step may not reach are named before the rest is only counted.
const NAMED: usize = 5;

/// A template that is to be built.
#[derive(Debug, Clone)]
pub struct BuildRequest {
    /// What it is called.
    pub name: TemplateName,
    /// What it is built from.
    pub recipe: Recipe,
    /// What it may take on disk.
    pub disk: Bytes,
    /// Variables of the build alone, which no record has.
    pub env: Vec<(OsString, OsString)>,
    /// What the build may reach beside the indexes of its packages.
    pub network: NetworkSpec,
    /// How user ids are mapped in it; as for a root of a sandbox's own if `None`.
    pub ids: Option<IdChoice>,
}

/// Whoever is told how a build goes on.
pub trait Progress {
    /// Step `number`, from 1, of so many begins.
    fn step(&mut self, number: usize, of: usize, title: &str);

    /// Something that the owner should know of the build.
    fn note(&mut self, told: &str);

    /// A line that the step printed, which cannot drive a terminal.
    fn line(&mut self, line: &str);

    /// These packages cannot be installed, and the template is made without them, because they are optional.
    fn left_out(&mut self, packages: &str, why: &str);

    /// Time has passed.
    fn idle(&mut self);
}

/// Builds a template and puts it in the place of the one that there was, if any.
///
/// The calling process must have one thread. It queues the signals that would end it, and ends the build by them.
///
/// # Errors
/// `Building`, `Empty`, `NoSuperuser`, `NoProgram`, `Step`, `TooLarge`, `Interrupted`, `Sandbox`; when the state directory
/// cannot be used. Nothing of the template is kept then, and the one before is as it was.
pub fn build(
    state: &StateDirectory,
    request: &BuildRequest,
    progress: &mut dyn Progress,
) -> Result<TemplateRecord, TemplateError> {
    let BuildRequest { name, recipe, .. } = request;
    if recipe.is_empty() {
        return Err(TemplateError::Empty { name: name.clone() });
    }
    let templates = state.templates()?;
    remove_abandoned(&templates);
    let new = templates
        .begin(name)?
        .ok_or_else(|| TemplateError::Building { name: name.clone() })?;
    let layer = new.layer();
    let built = carry_out(state.path(), request, new, progress);
    if built.is_err() {
        // What stays goes with the next build.
        let _removed = remove_layer(&layer).map(|()| layer.parent().map(remove_directory));
    }
    built
}

fn carry_out(
    state: &Path,
    request: &BuildRequest,
    new: NewTemplate,
    progress: &mut dyn Progress,
) -> Result<TemplateRecord, TemplateError> {
    let mut recipe = request.recipe.clone();
    // Before anything is installed: changes of the host meanwhile make it outdated.
    let base = ReadyBase::system_stamp();
    let signals = signals().map_err(|source| TemplateError::Host {
        action: "queue signals",
        source,
    })?;
    let indexes = RecipeIndexes::of(&recipe, &request.env, &IndexConfiguration::this());
    indexes.notes.iter().for_each(|note| progress.note(note));
    let build = Build {
        spec: spec(request, &new.layer(), &indexes)?,
        env: &request.env,
        state,
    };
    let ids = build.ids()?;
    if !recipe.apt.is_empty() && ids == IdChoice::Single {
        match steps::left_out(&recipe, PackageManager::Apt) {
            Some(packages) => progress.left_out(&packages, &told(&TemplateError::NoSuperuser)),
            None => return Err(TemplateError::NoSuperuser),
        }
        recipe.apt.clear();
    }
    let steps = steps::of(&recipe, &indexes);
    for (number, step) in steps.iter().enumerate() {
        progress.step(number + 1, steps.len(), &step.title);
        match (build.take(step, &signals, progress), &step.optional) {
            (Ok(()), _) => {}
            (Err(error @ (TemplateError::Step { .. } | TemplateError::Recipe(_))), Some(packages)) => {
                progress.left_out(packages, &told(&error));
            }
            (Err(error), _) => return Err(error),
        }
    }
    let mut record = TemplateRecord::new(request.name.clone(), request.recipe.clone(), base, ids);
    for part in parts(&new.layer())? {
        // Overlayfs worked in it, and nothing of it is used again.
        remove_layer(&part.join("work"))?;
        let used = LayerMeter::new(&part)
            .map_err(|source| TemplateError::Host {
                action: "measure the template",
                source,
            })?
            .measure();
        record.bytes += used.bytes;
        record.files += used.inodes;
    }
    Ok(new.commit(record)?)
}

/// An error with what mends it, in a line.
fn told(error: &TemplateError) -> String {
    let hint = error.hint().map_or_else(String::new, |hint| format!("; {hint}"));
    format!("{error}{hint}")
}

/// The parts of a layer: `root`, `usr` …
fn parts(layer: &Path) -> Result<Vec<PathBuf>, TemplateError> {
    let listed = std::fs::read_dir(layer).map_err(|source| TemplateError::Host {
        action: "list the parts of the template",
        source,
    })?;
    Ok(listed.flatten().map(|found| found.path()).collect())
}

fn spec(request: &BuildRequest, layer: &Path, indexes: &RecipeIndexes) -> Result<SandboxSpec, TemplateError> {
    let recipe = &request.recipe;
    let mut network = request.network.clone();
    for rule in indexes.rules.iter().chain(&recipe.allow) {
        network.policy.rules.push(NetworkRule::parse(RuleVerdict::Allow, rule)?);
    }
    network.policy.inward.extend_from_slice(&indexes.inward);
    network.requests.headers.extend_from_slice(&indexes.headers);
    network.requests.methods.rules.extend_from_slice(&indexes.methods);
    network.host_ports.extend_from_slice(&indexes.host_ports);
    let mut spec = SandboxSpec {
        root: RootChoice::Base {
            template: None,
            snapshot: None,
            layer: Some(layer.to_owned()),
        },
        ids: request.ids,
        network,
        limits: Limits {
            workspace: Some(request.disk),
            file_size: Some(request.disk),
            inodes: Some(MAX_FILES),
            output: None,
            ..Limits::default()
        },
        ..SandboxSpec::default()
    };
    let of_recipe = recipe.env.iter().map(|(name, value)| (name.into(), value.into()));
    spec.env.set = of_recipe.chain(request.env.iter().cloned()).collect();
    Ok(spec)
}

/// What the steps of a build have in common.
struct Build<'a> {
    spec: SandboxSpec,
    env: &'a [(OsString, OsString)],
    state: &'a Path,
}

impl Build<'_> {
    /// How many ids its sandboxes have.
    fn ids(&self) -> Result<IdChoice, TemplateError> {
        let found = lifecycle::ids_of_own_root(&self.spec);
        found.map_err(|source| TemplateError::Sandbox {
            step: "the first step".to_owned(),
            source: Box::new(source),
        })
    }

    fn take(&self, step: &RecipeStep, signals: &SignalQueue, progress: &mut dyn Progress) -> Result<(), TemplateError> {
        let mut spec = self.spec.clone();
        // What the owner passes wins over what a step usually has.
        let usual = step
            .env
            .iter()
            .filter(|(name, _)| !self.env.iter().any(|(own, _)| own == name));
        spec.env.set.extend(usual.cloned());
        let request = RunRequest {
            spec,
            command: step.argv.clone(),
            purpose: Some("template build"),
            cwd: Some("/".into()),
            user: Some(offleash_planner::system::SUPERUSER.to_owned()),
            tty: None,
            capture: 0,
            state: Some(self.state.to_owned()),
            started: Instant::now(),
        };
        let mut door = LinesIo::new(signals, progress);
        let ran = lifecycle::run(&request, &mut door);
        let seen = door.finish();
        let failed = |source| TemplateError::Sandbox {
            step: step.title.clone(),
            source: Box::new(source),
        };
        let report = ran.map_err(failed)?;
        let network = report.record.network.as_ref();
        let led_inside = network.map(|network| led_inside(network, &self.spec.network.policy.inward));
        led_inside.into_iter().flatten().for_each(|told| progress.note(&told));
        if let Some(failure) = report.failure {
            return Err(failed(failure));
        }
        match self.judge(step, &report.record.outcome) {
            Some(_) if seen.was_interrupted => Err(TemplateError::Interrupted),
            Some(TemplateError::Step { step, how, .. }) => Err(TemplateError::Step {
                hint: Some(hint(report.record.network.as_ref())),
                step,
                how,
                last_lines: seen.last_lines,
            }),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn judge(&self, step: &RecipeStep, outcome: &Outcome) -> Option<TemplateError> {
        let how = match outcome {
            Outcome::Exited { code: 0 } => return None,
            Outcome::Exited { code } => match steps::missing(step, *code) {
                Some(missing) => return Some(missing.into()),
                None => format!("exit code {code}"),
            },
            Outcome::Interrupted { .. } => return Some(TemplateError::Interrupted),
            Outcome::Signaled { name, .. } => format!("ended by {name}"),
            Outcome::LimitExceeded {
                limit: LimitName::Workspace,
                ..
            } => {
                return Some(TemplateError::TooLarge {
                    step: step.title.clone(),
                    limit: self.spec.limits.workspace.unwrap_or(USUAL_DISK),
                });
            }
            Outcome::LimitExceeded { limit, value } => format!(
                "it reached its limit of {} ({})",
                limit.name(),
                limit.row().show(*value)
            ),
            Outcome::OutOfMemory { limit } => format!("out of memory (limit {})", Bytes(*limit)),
            Outcome::CommandNotFound { .. } => "the host has no shell".to_owned(),
            Outcome::NotExecutable { reason } => reason.clone(),
            Outcome::CommandDenied { rule } => format!("refused by the rule `{rule}`"),
            Outcome::Failed { message } => message.clone(),
        };
        Some(TemplateError::Step {
            step: step.title.clone(),
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
