//! Which node was asked for which create, so that a client that asks twice gets one sandbox. Pure; `now` is the time since
//! the front began.
//!
//! What a node made is remembered apart from what nobody knows the end of: with any key, valid or not, a client can ask and
//! hang up, and what was made must outlast that. It holds digests, and no key.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::budget::CallerDigest;
use super::placement::NodeNumber;

/// How many creates with an idempotency key are remembered, of all and of one caller, and how long.
const MAX_REMEMBERED: usize = 10_000;
const MAX_OF_CALLER: usize = 1000;
const REMEMBERED: Duration = Duration::from_secs(600);

/// A create that may be asked for twice: by whom, and under which idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CreateIdentity {
    pub(super) caller: CallerDigest,
    pub(super) key: [u8; 32],
}

/// What a node is known to have done of a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CreateEnd {
    /// It made the sandbox.
    Made,
    /// It said that it made none.
    Refused,
    /// It was not heard, or nobody waited for it: there may be a sandbox.
    Unknown,
}

/// The creates of a front.
#[derive(Debug, Default)]
pub(super) struct RememberedCreates {
    creates: Mutex<CreateMemory>,
}

#[derive(Debug, Default)]
struct CreateMemory {
    /// What is being made, and by how many requests. Whoever asks meanwhile is led to the same node.
    begun: HashMap<CreateIdentity, (NodeNumber, usize)>,
    made: CreateList,
    unknown: CreateList,
}

/// Creates in the order of their ends.
#[derive(Debug, Default)]
struct CreateList {
    nodes: HashMap<CreateIdentity, NodeNumber>,
    order: VecDeque<(CreateIdentity, Duration)>,
    by_caller: HashMap<CallerDigest, usize>,
}

impl RememberedCreates {
    /// The node that was asked for it before.
    pub(super) fn node_of(&self, create: CreateIdentity) -> Option<NodeNumber> {
        let memory = self.lock();
        let begun = memory.begun.get(&create).map(|(node, _)| *node);
        let ended = || memory.made.nodes.get(&create).or(memory.unknown.nodes.get(&create));
        begun.or_else(|| ended().copied())
    }

    /// A node is about to be asked.
    pub(super) fn begin(&self, create: CreateIdentity, node: NodeNumber) {
        let mut memory = self.lock();
        let begun = memory.begun.entry(create).or_insert((node, 0));
        begun.1 += 1;
    }

    /// What [`Self::begin`] told of is over.
    pub(super) fn end(&self, create: CreateIdentity, node: NodeNumber, end: CreateEnd, now: Duration) {
        let mut memory = self.lock();
        if let Some((_, asking)) = memory.begun.get_mut(&create) {
            *asking -= 1;
            if *asking == 0 {
                memory.begun.remove(&create);
            }
        }
        match end {
            CreateEnd::Made => memory.made.remember(create, node, now),
            CreateEnd::Unknown => memory.unknown.remember(create, node, now),
            CreateEnd::Refused => {}
        }
    }

    /// Every step leaves it whole.
    fn lock(&self) -> MutexGuard<'_, CreateMemory> {
        self.creates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CreateList {
    fn remember(&mut self, create: CreateIdentity, node: NodeNumber, now: Duration) {
        while let Some((_, since)) = self.order.front()
            && now.saturating_sub(*since) > REMEMBERED
        {
            self.forget(0);
        }
        if self.nodes.insert(create, node).is_some() {
            return;
        }
        self.order.push_back((create, now));
        let of_caller = self.by_caller.entry(create.caller).or_default();
        *of_caller += 1;
        if *of_caller > MAX_OF_CALLER {
            let oldest = self.order.iter().position(|(one, _)| one.caller == create.caller);
            self.forget(oldest.unwrap_or(0));
        } else if self.order.len() > MAX_REMEMBERED {
            self.forget(0);
        }
    }

    fn forget(&mut self, place: usize) {
        let Some((create, _)) = self.order.remove(place) else {
            return;
        };
        self.nodes.remove(&create);
        if let Some(left) = self.by_caller.get_mut(&create.caller) {
            *left -= 1;
            if *left == 0 {
                self.by_caller.remove(&create.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::placement::PlacementTable;
    use super::*;

    fn create(caller: usize, key: usize) -> CreateIdentity {
        let digest = |number: usize| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_le_bytes());
            digest
        };
        CreateIdentity {
            caller: digest(caller),
            key: digest(key),
        }
    }

    fn nodes() -> [NodeNumber; 2] {
        let table = PlacementTable::new([1, 1]);
        [0, 1].map(|index| table.first_from(index).unwrap())
    }

    fn asked(memory: &RememberedCreates, create: CreateIdentity, end: CreateEnd, now: Duration) {
        let [node, _] = nodes();
        memory.begin(create, node);
        assert_eq!(memory.node_of(create), Some(node), "while it is being made");
        memory.end(create, node, end, now);
    }

    #[test]
    fn what_a_node_refused_is_not_remembered() {
        let memory = RememberedCreates::default();
        for (end, expected) in [
            (CreateEnd::Refused, None),
            (CreateEnd::Unknown, Some(nodes()[0])),
            (CreateEnd::Made, Some(nodes()[0])),
        ] {
            asked(&memory, create(1, 1), end, Duration::ZERO);
            assert_eq!(memory.node_of(create(1, 1)), expected, "{end:?}");
        }
        assert!(memory.lock().begun.is_empty());
    }

    #[test]
    fn nobody_makes_a_front_forget_what_others_had_made() {
        let memory = RememberedCreates::default();
        asked(&memory, create(1, 1), CreateEnd::Made, Duration::ZERO);
        // With keys that are nobody's: no two alike, and nobody waits for the answer.
        for caller in 10..MAX_REMEMBERED + 100 {
            asked(&memory, create(caller, 1), CreateEnd::Unknown, Duration::ZERO);
        }
        // And with one key, over and over.
        for key in 0..MAX_REMEMBERED + 100 {
            asked(&memory, create(2, key), CreateEnd::Made, Duration::ZERO);
        }
        assert!(memory.node_of(create(1, 1)).is_some());
        assert!(memory.node_of(create(2, 0)).is_none());
        let lock = memory.lock();
        assert_eq!(
            (lock.made.nodes.len(), lock.made.order.len()),
            (MAX_OF_CALLER + 1, MAX_OF_CALLER + 1)
        );
        assert_eq!(
            (lock.unknown.nodes.len(), lock.unknown.by_caller.len()),
            (MAX_REMEMBERED, MAX_REMEMBERED)
        );
    }

    #[test]
    fn what_was_made_is_forgotten_in_time() {
        let memory = RememberedCreates::default();
        asked(&memory, create(1, 1), CreateEnd::Made, Duration::ZERO);
        asked(&memory, create(1, 2), CreateEnd::Made, REMEMBERED * 2);
        assert_eq!(memory.node_of(create(1, 1)), None);
        assert_eq!(memory.lock().made.by_caller.len(), 1);
    }
}
