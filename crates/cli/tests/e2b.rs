//! `offleash serve` as the users of E2B's SDKs see it: the unmodified packages against the real server.
//!
//! Agent hosts are here, too, with the official client of the protocol that they speak.
//!
//! What is in Python and JavaScript is beside this file; here is what starts it, and what the SDKs cannot do: to kill the
//! server, its supervisors and its guests at the wrong moment, and to ask for too much of it.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

mod support;

#[path = "e2b/agents.rs"]
mod agents;
#[path = "e2b/build_lives.rs"]
mod build_lives;
#[path = "e2b/build_owners.rs"]
mod build_owners;
#[path = "e2b/builds.rs"]
mod builds;
#[path = "e2b/cells.rs"]
mod cells;
#[path = "e2b/client.rs"]
mod client;
#[path = "e2b/crashes.rs"]
mod crashes;
#[path = "e2b/desktops.rs"]
mod desktops;
#[path = "images/docker_registry.rs"]
mod docker_registry;
#[path = "e2b/doors.rs"]
mod doors;
#[path = "e2b/encrypted.rs"]
mod encrypted;
#[path = "e2b/envd.rs"]
mod envd;
#[path = "e2b/faults.rs"]
mod faults;
#[path = "e2b/gateways.rs"]
mod gateways;
#[path = "e2b/images.rs"]
mod images;
#[path = "e2b/kits.rs"]
mod kits;
#[path = "e2b/languages.rs"]
mod languages;
#[path = "images/layout.rs"]
mod layout;
#[path = "e2b/libraries.rs"]
mod libraries;
#[path = "e2b/loads.rs"]
mod loads;
#[path = "e2b/packages.rs"]
mod packages;
#[path = "e2b/server.rs"]
mod server;
#[path = "e2b/tools.rs"]
mod tools;
