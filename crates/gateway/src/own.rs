//! The addresses of this machine, to which nobody is let through unless a rule names them.

use std::cell::RefCell;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use offleash_core::network::leads_to;
use offleash_sys::network::addresses::OwnAddresses;

use crate::wire::OwnOrder;

/// Which addresses are those of this machine.
#[derive(Debug)]
pub enum Own {
    /// Those that its interfaces have when somebody asks, and those that a route leads to itself: a machine gets others
    /// while a sandbox runs.
    Watched(RefCell<OwnAddresses>),
    /// These.
    Known(Vec<IpAddr>),
}

impl Own {
    /// What `judge` says of them, where `address` is meant.
    ///
    /// # Errors
    /// They cannot be found out, so that nothing may be dialled.
    pub(crate) fn judge(
        &self,
        address: IpAddr,
        judge: impl FnOnce(&[IpAddr]) -> Result<(), String>,
    ) -> Result<(), String> {
        match self {
            Self::Watched(own) => match own.borrow_mut().now_and_of(&leads_to(address.to_canonical())) {
                Ok(own) => judge(&own),
                Err(error) => Err(format!("which addresses this machine has cannot be found out: {error}")),
            },
            Self::Known(own) => judge(own),
        }
    }
}

impl Own {
    /// Those of this machine, which the kernel tells by sockets of another process.
    pub(crate) fn from_descriptors(descriptors: [OwnedFd; 2]) -> Self {
        OwnAddresses::from_descriptors(descriptors).into()
    }

    /// How another process is told of them.
    pub(crate) fn into_order(self) -> (OwnOrder, Vec<OwnedFd>) {
        match self {
            Self::Known(known) => (OwnOrder::Known(known), Vec::new()),
            Self::Watched(own) => (OwnOrder::Watched, own.into_inner().into_descriptors().into()),
        }
    }
}

impl Default for Own {
    fn default() -> Self {
        Self::Known(Vec::new())
    }
}

impl From<OwnAddresses> for Own {
    fn from(own: OwnAddresses) -> Self {
        Self::Watched(RefCell::new(own))
    }
}

impl From<Vec<IpAddr>> for Own {
    fn from(own: Vec<IpAddr>) -> Self {
        Self::Known(own)
    }
}
