//! What a gateway needs to know, at its start and when its rules change.

use std::sync::Arc;

use offleash_core::approval::ApprovalRules;
use offleash_core::limits::Limits;
use offleash_core::network::secret::NamedSecret;
use offleash_core::network::{HostPort, NetworkPolicy, RequestRules};

use crate::audience::Audience;
use crate::gateway_process::GatewayProcess;
use crate::inbound::Published;
use crate::own::Own;
use crate::trust::Trust;
use crate::upstream::WayOut;

/// What a gateway needs to know.
#[derive(Debug, Default)]
pub struct Config {
    /// What may be reached.
    pub rules: NetworkPolicy,
    /// Whether every public address may be reached of which no rule says anything.
    pub internet: bool,
    /// Which requests pass, and what becomes of their headers.
    pub requests: RequestRules,
    /// With what connections are opened; needed where there are rules for requests.
    pub trust: Option<Arc<Trust>>,
    /// The addresses of this machine, which no name may lead to.
    pub own: Own,
    /// Services of this machine that are given to the sandbox.
    pub host_ports: Vec<HostPort>,
    /// Ports of the sandbox that are published.
    pub published: Vec<Published>,
    /// Of which those of the network are kept here.
    pub limits: Limits,
    /// How it is asked about connections.
    pub asks: ApprovalRules,
    /// How the outside is reached.
    pub way_out: WayOut,
    /// Secrets that are put into requests.
    pub secrets: Vec<NamedSecret>,
    /// Who reads what a refusal says can be done.
    pub audience: Audience,
    /// A process that was started ahead.
    pub process: Option<GatewayProcess>,
}

/// What may be reached from now on.
#[derive(Debug, Default)]
pub struct Reach {
    /// What may be reached.
    pub rules: NetworkPolicy,
    /// Whether every public address may be reached of which no rule says anything.
    pub internet: bool,
    /// Which requests pass, and what becomes of their headers.
    pub requests: RequestRules,
    /// With what connections are opened, if the gateway has nothing for that yet; without either, none is made to hosts
    /// that there are rules for requests about.
    pub trust: Option<Arc<Trust>>,
    /// How the outside is reached. Connections that were made through another proxy are cut.
    pub way_out: WayOut,
    /// Secrets that are put into requests. Connections to hosts that others were for are cut.
    pub secrets: Vec<NamedSecret>,
}
