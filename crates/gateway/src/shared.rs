//! What all connections of a sandbox share.

use std::cell::RefCell;
use std::rc::Rc;

use crate::approvals::Approvals;
use crate::audience::Audience;
use crate::current;
use crate::entrance::Entrances;
use crate::journal::Journal;
use crate::limits::Budget;
use crate::names::Names;
use crate::opened;
use crate::policy::Policy;
use crate::relay::Pipes;
use crate::secrets::Secrets;
use crate::upstream::Upstream;

/// What all connections of a sandbox share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) policy: Policy,
    /// Whether nothing is carried for now.
    pub(crate) is_closed: bool,
    /// How often it was so.
    pub(crate) closures: u64,
    pub(crate) approvals: Rc<Approvals>,
    pub(crate) secrets: Secrets,
    pub(crate) audience: Audience,
    pub(crate) names: Rc<RefCell<Names>>,
    pub(crate) upstream: Rc<Upstream>,
    pub(crate) budget: Rc<Budget>,
    pub(crate) entrances: Rc<Entrances>,
    pub(crate) journal: Journal,
    pub(crate) pipes: Rc<Pipes>,
    /// With what connections are opened, if any are.
    pub(crate) opening: Option<Rc<opened::Opening>>,
    /// What has replaced this.
    pub(crate) successor: current::Successor,
}
