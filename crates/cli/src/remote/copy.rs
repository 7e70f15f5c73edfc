//! `offleash cp`: files and directories to a sandbox and from it.
//!
//! Names that come from a sandbox are only names: each is made in a directory that was made here, and none is followed.
//! Links inside are followed to files alone, and to a directory only where a person named it.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use offleash_api::client::{Client, Kind};
use offleash_core::id::{SandboxName, SandboxNameError};
use offleash_core::text::Text;
use offleash_core::units::Bytes;

use super::arrival::{Budget, Directory};
use crate::args::CpArgs;
use crate::failure::Failure;

/// The exit code of a copy that left something out.
pub(super) const EXIT_PARTIAL: u8 = 1;

/// Directories below directories.
pub(super) const DEEPEST: usize = 256;

/// The bytes of a name (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// Where something is.
pub(super) enum Place {
    Here(PathBuf),
    Inside { id: String, path: String },
}

/// The sandbox of a copy, and as whom it is entered.
struct Sandbox<'a> {
    client: &'a Client,
    id: &'a str,
    user: Option<&'a str>,
    /// Whether something was left out.
    is_partial: Cell<bool>,
}

pub(super) fn copy(client: &Client, arguments: &CpArgs) -> Result<ExitCode, Failure> {
    let user = arguments.user.as_deref();
    let is_partial = match (place(&arguments.source)?, place(&arguments.destination)?) {
        (Place::Here(from), Place::Inside { .. }) if from == Path::new("-") => {
            return Err(Failure::new("standard input cannot be copied")
                .with_hint("`offleash exec -i ID tee PATH` writes it to a file; a file of that name is `./-`"));
        }
        (Place::Here(from), Place::Inside { id, path }) => {
            let id = client.id_of(&id)?;
            let sandbox = Sandbox::new(client, &id, user);
            sandbox.upload(&from, &path)?;
            sandbox.is_partial.get()
        }
        (Place::Inside { id, path }, Place::Here(to)) => {
            let id = client.id_of(&id)?;
            let sandbox = Sandbox::new(client, &id, user);
            match to == Path::new("-") {
                true => sandbox.print(&path)?,
                false => sandbox.download(&path, &to, arguments.max_bytes)?,
            }
            sandbox.is_partial.get()
        }
        (Place::Here(_), Place::Here(_)) => {
            return Err(Failure::new("neither path is in a sandbox").with_hint("write the one that is as ID:PATH"));
        }
        (Place::Inside { .. }, Place::Inside { .. }) => {
            return Err(Failure::new("both paths are in sandboxes").with_hint("copy it here first"));
        }
    };
    Ok(match is_partial {
        true => ExitCode::from(EXIT_PARTIAL),
        false => ExitCode::SUCCESS,
    })
}

/// `ID:PATH`, or a path here; one with a colon begins with `/` or `./`.
pub(super) fn place(argument: &Path) -> Result<Place, Failure> {
    let Some(text) = argument.to_str() else {
        return Ok(Place::Here(argument.to_owned()));
    };
    let is_id = |id: &str| match id.parse::<SandboxName>() {
        Ok(_) | Err(SandboxNameError::IsId(_)) => true,
        Err(SandboxNameError::Malformed(_)) => false,
    };
    match text.split_once(':') {
        Some((id, "")) if is_id(id) => Err(Failure::new(format!(
            "`{}` names no path in the sandbox",
            Text::from(text)
        ))
        .with_hint("write it as ID:PATH, such as ID:/home/user/file")),
        Some((id, path)) if is_id(id) => Ok(Place::Inside {
            id: id.to_owned(),
            path: path.to_owned(),
        }),
        _ => Ok(Place::Here(argument.to_owned())),
    }
}

impl<'a> Sandbox<'a> {
    fn new(client: &'a Client, id: &'a str, user: Option<&'a str>) -> Self {
        Self {
            client,
            id,
            user,
            is_partial: Cell::new(false),
        }
    }

    /// Says what is not copied, and why.
    fn leave_out(&self, why: &str, what: Text) {
        self.is_partial.set(true);
        crate::terminal::complain(&format!("left out, because {why}: {what}"));
    }

    /// Writes a file to standard output, as it is.
    fn print(&self, path: &str) -> Result<(), Failure> {
        if self.kind(path)? == Kind::Directory {
            return Err(
                Failure::new(format!("`{}` is a directory", Text::from(path))).with_hint(format!(
                    "`offleash exec {} tar -c {}` writes one as an archive",
                    self.id,
                    Text::from(path)
                )),
            );
        }
        let output = crate::terminal::output();
        let mut output = File::from(output.map_err(|error| here("write", Path::new("-"), &error))?);
        self.client.download(self.id, self.user, path, &mut output)?;
        Ok(())
    }

    /// What is at a path inside, which must be there.
    fn kind(&self, path: &str) -> Result<Kind, Failure> {
        let kind = self.client.stat(self.id, self.user, path)?;
        kind.ok_or_else(|| Failure::new(format!("there is no `{}` in the sandbox", Text::from(path))))
    }

    /// As `cp -r`: into `path` if that is a directory, otherwise to that name.
    fn upload(&self, from: &Path, path: &str) -> Result<(), Failure> {
        let metadata = fs::metadata(from).map_err(|error| here("read", from, &error))?;
        let is_into = path.ends_with('/') || self.client.stat(self.id, self.user, path)? == Some(Kind::Directory);
        let target = if is_into {
            joined(path, &name_of(from)?)
        } else {
            path.to_owned()
        };
        if metadata.is_dir() {
            return self.upload_directory(from, &target, 0);
        }
        let file = File::open(from).map_err(|error| here("open", from, &error))?;
        Ok(self.client.upload(self.id, self.user, file, &target)?)
    }

    fn upload_directory(&self, from: &Path, path: &str, depth: usize) -> Result<(), Failure> {
        check_depth(from, depth)?;
        self.client.make_directory(self.id, self.user, path)?;
        let entries = fs::read_dir(from).map_err(|error| here("list", from, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| here("list", from, &error))?;
            let source = entry.path();
            let target = joined(path, &name_of(&source)?);
            let kind = entry.file_type().map_err(|error| here("examine", &source, &error))?;
            if kind.is_dir() {
                self.upload_directory(&source, &target, depth + 1)?;
            } else if kind.is_file() {
                let file = File::open(&source).map_err(|error| here("open", &source, &error))?;
                self.client.upload(self.id, self.user, file, &target)?;
            } else {
                self.leave_out("it is no file", Text::from(&source));
            }
        }
        Ok(())
    }

    /// As `cp -r`: into `to` if that is a directory, otherwise to that name.
    fn download(&self, path: &str, to: &Path, most: Bytes) -> Result<(), Failure> {
        let kind = self.kind(path)?;
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let (directory, name) = if to.is_dir() {
            (Directory::open(to)?, checked(name)?.to_owned())
        } else {
            let named = to.parent().zip(to.file_name().and_then(OsStr::to_str));
            let Some((parent, name)) = named else {
                return Err(Failure::new(format!("`{}` is no name for a file here", Text::from(to))));
            };
            (Directory::open(parent)?, name.to_owned())
        };
        let mut budget = Budget::new(most);
        match kind {
            Kind::Directory => self.download_directory(path, &directory.directory(&name)?, &mut budget, 0),
            Kind::File | Kind::Link => self.download_file(path, &directory, &name, &mut budget),
        }
    }

    fn download_directory(&self, path: &str, to: &Directory, budget: &mut Budget, depth: usize) -> Result<(), Failure> {
        check_depth(Path::new(path), depth)?;
        for (name, kind) in self.client.entries(self.id, self.user, path)? {
            let (source, name) = (joined(path, &name), checked(&name)?);
            budget.take_entry()?;
            match kind {
                Kind::Directory => self.download_directory(&source, &to.directory(name)?, budget, depth + 1)?,
                Kind::File => self.download_file(&source, to, name, budget)?,
                Kind::Link => self.leave_out("it is no file, or a link to none", Text::from(source)),
            }
        }
        Ok(())
    }

    fn download_file(&self, path: &str, to: &Directory, name: &str, budget: &mut Budget) -> Result<(), Failure> {
        to.file(name, budget, |arriving| {
            self.client.download(self.id, self.user, path, arriving).map(drop)
        })
    }
}

fn check_depth(path: &Path, depth: usize) -> Result<(), Failure> {
    if depth < DEEPEST {
        return Ok(());
    }
    Err(Failure::new(format!(
        "more than {DEEPEST} directories below one another at `{}`",
        Text::from(path)
    )))
}

/// A name as a sandbox tells it, if it is one.
pub(super) fn checked(name: &str) -> Result<&str, Failure> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) || name.len() > MAX_NAME {
        return Err(Failure::new(format!("`{}` is no name of a file", Text::from(name))));
    }
    Ok(name)
}

pub(super) fn joined(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.strip_suffix('/').unwrap_or(directory))
}

fn name_of(path: &Path) -> Result<String, Failure> {
    let resolved = path.file_name().map(PathBuf::from).or_else(|| {
        let absolute = fs::canonicalize(path).ok()?;
        absolute.file_name().map(PathBuf::from)
    });
    let name = resolved.as_deref().and_then(Path::to_str);
    name.map(str::to_owned).ok_or_else(|| {
        Failure::new(format!(
            "`{}` has no name that can be used in the sandbox",
            Text::from(path)
        ))
        .with_hint("names of other bytes than UTF-8 cannot be sent; pack them with tar first")
    })
}

pub(super) fn here(action: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot {action} `{}`: {error}", Text::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_sandbox_begins_with_its_id() {
        for (text, inside) in [
            ("iabc123:/etc/hosts", Some(("iabc123", "/etc/hosts"))),
            ("iabc:relative", Some(("iabc", "relative"))),
            ("./a:b", None),
            ("/a:b", None),
            ("C:b", None),
            ("plain", None),
        ] {
            match (place(Path::new(text)).unwrap(), inside) {
                (Place::Inside { id, path }, Some(expected)) => assert_eq!((&*id, &*path), expected),
                (Place::Here(path), None) => assert_eq!(path, Path::new(text)),
                _ => panic!("{text}"),
            }
        }
        assert!(place(Path::new("iabc:")).is_err());
    }

    #[test]
    fn a_sandbox_names_no_other_directory() {
        let long = "é".repeat(128);
        for name in ["", ".", "..", "a/b", "/etc/passwd", "../a", "a\0b", &long] {
            assert!(checked(name).is_err(), "{name:?}");
        }
        for name in ["a\nb", "...", "\u{fffd}", &long[1 + 1..]] {
            assert_eq!(checked(name).unwrap(), name);
        }
        assert_eq!(checked("..a").unwrap(), "..a");
    }
}
