//! The system call filter: which calls a program in the sandbox may make.
//!
//! An allow-list (`table`) with conditions on arguments (`conditions`), compiled at run time into a program for
//! the kernel (`emit`). Calls that are not in the list do not exist; another architecture's way into the kernel
//! (`int 0x80`) kills the program. The x32 numbers (bit 30) do not exist either, like every number above the list:
//! that is what most kernels answer, and a program that probes for them goes on. With [`FilterOptions::notify`] the refused
//! calls that no ordinary program makes are told to a supervisor ([`NotifyListener`]), who records and refuses them.
//!
//! Deliberately not here: what to do with a record, and which options a level takes. Callers are the launcher
//! (`install`), the supervisor (`Listener`) and `offleash explain`.

mod conditions;
mod emit;
mod notify;
mod numbers;
mod rule;
mod runtime;
mod service;
mod table;
#[cfg(test)]
mod tests;
mod worker;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libc::sock_filter;

pub use notify::{CallNotification, MemoryFigures, NotifyListener, PeerAddress};
use rule::{CallRule, low_half};

/// What the filter is to allow beyond, or less than, the table says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilterOptions {
    /// Allows `ptrace` and its kin, and switching address randomisation off: what debuggers need.
    pub allow_ptrace: bool,
    /// Tells the supervisor of refused calls that no ordinary program makes.
    pub notify: bool,
    /// Tells the supervisor of every `connect`, which it then lets through.
    pub observe_connect: bool,
    /// Hides `memfd_create`, for machines that cannot bound memory in files without a name.
    pub deny_memfd: bool,
    /// For levels without namespaces of their own, where everything of the host's is in reach: refuses every `socket`, and
    /// of `socketpair` what can reach other sockets than its peer; hides System V memory; lets a program schedule only
    /// itself; and leaves changes of modes and times to the supervisor, since Landlock does not govern them.
    pub host_namespaces: bool,
    /// For sandboxes whose first process is the superuser of several users: allows `chroot`, which takes a capability that
    /// only that user has.
    pub superuser: bool,
    /// Allows setuid and setgid files, where nobody outside can come to run what the sandbox makes.
    pub allow_set_id: bool,
    /// Refuses to choose processors, where nothing but what the first process chose bounds how many are used.
    pub kept_to_cpus: bool,
    /// Has the supervisor answer how much memory there is, in place of the kernel, which knows that of the machine only.
    pub show_memory: bool,
    /// Tells the supervisor of memory that is reserved and can be written, which it then lets through, and leaves the limit
    /// of data to it: where that limit bounds memory.
    pub watch_reservations: bool,
    /// Asks the supervisor before every new process and thread, where nothing else counts them.
    pub count_forks: bool,
    /// Offers every renaming to the supervisor, which may carry it out in the kernel's stead: that of a directory which an
    /// overlay does not rename.
    pub offer_renames: bool,
    /// For sandboxes whose copies of a process are moved into other ones: what such a copy does before it takes all of this
    /// away from itself by the filter of the sandbox that it enters.
    pub hands_out: bool,
}

/// A compiled filter.
#[derive(Debug, Clone)]
pub struct SeccompFilter {
    program: Vec<sock_filter>,
    asks: bool,
}

/// Compiles the table under these options, in a few microseconds.
pub fn compile(options: &FilterOptions) -> SeccompFilter {
    SeccompFilter {
        program: emit::program(options),
        asks: options.notify || options.observe_connect,
    }
}

/// Compiles the filter of a process of our own that serves sockets which it is handed (`service`).
pub fn compile_service() -> SeccompFilter {
    SeccompFilter {
        program: service::program(),
        asks: false,
    }
}

/// Compiles the filter of an OCI runtime in namespaces of ours (`runtime`).
pub fn compile_runtime() -> SeccompFilter {
    SeccompFilter {
        program: runtime::program(),
        asks: false,
    }
}

/// What a hypervisor has no path to, and is given where it opens it ([`NotifyListener::supply`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HypervisorSupply {
    /// The file of its memory: what it opens for reading and writing. It punches no holes then, which it is told it did.
    pub memory: bool,
    /// KVM's device: what it opens for both and for itself alone (`O_CLOEXEC`).
    pub device: bool,
}

impl HypervisorSupply {
    /// A word for it.
    pub fn word(self) -> &'static str {
        match (self.memory, self.device) {
            (false, false) => "nothing",
            (true, false) => "memory",
            (false, true) => "device",
            (true, true) => "memory-and-device",
        }
    }

    /// What is meant by such a word.
    pub fn parse(word: &str) -> Option<Self> {
        let every = [false, true].map(|memory| [false, true].map(|device| Self { memory, device }));
        every.into_iter().flatten().find(|supply| supply.word() == word)
    }
}

/// Compiles the filter of a hypervisor within that of [`compile_runtime`]: nothing of mounts, namespaces and other processes, and
/// a listener for what it is supplied with.
pub fn compile_hypervisor(supplied: HypervisorSupply) -> SeccompFilter {
    SeccompFilter {
        program: runtime::hypervisor_program(supplied),
        asks: supplied != HypervisorSupply::default(),
    }
}

/// Compiles the filter of a process of our own that carries strangers' code out by itself (`worker`).
pub fn compile_worker() -> SeccompFilter {
    SeccompFilter {
        program: worker::program(),
        asks: false,
    }
}

/// The same for a process that compiles code as well: memory that is not written to any more may become code.
pub fn compile_code_worker() -> SeccompFilter {
    SeccompFilter {
        program: worker::code_program(),
        asks: false,
    }
}

/// The same for a process with an empty root directory that is handed files of code over its socket: it receives descriptors,
/// and may ask how long their files are.
pub fn compile_script_worker() -> SeccompFilter {
    SeccompFilter {
        program: worker::script_program(),
        asks: false,
    }
}

impl SeccompFilter {
    /// The length of the program; the kernel's limit is 4096.
    pub fn instructions(&self) -> usize {
        self.program.len()
    }

    /// Puts the calling thread, and all that it starts from now on, under the filter, for good.
    ///
    /// Sets `no_new_privs`. Allocates nothing, so it may be called between `fork` and `exec`.
    ///
    /// # Errors
    /// `InvalidInput` if the filter asks a supervisor (then only [`SeccompFilter::install_with_listener`] fits), otherwise
    /// what seccomp(2) answers.
    pub fn install(&self) -> io::Result<()> {
        if self.asks {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.set(0).map(drop)
    }

    /// As [`SeccompFilter::install`], and returns the supervisor's end.
    ///
    /// A told call waits until the supervisor answers; only a fatal signal interrupts it (Linux 5.19; before that any
    /// signal does, and the call is told again). When the last copy of the listener is closed, every told call fails
    /// with `ENOSYS`, so a supervisor that dies lets nothing through.
    ///
    /// # Errors
    /// What seccomp(2) answers; `ResourceBusy` if a supervisor is there already.
    pub fn install_with_listener(&self) -> io::Result<NotifyListener> {
        let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let descriptor = match self.set(listen | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.set(listen)?,
            outcome => outcome?,
        };
        // SAFETY: with SECCOMP_FILTER_FLAG_NEW_LISTENER a non-negative result is a new file descriptor that nobody
        // else owns (seccomp(2), Linux 5.0).
        Ok(NotifyListener::from(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// The program as the kernel takes it (`struct sock_filter`), for a process that installs it by itself.
    pub fn to_bytes(&self) -> Vec<u8> {
        let instruction = |one: &sock_filter| {
            let [code_0, code_1] = one.code.to_ne_bytes();
            let [k_0, k_1, k_2, k_3] = one.k.to_ne_bytes();
            [code_0, code_1, one.jt, one.jf, k_0, k_1, k_2, k_3]
        };
        self.program.iter().flat_map(instruction).collect()
    }

    fn set(&self, flags: libc::c_ulong) -> io::Result<i32> {
        rustix::thread::set_no_new_privs(true)?;
        let length = u16::try_from(self.program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = libc::sock_fprog {
            len: length,
            filter: self.program.as_ptr().cast_mut(),
        };
        // SAFETY: `program` points at `len` instructions that outlive the call; the kernel copies and checks them and
        // writes nothing (seccomp(2), Linux 3.17).
        let result = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        };
        match i32::try_from(result) {
            Ok(descriptor) if descriptor >= 0 => Ok(descriptor),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// What the table says about a call, without options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableVerdict {
    /// Carried out.
    Allowed,
    /// Carried out or not by its arguments.
    Conditional,
    /// Fails.
    Refused {
        /// With this error.
        errno: i32,
    },
}

/// A line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallExplanation {
    /// The call's name, as in its manual page.
    pub name: &'static str,
    /// Its number on this architecture.
    pub number: u32,
    /// Whether it is carried out.
    pub verdict: TableVerdict,
    /// Who needs it, or why it is refused.
    pub reason: &'static str,
}

/// The table's line for a call; `None` for a name that this architecture, or this release, does not know.
pub fn explain(name: &str) -> Option<CallExplanation> {
    table::entries().find(|entry| entry.name == name).map(explanation)
}

/// Every call that the table names, by number. All others fail with `ENOSYS`.
pub fn known_names() -> impl Iterator<Item = &'static str> {
    table::entries().map(|entry| entry.name)
}

fn explanation(entry: &'static rule::TableEntry) -> CallExplanation {
    let verdict = match entry.rule {
        CallRule::Allow | CallRule::Observe | CallRule::Admit | CallRule::Offer => TableVerdict::Allowed,
        CallRule::Mediate | CallRule::Supply | CallRule::When { .. } => TableVerdict::Conditional,
        CallRule::Refuse(refusal) => TableVerdict::Refused {
            errno: i32::from(refusal.errno),
        },
    };
    CallExplanation {
        name: entry.name,
        number: entry.number,
        verdict,
        reason: entry.reason,
    }
}
