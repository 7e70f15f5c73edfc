//! A policy file that offleash itself writes to: rules that the user agreed to, added to what is there.
//!
//! What was read before the run is what is written over; a file that changed meanwhile is left alone, as it may have been
//! changed by what ran. The new text takes the place of the old at once, with its mode and its owner, and no link is
//! followed.

mod edit;

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use offleash_core::approval::ApprovalQuestion;
use offleash_core::policy::Policy;
use offleash_core::text::Text;
use offleash_planner::{RegularFileError, read_regular_file};

pub(crate) use self::edit::{Place, allow};
use crate::terminal::RememberRule;

/// A policy file, and what it held when it was looked at.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    path: PathBuf,
    /// `None` when there was none.
    text: Option<String>,
}

impl PolicyFile {
    /// Looks at the file, or that there is none, and at whether one can be made.
    ///
    /// # Errors
    /// When it is no regular file, cannot be read, is no policy, or its directory is none; says why.
    pub(crate) fn look(path: &Path) -> Result<Self, String> {
        let path = std::path::absolute(path).map_err(|error| error.to_string())?;
        let text = text_of(&path)?;
        Policy::parse(text.as_deref().unwrap_or_default()).map_err(|error| error.to_string())?;
        let directory = directory_of(&path);
        if !directory.is_dir() {
            return Err(format!("`{}` is no directory", Text::from(directory)));
        }
        Ok(Self { path, text })
    }

    /// Whether there was one.
    pub(crate) fn exists(&self) -> bool {
        self.text.is_some()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds; nothing when there is none.
    pub(crate) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Writes `text` in the place of what it held.
    ///
    /// # Errors
    /// When it is not as it was looked at, `text` is no policy, or it cannot be written; says why.
    pub(crate) fn replace(&mut self, text: String) -> Result<(), String> {
        Policy::parse(&text).map_err(|error| error.to_string())?;
        if text_of(&self.path)? != self.text {
            return Err("it was changed since the run began, and was left as it is".to_owned());
        }
        self.write(&text).map_err(|error| error.to_string())?;
        self.text = Some(text);
        Ok(())
    }

    fn write(&self, text: &str) -> std::io::Result<()> {
        let directory = directory_of(&self.path);
        let mut builder = tempfile::Builder::new();
        builder.prefix(".offleash-policy-");
        // Less what the umask takes away.
        let mut new = builder
            .permissions(std::fs::Permissions::from_mode(0o644))
            .tempfile_in(directory)?;
        new.write_all(text.as_bytes())?;
        match std::fs::symlink_metadata(&self.path) {
            Ok(old) => {
                let own = new.as_file().metadata()?;
                if (old.uid(), old.gid()) != (own.uid(), own.gid()) {
                    std::os::unix::fs::fchown(new.as_file(), Some(old.uid()), Some(old.gid()))?;
                }
                new.as_file().set_permissions(old.permissions())?;
                new.as_file().sync_all()?;
                new.persist(&self.path)?;
            }
            Err(_) => {
                new.as_file().sync_all()?;
                new.persist_noclobber(&self.path)?;
            }
        }
        std::fs::File::open(directory)?.sync_all()
    }
}

impl RememberRule for PolicyFile {
    fn remember(&mut self, question: &ApprovalQuestion) -> Result<String, String> {
        let name = Text::from(&self.path);
        let Some(place) = Place::of(question) else {
            return Err("a tool's `ask` is taken out of a policy by hand".to_owned());
        };
        let written = allow(self.text(), &[place].into()).and_then(|edited| match edited.denied.first() {
            Some(denied) => Err(format!("a rule in it denies {denied}")),
            None => self.replace(edited.text),
        });
        written
            .map(|()| format!("`{name}`"))
            .map_err(|reason| format!("`{name}`: {reason}"))
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn text_of(path: &Path) -> Result<Option<String>, String> {
    match read_regular_file(path) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| "it is not UTF-8".to_owned()),
        Err(RegularFileError::Missing { .. }) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
