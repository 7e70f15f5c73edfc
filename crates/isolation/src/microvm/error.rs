//! Why there is no virtual machine.

use std::io;
use std::path::PathBuf;

use offleash_core::error::{ErrorKind, Explained};

/// A virtual machine that cannot be made, or a kernel that cannot be prepared for one.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The kernel, the hypervisor and what is said to them are those of another processor.
    #[error(
        "level `microvm` is for machines with x86-64 processors, and this is one with {}",
        std::env::consts::ARCH
    )]
    OtherProcessor,
    /// No hypervisor is there.
    #[error("level `microvm` takes a hypervisor, and there is no {}", .wanted.as_deref().map_or_else(|| "`qemu-system-x86_64` in PATH".to_owned(), |name| format!("`{}` that says it is QEMU", name.escape_debug())))]
    NoHypervisor {
        /// The one that was asked for.
        wanted: Option<String>,
    },
    /// No guest kernel is there.
    #[error("level `microvm` takes a kernel for the guest, and there is none {}", .wanted.as_deref().map_or_else(|| "below the state directory or /boot".to_owned(), |path| format!("at `{}`", path.display())))]
    NoKernel {
        /// Where it was looked for alone.
        wanted: Option<PathBuf>,
    },
    /// No machine runs by KVM.
    #[error("machines do not run by KVM here: {reason}")]
    NoKvm {
        /// What was found.
        reason: String,
    },
    /// A kernel without what the guest needs.
    #[error("the kernel {release} has no module `{module}` below `{}`", .directory.display())]
    NoModule {
        /// The kernel's release.
        release: String,
        /// The module.
        module: String,
        /// Where its modules are.
        directory: PathBuf,
    },
    /// A program of the system's own that failed.
    #[error("`{program}` failed: {said}")]
    Helper {
        /// Its name.
        program: &'static str,
        /// What it said.
        said: String,
    },
    /// A file that could not be read or written.
    #[error("{action} `{}`", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl VmError {
    pub(super) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}

/// What makes a kernel for guests available; to be typed as they are.
pub const KERNEL_COMMANDS: [&str; 2] = [
    "apt download linux-image-cloud-amd64 \"$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \\(linux-image-[0-9].*\\)/\\1/p' | head -n 1)\"",
    "offleash vm kernel --package ./linux-image-[0-9]*.deb",
];

impl Explained for VmError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::OtherProcessor
            | Self::NoHypervisor { .. }
            | Self::NoKernel { .. }
            | Self::NoKvm { .. }
            | Self::NoModule { .. } => ErrorKind::Unsupported,
            Self::Helper { .. } => ErrorKind::Internal,
            Self::File { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Internal,
            },
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::OtherProcessor => Some("level `container` with gVisor is the next one".to_owned()),
            Self::NoHypervisor { .. } => {
                Some("install QEMU (`apt install qemu-system-x86`), or name it with `--hypervisor PATH`".to_owned())
            }
            Self::NoKernel { .. } | Self::NoModule { .. } => Some(format!(
                "`offleash vm kernel` says what it looks at; Debian's is had with `{}` and `{}`",
                KERNEL_COMMANDS[0], KERNEL_COMMANDS[1]
            )),
            Self::NoKvm { .. } => {
                Some("leave `--acceleration kvm` out, and the machine is emulated, several times slower".to_owned())
            }
            Self::Helper { program, .. } => Some(format!(
                "`{program}` is to be there, and the file one of Debian's, such as `linux-image-6.1.0-48-cloud-amd64_….deb`"
            )),
            Self::File { .. } => None,
        }
    }
}
