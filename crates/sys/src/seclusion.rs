//! What a process of our own gives up before it looks at what strangers send: its ids, its capabilities, the file system,
//! and being looked into.
//!
//! Each step is for good, and of this process alone. Deliberately not here: which system calls are left
//! ([`crate::seccomp::compile_service`]), and in what order a service takes the steps.

use std::ffi::CStr;
use std::io;

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use crate::credentials;
use crate::landlock::{self, LandlockRestriction};
use crate::mount::{self, MountRestrictions};
use crate::spawn::{self, SpawnUser};

/// The first of the ids that are given out here. Nobody else gives them out: systemd and shadow leave all above
/// `0x7000_0000` alone (<https://systemd.io/UIDS-GIDS/>), and a process number, which is added, has 22 bits.
const FIRST_ID: u32 = 0x7000_0000;
/// The id of nobody, for where the others are not mapped.
const NOBODY: u32 = 65_534;

/// How far a process has come away from the files of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoFiles {
    /// Its root is an empty directory that nothing leads out of.
    pub has_empty_root: bool,
    /// Landlock refuses it every file.
    pub has_landlock: bool,
}

/// Takes `name` for lists of processes, and lets nobody look into this process who may not look into every one: its memory is
/// not to be read, traced or dumped (`PR_SET_DUMPABLE`, prctl(2)).
///
/// # Errors
/// What the kernel answered.
pub fn hide_memory(name: &CStr) -> io::Result<()> {
    rustix::thread::set_name(name)?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// Becomes a user of its own, if this process is root: one that owns nothing, and that no other process is. Another user stays
/// what it is. Whoever it is then, it has no capability and gains none by executing.
///
/// Undoes [`crate::process::die_with_parent`] and [`hide_memory`].
///
/// # Errors
/// What the kernel answered. Where none of the ids is mapped, root stays root, without its capabilities.
pub fn become_own_user() -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let number = rustix::process::getpid().as_raw_pid().cast_unsigned();
        for id in [FIRST_ID.saturating_add(number), NOBODY] {
            match spawn::become_user(SpawnUser { uid: id, gid: id }) {
                Ok(()) => break,
                Err(Errno::INVAL | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    credentials::give_up_capabilities()
}

/// Leaves the file system, as far as the kernel lets this process: its root becomes an empty directory, and Landlock refuses
/// it every file. To be called while it has its capabilities, if it has any; by another user it makes a user namespace.
///
/// Either is enough, and who can have neither has [`crate::seccomp::compile_service`] still, under which nothing can be
/// opened.
pub fn leave_files() -> NoFiles {
    let restriction = LandlockRestriction {
        grants: &[],
        scope_signals: true,
        scope_abstract_sockets: true,
        deny_tcp: false,
    };
    NoFiles {
        has_empty_root: enter_empty_root().is_ok(),
        has_landlock: landlock::restrict_self(&restriction).is_ok(),
    }
}

/// Makes a file system without anything in it, which is attached nowhere, the root of this process.
fn enter_empty_root() -> io::Result<()> {
    let root = match empty_file_system() {
        // Only who has a mount namespace of its own may make one. Root, who may not here either, would keep its id.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !rustix::process::geteuid().is_root() => {
            let flags = UnshareFlags::NEWUSER | UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
            // SAFETY: no descriptor table is made another's, which is what other flags could do; namespaces concern no
            // memory (unshare(2)).
            unsafe { rustix::thread::unshare_unsafe(flags) }?;
            empty_file_system()?
        }
        made => made?,
    };
    rustix::process::fchdir(&root)?;
    rustix::process::chroot(c".")?;
    Ok(())
}

fn empty_file_system() -> io::Result<std::os::fd::OwnedFd> {
    let attributes = MountRestrictions {
        read_only: true,
        no_suid: true,
        no_dev: true,
        no_exec: true,
    };
    let options: [(&CStr, &[u8]); 3] = [(c"size", b"4k"), (c"nr_inodes", b"1"), (c"mode", b"0555")];
    mount::new_filesystem(c"tmpfs", &options, attributes)
}

#[cfg(test)]
mod tests;
