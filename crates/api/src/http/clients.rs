//! How many clients there may be at once: in all, at one address, and on the owner's socket.
//!
//! The owner has places of its own, so that no number of others keeps it out. ClientCounts only; `server` accepts and turns away.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections of the owner's at a time, in every case.
const OF_OWNER: usize = 1024;

/// The clients of a server.
#[derive(Debug)]
pub(crate) struct ClientSlots {
    most: usize,
    most_of_address: usize,
    counts: Mutex<ClientCounts>,
}

#[derive(Debug, Default)]
struct ClientCounts {
    anybody: usize,
    owner: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A client's slot, until this is dropped.
#[derive(Debug)]
pub(crate) struct ClientSlot {
    clients: Arc<ClientSlots>,
    address: Option<IpAddr>,
}

/// Why there is no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooManyClients {
    /// There are as many clients as there may be.
    Clients(usize),
    /// As many are at this address as may be at one.
    OfAddress(usize),
}

impl TooManyClients {
    /// How many there may be.
    pub(crate) fn most(self) -> usize {
        match self {
            Self::Clients(most) | Self::OfAddress(most) => most,
        }
    }
}

impl ClientSlots {
    /// Room for `most`, of which `most_of_address` at one address: never more than three quarters of all.
    pub(crate) fn new(most: usize, most_of_address: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_of_address: most_of_address.min(most.saturating_mul(3).div_ceil(4)),
            counts: Mutex::default(),
        })
    }

    /// A slot for a client at `address`, or for the owner.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Result<ClientSlot, TooManyClients> {
        let address = address.map(counted);
        let mut counts = self.lock();
        match address {
            None if counts.owner >= OF_OWNER => return Err(TooManyClients::Clients(OF_OWNER)),
            None => counts.owner += 1,
            Some(_) if counts.anybody >= self.most => return Err(TooManyClients::Clients(self.most)),
            Some(address) => {
                let there = counts.by_address.get(&address).copied().unwrap_or(0);
                if there >= self.most_of_address {
                    return Err(TooManyClients::OfAddress(self.most_of_address));
                }
                counts.by_address.insert(address, there + 1);
                counts.anybody += 1;
            }
        }
        drop(counts);
        let clients = Arc::clone(self);
        Ok(ClientSlot { clients, address })
    }

    /// How many connections there are.
    pub(crate) fn count(&self) -> usize {
        let counts = self.lock();
        counts.anybody + counts.owner
    }

    /// Every step leaves the counts whole.
    fn lock(&self) -> MutexGuard<'_, ClientCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let mut counts = self.clients.lock();
        let Some(address) = self.address else {
            counts.owner -= 1;
            return;
        };
        counts.anybody -= 1;
        if let Some(there) = counts.by_address.get_mut(&address) {
            *there -= 1;
            if *there == 0 {
                counts.by_address.remove(&address);
            }
        }
    }
}

/// What counts as one address: of the sixth version the network, in which a client has as many as it likes.
pub(crate) fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> Option<IpAddr> {
        Some(address.parse().unwrap())
    }

    #[test]
    fn one_address_cannot_take_all_places() {
        let clients = ClientSlots::new(8, 100);
        let held: Vec<_> = (0..6).map(|_| clients.admit(at("192.0.2.1")).unwrap()).collect();
        assert_eq!(
            clients.admit(at("192.0.2.1")).unwrap_err(),
            TooManyClients::OfAddress(6)
        );
        assert_eq!(
            clients.admit(at("::ffff:192.0.2.1")).unwrap_err(),
            TooManyClients::OfAddress(6)
        );
        let _others = [
            clients.admit(at("192.0.2.2")).unwrap(),
            clients.admit(at("192.0.2.2")).unwrap(),
        ];
        assert_eq!(clients.admit(at("192.0.2.3")).unwrap_err(), TooManyClients::Clients(8));
        drop(held);
        let _place = clients.admit(at("192.0.2.3")).unwrap();
        assert_eq!(clients.count(), 3);
        assert_eq!(clients.lock().by_address.len(), 2);
    }

    #[test]
    fn a_network_of_the_sixth_version_is_one_address() {
        let clients = ClientSlots::new(8, 1);
        let _one = clients.admit(at("2001:db8::1")).unwrap();
        assert!(clients.admit(at("2001:db8::ffff:2")).is_err());
        assert!(clients.admit(at("2001:db8:0:1::1")).is_ok());
    }

    #[test]
    fn the_owner_has_places_of_its_own() {
        let clients = ClientSlots::new(1, 1);
        let _all = clients.admit(at("192.0.2.1")).unwrap();
        let held: Vec<_> = (0..OF_OWNER).map(|_| clients.admit(None).unwrap()).collect();
        assert_eq!(clients.admit(None).unwrap_err(), TooManyClients::Clients(OF_OWNER));
        drop(held);
        assert_eq!(clients.count(), 1);
    }
}
