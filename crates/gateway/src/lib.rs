//! What a sandbox may reach: names are answered, connections judged, dialled and counted here, outside the sandbox.
//!
//! The sandbox has a network of its own in which everything leads to sockets that were made before any of its code ran.
//! They are served here, by an event loop in a process of its own ([`process`]), which its supervisor orders about
//! ([`Gateway`]). When that ends, the sandbox has no network; nothing falls open.
//!
//! Deliberately not here: the rules themselves (`core::network` decides) and the sandbox's side of the network
//! (`isolation` makes the namespace and its sockets).

mod approvals;
mod audience;
mod client;
pub mod client_hello;
mod config;
mod connection;
mod current;
mod dns;
mod ended;
mod entrance;
mod explain;
mod gateway_process;
mod http;
pub mod http_body;
pub mod http_head;
pub mod http_requests;
mod inbound;
mod journal;
mod journal_entries;
mod key_store;
mod limits;
mod link;
mod names;
mod opened;
mod order_socket;
mod own;
mod policy;
pub mod process;
pub mod proxy_request;
mod questions;
mod reached;
mod relay;
mod secrets;
mod serve;
pub mod server_hello;
mod shared;
mod stopped;
mod traffic;
mod trust;
mod upstream;
mod wire;

pub use audience::Audience;
pub use client::Gateway;
pub use config::{Config, Reach};
pub use explain::{Refusal, answer_to, opens, refusal};
pub use gateway_process::GatewayProcess;
pub use inbound::Published;
pub use journal::Account;
pub use journal_entries::{Connection, GatewayLoss, Inbound, LossCause, News, Outcome, Request, SecretUse};
pub use own::Own;
pub use questions::{Notice, Questions};
pub use reached::{MAX_REACHED, ReachedHost, ReachedHosts};
pub use traffic::TrafficTotals;
pub use trust::{Trust, TrustError};
pub use upstream::{NamedBy, Resolvers, WayOut};
