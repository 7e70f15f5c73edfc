//! Which node has a sandbox, and which one gets the next.
//!
//! Pure: no sockets and no clock; `now` is the time since the front began. What nodes list is what is so, and what
//! was made since a list was asked for is so as well: an answer that was on its way removes nothing newer than its question.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// After how long without an answer a node is lost.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(8);

/// How many sandboxes of one node are kept in mind; who asks for another one is led to it by asking all.
pub(crate) const MAX_OF_NODE: usize = 100_000;

/// A node, by a number that no other one ever has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeNumber(usize);

impl NodeNumber {
    /// Its number.
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// Whether a node answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeHealth {
    /// It has not answered yet, and has time left to.
    Awaited,
    /// It answered lately.
    Alive,
    /// It has not answered for [`LOST_AFTER`].
    Lost,
}

/// Whether a node gets new sandboxes, if it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeIntake {
    /// It does.
    Open,
    /// It says that it takes none.
    Drained,
    /// No name leads to it any more; it has sandboxes still.
    Leaving,
}

/// What a node said of itself.
#[derive(Debug)]
pub(crate) struct NodeReport {
    /// The ids of its sandboxes, of which [`MAX_OF_NODE`] are named.
    pub(crate) ids: HashSet<String>,
    /// How many it has.
    pub(crate) total: u64,
    /// Whether it takes no new ones.
    pub(crate) is_drained: bool,
}

/// Where a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxPlace {
    /// At a node that answers.
    At(NodeNumber),
    /// At a node that does not.
    Lost(NodeNumber),
    /// On its way from one to another.
    Moving,
    /// At none that answers, as far as they have said.
    Unknown,
}

/// A list that a node was asked for. Whoever asks keeps it until the answer is there.
#[derive(Debug)]
pub(crate) struct ListQuestion {
    node: NodeNumber,
    step: u64,
}

/// A sandbox that a node is being asked to make; it counts as one of the node's until it is settled.
#[derive(Debug)]
pub(crate) struct PlacedCreate {
    node: NodeNumber,
}

impl PlacedCreate {
    /// Who makes it.
    pub(crate) fn node(&self) -> NodeNumber {
        self.node
    }
}

/// The nodes, and the sandboxes of each.
#[derive(Debug)]
pub(crate) struct PlacementTable {
    nodes: BTreeMap<NodeNumber, NodeEntry>,
    /// The number of the next node.
    next: usize,
    /// Each sandbox once; the node's own entry has when it was learned of.
    sandboxes: HashMap<String, NodeNumber>,
    /// Those that are on their way from the node that has them to another one.
    moving: HashSet<String>,
    /// Counts questions and what was learned between them.
    step: u64,
    /// Who is looked at first, so that equals take turns.
    turn: NodeNumber,
}

#[derive(Debug)]
struct NodeEntry {
    weight: u64,
    /// Since when it is a node.
    since: Duration,
    heard: Option<Duration>,
    is_drained: bool,
    is_leaving: bool,
    /// The question of the newest list that was taken in.
    listed: u64,
    /// When each of its sandboxes was learned of.
    sandboxes: HashMap<String, u64>,
    /// Sandboxes that it counts and did not name.
    unnamed: u64,
    being_made: u64,
}

impl PlacementTable {
    /// Nodes of these weights: one of weight 2 gets twice as many sandboxes as one of weight 1.
    pub(crate) fn new(weights: impl IntoIterator<Item = u32>) -> Self {
        let mut table = Self {
            nodes: BTreeMap::new(),
            next: 0,
            sandboxes: HashMap::new(),
            moving: HashSet::new(),
            step: 0,
            turn: NodeNumber(0),
        };
        for weight in weights {
            table.add(weight, Duration::ZERO);
        }
        table
    }

    /// A further node.
    pub(crate) fn add(&mut self, weight: u32, now: Duration) -> NodeNumber {
        let number = NodeNumber(self.next);
        self.next += 1;
        let entry = NodeEntry {
            weight: u64::from(weight.max(1)),
            since: now,
            heard: None,
            is_drained: false,
            is_leaving: false,
            listed: 0,
            sandboxes: HashMap::new(),
            unnamed: 0,
            being_made: 0,
        };
        self.nodes.insert(number, entry);
        number
    }

    /// A node is none any more, and what it had is nowhere.
    pub(crate) fn remove(&mut self, node: NodeNumber) {
        let entry = self.nodes.remove(&node);
        for id in entry.iter().flat_map(|entry| entry.sandboxes.keys()) {
            if self.sandboxes.get(id) == Some(&node) {
                self.sandboxes.remove(id);
            }
        }
    }

    /// A node is to get no new sandboxes, because no name leads to it; or it may get some again.
    pub(crate) fn set_leaving(&mut self, node: NodeNumber, is_leaving: bool) {
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.is_leaving = is_leaving;
        }
    }

    /// All nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeNumber> + use<> {
        self.nodes.keys().copied().collect::<Vec<_>>().into_iter()
    }

    /// The first node whose number is that, or a higher one.
    pub(crate) fn first_from(&self, index: usize) -> Option<NodeNumber> {
        self.nodes.range(NodeNumber(index)..).next().map(|(node, _)| *node)
    }

    /// Whether a node has, or had, a number.
    pub(crate) fn was_given(&self, index: usize) -> bool {
        index < self.next
    }

    /// Whether a node gets new sandboxes, if it answers.
    pub(crate) fn intake(&self, node: NodeNumber) -> NodeIntake {
        match self.entry(node) {
            Some(entry) if entry.is_drained => NodeIntake::Drained,
            Some(entry) if !entry.is_leaving => NodeIntake::Open,
            _ => NodeIntake::Leaving,
        }
    }

    /// When a node answered last.
    pub(crate) fn heard_at(&self, node: NodeNumber) -> Option<Duration> {
        self.entry(node)?.heard
    }

    /// Whether a node answers.
    pub(crate) fn health(&self, node: NodeNumber, now: Duration) -> NodeHealth {
        match self.entry(node).map(|entry| (entry.heard, entry.since)) {
            Some((Some(heard), _)) if now.saturating_sub(heard) < LOST_AFTER => NodeHealth::Alive,
            Some((None, since)) if now.saturating_sub(since) < LOST_AFTER => NodeHealth::Awaited,
            _ => NodeHealth::Lost,
        }
    }

    /// For how long a node that says nothing is not lost yet; `None` if it is.
    pub(crate) fn time_left(&self, node: NodeNumber, now: Duration) -> Option<Duration> {
        let heard = self.entry(node).map(|entry| entry.heard.unwrap_or(entry.since));
        heard?
            .saturating_add(LOST_AFTER)
            .checked_sub(now)
            .filter(|left| !left.is_zero())
    }

    /// How many sandboxes a node has, those that it is making among them.
    pub(crate) fn load(&self, node: NodeNumber) -> u64 {
        self.entry(node).map_or(0, NodeEntry::load)
    }

    /// A node is about to be asked for its list.
    pub(crate) fn ask(&mut self, node: NodeNumber) -> ListQuestion {
        let step = self.next_step();
        ListQuestion { node, step }
    }

    /// A node answered, with whatever: it is there.
    pub(crate) fn heard(&mut self, node: NodeNumber, now: Duration) {
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.heard = entry.heard.max(Some(now));
        }
    }

    /// A node answered with sandboxes, of `total` that it has.
    ///
    /// A list in which all are removes those that were known before the question. A sandbox that another node has, which
    /// answers, too, stays with that: it is shown once. Such a node is told, if there is one.
    pub(crate) fn answered(&mut self, question: ListQuestion, now: Duration, report: NodeReport) -> Option<NodeNumber> {
        let NodeReport { ids, total, is_drained } = report;
        let ListQuestion { node, step } = question;
        let step_now = self.next_step();
        self.heard(node, now);
        let entry = self.nodes.get_mut(&node)?;
        if step <= entry.listed {
            return None;
        }
        entry.listed = step;
        entry.is_drained = is_drained;
        let named = u64::try_from(ids.len()).unwrap_or(u64::MAX);
        entry.unnamed = total.saturating_sub(named);
        if entry.unnamed == 0 {
            let gone = |(id, learned): (&String, &u64)| (*learned < step && !ids.contains(id)).then(|| id.clone());
            let gone: Vec<String> = entry.sandboxes.iter().filter_map(gone).collect();
            for id in gone {
                self.forget(node, &id);
            }
        }
        let mut doubled = None;
        for id in ids {
            doubled = self.learn(node, id, step_now, now).or(doubled);
        }
        doubled
    }

    /// The node that is to make a sandbox: the one with the fewest for its weight, of those that answer, take some, and were not `tried`.
    pub(crate) fn place(&mut self, now: Duration, tried: &[NodeNumber]) -> Option<PlacedCreate> {
        let in_turn = self.nodes.range(self.turn..).chain(self.nodes.range(..self.turn));
        let in_turn = in_turn.map(|(node, _)| *node);
        // One that has listed nothing yet may not know the front's key: its sandboxes would not be found again.
        let has_listed = |node: &NodeNumber| self.entry(*node).is_some_and(|entry| entry.listed > 0);
        let able = in_turn.filter(|node| !tried.contains(node) && self.health(*node, now) == NodeHealth::Alive);
        let able = able
            .filter(|node| self.intake(*node) == NodeIntake::Open)
            .filter(has_listed);
        let node = able.min_by(|one, other| self.share(*one).cmp(&self.share(*other)))?;
        self.place_at(node, now)
    }

    /// The same for a node that is to be it, if it answers.
    pub(crate) fn place_at(&mut self, node: NodeNumber, now: Duration) -> Option<PlacedCreate> {
        if self.health(node, now) != NodeHealth::Alive {
            return None;
        }
        self.nodes.get_mut(&node)?.being_made += 1;
        self.turn = NodeNumber(node.0 + 1);
        Some(PlacedCreate { node })
    }

    /// A create is over: with a sandbox of that id, or with none that is known of.
    pub(crate) fn settle(&mut self, placed: &PlacedCreate, made: Option<String>, now: Duration) {
        let step = self.next_step();
        if let Some(entry) = self.nodes.get_mut(&placed.node) {
            entry.being_made = entry.being_made.saturating_sub(1);
        }
        if let Some(id) = made {
            self.learn(placed.node, id, step, now);
        }
    }

    /// The sandboxes that a node told of.
    pub(crate) fn sandboxes_of(&self, node: NodeNumber) -> Vec<String> {
        let entry = self.entry(node);
        entry.map_or_else(Vec::new, |entry| entry.sandboxes.keys().cloned().collect())
    }

    /// A sandbox is about to go from its node to another one: nobody is led to it until [`Self::end_move`].
    pub(crate) fn begin_move(&mut self, id: &str) {
        self.moving.insert(id.to_owned());
    }

    /// A sandbox has gone to a node, or stays where it was.
    pub(crate) fn end_move(&mut self, id: &str, to: Option<NodeNumber>, now: Duration) {
        self.moving.remove(id);
        let Some(to) = to else { return };
        if let Some(from) = self.sandboxes.get(id).copied() {
            self.forget(from, id);
        }
        let step = self.next_step();
        self.learn(to, id.to_owned(), step, now);
    }

    /// A node said that it has no such sandbox.
    pub(crate) fn forget(&mut self, node: NodeNumber, id: &str) {
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.sandboxes.remove(id);
        }
        if self.sandboxes.get(id) == Some(&node) {
            self.sandboxes.remove(id);
        }
    }

    /// Where a sandbox is.
    pub(crate) fn find(&self, id: &str, now: Duration) -> SandboxPlace {
        match self.sandboxes.get(id) {
            _ if self.moving.contains(id) => SandboxPlace::Moving,
            None => SandboxPlace::Unknown,
            Some(node) if self.health(*node, now) == NodeHealth::Lost => SandboxPlace::Lost(*node),
            Some(node) => SandboxPlace::At(*node),
        }
    }

    /// Whether a sandbox that a node shows is shown: not when another one has it that answers.
    pub(crate) fn is_shown_by(&self, node: NodeNumber, id: &str, now: Duration) -> bool {
        self.other_with(node, id, now).is_none()
    }

    /// Another node that has a sandbox, and answers.
    fn other_with(&self, node: NodeNumber, id: &str, now: Duration) -> Option<NodeNumber> {
        let other = self.sandboxes.get(id).copied().filter(|other| *other != node)?;
        (self.health(other, now) != NodeHealth::Lost).then_some(other)
    }

    /// Keeps in mind that a node has a sandbox, unless another one has it, which is told.
    fn learn(&mut self, node: NodeNumber, id: String, step: u64, now: Duration) -> Option<NodeNumber> {
        self.entry(node)?;
        if self.moving.contains(&id) && self.sandboxes.get(&id) != Some(&node) {
            // It is there already, and not yet gone from where it was.
            return None;
        }
        if let Some(other) = self.other_with(node, &id, now) {
            return Some(other);
        }
        if let Some(other) = self.sandboxes.get(&id).copied().filter(|other| *other != node) {
            // Its state directory may have come back elsewhere.
            self.forget(other, &id);
        }
        let entry = self.nodes.get_mut(&node)?;
        if entry.sandboxes.len() < MAX_OF_NODE || entry.sandboxes.contains_key(&id) {
            entry.sandboxes.insert(id.clone(), step);
            self.sandboxes.insert(id, node);
        }
        None
    }

    fn entry(&self, node: NodeNumber) -> Option<&NodeEntry> {
        self.nodes.get(&node)
    }

    /// How full a node is, as a fraction that can be compared.
    fn share(&self, node: NodeNumber) -> LoadShare {
        let entry = self.entry(node);
        LoadShare {
            load: entry.map_or(0, NodeEntry::load),
            weight: entry.map_or(1, |entry| entry.weight),
        }
    }

    fn next_step(&mut self) -> u64 {
        self.step += 1;
        self.step
    }
}

impl NodeEntry {
    fn load(&self) -> u64 {
        let named = u64::try_from(self.sandboxes.len()).unwrap_or(u64::MAX);
        named.saturating_add(self.unnamed).saturating_add(self.being_made)
    }
}

/// Sandboxes for a weight.
struct LoadShare {
    load: u64,
    weight: u64,
}

impl LoadShare {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let (one, other) = (
            u128::from(self.load) * u128::from(other.weight),
            u128::from(other.load) * u128::from(self.weight),
        );
        one.cmp(&other)
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
