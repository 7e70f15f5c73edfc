//! `offleash serve` as its clients see it: what is answered to whom, and that nothing that they send does harm.
//!
//! Tests are named by the threat that they stand for (A1 to A15) where there is one.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

mod support;

#[path = "api/addresses.rs"]
mod addresses;
#[path = "api/bodies.rs"]
mod bodies;
#[path = "api/browsers.rs"]
mod browsers;
#[path = "api/chromium.rs"]
mod chromium;
#[path = "api/chromium_harm.rs"]
mod chromium_harm;
#[path = "api/client.rs"]
mod client;
#[path = "api/contexts.rs"]
mod contexts;
#[path = "api/controller.rs"]
mod controller;
#[path = "api/created.rs"]
mod created;
#[path = "api/dashboard.rs"]
mod dashboard;
#[path = "api/desktops.rs"]
mod desktops;
#[path = "api/floods.rs"]
mod floods;
#[path = "api/front.rs"]
mod front;
#[path = "api/hangups.rs"]
mod hangups;
#[path = "api/ids.rs"]
mod ids;
#[path = "api/inspection.rs"]
mod inspection;
#[path = "api/keys.rs"]
mod keys;
#[path = "api/native.rs"]
mod native;
#[path = "api/operation.rs"]
mod operation;
#[path = "api/ports.rs"]
mod ports;
#[path = "api/ready.rs"]
mod ready;
#[path = "api/remote.rs"]
mod remote;
#[path = "api/remote_ssh.rs"]
mod remote_ssh;
#[path = "api/routes.rs"]
mod routes;
#[path = "api/sandboxes.rs"]
mod sandboxes;
#[path = "api/server.rs"]
mod server;
#[path = "api/sleeps.rs"]
mod sleeps;
#[path = "api/templates.rs"]
mod templates;
#[path = "api/tools.rs"]
mod tools;
#[path = "api/verbs.rs"]
mod verbs;
#[path = "api/waiting_browsers.rs"]
mod waiting_browsers;
#[path = "api/words.rs"]
mod words;
