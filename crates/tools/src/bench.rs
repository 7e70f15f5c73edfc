//! Tools for a caller who is in no sandbox: judged, made and counted as calls from inside are.

use std::sync::{Mutex, MutexGuard, PoisonError};

use offleash_core::record::ToolUse;
use serde_json::{Value, json};

use crate::answer::CallFailure;
use crate::callers::ToolCallers;
use crate::desk::{DeskStep, JudgedCall, ToolDesk};

/// The tools of a desk, and what makes their calls.
#[derive(Debug)]
pub struct ToolBench {
    desk: Mutex<ToolDesk>,
    callers: ToolCallers,
}

/// A tool that can be called.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferedTool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON schema of its parameters.
    pub parameters: Value,
}

impl ToolBench {
    /// The tools of `desk`.
    pub fn new(desk: ToolDesk) -> Self {
        Self {
            desk: Mutex::new(desk),
            callers: ToolCallers::default(),
        }
    }

    /// The tools.
    pub fn list(&self) -> Vec<OfferedTool> {
        let listed = self.desk().list();
        let text = |one: &Value, name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let all = listed.as_array().into_iter().flatten();
        all.map(|one| OfferedTool {
            name: text(one, "name"),
            description: text(one, "description"),
            parameters: one.get("parameters").cloned().unwrap_or_default(),
        })
        .collect()
    }

    /// Calls a tool; where a person is to be asked, `ask` says what they said to it being called with those parameters.
    ///
    /// # Errors
    /// Why there is no result.
    pub async fn call(
        &self,
        tool: &str,
        parameters: Value,
        ask: impl AsyncFnOnce(&str, &Value) -> Result<(), String>,
    ) -> Result<Value, CallFailure> {
        let request = json!({ "form": "json", "tool": tool, "parameters": parameters }).to_string();
        let step = self.desk().take(request.as_bytes());
        let step = match step {
            DeskStep::Ask(judged) => match ask(tool, &judged.parameters).await {
                Ok(()) => self.desk().approve(judged),
                Err(why) => {
                    let failure = CallFailure::Refused(format!("a person is to be asked, and {why}"));
                    self.desk().refuse(&judged, failure.clone());
                    return Err(failure);
                }
            },
            step => step,
        };
        match step {
            DeskStep::Call(judged) => self.make(judged).await,
            DeskStep::Answer(answer) => CallFailure::of_answer(&answer),
            DeskStep::Ask(_) => Err(CallFailure::Refused("a person is to be asked".to_owned())),
        }
    }

    async fn make(&self, judged: JudgedCall) -> Result<Value, CallFailure> {
        let tool = self.desk().tool(&judged).cloned();
        let outcome = match tool {
            Some(tool) => self.callers.call(&tool, &judged.parameters).await,
            None => Err(CallFailure::Unknown(String::new())),
        };
        self.desk().answer(&judged, &outcome);
        outcome
    }

    /// How often each tool was called, or was not let be called.
    pub fn uses(&self) -> Vec<ToolUse> {
        self.desk().uses()
    }

    fn desk(&self) -> MutexGuard<'_, ToolDesk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
