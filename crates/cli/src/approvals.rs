//! `offleash approvals`: questions about calls of tools and about connections, answered from the same machine: in sandboxes of the daemon and of `offleash mcp`.

use std::ffi::OsStr;
use std::process::ExitCode;
use std::time::Duration;

use offleash_core::approval::{ApprovalAnswer, ApprovalSubject};
use offleash_core::id::RunId;
use offleash_core::text::Text;
use offleash_store::{HostIdentity, SandboxDirectories, StateDirectory};
use offleash_supervisor::service::SupervisorClient;
use offleash_supervisor::tools::{OpenApproval, ToolsClient};
use serde_json::{Value, json};

use crate::args::{ApprovalListArgs, ApprovalsArgs, ApprovalsCommand};
use crate::failure::Failure;
use crate::remote::table::Table;
use crate::server_at::ServerAt;
use crate::terminal;

pub(crate) fn approvals(arguments: &ApprovalsArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    match &arguments.command {
        None => list(&ApprovalListArgs::default(), at),
        Some(ApprovalsCommand::Ls(how)) => list(how, at),
        Some(ApprovalsCommand::Approve(how)) => {
            let (scope, answer) = match (how.always, how.for_sandbox) {
                (true, _) => ("always", ApprovalAnswer::Always),
                (false, true) => ("sandbox", ApprovalAnswer::Run),
                (false, false) => ("once", ApprovalAnswer::Once),
            };
            decide(&how.id, answer, "approve", &json!({ "scope": scope }), at)
        }
        Some(ApprovalsCommand::Allowed(how)) => allowed(how, at),
        Some(ApprovalsCommand::Forget(how)) => {
            check_id(&how.id, "is no allowed host", "`offleash approvals allowed` lists them")?;
            at.client()?.delete(&format!("/v1/approvals/allowed/{}", how.id))?;
            Ok(ExitCode::SUCCESS)
        }
        Some(ApprovalsCommand::Deny(how)) => decide(&how.id, ApprovalAnswer::Denied, "deny", &json!({}), at),
    }
}

fn list(how: &ApprovalListArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let mut open = OwnDoors::find(at)?.open()?;
    match at.client().and_then(|client| Ok(client.get("/v1/approvals")?)) {
        Ok(listed) => open.extend(
            listed
                .get("approvals")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
        ),
        // What is asked without a daemon is what there is.
        Err(_) if !open.is_empty() => {}
        Err(failure) => return Err(failure),
    }
    if how.json {
        let lines: String = open.iter().map(|one| format!("{one}\n")).collect();
        terminal::print(lines.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["APPROVAL", "TOOL", "PARAMETERS", "LEFT"]);
    for one in &open {
        let text = |name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let left = Duration::from_millis(one.get("left_ms").and_then(Value::as_u64).unwrap_or_default());
        let parameters = one.get("parameters").map(Value::to_string).unwrap_or_default();
        table.row([text("id"), text("tool"), parameters, format!("{}s", left.as_secs())]);
    }
    table.print()
}

/// The hosts that were allowed for good.
fn allowed(how: &ApprovalListArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let listed = at.client()?.get("/v1/approvals/allowed")?;
    let all = listed
        .get("allowed")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    if how.json {
        let lines: String = all.iter().map(|one| format!("{one}\n")).collect();
        terminal::print(lines.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["ID", "KEY", "TEMPLATE", "RULE", "ASKED BY"]);
    for one in &all {
        let text = |name: &str| one.get(name).and_then(Value::as_str).unwrap_or("-").to_owned();
        table.row([text("id"), text("key"), text("template"), text("rule"), text("sandbox")]);
    }
    table.print()
}

/// Refuses what no id is written like: as they are, nothing of one is to be encoded.
fn check_id(id: &str, what: &str, hint: &str) -> Result<(), Failure> {
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        let id = Text::from(OsStr::new(id));
        return Err(Failure::new(format!("`{id}` {what}")).with_hint(hint));
    }
    Ok(())
}

fn decide(id: &str, answer: ApprovalAnswer, how: &str, body: &Value, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    check_id(
        id,
        "is no approval",
        "`offleash approvals ls` lists those that are open",
    )?;
    if !OwnDoors::find(at)?.decide(id, answer)? {
        at.client()?.post(&format!("/v1/approvals/{id}/{how}"), body)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A question as the server tells it.
fn shown(sandbox: &str, kind: &str, open: OpenApproval) -> Value {
    let (what, tool, parameters) = match open.about {
        ApprovalSubject::ToolCall { tool, parameters } => {
            let parameters: Value = serde_json::from_str(&parameters).unwrap_or_default();
            ("tool", tool, parameters)
        }
        ApprovalSubject::Connection { host, port, protocol } => {
            let parameters = json!({ "host": host.to_string(), "port": port, "protocol": protocol });
            ("connection", "connect".to_owned(), parameters)
        }
        // What the daemon asks is told by the daemon.
        about @ (ApprovalSubject::Command { .. } | ApprovalSubject::Restore { .. }) => {
            ("other", about.to_string(), Value::Null)
        }
    };
    json!({
        "id": format!("{sandbox}-{kind}{}", open.id), "sandbox": sandbox, "kind": what, "tool": tool, "parameters": parameters,
        "rule": open.rule, "left_ms": open.left_ms,
    })
}

/// The doors of sandboxes of `offleash mcp`, which no daemon knows.
struct OwnDoors {
    sandboxes: Option<SandboxDirectories>,
    runtime: tokio::runtime::Runtime,
}

impl OwnDoors {
    /// Those of this machine; there are none at a server.
    fn find(at: &ServerAt<'_>) -> Result<Self, Failure> {
        let state = match at {
            ServerAt::Here(state) => StateDirectory::open_existing(*state, &HostIdentity::of_this_process())?,
            ServerAt::There(_) => None,
        };
        let sandboxes = state.map(|state| state.own_sandboxes()).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::new(format!("cannot start an event loop: {error}")))?;
        Ok(Self { sandboxes, runtime })
    }

    fn open(&self) -> Result<Vec<Value>, Failure> {
        let mut all = Vec::new();
        let Some(sandboxes) = &self.sandboxes else {
            return Ok(all);
        };
        for id in sandboxes.ids().map_err(|error| Failure::from_error(&error))? {
            let path = sandboxes.path_of(&id);
            // One that does not answer has nothing to be decided.
            let of_tools = self.runtime.block_on(ToolsClient::in_directory(&path).approvals());
            let of_network = self.runtime.block_on(SupervisorClient::in_directory(&path).approvals());
            let of_tools = of_tools.unwrap_or_default().into_iter().map(|open| ("", open));
            let of_network = of_network.unwrap_or_default().into_iter().map(|open| ("n", open));
            all.extend(
                of_tools
                    .chain(of_network)
                    .map(|(kind, open)| shown(id.as_str(), kind, open)),
            );
        }
        Ok(all)
    }

    /// Answers a question; `false` where it is none of these sandboxes'.
    fn decide(&self, approval: &str, answer: ApprovalAnswer) -> Result<bool, Failure> {
        let (id, number) = approval.rsplit_once('-').unwrap_or_default();
        let of_network = number.strip_prefix('n');
        let asked = (id.parse::<RunId>(), of_network.unwrap_or(number).parse());
        let ((Ok(id), Ok(number)), Some(sandboxes)) = (asked, &self.sandboxes) else {
            return Ok(false);
        };
        let is_ours = || sandboxes.ids().is_ok_and(|ids| ids.contains(&id));
        if answer == ApprovalAnswer::Always && is_ours() {
            return Err(
                Failure::new("sandboxes of `offleash mcp` have no rules that an answer is written to").with_hint(
                    "`--for-sandbox` allows it in this one; the policy of `offleash mcp --policy FILE` for good",
                ),
            );
        }
        if of_network.is_some() {
            let supervisor = SupervisorClient::in_directory(&sandboxes.path_of(&id));
            return Ok(self
                .runtime
                .block_on(supervisor.decide(number, answer))
                .unwrap_or(false));
        }
        let door = ToolsClient::in_directory(&sandboxes.path_of(&id));
        let decided = door
            .is_there()
            .then(|| self.runtime.block_on(door.decide(number, answer)));
        let decided = decided.transpose();
        decided
            .map(|decided| decided.unwrap_or(false))
            .map_err(|error| Failure::new(format!("approval `{approval}` cannot be answered: {error}")))
    }
}
