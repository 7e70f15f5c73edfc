//! Serves a sandbox's tree to a virtual machine, as FUSE messages on a stream socket.
//!
//! Whoever speaks on the channel is the kernel of a machine that a tenant may have taken over. Each message is checked and
//! bounded, and nothing outside of the root is reached: see `tree` for how. A breach of the framing ends serving with a
//! [`TreeError`]; a request that is wrong or impossible is answered with its errno.
//!
//! # Calling it
//!
//! [`serve`] blocks, so whoever carries a machine gives it a thread of its own:
//!
//! ```no_run
//! use std::os::fd::OwnedFd;
//! use std::os::unix::net::UnixStream;
//!
//! # fn carry() -> Result<(), Box<dyn std::error::Error>> {
//! let root: OwnedFd = std::fs::File::open("/tree")?.into();
//! let (ours, of_the_machine) = UnixStream::pair()?;
//! let options = offleash_tree::TreeOptions {
//!     shared: vec!["data".into()],
//!     ..Default::default()
//! };
//! let serving = std::thread::spawn(move || offleash_tree::serve(root, ours.into(), &options));
//! // … `of_the_machine` becomes the descriptor of a `-chardev socket,fd=N` …
//! # drop(of_the_machine);
//! serving.join().expect("serving does not panic")?;
//! # Ok(())
//! # }
//! ```
//!
//! It ends when the other end of the channel is closed or shut down, and does not touch what the threads of the caller have:
//! its own threads have a mask for modes and, with [`FileOwners::Requester`], file ids of their own. One thing is the whole
//! process's: `SIGXFSZ` is ignored, so that `RLIMIT_FSIZE` is told with `EFBIG` and ends nothing.
//!
//! # What it takes
//!
//! - `/proc` in the caller's root, with `/proc/self/fd`; the tree must not be mounted over it.
//! - Capabilities over the tree's user namespace: `CAP_DAC_OVERRIDE`, `CAP_FOWNER`, `CAP_CHOWN` and `CAP_FSETID`, since it
//!   is the other side's kernel that decides who may do what; with [`FileOwners::Requester`] also `CAP_SETUID`, `CAP_SETGID`
//!   and `CAP_SETPCAP`. With [`FileOwners::Server`] it works without any, as far as modes of files let it.
//! - System calls beside those of any program with threads: `openat`, `openat2`, `statx`, `fstatfs`, `readlinkat`,
//!   `mkdirat`, `mknodat`, `symlinkat`, `linkat`, `unlinkat`, `renameat2`, `fchownat`, `fchmodat`, `utimensat`, `ftruncate`,
//!   `fallocate`, `pread64`, `pwrite64`, `pwritev2`, `lseek`, `copy_file_range`, `getdents64`, `fsync`, `fdatasync`,
//!   `getxattr`, `listxattr`, `setxattr`, `removexattr`, `sendto`, `poll`, `shutdown`, `umask`, `unshare` (`CLONE_FS` alone),
//!   `setfsuid`, `setfsgid`, `prctl` (`PR_GET_SECUREBITS`, `PR_SET_SECUREBITS`), `prlimit64`.
//! - Descriptors: three quarters of `RLIMIT_NOFILE`, of which a third, [`MAX_DESCRIPTORS`] at most, names files that are not open.
//!   The other side can have as many files open as the rest, so raise the bound first: 24,576 is what it can use.
//!
//! # What the other side must do
//!
//! Mount with `default_permissions` (and `allow_other`), or nobody checks modes. Write each answer to `/dev/fuse` in one call,
//! and go on if that is refused with `ENOENT`: the request was interrupted meanwhile.

mod attributes;
mod bounds;
mod channel;
mod directories;
mod dispatch;
mod error;
mod files;
mod greeting;
mod handles;
mod message;
mod mounts;
mod names;
mod nodes;
mod options;
mod owner;
mod position;
mod reply;
mod server;
mod tree;
mod xattrs;

pub use bounds::{MAX_DESCRIPTORS, MAX_HANDLES, MAX_MESSAGE, MAX_NODES, MAX_WORKERS, MAX_WRITE};
pub use error::TreeError;
pub use options::{CacheTimes, FileOwners, TreeOptions};
pub use server::serve;
