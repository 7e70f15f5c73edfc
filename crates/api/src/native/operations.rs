//! The table of the native REST: what is asked for by which method and path, by whom, and with what answer.
//!
//! Requests are found in it and the OpenAPI document is made from it, so that neither knows what the other does not.

use http::Method;
use offleash_manager::daemon::Scope;
use serde_json::Value;

use super::cells::{CellEvent, NewCell, NewDefaultCell};
use super::contexts::{Context, ContextList, NewContext};
use super::schema::{Definitions, Schema};
use super::shapes::{
    Audit, Called, ForkList, KeyList, MadeKey, NewCommand, NewForks, NewKey, NewPolicy, NewRun, NewSandbox, Policy,
    Resume, RunResult, Sandbox, SandboxList, SandboxUsage, Usage, Version,
};

/// What the native REST does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    OpenApi,
    Version,
    Run,
    ListSandboxes,
    CreateSandbox,
    GetSandbox,
    KillSandbox,
    ResumeSandbox,
    ForkSandbox,
    RunInSandbox,
    Execute,
    ListContexts,
    CreateContext,
    GetContext,
    RemoveContext,
    RestartContext,
    InterruptContext,
    ExecuteInContext,
    SandboxUsage,
    GetPolicy,
    SetPolicy,
    WorkspaceDiff,
    WorkspaceApply,
    Called,
    Audit,
    Usage,
    ListKeys,
    CreateKey,
    RevokeKey,
}

/// One route.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) name: Name,
    pub(super) method: Method,
    /// Segments in braces stand for any.
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    /// What the key must have; none is asked for if absent.
    pub(super) scope: Option<Scope>,
    /// Parameters of the query, and what they are.
    pub(super) query: &'static [(&'static str, &'static str)],
    pub(super) request: Option<fn(&mut Definitions) -> Value>,
    pub(super) status: u16,
    pub(super) answer: Answer,
}

/// What is answered when all is well.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    /// Nothing that is described.
    Nothing,
    /// A JSON value.
    One(fn(&mut Definitions) -> Value),
    /// Lines of a JSON value each, as they come.
    Lines(fn(&mut Definitions) -> Value),
}

const LIST: &[(&str, &str)] = &[
    (
        "metadata",
        "labels that must be there, as a query of its own: `a=b&c=d`, encoded",
    ),
    ("state", "`running`, `paused` or both with a comma; both if absent"),
    ("limit", "1 to 100; 100 if absent"),
    ("nextToken", "where the page before ended"),
    ("order", "`asc` or `desc` by the time of their start; `desc` if absent"),
];
const AUDIT: &[(&str, &str)] = &[
    ("sandbox", "those of one sandbox"),
    ("limit", "1 to 1000; 100 if absent"),
    ("after", "those with a higher number, the oldest first"),
];

const CALLED: &[(&str, &str)] = &[(
    "ended",
    "`true`: if none that lives is called so, the last that was and has ended",
)];

const REVOKE: &[(&str, &str)] = &[(
    "stop_sandboxes",
    "`true` has the key's sandboxes ended, too, within seconds; the id may be that of a key that was removed before",
)];

macro_rules! operation {
    ($name:ident, $method:ident $path:literal, $scope:expr, $query:expr, $request:expr => $status:literal $answer:expr, $summary:literal) => {
        Operation {
            name: Name::$name,
            method: Method::$method,
            path: $path,
            summary: $summary,
            scope: $scope,
            query: $query,
            request: $request,
            status: $status,
            answer: $answer,
        }
    };
}

const READ: Option<Scope> = Some(Scope::Read);
const CREATE: Option<Scope> = Some(Scope::Create);
const ADMIN: Option<Scope> = Some(Scope::Admin);

/// A schema in the table.
type Shape = Option<fn(&mut Definitions) -> Value>;

const fn of<T: Schema>() -> Shape {
    Some(T::schema)
}

const NOTHING: Answer = Answer::Nothing;

const fn one<T: Schema>() -> Answer {
    Answer::One(T::schema)
}

const fn lines<T: Schema>() -> Answer {
    Answer::Lines(T::schema)
}

pub(super) static OPERATIONS: [Operation; 29] = [
    operation!(OpenApi, GET "/v1/openapi.json", None, &[], None => 200 NOTHING, "This document."),
    operation!(Version, GET "/v1/version", READ, &[], None => 200 one::<Version>(), "What the server is."),
    operation!(Run, POST "/v1/run", CREATE, &[], of::<NewRun>() => 200 one::<RunResult>(),
        "Makes a sandbox, runs a command in it and answers when the command has ended."),
    operation!(ListSandboxes, GET "/v1/sandboxes", READ, LIST, None => 200 one::<SandboxList>(), "Lists sandboxes."),
    operation!(CreateSandbox, POST "/v1/sandboxes", CREATE, &[], of::<NewSandbox>() => 201 one::<Sandbox>(),
        "Makes a sandbox."),
    operation!(GetSandbox, GET "/v1/sandboxes/{id}", READ, &[], None => 200 one::<Sandbox>(), "Shows a sandbox."),
    operation!(KillSandbox, DELETE "/v1/sandboxes/{id}", CREATE, &[], None => 204 NOTHING, "Kills a sandbox."),
    operation!(ResumeSandbox, POST "/v1/sandboxes/{id}/resume", CREATE, &[], of::<Resume>() => 200 one::<Sandbox>(),
        "Lets a paused sandbox go on; one that runs does already."),
    operation!(ForkSandbox, POST "/v1/sandboxes/{id}/fork", CREATE, &[], of::<NewForks>() => 201 one::<ForkList>(),
        "Makes sandboxes whose files and contexts of code begin as a copy of those of a running one, at one moment; each is made or not."),
    operation!(RunInSandbox, POST "/v1/sandboxes/{id}/run", CREATE, &[], of::<NewCommand>() => 200 one::<RunResult>(),
        "Runs a command in a sandbox and answers when it has ended."),
    operation!(Execute, POST "/v1/sandboxes/{id}/execute", CREATE, &[], of::<NewDefaultCell>() => 200 lines::<CellEvent>(),
        "Runs a cell of code in the default context of its language, which is made if it is not there, and tells what happens \
         as it does; a client that goes away interrupts the cell."),
    operation!(ListContexts, GET "/v1/sandboxes/{id}/contexts", READ, &[], None => 200 one::<ContextList>(),
        "Lists the contexts of code of a sandbox, in the order in which they were made."),
    operation!(CreateContext, POST "/v1/sandboxes/{id}/contexts", CREATE, &[], of::<NewContext>() => 201 one::<Context>(),
        "Makes a context of code and answers when it is ready."),
    operation!(GetContext, GET "/v1/sandboxes/{id}/contexts/{context}", READ, &[], None => 200 one::<Context>(),
        "Shows a context."),
    operation!(RemoveContext, DELETE "/v1/sandboxes/{id}/contexts/{context}", CREATE, &[], None => 204 NOTHING,
        "Ends a context, and the cell that runs in it."),
    operation!(RestartContext, POST "/v1/sandboxes/{id}/contexts/{context}/restart", CREATE, &[], None => 204 NOTHING,
        "Ends what runs in a context, with all its state, and starts it anew."),
    operation!(InterruptContext, POST "/v1/sandboxes/{id}/contexts/{context}/interrupt", CREATE, &[], None => 204 NOTHING,
        "Interrupts the cell that runs in a context, if one does; what it ends with is told to whoever runs it."),
    operation!(ExecuteInContext, POST "/v1/sandboxes/{id}/contexts/{context}/execute", CREATE, &[],
        of::<NewCell>() => 200 lines::<CellEvent>(),
        "Runs a cell of code in a context, after those that wait there, and tells what happens as it does; a client that goes \
         away interrupts the cell."),
    operation!(SandboxUsage, GET "/v1/sandboxes/{id}/usage", READ, &[], None => 200 one::<SandboxUsage>(),
        "Says what a sandbox uses now."),
    operation!(GetPolicy, GET "/v1/sandboxes/{id}/policy", READ, &[], None => 200 one::<Policy>(),
        "Says what a sandbox may reach."),
    operation!(SetPolicy, PUT "/v1/sandboxes/{id}/policy", CREATE, &[], of::<NewPolicy>() => 204 NOTHING,
        "Replaces what a sandbox may reach."),
    operation!(WorkspaceDiff, GET "/v1/sandboxes/{id}/workspace/diff", READ, &[], None => 501 NOTHING,
        "Will show what changed in a workspace of the host; sandboxes of the server have none yet."),
    operation!(WorkspaceApply, POST "/v1/sandboxes/{id}/workspace/apply", CREATE, &[], None => 501 NOTHING,
        "Will write changes back to a workspace of the host; sandboxes of the server have none yet."),
    operation!(Called, GET "/v1/names/{name}", READ, CALLED, None => 200 one::<Called>(), "Says which sandbox a name stands for."),
    operation!(Audit, GET "/v1/audit", READ, AUDIT, None => 200 one::<Audit>(),
        "Says what happened to sandboxes, the newest first unless `after` is given; to everybody's with the scope `admin`."),
    operation!(Usage, GET "/v1/usage", READ, &[], None => 200 one::<Usage>(), "Says how much the caller has, and may have."),
    operation!(ListKeys, GET "/v1/keys", ADMIN, &[], None => 200 one::<KeyList>(), "Lists keys."),
    operation!(CreateKey, POST "/v1/keys", ADMIN, &[], of::<NewKey>() => 201 one::<MadeKey>(), "Makes a key."),
    operation!(RevokeKey, DELETE "/v1/keys/{id}", ADMIN, REVOKE, None => 204 NOTHING, "Makes a key invalid, for good."),
];

/// The segments of a path that stand in place of those in braces, in their order; empty where there are fewer.
pub(super) type Segments<'a> = [&'a str; 2];

/// What a request asks for, and which segments of its path say of what.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    Operation(&'static Operation, Segments<'a>),
    /// The path is one, but not with this method.
    OtherMethod,
    Nothing,
}

impl PartialEq for Operation {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Operation {}

/// Finds the route of a request.
pub(super) fn find<'a>(method: &Method, path: &'a str) -> Found<'a> {
    let mut found = Found::Nothing;
    for operation in &OPERATIONS {
        let Some(segments) = matched(operation.path, path) else {
            continue;
        };
        if operation.method == *method {
            return Found::Operation(operation, segments);
        }
        found = Found::OtherMethod;
    }
    found
}

/// The segments in place of those in braces, when the path fits.
fn matched<'a>(pattern: &str, path: &'a str) -> Option<Segments<'a>> {
    let mut found = Segments::default();
    let mut places = found.iter_mut();
    let mut given = path.split('/');
    for expected in pattern.split('/') {
        let segment = given.next()?;
        if expected.starts_with('{') {
            *places.next()? = segment;
        } else if expected != segment {
            return None;
        }
    }
    given.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_find_their_route() {
        let name = |method: &Method, path: &str| match find(method, path) {
            Found::Operation(operation, segments) => Some((operation.name, segments.map(str::to_owned))),
            _ => None,
        };
        let found = |operation: Name, segments: Segments<'_>| Some((operation, segments.map(str::to_owned)));
        assert_eq!(name(&Method::POST, "/v1/run"), found(Name::Run, ["", ""]));
        assert_eq!(
            name(&Method::GET, "/v1/sandboxes/i1"),
            found(Name::GetSandbox, ["i1", ""])
        );
        assert_eq!(
            name(&Method::POST, "/v1/sandboxes/i1/contexts/c2/restart"),
            found(Name::RestartContext, ["i1", "c2"])
        );
        assert_eq!(name(&Method::DELETE, "/v1/keys/"), found(Name::RevokeKey, ["", ""]));
        assert_eq!(find(&Method::GET, "/v1/run"), Found::OtherMethod);
        for path in [
            "/v1",
            "/v1/",
            "/v1/run/",
            "/v1/sandboxes/i1/",
            "/v1/sandboxes/a/b/run",
            "/v1/sandboxes/a/contexts/b/c/restart",
            "/v2/run",
        ] {
            assert_eq!(find(&Method::GET, path), Found::Nothing, "{path}");
        }
    }

    #[test]
    fn every_route_is_there_once() {
        for (index, one) in OPERATIONS.iter().enumerate() {
            for other in &OPERATIONS[index + 1..] {
                assert!(one.name != other.name, "{one:?}");
                assert!((&one.method, one.path) != (&other.method, other.path), "{one:?}");
            }
        }
    }
}
