//! The sandbox's own directories, and where the plan's paths are without mounts.
//!
//! A program sees the host's paths, so a command's directory, program and environment are translated: what the plan
//! calls home, temporary or the workspace is somewhere else.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use offleash_core::exec::ExecRequest;
use offleash_core::plan::Plan;

use super::grants::GrantLayout;

/// Pairs of a path of the plan and the path where that is here; by default none.
#[derive(Debug, Default)]
pub(super) struct PathPairs {
    /// The directory that holds home and temporary files; a layer in form, so that it is measured like one.
    private: PathBuf,
    moved: Vec<(PathBuf, PathBuf)>,
    temporary: PathBuf,
}

impl PathPairs {
    /// Decides where everything is; nothing is made yet.
    pub(super) fn new(plan: &Plan, layout: &GrantLayout) -> Self {
        // In a layer where there is one, because layers are removed when the changes in them are applied or dropped.
        let around = layout.copies.first().map_or(&plan.run_directory, |copy| &copy.layer);
        let private = around.join("private");
        let temporary = private.join("upper/tmp");
        let mut moved: Vec<_> = layout
            .copies
            .iter()
            .map(|copy| (copy.lower.clone(), copy.directory()))
            .collect();
        moved.push((plan.user.home.clone(), private.join("upper/home")));
        moved.push((PathBuf::from("/tmp"), temporary.clone()));
        // What is granted of the host stays where it is, also below a path that is elsewhere here.
        moved.extend(layout.grants.iter().map(|(path, _)| (path.clone(), path.clone())));
        Self {
            private,
            moved,
            temporary,
        }
    }

    /// The directory that the sandbox may write, beside the workspace.
    pub(super) fn writable(&self) -> PathBuf {
        self.private.join("upper")
    }

    /// The same as a layer, for measuring.
    pub(super) fn as_layer(&self) -> PathBuf {
        self.private.clone()
    }

    /// Makes the private directories.
    pub(super) fn make(&self) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(self.writable().join("home"))?;
        builder.create(&self.temporary)
    }

    /// Removes the private directories as far as that is simple. What a program made inaccessible is left to the
    /// removal of the run, which takes the trouble.
    pub(super) fn remove(&self) {
        if !self.private.as_os_str().is_empty() {
            let _rest = fs::remove_dir_all(&self.private);
        }
    }

    /// The request with every path as it is here.
    pub(super) fn translate(&self, request: &ExecRequest) -> ExecRequest {
        let mut request = request.clone();
        request.cwd = self.translate_path(&request.cwd).unwrap_or(request.cwd);
        if let Some(program) = request.argv.first_mut()
            && let Some(here) = self.translate_path(Path::new(program))
        {
            *program = here.into();
        }
        for (_, value) in &mut request.env {
            *value = self.translate_list(value);
        }
        if !request.env.iter().any(|(name, _)| name == "TMPDIR") {
            request.env.push(("TMPDIR".into(), self.temporary.clone().into()));
        }
        request
    }

    fn translate_path(&self, path: &Path) -> Option<PathBuf> {
        // The workspace may lie in `/tmp`: the longest wins.
        let fits = self.moved.iter().filter(|(from, _)| path.starts_with(from));
        let (from, to) = fits.max_by_key(|(from, _)| from.as_os_str().len())?;
        let rest = path.strip_prefix(from).ok()?;
        Some(if rest.as_os_str().is_empty() {
            to.clone()
        } else {
            to.join(rest)
        })
    }

    /// A value such as that of `PATH`: paths with colons between them, or something else, which stays as it is.
    fn translate_list(&self, value: &OsStr) -> OsString {
        let translate = |piece: &[u8]| match self.translate_path(Path::new(OsStr::from_bytes(piece))) {
            Some(here) => here.into_os_string().into_vec(),
            None => piece.to_vec(),
        };
        let pieces: Vec<_> = value.as_bytes().split(|byte| *byte == b':').map(translate).collect();
        OsString::from_vec(pieces.join(&b':'))
    }
}

#[cfg(test)]
mod tests {
    use offleash_core::exec::Stdin;

    use super::*;

    fn places() -> PathPairs {
        PathPairs {
            private: "/state/private".into(),
            moved: vec![
                ("/tmp/project".into(), "/state/layer/upper".into()),
                ("/home/user".into(), "/state/private/upper/home".into()),
                ("/tmp".into(), "/state/private/upper/tmp".into()),
            ],
            temporary: "/state/private/upper/tmp".into(),
        }
    }

    #[test]
    fn directory_program_and_environment_say_where_things_are_here() {
        let env = [
            ("HOME", "/home/user", "/state/private/upper/home"),
            ("PATH", "/tmp/project/bin:/usr/bin", "/state/layer/upper/bin:/usr/bin"),
            ("URL", "https://host/tmp", "https://host/tmp"),
            ("X", "/tmpfile", "/tmpfile"),
            ("Y", "/tmp/x", "/state/private/upper/tmp/x"),
        ];
        let request = ExecRequest {
            argv: vec!["/tmp/project/run".into(), "/tmp/project/argument".into()],
            env: env.iter().map(|(name, value, _)| (name.into(), value.into())).collect(),
            cwd: "/tmp/project".into(),
            stdin: Stdin::Null,
            tty: None,
            user: None,
        };
        let here = places().translate(&request);
        assert_eq!(here.cwd, Path::new("/state/layer/upper"));
        // Arguments are the program's business.
        assert_eq!(
            here.argv,
            ["/state/layer/upper/run", "/tmp/project/argument"].map(OsString::from)
        );
        let mut expected: Vec<(OsString, OsString)> =
            env.iter().map(|(name, _, value)| (name.into(), value.into())).collect();
        expected.push(("TMPDIR".into(), "/state/private/upper/tmp".into()));
        assert_eq!(here.env, expected);
    }
}
