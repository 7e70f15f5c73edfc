//! Answers over HTTP: the control plane that E2B's SDKs speak to, the services that they expect in every sandbox, and
//! the way to every port inside.
//!
//! One port for all of it; `route` says which request is for whom. This room alone knows what HTTP looks like, and it
//! decides nothing about sandboxes: that is the manager's. `cli` is the only caller.

mod answer;
mod body;
mod envd;
mod route;
mod server;

pub use server::{ServeError, Server, ServerConfig};
