//! All sandboxes that wait in a state directory: to be seen, ended, and cleared away when they are dead.

use std::ffi::OsString;

use offleash_core::text::Text;
use offleash_store::{FileError, StateDirectory};

use super::message::{PrewarmedReply, PrewarmedRequest};
use super::socket::ask;

/// What a supervisor says of its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Described {
    /// The id that the run will have.
    pub id: String,
    /// The process that holds it.
    pub pid: u32,
    /// Since when it waits, RFC 3339 in UTC.
    pub since: String,
    /// When it ends unless a run takes it, RFC 3339 in UTC.
    pub until: String,
    /// Where the run is to be started.
    pub cwd: Text,
    /// The arguments that the run is to have before its command.
    pub arguments: Vec<Text>,
}

/// Sandboxes that wait.
pub type Warm = Vec<Described>;

/// All that wait, oldest first.
///
/// # Errors
/// When they cannot be listed.
pub fn all(state: &StateDirectory) -> Result<Warm, FileError> {
    let mut found = Warm::new();
    for directory in state.all_warm()? {
        for name in directory.names()? {
            let said = ask(&directory, &name, &PrewarmedRequest::Describe)
                .into_iter()
                .flatten();
            found.extend(said.filter_map(|reply| match reply {
                PrewarmedReply::Described(described) => Some(described),
                _ => None,
            }));
        }
    }
    found.sort_by(|one: &Described, other| one.id.cmp(&other.id));
    Ok(found)
}

/// Ends those of these ids, or all, and answers which ended.
///
/// # Errors
/// When they cannot be listed.
pub fn stop(state: &StateDirectory, ids: &[String]) -> Result<Vec<String>, FileError> {
    let mut ended = Vec::new();
    loop {
        let before = ended.len();
        for directory in state.all_warm()? {
            // Those that are being made, too: they hear of it when they are ready.
            for name in directory.places()? {
                let is_meant = ids.is_empty() || ids.iter().any(|id| *name == **id);
                if is_meant && ask(&directory, &name, &PrewarmedRequest::Stop).is_some() {
                    ended.push(name.to_string_lossy().into_owned());
                }
            }
        }
        // One that became ready meanwhile has another name now.
        if ended.len() == before {
            break;
        }
    }
    Ok(ended)
}

/// Removes what dead supervisors left; answers how many live, those that are being made among them.
///
/// # Errors
/// When they cannot be listed.
pub fn tidy(state: &StateDirectory) -> Result<usize, FileError> {
    let mut living = 0;
    for directory in state.all_warm()? {
        let names: Vec<OsString> = directory.places()?;
        living += names
            .iter()
            .filter(|name| super::claim::connect(&directory, name).is_some())
            .count();
        directory.remove_if_empty();
    }
    Ok(living)
}
