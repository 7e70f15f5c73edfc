//! The machine and the kernel itself: nearly all of it refused.

use libc::*;

#[cfg(target_arch = "x86_64")]
use crate::seccomp::numbers::{SYS_create_module, SYS_get_kernel_syms, SYS_query_module};
use crate::seccomp::numbers::{
    SYS_listmount, SYS_lsm_get_self_attr, SYS_lsm_list_modules, SYS_lsm_set_self_attr, SYS_open_tree_attr,
    SYS_statmount,
};
use crate::seccomp::rule::TableEntry;

pub(super) static MOUNTS: &[TableEntry] = &[
    refuse!(SYS_mount, "changes the mount table"),
    refuse!(SYS_umount2, "changes the mount table"),
    refuse!(SYS_pivot_root, "changes the root directory"),
    switch!(
        SYS_chroot,
        REFUSED,
        superuser => ALLOW,
        "changes the root directory, and is the classic way out of one; a sandbox with a superuser of its own has no other \
         root to get out to, and OpenSSH, apt and dpkg call it"
    ),
    refuse!(SYS_fsopen, "opens a file system to mount"),
    refuse!(SYS_fsconfig, "parses file system options in the kernel (CVE-2022-0185)"),
    refuse!(SYS_fsmount, "mounts a file system"),
    refuse!(SYS_fspick, "opens a mounted file system to change it"),
    refuse!(SYS_open_tree, "copies a mount"),
    refuse!(SYS_open_tree_attr, "copies a mount with other attributes"),
    refuse!(SYS_move_mount, "changes the mount table"),
    refuse!(SYS_mount_setattr, "changes a mount's attributes, such as read-only"),
    absent!(SYS_statmount, "shows the host's mounts; callers fall back to /proc"),
    absent!(SYS_listmount, "shows the host's mounts; callers fall back to /proc"),
    refuse!(
        SYS_unshare,
        "makes a namespace, in which the kernel offers far more to attack"
    ),
    switch!(SYS_setns, REFUSED, hands_out => ALLOW, "enters a namespace"),
    refuse!(
        SYS_open_by_handle_at,
        "opens files by number, past every mount and directory"
    ),
    quiet!(SYS_name_to_handle_at, "makes the numbers that open_by_handle_at takes"),
    refuse!(SYS_quotactl, "changes disk quotas"),
    refuse!(SYS_quotactl_fd, "changes disk quotas"),
    refuse!(SYS_fanotify_init, "watches, and may decide, every file access"),
    refuse!(SYS_fanotify_mark, "watches, and may decide, every file access"),
];

pub(super) static MACHINE: &[TableEntry] = &[
    refuse!(SYS_reboot, "stops the machine"),
    refuse!(SYS_kexec_load, "replaces the kernel"),
    refuse!(SYS_kexec_file_load, "replaces the kernel"),
    refuse!(SYS_init_module, "loads code into the kernel"),
    refuse!(SYS_finit_module, "loads code into the kernel"),
    refuse!(SYS_delete_module, "unloads code from the kernel"),
    refuse!(SYS_swapon, "changes the machine's swap"),
    refuse!(SYS_swapoff, "changes the machine's swap"),
    refuse!(SYS_acct, "writes the machine's process accounting"),
    refuse!(SYS_sethostname, "changes the host name"),
    refuse!(SYS_setdomainname, "changes the domain name"),
    quiet!(SYS_vhangup, "hangs up a terminal"),
    refuse!(SYS_bpf, "loads programs into the kernel"),
    refuse!(SYS_add_key, "keyrings are shared by all processes of a user"),
    refuse!(
        SYS_request_key,
        "keyrings are shared by all processes of a user, and asking starts a helper on the host"
    ),
    refuse!(SYS_keyctl, "keyrings are shared by all processes of a user"),
];

pub(super) static INSIGHT: &[TableEntry] = &[
    refuse!(
        SYS_perf_event_open,
        "counts what the processor and the kernel do for others; a long list of kernel bugs"
    ),
    refuse!(SYS_syslog, "reads the kernel's log"),
    absent!(SYS_lookup_dcookie, "maps a profiler's number to a path of the host"),
    absent!(
        SYS_lsm_get_self_attr,
        "reads security labels; callers fall back to /proc"
    ),
    absent!(
        SYS_lsm_set_self_attr,
        "changes security labels; callers fall back to /proc"
    ),
    absent!(
        SYS_lsm_list_modules,
        "shows the host's security modules; callers fall back to /sys"
    ),
];

/// What programs use to restrict themselves.
///
/// A filter of its own is allowed to a program, by `prctl(PR_SET_SECCOMP)`: it can only take away. `seccomp` itself is
/// absent, because it can make a program the supervisor of its own calls, and of two filters that both ask a
/// supervisor the newer one wins (seccomp(2)): it would answer `continue` to what the sandbox refuses. Landlock is
/// absent although it too can only take away: its stack of layers is kernel surface, every user of it probes the
/// version first and goes on without, and the sandbox's own layer already holds.
pub(super) static SELF_RESTRICTION: &[TableEntry] = &[
    switch!(
        SYS_seccomp,
        ABSENT,
        hands_out => ALLOW,
        "libseccomp, OpenSSH and browsers fall back to prctl, which makes filters but no supervisor"
    ),
    absent!(
        SYS_landlock_create_ruleset,
        "the sandbox has its own layer; callers probe the version and go on without"
    ),
    absent!(SYS_landlock_add_rule, "as landlock_create_ruleset"),
    switch!(SYS_landlock_restrict_self, ABSENT, hands_out => ALLOW, "as landlock_create_ruleset"),
];

/// What current kernels no longer have.
#[cfg(target_arch = "x86_64")]
pub(super) static OLD: &[TableEntry] = &[
    quiet!(SYS_uselib, "removed from the kernel"),
    quiet!(SYS__sysctl, "removed from the kernel"),
    quiet!(SYS_sysfs, "lists the kernel's file systems"),
    quiet!(SYS_create_module, "removed from the kernel"),
    quiet!(SYS_get_kernel_syms, "removed from the kernel"),
    quiet!(SYS_query_module, "removed from the kernel"),
    quiet!(SYS_nfsservctl, "removed from the kernel"),
    quiet!(SYS_getpmsg, "never implemented"),
    quiet!(SYS_putpmsg, "never implemented"),
    quiet!(SYS_afs_syscall, "never implemented"),
    quiet!(SYS_tuxcall, "never implemented"),
    quiet!(SYS_security, "never implemented"),
    absent!(SYS_vserver, "never implemented"),
];
/// What current kernels no longer have.
#[cfg(not(target_arch = "x86_64"))]
pub(super) static OLD: &[TableEntry] = &[quiet!(SYS_nfsservctl, "removed from the kernel")];
