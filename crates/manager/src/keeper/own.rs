//! A keeper for one program alone, which describes its sandbox as a run is described, and goes on record as one.
//!
//! It ends with that program: whoever starts it sees to that. What changed in the workspace is kept or written back, as
//! by a run.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::id::RunId;
use offleash_core::spec::SandboxSpec;
use offleash_core::text::Text;
use offleash_isolation::sandbox::Enforcement;
use serde::{Deserialize, Serialize};

use super::hold::{Facts, Held, Start, Wanted, detach};
use super::message::Hello;
use super::order::LONGEST_HOLD;
use crate::lifecycle::{Kept, ManagerError, RunReport, record_kept};
use offleash_core::error::with_causes;

/// The hidden command of our program that such a keeper is.
pub const HOLD_COMMAND: &str = "hold";

/// A sandbox for one program.
#[derive(Debug)]
pub struct OwnOrder {
    /// What it is.
    pub spec: SandboxSpec,
    /// Its id, which no other has.
    pub id: RunId,
    /// The state directory, if not the usual one.
    pub state: Option<PathBuf>,
    /// The sandbox's own directory, which exists and is private (mode 0700): its socket is in there.
    pub directory: PathBuf,
    /// Where commands start, inside; where those of a run do if absent.
    pub cwd: Option<PathBuf>,
    /// What it is recorded as.
    pub command: Vec<OsString>,
}

/// What became of the order of such a keeper: one JSON document on its standard output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnAnswer {
    /// The sandbox is there, and its socket listens.
    Made {
        /// Who it is.
        hello: Box<Hello>,
        /// Where commands start, inside.
        cwd: Text,
        /// What the user should know now, a line each.
        notes: Vec<String>,
    },
    /// It cannot be made.
    NotMade {
        /// What kind of failure it is.
        kind: ErrorKind,
        /// What was tried, and why it failed, with its causes.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
}

/// Makes the sandbox of `order`, tells `answered` what came of it, and serves the sandbox until that ends; answers its
/// record, if there was a sandbox.
///
/// The calling process has one thread; it becomes a session of its own. When `answered` fails, the sandbox is ended again.
///
/// # Errors
/// When the audit log cannot be written.
pub fn hold_own(
    order: OwnOrder,
    answered: impl FnOnce(&OwnAnswer) -> io::Result<()>,
) -> Result<Option<RunReport>, ManagerError> {
    detach();
    let began = Instant::now();
    let OwnOrder {
        spec,
        id,
        state,
        directory,
        cwd,
        command,
    } = order;
    let made = Held::make(Wanted {
        spec: &spec,
        id: &id,
        state: state.as_deref(),
        directory: &directory,
        command,
        purpose: None,
        cwd: Some(cwd.map_or(Start::Usual, Start::At)),
        inherits: true,
        wants_copy: false,
        longest_hold: LONGEST_HOLD,
    });
    let held = match made {
        Ok(held) => held,
        Err(error) => {
            // Nobody may be there to hear it, and there is nothing to be undone.
            let _told = answered(&OwnAnswer::NotMade {
                kind: error.kind(),
                message: with_causes(&error),
                hint: error.hint(),
            });
            return Ok(None);
        }
    };
    let hello = held.serving.hello.clone();
    let enforcement = Enforcement {
        enforced: hello.enforced.clone(),
        not_enforced: hello.not_enforced.clone(),
    };
    let told = answered(&OwnAnswer::Made {
        hello: Box::new(hello),
        cwd: Text::from(&held.facts.cwd),
        notes: held.facts.outside.news(),
    });
    if told.is_err() {
        held.undo();
        return Ok(None);
    }
    let mut recorded = Ok(None);
    held.serve_for(|ended, remains, live, own_root, facts| {
        let Facts {
            state,
            host,
            plan,
            outside,
            command,
            ..
        } = facts;
        recorded = record_kept(Kept {
            spec: &spec,
            state,
            host,
            plan,
            outside,
            command,
            enforcement,
            began,
            ended,
            denials: remains.denials,
            account: remains.network,
            live,
            own_root,
        })
        .map(Some);
    });
    recorded
}
