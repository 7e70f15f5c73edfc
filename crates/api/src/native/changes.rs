//! What was changed, in the native REST: in sandboxes, and by runs whose changes are kept, which can be applied or dropped.

use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use http::{Response, StatusCode};
use offleash_core::text::{Text, decode_base64, encode_base64, one_line};
use offleash_daemon::{AppliedChanges, ApplyOrder, ChangeList, ChangeView, DiffView, KeptRun};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::http::query;

/// Runs of this state directory whose changes are kept.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "KeptRunList")]
pub(crate) struct RunList {
    /// The newest first, 1000 at most.
    runs: Vec<RunAnswer>,
}

/// A run whose changes are kept, or were.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "KeptRun")]
struct RunAnswer {
    /// Its id.
    id: String,
    /// `running`, `kept`, `crashed`, `applied`, `discarded` or `damaged`.
    state: String,
    /// Program and arguments, each in one line.
    command: Vec<String>,
    /// What it is part of, as in `template build`; `null` if a person asked for it by itself.
    purpose: Option<String>,
    /// When it started.
    started_at: String,
    /// The directory that its changes are for.
    workspace: Option<String>,
}

/// What was changed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChangeList")]
pub(crate) struct ChangesAnswer {
    /// By path, 5000 at most.
    changes: Vec<ChangeAnswer>,
    /// Whether there are more.
    more: bool,
    /// How many files and directories could not be looked at.
    unreadable: u64,
}

/// One change.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Change")]
struct ChangeAnswer {
    /// Where: of a run relative to the workspace, or absolute outside of it; of a sandbox absolute inside. Bytes that are
    /// no text are replaced in it.
    path: String,
    /// The same in base64, where it has such bytes.
    path_base64: Option<String>,
    /// `added`, `modified`, `deleted`, `mode_changed`, `symlink_changed`, `type_changed`, or `replaced`: a directory of which
    /// all that was in it is gone.
    kind: String,
    /// What is there now, or was: `file`, `directory`, `symlink`, `fifo`, `socket` or `device`.
    entry: String,
    /// Bytes before, of a file.
    size_before: Option<u64>,
    /// Bytes now, of a file.
    size_after: Option<u64>,
    /// Why it is not applied unless that is said; `null` if it is.
    held_back: Option<String>,
}

/// A change as text.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChangeDiff")]
pub(crate) struct DiffAnswer {
    /// `text`, `binary`, `too_large`, `unreadable` or `metadata`: what the patch holds.
    form: String,
    /// A patch in git's form. Bytes that are no text are replaced in it.
    patch: String,
    /// Whether that is the beginning alone: 1 MiB.
    cut: bool,
    /// Lines that were added.
    added_lines: u64,
    /// Lines that were removed.
    removed_lines: u64,
}

/// Which changes are applied.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplyBody {
    /// Those at or beneath these paths; with `paths_base64` absent, too, all.
    paths: Option<Vec<String>>,
    /// The same for paths that are no text, in base64.
    paths_base64: Option<Vec<String>>,
    /// Whether nothing beneath the paths is meant; it is if absent. New directories that they are in are made.
    exactly: Option<bool>,
    /// Whether those at the paths are meant, too, that are held back; of a directory that is, also what is in it. Not if absent.
    held_back: Option<bool>,
}

/// Drops the changes of a run.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiscardBody {}

/// What became of changes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AppliedChanges")]
pub(crate) struct AppliedAnswer {
    /// Paths that were written back.
    applied: Vec<String>,
    /// Those that were not, each with why.
    refused: Vec<RefusedChangeAnswer>,
    /// How many changes are left; at 0 the run is over.
    pending: u64,
}

/// A change that was not applied.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RefusedChange")]
struct RefusedChangeAnswer {
    /// Where.
    path: String,
    /// Why not.
    why: String,
}

impl From<KeptRun> for RunAnswer {
    fn from(run: KeptRun) -> Self {
        let shown = |text: &Text| one_line(text.as_bytes()).into_owned();
        Self {
            id: run.id,
            state: run.state.to_owned(),
            command: run.command.iter().map(shown).collect(),
            purpose: run.purpose.as_ref().map(shown),
            started_at: run.started_at,
            workspace: run.workspace.as_ref().map(shown),
        }
    }
}

impl From<ChangeList> for ChangesAnswer {
    fn from(list: ChangeList) -> Self {
        Self {
            changes: list.changes.into_iter().map(ChangeAnswer::from).collect(),
            more: list.has_more,
            unreadable: list.unreadable,
        }
    }
}

impl From<ChangeView> for ChangeAnswer {
    fn from(change: ChangeView) -> Self {
        let (path, path_base64) = path_of(&change.path);
        Self {
            path,
            path_base64,
            kind: change.kind.to_owned(),
            entry: change.entry.to_owned(),
            size_before: change.size_before,
            size_after: change.size_after,
            held_back: change.held_back,
        }
    }
}

impl From<DiffView> for DiffAnswer {
    fn from(diff: DiffView) -> Self {
        Self {
            form: diff.form.to_owned(),
            patch: String::from_utf8_lossy(diff.patch.as_bytes()).into_owned(),
            cut: diff.is_cut,
            added_lines: diff.added_lines,
            removed_lines: diff.removed_lines,
        }
    }
}

impl From<AppliedChanges> for AppliedAnswer {
    fn from(done: AppliedChanges) -> Self {
        let refused = done.refused.into_iter().map(|(path, why)| RefusedChangeAnswer {
            path: path_of(&path).0,
            why,
        });
        Self {
            applied: done.applied.iter().map(|path| path_of(path).0).collect(),
            refused: refused.collect(),
            pending: count(done.pending),
        }
    }
}

/// A path as text and, where that is not all of it, in base64.
fn path_of(path: &Text) -> (String, Option<String>) {
    match std::str::from_utf8(path.as_bytes()) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => {
            let shown = String::from_utf8_lossy(path.as_bytes()).into_owned();
            (shown, Some(encode_base64(path.as_bytes())))
        }
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

impl ApplyBody {
    fn order(self) -> Result<ApplyOrder, ApiRefusal> {
        let encoded = self.paths_base64.iter().flatten().map(|text| {
            let wrong = || ApiRefusal::bad_request("paths_base64: must be base64 with padding");
            decode_base64(text).map(Text).ok_or_else(wrong)
        });
        let encoded = encoded.collect::<Result<Vec<_>, _>>()?;
        let named = self.paths.is_some() || self.paths_base64.is_some();
        let paths: Vec<Text> = self
            .paths
            .into_iter()
            .flatten()
            .map(Text::from)
            .chain(encoded)
            .collect();
        if named && paths.is_empty() {
            return Err(ApiRefusal::bad_request("paths: there are none"));
        }
        if paths.iter().any(|path| path.0.is_empty()) {
            return Err(ApiRefusal::bad_request("paths: one is empty"));
        }
        Ok(ApplyOrder {
            paths: named.then_some(paths),
            exactly: self.exactly.unwrap_or(false),
            held_back: self.held_back.unwrap_or(false),
        })
    }
}

/// The path in a query.
fn asked_path(asked: &ApiRequest<'_>) -> Result<Text, ApiRefusal> {
    let given = query::bytes(asked.query(), "path").filter(|path| !path.is_empty());
    let bytes = given.ok_or_else(|| ApiRefusal::bad_request("path: it is missing"))?;
    Ok(Text::from(PathBuf::from(std::ffi::OsString::from_vec(bytes))))
}

pub(crate) async fn of_sandbox(asked: &ApiRequest<'_>, id: &str) -> Result<Response<Body>, ApiRefusal> {
    let changes = asked.daemon().changes(&asked.caller, asked.sandbox_id(id)?).await;
    let changes = changes.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &ChangesAnswer::from(changes)))
}

pub(crate) async fn diff_of_sandbox(asked: &ApiRequest<'_>, id: &str) -> Result<Response<Body>, ApiRefusal> {
    let (id, path) = (asked.sandbox_id(id)?, asked_path(asked)?);
    let diff = asked.daemon().change_diff(&asked.caller, id, path).await;
    let diff = diff.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &DiffAnswer::from(diff)))
}

pub(crate) async fn runs(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let all = query::flag(&query::pairs(asked.query()), "all")?;
    let runs = asked.daemon().kept_runs(&asked.caller, all).await;
    let runs = runs.map_err(|error| asked.refused(&error))?;
    let runs = runs.into_iter().map(RunAnswer::from).collect();
    Ok(answer::json(StatusCode::OK, &RunList { runs }))
}

pub(crate) async fn of_run(asked: &ApiRequest<'_>, id: &str) -> Result<Response<Body>, ApiRefusal> {
    let changes = asked.daemon().run_changes(&asked.caller, id).await;
    let changes = changes.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &ChangesAnswer::from(changes)))
}

pub(crate) async fn diff_of_run(asked: &ApiRequest<'_>, id: &str) -> Result<Response<Body>, ApiRefusal> {
    let diff = asked.daemon().run_diff(&asked.caller, id, asked_path(asked)?).await;
    let diff = diff.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &DiffAnswer::from(diff)))
}

pub(crate) async fn apply(asked: &ApiRequest<'_>, id: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let order = body.read::<ApplyBody>().await?.order()?;
    let id = id.to_owned();
    let done = asked.whole(|daemon, caller| async move { daemon.apply_run(&caller, &id, order).await });
    Ok(answer::json(StatusCode::OK, &AppliedAnswer::from(done.await?)))
}

pub(crate) async fn discard(asked: &ApiRequest<'_>, id: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let DiscardBody {} = body.read().await?;
    let id = id.to_owned();
    let done = asked.whole(|daemon, caller| async move { daemon.discard_run(&caller, &id).await });
    done.await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(body: &str) -> Result<ApplyOrder, u16> {
        let body: ApplyBody = serde_json::from_str(body).unwrap();
        body.order().map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn nothing_named_means_all_and_an_empty_list_does_not() {
        assert_eq!(order("{}").unwrap(), ApplyOrder::default());
        let paths = |texts: &[&[u8]]| Some(texts.iter().map(|text| Text(text.to_vec())).collect::<Vec<_>>());
        assert_eq!(order(r#"{"paths":["a","b/c"]}"#).unwrap().paths, paths(&[b"a", b"b/c"]));
        assert_eq!(
            order(r#"{"paths":["a"],"paths_base64":["/w=="]}"#).unwrap().paths,
            paths(&[b"a", b"\xff"])
        );
        for body in [
            r#"{"paths":[]}"#,
            r#"{"paths_base64":[]}"#,
            r#"{"paths_base64":["/w"]}"#,
            r#"{"paths":["a",""]}"#,
            r#"{"paths_base64":[""]}"#,
        ] {
            assert_eq!(order(body), Err(400), "{body}");
        }
        assert!(order(r#"{"held_back":true}"#).unwrap().held_back);
    }

    #[test]
    fn a_path_that_is_no_text_can_be_named_again() {
        assert_eq!(path_of(&Text::from("a b")), ("a b".to_owned(), None));
        let (shown, encoded) = path_of(&Text(b"a\xff".to_vec()));
        assert_eq!(shown, "a\u{fffd}");
        assert_eq!(decode_base64(&encoded.unwrap()).unwrap(), b"a\xff");
    }
}
