//! By what a run finds a sandbox that waits, as its holder says it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use offleash_entry::buffer::Buffer;
use offleash_entry::key;
use offleash_entry::words::Words;

pub use offleash_entry::key::VARIABLES;

/// What a run and the holder of its sandbox have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    text: Vec<u8>,
}

impl Key {
    /// The key of this process for a run with these arguments, the command left out, in its current directory, whose path is
    /// `cwd`.
    ///
    /// # Errors
    /// When the kernel does not say; `Unsupported` for a process with a system call filter or no_new_privs, of which not all
    /// can be told.
    pub fn of_this_process(arguments: &[OsString], has_script: bool, cwd: &Path) -> io::Result<Self> {
        let list: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        let words = Words {
            first: 0,
            end: list.len(),
            script: has_script.then_some(list.len()),
            command: list.len(),
        };
        let variable = |name: &&str| Some([name.as_bytes(), std::env::var_os(name)?.as_bytes()].join(&b'='));
        let env: Vec<Vec<u8>> = VARIABLES.iter().filter_map(variable).collect();
        let cwd = cwd.as_os_str().as_bytes();
        let given = list.iter().map(|word| word.len() + 8).sum::<usize>()
            + env.iter().map(|variable| variable.len() + 16).sum::<usize>();
        let (mut room, mut scratch) = (vec![0; key::ROOM + cwd.len() + given], vec![0; key::ROOM]);
        let mut text = Buffer::new(&mut room);
        key::write(&mut text, &mut Buffer::new(&mut scratch), (&*list, words), cwd, &*env)
            .map_err(io::Error::from_raw_os_error)?;
        let text = text.text().ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(Self { text: text.to_vec() })
    }

    /// All of it, to be compared.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// The name of the directory in which sandboxes of this key wait. Two keys may have one name.
    pub(super) fn name(&self) -> String {
        key::name(&self.text).into_iter().map(char::from).collect()
    }
}
