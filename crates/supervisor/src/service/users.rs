//! Who commands run as, and what they start from.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use offleash_core::exec::{ExecRequest, Stdin, TerminalSize, UserIds};
use offleash_core::plan::{Environment, Plan, SandboxUser};

use super::message::{MAX_TAG, StartExec, SupervisorFailure, UserInfo};
use offleash_planner::{ExecBasis, trust_variables};

/// The users of a sandbox, and what each starts from.
#[derive(Debug)]
pub(super) struct Users {
    basis: ExecBasis,
    /// Where commands start that are not told where, if not in their user's home; relative directories are below it.
    start: Option<PathBuf>,
    /// Whether they differ for the kernel, so that the guest is told whom it is to be.
    differ: bool,
    /// Whether programs are told of an authority that came later than their environment was settled.
    names_authority: bool,
}

impl Users {
    /// Those of a sandbox that was made by `plan`.
    pub(super) fn new(basis: ExecBasis, plan: &Plan, start: Option<PathBuf>) -> Self {
        Self {
            basis,
            start,
            differ: plan.has_superuser(),
            names_authority: false,
        }
    }

    /// From now on, variables tell programs where the certificate authorities are.
    pub(super) fn name_authority(&mut self) {
        self.names_authority = true;
    }

    pub(super) fn infos(&self) -> Vec<UserInfo> {
        let info = |user: &SandboxUser| UserInfo {
            name: user.name.clone(),
            uid: user.uid,
            gid: user.gid,
            home: user.home.to_string_lossy().into_owned(),
        };
        self.basis.users.iter().map(info).collect()
    }

    /// The user of that name, or the usual one.
    pub(super) fn find(&self, name: Option<&str>) -> Result<&SandboxUser, SupervisorFailure> {
        let mut named = self.basis.users.iter();
        let found = match name {
            None => named.next(),
            Some(name) => named.find(|user| user.name == name),
        };
        found.ok_or_else(|| SupervisorFailure::InvalidUser(name.unwrap_or_default().to_owned()))
    }

    /// The ids that a user has; `None` where it is what the guest is, too.
    pub(super) fn ids(&self, user: &SandboxUser) -> Option<UserIds> {
        self.differ.then(|| user.ids())
    }

    /// What the guest is asked for `start`, and the name of the user.
    pub(super) fn request(&self, start: &StartExec) -> Result<(ExecRequest, String), SupervisorFailure> {
        check(start)?;
        let user = self.find(start.user.as_deref())?;
        let usual = self.start.as_ref().unwrap_or(&user.home);
        let cwd = match &start.cwd {
            None => usual.clone(),
            Some(path) => usual.join(OsStr::from_bytes(path)),
        };
        let request = ExecRequest {
            argv: start.argv.iter().cloned().map(OsString::from_vec).collect(),
            env: self.environment(user, &cwd, start),
            cwd,
            stdin: if start.stdin { Stdin::Stream } else { Stdin::Null },
            tty: start.tty.map(|(rows, columns)| TerminalSize { rows, columns }),
            user: self.ids(user),
        };
        Ok((request, user.name.clone()))
    }

    fn environment(&self, user: &SandboxUser, cwd: &PathBuf, start: &StartExec) -> Environment {
        let mut env = self.basis.environment_of(user);
        if self.names_authority {
            let known: Vec<OsString> = env.iter().map(|(name, _)| name.clone()).collect();
            env.extend(trust_variables().filter(|(name, _)| !known.contains(name)));
        }
        let mut set = |name: &OsStr, value: OsString| match env.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => env.push((name.to_owned(), value)),
        };
        set("PWD".as_ref(), cwd.into());
        if start.tty.is_some() {
            set("TERM".as_ref(), "xterm-256color".into());
        }
        for (name, value) in &start.env {
            set(OsStr::from_bytes(name), OsString::from_vec(value.clone()));
        }
        env
    }
}

/// Longest path that Linux takes (PATH_MAX, with the byte that ends it).
const MAX_PATH: usize = 4095;

/// What no kernel would take, and what is kept for as long as the command runs and longer than it may be.
fn check(start: &StartExec) -> Result<(), SupervisorFailure> {
    let invalid = |reason: &str| SupervisorFailure::Invalid {
        reason: reason.to_owned(),
    };
    if start.argv.first().is_none_or(Vec::is_empty) {
        return Err(invalid("there is no command"));
    }
    if start.tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG) {
        return Err(invalid(&format!("the tag has more than {MAX_TAG} bytes")));
    }
    if start.cwd.as_ref().is_some_and(|cwd| cwd.len() > MAX_PATH) {
        return Err(invalid(&format!("the directory's path has more than {MAX_PATH} bytes")));
    }
    let has_nul = |text: &Vec<u8>| text.contains(&0);
    if start.argv.iter().any(has_nul) || start.cwd.iter().any(has_nul) {
        return Err(invalid("the command or its directory contains a NUL byte"));
    }
    let is_bad =
        |(name, value): &(Vec<u8>, Vec<u8>)| name.is_empty() || name.contains(&b'=') || has_nul(name) || has_nul(value);
    if start.env.iter().any(is_bad) {
        return Err(invalid(
            "a variable has no name, or one that no variable can have, or a NUL byte",
        ));
    }
    Ok(())
}
