use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn ids<const N: usize>(names: [&str; N]) -> HashSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// All that a node has, which takes more.
fn report(ids: HashSet<String>) -> NodeReport {
    counted(u64::try_from(ids.len()).unwrap(), ids)
}

/// A part of what a node has.
fn counted(total: u64, ids: HashSet<String>) -> NodeReport {
    let is_drained = false;
    NodeReport { ids, total, is_drained }
}

/// Nodes that have answered with nothing.
fn empty(weights: &[u32]) -> PlacementTable {
    let mut table = PlacementTable::new(weights.iter().copied());
    for node in table.nodes().collect::<Vec<_>>() {
        let question = table.ask(node);
        table.answered(question, Duration::ZERO, report(HashSet::new()));
    }
    table
}

fn list(table: &mut PlacementTable, node: NodeNumber, now: Duration, names: HashSet<String>) {
    let question = table.ask(node);
    table.answered(question, now, report(names));
}

#[test]
fn sandboxes_are_spread_by_weight_and_equals_take_turns() {
    let mut table = empty(&[1, 2, 1]);
    let mut got = [0; 3];
    for _ in 0..400 {
        got[table.place(SECOND, &[]).unwrap().node().index()] += 1;
    }
    assert_eq!(got, [100, 200, 100]);
    let mut equals = empty(&[1, 1, 1]);
    let order: Vec<usize> = (0..3)
        .map(|_| equals.place(SECOND, &[]).unwrap().node().index())
        .collect();
    assert_eq!(order, [0, 1, 2]);
}

#[test]
fn nobody_gets_a_sandbox_who_does_not_answer_or_was_tried() {
    let mut table = PlacementTable::new([1, 1]);
    assert!(
        table.place(SECOND, &[]).is_none(),
        "a node that never answered was taken"
    );
    let [one, other] = [NodeNumber(0), NodeNumber(1)];
    list(&mut table, one, SECOND, HashSet::new());
    assert_eq!(table.place(SECOND, &[]).unwrap().node(), one);
    assert!(table.place(SECOND, &[one]).is_none());
    assert_eq!(table.health(other, SECOND), NodeHealth::Awaited);
    assert_eq!(table.health(other, LOST_AFTER), NodeHealth::Lost);
    assert_eq!(table.health(one, LOST_AFTER), NodeHealth::Alive);
    assert!(table.place(LOST_AFTER + SECOND, &[]).is_none(), "a lost node was taken");
}

#[test]
fn a_list_removes_what_is_gone_and_nothing_that_is_newer_than_its_question() {
    let mut table = empty(&[1]);
    let node = NodeNumber(0);
    list(&mut table, node, SECOND, ids(["old", "stays"]));
    let question = table.ask(node);
    let placed = table.place(SECOND, &[]).unwrap();
    table.settle(&placed, Some("new".to_owned()), SECOND);
    table.answered(question, SECOND, report(ids(["stays"])));
    let found = ["old", "stays", "new"].map(|id| table.find(id, SECOND));
    assert_eq!(
        found,
        [SandboxPlace::Unknown, SandboxPlace::At(node), SandboxPlace::At(node)]
    );
    assert_eq!(table.load(node), 2);
}

#[test]
fn an_answer_that_was_overtaken_changes_nothing() {
    let mut table = empty(&[1]);
    let node = NodeNumber(0);
    let slow = table.ask(node);
    list(&mut table, node, SECOND, ids(["a"]));
    table.answered(slow, SECOND, counted(7, ids(["ended"])));
    assert_eq!(table.find("a", SECOND), SandboxPlace::At(node));
    assert_eq!(table.find("ended", SECOND), SandboxPlace::Unknown);
    assert_eq!(table.load(node), 1);
}

#[test]
fn a_list_that_is_not_whole_removes_nothing_and_counts() {
    let mut table = empty(&[1]);
    let node = NodeNumber(0);
    list(&mut table, node, SECOND, ids(["a", "b"]));
    let question = table.ask(node);
    table.answered(question, SECOND, counted(3000, ids(["b"])));
    assert_eq!(table.find("a", SECOND), SandboxPlace::At(node));
    assert_eq!(table.load(node), 2 + 2999);
}

#[test]
fn a_sandbox_is_at_one_node_and_moves_only_from_one_that_is_lost() {
    let mut table = empty(&[1, 1]);
    let [one, other] = [NodeNumber(0), NodeNumber(1)];
    list(&mut table, one, SECOND, ids(["a"]));
    list(&mut table, other, SECOND, ids(["a"]));
    assert_eq!(table.find("a", SECOND), SandboxPlace::At(one));
    let later = SECOND + LOST_AFTER;
    assert_eq!(table.find("a", later), SandboxPlace::Lost(one));
    list(&mut table, other, later, ids(["a"]));
    assert_eq!(table.find("a", later), SandboxPlace::At(other));
    assert_eq!((table.load(one), table.load(other)), (0, 1));
}

#[test]
fn whoever_lists_what_another_node_has_is_told_and_shows_it_not() {
    let mut table = empty(&[1, 1]);
    let [one, other] = [NodeNumber(0), NodeNumber(1)];
    list(&mut table, one, SECOND, ids(["a"]));
    let question = table.ask(other);
    assert_eq!(table.answered(question, SECOND, report(ids(["a", "b"]))), Some(one));
    let shown = |table: &PlacementTable, node, id, now| table.is_shown_by(node, id, now);
    assert!(shown(&table, one, "a", SECOND) && !shown(&table, other, "a", SECOND));
    assert!(shown(&table, other, "b", SECOND) && shown(&table, other, "unknown", SECOND));
    table.heard(other, LOST_AFTER * 2);
    assert!(shown(&table, other, "a", LOST_AFTER * 2), "the other one is lost");
}

#[test]
fn any_answer_is_one_and_only_a_list_brings_sandboxes() {
    let mut table = PlacementTable::new([1]);
    let node = NodeNumber(0);
    assert_eq!(table.time_left(node, SECOND), Some(LOST_AFTER - SECOND));
    table.heard(node, LOST_AFTER);
    assert_eq!(table.health(node, LOST_AFTER + SECOND), NodeHealth::Alive);
    assert_eq!(table.time_left(node, LOST_AFTER + SECOND), Some(LOST_AFTER - SECOND));
    assert_eq!(table.time_left(node, LOST_AFTER * 2), None);
    assert!(table.place(LOST_AFTER + SECOND, &[]).is_none(), "it has listed nothing");
    list(&mut table, node, LOST_AFTER + SECOND, ids([]));
    assert!(table.place(LOST_AFTER + SECOND, &[]).is_some());
}

#[test]
fn a_node_that_lists_ever_others_fills_no_memory() {
    let mut table = empty(&[1]);
    for round in 0..3 {
        let names = (0..MAX_OF_NODE).map(|number| format!("{round}x{number}")).collect();
        let question = table.ask(NodeNumber(0));
        // It says that there are more, so nothing that was known is gone.
        let _doubled = table.answered(question, SECOND, counted(u64::MAX, names));
    }
    assert_eq!(table.sandboxes.len(), MAX_OF_NODE);
}

#[test]
fn a_node_that_is_drained_or_leaves_gets_nothing_new_and_keeps_what_it_has() {
    let mut table = empty(&[1, 1, 1]);
    let [drained, leaving, open] = [0, 1, 2].map(NodeNumber);
    list(&mut table, leaving, SECOND, ids(["b"]));
    let question = table.ask(drained);
    let told = NodeReport {
        is_drained: true,
        ..report(ids(["a"]))
    };
    table.answered(question, SECOND, told);
    table.set_leaving(leaving, true);
    for _ in 0..3 {
        assert_eq!(table.place(SECOND, &[]).unwrap().node(), open);
    }
    assert!(table.place(SECOND, &[open]).is_none());
    // What it was asked for before is asked for there again.
    assert_eq!(table.place_at(drained, SECOND).unwrap().node(), drained);
    assert_eq!(table.find("a", SECOND), SandboxPlace::At(drained));
    assert_eq!(table.find("b", SECOND), SandboxPlace::At(leaving));
    // Both may change.
    list(&mut table, drained, SECOND, ids(["a"]));
    table.set_leaving(leaving, false);
    assert_eq!([drained, leaving].map(|node| table.intake(node)), [NodeIntake::Open; 2]);
}

#[test]
fn a_node_that_is_none_any_more_has_nothing_and_its_number_is_nobodys() {
    let mut table = empty(&[1, 1]);
    let [gone, stays] = [0, 1].map(NodeNumber);
    list(&mut table, gone, SECOND, ids(["a"]));
    let late = table.ask(gone);
    let placed = table.place_at(gone, SECOND).unwrap();
    table.remove(gone);
    assert_eq!(table.find("a", SECOND), SandboxPlace::Unknown);
    assert_eq!(table.time_left(gone, SECOND), None, "whoever waits for it is told");
    // What was on its way changes nothing.
    table.answered(late, SECOND, report(ids(["a"])));
    table.settle(&placed, Some("b".to_owned()), SECOND);
    assert_eq!(["a", "b"].map(|id| table.find(id, SECOND)), [SandboxPlace::Unknown; 2]);
    let later = SECOND * 100;
    let new = table.add(1, later);
    assert!(new > stays && table.health(new, later) == NodeHealth::Awaited);
    assert_eq!(table.time_left(new, later), Some(LOST_AFTER));
    assert_eq!((table.first_from(0), table.first_from(2)), (Some(stays), Some(new)));
    assert!(table.was_given(0) && !table.was_given(3) && table.first_from(3).is_none());
}

#[test]
fn a_create_that_came_to_nothing_does_not_count() {
    let mut table = empty(&[1]);
    let placed = table.place(SECOND, &[]).unwrap();
    assert_eq!(table.load(placed.node()), 1);
    table.settle(&placed, None, SECOND);
    assert_eq!(table.load(placed.node()), 0);
}

/// Something that happens to a fleet.
#[derive(Debug, Clone)]
enum Happening {
    /// A create through the front, which hears of what came of it, or not.
    Create {
        is_heard: bool,
    },
    /// A create that the node refuses.
    Refused,
    /// A sandbox of the node's ends, without the front.
    Ends(usize),
    /// The front asks a node for its list, which the node answers at once; the answer is on its way.
    Asks(usize),
    /// One of the answers that are on their way comes, or is lost.
    Comes {
        which: usize,
        is_lost: bool,
    },
    /// A node does not answer any more, or answers again, with its sandboxes.
    Falls(usize),
    Rises(usize),
    Passes(u64),
    /// The front starts anew.
    Restart,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        5 => any::<bool>().prop_map(|is_heard| Happening::Create { is_heard }),
        1 => Just(Happening::Refused),
        2 => any::<usize>().prop_map(Happening::Ends),
        4 => any::<usize>().prop_map(Happening::Asks),
        4 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(which, is_lost)| Happening::Comes { which, is_lost }),
        1 => any::<usize>().prop_map(Happening::Falls),
        2 => any::<usize>().prop_map(Happening::Rises),
        2 => (0..6_u64).prop_map(Happening::Passes),
        1 => Just(Happening::Restart),
    ]
}

/// What is so, whatever the front knows.
struct Fleet {
    table: PlacementTable,
    now: Duration,
    up: Vec<bool>,
    /// Each sandbox that is there, and its node.
    there: BTreeMap<String, NodeNumber>,
    /// Those of them that the front was told of since it began.
    told: HashSet<String>,
    under_way: Vec<(ListQuestion, HashSet<String>)>,
    made: usize,
}

impl Fleet {
    fn new(nodes: usize) -> Self {
        Self {
            table: PlacementTable::new(vec![1; nodes]),
            now: Duration::ZERO,
            up: vec![true; nodes],
            there: BTreeMap::new(),
            told: HashSet::new(),
            under_way: Vec::new(),
            made: 0,
        }
    }

    fn of(&self, node: NodeNumber) -> HashSet<String> {
        let there = self.there.iter().filter(|(_, at)| **at == node);
        there.map(|(id, _)| id.clone()).collect()
    }

    fn ask(&mut self, node: NodeNumber) {
        if self.up[node.index()] {
            let question = self.table.ask(node);
            self.under_way.push((question, self.of(node)));
        }
    }

    fn take_in(&mut self, which: usize) {
        let (question, names) = self.under_way.remove(which);
        self.told
            .extend(names.iter().filter(|id| self.there.contains_key(*id)).cloned());
        self.table.answered(question, self.now, report(names));
    }

    fn happens(&mut self, what: &Happening) {
        let nodes = self.up.len();
        match *what {
            Happening::Create { is_heard } => {
                let Some(placed) = self.table.place(self.now, &[]) else {
                    return;
                };
                let node = placed.node();
                assert_eq!(self.table.health(node, self.now), NodeHealth::Alive);
                let made = self.up[node.index()].then(|| {
                    self.made += 1;
                    format!("i{}", self.made)
                });
                if let Some(id) = &made {
                    self.there.insert(id.clone(), node);
                }
                let heard = made.filter(|_| is_heard);
                self.told.extend(heard.clone());
                self.table.settle(&placed, heard, self.now);
            }
            Happening::Refused => {
                if let Some(placed) = self.table.place(self.now, &[]) {
                    self.table.settle(&placed, None, self.now);
                }
            }
            Happening::Ends(which) => {
                let id = self.there.keys().nth(which % self.there.len().max(1)).cloned();
                if let Some(id) = id {
                    self.there.remove(&id);
                    self.told.remove(&id);
                }
            }
            Happening::Asks(which) => self.ask(NodeNumber(which % nodes)),
            Happening::Comes { which, is_lost } if !self.under_way.is_empty() => {
                let which = which % self.under_way.len();
                match is_lost {
                    true => drop(self.under_way.remove(which)),
                    false => self.take_in(which),
                }
            }
            Happening::Comes { .. } => {}
            Happening::Falls(which) => self.up[which % nodes] = false,
            Happening::Rises(which) => self.up[which % nodes] = true,
            Happening::Passes(seconds) => self.now += Duration::from_secs(seconds),
            Happening::Restart => {
                let weights = vec![1; nodes];
                (self.table, self.now) = (PlacementTable::new(weights), Duration::ZERO);
                self.told.clear();
                self.under_way.clear();
            }
        }
    }

    /// Every sandbox that the front was told of, and that is there, is found at its node or as one of a lost node.
    fn holds(&self) {
        for id in &self.told {
            let node = self.there[id];
            let found = self.table.find(id, self.now);
            assert!(
                [SandboxPlace::At(node), SandboxPlace::Lost(node)].contains(&found),
                "{id} of {node:?}: {found:?}"
            );
        }
        let counted: usize = self.table.nodes.values().map(|entry| entry.sandboxes.len()).sum();
        assert_eq!(counted, self.table.sandboxes.len(), "a sandbox is at two nodes");
    }

    /// Once every node that is up was asked and answered, the front knows what they have and nothing else of them.
    fn settles(&mut self) {
        self.under_way.clear();
        for node in self.table.nodes().collect::<Vec<_>>() {
            self.ask(node);
        }
        while !self.under_way.is_empty() {
            self.take_in(0);
        }
        self.holds();
        for node in self.table.nodes().filter(|node| self.up[node.index()]) {
            let known: HashSet<String> = self.table.nodes[&node].sandboxes.keys().cloned().collect();
            assert_eq!(known, self.of(node));
            assert_eq!(
                self.table.load(node),
                u64::try_from(known.len()).unwrap(),
                "a create is counted for ever"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_sandbox_is_lost_or_at_two_nodes_whatever_happens(happenings in vec(happening(), 1..150)) {
        let mut fleet = Fleet::new(4);
        for what in &happenings {
            fleet.happens(what);
            fleet.holds();
        }
        fleet.settles();
    }
}

#[test]
fn ten_thousand_sandboxes_on_a_hundred_nodes_are_spread_and_found() {
    let mut fleet = Fleet::new(100);
    for node in fleet.table.nodes().collect::<Vec<_>>() {
        fleet.ask(node);
        fleet.take_in(0);
    }
    for _ in 0..10_000 {
        fleet.happens(&Happening::Create { is_heard: true });
    }
    assert_eq!(fleet.told.len(), 10_000);
    for node in fleet.table.nodes() {
        assert_eq!(fleet.table.load(node), 100);
    }
    // A tenth of the nodes is gone: theirs are told to be at lost nodes, and everything else is found.
    for fallen in 0..10 {
        fleet.happens(&Happening::Falls(fallen));
    }
    for _ in 0..5 {
        fleet.happens(&Happening::Passes(2));
        for node in fleet.table.nodes().collect::<Vec<_>>() {
            fleet.ask(node);
        }
        while !fleet.under_way.is_empty() {
            fleet.take_in(fleet.under_way.len() - 1);
        }
    }
    let lost = fleet
        .there
        .keys()
        .filter(|id| matches!(fleet.table.find(id, fleet.now), SandboxPlace::Lost(_)));
    assert_eq!(lost.count(), 1000);
    fleet.settles();
}

#[test]
fn nobody_is_led_to_a_sandbox_that_is_on_its_way_and_everybody_to_where_it_went() {
    let mut table = PlacementTable::new([1, 1]);
    let nodes: Vec<NodeNumber> = table.nodes().collect();
    let now = Duration::from_secs(1);
    let report = |ids: &[&str]| NodeReport {
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        total: u64::try_from(ids.len()).unwrap(),
        is_drained: false,
    };
    let list = |table: &mut PlacementTable, node: usize, ids: &[&str]| {
        let question = table.ask(nodes[node]);
        table.answered(question, now, report(ids))
    };
    list(&mut table, 0, &["i1", "i2"]);
    list(&mut table, 1, &[]);
    table.begin_move("i1");
    assert_eq!(table.find("i1", now), SandboxPlace::Moving);
    // It is at both: shown by the first one, and no trouble of anybody's.
    assert_eq!(list(&mut table, 1, &["i1"]), None);
    assert!(table.is_shown_by(nodes[0], "i1", now) && !table.is_shown_by(nodes[1], "i1", now));
    let late = table.ask(nodes[0]);
    table.end_move("i1", Some(nodes[1]), now);
    assert_eq!(table.find("i1", now), SandboxPlace::At(nodes[1]));
    // What the first one answers that was asked before changes nothing.
    table.answered(late, now, report(&["i1", "i2"]));
    assert_eq!(table.find("i1", now), SandboxPlace::At(nodes[1]));
    list(&mut table, 0, &["i2"]);
    assert_eq!(table.find("i1", now), SandboxPlace::At(nodes[1]));
    table.begin_move("i2");
    table.end_move("i2", None, now);
    assert_eq!(table.find("i2", now), SandboxPlace::At(nodes[0]));
    assert_eq!((table.load(nodes[0]), table.load(nodes[1])), (1, 1));
}
