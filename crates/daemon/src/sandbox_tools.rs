//! The tools of a sandbox: which of the owner's it has, and which its maker answers.
//!
//! Pure but for [`SandboxTools::order`]. What a sandbox gets is what was asked for, within what its key was granted, within what
//! the owner declared; each step is proved (`core::tool`), and what is not proved is refused.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::time::Duration;

use offleash_core::approval::ASK_TIMEOUT;
use offleash_core::text::Text;
use offleash_core::tool::{DeclaredTool, ToolCaller, ToolGrant, ToolName, ToolNameError, WiderGrant};
use offleash_core::units::Millis;
use offleash_supervisor::service::order::SandboxToolsOrder;
use offleash_supervisor::tools::{ToolDesk, ToolSetupError};
use serde::{Deserialize, Serialize};

use crate::caller::Caller;
use crate::error::DaemonError;

/// The label by which tools are asked for: a grant a line, or a JSON array of them.
pub const TOOLS_LABEL: &str = "offleash.tools";
/// The field that refusals name.
const FIELD: &str = "tools";
/// How long a client may take to answer a call where nothing is said, and at most.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_CLIENT_TIMEOUT: Duration = Duration::from_secs(600);

/// The tools that the owner of a daemon declares.
#[derive(Debug, Clone)]
pub struct ToolsConfig {
    /// What they are.
    pub tools: Vec<DeclaredTool>,
    /// What sandboxes of a template get, by its name, where nothing is asked for.
    pub templates: BTreeMap<String, Vec<ToolGrant>>,
    /// When a question about a call counts as denied.
    pub ask_timeout: Duration,
}

impl Default for ToolsConfig {
    fn default() -> Self {
        Self {
            tools: Vec::new(),
            templates: BTreeMap::new(),
            ask_timeout: ASK_TIMEOUT,
        }
    }
}

/// The tools that are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolsRequest {
    /// Which of the owner's, a grant each; those of the template or the key if `None`.
    pub grants: Option<Vec<String>>,
    /// Those that the caller answers itself.
    pub answered: Vec<AnsweredTool>,
}

/// A tool whose calls a client answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnsweredTool {
    /// Its name.
    pub name: String,
    /// What it does, for whoever writes the code.
    pub description: String,
    /// JSON schema of its parameters, as JSON; any object if `None`.
    pub parameters: Option<String>,
    /// How long the client may take to answer, milliseconds; a minute if `None`.
    pub timeout_ms: Option<u64>,
    /// What its parameters have to be, how many calls there may be, and whether a person is asked: `where …`, `calls N`, `ask`.
    pub grant: Option<String>,
}

/// The tools that a sandbox has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxTools {
    /// What is granted of the owner's.
    pub(crate) grants: Vec<ToolGrant>,
    /// Those that its maker answers.
    pub(crate) answered: Vec<DeclaredTool>,
}

impl SandboxTools {
    /// What `caller` gets who asks for a sandbox of `template`.
    ///
    /// # Errors
    /// `Invalid`; `ToolsNotGranted` for what is not shown to be within what the caller may have.
    pub(crate) fn of(
        asked: &ToolsRequest,
        metadata: &BTreeMap<String, String>,
        caller: &Caller,
        template: &str,
        config: &ToolsConfig,
    ) -> Result<Self, DaemonError> {
        let wanted = match (&asked.grants, metadata.get(TOOLS_LABEL)) {
            (Some(texts), _) => Some(parsed(texts)?),
            (None, Some(label)) => Some(parsed(&labelled(label)?)?),
            (None, None) => None,
        };
        let of_template = config.templates.get(template);
        let owned: Vec<ToolGrant> = config.tools.iter().map(|tool| tool.grant.clone()).collect();
        let within = |wanted: &[ToolGrant], ceiling: &[ToolGrant]| {
            let narrowed = ToolGrant::narrowed(wanted, ceiling);
            narrowed.map_err(|error| not_granted(&error))
        };
        // What the owner says of the template holds for keys of which nothing is said.
        let ceiling = match (caller.is_owner(), &caller.tools, of_template) {
            (true, _, _) => owned.clone(),
            (false, Some(of_key), _) => within(of_key, &owned)?,
            (false, None, Some(of_template)) => within(of_template, &owned)?,
            (false, None, None) => Vec::new(),
        };
        let grants = match &wanted {
            Some(wanted) => within(wanted, &ceiling)?,
            None if caller.is_owner() => within(of_template.map_or(&[], Vec::as_slice), &ceiling)?,
            None => ceiling,
        };
        let answered: Result<Vec<_>, _> = asked.answered.iter().map(AnsweredTool::declared).collect();
        let tools = Self {
            grants,
            answered: answered?,
        };
        tools.check(config)?;
        Ok(tools)
    }

    /// That `caller`, who forks the sandbox that has them, might have asked for them.
    ///
    /// # Errors
    /// `ToolsNotGranted`.
    pub(crate) fn check_fork(&self, caller: &Caller, is_own: bool) -> Result<(), DaemonError> {
        match is_own {
            true => Ok(()),
            false => check_granted(caller, &self.grants),
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.grants.is_empty() && self.answered.is_empty()
    }

    /// What a supervisor is told; nothing where there are none. `ledger` is where calls are counted.
    pub(crate) fn order(&self, config: &ToolsConfig, ledger: &Path) -> Option<SandboxToolsOrder> {
        let (tools, grants) = self.offered(config);
        let variable =
            |(name, value): (std::ffi::OsString, std::ffi::OsString)| (Text(name.into_vec()), Text(value.into_vec()));
        (!self.is_empty()).then(|| SandboxToolsOrder {
            tools,
            grants,
            ask_timeout_ms: u64::try_from(config.ask_timeout.as_millis()).unwrap_or(u64::MAX),
            ledger: Text::from(ledger),
            // The owner's programs have the owner's variables.
            env: std::env::vars_os().map(variable).collect(),
        })
    }

    /// Those of the owner of which something is granted, with those of its maker, and what is granted of all.
    fn offered(&self, config: &ToolsConfig) -> (Vec<DeclaredTool>, Vec<ToolGrant>) {
        let is_granted = |tool: &&DeclaredTool| {
            let mut patterns = self.grants.iter().flat_map(|grant| &grant.tools);
            patterns.any(|pattern| pattern.covers(&tool.name))
        };
        let own = config.tools.iter().filter(is_granted).cloned();
        let answered = self.answered.iter().map(|tool| tool.grant.clone());
        (
            own.chain(self.answered.iter().cloned()).collect(),
            self.grants.iter().cloned().chain(answered).collect(),
        )
    }

    /// That they can be offered.
    fn check(&self, config: &ToolsConfig) -> Result<(), DaemonError> {
        // What would stand in for one of the owner's is refused even where that is not granted.
        for tool in &self.answered {
            let name = tool.name.as_identifier();
            if config.tools.iter().any(|own| own.name.as_identifier() == name) {
                let why = format!("`{}` is a tool of the owner of this server", tool.name);
                return Err(DaemonError::invalid(FIELD, why));
            }
        }
        let (tools, grants) = self.offered(config);
        match ToolDesk::new(tools, Some(grants)) {
            Ok(_) => Ok(()),
            Err(ToolSetupError::Wider(error)) => Err(not_granted(&error)),
            Err(error) => Err(DaemonError::invalid(FIELD, error.to_string())),
        }
    }
}

impl AnsweredTool {
    fn declared(&self) -> Result<DeclaredTool, DaemonError> {
        let wrong = |why: String| DaemonError::invalid(FIELD, why);
        let name: ToolName = self
            .name
            .parse()
            .map_err(|error: ToolNameError| wrong(error.to_string()))?;
        let timeout = self.timeout_ms.map_or(CLIENT_TIMEOUT, Duration::from_millis);
        if timeout.is_zero() || timeout > MAX_CLIENT_TIMEOUT {
            let most = MAX_CLIENT_TIMEOUT.as_millis();
            return Err(wrong(format!("`timeout_ms` of `{name}` is from 1 to {most}")));
        }
        let grant = match &self.grant {
            None => ToolGrant::of(&name),
            Some(text) => one(&format!("{name} {text}"))?,
        };
        if grant.tools != ToolGrant::of(&name).tools {
            return Err(wrong(format!(
                "`grant` of `{name}` is `where …`, `calls N` and `ask`, as far as they are said"
            )));
        }
        Ok(DeclaredTool {
            name,
            description: self.description.clone(),
            parameters: self
                .parameters
                .clone()
                .unwrap_or_else(|| r#"{"type":"object"}"#.to_owned()),
            caller: ToolCaller::Client,
            timeout: Millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            grant,
        })
    }
}

/// That `grants` are no more than the caller was granted.
///
/// # Errors
/// `ToolsNotGranted`.
pub(crate) fn check_granted(caller: &Caller, grants: &[ToolGrant]) -> Result<(), DaemonError> {
    if caller.is_owner() {
        return Ok(());
    }
    let ceiling = caller.tools.as_deref().unwrap_or_default();
    ToolGrant::all_within(grants, ceiling).map_err(|error| not_granted(&error))
}

/// Reads grants.
///
/// # Errors
/// `Invalid`.
pub(crate) fn parsed(texts: &[String]) -> Result<Vec<ToolGrant>, DaemonError> {
    texts.iter().map(|text| one(text)).collect()
}

fn one(text: &str) -> Result<ToolGrant, DaemonError> {
    let wrong = |error| DaemonError::invalid(FIELD, format!("`{}`: {error}", text.escape_debug()));
    text.parse().map_err(wrong)
}

/// The grants that a label has.
fn labelled(label: &str) -> Result<Vec<String>, DaemonError> {
    if label.trim_start().starts_with('[') {
        let wrong = |error| DaemonError::invalid("metadata", format!("label `{TOOLS_LABEL}`: {error}"));
        return serde_json::from_str(label).map_err(wrong);
    }
    let lines = label.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.map(str::to_owned).collect())
}

fn not_granted(error: &WiderGrant) -> DaemonError {
    DaemonError::ToolsNotGranted {
        grant: error.grant.clone(),
    }
}

#[cfg(test)]
mod tests {
    use crate::registry::{Quota, Scope, Scopes};

    use super::*;

    fn config() -> ToolsConfig {
        let tool = |name: &str, grant: &str| DeclaredTool {
            name: name.parse().unwrap(),
            description: String::new(),
            parameters: "{}".to_owned(),
            caller: ToolCaller::Program {
                argv: vec!["true".to_owned()],
            },
            timeout: Millis(1),
            grant: grant.parse().unwrap(),
        };
        ToolsConfig {
            tools: vec![tool("pay", "pay where amount <= 10 calls 5"), tool("find", "find")],
            templates: BTreeMap::from([("shop".to_owned(), vec!["find calls 2".parse().unwrap()])]),
            ..ToolsConfig::default()
        }
    }

    fn key(tools: Option<&[&str]>) -> Caller {
        Caller {
            key_id: "k".to_owned(),
            scopes: Scopes(vec![Scope::Create]),
            quota: Quota::default(),
            tools: tools.map(|texts| texts.iter().map(|text| text.parse().unwrap()).collect()),
        }
    }

    fn asked(grants: Option<&[&str]>) -> ToolsRequest {
        ToolsRequest {
            grants: grants.map(|texts| texts.iter().map(|text| (*text).to_owned()).collect()),
            answered: Vec::new(),
        }
    }

    /// What a caller gets, or the kind of the refusal.
    fn got(caller: &Caller, grants: Option<&[&str]>, template: &str) -> Result<Vec<String>, &'static str> {
        match SandboxTools::of(&asked(grants), &BTreeMap::new(), caller, template, &config()) {
            Ok(tools) => Ok(tools.grants.iter().map(ToString::to_string).collect()),
            Err(DaemonError::ToolsNotGranted { .. }) => Err("not granted"),
            Err(_) => Err("invalid"),
        }
    }

    #[test]
    fn a_request_narrows_what_its_key_was_granted_and_never_widens_it() {
        let all = |texts: &[&str]| Ok(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let (pay, less) = ("pay where amount <= 10 calls 5", "pay where amount <= 3 calls 1");
        let with = key(Some(&["pay where amount <= 5 calls 2"]));
        for (caller, grants, template, expected) in [
            // The owner, who asks for what he likes, of what he declared.
            (&Caller::local(), None, "base", all(&[])),
            (&Caller::local(), Some(&["*"][..]), "base", all(&[pay, "find"])),
            (
                &Caller::local(),
                Some(&["pay where amount <= 11 calls 5"]),
                "base",
                Err("not granted"),
            ),
            (&Caller::local(), Some(&["pay where"]), "base", Err("invalid")),
            (&Caller::local(), None, "shop", all(&["find calls 2"])),
            // A key of which nothing is said.
            (&key(None), None, "base", all(&[])),
            (&key(None), Some(&["pay"]), "base", Err("not granted")),
            (&key(None), None, "shop", all(&["find calls 2"])),
            (&key(None), Some(&["find calls 1"]), "shop", all(&["find calls 1"])),
            (&key(None), Some(&["find"]), "shop", all(&["find calls 2"])),
            (&key(None), Some(&["pay"]), "shop", Err("not granted")),
            // One with a grant of its own.
            (&with, None, "base", all(&["pay where amount <= 5 calls 2"])),
            (&with, Some(&[less]), "base", all(&[less])),
            (&with, Some(&[]), "base", all(&[])),
            (&with, Some(&[less, less, less]), "base", Err("not granted")),
            (
                &with,
                Some(&["pay where amount <= 6 calls 1"]),
                "base",
                Err("not granted"),
            ),
            (&with, Some(&["find"]), "base", Err("not granted")),
            (&with, None, "shop", all(&["pay where amount <= 5 calls 2"])),
            (&key(Some(&["*"])), None, "base", all(&[pay, "find"])),
            // What the owner does not declare (any more) cannot be granted on.
            (
                &key(Some(&["pay where amount <= 50 calls 5"])),
                None,
                "base",
                Err("not granted"),
            ),
        ] {
            assert_eq!(
                got(caller, grants, template),
                expected,
                "{caller:?} {grants:?} {template}"
            );
        }
    }

    #[test]
    fn a_label_asks_as_a_field_does() {
        let of = |label: &str| {
            let metadata = BTreeMap::from([(TOOLS_LABEL.to_owned(), label.to_owned())]);
            SandboxTools::of(&ToolsRequest::default(), &metadata, &Caller::local(), "base", &config())
                .map(|tools| tools.grants.len())
        };
        assert_eq!(of("").unwrap(), 0);
        assert_eq!(of("find\n pay where amount < 1 calls 1\n").unwrap(), 2);
        assert_eq!(of("[\"find\"]").unwrap(), 1);
        of("[1]").unwrap_err();
        of("find calls many").unwrap_err();
    }

    #[test]
    fn tools_that_a_client_answers_are_held_to_what_may_be_declared() {
        let of = |name: &str, change: &dyn Fn(&mut AnsweredTool)| {
            let mut tool = AnsweredTool {
                name: name.to_owned(),
                ..AnsweredTool::default()
            };
            change(&mut tool);
            let asked = ToolsRequest {
                grants: None,
                answered: vec![tool],
            };
            SandboxTools::of(&asked, &BTreeMap::new(), &key(None), "base", &config())
        };
        let mine = of("look-up", &|tool| {
            tool.grant = Some("where a < 1 calls 2 ask".to_owned())
        })
        .unwrap();
        assert_eq!(mine.answered[0].grant.to_string(), "look-up where a < 1 calls 2 ask");
        let (tools, grants) = mine.offered(&config());
        assert_eq!((tools.len(), grants.len()), (1, 1));
        for (name, change) in [
            ("pay", &(|_: &mut AnsweredTool| {}) as &dyn Fn(&mut AnsweredTool)),
            ("fi/nd", &|_| {}),
            ("x", &|tool| tool.parameters = Some("[]".to_owned())),
            ("x", &|tool| tool.parameters = Some("{".to_owned())),
            ("x", &|tool| tool.timeout_ms = Some(0)),
            ("x", &|tool| tool.timeout_ms = Some(u64::MAX)),
            ("x", &|tool| tool.grant = Some("x".to_owned())),
            ("x", &|tool| tool.grant = Some(",y".to_owned())),
        ] {
            assert!(matches!(of(name, change), Err(DaemonError::Invalid { .. })), "{name}");
        }
    }
}
