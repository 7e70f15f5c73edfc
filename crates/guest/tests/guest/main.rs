//! The guest as a program of its own, seen from its control socket: no sandbox is around it.

mod commands;
mod files;
mod harness;
mod lifetime;
mod streams;
mod sudo;
mod users;
mod watch;
mod worker;
