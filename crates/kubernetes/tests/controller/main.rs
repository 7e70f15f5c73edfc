//! The controller before stand-ins for the API server and for daemons: every promise of docs/clusters.md that can be kept without a
//! cluster.

#![cfg(feature = "controller")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and says what it saw"
)]

mod api_server;
mod daemon;
mod http;
mod lifecycle;
mod pools;
mod schemas;
mod site;
mod trouble;
