//! What the carrier of a virtual machine and the first process inside say to each other, over one byte stream.
//!
//! The machine says [`Hello`] and is told [`Begin`]. From then on the stream carries other streams ([`StreamFrame`], [`Mux`]):
//! number 0 is the guest's control socket, the others are descriptors that came with it and connections to ports inside. Neither
//! side looks into them. All that comes from the machine is hostile: numbers, sizes and order are checked here, and what breaks
//! the rules is a [`MuxBreach`], after which nothing of it counts. Deliberately not here: the machine's files, which have a port
//! of their own and speak FUSE.

mod bytes_ahead;
mod mux;
mod stream;

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::frame::FrameError;
use crate::message::{Dialogue, GuestIds};

pub use mux::{MAX_UNSENT, Mux, MuxBreach, StreamInterest};
pub use stream::{EndRead, EndWrite, StreamEnd};

/// Version of these messages; both sides are of one build, but a template may be older than who restores it.
pub const VERSION: u32 = 1;

/// Name of the port (virtio-serial) over which all of this goes.
pub const CHANNEL_PORT: &str = "offleash.channel";

/// Name of the port over which FUSE goes.
pub const TREE_PORT: &str = "offleash.tree";

/// Most streams at a time, the control stream among them.
pub const MAX_STREAMS: usize = 1024;

/// Most bytes in one [`StreamFrame::Data`].
pub const MAX_STREAM_DATA: usize = 64 * 1024;

/// Most bytes of one stream and direction that were sent and not acknowledged ([`StreamFrame::Window`]).
pub const STREAM_WINDOW: usize = 256 * 1024;

/// Most ports that are told of; further ones cannot be reached from outside.
pub const MAX_LISTENING_PORTS: usize = 1024;

/// Longest text of a [`FromVm::Problem`], bytes.
pub const MAX_PROBLEM: usize = 1024;

/// The stream that is the guest's control socket; it is there from [`Begin`] on.
pub const CONTROL_STREAM: u32 = 0;

/// How much randomness a machine is given at its beginning, bytes.
pub const ENTROPY: usize = 64;

/// A piece of the streams that go over the one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamFrame {
    /// A stream begins, whose number is higher than any before. The host alone opens streams.
    Open {
        /// Its number.
        stream: u32,
        /// What is at its end inside.
        kind: StreamKind,
    },
    /// Bytes of a stream.
    Data {
        /// Which.
        stream: u32,
        /// The bytes, one at least and [`MAX_STREAM_DATA`] at most.
        #[serde(with = "crate::bytes")]
        bytes: Vec<u8>,
    },
    /// So many bytes were handed on, or dropped, since the last such frame.
    Window {
        /// Of which stream.
        stream: u32,
        /// How many.
        count: u32,
    },
    /// One direction of a stream ends. A stream is over when each side has said that it sends no more.
    Close {
        /// Which stream.
        stream: u32,
        /// Which direction, as its sender sees it.
        direction: CloseDirection,
    },
}

/// What is at the end of a stream inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamKind {
    /// A socket that goes to the guest with the next byte of the control stream.
    Descriptor,
    /// A connection to a TCP port of the machine's own addresses.
    Port {
        /// Its number.
        number: u16,
    },
}

/// A direction of a stream, as seen by who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CloseDirection {
    /// No more is sent.
    Sending,
    /// No more is taken: the other side is to send no more, and what still comes is dropped.
    Receiving,
}

/// What a machine is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToVm {
    /// The machine becomes a sandbox; once, after its [`FromVm::Hello`].
    Begin(Begin),
    /// A piece of a stream.
    Stream(StreamFrame),
}

impl Dialogue for ToVm {
    // One piece of data with what surrounds it, or a filter of 32 KiB with mounts and limits.
    const MAX_FRAME: usize = MAX_STREAM_DATA + 16 * 1024;
}

impl From<StreamFrame> for ToVm {
    fn from(frame: StreamFrame) -> Self {
        ToVm::Stream(frame)
    }
}

/// What a machine tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromVm {
    /// It has booted and waits; its first message, once.
    Hello(Hello),
    /// A piece of a stream.
    Stream(StreamFrame),
    /// On which TCP ports something listens inside from now on: all of them, in order, [`MAX_LISTENING_PORTS`] at most.
    ListenersChanged {
        /// Their numbers.
        ports: Vec<u16>,
    },
    /// Something went wrong that ends nothing; for a log.
    Problem {
        /// What was tried and why it failed, [`MAX_PROBLEM`] bytes at most.
        text: String,
    },
    /// The machine is about to switch itself off; its last message.
    Ended(VmEnd),
}

impl Dialogue for FromVm {
    const MAX_FRAME: usize = MAX_STREAM_DATA + 64;
}

impl From<StreamFrame> for FromVm {
    fn from(frame: StreamFrame) -> Self {
        FromVm::Stream(frame)
    }
}

/// A machine that has booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its [`VERSION`].
    pub version: u32,
    /// The [`crate::VERSION`] of its guest.
    pub guest: u32,
    /// Microseconds since its kernel started, by its own clock.
    pub uptime_us: u64,
}

/// Why a machine switches itself off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum VmEnd {
    /// The guest returned.
    Exited {
        /// Its code.
        code: u8,
    },
    /// A signal ended the guest.
    Signaled {
        /// Its number.
        signal: i32,
    },
    /// The machine could not become, or stay, a sandbox.
    Failed {
        /// What was tried.
        step: String,
        /// What the kernel inside said.
        errno: i32,
    },
}

/// What a machine needs to become a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The [`VERSION`] of who says this.
    pub version: u32,
    /// Randomness that no other machine is given, [`ENTROPY`] bytes: machines from one template would otherwise draw the same numbers.
    #[serde(with = "crate::bytes")]
    pub entropy: Vec<u8>,
    /// The time of day, seconds since 1970.
    pub seconds: u64,
    /// The rest of it.
    pub nanoseconds: u32,
    /// The host's name inside.
    #[serde(with = "crate::bytes")]
    pub hostname: Vec<u8>,
    /// What its network card is set up with; none, and there is but the loopback interface.
    pub network: Option<VmNetwork>,
    /// As whom the guest runs.
    pub user: GuestIds,
    /// Capabilities that the guest keeps if it is root, and that can be gained at all, a bit each.
    pub capabilities: u64,
    /// The system call filter that the guest runs under: instructions of 8 bytes; empty, and there is none.
    #[serde(with = "crate::bytes")]
    pub filter: Vec<u8>,
    /// Resource limits of the guest.
    pub limits: Vec<VmLimit>,
    /// Most processes and threads inside, the guest among them; `None` for no bound but the kernel's.
    pub max_processes: Option<u64>,
    /// Most memory of all of them together, bytes; `None` for no bound but the machine's.
    pub max_memory: Option<u64>,
    /// What is mounted in the tree, in order.
    pub mounts: Vec<VmMount>,
    /// Whether nothing of the tree itself can be written.
    pub read_only_root: bool,
    /// Where the tree comes from.
    pub tree: VmTree,
}

/// An address of a network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmNetwork {
    /// Its IPv4 address.
    pub address: [u8; 4],
    /// How many bits of it name the network.
    pub prefix: u8,
    /// Where all other addresses are reached.
    pub gateway: [u8; 4],
}

/// A resource limit (setrlimit(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmLimit {
    /// The resource's number.
    pub resource: u32,
    /// The limit that holds; `u64::MAX` for none.
    pub soft: u64,
    /// To what that may be raised.
    pub hard: u64,
}

/// Something that is mounted in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmMount {
    /// Where: an absolute path of the tree, of a directory that is there. No symbolic link is followed.
    #[serde(with = "crate::bytes")]
    pub target: Vec<u8>,
    /// What.
    pub kind: VmMountKind,
}

/// What is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VmMountKind {
    /// A file system in memory.
    Tmpfs {
        /// Bytes that it may hold.
        bytes: u64,
        /// Inodes that it may hold.
        inodes: u64,
        /// Permissions of its root.
        mode: u32,
    },
    /// The processes of the sandbox; what concerns the machine is covered.
    Proc,
    /// Six devices, terminals, shared memory.
    Devices {
        /// Bytes that the shared memory may hold.
        shm_bytes: u64,
    },
    /// What is there, without writing.
    ReadOnly,
}

/// Where a machine's tree comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum VmTree {
    /// From [`TREE_PORT`], by FUSE.
    Served,
    /// A directory of the initramfs, which is no sandbox's: to try a machine without a server.
    Initramfs {
        /// Its path.
        #[serde(with = "crate::bytes")]
        path: Vec<u8>,
    },
}

impl From<FrameError> for MuxBreach {
    fn from(error: FrameError) -> Self {
        MuxBreach::Frame(error)
    }
}
