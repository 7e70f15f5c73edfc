//! Safe wrappers around the kernel: the only room with `unsafe`.
//!
//! Each module turns one kernel interface into types that cannot be misused: namespaces, mounts, cgroups, seccomp,
//! Landlock, terminals, processes. Deliberately not here: policy. What is allowed is decided in `core` and carried
//! out by `isolation` and `guest`, the callers of this room.

pub mod cgroup;
pub mod credentials;
pub mod landlock;
pub mod mount;
pub mod namespaces;
pub mod process;
pub mod pty;
pub mod rlimit;
pub mod seccomp;
pub mod signals;
pub mod socket;
pub mod spawn;
