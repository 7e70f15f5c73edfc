//! What a server tells its owner of; printing it is the caller's.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Takes what a server tells of. Called while requests are answered, so it must be quick.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Something happened.
    fn record(&self, event: &Event<'_>);
}

/// What a server tells of.
#[derive(Debug)]
pub enum Event<'a> {
    /// A request was answered; of a stream, its head.
    Request(&'a RequestEvent<'a>),
    /// A request failed for a reason of ours, which the client is not told.
    Failure {
        /// What the client was told.
        told: &'a str,
        /// Why it failed, which may name paths of the host.
        cause: &'a (dyn Error + 'static),
    },
    /// Connections cannot be taken.
    Accept {
        /// Why.
        error: &'a std::io::Error,
    },
    /// Connections are turned away because there are as many as there may be.
    Full {
        /// How many there may be.
        most: usize,
        /// The address of which there are as many as may be of one; absent when there are in all.
        address: Option<IpAddr>,
    },
}

/// A request that was answered. The query, in which signatures are, is not in it, nor is any header.
#[derive(Debug)]
pub struct RequestEvent<'a> {
    /// Who asked: an address, or nobody for the owner's own socket.
    pub peer: Option<SocketAddr>,
    /// The key that was shown, by its id.
    pub key: Option<&'a str>,
    /// The sandbox that the request was for, as far as its address says.
    pub sandbox: Option<&'a str>,
    /// The port inside, when the request was for one.
    pub port: Option<u16>,
    /// The method.
    pub method: &'a str,
    /// The path; whoever prints it must mind what others put into it.
    pub path: &'a str,
    /// The status of the answer.
    pub status: u16,
    /// How long the answer took to begin.
    pub took: Duration,
}
