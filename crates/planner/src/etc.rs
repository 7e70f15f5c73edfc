//! The sandbox's `/etc`: a few files that we write, and a few of the host's that programs cannot do without.
//!
//! An allowlist. Never here: accounts and their hashes, keys (`ssh`, `ssl/private`), `sudoers`, and configuration that
//! may hold credentials (the host's `gitconfig`, `npmrc`, `pip.conf`), nor what identifies the machine (`machine-id`).

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use offleash_core::plan::{PlanEntry, PlanNode, SandboxUser};
use offleash_core::spec::MountAccess;

use super::git_system;
use super::known::KnownEtc;
use super::system::system;
use super::trust::{self, TrustStores};

/// Files and directories of the host, each shown where it exists and everybody may read it. Each costs about 15 µs at
/// every start.
pub const FROM_HOST: [&str; 17] = [
    "alternatives",
    "chromium.d",
    "crypto-policies",
    "debian_version",
    "fonts",
    "ld.so.cache",
    "localtime",
    "maven",
    "mime.types",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
];

/// Files up to this size are copied, which costs less than a mount.
const COPIED_UP_TO: u64 = 16 << 10;

/// The entries of `/etc`, with `trust` in place of the host's certificate authorities if it is there. What is `known`
/// already is not read again.
pub(super) fn entries(
    user: &SandboxUser,
    hostname: &str,
    network: bool,
    trust: Option<&TrustStores>,
    known: Option<&KnownEtc>,
) -> Vec<PlanEntry> {
    let mut entries = written(user, hostname, network);
    let is_kept = |name: &&str| trust.is_none() || !trust::replaces(name);
    let from_host_too = FROM_HOST.iter().copied().filter(is_kept).map(str::to_owned);
    let versioned = known.and_then(KnownEtc::versioned);
    for name in from_host_too.chain(versioned.unwrap_or_else(|| versioned_names().collect())) {
        entries.extend(from_host(&Path::new("/etc").join(name), known));
    }
    entries.extend(trust.map(trust::entries).unwrap_or_default());
    entries
}

fn written(user: &SandboxUser, hostname: &str, network: bool) -> Vec<PlanEntry> {
    let SandboxUser {
        uid,
        gid,
        name,
        home,
        shell,
    } = user;
    let (home, shell) = (home.display(), shell.display());
    let nowhere = "/nonexistent:/usr/sbin/nologin";
    [
        (
            "passwd",
            format!(
                "root:x:0:0:root:{nowhere}\n{name}:x:{uid}:{gid}:{name}:{home}:{shell}\n\
                 nobody:x:65534:65534:nobody:{nowhere}\n"
            ),
        ),
        ("group", format!("root:x:0:\n{name}:x:{gid}:\nnogroup:x:65534:\n")),
        ("nsswitch.conf", NAME_SERVICES.to_owned()),
        (git_system::NAME, git_system::CONTENTS.to_owned()),
    ]
    .map(|(name, text)| file(name, text))
    .into_iter()
    .chain(of_the_network(hostname, network))
    .collect()
}

/// Where names are looked up.
pub const NAME_SERVICES: &str = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n";

/// What depends on the sandbox's network, and is written anew at each start.
pub(super) fn of_the_network(hostname: &str, network: bool) -> [PlanEntry; 3] {
    [
        ("hosts", format!("127.0.0.1 localhost {hostname}\n::1 localhost\n")),
        ("hostname", format!("{hostname}\n")),
        ("resolv.conf", resolvers(network).to_owned()),
    ]
    .map(|(name, text)| file(name, text))
}

fn file(name: &str, text: String) -> PlanEntry {
    let contents = text.into_bytes();
    system(Path::new("/etc").join(name), PlanNode::File { contents })
}

/// Which address is asked for names does not matter, since the gateway answers at all of them. Without a network no
/// route leads there, which the kernel tells at once, and counts.
fn resolvers(network: bool) -> &'static str {
    if network {
        "nameserver 198.18.0.1\noptions edns0\n"
    } else {
        "# no network\nnameserver 198.18.0.1\n"
    }
}

/// The login shell: bash where there is one.
pub(super) fn shell() -> &'static str {
    if Path::new("/bin/bash").exists() {
        "/bin/bash"
    } else {
        "/bin/sh"
    }
}

/// Configuration of language runtimes, in directories that may carry a version.
pub fn versioned_names() -> impl Iterator<Item = String> {
    let names = fs::read_dir("/etc").into_iter().flatten().flatten();
    names
        .filter_map(|found| found.file_name().into_string().ok())
        .filter(|name| name == "R" || name.starts_with("java-"))
}

/// What is shown of the host under one name.
pub(super) enum EtcOrigin {
    /// A link that leads to what every sandbox has.
    Link(PathBuf),
    /// A file or directory, where it is.
    Place(PathBuf, Metadata),
}

/// What there is of the host at `path`.
pub(super) fn origin(path: &Path) -> Option<EtcOrigin> {
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_symlink() {
        return Some(EtcOrigin::Place(path.to_owned(), found));
    }
    let to = fs::read_link(path).ok()?;
    let resolved = fs::canonicalize(path).ok()?;
    if resolved.starts_with("/usr") {
        return Some(EtcOrigin::Link(to));
    }
    let found = fs::metadata(&resolved).ok()?;
    Some(EtcOrigin::Place(resolved, found))
}

fn from_host(path: &Path, known: Option<&KnownEtc>) -> Option<PlanEntry> {
    match origin(path)? {
        EtcOrigin::Link(to) => Some(system(path, PlanNode::Symlink { to })),
        EtcOrigin::Place(source, found) => shown(path, &source, &found, known),
    }
}

/// Whether everybody may read it, and it is small enough to be copied.
pub(super) fn is_copied(found: &Metadata) -> bool {
    found.is_file() && found.mode() & 0o004 != 0 && found.len() <= COPIED_UP_TO
}

pub(super) fn shown(path: &Path, source: &Path, found: &Metadata, known: Option<&KnownEtc>) -> Option<PlanEntry> {
    if is_copied(found) {
        let contents = match known.and_then(|known| known.contents(source, found)) {
            Some(contents) => contents.to_vec(),
            None => read(source, found.len()).ok()?,
        };
        return Some(system(path, PlanNode::File { contents }));
    }
    let everybody = if found.is_dir() { 0o005 } else { 0o004 };
    let is_shown = found.mode() & everybody == everybody && (found.is_dir() || found.is_file());
    let access = MountAccess::Ro;
    let source = source.to_path_buf();
    is_shown.then(|| system(path, PlanNode::Bind { source, access }))
}

/// The first `length` bytes of a file, which are all of it unless it was just made longer.
pub(super) fn read(path: &Path, length: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    File::open(path)?.take(length).read_to_end(&mut contents)?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::user;

    #[test]
    fn nothing_secret_and_nothing_identifying_is_shown() {
        let shown = entries(&user(), "sandbox", false, None, None);
        for name in [
            "shadow",
            "gshadow",
            "sudoers",
            "ssh",
            "ssl/private",
            "npmrc",
            "pip.conf",
            "machine-id",
        ] {
            let path = Path::new("/etc").join(name);
            assert!(
                !shown
                    .iter()
                    .any(|entry| entry.target.starts_with(&path) || path.starts_with(&entry.target)),
                "{name}"
            );
        }
    }

    #[test]
    fn git_s_system_configuration_is_ours_and_not_the_host_s() {
        let shown = entries(&user(), "sandbox", false, None, None);
        let found: Vec<_> = shown
            .iter()
            .filter(|entry| entry.target == Path::new("/etc/gitconfig"))
            .map(|entry| &entry.node)
            .collect();
        let contents = git_system::CONTENTS.as_bytes().to_vec();
        assert_eq!(found, [&PlanNode::File { contents }]);
    }

    #[test]
    fn the_accounts_are_the_sandbox_s_own() {
        let shown = entries(&user(), "sandbox", false, None, None);
        let passwd = shown
            .iter()
            .find(|entry| entry.target == Path::new("/etc/passwd"))
            .unwrap();
        let PlanNode::File { contents } = &passwd.node else {
            panic!("{passwd:?}")
        };
        let text = String::from_utf8(contents.clone()).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(text.contains("user:x:1000:1000:user:/home/user:"));
    }

    #[test]
    fn no_target_occurs_twice() {
        let mut targets: Vec<_> = entries(&user(), "sandbox", false, None, None)
            .into_iter()
            .map(|entry| entry.target)
            .collect();
        let count = targets.len();
        targets.sort();
        targets.dedup();
        assert_eq!(targets.len(), count);
    }
}
