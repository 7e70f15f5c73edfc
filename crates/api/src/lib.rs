//! Answers over HTTP, and agent hosts over standard streams, too ([`mcp`]): the control plane that E2B's SDKs speak to, the services that they expect in every sandbox, and
//! the way to every port inside.
//!
//! One port for all of it; `route` says which request is for whom. This room alone knows what HTTP looks like, and it
//! decides nothing about sandboxes: that is the manager's. `cli` is the only caller, and asks through [`client`].

mod answer;
mod authentication;
mod body;
mod cells;
pub mod client;
mod clients;
mod code;
mod connect;
mod connection;
mod control;
mod cors;
mod cut;
mod driven;
mod envd;
mod failure;
mod guard;
mod journal;
mod json;
mod large;
mod listen;
pub mod mcp;
mod native;
mod pace;
mod pages;
mod query;
mod route;
mod routes;
mod schema;
mod server;
mod time;
mod tls;
mod trace;
mod traffic;

pub use journal::{Event, Journal, RequestEvent};
pub use listen::{Listen, ListenError};
pub use routes::{RouteSummary, route_summaries};
pub use server::{ServeError, Server, ServerConfig};
pub use tls::{Certificate, TlsError, TlsFiles};
#[cfg(feature = "otel")]
pub use trace::{BadEndpoint, TracesEndpoint};
