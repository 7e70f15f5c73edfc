//! What the root directory of the base template holds beside the host's programs.
//!
//! An allowlist, as in a plain run: nothing of anybody's home, of `/root`, `/run` or `/srv`, no keys, no hashes of
//! passwords, nothing that identifies the machine, and no file that may hold a credential.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use offleash_core::plan::SandboxUser;

use super::BaseError;
use super::accounts;
use crate::system::ROOT_NAMES;
use crate::{etc, git_system};

/// Empty directories and their modes, each after the one that it is in.
const DIRECTORIES: [(&str, u32); 37] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/ssl", 0o755),
    ("etc/ssl/private", 0o700),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    // Everybody may enter it, as code that is written for a superuser does; what it gets there has modes of its own.
    ("root", 0o755),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/backups", 0o755),
    ("var/cache", 0o755),
    ("var/cache/apt", 0o755),
    ("var/cache/apt/archives", 0o755),
    ("var/cache/apt/archives/partial", 0o700),
    ("var/cache/debconf", 0o755),
    ("var/cache/ldconfig", 0o700),
    ("var/lib", 0o755),
    ("var/lib/apt", 0o755),
    ("var/lib/apt/lists", 0o755),
    ("var/lib/apt/lists/partial", 0o700),
    ("var/lib/misc", 0o755),
    ("var/lib/pam", 0o755),
    ("var/local", 0o755),
    ("var/log", 0o755),
    ("var/log/apt", 0o755),
    ("var/mail", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
    ("var/www", 0o755),
];

/// Links of every system.
const LINKS: [(&str, &str); 4] = [
    ("etc/mtab", "../proc/self/mounts"),
    ("var/lock", "/run/lock"),
    ("var/run", "/run"),
    ("var/spool/mail", "../mail"),
];

/// Files and directories of the host's `/etc` besides those of a plain run: what package managers, shells and logins
/// need, where it exists and everybody may read it.
const FROM_ETC: [&str; 45] = [
    "X11",
    "adduser.conf",
    "apk",
    "apt",
    "bash.bashrc",
    "bash_completion.d",
    "bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "dbus-1",
    "debconf.conf",
    "deluser.conf",
    "dnf",
    "dpkg",
    "gai.conf",
    "host.conf",
    "init.d",
    "inputrc",
    "issue",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "locale.gen",
    "login.defs",
    "magic",
    "magic.mime",
    "mailcap",
    "manpath.config",
    "networks",
    "pacman.conf",
    "pacman.d",
    "pam.conf",
    "pam.d",
    "perl",
    "profile",
    "python3",
    "redhat-release",
    "rpc",
    "rpm",
    "security",
    "shells",
    "skel",
    "terminfo",
    "yum.repos.d",
];
/// Elsewhere: which packages were installed by hand and which with others.
const FROM_VAR: [&str; 1] = ["lib/apt/extended_states"];

/// Names that are never copied, wherever they are.
const SECRET_NAMES: [&str; 8] = [
    "auth.conf",
    "auth.conf.d",
    "credentials",
    "machine-id",
    "opasswd",
    "private",
    "shadow",
    "ssh",
];
/// Files up to this size are copied.
const COPIED_UP_TO: u64 = 16 << 20;
/// Directories in one another.
const DEEPEST: usize = 16;

/// Makes the root directory.
///
/// # Errors
/// When something cannot be made. What cannot be read of the host is left out.
pub(super) fn make(root: &Path, parts: &[PathBuf], users: &[SandboxUser]) -> Result<(), BaseError> {
    let made = directory(root, 0o755)
        .and_then(|()| make_directories(root, parts))
        .and_then(|()| make_links(root))
        .and_then(|()| copy_all(root))
        .and_then(|()| write_accounts(&root.join("etc"), users))
        .and_then(|()| {
            write(
                &root.join("etc").join(git_system::NAME),
                git_system::CONTENTS.as_bytes(),
                0o644,
            )
        });
    made.map_err(BaseError::at("filling", root))
}

fn make_directories(root: &Path, parts: &[PathBuf]) -> io::Result<()> {
    for (path, mode) in DIRECTORIES {
        directory(&root.join(path), mode)?;
    }
    // What is mounted upon.
    for part in parts {
        let place = root.join(part.strip_prefix("/").unwrap_or(part));
        DirBuilder::new().recursive(true).mode(0o755).create(place)?;
    }
    Ok(())
}

fn make_links(root: &Path) -> io::Result<()> {
    for (path, to) in LINKS {
        symlink(to, root.join(path))?;
    }
    for name in ROOT_NAMES {
        if let Ok(to) = fs::read_link(Path::new("/").join(name)) {
            symlink(to, root.join(name))?;
        }
    }
    Ok(())
}

fn copy_all(root: &Path) -> io::Result<()> {
    let plain = etc::FROM_HOST.iter().copied().map(str::to_owned);
    let more = FROM_ETC.iter().copied().map(str::to_owned);
    let names = plain.chain(etc::versioned_names()).chain(more);
    let of_etc = names.map(|name| Path::new("etc").join(name));
    let of_var = FROM_VAR.iter().map(|name| Path::new("var").join(name));
    for path in of_etc.chain(of_var) {
        let to = root.join(&path);
        if let Some(parent) = to.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        copy(&Path::new("/").join(&path), &to, 0)?;
    }
    Ok(())
}

/// Copies a file, link or directory of the host, if everybody may read it and it holds nothing secret.
fn copy(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    let is_secret = from
        .file_name()
        .is_none_or(|name| SECRET_NAMES.iter().any(|secret| name == *secret));
    let Ok(found) = fs::symlink_metadata(from) else {
        return Ok(());
    };
    if is_secret || depth > DEEPEST || fs::symlink_metadata(to).is_ok_and(|there| !there.is_dir()) {
        return Ok(());
    }
    if found.is_symlink() {
        return copy_link(from, to);
    }
    if found.is_dir() && found.mode() & 0o005 == 0o005 {
        directory(to, 0o755)?;
        for entry in fs::read_dir(from).into_iter().flatten().flatten() {
            copy(&entry.path(), &to.join(entry.file_name()), depth + 1)?;
        }
        return Ok(());
    }
    if found.is_file() && found.mode() & 0o004 != 0 && found.len() <= COPIED_UP_TO {
        return copy_file(from, to, found.mode());
    }
    Ok(())
}

/// A link that leads to what the sandbox has stays one; of others the file is copied.
fn copy_link(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(target) = fs::read_link(from) else { return Ok(()) };
    let leads_inside = target.is_relative()
        || ["/usr", "/etc", "/run", "/proc"]
            .iter()
            .any(|own| target.starts_with(own));
    if leads_inside {
        return match symlink(target, to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        };
    }
    match fs::metadata(from) {
        Ok(found) if found.is_file() && found.mode() & 0o004 != 0 && found.len() <= COPIED_UP_TO => {
            copy_file(from, to, found.mode())
        }
        _ => Ok(()),
    }
}

fn copy_file(from: &Path, to: &Path, mode: u32) -> io::Result<()> {
    let mut contents = Vec::new();
    let read = File::open(from).and_then(|file| file.take(COPIED_UP_TO).read_to_end(&mut contents));
    // Whoever may not read it shows nothing of it.
    if read.is_err() || may_hold_a_credential(&contents) {
        return Ok(());
    }
    let executable = if mode & 0o100 != 0 { 0o111 } else { 0 };
    write(to, &contents, 0o644 | executable)
}

/// Whether there is a user's name in an address, or a password: such as a mirror or a proxy that asks for them.
fn may_hold_a_credential(contents: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(contents) else {
        return false;
    };
    text.lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .any(|line| {
            let mut addresses = line.match_indices("://").map(|(place, _)| &line[place + 3..]);
            let has_user = addresses.any(|rest| {
                let authority = rest.split(['/', ' ', '"', '\'']).next().unwrap_or_default();
                authority.contains('@')
            });
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            has_user || name.trim().eq_ignore_ascii_case("password") && !value.trim().is_empty()
        })
}

fn write_accounts(etc: &Path, users: &[SandboxUser]) -> io::Result<()> {
    let accounts = accounts::of_host(users);
    write(&etc.join("passwd"), accounts.passwd.as_bytes(), 0o644)?;
    write(&etc.join("group"), accounts.group.as_bytes(), 0o644)?;
    write(&etc.join("shadow"), accounts.shadow.as_bytes(), 0o600)?;
    write(&etc.join("nsswitch.conf"), etc::NAME_SERVICES.as_bytes(), 0o644)
}

/// Makes the directory, if it is not there, and gives it its mode whatever the umask says.
fn directory(path: &Path, mode: u32) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn write(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(contents)?;
    file.set_permissions(Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_the_sandbox_s_own_and_shows_nothing_secret() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("root");
        let users = [crate::system::user(), crate::system::superuser()];
        make(&root, &[PathBuf::from("/usr"), PathBuf::from("/var/lib/dpkg")], &users).unwrap();
        for absent in [
            "etc/ssh",
            "etc/sudoers",
            "etc/gshadow",
            "etc/machine-id",
            "etc/apt/auth.conf",
            "etc/apt/auth.conf.d",
            "etc/npmrc",
            "etc/pip.conf",
            "etc/fstab",
            "etc/environment",
            "var/lib/dpkg/status",
        ] {
            assert!(fs::symlink_metadata(root.join(absent)).is_err(), "{absent}");
        }
        for empty in ["root", "home", "opt", "srv", "run", "etc/ssl/private", "var/log/apt"] {
            assert_eq!(fs::read_dir(root.join(empty)).unwrap().count(), 0, "{empty}");
        }
        let git = fs::read_to_string(root.join("etc/gitconfig")).unwrap();
        assert_eq!(git, git_system::CONTENTS, "the host's would be a leak");
        let shadow = fs::read_to_string(root.join("etc/shadow")).unwrap();
        assert!(shadow.lines().all(|line| line.contains(":*:")), "{shadow}");
        let tmp = fs::metadata(root.join("tmp")).unwrap().mode();
        assert_eq!(tmp & 0o7777, 0o1777);
    }

    #[test]
    fn files_with_credentials_are_left_out() {
        for (text, expected) in [
            ("deb https://deb.example.org/ bookworm main", false),
            ("deb https://me:secret@deb.example.org/ bookworm main", true),
            ("Acquire::http::Proxy \"http://u:p@proxy:3128\";", true),
            ("# see https://me@example.org/", false),
            ("contact=me@example.org", false),
            ("password = hunter2", true),
            ("password=", false),
            ("password requisite pam_unix.so", false),
        ] {
            assert_eq!(may_hold_a_credential(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn what_only_some_may_read_is_left_out_and_links_out_are_not_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        fs::create_dir_all(from.join("closed")).unwrap();
        fs::set_permissions(&from, Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(from.join("closed"), Permissions::from_mode(0o750)).unwrap();
        for (name, mode) in [("open", 0o644), ("some", 0o640), ("tool", 0o4755)] {
            fs::write(from.join(name), name).unwrap();
            fs::set_permissions(from.join(name), Permissions::from_mode(mode)).unwrap();
        }
        symlink("/home/somebody", from.join("out")).unwrap();
        symlink("/usr/bin/env", from.join("in")).unwrap();
        copy(&from, &to, 0).unwrap();
        let mut names: Vec<_> = fs::read_dir(&to)
            .unwrap()
            .map(|found| found.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["in", "open", "tool"]);
        assert_eq!(fs::metadata(to.join("tool")).unwrap().mode() & 0o7777, 0o755);
    }
}
