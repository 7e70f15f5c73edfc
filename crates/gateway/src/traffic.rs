//! What a sandbox did with its network so far, in numbers, for rules of monitoring.
//!
//! The gateway tells what is begun ([`BegunConnections`]); everything else is counted by the supervisor from what it is told
//! for the record. Numbers of a gateway that lies are wrong numbers, of a bounded size, and nothing else.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use offleash_core::monitor::{MINER_PORTS, MonitorFigure, is_generated_name, is_metadata_service};
use serde::{Deserialize, Serialize};

/// How many hosts are told apart; whoever connects to more has been noticed.
const MAX_HOSTS: usize = 10_000;
/// How many hosts that were connected to are told at a time.
const MAX_TOLD: usize = 64;
/// How many examples of each figure are kept, the newest.
const MAX_EXAMPLES: usize = 3;
/// How long an example may be, in bytes.
const MAX_EXAMPLE: usize = 256;

/// Totals since the sandbox was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrafficTotals {
    /// Connections that were allowed and begun.
    pub connections: u64,
    /// Connections that were refused.
    pub refused_connections: u64,
    /// Hosts that were connected to, refused ones included.
    pub hosts: u64,
    /// Questions for names that no rule allows.
    pub refused_names: u64,
    /// Names that look like data.
    pub generated_names: u64,
    /// Bytes that were sent on connections that have ended.
    pub sent_bytes: u64,
    /// Connections that look like a miner's.
    pub miners: u64,
    /// Refused connections to metadata services of clouds, and questions for their names.
    pub metadata: u64,
}

/// Counts what a sandbox does with its network.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traffic {
    totals: TrafficTotals,
    hosts: HashSet<u64>,
    hasher: RandomState,
    examples: BTreeMap<MonitorFigure, VecDeque<String>>,
}

/// What was begun since the last time, on its way from the gateway's process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BegunConnections {
    connections: u64,
    hosts: Vec<String>,
    miners: u64,
    miner: Option<String>,
}

impl BegunConnections {
    /// Takes note of a connection that is allowed.
    pub(crate) fn begin(&mut self, host: &str, port: u16) {
        self.connections = self.connections.saturating_add(1);
        if self.hosts.len() < MAX_TOLD && !self.hosts.iter().any(|known| known == host) {
            self.hosts.push(host.to_owned());
        }
        if MINER_PORTS.contains(&port) {
            self.note_miner(host, port);
        }
    }

    /// Takes note of a connection whose first bytes are a miner's. On a port of theirs it was noticed already.
    pub(crate) fn speak_stratum(&mut self, host: &str, port: u16) {
        if !MINER_PORTS.contains(&port) {
            self.note_miner(host, port);
        }
    }

    fn note_miner(&mut self, host: &str, port: u16) {
        self.miners = self.miners.saturating_add(1);
        self.miner = Some(format!("{host}:{port}"));
    }
}

impl Traffic {
    pub(crate) fn totals(&self) -> TrafficTotals {
        self.totals
    }

    /// What was among it lately.
    pub(crate) fn examples(&self, figure: MonitorFigure) -> Vec<String> {
        self.examples.get(&figure).into_iter().flatten().cloned().collect()
    }

    pub(crate) fn begun(&mut self, begun: BegunConnections) {
        add(&mut self.totals.connections, begun.connections);
        add(&mut self.totals.miners, begun.miners);
        if let Some(miner) = begun.miner {
            self.note(MonitorFigure::Miners, miner);
        }
        for host in begun.hosts.into_iter().take(MAX_TOLD) {
            self.host(&host);
            self.note(MonitorFigure::Connections, host);
        }
    }

    pub(crate) fn refused(&mut self, host: &str, port: u16, times: u64) {
        add(&mut self.totals.refused_connections, times);
        let place = format!("{host}:{port}");
        self.host(host);
        if MINER_PORTS.contains(&port) {
            add(&mut self.totals.miners, times);
            self.note(MonitorFigure::Miners, place.clone());
        }
        if is_metadata_service(host) {
            add(&mut self.totals.metadata, times);
            self.note(MonitorFigure::Credentials, place.clone());
        }
        self.note(MonitorFigure::RefusedConnections, place);
    }

    pub(crate) fn sent(&mut self, host: &str, bytes: u64) {
        if bytes > 0 {
            add(&mut self.totals.sent_bytes, bytes);
            self.note(MonitorFigure::Sent, host.to_owned());
        }
    }

    /// A name that was refused so often, or that was asked for once and is allowed.
    pub(crate) fn name(&mut self, name: &str, refused: u64, is_new: bool) {
        if refused > 0 {
            add(&mut self.totals.refused_names, refused);
            self.note(MonitorFigure::RefusedNames, name.to_owned());
            if is_metadata_service(name) {
                add(&mut self.totals.metadata, refused);
                self.note(MonitorFigure::Credentials, name.to_owned());
            }
        }
        if is_new && is_generated_name(name) {
            add(&mut self.totals.generated_names, 1);
            self.note(MonitorFigure::GeneratedNames, name.to_owned());
        }
    }

    fn host(&mut self, host: &str) {
        if self.hosts.len() < MAX_HOSTS && self.hosts.insert(self.hasher.hash_one(host)) {
            add(&mut self.totals.hosts, 1);
            self.note(MonitorFigure::Hosts, host.to_owned());
        }
    }

    fn note(&mut self, figure: MonitorFigure, mut example: String) {
        example.truncate(example.floor_char_boundary(MAX_EXAMPLE));
        let examples = self.examples.entry(figure).or_default();
        if examples.contains(&example) {
            return;
        }
        if examples.len() == MAX_EXAMPLES {
            examples.pop_front();
        }
        examples.push_back(example);
    }
}

fn add(total: &mut u64, more: u64) {
    *total = total.saturating_add(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_begun_is_counted_and_hosts_once() {
        let mut begun = BegunConnections::default();
        for _ in 0..3 {
            begun.begin("a.example", 443);
        }
        begun.begin("b.example", 3333);
        begun.speak_stratum("b.example", 3333);
        begun.speak_stratum("c.example", 80);
        let mut traffic = Traffic::default();
        traffic.begun(begun.clone());
        traffic.begun(begun);
        let totals = traffic.totals();
        assert_eq!((totals.connections, totals.hosts, totals.miners), (8, 2, 4));
        assert_eq!(traffic.examples(MonitorFigure::Miners), ["c.example:80"]);
    }

    #[test]
    fn metadata_services_that_are_refused_are_told_apart() {
        let mut traffic = Traffic::default();
        traffic.refused("169.254.169.254", 80, 2);
        traffic.refused("[fd00:ec2::254]", 80, 1);
        traffic.refused("169.254.169.253", 53, 1);
        traffic.name("Metadata.google.internal.", 1, true);
        traffic.name("metadata.example", 1, true);
        assert_eq!(traffic.totals().metadata, 4);
        assert_eq!(traffic.examples(MonitorFigure::Credentials).len(), 3);
    }

    #[test]
    fn what_is_kept_is_bounded_whatever_is_told() {
        let mut traffic = Traffic::default();
        for number in 0..MAX_HOSTS + 10 {
            let host = format!("h{number}.{}", "é".repeat(200));
            traffic.refused(&host, 3333, 1);
            traffic.name(&host, 2, true);
        }
        let totals = traffic.totals();
        let all = u64::try_from(MAX_HOSTS).unwrap();
        assert_eq!(
            (totals.hosts, totals.refused_connections, totals.miners),
            (all, all + 10, all + 10)
        );
        assert_eq!(
            (totals.refused_names, totals.generated_names),
            (2 * (all + 10), all + 10)
        );
        for figure in MonitorFigure::ALL {
            let examples = traffic.examples(*figure);
            assert!(examples.len() <= MAX_EXAMPLES && examples.iter().all(|one| one.len() <= MAX_EXAMPLE));
        }
        let mut begun = BegunConnections::default();
        for number in 0..1000 {
            begun.begin(&number.to_string(), 443);
        }
        assert_eq!((begun.connections, begun.hosts.len()), (1000, MAX_TOLD));
    }
}
