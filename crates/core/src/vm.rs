//! Virtual machines of the level `microvm`: what may be asked for, and what one is made of.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::units::Bytes;

/// What a caller says of a virtual machine; nothing of it has to be said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmSpec {
    /// The hypervisor, by its name or its path; when absent, `qemu-system-x86_64` of `PATH`.
    pub hypervisor: Option<OsString>,
    /// The guest's kernel, or a directory with `boot` and `lib/modules` of one; when absent, the one that was unpacked into
    /// the state directory, else the newest below `/boot`.
    pub kernel: Option<PathBuf>,
    /// How instructions are executed; when absent, by a program.
    pub acceleration: Option<Acceleration>,
}

/// How a machine's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Acceleration {
    /// By the processor.
    Kvm,
    /// By a program that translates them (QEMU's TCG).
    Tcg,
}

impl Acceleration {
    /// As the record and `doctor` name it.
    pub fn name(self) -> &'static str {
        match self {
            Acceleration::Kvm => "KVM",
            Acceleration::Tcg => "TCG",
        }
    }

    /// That of the words `kvm` and `tcg`.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "kvm" => Some(Acceleration::Kvm),
            "tcg" => Some(Acceleration::Tcg),
            _ => None,
        }
    }
}

/// The virtual machine that a sandbox is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VmPlan {
    /// The hypervisor's program on the host, resolved.
    #[serde(with = "crate::text::path_bytes")]
    pub hypervisor: PathBuf,
    /// What it says that it is: `QEMU 7.2.22`.
    pub version: String,
    /// A directory of the host with `kernel` and `initramfs`, which nobody changes.
    #[serde(with = "crate::text::path_bytes")]
    pub images: PathBuf,
    /// The release of the guest's kernel.
    pub release: String,
    /// How instructions are executed.
    pub acceleration: Acceleration,
    /// Memory of the machine, MiB.
    pub memory_mib: u64,
    /// Processors of the machine.
    pub cpus: u32,
    /// Memory that code in the machine may have; `None` for all that its kernel leaves.
    pub code_memory: Option<Bytes>,
    /// Processes and threads that code in the machine may have at once.
    pub pids: Option<u64>,
    /// The state of a machine like it, if it is restored from that or is to save it.
    pub template: Option<VmTemplatePlan>,
}

/// The template of a machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VmTemplatePlan {
    /// A file of the host, which holds the state of its devices.
    #[serde(with = "crate::text::path_bytes")]
    pub path: PathBuf,
    /// What is done with it.
    pub used: TemplateUse,
}

impl VmTemplatePlan {
    /// The file beside it that holds the machine's memory.
    pub fn memory_path(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".memory");
        name.into()
    }
}

/// What a machine does with its template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TemplateUse {
    /// It is read, in place of booting.
    Restore,
    /// It is written by a machine that boots for nothing else, and then read.
    Save,
}
