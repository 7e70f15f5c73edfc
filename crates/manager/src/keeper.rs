//! Sandboxes that outlive whoever asked for them: one process holds each and serves a socket.

pub mod answer;
pub mod client;
pub mod error;
pub mod message;
pub mod order;
mod replies;
