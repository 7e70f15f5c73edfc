//! Answers over HTTP, and agent hosts over standard streams, too ([`mcp`]): the control plane that E2B's SDKs speak to, the services that they expect in every sandbox, and
//! the way to every port inside.
//!
//! One port for all of it; `server` takes connections and `http::destination` says which request is for whom. This room alone knows what HTTP looks like, and it
//! decides nothing about sandboxes: that is the daemon's. `cli` is the only caller, and asks through [`client`].

mod cells;
pub mod client;
mod commands;
mod control;
mod daytona;
mod e2b;
mod front;
mod http;
mod journal;
mod judge0;
mod languages;
pub mod mcp;
mod native;
mod piston;
mod routes;
mod server;
mod submissions;
mod telemetry;
mod traffic;
mod ui;

pub use front::{Front, FrontConfig, NodeAddress, NodeAddressError, NodesName};
pub use journal::{Event, Journal, RequestEvent};
pub use routes::{RouteSummary, route_summaries};
pub use server::{Certificate, Listen, ListenError, ServeError, Server, ServerConfig, TlsError, TlsFiles};
pub use telemetry::{BadEndpoint, BadHeaders, CollectorTls, SignalEndpoint, TelemetryConfig, TelemetrySignal};
