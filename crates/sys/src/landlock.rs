//! Landlock: which files the program may use, as a second wall behind the mounts.
//!
//! Three system calls, without a crate: a rule set is made, a few directories are added, the thread restricts itself.
//! Everything that the running kernel can restrict is denied unless a grant allows it; what it cannot restrict is
//! reported ([`EnforcedRights`]), never passed over. Deliberately not here: which directories are granted, and whether a
//! kernel that enforces less is good enough.

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// include/uapi/linux/landlock.h; documented in landlock(7) and
// <https://docs.kernel.org/userspace-api/landlock.html>.
const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_DIR: u64 = 1 << 4;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
const MAKE_SOCK: u64 = 1 << 9;
const MAKE_FIFO: u64 = 1 << 10;
const MAKE_BLOCK: u64 = 1 << 11;
const MAKE_SYM: u64 = 1 << 12;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

const BIND_TCP: u64 = 1 << 0;
const CONNECT_TCP: u64 = 1 << 1;
const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1 << 0;
const SCOPE_SIGNAL: u64 = 1 << 1;

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

/// The rights that a file can carry; the kernel refuses a rule that gives others to one.
const FILE_RIGHTS: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
const READ: u64 = READ_FILE | READ_DIR;
/// All that changes something, device nodes apart: those no grant can give.
const CHANGE: u64 = WRITE_FILE
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_SOCK
    | MAKE_FIFO
    | MAKE_SYM
    | REFER
    | TRUNCATE
    | IOCTL_DEV;
/// What the first version could restrict.
const FIRST_VERSION: u64 = READ | EXECUTE | MAKE_CHAR | MAKE_BLOCK | (CHANGE & !(REFER | TRUNCATE | IOCTL_DEV));

/// What a grant allows on a file, or on a directory and all beneath it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantAccess {
    /// Listing directories only.
    List,
    /// Reading files and listing directories.
    Read,
    /// Reading and executing.
    ReadExecute,
    /// Reading, and every change except making device nodes; device commands (`ioctl`) on devices.
    Write,
    /// As `Write`, and executing.
    WriteExecute,
    /// Executing files, and reading them, which the kernel demands for it; no listing of directories.
    Execute,
}

impl GrantAccess {
    fn rights(self) -> u64 {
        match self {
            GrantAccess::List => READ_DIR,
            GrantAccess::Read => READ,
            GrantAccess::ReadExecute => READ | EXECUTE,
            GrantAccess::Write => READ | CHANGE,
            GrantAccess::WriteExecute => READ | CHANGE | EXECUTE,
            GrantAccess::Execute => READ_FILE | EXECUTE,
        }
    }
}

/// Allows something on one file or directory.
#[derive(Debug, Clone, Copy)]
pub struct PathGrant<'a> {
    /// The file or directory; `O_PATH` suffices.
    pub fd: BorrowedFd<'a>,
    /// What is allowed there.
    pub access: GrantAccess,
}

/// What a thread, and all that it starts, may still do.
#[derive(Debug, Clone, Copy)]
pub struct LandlockRestriction<'a> {
    /// The only files and directories that may be used; overlapping grants add up.
    pub grants: &'a [PathGrant<'a>],
    /// No signals to processes outside the restriction.
    pub scope_signals: bool,
    /// No connection to abstract unix sockets made outside the restriction.
    pub scope_abstract_sockets: bool,
    /// No TCP: neither `bind` nor `connect`.
    pub deny_tcp: bool,
}

/// What the running kernel enforces of a restriction.
///
/// The file rights of the first version (reading, writing, executing, making, removing) are enforced always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnforcedRights {
    /// The kernel's Landlock version.
    pub abi: u32,
    /// Moving files between directories follows the grants (version 2). Before, the kernel refuses every such move.
    pub refer: bool,
    /// Truncating needs a writing grant (version 3). Before, it needs none.
    pub truncate: bool,
    /// Commands on devices need a writing grant (version 5). Before, they need none.
    pub ioctl_dev: bool,
    /// TCP is denied (asked for, and version 4).
    pub tcp: bool,
    /// Signals are kept inside (asked for, and version 6).
    pub signals: bool,
    /// Abstract unix sockets are kept inside (asked for, and version 6).
    pub abstract_sockets: bool,
}

/// The version of Landlock in the running kernel; `None` if it is not built in or not switched on.
///
/// # Errors
/// What `landlock_create_ruleset`(2) answers beyond that.
pub fn abi() -> io::Result<Option<u32>> {
    match create_ruleset(None) {
        Ok(version) => Ok(u32::try_from(version).ok()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Restricts the calling thread, and all that it starts from now on, for good.
///
/// Sets `no_new_privs`. Enforces what the running kernel can, from version 1 on, and returns what that was. Allocates
/// nothing, so it may be called between `fork` and `exec`.
///
/// # Errors
/// `Unsupported` without Landlock; `E2BIG` beyond sixteen restrictions on top of each other; what fstat(2) and
/// landlock(7) answer. After an error nothing new is enforced.
pub fn restrict_self(restriction: &LandlockRestriction<'_>) -> io::Result<EnforcedRights> {
    let ruleset = LandlockRuleset::new(restriction)?;
    ruleset.restrict_self()?;
    Ok(ruleset.enforced)
}

/// Keeps the calling thread, and all that it starts from now on, from processes that are not: it can neither trace them
/// (ptrace(2)), nor have of `/proc` and of them what only those may have who may trace, nor signal them. Nothing else changes.
///
/// Sets `no_new_privs`.
///
/// # Errors
/// `Unsupported` before version 6 (Linux 6.12): earlier ones restrict nothing without restricting what files may be used for.
/// What landlock(7) answers.
pub fn isolate_self() -> io::Result<()> {
    const SCOPES_ALONE: u32 = 6;
    if abi()?.is_none_or(|version| version < SCOPES_ALONE) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let attributes = RulesetAttributes {
        handled_access_fs: 0,
        handled_access_net: 0,
        scoped: SCOPE_SIGNAL,
    };
    let ruleset = make_with(&attributes)?;
    rustix::thread::set_no_new_privs(true)?;
    restrict(&ruleset)
}

/// A restriction that was made and can be taken by any process that has the descriptor, as often as one likes.
#[derive(Debug)]
pub struct LandlockRuleset {
    descriptor: OwnedFd,
    enforced: EnforcedRights,
}

impl LandlockRuleset {
    /// Makes one of what the running kernel can restrict.
    ///
    /// # Errors
    /// As [`restrict_self`].
    pub fn new(restriction: &LandlockRestriction<'_>) -> io::Result<Self> {
        let version = abi()?.ok_or(io::ErrorKind::Unsupported)?;
        let enforced = EnforcedRights::by(version, restriction);
        let descriptor = make_ruleset(&enforced)?;
        for grant in restriction.grants {
            add_grant(&descriptor, grant, enforced.file_rights())?;
        }
        Ok(Self { descriptor, enforced })
    }

    /// What the running kernel enforces of it.
    pub fn enforced(&self) -> EnforcedRights {
        self.enforced
    }

    /// Restricts the calling thread, as [`restrict_self`].
    ///
    /// # Errors
    /// As [`restrict_self`].
    pub fn restrict_self(&self) -> io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        restrict(&self.descriptor)
    }
}

impl From<LandlockRuleset> for OwnedFd {
    fn from(ruleset: LandlockRuleset) -> Self {
        ruleset.descriptor
    }
}

impl EnforcedRights {
    fn by(abi: u32, restriction: &LandlockRestriction<'_>) -> EnforcedRights {
        EnforcedRights {
            abi,
            refer: abi >= 2,
            truncate: abi >= 3,
            ioctl_dev: abi >= 5,
            tcp: restriction.deny_tcp && abi >= 4,
            signals: restriction.scope_signals && abi >= 6,
            abstract_sockets: restriction.scope_abstract_sockets && abi >= 6,
        }
    }

    /// The file rights that the kernel knows, and that are therefore denied without a grant.
    fn file_rights(&self) -> u64 {
        FIRST_VERSION | bit(self.refer, REFER) | bit(self.truncate, TRUNCATE) | bit(self.ioctl_dev, IOCTL_DEV)
    }

    fn network_rights(&self) -> u64 {
        bit(self.tcp, BIND_TCP | CONNECT_TCP)
    }

    fn scopes(&self) -> u64 {
        bit(self.signals, SCOPE_SIGNAL) | bit(self.abstract_sockets, SCOPE_ABSTRACT_UNIX_SOCKET)
    }
}

fn bit(wanted: bool, bits: u64) -> u64 {
    if wanted { bits } else { 0 }
}

/// `struct landlock_ruleset_attr`. A kernel that knows fewer fields accepts the rest if it is zero.
#[repr(C)]
struct RulesetAttributes {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`, which the kernel's header packs.
#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

fn make_ruleset(enforced: &EnforcedRights) -> io::Result<OwnedFd> {
    let attributes = RulesetAttributes {
        handled_access_fs: enforced.file_rights(),
        handled_access_net: enforced.network_rights(),
        scoped: enforced.scopes(),
    };
    make_with(&attributes)
}

fn make_with(attributes: &RulesetAttributes) -> io::Result<OwnedFd> {
    let descriptor = create_ruleset(Some(attributes))?;
    // SAFETY: called with attributes, landlock_create_ruleset(2) returns a new file descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// With attributes, makes a rule set and returns its descriptor; without, returns the version.
fn create_ruleset(attributes: Option<&RulesetAttributes>) -> io::Result<i32> {
    let (pointer, size, flags) = match attributes {
        Some(attributes) => (std::ptr::from_ref(attributes), size_of::<RulesetAttributes>(), 0),
        None => (std::ptr::null(), 0, CREATE_RULESET_VERSION),
    };
    // SAFETY: the kernel reads `size` bytes at `pointer`, which is either null with size 0 or a live
    // `RulesetAttributes`, and writes nothing (landlock_create_ruleset(2), Linux 5.13).
    let result = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, pointer, size, flags) };
    i32::try_from(result)
        .ok()
        .filter(|result| *result >= 0)
        .ok_or_else(io::Error::last_os_error)
}

fn add_grant(ruleset: &OwnedFd, grant: &PathGrant<'_>, handled: u64) -> io::Result<()> {
    let directory = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(grant.fd)?.st_mode).is_dir();
    let possible = if directory { handled } else { handled & FILE_RIGHTS };
    let rights = grant.access.rights() & possible;
    if rights == 0 {
        return Ok(()); // `List` on a file gives nothing, which the kernel would call an error (ENOMSG).
    }
    let rule = PathBeneath {
        allowed_access: rights,
        parent_fd: grant.fd.as_raw_fd(),
    };
    // SAFETY: `ruleset` is open (OwnedFd); the kernel reads one `landlock_path_beneath_attr` from `rule` and writes
    // nothing (landlock_add_rule(2), Linux 5.13).
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_fd().as_raw_fd(),
            RULE_PATH_BENEATH,
            &raw const rule,
            0_u32,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn restrict(ruleset: &OwnedFd) -> io::Result<()> {
    // SAFETY: `ruleset` is open (OwnedFd); the call takes no pointer (landlock_restrict_self(2), Linux 5.13).
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
