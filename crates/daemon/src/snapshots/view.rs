//! What the daemon tells of snapshots and checkpoints, and which of them it lists.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use offleash_supervisor::clock::from_ms;

use super::from_json;
use crate::error::DaemonError;
use crate::registry::SnapshotRow;
use crate::template_names;
use crate::view::SandboxLimits;

/// Entries of a page.
const MAX_LISTED: usize = 100;

/// A snapshot or a checkpoint, as its owner sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotView {
    /// Its id.
    pub id: String,
    /// Whose it is: the id of a key.
    pub key: String,
    /// What it is called.
    pub name: Option<String>,
    /// The sandbox that it was made of, which may be gone; `None` if it was imported.
    pub sandbox: Option<String>,
    /// The template that it lies over.
    pub template: String,
    /// Which build of that, or the digest of the image; the base has none.
    pub build: Option<String>,
    /// Variables for every command in sandboxes made of it.
    pub env: BTreeMap<String, String>,
    /// What they may use if nobody says.
    pub limits: Option<SandboxLimits>,
    /// Ids of the contexts of code that they begin with.
    pub contexts: Vec<String>,
    /// The checkpoint that the sandbox was at before.
    pub parent: Option<String>,
    /// Bytes on disk that its files take, also those that it shares with others.
    pub bytes: u64,
    /// Files, directories and links.
    pub files: u64,
    /// How long the sandbox stood still for it.
    pub held: Duration,
    /// When it was made.
    pub created_at: SystemTime,
    /// Why it was made, if by itself, as in `every 600 s`.
    pub automatic: Option<String>,
}

impl SnapshotView {
    pub(super) fn of(row: &SnapshotRow) -> Self {
        let spec = from_json(&row.spec);
        Self {
            id: row.id.clone(),
            key: row.key_id.clone(),
            name: row.name.clone(),
            sandbox: Some(row.sandbox.clone()).filter(|sandbox| !sandbox.is_empty()),
            template: template_names::shown(&row.template).to_owned(),
            build: spec.as_ref().and_then(|spec| spec.build.clone()),
            env: spec.as_ref().map(|spec| spec.env.clone()).unwrap_or_default(),
            limits: spec.as_ref().map(|spec| spec.limits),
            automatic: spec.as_ref().and_then(|spec| spec.automatic.clone()),
            contexts: spec.map_or_else(Vec::new, |spec| {
                spec.contexts.into_iter().map(|context| context.id).collect()
            }),
            parent: row.parent.clone(),
            bytes: row.bytes,
            files: row.files,
            held: Duration::from_micros(row.held_us),
            created_at: from_ms(row.created_ms),
        }
    }
}

/// Which snapshots a list shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotFilter {
    /// Of which sandbox.
    pub sandbox: Option<String>,
    /// What they are called.
    pub name: Option<String>,
    /// How many at most, 1 to 100.
    pub limit: usize,
    /// Where a page before ended, as it said ([`SnapshotPage::next`]).
    pub after: Option<String>,
}

impl Default for SnapshotFilter {
    fn default() -> Self {
        Self {
            sandbox: None,
            name: None,
            limit: MAX_LISTED,
            after: None,
        }
    }
}

/// A page of a list, the newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotPage {
    /// The snapshots.
    pub snapshots: Vec<SnapshotView>,
    /// Where the next page begins; `None` on the last one.
    pub next: Option<String>,
}

/// The page of `all`, the newest first, that a filter means.
pub(super) fn page(all: Vec<SnapshotRow>, filter: &SnapshotFilter) -> Result<SnapshotPage, DaemonError> {
    if filter.limit == 0 || filter.limit > MAX_LISTED {
        let why = format!("must be between 1 and {MAX_LISTED}");
        return Err(DaemonError::invalid("limit", why));
    }
    let after = filter.after.as_deref().map(place_of).transpose()?;
    let name = filter
        .name
        .as_deref()
        .map(|name| name.strip_suffix(":default").unwrap_or(name));
    let mut rest = all.into_iter().filter(|row| {
        let is_meant = filter.sandbox.as_ref().is_none_or(|sandbox| row.sandbox == *sandbox)
            && name.is_none_or(|name| row.name.as_deref() == Some(name) || row.id == name);
        let is_beyond = after
            .as_ref()
            .is_none_or(|(at, id)| (row.created_ms, row.id.as_str()) < (*at, id.as_str()));
        is_meant && is_beyond
    });
    let page: Vec<SnapshotRow> = rest.by_ref().take(filter.limit).collect();
    let is_last = rest.next().is_none();
    let next = page.last().filter(|_| !is_last);
    Ok(SnapshotPage {
        next: next.map(|row| format!("{}-{}", row.created_ms, row.id)),
        snapshots: page.iter().map(SnapshotView::of).collect(),
    })
}

fn place_of(text: &str) -> Result<(i64, String), DaemonError> {
    let place = text
        .split_once('-')
        .and_then(|(at, id)| Some((at.parse().ok()?, id.to_owned())));
    place.ok_or_else(|| DaemonError::invalid("nextToken", "is none that a page ended with"))
}
