use std::time::Instant;

use super::*;
use crate::front::placement::{NodeHealth, NodeIntake, NodeReport};

fn set<const N: usize>(addresses: [&str; N]) -> BTreeSet<IpAddr> {
    addresses.map(|address| address.parse().unwrap()).into()
}

fn nodes(named: &[&str]) -> (FrontNodes, NodesName) {
    let name: NodesName = "http://nodes.box:3000=2".parse().unwrap();
    let key = "e2b_0123456789abcdef0123456789abcdef01234567".parse().unwrap();
    let named = named.iter().map(|node| node.parse().unwrap()).collect();
    (FrontNodes::new(named, vec![name.clone()], None, key), name)
}

fn names(nodes: &FrontNodes) -> Vec<String> {
    nodes.all().iter().map(|(_, node)| node.name().to_owned()).collect()
}

/// A node says that it has these.
fn has(nodes: &FrontNodes, called: &str, ids: &[&str]) {
    let (number, _) = nodes.all().into_iter().find(|(_, node)| node.name() == called).unwrap();
    let question = nodes.table().ask(number);
    let report = NodeReport {
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        total: u64::try_from(ids.len()).unwrap(),
        is_drained: false,
    };
    let now = nodes.now();
    nodes.table().answered(question, now, report);
}

#[test]
fn a_name_leads_to_each_node_once_and_never_to_this_machine() {
    let (nodes, name) = nodes(&["http://10.0.0.1:3000=7"]);
    let found = set(["10.0.0.1", "10.0.0.2", "127.0.0.1", "169.254.169.254", "0.0.0.0"]);
    assert_eq!(nodes.take_in(&name, &found).len(), 1);
    assert!(nodes.take_in(&name, &found).is_empty());
    assert_eq!(names(&nodes), ["10.0.0.1:3000", "10.0.0.2:3000"]);
    assert_eq!(
        nodes.all()[0].1.address().weight(),
        7,
        "what a person named stays as it is"
    );
    assert!(matches!(
        misplaced(&name, &found),
        Some(NodeError::Misplaced { address, .. }) if address.to_string() == "0.0.0.0"
    ));
    // One that is named is not forgotten when the name leads elsewhere.
    nodes.take_in(&name, &set(["10.0.0.3"]));
    assert_eq!(names(&nodes), ["10.0.0.1:3000", "10.0.0.3:3000"]);
}

#[test]
fn a_node_that_no_name_leads_to_is_kept_while_it_answers_and_has_sandboxes() {
    let (nodes, name) = nodes(&[]);
    nodes.take_in(&name, &set(["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
    has(&nodes, "10.0.0.1:3000", &["a"]);
    has(&nodes, "10.0.0.2:3000", &[]);
    // The third has never answered.
    nodes.take_in(&name, &set(["10.0.0.4"]));
    assert_eq!(names(&nodes), ["10.0.0.1:3000", "10.0.0.4:3000"]);
    let stays = nodes.all()[0].0;
    assert_eq!(nodes.table().intake(stays), NodeIntake::Leaving);
    // It is there again, as the same node.
    nodes.take_in(&name, &set(["10.0.0.1", "10.0.0.4"]));
    assert_eq!(nodes.table().intake(stays), NodeIntake::Open);
    // And gone, with its last sandbox.
    has(&nodes, "10.0.0.1:3000", &[]);
    nodes.take_in(&name, &set(["10.0.0.4"]));
    assert_eq!(names(&nodes), ["10.0.0.4:3000"]);
    assert!(matches!(nodes.node(stays), Err(NodeError::Gone)));
}

#[test]
fn a_name_that_leads_nowhere_takes_nobody_away_who_answers() {
    let (nodes, name) = nodes(&[]);
    nodes.take_in(&name, &set(["10.0.0.1", "10.0.0.2"]));
    has(&nodes, "10.0.0.1:3000", &[]);
    nodes.take_in(&name, &BTreeSet::new());
    assert_eq!(names(&nodes), ["10.0.0.1:3000"]);
    let number = nodes.all()[0].0;
    assert_eq!(nodes.health(number), NodeHealth::Alive);
    assert_eq!(nodes.table().intake(number), NodeIntake::Open);
}

#[test]
fn a_name_leads_to_no_more_nodes_than_are_taken() {
    let (nodes, name) = nodes(&[]);
    let many = |from: u32| -> BTreeSet<IpAddr> {
        (0..1200)
            .map(|number| IpAddr::V4((0x0a00_0000 + from + number).into()))
            .collect()
    };
    let began = Instant::now();
    for from in [0, 5000] {
        nodes.take_in(&name, &many(from));
        assert_eq!(nodes.all().len(), MAX_FOUND, "{:?}", began.elapsed());
    }
    assert!(matches!(
        misplaced(&name, &many(0)),
        Some(NodeError::TooMany { found: 1200, .. })
    ));
}
