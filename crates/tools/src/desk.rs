//! The judge: reads a request, finds the tool, holds the parameters to schema and grants, and counts.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use jsonschema::Validator;
use offleash_core::record::ToolUse;
use offleash_core::text::Text;
use offleash_core::tool::{
    DeclaredTool, GrantVerdict, MAX_DESCRIPTION, MAX_GRANTS, MAX_SCHEMA, MAX_TOOLS, ToolGrant, judge,
};
use serde_json::{Value, json};

use crate::answer::{AnswerForm, CallFailure, answer};
use crate::arguments::{self, CommandMeaning};
use crate::ledger::{CallCounts, CallLedger};
use crate::request::ToolRequest;

/// The longest parameters that are put to a person, bytes as they are shown: nobody reads more, and what is not shown is not agreed to.
pub(crate) const MAX_SHOWN: usize = 1024;
/// How much of what a schema finds wrong is told, characters.
const MAX_SAID: usize = 400;
/// How much of parameters and of what became of a call is noted, characters each.
const MAX_NOTED: usize = 300;

/// Judges the calls of one sandbox.
#[derive(Debug)]
pub struct ToolDesk {
    tools: Vec<OfferedTool>,
    /// What the owner grants: the grant of each tool, in their order.
    owned: Vec<ToolGrant>,
    owned_used: Vec<u64>,
    /// What was granted of that, if it was narrowed.
    narrowed: Option<Vec<ToolGrant>>,
    narrowed_used: Vec<u64>,
    /// Where calls are counted that count for longer than this lives, or for other sandboxes as well.
    ledger: Option<CallLedger>,
    /// What there is to note of calls since that was taken; nothing where nobody keeps notes.
    notes: Option<Vec<String>>,
}

#[derive(Debug)]
struct OfferedTool {
    tool: DeclaredTool,
    schema: Value,
    validator: Validator,
    uses: ToolUse,
}

/// Why tools cannot be offered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolSetupError {
    /// There are too many.
    #[error("{what}: {count} are more than {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// Two have one name.
    #[error("two tools are called `{0}` by a program")]
    Twice(String),
    /// A schema is none, or not of an object.
    #[error("the schema of tool `{tool}`: {reason}")]
    Schema {
        /// Whose.
        tool: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A grant is wider than what there is to grant.
    #[error(transparent)]
    Wider(#[from] offleash_core::tool::WiderGrant),
}

/// What is to be done about a request.
#[derive(Debug)]
pub enum DeskStep {
    /// This is the answer.
    Answer(Vec<u8>),
    /// The tool is to be called.
    Call(JudgedCall),
    /// A person is to be asked first; then [`ToolDesk::approve`] or [`ToolDesk::refuse`] goes on.
    Ask(JudgedCall),
}

/// A call that was granted, or will be if a person agrees.
#[derive(Debug)]
pub struct JudgedCall {
    tool: usize,
    form: AnswerForm,
    /// What the tool is called with.
    pub parameters: Value,
}

impl JudgedCall {
    /// Which of the tools, from 0.
    pub(crate) fn tool(&self) -> usize {
        self.tool
    }
}

/// What a judgement of parameters leaves to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    /// It is granted, and counted.
    Granted,
    /// It is granted if a person agrees.
    Ask,
}

impl ToolDesk {
    /// A desk for these tools; with `narrowed`, for what those grants leave of them.
    ///
    /// # Errors
    /// For a schema that is none, names that are not told apart, and grants that were not shown to be within the owner's.
    pub fn new(tools: Vec<DeclaredTool>, narrowed: Option<Vec<ToolGrant>>) -> Result<Self, ToolSetupError> {
        let bounded = |what, count, most| match count > most {
            true => Err(ToolSetupError::TooMany { what, count, most }),
            false => Ok(()),
        };
        bounded("tools", tools.len(), MAX_TOOLS)?;
        bounded("grants", narrowed.as_ref().map_or(0, Vec::len), MAX_GRANTS)?;
        let mut identifiers: Vec<_> = tools.iter().map(|tool| tool.name.as_identifier()).collect();
        identifiers.sort_unstable();
        if let Some([twice, _]) = identifiers.array_windows::<2>().find(|[one, other]| one == other) {
            return Err(ToolSetupError::Twice(twice.clone()));
        }
        let owned: Vec<ToolGrant> = tools.iter().map(|tool| tool.grant.clone()).collect();
        if let Some(narrowed) = &narrowed {
            ToolGrant::all_within(narrowed, &owned)?;
        }
        let tools = tools.into_iter().map(OfferedTool::new).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            owned_used: vec![0; owned.len()],
            narrowed_used: vec![0; narrowed.as_ref().map_or(0, Vec::len)],
            tools,
            owned,
            narrowed,
            ledger: None,
            notes: None,
        })
    }

    /// Counts calls in the file at `path` from now on, which is there, where there may be no more than a number of them.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn count_in(&mut self, path: &Path) -> io::Result<()> {
        let mut all = self.owned.iter().chain(self.narrowed.iter().flatten());
        if all.any(|grant| grant.calls.is_some()) {
            self.ledger = Some(CallLedger::open(path)?);
        }
        Ok(())
    }

    /// Notes from now on what becomes of each call.
    pub fn keep_notes(&mut self) {
        self.notes = Some(Vec::new());
    }

    /// The notes since the last time.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        self.notes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn note(&mut self, tool: usize, parameters: Option<&Value>, became: &str) {
        let (Some(notes), Some(offered)) = (&mut self.notes, self.tools.get(tool)) else {
            return;
        };
        let name = &offered.tool.name;
        let with = parameters.map(|parameters| {
            let text = Text::from(parameters.to_string()).to_string();
            let shown: String = text.chars().take(MAX_NOTED).collect();
            let cut = if shown.len() < text.len() { "…" } else { "" };
            format!(" with {shown}{cut}")
        });
        let became: String = became.chars().take(MAX_NOTED).collect();
        notes.push(format!(
            "tool `{name}` was called{}: {became}",
            with.unwrap_or_default()
        ));
    }

    /// Reads and judges a request. A call that is granted counts from now on.
    pub fn take(&mut self, request: &[u8]) -> DeskStep {
        let request = match serde_json::from_slice::<ToolRequest>(request) {
            Ok(request) => request,
            Err(error) => {
                let failure = CallFailure::Invalid(format!("the request makes no sense: {error}"));
                return DeskStep::Answer(answer(&AnswerForm::Json, &Err(failure)));
            }
        };
        let (form, name) = match &request {
            ToolRequest::List {} => return DeskStep::Answer(answer(&AnswerForm::Json, &Ok(self.list()))),
            ToolRequest::Command { tool, .. } => (AnswerForm::Command(tool.clone()), tool.clone()),
            ToolRequest::Json { tool, .. } => (AnswerForm::Json, tool.clone()),
        };
        let step = self.find(&name).and_then(|tool| match self.read(tool, request)? {
            CommandMeaning::Help => Ok(Err(self.usage(tool))),
            CommandMeaning::Call(parameters) => {
                let judgement = self.judge(tool, &parameters, false)?;
                Ok(Ok((judgement, tool, parameters)))
            }
        });
        match step {
            Ok(Ok((judgement, tool, parameters))) => {
                let call = JudgedCall { tool, form, parameters };
                match judgement {
                    Judgement::Granted => DeskStep::Call(call),
                    Judgement::Ask => DeskStep::Ask(call),
                }
            }
            Ok(Err(usage)) => DeskStep::Answer(answer(&form, &Ok(Value::String(usage)))),
            Err(failure) => {
                if let Ok(tool) = self.find(&name) {
                    self.note(tool, None, &failure.to_string());
                    self.tools
                        .get_mut(tool)
                        .into_iter()
                        .for_each(|tool| tool.uses.refused += 1);
                }
                DeskStep::Answer(answer(&form, &Err(failure)))
            }
        }
    }

    /// Goes on with a call that a person agreed to. It counts from now on, unless its calls were used up meanwhile.
    pub fn approve(&mut self, call: JudgedCall) -> DeskStep {
        match self.judge(call.tool, &call.parameters, true) {
            Ok(_) => DeskStep::Call(call),
            Err(failure) => DeskStep::Answer(self.refuse(&call, failure)),
        }
    }

    /// The answer to a call that is not made.
    pub fn refuse(&mut self, call: &JudgedCall, failure: CallFailure) -> Vec<u8> {
        self.note(call.tool, Some(&call.parameters), &failure.to_string());
        if let Some(tool) = self.tools.get_mut(call.tool) {
            tool.uses.refused += 1;
        }
        answer(&call.form, &Err(failure))
    }

    /// What is called for a call.
    pub fn tool(&self, call: &JudgedCall) -> Option<&DeclaredTool> {
        self.tools.get(call.tool).map(|offered| &offered.tool)
    }

    /// The answer to a call that was made.
    pub fn answer(&mut self, call: &JudgedCall, outcome: &Result<Value, CallFailure>) -> Vec<u8> {
        match outcome {
            Ok(_) => self.note(call.tool, Some(&call.parameters), "it answered"),
            Err(failure) => self.note(call.tool, Some(&call.parameters), &failure.to_string()),
        }
        if let Some(tool) = self.tools.get_mut(call.tool) {
            tool.uses.failed += u64::from(outcome.is_err());
        }
        answer(&call.form, outcome)
    }

    /// How often each tool was called, or was not let be called.
    pub fn uses(&self) -> Vec<ToolUse> {
        self.tools.iter().map(|offered| offered.uses.clone()).collect()
    }

    fn find(&self, name: &str) -> Result<usize, CallFailure> {
        let is_it =
            |offered: &OfferedTool| offered.tool.name.as_str() == name || offered.tool.name.as_identifier() == name;
        self.tools
            .iter()
            .position(is_it)
            .ok_or_else(|| CallFailure::Unknown(name.to_owned()))
    }

    fn read(&self, tool: usize, request: ToolRequest) -> Result<CommandMeaning, CallFailure> {
        let schema = self
            .tools
            .get(tool)
            .map(|offered| &offered.schema)
            .unwrap_or(&Value::Null);
        match request {
            ToolRequest::Command { arguments, input, .. } => arguments::read(schema, &arguments, input.as_deref()),
            ToolRequest::Json { parameters, .. } => Ok(CommandMeaning::Call(parameters.unwrap_or_else(|| json!({})))),
            ToolRequest::List {} => Err(CallFailure::Invalid("a list is of no tool".to_owned())),
        }
    }

    fn usage(&self, tool: usize) -> String {
        self.tools.get(tool).map_or_else(String::new, |offered| {
            arguments::usage(offered.tool.name.as_str(), &offered.tool.description, &offered.schema)
        })
    }

    pub(crate) fn list(&self) -> Value {
        let one = |offered: &OfferedTool| {
            json!({
                "name": offered.tool.name.as_str(),
                "function": offered.tool.name.as_identifier(),
                "description": offered.tool.description,
                "parameters": offered.schema,
            })
        };
        self.tools.iter().map(one).collect()
    }

    /// Judges parameters, and counts the call unless a person is still to be asked. With `is_agreed` one was.
    fn judge(&mut self, tool: usize, parameters: &Value, is_agreed: bool) -> Result<Judgement, CallFailure> {
        let Some(ledger) = self.ledger.take() else {
            return self.judge_here(tool, parameters, is_agreed);
        };
        let judged = ledger.hold(|counts| {
            self.load(counts);
            let judged = self.judge_here(tool, parameters, is_agreed);
            self.save(counts);
            judged
        });
        self.ledger = Some(ledger);
        let unkept = |error| CallFailure::Refused(format!("its calls cannot be counted: {error}"));
        judged.map_err(unkept).flatten()
    }

    /// Takes over what was counted.
    fn load(&mut self, counts: &CallCounts) {
        let had = |counted: &BTreeMap<String, u64>, key: &str| counted.get(key).copied().unwrap_or(0);
        for (used, offered) in self.owned_used.iter_mut().zip(&self.tools) {
            *used = had(&counts.tools, offered.tool.name.as_str());
        }
        for (used, grant) in self.narrowed_used.iter_mut().zip(self.narrowed.iter().flatten()) {
            *used = had(&counts.grants, &grant.to_string());
        }
    }

    /// Has it counted what this has counted. Grants that are written alike have one count, the highest.
    fn save(&self, counts: &mut CallCounts) {
        let keep = |counted: &mut BTreeMap<String, u64>, key: String, used: u64| {
            if used > 0 {
                let had = counted.entry(key).or_default();
                *had = used.max(*had);
            }
        };
        for (used, offered) in self.owned_used.iter().zip(&self.tools) {
            keep(&mut counts.tools, offered.tool.name.to_string(), *used);
        }
        for (used, grant) in self.narrowed_used.iter().zip(self.narrowed.iter().flatten()) {
            keep(&mut counts.grants, grant.to_string(), *used);
        }
    }

    fn judge_here(&mut self, tool: usize, parameters: &Value, is_agreed: bool) -> Result<Judgement, CallFailure> {
        let Some(offered) = self.tools.get(tool) else {
            return Err(CallFailure::Unknown(String::new()));
        };
        if !parameters.is_object() {
            return Err(CallFailure::Invalid("parameters are a JSON object".to_owned()));
        }
        if let Err(error) = offered.validator.validate(parameters) {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() {
                String::new()
            } else {
                format!(" at {place}")
            };
            let said: String = format!("{error}{place}").chars().take(MAX_SAID).collect();
            return Err(CallFailure::Invalid(said));
        }
        // The owner's grant of another tool says nothing of this one, whatever its patterns.
        let name = &offered.tool.name;
        let own = self.owned.get(tool..=tool).unwrap_or_default();
        let own_used = self.owned_used.get(tool..=tool).unwrap_or_default();
        let (_, own_asks) = granted(judge(own, own_used, name, parameters))?;
        let narrowed = match &self.narrowed {
            Some(narrowed) => Some(granted(judge(narrowed, &self.narrowed_used, name, parameters))?),
            None => None,
        };
        let asks = own_asks || narrowed.is_some_and(|(_, asks)| asks);
        if asks && !is_agreed {
            if Text::from(parameters.to_string()).to_string().len() > MAX_SHOWN {
                let what =
                    format!("a person is to be asked, and {MAX_SHOWN} bytes of parameters are the most that are shown");
                return Err(CallFailure::Refused(what));
            }
            return Ok(Judgement::Ask);
        }
        if let Some((grant, _)) = narrowed {
            self.narrowed_used
                .get_mut(grant)
                .into_iter()
                .for_each(|used| *used += 1);
        }
        self.owned_used.get_mut(tool).into_iter().for_each(|used| *used += 1);
        self.tools
            .get_mut(tool)
            .into_iter()
            .for_each(|offered| offered.uses.calls += 1);
        Ok(Judgement::Granted)
    }
}

/// The number of the grant, and whether a person is asked.
fn granted(verdict: GrantVerdict) -> Result<(usize, bool), CallFailure> {
    let reason = match verdict {
        GrantVerdict::Allowed { grant } => return Ok((grant, false)),
        GrantVerdict::Ask { grant } => return Ok((grant, true)),
        GrantVerdict::NotGranted => "no grant names this tool".to_owned(),
        GrantVerdict::Parameters { wanted } => format!("its parameters have to be such that {wanted}"),
        GrantVerdict::UsedUp { calls } => format!("its {calls} calls are used up"),
    };
    Err(CallFailure::Refused(reason))
}

impl OfferedTool {
    fn new(tool: DeclaredTool) -> Result<Self, ToolSetupError> {
        let wrong = |reason: String| ToolSetupError::Schema {
            tool: tool.name.to_string(),
            reason,
        };
        if tool.parameters.len() > MAX_SCHEMA || tool.description.len() > MAX_DESCRIPTION {
            let most = MAX_SCHEMA >> 10;
            return Err(wrong(format!(
                "it is {most} KiB at most, and a description {MAX_DESCRIPTION} bytes"
            )));
        }
        let schema: Value = serde_json::from_str(&tool.parameters).map_err(|error| wrong(error.to_string()))?;
        if !schema.is_object() {
            return Err(wrong("it is no object".to_owned()));
        }
        let validator = jsonschema::validator_for(&schema).map_err(|error| wrong(error.to_string()))?;
        let uses = ToolUse {
            tool: tool.name.to_string(),
            calls: 0,
            failed: 0,
            refused: 0,
        };
        Ok(Self {
            tool,
            schema,
            validator,
            uses,
        })
    }
}

#[cfg(test)]
mod tests;
