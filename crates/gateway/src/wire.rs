//! What a supervisor and the process of its gateway say to each other, over a socket that both have from the beginning.
//!
//! What goes to the gateway is trusted and complete: rules as they were parsed, descriptors that it could not make itself.
//! What comes from it is that of a process that strangers' bytes may have taken over: its size is checked before any of it
//! is kept, nothing of it is acted upon but as told here, and what cannot be read is the end of it.

pub(crate) mod frames;

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion, ApprovalRules};
use offleash_core::limits::Limits;
use offleash_core::network::secret::NamedSecret;
use offleash_core::network::{DomainName, HostPort, NetworkPolicy, RequestRules};
use offleash_sys::network::{EntranceSockets, NetworkSockets};
use serde::{Deserialize, Serialize};

use crate::audience::Audience;
use crate::journal_entries::JournalEntry;
use crate::traffic::BegunConnections;
use crate::upstream::{SystemNames, WayOut};

/// What the process of a gateway is called.
pub(crate) const PROCESS_NAME: &str = "offleash: gateway";

/// What the gateway is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Make the authority of the sandbox, if there is none, and tell its certificate.
    MakeAuthority,
    /// Serve. Descriptors follow.
    Start(Box<StartOrder>),
    /// Replace the rules.
    Rules { number: u64, reach: Box<ReachOrder> },
    /// Close the network, or open it again.
    Close { number: u64, is_closed: bool },
    /// Connect to a port inside.
    Connect { number: u64, port: u16 },
    /// The answer to a question.
    Answer { question: u64, approval: ApprovalAnswer },
    /// End, and tell the rest.
    End,
}

/// What it tells.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The certificate of the sandbox's authority, in DER.
    Authority(Result<Vec<u8>, String>),
    /// It serves, or cannot.
    Ready(Result<(), ErrorForm>),
    /// This order counts.
    Done { number: u64 },
    /// What came of a connection; with a descriptor if it was made.
    Connected { number: u64, error: Option<ErrorForm> },
    /// Somebody is asked.
    Asked(ApprovalQuestion),
    /// Nobody needs an answer any more.
    Withdrawn(u64),
    /// The next of the addresses that stand for names stands for this one.
    Named(DomainName),
    /// Something for the record.
    Entry(JournalEntry),
    /// Connections that were begun since the last time.
    Begun(BegunConnections),
    /// It ends by itself, and everything that it serves with it.
    Ending,
    /// All is told, and nothing is served any more.
    Ended,
}

/// All that it needs to serve.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StartOrder {
    pub(crate) reach: ReachOrder,
    pub(crate) own: OwnOrder,
    pub(crate) host_ports: Vec<HostPort>,
    /// The ports inside that are published, each with a descriptor of what listens for it.
    pub(crate) published: Vec<u16>,
    pub(crate) limits: Limits,
    pub(crate) asks: ApprovalRules,
    pub(crate) audience: Audience,
    pub(crate) sockets: SocketCounts,
}

/// What may be reached.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReachOrder {
    pub(crate) rules: NetworkPolicy,
    pub(crate) internet: bool,
    pub(crate) requests: RequestRules,
    /// The authorities that servers are trusted by, in DER, where connections are opened.
    pub(crate) roots: Option<Vec<Vec<u8>>>,
    pub(crate) way_out: WayOut,
    pub(crate) system_names: SystemNames,
    pub(crate) secrets: Vec<NamedSecret>,
}

/// Which addresses are those of this machine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum OwnOrder {
    /// The kernel is asked, by two descriptors.
    Watched,
    /// These.
    Known(Vec<IpAddr>),
}

/// How many descriptors of each kind there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SocketCounts {
    connections: usize,
    questions: usize,
    long_questions: usize,
    services: usize,
    entrances: usize,
}

impl SocketCounts {
    /// Takes sockets apart for their way.
    pub(crate) fn of(sockets: NetworkSockets) -> (Self, Vec<OwnedFd>) {
        let counts = Self {
            connections: sockets.connections.len(),
            questions: sockets.questions.len(),
            long_questions: sockets.long_questions.len(),
            services: sockets.services.len(),
            entrances: sockets.entrances.len(),
        };
        let entrances = sockets.entrances.into_iter();
        let all = sockets
            .connections
            .into_iter()
            .chain(sockets.questions)
            .chain(sockets.long_questions)
            .chain(sockets.services)
            .chain(entrances.flat_map(|entrance| [entrance.listener, entrance.asking]));
        (counts, all.collect())
    }

    /// Puts them together again; `None` when some are missing.
    pub(crate) fn take(self, descriptors: &mut impl Iterator<Item = OwnedFd>) -> Option<NetworkSockets> {
        let mut some = |count: usize| {
            let taken: Vec<OwnedFd> = descriptors.take(count).collect();
            (taken.len() == count).then_some(taken)
        };
        let (connections, questions) = (some(self.connections)?, some(self.questions)?);
        let (long_questions, services) = (some(self.long_questions)?, some(self.services)?);
        let mut entrances = Vec::with_capacity(self.entrances);
        for _ in 0..self.entrances {
            let [listener, asking] = some(2)?.try_into().ok()?;
            entrances.push(EntranceSockets { listener, asking });
        }
        Some(NetworkSockets {
            connections,
            questions,
            long_questions,
            first_packets: None,
            services,
            entrances,
        })
    }
}

/// An error as it passes: what callers look at, and the words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ErrorForm {
    errno: Option<i32>,
    kind: ErrorKindForm,
    words: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum ErrorKindForm {
    ConnectionRefused,
    TimedOut,
    Unsupported,
    Other,
}

impl From<&io::Error> for ErrorForm {
    fn from(error: &io::Error) -> Self {
        Self {
            errno: error.raw_os_error(),
            kind: match error.kind() {
                io::ErrorKind::ConnectionRefused => ErrorKindForm::ConnectionRefused,
                io::ErrorKind::TimedOut => ErrorKindForm::TimedOut,
                io::ErrorKind::Unsupported => ErrorKindForm::Unsupported,
                _ => ErrorKindForm::Other,
            },
            words: error.to_string(),
        }
    }
}

impl From<ErrorForm> for io::Error {
    fn from(form: ErrorForm) -> Self {
        if let Some(errno) = form.errno {
            return Self::from_raw_os_error(errno);
        }
        let kind = match form.kind {
            ErrorKindForm::ConnectionRefused => io::ErrorKind::ConnectionRefused,
            ErrorKindForm::TimedOut => io::ErrorKind::TimedOut,
            ErrorKindForm::Unsupported => io::ErrorKind::Unsupported,
            ErrorKindForm::Other => io::ErrorKind::Other,
        };
        Self::new(kind, form.words)
    }
}
