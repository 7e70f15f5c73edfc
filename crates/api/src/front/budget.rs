//! Bounds that clients share: so much for all of them, and so much for each.
//!
//! Pure counts. What is counted is the caller's to say: requests at a node, or bytes of bodies.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};

use crate::control::API_KEY;
use crate::http::clients::counted;
use crate::http::peer::ClientPeer;

/// The digest of a key that was shown. It is nobody's until a node has judged it.
pub(super) type CallerDigest = [u8; 32];

/// Whom a share is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum BudgetOwner {
    /// Whoever is at an address.
    Address(IpAddr),
    /// Whoever shows a key.
    Key(CallerDigest),
}

impl BudgetOwner {
    /// The address that a client is counted by.
    pub(super) fn of_peer(peer: ClientPeer) -> Option<Self> {
        peer.address().map(|address| Self::Address(counted(address.ip())))
    }
}

/// The digest of whatever keys a request shows; none for one that shows no key.
pub(super) fn caller(headers: &HeaderMap) -> Option<CallerDigest> {
    let shown = |name: &str| headers.contains_key(name);
    if !shown(API_KEY) && !shown(AUTHORIZATION.as_str()) {
        return None;
    }
    let mut digest = Sha256::new();
    for name in [API_KEY, AUTHORIZATION.as_str()] {
        for value in headers.get_all(name) {
            digest.update(value.as_bytes());
        }
        digest.update([0]);
    }
    Some(digest.finalize().into())
}

/// So much for all, and so much for each.
#[derive(Debug)]
pub(super) struct SharedBudget {
    most: usize,
    most_of_one: usize,
    spent: Mutex<SpentBudget>,
}

#[derive(Debug, Default)]
struct SpentBudget {
    all: usize,
    by_owner: HashMap<BudgetOwner, usize>,
}

/// What one has of a budget, until this is dropped.
#[derive(Debug)]
pub(super) struct BudgetShare {
    budget: Arc<SharedBudget>,
    owners: Vec<BudgetOwner>,
    taken: usize,
}

/// Why there is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BudgetSpent {
    /// All together have as much as they may.
    ByAll,
    /// This one has.
    ByOne,
}

impl SharedBudget {
    /// `most` for all, of which each may have `most_of_one`.
    pub(super) fn new(most: usize, most_of_one: usize) -> Arc<Self> {
        let spent = Mutex::default();
        Arc::new(Self {
            most,
            most_of_one,
            spent,
        })
    }

    /// A share that has nothing yet, counted for each of `owners`.
    pub(super) fn share(self: &Arc<Self>, owners: impl IntoIterator<Item = BudgetOwner>) -> BudgetShare {
        BudgetShare {
            budget: Arc::clone(self),
            owners: owners.into_iter().collect(),
            taken: 0,
        }
    }

    /// How much all have.
    pub(super) fn spent(&self) -> usize {
        self.lock().all
    }

    /// Every step leaves the counts whole.
    fn lock(&self) -> MutexGuard<'_, SpentBudget> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BudgetShare {
    /// Takes `more`, or nothing.
    ///
    /// # Errors
    /// When all, or one of its owners, would have more than they may.
    pub(super) fn take(&mut self, more: usize) -> Result<(), BudgetSpent> {
        let mut spent = self.budget.lock();
        let of_one = |owner: &BudgetOwner| spent.by_owner.get(owner).copied().unwrap_or(0);
        if self
            .owners
            .iter()
            .any(|owner| of_one(owner).saturating_add(more) > self.budget.most_of_one)
        {
            return Err(BudgetSpent::ByOne);
        }
        if spent.all.saturating_add(more) > self.budget.most {
            return Err(BudgetSpent::ByAll);
        }
        spent.all += more;
        for owner in &self.owners {
            *spent.by_owner.entry(*owner).or_default() += more;
        }
        drop(spent);
        self.taken += more;
        Ok(())
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        let mut spent = self.budget.lock();
        spent.all -= self.taken;
        for owner in &self.owners {
            if let Some(left) = spent.by_owner.get_mut(owner) {
                *left -= self.taken;
                if *left == 0 {
                    spent.by_owner.remove(owner);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: u8) -> BudgetOwner {
        BudgetOwner::Key([number; 32])
    }

    #[test]
    fn one_cannot_have_all_and_all_not_more_than_there_is() {
        let budget = SharedBudget::new(10, 6);
        let mut one = budget.share([owner(1), owner(2)]);
        assert_eq!(one.take(4), Ok(()));
        assert_eq!(one.take(3), Err(BudgetSpent::ByOne));
        let mut second = budget.share([owner(2)]);
        assert_eq!(second.take(3), Err(BudgetSpent::ByOne), "it counts for each owner");
        let mut other = budget.share([owner(3)]);
        assert_eq!(other.take(6), Ok(()));
        assert_eq!(one.take(1), Err(BudgetSpent::ByAll));
        drop(one);
        assert_eq!(second.take(4), Ok(()));
        drop((second, other));
        let spent = budget.lock();
        assert_eq!((spent.all, spent.by_owner.len()), (0, 0));
    }

    #[test]
    fn a_caller_is_the_keys_that_it_shows() {
        let of = |fields: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, http::HeaderValue::from_static(value));
            }
            caller(&headers)
        };
        assert_eq!(of(&[("cookie", "a")]), None);
        assert_eq!(of(&[("x-api-key", "a")]), of(&[("x-api-key", "a"), ("cookie", "b")]));
        assert_ne!(of(&[("x-api-key", "a")]), of(&[("x-api-key", "b")]));
        assert_ne!(of(&[("x-api-key", "a")]), of(&[("authorization", "a")]));
    }
}
