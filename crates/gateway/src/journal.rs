//! What a sandbox asked for and got, kept within bounds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use offleash_core::network::Approval;
use offleash_core::record::LimitHit;

/// How many connections are told one by one; a sandbox can make more than anybody reads.
const CONNECTIONS: usize = 10_000;
/// How many requests are told one by one, of all connections together.
const REQUESTS: usize = 20_000;
/// How many refused names are told.
const NAMES: usize = 1_000;
/// How many uses of secrets that differ.
const SECRETS: usize = 1_000;
/// How many refusals that differ are told as they happen.
const NEWS: usize = 200;

/// What became of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was made.
    Allowed,
    /// It was refused, and why.
    Refused(String),
    /// It was allowed and could not be made, and why.
    Failed(String),
    /// It was made, and ended by a limit; which.
    Cut(String),
}

/// One connection of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// When it was asked for; of several the first.
    pub at: SystemTime,
    /// How many there were.
    pub times: u64,
    /// The name, or the address where none was used.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The address that was dialled.
    pub address: Option<IpAddr>,
    /// What became of it.
    pub outcome: Outcome,
    /// The rule that decided, as it was written; none stands for "nothing is allowed unless a rule says so".
    pub rule: Option<String>,
    /// How it was decided, if it was asked about.
    pub asked: Option<Approval>,
    /// Bytes that the sandbox sent.
    pub sent: u64,
    /// Bytes that it received.
    pub received: u64,
    /// How long it lasted.
    pub duration: Duration,
    /// The requests on it where they were seen, in the order in which they began.
    pub requests: Vec<Request>,
    /// How many there were beyond those.
    pub more_requests: u64,
}

/// One request on a connection that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its method.
    pub method: String,
    /// Its path without the query, or the beginning of it.
    pub path: String,
    /// The status of its answer, the gateway's own included.
    pub status: Option<u16>,
    /// What became of it.
    pub outcome: Outcome,
    /// The rule that decided, as it was written; none where no rule is about requests to the host.
    pub rule: Option<String>,
    /// The names of the secrets that were put into it.
    pub secrets: Vec<String>,
    /// Bytes of its body that the sandbox sent.
    pub sent: u64,
    /// Bytes of the answer's body that it received.
    pub received: u64,
    /// How long it took until the answer had ended.
    pub duration: Duration,
}

/// A secret that was used, or whose placeholder was refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretUse {
    /// Its name.
    pub secret: String,
    /// The host that the request was for.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Why the request was refused; `None` when the value was sent.
    pub refused: Option<String>,
}

/// One connection to the sandbox, from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbound {
    /// When it was made.
    pub at: SystemTime,
    /// Who made it.
    pub peer: SocketAddr,
    /// Where on the host.
    pub host_address: SocketAddr,
    /// The port in the sandbox.
    pub port: u16,
    /// What became of it.
    pub outcome: Outcome,
    /// Bytes that the sandbox sent.
    pub sent: u64,
    /// Bytes that it received.
    pub received: u64,
    /// How long it lasted.
    pub duration: Duration,
}

/// What is told as it happens, once each, to whoever watches ([`crate::Gateway::news`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Something that the sandbox asked for was refused.
    Refused {
        /// The name, or the address where none was used.
        host: String,
        /// The port; none for a name that does not exist for the sandbox.
        port: Option<u16>,
        /// Why.
        reason: String,
    },
    /// So much was refused since the last time beyond what is told one by one.
    More {
        /// How often.
        count: u64,
        /// Whether that was never told before.
        is_first: bool,
    },
    /// A limit was hit.
    Limit(LimitHit),
}

/// What was told so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// Connections, in the order in which they ended.
    pub connections: Vec<Connection>,
    /// How many connections there were beyond those.
    pub more_connections: u64,
    /// Names that do not exist for the sandbox, and how often it asked for each.
    pub refused_names: BTreeMap<String, u64>,
    /// How many questions for other such names there were.
    pub more_refused_names: u64,
    /// Connections from outside, in the order in which they ended.
    pub inbound: Vec<Inbound>,
    /// How many there were beyond those.
    pub more_inbound: u64,
    /// Limits that were hit, each once.
    pub limits_hit: Vec<LimitHit>,
    /// Secrets, and in how many requests each was used or refused.
    pub secrets: BTreeMap<SecretUse, u64>,
    /// How many requests with secrets there were beyond those.
    pub more_secrets: u64,
    /// How many requests are told one by one, those of connections that go on included.
    requests: usize,
    /// Which of the connections stands for those that were only refused.
    refusals: HashMap<Refusal, usize>,
    /// What nobody has taken yet of what is told as it happens.
    news: Vec<News>,
    /// The refusals that were among it: host, port and reason.
    refused: HashSet<(String, Option<u16>, String)>,
    /// How often something else was refused that nobody has taken yet, and whether somebody has before.
    untold: u64,
    has_told_of_more: bool,
}

impl Account {
    /// Tells of a refusal unless it was told; where very many others were, it is counted.
    fn refuse(&mut self, host: &str, port: Option<u16>, reason: &str) {
        let known = (host.to_owned(), port, reason.to_owned());
        if self.refused.contains(&known) {
            return;
        }
        if self.refused.len() >= NEWS {
            self.untold += 1;
        } else {
            self.refused.insert(known);
            self.news.push(News::Refused {
                host: host.to_owned(),
                port,
                reason: reason.to_owned(),
            });
        }
    }
}

/// What connections have in common that are told together: host, port, rule and reason.
type Refusal = (String, u16, Option<String>, String);

impl Connection {
    /// What there is to be told of it, if that is only that it was refused.
    fn only_refused(&self) -> Option<Refusal> {
        let Outcome::Refused(reason) = &self.outcome else {
            return None;
        };
        let is_bare = self.address.is_none()
            && self.asked.is_none()
            && self.requests.is_empty()
            && (self.sent, self.received, self.more_requests) == (0, 0, 0);
        is_bare.then(|| (self.host.clone(), self.port, self.rule.clone(), reason.clone()))
    }
}

/// Where the gateway writes and the supervisor reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Account>>);

impl Journal {
    /// Whether one more request is told one by one. Asked when it begins: those of connections that go on are kept, too.
    pub(crate) fn has_place_for_request(&self) -> bool {
        let mut account = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_place = account.requests < REQUESTS;
        account.requests += usize::from(has_place);
        has_place
    }

    /// One that has ended. Of those that were only refused, a program that tries again and again makes any number: they
    /// are told together, so that room is left for others.
    pub(crate) fn connection(&self, connection: Connection) {
        let account = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = connection.requests.iter().map(|request| &request.outcome);
        for outcome in requests.chain([&connection.outcome]) {
            if let Outcome::Refused(reason) = outcome {
                account.refuse(&connection.host, Some(connection.port), reason);
            }
        }
        let refusal = connection.only_refused();
        if let Some(number) = refusal.as_ref().and_then(|refusal| account.refusals.get(refusal))
            && let Some(known) = account.connections.get_mut(*number)
        {
            known.times += connection.times;
            return;
        }
        if account.connections.len() == CONNECTIONS {
            account.more_connections += 1;
            return;
        }
        if let Some(refusal) = refusal {
            account.refusals.insert(refusal, account.connections.len());
        }
        account.connections.push(connection);
    }

    /// One that was refused before it was made.
    pub(crate) fn unmade(&self, at: SystemTime, (host, port, rule, reason): Refusal) {
        self.connection(Connection {
            at,
            times: 1,
            host,
            port,
            address: None,
            outcome: Outcome::Refused(reason),
            rule,
            asked: None,
            sent: 0,
            received: 0,
            duration: Duration::ZERO,
            requests: Vec::new(),
            more_requests: 0,
        });
    }

    pub(crate) fn refused_name(&self, name: String) {
        let mut account = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = account.refused_names.get_mut(&name) {
            *times += 1;
            return;
        }
        account.refuse(&name, None, "no rule allows the name");
        if account.refused_names.len() < NAMES {
            account.refused_names.insert(name, 1);
        } else {
            account.more_refused_names += 1;
        }
    }

    pub(crate) fn inbound(&self, inbound: Inbound) {
        let mut account = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if account.inbound.len() < CONNECTIONS {
            account.inbound.push(inbound);
        } else {
            account.more_inbound += 1;
        }
    }

    pub(crate) fn limit(&self, hit: LimitHit) {
        let mut account = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !account.limits_hit.contains(&hit) {
            account.news.push(News::Limit(hit.clone()));
            account.limits_hit.push(hit);
        }
    }

    /// What happened since the last time.
    pub(crate) fn news(&self) -> Vec<News> {
        let account = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut news = std::mem::take(&mut account.news);
        let count = std::mem::take(&mut account.untold);
        if count > 0 {
            let is_first = !std::mem::replace(&mut account.has_told_of_more, true);
            news.push(News::More { count, is_first });
        }
        news
    }

    pub(crate) fn secret(&self, used: SecretUse) {
        let mut account = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = account.secrets.get_mut(&used) {
            *times += 1;
        } else if account.secrets.len() < SECRETS {
            account.secrets.insert(used, 1);
        } else {
            account.more_secrets += 1;
        }
    }

    pub(crate) fn take(&self) -> Account {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that was accepted before it was refused.
    fn accepted(host: &str) -> Connection {
        Connection {
            at: SystemTime::now(),
            times: 1,
            host: host.to_owned(),
            port: 80,
            address: None,
            outcome: Outcome::Refused("no rule allows it".to_owned()),
            rule: None,
            asked: None,
            sent: 0,
            received: 0,
            duration: Duration::from_millis(3),
            requests: Vec::new(),
            more_requests: 0,
        }
    }

    #[test]
    fn refusals_of_accepted_connections_are_told_together_unless_there_is_more_to_tell() {
        let journal = Journal::default();
        for _ in 0..CONNECTIONS {
            journal.connection(accepted("a.example"));
        }
        let asked = Some(Approval::Denied);
        for more in [
            Connection {
                sent: 1,
                ..accepted("a.example")
            },
            Connection {
                asked,
                ..accepted("a.example")
            },
            Connection {
                outcome: Outcome::Failed("no rule allows it".to_owned()),
                ..accepted("a.example")
            },
        ] {
            journal.connection(more.clone());
            journal.connection(more);
        }
        journal.connection(accepted("a.example"));
        journal.connection(accepted("b.example"));
        let account = journal.take();
        let told: Vec<u64> = account.connections.iter().map(|one| one.times).collect();
        let many = u64::try_from(CONNECTIONS + 1).unwrap();
        assert_eq!(told, [many, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(account.more_connections, 0);
        assert_eq!(account.connections[0].duration, Duration::from_millis(3));
    }

    #[test]
    fn what_is_refused_is_told_once_as_it_happens() {
        let journal = Journal::default();
        let refused = |host: &str, port: Option<u16>, reason: &str| News::Refused {
            host: host.to_owned(),
            port,
            reason: reason.to_owned(),
        };
        for _ in 0..3 {
            journal.unmade(SystemTime::now(), ("a.example".to_owned(), 443, None, "no".to_owned()));
            journal.refused_name("b.example".to_owned());
        }
        let expected = [
            refused("a.example", Some(443), "no"),
            refused("b.example", None, "no rule allows the name"),
        ];
        assert_eq!(journal.news(), expected);
        assert_eq!(journal.news(), []);
        for number in 0..2 * NEWS {
            journal.refused_name(format!("n{number}.example"));
        }
        // All that have a place, and how many have none; told again it is counted anew.
        let more = u64::try_from(NEWS + 2).unwrap();
        let news = journal.news();
        assert_eq!(news.len(), NEWS - 1);
        let full = News::More {
            count: more,
            is_first: true,
        };
        assert_eq!(news.last(), Some(&full));
        assert_eq!(journal.news(), []);
        journal.refused_name("n0.example".to_owned());
        assert_eq!(journal.news(), []);
        journal.refused_name("late.example".to_owned());
        let later = News::More {
            count: 1,
            is_first: false,
        };
        assert_eq!(journal.news(), [later]);
    }

    #[test]
    fn equal_refusals_are_told_together_and_leave_room_for_others() {
        let journal = Journal::default();
        let refuse = |host: &str, port: u16, reason: &str| {
            journal.unmade(SystemTime::now(), (host.to_owned(), port, None, reason.to_owned()));
        };
        for _ in 0..CONNECTIONS * 2 {
            refuse("a.example", 443, "no rule allows it");
        }
        refuse("a.example", 444, "no rule allows it");
        refuse("a.example", 443, "the rule refuses it");
        refuse("b.example", 443, "no rule allows it");
        let account = journal.take();
        let told: Vec<_> = account
            .connections
            .iter()
            .map(|one| (&*one.host, one.port, one.times))
            .collect();
        let many = u64::try_from(CONNECTIONS * 2).unwrap();
        let expected = [
            ("a.example", 443, many),
            ("a.example", 444, 1),
            ("a.example", 443, 1),
            ("b.example", 443, 1),
        ];
        assert_eq!(told, expected);
        assert_eq!(account.more_connections, 0);
        for number in 0..CONNECTIONS + 5 {
            refuse(&format!("n{number}.example"), 443, "no rule allows it");
        }
        let account = journal.take();
        assert_eq!((account.connections.len(), account.more_connections), (CONNECTIONS, 5));
        assert_eq!(account.refusals.len(), CONNECTIONS);
    }
}
