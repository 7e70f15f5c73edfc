//! What a sandbox reached, gathered: connections of one kind are one line, whatever their number.

use std::collections::{BTreeSet, HashMap};
use std::time::SystemTime;

use crate::journal_entries::{Connection, Outcome};

/// How many kinds are told, the newest.
pub const MAX_REACHED: usize = 500;
/// How many methods of one kind are told.
const MAX_METHODS: usize = 8;

/// Connections of one kind that have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReachedHost {
    /// The name, or the address where none was used.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The rule that decided, as it was written; none stands for what holds unless a rule says otherwise.
    pub rule: Option<String>,
    /// What became of them.
    pub outcome: Outcome,
    /// Methods of the requests on them, where these were seen.
    pub methods: BTreeSet<String>,
    /// How many there were.
    pub times: u64,
    /// Bytes that the sandbox sent.
    pub sent: u64,
    /// Bytes that it received.
    pub received: u64,
    /// When the latest was asked for.
    pub last: SystemTime,
}

/// What a sandbox reached so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReachedHosts {
    /// The latest first, [`MAX_REACHED`] at most.
    pub hosts: Vec<ReachedHost>,
    /// How many connections there were beyond those.
    pub more: u64,
}

impl ReachedHosts {
    /// Gathers `connections`, beside which there were so many `more`. What was only refused is left out.
    pub(crate) fn of<'c>(connections: impl IntoIterator<Item = &'c Connection>, more: u64) -> Self {
        let mut kinds = HashMap::new();
        for connection in connections {
            if matches!(connection.outcome, Outcome::Refused(_)) {
                continue;
            }
            let key = (&connection.host, connection.port, &connection.rule, &connection.outcome);
            kinds
                .entry(key)
                .or_insert_with(|| ReachedHost::new(connection))
                .add(connection);
        }
        let mut hosts: Vec<ReachedHost> = kinds.into_values().collect();
        hosts.sort_by(|one, other| (other.last, &one.host, one.port).cmp(&(one.last, &other.host, other.port)));
        let beyond = hosts.split_off(hosts.len().min(MAX_REACHED));
        let beyond = beyond.iter().fold(more, |sum, host| sum.saturating_add(host.times));
        Self { hosts, more: beyond }
    }
}

impl ReachedHost {
    fn new(connection: &Connection) -> Self {
        Self {
            host: connection.host.clone(),
            port: connection.port,
            rule: connection.rule.clone(),
            outcome: connection.outcome.clone(),
            methods: BTreeSet::new(),
            times: 0,
            sent: 0,
            received: 0,
            last: connection.at,
        }
    }

    fn add(&mut self, connection: &Connection) {
        self.times = self.times.saturating_add(connection.times);
        self.sent = self.sent.saturating_add(connection.sent);
        self.received = self.received.saturating_add(connection.received);
        self.last = self.last.max(connection.at);
        for request in &connection.requests {
            if self.methods.len() < MAX_METHODS {
                self.methods.insert(request.method.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::journal_entries::Request;

    fn connection(host: &str, at: u64, outcome: Outcome) -> Connection {
        Connection {
            at: UNIX_EPOCH + Duration::from_secs(at),
            times: 1,
            host: host.to_owned(),
            port: 443,
            address: None,
            outcome,
            rule: Some("allow example.com".to_owned()),
            asked: None,
            sent: 10,
            received: 1000,
            duration: Duration::ZERO,
            requests: Vec::new(),
            more_requests: 0,
        }
    }

    fn with_request(method: &str, connection: Connection) -> Connection {
        let request = Request {
            method: method.to_owned(),
            path: "/".to_owned(),
            status: Some(200),
            outcome: Outcome::Allowed,
            rule: None,
            secrets: Vec::new(),
            sent: 0,
            received: 0,
            duration: Duration::ZERO,
        };
        Connection {
            requests: vec![request],
            ..connection
        }
    }

    #[test]
    fn connections_of_one_kind_are_one_line_and_what_was_refused_is_none() {
        let all = [
            with_request("GET", connection("a.example", 1, Outcome::Allowed)),
            with_request("POST", connection("a.example", 3, Outcome::Allowed)),
            connection("a.example", 2, Outcome::Failed("refused".to_owned())),
            connection("b.example", 4, Outcome::Refused("no rule".to_owned())),
        ];
        let told = ReachedHosts::of(&all, 7);
        assert_eq!((told.hosts.len(), told.more), (2, 7));
        let first = &told.hosts[0];
        assert_eq!(
            (&*first.host, first.times, first.sent, first.received),
            ("a.example", 2, 20, 2000)
        );
        assert_eq!(first.last, UNIX_EPOCH + Duration::from_secs(3));
        assert_eq!(first.methods.iter().collect::<Vec<_>>(), ["GET", "POST"]);
        assert!(matches!(told.hosts[1].outcome, Outcome::Failed(_)));
    }

    #[test]
    fn the_newest_are_told_and_the_others_are_counted() {
        let count = u64::try_from(MAX_REACHED).unwrap() + 20;
        let all: Vec<_> = (0..count)
            .map(|at| connection(&format!("h{at}.example"), at, Outcome::Allowed))
            .collect();
        let told = ReachedHosts::of(&all, 0);
        assert_eq!((told.hosts.len(), told.more), (MAX_REACHED, 20));
        assert_eq!(told.hosts[0].host, format!("h{}.example", count - 1));
        let methods: Vec<_> = (0..20)
            .map(|number| with_request(&format!("M{number}"), connection("a.example", 1, Outcome::Allowed)))
            .collect();
        assert_eq!(ReachedHosts::of(&methods, 0).hosts[0].methods.len(), MAX_METHODS);
    }
}
