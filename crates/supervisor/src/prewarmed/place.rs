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
        let mut has_changed = false;
        for directory in state.all_warm()? {
            // Those that are being made, too: they hear of it when they are ready.
            for name in directory.places()? {
                let is_meant = ids.is_empty() || ids.iter().any(|id| *name == **id);
                if !is_meant {
                    continue;
                }
                if ask(&directory, &name, &PrewarmedRequest::Stop).is_some() {
                    ended.push(name.to_string_lossy().into_owned());
                    has_changed = true;
                } else {
                    // One that became ready meanwhile has another name now; one that hears nothing keeps its own.
                    has_changed |= !directory.places()?.contains(&name);
                }
            }
        }
        if !has_changed {
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use offleash_store::HostIdentity;

    use super::super::message::Conversation;
    use super::*;

    /// One that gets its name while it is looked for has to be found under that.
    #[test]
    fn one_that_becomes_ready_meanwhile_is_ended() {
        let place = tempfile::tempdir().unwrap();
        let state = StateDirectory::open(Some(&place.path().join("state")), &HostIdentity::of_this_process()).unwrap();
        for round in 0..200 {
            let directory = state.warm("k").unwrap();
            let listener = UnixListener::bind(directory.socket("~0".as_ref())).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_micros(round));
                    directory.finish("~0".as_ref(), "r0".as_ref()).unwrap();
                    let (stream, _) = listener.accept().unwrap();
                    let _asked = Conversation::<PrewarmedRequest>::default().next(&stream);
                    directory.remove("r0".as_ref()).unwrap();
                    drop(stream);
                });
                let ended = stop(&state, &[]).unwrap();
                if ended.len() != 1 {
                    // The other thread waits for somebody.
                    let _met = super::super::claim::connect(&directory, "r0".as_ref());
                }
                assert_eq!(ended.len(), 1, "round {round}: {ended:?}");
            });
        }
    }
}
