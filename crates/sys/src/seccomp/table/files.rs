//! Files: content, names and attributes.

use libc::*;

use crate::seccomp::numbers::{
    SYS_cachestat, SYS_fchmodat2, SYS_file_getattr, SYS_file_setattr, SYS_getxattrat, SYS_listxattrat,
    SYS_removexattrat, SYS_renameat, SYS_setxattrat, SYS_sync_file_range,
};
use crate::seccomp::rule::TableEntry;

pub(super) static CONTENT: &[TableEntry] = &[
    allow!(SYS_read, "every program"),
    allow!(SYS_write, "every program"),
    allow!(SYS_readv, "buffered readers, musl's stdio"),
    allow!(SYS_writev, "buffered writers, musl's stdio"),
    allow!(SYS_pread64, "the dynamic loader, databases"),
    allow!(SYS_pwrite64, "databases, linkers"),
    allow!(SYS_preadv, "databases, Java"),
    allow!(SYS_pwritev, "databases, Java"),
    absent!(SYS_preadv2, "newer form of preadv, to which callers fall back"),
    absent!(SYS_pwritev2, "newer form of pwritev, to which callers fall back"),
    check!(SYS_openat, OPENAT, "every program"),
    absent!(
        SYS_openat2,
        "carries its mode in memory, where no filter can see a setuid bit; callers fall back to openat"
    ),
    allow!(SYS_close, "every program"),
    allow!(
        SYS_close_range,
        "program starters: Python's subprocess, systemd, OpenSSH"
    ),
    allow!(SYS_lseek, "every program that reads files"),
    check!(SYS_fcntl, FCNTL, "every program"),
    allow!(SYS_flock, "package managers, git, databases"),
    allow!(SYS_dup, "shells"),
    allow!(SYS_dup3, "shells"),
    check!(SYS_ioctl, IOCTL, "terminals, isatty, FIONREAD, file clones"),
    allow!(SYS_ftruncate, "databases, editors, compilers"),
    allow!(SYS_truncate, "coreutils, Python"),
    check!(
        SYS_fallocate,
        UNSUPPORTED,
        "fills a disk in a moment, before anyone who watches its use can act; databases and linkers write instead, as \
         does glibc's posix_fallocate"
    ),
    allow!(SYS_fadvise64, "coreutils, databases"),
    absent!(SYS_readahead, "advice, which fadvise64 gives as well"),
    allow!(SYS_fsync, "databases, git, editors"),
    allow!(SYS_fdatasync, "databases"),
    absent!(SYS_sync_file_range, "advice that databases and dpkg do without"),
    quiet!(
        SYS_syncfs,
        "writes back a whole file system of the machine, which stalls its other users"
    ),
    quiet!(
        SYS_sync,
        "writes back every file system of the machine, which stalls its other users"
    ),
    allow!(SYS_copy_file_range, "coreutils, Python's shutil, Go"),
    allow!(SYS_sendfile, "web servers, Python's shutil, Go"),
    allow!(SYS_splice, "Go, coreutils, HAProxy"),
    absent!(
        SYS_tee,
        "page sharing between pipes, the ground of CVE-2022-0847; hardly used"
    ),
    absent!(
        SYS_vmsplice,
        "lends memory pages to pipes, the ground of CVE-2020-29374; callers write instead"
    ),
    allow!(SYS_pipe2, "shells, every program starter"),
    switch!(SYS_memfd_create, ALLOW, deny_memfd => ABSENT, "Wayland, Python, JIT compilers, test tools"),
    absent!(SYS_memfd_secret, "memory that the host cannot read, count or swap"),
    absent!(SYS_cachestat, "shows what others read through the page cache"),
];

pub(super) static NAMES: &[TableEntry] = &[
    allow!(SYS_getcwd, "shells, build tools"),
    allow!(SYS_chdir, "shells, build tools"),
    allow!(SYS_fchdir, "find, tar, rm"),
    allow!(SYS_getdents64, "every program that lists directories"),
    allow!(SYS_mkdirat, "every program that makes directories"),
    allow!(SYS_unlinkat, "every program that removes files"),
    switch!(SYS_renameat, ALLOW, offer_renames => OFFER, "older coreutils, Go"),
    switch!(SYS_renameat2, ALLOW, offer_renames => OFFERED_RENAMEAT2, "coreutils, package managers"),
    allow!(SYS_linkat, "git, package managers"),
    allow!(SYS_symlinkat, "package managers"),
    allow!(SYS_readlinkat, "every program that resolves paths"),
    check!(SYS_mknodat, MKNODAT, "mkfifo, tar"),
    allow!(SYS_inotify_init1, "file watchers: editors, tail, webpack"),
    allow!(SYS_inotify_add_watch, "file watchers"),
    allow!(SYS_inotify_rm_watch, "file watchers"),
];

pub(super) static ATTRIBUTES: &[TableEntry] = &[
    allow!(SYS_fstat, "every program"),
    allow!(SYS_newfstatat, "every program"),
    allow!(SYS_statx, "coreutils, Rust, Node.js"),
    allow!(SYS_faccessat, "shells"),
    absent!(
        SYS_faccessat2,
        "newer form of faccessat, to which C libraries fall back"
    ),
    allow!(SYS_statfs, "df, installers, Java"),
    allow!(SYS_fstatfs, "df, find, glibc's fpathconf"),
    allow!(SYS_umask, "shells, daemons"),
    switches!(SYS_fchmod, MODE_IN_1, host_namespaces => MEDIATED_MODE_IN_1, allow_set_id => ALLOW, "tar, package managers"),
    switches!(SYS_fchmodat, MODE_IN_2, host_namespaces => MEDIATED_MODE_IN_2, allow_set_id => ALLOW, "chmod, install, cp"),
    absent!(SYS_fchmodat2, "newer form of fchmodat, to which C libraries fall back"),
    switch!(SYS_fchown, ALLOW, host_namespaces => MEDIATE, "tar, package managers"),
    switch!(SYS_fchownat, ALLOW, host_namespaces => MEDIATE, "chown, package managers"),
    switch!(SYS_utimensat, ALLOW, host_namespaces => MEDIATE, "touch, tar, make"),
    allow!(SYS_getxattr, "ls, cp, Python's shutil"),
    allow!(SYS_lgetxattr, "ls, cp, Python's shutil"),
    allow!(SYS_fgetxattr, "cp, tar"),
    allow!(SYS_listxattr, "cp, Python's shutil"),
    allow!(SYS_llistxattr, "cp, Python's shutil"),
    allow!(SYS_flistxattr, "cp, tar"),
    switch!(SYS_setxattr, ALLOW, host_namespaces => UNSUPPORTED, "cp, Python's shutil"),
    switch!(SYS_lsetxattr, ALLOW, host_namespaces => UNSUPPORTED, "cp, Python's shutil"),
    switch!(SYS_fsetxattr, ALLOW, host_namespaces => UNSUPPORTED, "cp, tar"),
    switch!(SYS_removexattr, ALLOW, host_namespaces => UNSUPPORTED, "setfattr, cp"),
    switch!(SYS_lremovexattr, ALLOW, host_namespaces => UNSUPPORTED, "setfattr"),
    switch!(SYS_fremovexattr, ALLOW, host_namespaces => UNSUPPORTED, "setfattr, cp"),
    absent!(SYS_setxattrat, "newer form of setxattr, to which callers fall back"),
    absent!(SYS_getxattrat, "newer form of getxattr, to which callers fall back"),
    absent!(SYS_listxattrat, "newer form of listxattr, to which callers fall back"),
    absent!(
        SYS_removexattrat,
        "newer form of removexattr, to which callers fall back"
    ),
    absent!(SYS_file_getattr, "newer form of an ioctl, to which callers fall back"),
    absent!(SYS_file_setattr, "newer form of an ioctl, to which callers fall back"),
];

/// Only on x86_64: what newer architectures have in another form.
#[cfg(target_arch = "x86_64")]
pub(super) static OLD: &[TableEntry] = &[
    check!(SYS_open, OPEN, "musl, Go, statically linked programs"),
    check!(SYS_creat, MODE_IN_1, "older programs"),
    allow!(SYS_stat, "musl, older glibc"),
    allow!(SYS_lstat, "musl, older glibc"),
    allow!(SYS_access, "the dynamic loader, shells"),
    allow!(SYS_dup2, "shells"),
    allow!(SYS_pipe, "older programs"),
    allow!(SYS_mkdir, "coreutils, musl"),
    allow!(SYS_rmdir, "coreutils, musl"),
    switch!(SYS_rename, ALLOW, offer_renames => OFFER, "every program that replaces files"),
    allow!(SYS_link, "git, package managers"),
    allow!(SYS_unlink, "every program that removes files"),
    allow!(SYS_symlink, "package managers"),
    allow!(SYS_readlink, "glibc's realpath, shells"),
    check!(SYS_mknod, MKNOD, "mkfifo, tar"),
    switches!(SYS_chmod, MODE_IN_1, host_namespaces => MEDIATED_MODE_IN_1, allow_set_id => ALLOW, "package managers, Python"),
    switch!(SYS_chown, ALLOW, host_namespaces => MEDIATE, "package managers, Python"),
    switch!(SYS_lchown, ALLOW, host_namespaces => MEDIATE, "package managers, tar"),
    switch!(SYS_utime, ALLOW, host_namespaces => ABSENT, "older programs"),
    switch!(SYS_utimes, ALLOW, host_namespaces => ABSENT, "older programs, Node.js"),
    absent!(
        SYS_futimesat,
        "older form of utimensat, which C libraries have made of it since 2007"
    ),
    allow!(SYS_getdents, "sanitizers of GCC and Clang, older programs"),
    allow!(SYS_inotify_init, "Java's file watcher"),
    quiet!(SYS_ustat, "older form of statfs, by device number"),
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) static OLD: &[TableEntry] = &[];
