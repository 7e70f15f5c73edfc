//! How many connections there are to the ports of each sandbox.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use offleash_supervisor::service::SandboxUse;

/// Counts connections, each sandbox's by itself.
#[derive(Debug, Clone)]
pub(super) struct PortSlots {
    most: usize,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

/// A connection that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct PortSlot {
    places: PortSlots,
    id: String,
    /// Knows that the sandbox is used.
    _used: Option<Arc<dyn SandboxUse>>,
}

impl PortSlot {
    /// This one, as long as which the sandbox is used.
    pub(super) fn used_by(mut self, used: Option<Arc<dyn SandboxUse>>) -> Self {
        self._used = used;
        self
    }
}

impl PortSlots {
    /// At most `most` for each sandbox.
    pub(super) fn new(most: usize) -> Self {
        let taken = Arc::default();
        Self { most, taken }
    }

    /// One more connection to `id`; `None` when it has as many as it may have.
    pub(super) fn take(&self, id: &str) -> Option<PortSlot> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(id.to_owned()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(PortSlot {
            places: self.clone(),
            id: id.to_owned(),
            _used: None,
        })
    }
}

impl Drop for PortSlot {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sandbox_has_places_of_its_own() {
        let places = PortSlots::new(2);
        let first = places.take("a").unwrap();
        let _second = places.take("a").unwrap();
        assert!(places.take("a").is_none());
        assert!(places.take("b").is_some());
        drop(first);
        assert!(places.take("a").is_some());
        assert_eq!(places.taken.lock().unwrap().len(), 1);
    }
}
