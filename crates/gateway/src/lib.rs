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
mod http;
pub mod http_body;
pub mod http_head;
pub mod http_requests;
mod inbound;
mod journal;
mod limits;
mod names;
mod opened;
mod own;
mod policy;
pub mod process;
pub mod proxy_request;
mod questions;
mod relay;
mod secrets;
mod serve;
pub mod server_hello;
mod shared;
mod upstream;
mod wire;

pub use audience::Audience;
pub use client::{Gateway, GatewayProcess};
pub use config::{Config, Reach};
pub use explain::{Refusal, answer_to, opens, refusal};
pub use inbound::Published;
pub use journal::{Account, Connection, GatewayLoss, Inbound, LossCause, News, Outcome, Request, SecretUse};
pub use opened::{Trust, TrustError};
pub use own::Own;
pub use questions::{Notice, Questions};
pub use upstream::{NamedBy, Resolvers, WayOut};
