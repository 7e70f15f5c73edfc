//! Changes modes, owners and times of files for the sandbox, where it may write them.
//!
//! Landlock governs what is opened, made and removed, and not these (landlock(7), "Limitations"): whoever owns a file
//! could open it to the world, or close it to its owner, without being granted anything. So the filter leaves these calls
//! to the supervisor. It reads the path once, opens it as a place, looks where that is, and changes just that: whatever
//! the program does to the path, or to its memory, meanwhile has no effect on what was decided about.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use offleash_sys::landlock::GrantAccess;
use offleash_sys::seccomp::{CallNotification, NotifyListener};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;

/// `AT_FDCWD`, `AT_SYMLINK_NOFOLLOW`, `AT_EMPTY_PATH` (fcntl.h).
const CURRENT_DIRECTORY: i32 = -100;
const NO_FOLLOW: u32 = 0x100;
const EMPTY_PATH: u32 = 0x1000;

/// `UTIME_NOW` (utimensat(2)).
const NOW: i64 = 0x3fff_ffff;

/// Carries such calls out below the directories that the sandbox may write.
#[derive(Debug)]
pub(super) struct AttributeMediator {
    writable: Vec<PathBuf>,
}

/// What a call wants.
#[derive(Debug, Clone)]
enum AttributeChange {
    Mode(u32),
    Owner { uid: u32, gid: u32 },
    Times(Timestamps),
}

/// On what: a descriptor of the program's, or a path from its descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AttributeTarget {
    Descriptor(i32),
    Path { from: i32, path: Vec<u8>, follow: bool },
}

impl AttributeMediator {
    /// For a sandbox with these grants.
    pub(super) fn new(grants: &[(PathBuf, GrantAccess)]) -> Self {
        let is_writable = |access: &GrantAccess| matches!(access, GrantAccess::Write | GrantAccess::WriteExecute);
        // Devices may be written, and are nobody's to change.
        let own = grants
            .iter()
            .filter(|(path, access)| is_writable(access) && !path.starts_with("/dev"));
        Self {
            writable: own.filter_map(|(path, _)| path.canonicalize().ok()).collect(),
        }
    }

    /// Whether what a descriptor stands for lies where the sandbox may write.
    ///
    /// The kernel says where it is now. It cannot have come from elsewhere: the sandbox can move and link nothing in.
    fn is_writable(&self, place: &OwnedFd) -> bool {
        let Ok(path) = rustix::fs::readlink(magic_link(place), Vec::new()) else {
            return false;
        };
        let path = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
        self.writable.iter().any(|writable| path.starts_with(writable))
    }
}

impl AttributeMediator {
    /// Carries a call out; `None` if it is about something else than what the sandbox may write.
    pub(super) fn carry_out(&self, call: &CallNotification, listener: &NotifyListener) -> Option<Result<(), Errno>> {
        let opened = understand(call).and_then(|(target, change)| Ok((open(call.pid, &target)?, change)));
        let (place, change) = match opened {
            Ok(opened) => opened,
            Err(error) => return Some(Err(error)),
        };
        if !listener.still_waits_for(call) {
            // Whoever asked is gone, and what was opened may be another's.
            return Some(Err(Errno::SRCH));
        }
        self.is_writable(&place).then(|| apply(&place, &change))
    }
}

fn understand(call: &CallNotification) -> Result<(AttributeTarget, AttributeChange), Errno> {
    let number = |index: usize| u32::try_from(call.args[index] & 0xffff_ffff).unwrap_or(u32::MAX);
    let descriptor = |index: usize| number(index).cast_signed();
    let path = |from, index, follow| {
        Ok(AttributeTarget::Path {
            from,
            path: text(call, index)?,
            follow,
        })
    };
    let owner = |uid, gid| AttributeChange::Owner {
        uid: number(uid),
        gid: number(gid),
    };
    match call.name() {
        "chmod" => Ok((path(CURRENT_DIRECTORY, 0, true)?, AttributeChange::Mode(number(1)))),
        "fchmod" => Ok((
            AttributeTarget::Descriptor(descriptor(0)),
            AttributeChange::Mode(number(1)),
        )),
        "fchmodat" => Ok((path(descriptor(0), 1, true)?, AttributeChange::Mode(number(2)))),
        "chown" => Ok((path(CURRENT_DIRECTORY, 0, true)?, owner(1, 2))),
        "lchown" => Ok((path(CURRENT_DIRECTORY, 0, false)?, owner(1, 2))),
        "fchown" => Ok((AttributeTarget::Descriptor(descriptor(0)), owner(1, 2))),
        "fchownat" => {
            let follow = follows(number(4))?;
            let is_own = number(4) & EMPTY_PATH != 0 && text(call, 1)?.is_empty();
            let target = if is_own {
                AttributeTarget::Descriptor(descriptor(0))
            } else {
                path(descriptor(0), 1, follow)?
            };
            Ok((target, owner(2, 3)))
        }
        "utimensat" => {
            let follow = follows(number(3))?;
            let is_own = call.args[1] == 0 || number(3) & EMPTY_PATH != 0 && text(call, 1)?.is_empty();
            let target = if is_own {
                AttributeTarget::Descriptor(descriptor(0))
            } else {
                path(descriptor(0), 1, follow)?
            };
            Ok((target, AttributeChange::Times(times(call, 2)?)))
        }
        _ => Err(Errno::PERM),
    }
}

fn follows(flags: u32) -> Result<bool, Errno> {
    if flags & !(NO_FOLLOW | EMPTY_PATH) != 0 {
        Err(Errno::INVAL)
    } else {
        Ok(flags & NO_FOLLOW == 0)
    }
}

fn text(call: &CallNotification, argument: usize) -> Result<Vec<u8>, Errno> {
    call.text(argument).map_err(|error| errno_of(&error))
}

fn times(call: &CallNotification, argument: usize) -> Result<Timestamps, Errno> {
    let given = call.times(argument).map_err(|error| errno_of(&error))?;
    let [access, modification] = given.unwrap_or([(0, NOW), (0, NOW)]);
    let time = |(seconds, nanoseconds)| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    Ok(Timestamps {
        last_access: time(access),
        last_modification: time(modification),
    })
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::PERM)
}

/// Opens the target as the program would, but through no link of `/proc`, which would be ours and not the program's.
fn open(pid: u32, target: &AttributeTarget) -> Result<OwnedFd, Errno> {
    let (from, path, follow) = match target {
        AttributeTarget::Descriptor(number) => return open_descriptor(pid, *number),
        AttributeTarget::Path { from, path, follow } => (*from, path, *follow),
    };
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    if let Some(number) = own_descriptor(path) {
        return open_descriptor(pid, number);
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC | if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let open_at = |directory: &dyn std::os::fd::AsFd| {
        rustix::fs::openat2(
            directory.as_fd(),
            path.as_slice(),
            flags,
            Mode::empty(),
            ResolveFlags::NO_MAGICLINKS,
        )
    };
    if path.starts_with(b"/") {
        return open_at(&CWD);
    }
    let directory = if from == CURRENT_DIRECTORY {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(format!("/proc/{pid}/cwd"), flags, Mode::empty())?
    } else {
        open_descriptor(pid, from)?
    };
    open_at(&directory)
}

/// What an open file of the program stands for.
fn open_descriptor(pid: u32, number: i32) -> Result<OwnedFd, Errno> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/{pid}/fd/{number}"), flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => Errno::BADF,
        error => error,
    })
}

/// The number in a path by which a program names an open file of its own, as C libraries do.
fn own_descriptor(path: &[u8]) -> Option<i32> {
    let prefixes = [b"/proc/self/fd/".as_slice(), b"/proc/thread-self/fd/", b"/dev/fd/"];
    let number = prefixes.iter().find_map(|prefix| path.strip_prefix(*prefix))?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

fn apply(place: &OwnedFd, change: &AttributeChange) -> Result<(), Errno> {
    let found = rustix::fs::fstat(place)?;
    // We may have rights that the program has not; its own are those of the owner.
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM);
    }
    match change {
        // The filter refuses set-user-id and set-group-id; not relied on here.
        AttributeChange::Mode(mode) => rustix::fs::chmod(magic_link(place), Mode::from_raw_mode(mode & 0o1777)),
        AttributeChange::Times(times) => rustix::fs::utimensat(CWD, magic_link(place), times, AtFlags::empty()),
        AttributeChange::Owner { uid, gid } => {
            // What changes nothing succeeds; archivers do that. Nothing else would with no capability to do it.
            let is_same = |wanted: u32, found: u32| wanted == u32::MAX || wanted == found;
            if is_same(*uid, found.st_uid) && is_same(*gid, found.st_gid) {
                Ok(())
            } else {
                Err(Errno::PERM)
            }
        }
    }
}

fn magic_link(place: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    fn path(path: &Path, follow: bool) -> AttributeTarget {
        AttributeTarget::Path {
            from: CURRENT_DIRECTORY,
            path: path.as_os_str().as_bytes().to_vec(),
            follow,
        }
    }

    /// A directory that may be written, with a file, and one that may not.
    fn site() -> (tempfile::TempDir, AttributeMediator) {
        let directory = tempfile::tempdir().unwrap();
        for name in ["in", "out"] {
            fs::create_dir(directory.path().join(name)).unwrap();
            fs::write(directory.path().join(name).join("file"), "x").unwrap();
            fs::set_permissions(
                directory.path().join(name).join("file"),
                fs::Permissions::from_mode(0o640),
            )
            .unwrap();
        }
        let grants = [
            (directory.path().join("in"), GrantAccess::WriteExecute),
            (directory.path().join("out"), GrantAccess::ReadExecute),
            (PathBuf::from("/dev/null"), GrantAccess::Write),
        ];
        let attributes = AttributeMediator::new(&grants);
        (directory, attributes)
    }

    #[test]
    fn only_what_lies_where_the_sandbox_may_write_is_changed() {
        let (site, attributes) = site();
        symlink("../out/file", site.path().join("in/link")).unwrap();
        for (name, follow, expected) in [
            ("in/file", true, true),
            ("in", true, true),
            ("in/link", true, false),
            ("in/link", false, true),
            ("in/../out/file", true, false),
            ("out/file", true, false),
        ] {
            let place = open(std::process::id(), &path(&site.path().join(name), follow)).unwrap();
            assert_eq!(attributes.is_writable(&place), expected, "{name}");
        }
        let device = open(std::process::id(), &path(Path::new("/dev/null"), true)).unwrap();
        assert!(!attributes.is_writable(&device));
    }

    #[test]
    fn a_mode_never_sets_an_id_and_is_the_places_own() {
        let (site, _) = site();
        let file = site.path().join("in/file");
        let place = open(std::process::id(), &path(&file, true)).unwrap();
        fs::rename(&file, site.path().join("in/moved")).unwrap();
        symlink("../out/file", &file).unwrap();
        apply(&place, &AttributeChange::Mode(0o6755)).unwrap();
        assert_eq!(
            fs::metadata(site.path().join("in/moved")).unwrap().mode() & 0o7777,
            0o755
        );
        assert_eq!(
            fs::metadata(site.path().join("out/file")).unwrap().mode() & 0o7777,
            0o640
        );
    }

    #[test]
    fn times_of_a_link_are_its_own() {
        let (site, _) = site();
        let link = site.path().join("in/link");
        symlink("file", &link).unwrap();
        let before = fs::metadata(site.path().join("in/file")).unwrap().mtime();
        let time = Timespec {
            tv_sec: 1_000_000,
            tv_nsec: 5,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        apply(
            &open(std::process::id(), &path(&link, false)).unwrap(),
            &AttributeChange::Times(times),
        )
        .unwrap();
        assert_eq!(fs::symlink_metadata(&link).unwrap().mtime(), 1_000_000);
        assert_eq!(fs::metadata(site.path().join("in/file")).unwrap().mtime(), before);
    }

    #[test]
    fn an_owner_stays_who_it_is() {
        let (site, _) = site();
        let place = open(std::process::id(), &path(&site.path().join("in/file"), true)).unwrap();
        let found = rustix::fs::fstat(&place).unwrap();
        let owner = |uid, gid| apply(&place, &AttributeChange::Owner { uid, gid });
        assert_eq!(owner(found.st_uid, u32::MAX), Ok(()));
        assert_eq!(owner(u32::MAX, found.st_gid), Ok(()));
        assert_eq!(owner(found.st_uid + 1, u32::MAX), Err(Errno::PERM));
    }

    #[test]
    fn links_of_proc_are_the_programs_and_not_ours() {
        assert_eq!(own_descriptor(b"/proc/self/fd/12"), Some(12));
        assert_eq!(own_descriptor(b"/dev/fd/0"), Some(0));
        assert_eq!(own_descriptor(b"/proc/self/fd/12/x"), None);
        assert_eq!(
            open(std::process::id(), &path(Path::new("/proc/self/cwd"), true)).unwrap_err(),
            Errno::LOOP
        );
        assert_eq!(
            open(std::process::id(), &AttributeTarget::Descriptor(-1)).unwrap_err(),
            Errno::BADF
        );
    }
}
