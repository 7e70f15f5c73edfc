//! Tools: what runs outside on behalf of code in here, as far as whoever is outside lets it.
//!
//! A worker, a copy of the guest, takes calls at a socket and passes them on to the host over another one, and answers back.
//! It looks into neither. The same program under a tool's name is the command that calls it.

mod client;
mod server;

pub(crate) use client::run;
pub(crate) use server::start;
