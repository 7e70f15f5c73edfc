//! The controller for the kinds of kubernetes-sigs/agent-sandbox, whose sandboxes are made by `offleash serve` on the nodes of a cluster.
//!
//! Kubernetes places: each Sandbox has a placeholder pod, and where the cluster's scheduler binds that, the daemon of that node makes
//! the sandbox. What the pod's template says is read once (`workload`, `network_policy`: pure), and what cannot be kept is refused
//! with the field's name. Truth is in two places, the API server and the daemons; nothing is kept here (docs/design/0073).
//!
//! Deliberately not here: the kinds' definitions, which are upstream's, and `offleash front`, which leads clients to nodes.
//! Without the Cargo feature `controller` the room answers that this build has none.

#[cfg(feature = "controller")]
mod access;
#[cfg(feature = "controller")]
mod claim;
#[cfg(feature = "controller")]
mod conditions;
mod config;
#[cfg(feature = "controller")]
mod context;
#[cfg(feature = "controller")]
mod controller;
#[cfg(feature = "controller")]
mod daemons;
#[cfg(feature = "controller")]
mod ending;
mod error;
#[cfg(feature = "controller")]
mod kinds;
#[cfg(feature = "controller")]
mod lease;
#[cfg(feature = "controller")]
mod native;
#[cfg(feature = "controller")]
mod network_policy;
#[cfg(feature = "controller")]
mod placeholder;
#[cfg(feature = "controller")]
mod pool;
#[cfg(feature = "controller")]
mod record;
#[cfg(feature = "controller")]
mod report;
#[cfg(feature = "controller")]
mod sandbox;
#[cfg(feature = "controller")]
mod service;
#[cfg(feature = "controller")]
mod sweep;
#[cfg(feature = "controller")]
mod workload;

pub use config::{ControllerConfig, ControllerLog, DaemonKey, PodAccount};
pub use error::ControllerError;

/// Serves the cluster's objects until `end`, or until another controller leads.
///
/// # Errors
/// `NotInThisBuild`; `Settings` and `ApiServer` at the start; `LeadershipLost` later.
pub async fn run(config: ControllerConfig, end: impl Future<Output = ()> + Send) -> Result<(), ControllerError> {
    #[cfg(feature = "controller")]
    return controller::run(config, end).await;
    #[cfg(not(feature = "controller"))]
    {
        drop((config, end));
        Err(ControllerError::NotInThisBuild)
    }
}
