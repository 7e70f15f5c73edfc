//! What a sandbox reaches of a network, and what it does not, with an internet of our own to reach.
//!
//! Tests are named by the threat they stand for, and what is refused in a sandbox succeeds without one. Where no
//! network namespaces can be made, every test is a counted skip.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

mod support;

#[path = "network/addresses.rs"]
mod addresses;
#[path = "network/asked.rs"]
mod asked;
#[path = "network/clients.rs"]
mod clients;
#[path = "network/endurance.rs"]
mod endurance;
#[path = "network/gateway.rs"]
mod gateway;
#[path = "network/git.rs"]
mod git;
#[path = "network/greetings.rs"]
mod greetings;
#[path = "network/host_ports.rs"]
mod host_ports;
#[path = "network/kept_secrets.rs"]
mod kept_secrets;
#[path = "e2b/kits.rs"]
mod kits;
#[path = "network/learned.rs"]
mod learned;
#[path = "network/listeners.rs"]
mod listeners;
#[path = "network/names.rs"]
mod names;
#[path = "network/net_limits.rs"]
mod net_limits;
#[path = "network/opened.rs"]
mod opened;
#[path = "network/opened_clients.rs"]
mod opened_clients;
#[path = "network/opened_framing.rs"]
mod opened_framing;
#[path = "network/proxies.rs"]
mod proxies;
#[path = "network/published.rs"]
mod published;
#[path = "network/recorded.rs"]
mod recorded;
#[path = "network/refusals.rs"]
mod refusals;
#[path = "network/requests.rs"]
mod requests;
#[path = "network/rules.rs"]
mod rules;
#[path = "network/secret_inputs.rs"]
mod secret_inputs;
#[path = "network/secrets.rs"]
mod secrets;
#[path = "network/served.rs"]
mod served;
#[path = "network/server.rs"]
mod server;
#[path = "network/templates.rs"]
mod templates;
#[path = "network/transfers.rs"]
mod transfers;
#[path = "network/upstream_proxy.rs"]
mod upstream_proxy;
#[path = "network/ways_out.rs"]
mod ways_out;
#[path = "network/world.rs"]
mod world;
