//! Who renames what: the paths, the directories from which they lead, and the user.
//!
//! What the caller's memory says is read once. The host follows a path of the caller's only to see whether a directory is
//! there, below the caller's own root, and opens nothing by it.

use std::os::fd::{AsFd as _, OwnedFd};

use offleash_core::plan::Plan;
use offleash_protocol::GuestIds;
use offleash_sys::seccomp::CallNotification;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use super::PLACE;
use super::before::OverlayTable;

/// `AT_FDCWD` (fcntl.h).
const CURRENT_DIRECTORY: i32 = -100;

/// `RENAME_NOREPLACE` (linux/fs.h).
const NO_REPLACE: u64 = 1;

/// `OVERLAYFS_SUPER_MAGIC` (linux/magic.h).
const OVERLAY: u64 = 0x794c_7630;

/// What holds for everybody in the sandbox.
#[derive(Debug)]
pub(in crate::guest_link) struct SandboxIdentity {
    first: Pid,
    /// Whether the guest can be somebody else.
    has_superuser: bool,
    before: OverlayTable,
}

impl SandboxIdentity {
    pub(super) fn of(first: Pid, plan: &Plan) -> Self {
        Self {
            first,
            has_superuser: plan.has_superuser(),
            before: OverlayTable::of(plan),
        }
    }
}

/// A renaming as a worker can carry it out.
pub(super) struct RenameRequest {
    pub(super) paths: [Vec<u8>; 2],
    pub(super) from: [OwnedFd; 2],
    pub(super) replaces: bool,
    pub(super) user: Option<GuestIds>,
}

/// The arguments of a renaming: for each path from which descriptor it leads, and which argument it is.
struct RenameArguments {
    paths: [(i32, usize); 2],
    replaces: bool,
}

impl RenameArguments {
    fn of(call: &CallNotification) -> Self {
        let descriptor = |index: usize| {
            let low = u32::try_from(call.args[index] & 0xffff_ffff).unwrap_or(u32::MAX);
            low.cast_signed()
        };
        if call.name() == "rename" {
            return Self {
                paths: [(CURRENT_DIRECTORY, 0), (CURRENT_DIRECTORY, 1)],
                replaces: true,
            };
        }
        Self {
            paths: [(descriptor(0), 1), (descriptor(2), 3)],
            replaces: call.name() != "renameat2" || call.args[4] & NO_REPLACE == 0,
        }
    }
}

/// Whether a directory of an overlay may be what is renamed; a cheap look at what may be another thing by the time that the
/// kernel looks.
pub(super) fn may_be_directory(call: &CallNotification, kept: &SandboxIdentity) -> bool {
    let (descriptor, argument) = RenameArguments::of(call).paths[0];
    let Ok(path) = call.text(argument) else {
        return false;
    };
    match look(call.pid, descriptor, &path) {
        Ok(found) => found.is_some_and(|found| kept.before.may_have(&found)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::BADF | Errno::NAMETOOLONG | Errno::SRCH) => false,
        // A path that leads above where it starts, or through what only the sandbox's users may search.
        Err(_) => true,
    }
}

/// The directory of an overlay that is at a path of the caller's.
fn look(pid: u32, descriptor: i32, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
    let (from, resolve, below) = match path {
        [b'/', below @ ..] => (open(&format!("/proc/{pid}/root"))?, ResolveFlags::IN_ROOT, below),
        [] => return Ok(None),
        below => (base(pid, descriptor)?, ResolveFlags::BENEATH, below),
    };
    let below = if below.is_empty() { b"." } else { below };
    let resolve = resolve | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(&from, below, PLACE | OFlags::NOFOLLOW, Mode::empty(), resolve)?;
    let stat = rustix::fs::fstat(&found)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(None);
    }
    let system = rustix::fs::fstatfs(&found)?;
    let is_overlay = u64::try_from(system.f_type).is_ok_and(|kind| kind == OVERLAY);
    Ok(is_overlay.then_some(found))
}

impl RenameRequest {
    /// What is asked for; `None` if it is not for a worker. To be believed only if the call waits still.
    pub(super) fn by(call: &CallNotification, kept: &SandboxIdentity) -> Option<Self> {
        let arguments = RenameArguments::of(call);
        let user = user(call.pid, kept)?;
        let [old, new] = arguments.paths;
        let path = |(_, argument)| call.text(argument).ok();
        let from = |(descriptor, _), path: &[u8]| match path {
            // Where it starts does not matter.
            [b'/', ..] => open(&format!("/proc/{}/root", call.pid)).ok(),
            _ => base(call.pid, descriptor).ok(),
        };
        let paths = [path(old)?, path(new)?];
        let from = [from(old, &paths[0])?, from(new, &paths[1])?];
        Some(Self {
            paths,
            from,
            replaces: arguments.replaces,
            user,
        })
    }
}

/// As whom a worker is to act, so that it may do what the caller may and no more; `None` if there is nobody like that.
fn user(pid: u32, kept: &SandboxIdentity) -> Option<Option<GuestIds>> {
    let first = kept.first.as_raw_pid().cast_unsigned();
    let (caller, guest) = (CallerStatus::of(pid)?, CallerStatus::of(first)?);
    if !has_same_root(pid, first) {
        return None;
    }
    if !kept.has_superuser {
        return (caller == guest).then_some(None);
    }
    let (uid, gid) = (caller.one("Uid")?, caller.one("Gid")?);
    let ids = GuestIds {
        uid: inside(&format!("/proc/{pid}/uid_map"), uid)?,
        gid: inside(&format!("/proc/{pid}/gid_map"), gid)?,
    };
    let has_groups = caller.groups.split_ascii_whitespace().next().is_some();
    let is_weaker = ids.uid == 0 && caller.capabilities != guest.capabilities;
    (!has_groups && !is_weaker).then_some(Some(ids))
}

/// Who a process is (proc_pid_status(5)).
#[derive(Debug, PartialEq, Eq)]
struct CallerStatus {
    user: String,
    group: String,
    groups: String,
    capabilities: String,
}

impl CallerStatus {
    fn of(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Option<Self> {
        let line = |name: &str| {
            let mut lines = text.lines();
            let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(found.trim().to_owned())
        };
        Some(Self {
            user: line("Uid")?,
            group: line("Gid")?,
            groups: line("Groups")?,
            capabilities: line("CapEff")?,
        })
    }

    /// The one id that it has in every respect.
    fn one(&self, which: &str) -> Option<u32> {
        let ids = if which == "Uid" { &self.user } else { &self.group };
        let mut ids = ids.split_ascii_whitespace().map(str::parse);
        let first = ids.next()?.ok()?;
        ids.all(|id| id == Ok(first)).then_some(first)
    }
}

/// The id inside that is `outside` here (user_namespaces(7)).
fn inside(map: &str, outside: u32) -> Option<u32> {
    mapped(&std::fs::read_to_string(map).ok()?, outside)
}

fn mapped(map: &str, outside: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(|number| number.parse::<u32>().ok());
        let (inside, from, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let place = outside.checked_sub(from).filter(|place| *place < count)?;
        inside.checked_add(place)
    })
}

/// Whether both see the same root directory; a path means another thing to one who called chroot(2).
fn has_same_root(one: u32, other: u32) -> bool {
    let root = |pid: u32| {
        let stat = rustix::fs::fstat(open(&format!("/proc/{pid}/root")).ok()?).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    root(one).is_some_and(|root_of_one| root(other) == Some(root_of_one))
}

/// The directory from which a relative path leads.
fn base(pid: u32, descriptor: i32) -> Result<OwnedFd, Errno> {
    let directory = match descriptor {
        CURRENT_DIRECTORY => open(&format!("/proc/{pid}/cwd"))?,
        0.. => open(&format!("/proc/{pid}/fd/{descriptor}"))?,
        _ => return Err(Errno::BADF),
    };
    let stat = rustix::fs::fstat(directory.as_fd())?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(directory),
        _ => Err(Errno::NOTDIR),
    }
}

fn open(path: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, PLACE, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_mapped_as_the_kernel_says() {
        let map = "         0       4242          1\n      1000     100000       1000\n";
        assert_eq!(mapped(map, 4242), Some(0));
        assert_eq!(mapped(map, 100_007), Some(1007));
        assert_eq!(mapped(map, 101_000), None);
        assert_eq!(mapped(map, 0), None);
        assert_eq!(mapped("0 0 4294967295", 7), Some(7));
        assert_eq!(mapped("nonsense", 7), None);
    }

    #[test]
    fn only_who_has_one_id_in_every_respect_can_be_acted_for() {
        let text = |user: &str| format!("Name:\tx\nUid:\t{user}\nGid:\t5\t5\t5\t5\nGroups:\t \nCapEff:\t00\n");
        let one = |user: &str| CallerStatus::parse(&text(user)).unwrap().one("Uid");
        assert_eq!(one("7\t7\t7\t7"), Some(7));
        assert_eq!(one("7\t7\t7\t8"), None);
        assert_eq!(one("7\t0\t7\t7"), None);
        assert_eq!(CallerStatus::parse("Name:\tx\n"), None);
    }

    #[test]
    fn a_file_and_a_directory_that_is_on_no_overlay_are_the_kernels() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("file"), "").unwrap();
        let path = |name: &str| place.path().join(name).into_os_string().into_encoded_bytes();
        let pid = std::process::id();
        let looked = |descriptor, path: &[u8]| look(pid, descriptor, path).map(|found| found.is_some());
        assert_eq!(looked(CURRENT_DIRECTORY, &path("file")), Ok(false));
        assert_eq!(looked(CURRENT_DIRECTORY, &path("none")), Err(Errno::NOENT));
        assert_eq!(looked(CURRENT_DIRECTORY, b""), Ok(false));
        assert_eq!(looked(-1, b"x"), Err(Errno::BADF));
        // Not looked at from here, since it may lead anywhere.
        assert_eq!(looked(CURRENT_DIRECTORY, b"../x"), Err(Errno::XDEV));
    }
}
