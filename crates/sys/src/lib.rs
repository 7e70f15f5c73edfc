//! Safe wrappers around the kernel: the only room with `unsafe`.
//!
//! Each module turns one kernel interface into types that cannot be misused: namespaces, networks, mounts, cgroups,
//! seccomp, Landlock, terminals, processes. Deliberately not here: policy. What is allowed is decided in `core` and
//! carried out by `isolation` and `guest`, the callers of this room.
//!
//! Without the feature `std` only what the guest needs is here: it has neither the standard nor a C library.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

#[cfg(feature = "std")]
pub mod activation;
#[cfg(any(test, all(not(feature = "std"), panic = "abort")))]
pub mod bare;
#[cfg(feature = "std")]
pub mod cgroup;
#[cfg(feature = "wasm")]
pub mod compiled_code;
#[cfg(feature = "std")]
pub mod credentials;
pub mod filter;
#[cfg(feature = "std")]
pub mod kvm;
#[cfg(feature = "std")]
pub mod landlock;
pub mod machine;
#[cfg(feature = "std")]
pub mod mount;
#[cfg(feature = "std")]
pub mod namespaces;
#[cfg(feature = "std")]
pub mod network;
#[cfg(feature = "std")]
pub mod origin;
#[cfg(feature = "std")]
pub mod ownership;
#[cfg(feature = "std")]
pub mod process;
pub mod pty;
pub mod rename;
#[cfg(feature = "std")]
pub mod rlimit;
#[cfg(feature = "std")]
pub mod seccomp;
#[cfg(feature = "std")]
pub mod seclusion;
#[cfg(feature = "std")]
pub mod signals;
#[cfg(feature = "std")]
pub mod socket;
pub mod spawn;
#[cfg(feature = "std")]
pub mod timestamp;
