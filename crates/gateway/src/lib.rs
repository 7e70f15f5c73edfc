//! What a sandbox may reach: names are answered, connections judged, dialled and counted here, outside the sandbox.
//!
//! Deliberately not here: the rules themselves (`core::network` decides) and the sandbox's side of the network
//! (`isolation` makes the namespace and its sockets).

pub mod client_hello;
pub mod http_body;
pub mod http_head;
