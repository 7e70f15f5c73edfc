//! The routes of the native REST.

use http::Method;

use super::openapi::{QueryDocs, RouteSchemas};
use super::{ADMIN, CREATE, READ, RouteEntry, RouteHandler, at_once, document, route};
use crate::cells::MAX_CELL_BODY;
use crate::http::json::MAX_BODY;
use crate::native::{
    AuditAnswer, CellEvent, CheckpointList, ContextAnswer, ContextList, ForkList, KeyList, MadeKey, NameAnswer,
    NewCell, NewCheckpoint, NewCommand, NewContext, NewDefaultCell, NewForks, NewImport, NewKey, NewPolicy, NewRun,
    NewSandbox, NewSnapshot, NewVolume, PauseBody, PolicyAnswer, RestoreBody, ResumeBody, RunResult, SandboxAnswer,
    SandboxList, SandboxUsage, SnapshotAnswer, SnapshotList, UsageAnswer, VersionAnswer, VolumeAnswer, VolumeList,
    cells, contexts, keys, run, sandboxes, server, snapshots, volumes,
};

/// No body is read.
const NO_BODY: Option<usize> = None;
/// A body of JSON.
const BODY: Option<usize> = Some(MAX_BODY);
/// A body with code in it.
const CELL: Option<usize> = Some(MAX_CELL_BODY);

/// What is described of a route that answers with `status`.
const fn answers(status: u16) -> RouteSchemas {
    RouteSchemas::answers(status)
}

/// Of a list of sandboxes.
const LIST: QueryDocs = &[
    (
        "metadata",
        "labels that must be there, as a query of its own: `a=b&c=d`, encoded",
    ),
    ("state", "`running`, `paused` or both with a comma; both if absent"),
    ("limit", "1 to 100; 100 if absent"),
    ("nextToken", "where the page before ended"),
    ("order", "`asc` or `desc` by the time of their start; `desc` if absent"),
];

/// Of a list of snapshots.
const SNAPSHOTS: QueryDocs = &[
    ("sandbox", "those of one sandbox"),
    ("name", "the one of that name"),
    ("limit", "1 to 100; 100 if absent"),
    ("nextToken", "where the page before ended"),
];

/// Of the audit log.
const AUDIT: QueryDocs = &[
    ("sandbox", "those of one sandbox"),
    ("limit", "1 to 1000; 100 if absent"),
    ("after", "those with a higher number, the oldest first"),
];

/// Of a name.
const CALLED: QueryDocs = &[(
    "ended",
    "`true`: if none that lives is called so, the last that was and has ended",
)];

/// Of the end of a key.
const REVOKE: QueryDocs = &[(
    "stop_sandboxes",
    "`true` has the key's sandboxes ended, too, within seconds; the id may be that of a key that was removed before",
)];

pub(super) static ROUTES: [RouteEntry; 43] = [
    RouteEntry {
        operation: "OpenApi",
        method: Method::GET,
        path: "/v1/openapi.json",
        max_body: NO_BODY,
        summary: "Describes these routes, as OpenAPI.",
        schemas: Some(answers(200)),
        handler: RouteHandler::Open(document),
    },
    route!("Version", GET "/v1/version", READ, NO_BODY,
        "What the server is.",
        Some(answers(200).with::<VersionAnswer>()),
        |call| at_once(Ok(server::version(call.asked)))),
    route!("Run", POST "/v1/run", CREATE, BODY,
        "Makes a sandbox, runs a command in it and answers when the command has ended.",
        Some(answers(200).reads::<NewRun>().with::<RunResult>()),
        |call| Box::pin(run::run(call.asked, call.body))),
    route!("ListSandboxes", GET "/v1/sandboxes", READ, NO_BODY,
        "Lists sandboxes.",
        Some(answers(200).with_query(LIST).with::<SandboxList>()),
        |call| at_once(sandboxes::list(call.asked))),
    route!("CreateSandbox", POST "/v1/sandboxes", CREATE, BODY,
        "Makes a sandbox.",
        Some(answers(201).reads::<NewSandbox>().with::<SandboxAnswer>()),
        |call| Box::pin(sandboxes::create(call.asked, call.body))),
    route!("GetSandbox", GET "/v1/sandboxes/{id}", READ, NO_BODY,
        "Shows a sandbox.",
        Some(answers(200).with::<SandboxAnswer>()),
        |call| at_once(sandboxes::get(call.asked, call.first()))),
    route!("KillSandbox", DELETE "/v1/sandboxes/{id}", CREATE, NO_BODY,
        "Kills a sandbox.",
        Some(answers(204)),
        |call| Box::pin(sandboxes::kill(call.asked, call.first()))),
    route!("PauseSandbox", POST "/v1/sandboxes/{id}/pause", CREATE, BODY,
        "Pauses a sandbox, with its memory or with its files alone.",
        Some(answers(200).reads::<PauseBody>().with::<SandboxAnswer>()),
        |call| Box::pin(sandboxes::pause(call.asked, call.first(), call.body))),
    route!("ResumeSandbox", POST "/v1/sandboxes/{id}/resume", CREATE, BODY,
        "Lets a paused sandbox go on; one that runs does already.",
        Some(answers(200).reads::<ResumeBody>().with::<SandboxAnswer>()),
        |call| Box::pin(sandboxes::resume(call.asked, call.first(), call.body))),
    route!("ForkSandbox", POST "/v1/sandboxes/{id}/fork", CREATE, BODY,
        "Makes sandboxes whose files and contexts of code begin as a copy of those of another one, running or paused, at one moment; each is made or not.",
        Some(answers(201).reads::<NewForks>().with::<ForkList>()),
        |call| Box::pin(sandboxes::fork(call.asked, call.first(), call.body))),
    route!("CreateSnapshot", POST "/v1/sandboxes/{id}/snapshots", CREATE, BODY,
        "Makes a snapshot of the files and contexts of code of a sandbox, running or paused, of which others can be made; it stands still for a moment.",
        Some(answers(201).reads::<NewSnapshot>().with::<SnapshotAnswer>()),
        |call| Box::pin(snapshots::create(call.asked, call.first(), call.body))),
    route!("ListSnapshots", GET "/v1/snapshots", READ, NO_BODY,
        "Lists snapshots, the newest first.",
        Some(answers(200).with_query(SNAPSHOTS).with::<SnapshotList>()),
        |call| at_once(snapshots::list(call.asked))),
    route!("ImportSnapshot", POST "/v1/snapshots", CREATE, BODY,
        "Takes a snapshot in whose files the owner of the machine put into the state directory, as `offleash snapshot import` does.",
        Some(answers(201).reads::<NewImport>().with::<SnapshotAnswer>()),
        |call| Box::pin(snapshots::import(call.asked, call.body))),
    route!("GetSnapshot", GET "/v1/snapshots/{snapshot}", READ, NO_BODY,
        "Shows a snapshot, by its id or its name.",
        Some(answers(200).with::<SnapshotAnswer>()),
        |call| at_once(snapshots::get(call.asked, call.first()))),
    route!("RemoveSnapshot", DELETE "/v1/snapshots/{snapshot}", CREATE, NO_BODY,
        "Removes a snapshot; sandboxes made of it go on, and its files go with the last of them.",
        Some(answers(204)),
        |call| Box::pin(snapshots::remove(call.asked, call.first()))),
    route!("CreateCheckpoint", POST "/v1/sandboxes/{id}/checkpoints", CREATE, BODY,
        "Makes a checkpoint of the files of a running sandbox, to which it can be put back; it stands still for a moment.",
        Some(answers(201).reads::<NewCheckpoint>().with::<SnapshotAnswer>()),
        |call| Box::pin(snapshots::create_checkpoint(call.asked, call.first(), call.body))),
    route!("ListCheckpoints", GET "/v1/sandboxes/{id}/checkpoints", READ, NO_BODY,
        "Lists the checkpoints of a sandbox, the oldest first.",
        Some(answers(200).with::<CheckpointList>()),
        |call| at_once(snapshots::list_checkpoints(call.asked, call.first()))),
    route!("RemoveCheckpoint", DELETE "/v1/sandboxes/{id}/checkpoints/{checkpoint}", CREATE, NO_BODY,
        "Removes a checkpoint.",
        Some(answers(204)),
        |call| Box::pin(snapshots::remove_checkpoint(call.asked, call.segments))),
    route!("RestoreSandbox", POST "/v1/sandboxes/{id}/restore", CREATE, BODY,
        "Puts a sandbox back to a checkpoint: its processes end, its files are those of the checkpoint, all else stays.",
        Some(answers(200).reads::<RestoreBody>().with::<SandboxAnswer>()),
        |call| Box::pin(snapshots::restore(call.asked, call.first(), call.body))),
    route!("RunInSandbox", POST "/v1/sandboxes/{id}/run", CREATE, BODY,
        "Runs a command in a sandbox and answers when it has ended.",
        Some(answers(200).reads::<NewCommand>().with::<RunResult>()),
        |call| Box::pin(run::run_in(call.asked, call.first(), call.body))),
    route!("Execute", POST "/v1/sandboxes/{id}/execute", CREATE, CELL,
        "Runs a cell of code in the default context of its language, which is made if it is not there, and tells what happens \
         as it does; a client that goes away interrupts the cell.",
        Some(answers(200).reads::<NewDefaultCell>().with_lines::<CellEvent>()),
        |call| Box::pin(cells::execute_in_default(call.asked, call.first(), call.body))),
    route!("ListContexts", GET "/v1/sandboxes/{id}/contexts", READ, NO_BODY,
        "Lists the contexts of code of a sandbox, in the order in which they were made.",
        Some(answers(200).with::<ContextList>()),
        |call| Box::pin(contexts::list(call.asked, call.first()))),
    route!("CreateContext", POST "/v1/sandboxes/{id}/contexts", CREATE, BODY,
        "Makes a context of code and answers when it is ready.",
        Some(answers(201).reads::<NewContext>().with::<ContextAnswer>()),
        |call| Box::pin(contexts::create(call.asked, call.first(), call.body))),
    route!("GetContext", GET "/v1/sandboxes/{id}/contexts/{context}", READ, NO_BODY,
        "Shows a context.",
        Some(answers(200).with::<ContextAnswer>()),
        |call| Box::pin(contexts::get(call.asked, call.segments))),
    route!("RemoveContext", DELETE "/v1/sandboxes/{id}/contexts/{context}", CREATE, NO_BODY,
        "Ends a context, and the cell that runs in it.",
        Some(answers(204)),
        |call| Box::pin(contexts::remove(call.asked, call.segments))),
    route!("RestartContext", POST "/v1/sandboxes/{id}/contexts/{context}/restart", CREATE, NO_BODY,
        "Ends what runs in a context, with all its state, and starts it anew.",
        Some(answers(204)),
        |call| Box::pin(contexts::restart(call.asked, call.segments))),
    route!("InterruptContext", POST "/v1/sandboxes/{id}/contexts/{context}/interrupt", CREATE, NO_BODY,
        "Interrupts the cell that runs in a context, if one does; what it ends with is told to whoever runs it.",
        Some(answers(204)),
        |call| Box::pin(contexts::interrupt(call.asked, call.segments))),
    route!("ExecuteInContext", POST "/v1/sandboxes/{id}/contexts/{context}/execute", CREATE, CELL,
        "Runs a cell of code in a context, after those that wait there, and tells what happens as it does; a client that goes \
         away interrupts the cell.",
        Some(answers(200).reads::<NewCell>().with_lines::<CellEvent>()),
        |call| Box::pin(cells::execute(call.asked, call.segments, call.body))),
    route!("SandboxUsage", GET "/v1/sandboxes/{id}/usage", READ, NO_BODY,
        "Says what a sandbox uses now.",
        Some(answers(200).with::<SandboxUsage>()),
        |call| Box::pin(sandboxes::usage(call.asked, call.first()))),
    route!("GetPolicy", GET "/v1/sandboxes/{id}/policy", READ, NO_BODY,
        "Says what a sandbox may reach.",
        Some(answers(200).with::<PolicyAnswer>()),
        |call| at_once(sandboxes::get_policy(call.asked, call.first()))),
    route!("SetPolicy", PUT "/v1/sandboxes/{id}/policy", CREATE, BODY,
        "Replaces what a sandbox may reach.",
        Some(answers(204).reads::<NewPolicy>()),
        |call| Box::pin(sandboxes::set_policy(call.asked, call.first(), call.body))),
    route!("WorkspaceDiff", GET "/v1/sandboxes/{id}/workspace/diff", READ, NO_BODY,
        "Will show what changed in a workspace of the host; sandboxes of the server have none yet.",
        Some(answers(501)),
        |call| at_once(sandboxes::workspace(call.asked, call.first()))),
    route!("WorkspaceApply", POST "/v1/sandboxes/{id}/workspace/apply", CREATE, NO_BODY,
        "Will write changes back to a workspace of the host; sandboxes of the server have none yet.",
        Some(answers(501)),
        |call| at_once(sandboxes::workspace(call.asked, call.first()))),
    route!("Called", GET "/v1/names/{name}", READ, NO_BODY,
        "Says which sandbox a name stands for.",
        Some(answers(200).with_query(CALLED).with::<NameAnswer>()),
        |call| Box::pin(sandboxes::called(call.asked, call.first()))),
    route!("Audit", GET "/v1/audit", READ, NO_BODY,
        "Says what happened to sandboxes, the newest first unless `after` is given; to everybody's with the scope `admin`.",
        Some(answers(200).with_query(AUDIT).with::<AuditAnswer>()),
        |call| Box::pin(server::audit(call.asked))),
    route!("Usage", GET "/v1/usage", READ, NO_BODY,
        "Says how much the caller has, and may have.",
        Some(answers(200).with::<UsageAnswer>()),
        |call| at_once(server::usage(call.asked))),
    route!("ListVolumes", GET "/v1/volumes", READ, NO_BODY,
        "Lists volumes.",
        Some(answers(200).with::<VolumeList>()),
        |call| Box::pin(volumes::list(call.asked))),
    route!("CreateVolume", POST "/v1/volumes", CREATE, BODY,
        "Makes a volume.",
        Some(answers(201).reads::<NewVolume>().with::<VolumeAnswer>()),
        |call| Box::pin(volumes::create(call.asked, call.body))),
    route!("GetVolume", GET "/v1/volumes/{volume}", CREATE, NO_BODY,
        "Shows a volume.",
        Some(answers(200).with::<VolumeAnswer>()),
        |call| Box::pin(volumes::get(call.asked, call.first()))),
    route!("RemoveVolume", DELETE "/v1/volumes/{volume}", CREATE, NO_BODY,
        "Removes a volume that no sandbox uses.",
        Some(answers(204)),
        |call| Box::pin(volumes::remove(call.asked, call.first()))),
    route!("ListKeys", GET "/v1/keys", ADMIN, NO_BODY,
        "Lists keys.",
        Some(answers(200).with::<KeyList>()),
        |call| Box::pin(keys::list(call.asked))),
    route!("CreateKey", POST "/v1/keys", ADMIN, BODY,
        "Makes a key.",
        Some(answers(201).reads::<NewKey>().with::<MadeKey>()),
        |call| Box::pin(keys::create(call.asked, call.body))),
    route!("RevokeKey", DELETE "/v1/keys/{id}", ADMIN, NO_BODY,
        "Makes a key invalid, for good.",
        Some(answers(204).with_query(REVOKE)),
        |call| Box::pin(keys::revoke(call.asked, call.first()))),
];
