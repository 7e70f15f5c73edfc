//! Files and directories that the other side knows, by the numbers that it knows them by, and the descriptors that are kept
//! for them.
//!
//! A node has a number that is never used twice, the inode that it stands for, and the name by which it was last found. Its
//! descriptor may be closed to make room; it is found again by that name, and is refused with `ESTALE` if another inode
//! is there now. Deliberately not here: any call to the kernel.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::bounds::{MAX_DEPTH, MAX_NODES};

/// Number of the root.
pub(crate) const ROOT: u64 = 1;

/// What tells one inode from every other one below the root. The mount belongs to it: what was reached through a mount that
/// is read-only is not the same as what was reached through another one of that file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct InodeKey {
    pub(crate) mount: u64,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// When it was made, where that stays: numbers of inodes are used again.
    pub(crate) born: (i64, u32),
}

/// One file or directory.
#[derive(Debug)]
struct Node {
    key: InodeKey,
    file_type: FileType,
    shared: bool,
    /// How many times the other side was told of it, less how many it forgot.
    lookups: u64,
    /// Directory and name by which it was found; none once that name was removed.
    place: Option<(u64, Box<[u8]>)>,
    descriptor: Option<Arc<OwnedFd>>,
    /// It lost its name, so its descriptor is all there is of it.
    pinned: bool,
    /// When its descriptor was last used.
    used: u64,
}

/// What is known of a node without asking the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeFacts {
    pub(crate) file_type: FileType,
    pub(crate) shared: bool,
    pub(crate) key: InodeKey,
}

/// One step of a way to a node.
#[derive(Debug)]
pub(crate) struct RouteStep {
    pub(crate) node: u64,
    pub(crate) name: Box<[u8]>,
    pub(crate) facts: NodeFacts,
}

/// How a descriptor of a node is come by: from one that is held, down by names.
#[derive(Debug)]
pub(crate) struct NodeRoute {
    pub(crate) base: Arc<OwnedFd>,
    pub(crate) steps: Vec<RouteStep>,
}

/// What was found under a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundNode<'a> {
    pub(crate) facts: NodeFacts,
    pub(crate) place: Option<(u64, &'a [u8])>,
}

/// Descriptors that are no longer kept; they are closed when this is dropped, which is for outside of the lock.
#[must_use = "descriptors are closed outside of the lock"]
#[derive(Debug, Default)]
pub(crate) struct ClosedDescriptors {
    _descriptors: Vec<Arc<OwnedFd>>,
}

impl From<Vec<Arc<OwnedFd>>> for ClosedDescriptors {
    fn from(descriptors: Vec<Arc<OwnedFd>>) -> Self {
        Self {
            _descriptors: descriptors,
        }
    }
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct NodeTable {
    nodes: HashMap<u64, Node>,
    by_key: HashMap<InodeKey, u64>,
    next: u64,
    /// Descriptors in about the order of their use: a node, and when it was used when it got that place.
    order: VecDeque<(u64, u64)>,
    clock: u64,
    held: usize,
    pinned: usize,
    most_held: usize,
    most_nodes: usize,
}

impl NodeTable {
    /// A table of the root, which keeps its descriptor, and `most_held` further ones.
    pub(crate) fn new(root: OwnedFd, facts: NodeFacts, most_held: usize) -> Self {
        let node = Node {
            key: facts.key,
            file_type: facts.file_type,
            shared: facts.shared,
            lookups: 1,
            place: None,
            descriptor: Some(Arc::new(root)),
            pinned: true,
            used: 0,
        };
        Self {
            nodes: HashMap::from([(ROOT, node)]),
            by_key: HashMap::from([(facts.key, ROOT)]),
            next: ROOT + 1,
            order: VecDeque::new(),
            clock: 0,
            held: 0,
            pinned: 0,
            most_held,
            most_nodes: MAX_NODES,
        }
    }

    /// # Errors
    /// `ESTALE` if the other side was never told of it, or forgot it.
    pub(crate) fn facts(&self, node: u64) -> Result<NodeFacts, Errno> {
        let node = self.nodes.get(&node).ok_or(Errno::STALE)?;
        Ok(node.facts())
    }

    /// Counts that the other side is told of what was found, and answers its number.
    ///
    /// # Errors
    /// `ENOMEM` if it would be one too many.
    pub(crate) fn remember(&mut self, found: FoundNode<'_>) -> Result<u64, Errno> {
        let place = found.place.map(|(parent, name)| (parent, Box::from(name)));
        if let Some(number) = self.by_key.get(&found.facts.key).copied()
            && let Some(node) = self.nodes.get_mut(&number)
            && node.file_type == found.facts.file_type
        {
            node.lookups = node.lookups.saturating_add(1);
            if number != ROOT && place.is_some() {
                node.place = place;
                node.shared = found.facts.shared;
                self.unpin(number);
            }
            return Ok(number);
        }
        if self.nodes.len() >= self.most_nodes {
            return Err(Errno::NOMEM);
        }
        let number = self.next;
        self.next += 1;
        let node = Node {
            key: found.facts.key,
            file_type: found.facts.file_type,
            shared: found.facts.shared,
            lookups: 1,
            place,
            descriptor: None,
            pinned: false,
            used: 0,
        };
        self.by_key.insert(node.key, number);
        self.nodes.insert(number, node);
        Ok(number)
    }

    /// Counts that the other side forgot it `times` times.
    pub(crate) fn forget(&mut self, number: u64, times: u64) -> ClosedDescriptors {
        let Some(node) = self.nodes.get_mut(&number) else {
            return ClosedDescriptors::default();
        };
        node.lookups = node.lookups.saturating_sub(times);
        if node.lookups > 0 || number == ROOT {
            return ClosedDescriptors::default();
        }
        self.unpin(number);
        let Some(node) = self.nodes.remove(&number) else {
            return ClosedDescriptors::default();
        };
        if self.by_key.get(&node.key) == Some(&number) {
            self.by_key.remove(&node.key);
        }
        let closed: Vec<_> = node.descriptor.into_iter().collect();
        self.held -= closed.len();
        // Places of nodes that are gone would add up where few others are evicted.
        if self.order.len() > 2 * self.most_held + 16 {
            let nodes = &self.nodes;
            self.order
                .retain(|(number, _)| nodes.get(number).is_some_and(|node| node.descriptor.is_some()));
        }
        closed.into()
    }

    /// How a descriptor of it is come by.
    ///
    /// # Errors
    /// `ESTALE` if there is no way any more.
    pub(crate) fn route(&mut self, number: u64) -> Result<NodeRoute, Errno> {
        let mut steps = Vec::new();
        let mut at = number;
        while steps.len() <= MAX_DEPTH {
            self.clock += 1;
            let node = self.nodes.get_mut(&at).ok_or(Errno::STALE)?;
            if let Some(descriptor) = &node.descriptor {
                node.used = self.clock;
                let base = Arc::clone(descriptor);
                steps.reverse();
                return Ok(NodeRoute { base, steps });
            }
            let facts = node.facts();
            let (parent, name) = node.place.as_ref().ok_or(Errno::STALE)?;
            steps.push(RouteStep {
                node: at,
                name: name.clone(),
                facts,
            });
            at = *parent;
        }
        Err(Errno::STALE)
    }

    /// Keeps a descriptor for it, if none is, and answers those that had to go.
    pub(crate) fn keep(&mut self, number: u64, descriptor: &Arc<OwnedFd>) -> ClosedDescriptors {
        self.clock += 1;
        let clock = self.clock;
        let Some(node) = self.nodes.get_mut(&number) else {
            return ClosedDescriptors::default();
        };
        node.used = clock;
        if node.descriptor.is_some() {
            return ClosedDescriptors::default();
        }
        node.descriptor = Some(Arc::clone(descriptor));
        self.held += 1;
        self.order.push_back((number, clock));
        self.shrink(self.most_held)
    }

    /// Its name was removed: its descriptor stays as long as the other side knows it, unless too many do.
    pub(crate) fn lose_name(&mut self, number: u64, descriptor: &Arc<OwnedFd>) -> ClosedDescriptors {
        let closed = self.keep(number, descriptor);
        let may_stay = self.pinned < self.most_held / 2;
        if let Some(node) = self.nodes.get_mut(&number)
            && number != ROOT
        {
            node.place = None;
            if may_stay && !node.pinned && node.descriptor.is_some() {
                node.pinned = true;
                self.pinned += 1;
            }
        }
        closed
    }

    /// It has another name now.
    pub(crate) fn move_to(&mut self, number: u64, parent: u64, name: &[u8]) {
        if let Some(node) = self.nodes.get_mut(&number)
            && number != ROOT
        {
            node.place = Some((parent, Box::from(name)));
            self.unpin(number);
        }
    }

    /// The node that stands for an inode.
    pub(crate) fn of(&self, key: &InodeKey) -> Option<u64> {
        self.by_key.get(key).copied()
    }

    /// Whether it was last found by this name.
    pub(crate) fn is_at(&self, number: u64, parent: u64, name: &[u8]) -> bool {
        let place = self.nodes.get(&number).and_then(|node| node.place.as_ref());
        place.is_some_and(|(at, called)| *at == parent && **called == *name)
    }

    /// The same file has another inode now: overlayfs copied it up.
    pub(crate) fn rekey(&mut self, number: u64, key: InodeKey) {
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        let before = std::mem::replace(&mut node.key, key);
        if self.by_key.get(&before) == Some(&number) {
            self.by_key.remove(&before);
        }
        self.by_key.insert(key, number);
    }

    /// Gives up half of the descriptors: the kernel has no further ones.
    pub(crate) fn make_room(&mut self) -> ClosedDescriptors {
        self.shrink(self.held / 2)
    }

    /// How many descriptors are kept beside the root's.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// How many nodes there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    fn unpin(&mut self, number: u64) {
        if let Some(node) = self.nodes.get_mut(&number)
            && node.pinned
            && number != ROOT
        {
            node.pinned = false;
            self.pinned -= 1;
        }
    }

    fn shrink(&mut self, most: usize) -> ClosedDescriptors {
        let mut closed = Vec::new();
        // Each is looked at twice at most: what was used since gets a second chance.
        let mut turns = 2 * self.order.len();
        while self.held > most && turns > 0 {
            turns -= 1;
            let Some((number, used)) = self.order.pop_front() else {
                break;
            };
            let Some(node) = self.nodes.get_mut(&number) else {
                continue;
            };
            if node.descriptor.is_none() {
                continue;
            }
            if node.pinned || node.used != used {
                self.order.push_back((number, node.used));
                continue;
            }
            closed.extend(node.descriptor.take());
            self.held -= 1;
        }
        closed.into()
    }
}

impl Node {
    fn facts(&self) -> NodeFacts {
        NodeFacts {
            file_type: self.file_type,
            shared: self.shared,
            key: self.key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(inode: u64) -> NodeFacts {
        NodeFacts {
            file_type: FileType::RegularFile,
            shared: false,
            key: InodeKey {
                mount: 1,
                device: 1,
                inode,
                born: (0, 0),
            },
        }
    }

    fn descriptor() -> OwnedFd {
        std::fs::File::open("/").unwrap().into()
    }

    fn table(most: usize) -> NodeTable {
        NodeTable::new(descriptor(), facts(0), most)
    }

    fn add(table: &mut NodeTable, inode: u64) -> u64 {
        let name = format!("f{inode}");
        let found = FoundNode {
            facts: facts(inode),
            place: Some((ROOT, name.as_bytes())),
        };
        table.remember(found).unwrap()
    }

    #[test]
    fn descriptors_are_bounded_and_those_in_use_stay() {
        let mut nodes = table(8);
        let favourite = add(&mut nodes, 1);
        drop(nodes.keep(favourite, &Arc::new(descriptor())));
        for inode in 2..100 {
            let node = add(&mut nodes, inode);
            drop(nodes.keep(node, &Arc::new(descriptor())));
            assert!(nodes.route(favourite).unwrap().steps.is_empty(), "after {inode}");
            assert!(nodes.held() <= 8);
        }
        assert_eq!(nodes.route(2).map(|route| route.steps.len()), Ok(0));
        assert_eq!(nodes.route(3).map(|route| route.steps.len()), Ok(1));
    }

    #[test]
    fn what_lost_its_name_keeps_its_descriptor_and_not_all_of_them_may() {
        let mut nodes = table(8);
        for inode in 1..=8 {
            let node = add(&mut nodes, inode);
            drop(nodes.lose_name(node, &Arc::new(descriptor())));
        }
        for inode in 100..120 {
            let node = add(&mut nodes, inode);
            drop(nodes.keep(node, &Arc::new(descriptor())));
        }
        let kept = (2..=9).filter(|node| nodes.route(*node).is_ok()).count();
        assert_eq!(kept, 4);
        assert!(nodes.held() <= 8);
    }

    #[test]
    fn numbers_are_counted_forgotten_and_never_used_again() {
        let mut nodes = table(8);
        let first = add(&mut nodes, 1);
        assert_eq!(add(&mut nodes, 1), first);
        drop(nodes.forget(first, 1));
        assert!(nodes.facts(first).is_ok());
        drop(nodes.forget(first, u64::MAX));
        assert!(matches!(nodes.facts(first), Err(Errno::STALE)));
        assert_ne!(add(&mut nodes, 1), first);
        drop(nodes.forget(ROOT, u64::MAX));
        assert!(nodes.facts(ROOT).is_ok());
        assert_eq!(nodes.len(), 2);
    }

    #[test]
    fn a_circle_of_names_ends() {
        let mut nodes = table(8);
        let one = add(&mut nodes, 1);
        let two = add(&mut nodes, 2);
        nodes.move_to(one, two, b"one");
        nodes.move_to(two, one, b"two");
        assert!(matches!(nodes.route(one), Err(Errno::STALE)));
    }

    #[test]
    fn nodes_are_bounded() {
        let mut nodes = table(8);
        assert_eq!(nodes.most_nodes, MAX_NODES);
        nodes.most_nodes = 100;
        for inode in 1..100 {
            let found = FoundNode {
                facts: facts(inode),
                place: None,
            };
            nodes.remember(found).unwrap();
        }
        let found = FoundNode {
            facts: facts(u64::MAX),
            place: None,
        };
        assert_eq!(nodes.remember(found), Err(Errno::NOMEM));
        drop(nodes.forget(2, 1));
        assert!(nodes.remember(found).is_ok());
    }
}
