//! One conversation: which sandbox is its own, and who answers which request.

use std::sync::Arc;

use http::request::Parts;
use offleash_daemon::CarriedContexts;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use tokio::sync::Mutex;

use super::arguments::{self, ForkArguments, KillSandboxArguments};
use super::asking;
use super::backing::{CreateArguments, OpenedSandbox, SandboxBacking};
use super::definitions::{self, ToolName};
use super::failure::{ToolError, ToolErrorKind};
use super::resources;

/// What a model is told at the beginning.
const INSTRUCTIONS: &str = "Tools to run code and commands in a sandbox, and to work with its files. The first call \
    makes a sandbox for this session; its files and the state of its interpreters stay until the session ends or \
    kill_sandbox is called. Nothing in a sandbox reaches the machine outside, and networks only as its owner allowed.";

/// The header by which requests over HTTP belong to a session.
pub(super) const SESSION_HEADER: &str = "mcp-session-id";

/// One conversation. Over HTTP, requests of a protocol without sessions have one each.
#[derive(Debug)]
pub(super) struct ToolSession<B: SandboxBacking> {
    backing: Arc<B>,
    /// The id of its own sandbox.
    own: Mutex<Option<String>>,
}

/// A sandbox for a call.
pub(super) struct ChosenSandbox {
    pub(super) opened: OpenedSandbox,
    /// Whether it was made for this call, and the caller must be told its id to use it again.
    is_news: bool,
    /// Whether it is the session's own.
    is_own: bool,
}

impl<B: SandboxBacking> ToolSession<B> {
    pub(super) fn new(backing: B) -> Self {
        Self {
            backing: Arc::new(backing),
            own: Mutex::default(),
        }
    }

    pub(super) fn backing(&self) -> &B {
        &self.backing
    }

    /// The sandbox that is named, or that of the session, which is made if there is none.
    async fn choose(
        &self,
        named: Option<&str>,
        context: &RequestContext<RoleServer>,
    ) -> Result<ChosenSandbox, ToolError> {
        if let Some(id) = named {
            let opened = self.open(id).await?;
            let (is_news, is_own) = (false, false);
            return Ok(ChosenSandbox {
                opened,
                is_news,
                is_own,
            });
        }
        if is_alone(context) {
            let opened = self.backing.create(CreateArguments::default()).await?;
            let (is_news, is_own) = (true, false);
            return Ok(ChosenSandbox {
                opened,
                is_news,
                is_own,
            });
        }
        let mut own = self.own.lock().await;
        let (is_news, is_own) = (false, true);
        if let Some(id) = &*own {
            match self.backing.open(id).await {
                Ok(opened) => {
                    return Ok(ChosenSandbox {
                        opened,
                        is_news,
                        is_own,
                    });
                }
                Err(error) if matches!(error.what, ToolErrorKind::NotFound) => {
                    *own = None;
                    return Err(lost(None));
                }
                Err(error) => return Err(error),
            }
        }
        let opened = self.backing.create(CreateArguments::default()).await?;
        *own = Some(opened.id.clone());
        Ok(ChosenSandbox {
            opened,
            is_news,
            is_own,
        })
    }

    pub(super) async fn open(&self, id: &str) -> Result<OpenedSandbox, ToolError> {
        if !crate::http::destination::is_id(id) {
            return Err(ToolError::not_found("`sandbox` is not the id of a sandbox")
                .with_hint("leave it out to use the sandbox of this session"));
        }
        self.backing.open(id).await
    }

    /// The session's own sandbox, if it has one.
    pub(super) async fn own(&self) -> Option<OpenedSandbox> {
        let id = self.own.lock().await.clone()?;
        self.backing.open(&id).await.ok()
    }

    async fn call(
        &self,
        name: ToolName,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ToolError> {
        let given = request.arguments;
        match name {
            ToolName::RunCode => {
                let asked: arguments::RunCodeArguments = arguments::read(given)?;
                let chosen = self.choose(asked.sandbox.as_deref(), context).await?;
                let work = super::run::code(&chosen.opened, asked, self.backing.longest(), context);
                let done = asking::with_answers(&context.peer, &chosen.opened.supervisor.tools(), work).await;
                self.finish(chosen, done).await
            }
            ToolName::RunCommand => {
                let asked: arguments::RunCommandArguments = arguments::read(given)?;
                let chosen = self.choose(asked.sandbox.as_deref(), context).await?;
                let work = super::run::command(&chosen.opened, asked, self.backing.longest(), context);
                let done = asking::with_answers(&context.peer, &chosen.opened.supervisor.tools(), work).await;
                self.finish(chosen, done).await
            }
            ToolName::ReadFile => {
                let asked: arguments::ReadFileArguments = arguments::read(given)?;
                let chosen = self.choose(asked.sandbox.as_deref(), context).await?;
                let done = super::files::read(&chosen.opened, &asked).await;
                self.finish(chosen, done).await
            }
            ToolName::WriteFile => {
                let asked: arguments::WriteFileArguments = arguments::read(given)?;
                let chosen = self.choose(asked.sandbox.as_deref(), context).await?;
                let done = super::files::write(&chosen.opened, &asked).await;
                self.finish(chosen, done).await
            }
            ToolName::ListFiles => {
                let asked: arguments::ListFilesArguments = arguments::read(given)?;
                let chosen = self.choose(asked.sandbox.as_deref(), context).await?;
                let done = super::files::list(&chosen.opened, &asked).await;
                self.finish(chosen, done).await
            }
            ToolName::CreateSandbox => {
                let new: CreateArguments = arguments::read(given)?;
                if !B::CAN_BE_TOLD && !new.is_usual() {
                    return Err(
                        ToolError::new("sandboxes are as the command line of `offleash mcp` says")
                            .with_hint("call create_sandbox without arguments"),
                    );
                }
                let opened = self.backing.create(new).await?;
                Ok(CallToolResult::success(vec![ContentBlock::text(told_of(&opened))]))
            }
            ToolName::KillSandbox => {
                let asked: KillSandboxArguments = arguments::read(given)?;
                self.kill(asked.sandbox.as_deref()).await
            }
            ToolName::Fork => {
                let asked: ForkArguments = arguments::read(given)?;
                self.fork(asked).await
            }
        }
    }

    /// Makes forks of the sandbox that is named, or of the session's own.
    async fn fork(&self, asked: ForkArguments) -> Result<CallToolResult, ToolError> {
        let own = self.own.lock().await.clone();
        let Some(id) = asked.sandbox.or(own) else {
            return Err(
                ToolError::not_found("this session has no sandbox yet that could be forked")
                    .with_hint("pass `sandbox`, or run something first"),
            );
        };
        self.open(&id).await?;
        let contexts = asked.contexts.as_deref().map(CarriedContexts::parse).transpose()?;
        let (count, contexts) = (asked.count.unwrap_or(1), contexts.unwrap_or_default());
        let forks = self.backing.fork(&id, count, contexts).await?;
        let line = |fork: Result<String, ToolError>| match fork {
            Ok(id) => format!("sandbox: {id}"),
            Err(error) => format!("not made: {}", error.message),
        };
        let made = forks.iter().any(Result::is_ok);
        let lines: Vec<String> = forks.into_iter().map(line).collect();
        let content = vec![ContentBlock::text(lines.join("\n"))];
        Ok(if made {
            CallToolResult::success(content)
        } else {
            CallToolResult::error(content)
        })
    }

    /// What a tool did, with what must be said of its sandbox.
    async fn finish(
        &self,
        chosen: ChosenSandbox,
        done: Result<CallToolResult, ToolError>,
    ) -> Result<CallToolResult, ToolError> {
        match done {
            Ok(mut result) => {
                if chosen.is_news {
                    result.content.push(ContentBlock::text(told_of(&chosen.opened)));
                }
                Ok(result)
            }
            Err(ToolError {
                what: ToolErrorKind::Gone(told),
                ..
            }) => {
                let id = &chosen.opened.id;
                let why = self.backing.bury(id).await.or(told);
                let mut own = self.own.lock().await;
                if own.as_deref() == Some(id) {
                    *own = None;
                }
                drop(own);
                if chosen.is_own {
                    return Err(lost(why.as_deref()));
                }
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                Err(ToolError::new(format!("the sandbox `{id}` has ended{why}"))
                    .with_hint("create_sandbox makes another"))
            }
            Err(error) => Err(error),
        }
    }

    async fn kill(&self, named: Option<&str>) -> Result<CallToolResult, ToolError> {
        let mut own = self.own.lock().await;
        let id = match named {
            Some(id) if crate::http::destination::is_id(id) => id.to_owned(),
            Some(_) => return Err(ToolError::not_found("`sandbox` is not the id of a sandbox")),
            None => match own.clone() {
                Some(id) => id,
                None => {
                    return Err(ToolError::not_found("this session has no sandbox")
                        .with_hint("name one with `sandbox`; there is nothing to be ended otherwise"));
                }
            },
        };
        if own.as_ref() == Some(&id) {
            *own = None;
        }
        self.backing.kill(&id).await?;
        Ok(CallToolResult::success(vec![ContentBlock::text(format!(
            "the sandbox `{id}` has ended"
        ))]))
    }

    fn result_of(&self, error: ToolError) -> CallToolResult {
        let message = match &error.what {
            ToolErrorKind::Internal(cause) => self.backing.internal(&error.message, &**cause),
            _ => error.message,
        };
        let mut text = format!("error: {message}");
        if let Some(hint) = error.hint {
            text.push_str(&format!("\nhint: {hint}"));
        }
        CallToolResult::error(vec![ContentBlock::text(text)])
    }
}

impl<B: SandboxBacking> Drop for ToolSession<B> {
    fn drop(&mut self) {
        if let Some(id) = self.own.get_mut().take() {
            self.backing.leave(id);
        }
    }
}

/// Whether a request stands alone, so that what it makes must be named to be found again.
fn is_alone(context: &RequestContext<RoleServer>) -> bool {
    let over_http = context.extensions.get::<Parts>();
    over_http.is_some_and(|parts| !parts.headers.contains_key(SESSION_HEADER))
}

fn lost(why: Option<&str>) -> ToolError {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    ToolError::new(format!(
        "the sandbox of this session has ended{why}; its files and state are lost"
    ))
    .with_hint("the next call makes a new, empty one")
}

fn told_of(opened: &OpenedSandbox) -> String {
    let mut text = format!(
        "sandbox: {}\nworking directory: {}\nPass this id as `sandbox` to go on in it.",
        opened.id, opened.cwd
    );
    for note in &opened.notes {
        text.push_str(&format!("\nnote: {note}"));
    }
    text
}

impl CreateArguments {
    fn is_usual(&self) -> bool {
        let Self {
            template,
            image,
            internet,
            env,
            volumes,
            timeout_seconds,
            idle_seconds,
            level,
        } = self;
        let texts = [template, image, level];
        let has_numbers = timeout_seconds.is_some() || idle_seconds.is_some();
        texts.iter().all(|text| text.is_none())
            && !has_numbers
            && internet.is_none()
            && env.is_none()
            && volumes.is_none()
    }
}

impl<B: SandboxBacking> ServerHandler for ToolSession<B> {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let own_name = Implementation::new("offleash", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities)
            .with_server_info(own_name)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools().into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(name) = ToolName::parse(&request.name) else {
            let shown: String = request.name.chars().take(60).collect();
            let message = format!(
                "there is no tool `{}`; there are: {}",
                shown.escape_debug(),
                ToolName::list(B::CAN_FORK)
            );
            return Err(ErrorData::invalid_params(message, None));
        };
        let done = self.call(name, request, &context).await;
        Ok(done.unwrap_or_else(|error| self.result_of(error)).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(resources::list(self).await))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![resources::template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(self, &request.uri).await.map(Into::into)
    }
}

impl<B: SandboxBacking> ToolSession<B> {
    fn tools(&self) -> Vec<Tool> {
        definitions::tools(B::CAN_BE_TOLD, B::CAN_FORK, self.backing.longest().as_secs().max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_asked_of_a_sandbox_is_not_usual() {
        let read = |text: &str| serde_json::from_str::<CreateArguments>(text).unwrap();
        assert!(read("{}").is_usual());
        for asked in [
            r#"{"template":"base"}"#,
            r#"{"image":"a"}"#,
            r#"{"internet":false}"#,
            r#"{"env":{}}"#,
            r#"{"volumes":[]}"#,
            r#"{"timeout_seconds":1}"#,
            r#"{"idle_seconds":0}"#,
            r#"{"level":"process"}"#,
        ] {
            assert!(!read(asked).is_usual(), "{asked}");
        }
    }
}
