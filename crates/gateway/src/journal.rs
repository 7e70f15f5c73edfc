//! What a sandbox asked for and got, kept within bounds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use offleash_core::monitor::MonitorFigure;
use offleash_core::record::LimitHit;

use crate::journal_entries::{
    Connection, GatewayLoss, Inbound, JournalEntry, MoreEntries, News, Outcome, Refusal, SecretUse,
};
use crate::link::Link;
use crate::reached::ReachedHosts;
use crate::traffic::{BegunConnections, Traffic, TrafficTotals};
use crate::wire::Report;

/// How many connections are told one by one; a sandbox can make more than anybody reads.
const CONNECTIONS: usize = 10_000;
/// How many requests are told one by one, of all connections together.
const REQUESTS: usize = 20_000;
/// How many refused names are told.
const NAMES: usize = 1_000;
/// How many uses of secrets that differ.
const SECRETS: usize = 1_000;
/// How many limits, of which there are fewer.
const LIMITS: usize = 64;
/// How many refusals that differ are told as they happen.
const NEWS: usize = 200;

/// What was told so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// How the gateway ended, if it was lost: from then on there was no network.
    pub lost: Option<GatewayLoss>,
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
    /// How many more may be told of those that another journal was told of; `None` where they are counted as they begin.
    room_for_requests: Option<usize>,
    /// How many of the limits another journal knows.
    limits_told: usize,
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
    fn refuse(&mut self, host: &str, port: Option<u16>, reason: &str, times: u64) {
        let known = (host.to_owned(), port, reason.to_owned());
        if self.refused.contains(&known) {
            return;
        }
        if self.refused.len() >= NEWS {
            self.untold = self.untold.saturating_add(times);
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

impl Account {
    /// Leaves out requests beyond those of all connections together that are told, which were counted when they began if they
    /// were seen here.
    fn bound_requests(&mut self, connection: &mut Connection) {
        let Some(room) = self.room_for_requests.as_mut() else {
            return;
        };
        let beyond = connection.requests.len().saturating_sub(*room);
        connection.requests.truncate(*room);
        *room -= connection.requests.len();
        let beyond = u64::try_from(beyond).unwrap_or(u64::MAX);
        connection.more_requests = connection.more_requests.saturating_add(beyond);
    }
}

/// Where a gateway writes, and its supervisor reads what came of that.
#[derive(Debug, Clone, Default)]
pub(crate) struct Journal {
    account: Arc<Mutex<Account>>,
    traffic: Arc<Mutex<Traffic>>,
    /// What was begun and is not passed on yet.
    begun: Arc<Mutex<BegunConnections>>,
    /// Whom all of it is passed on to, if it is not kept here.
    link: Option<Link>,
}

impl Journal {
    /// One that takes in what others were told ([`Self::take_in`]).
    pub(crate) fn of_another() -> Self {
        let account = Account {
            room_for_requests: Some(REQUESTS),
            ..Account::default()
        };
        Self {
            account: Arc::new(Mutex::new(account)),
            ..Self::default()
        }
    }

    /// One of which all is passed on.
    pub(crate) fn passed_on(link: Link) -> Self {
        Self {
            link: Some(link),
            ..Self::default()
        }
    }

    /// Passes on what was told, at once if it is told as it happens: whoever is refused may end of it.
    fn told(&self) {
        if let Some(link) = &self.link {
            match self.has_news() {
                true => self.pass_on(),
                false => link.wake(),
            }
        }
    }

    /// Passes on all that was told, unless the other side has yet to take what it was told before.
    pub(crate) fn pass_on(&self) {
        let Some(link) = self.link.as_ref().filter(|link| link.has_room()) else {
            return;
        };
        let begun = std::mem::take(&mut *self.lock_begun());
        let begun = (begun != BegunConnections::default()).then_some(Report::Begun(begun));
        let entries = self.entries().into_iter();
        link.send_all(entries.map(Report::Entry).chain(begun));
    }

    /// Whether one more request is told one by one. Asked when it begins: those of connections that go on are kept, too.
    pub(crate) fn has_place_for_request(&self) -> bool {
        let mut account = self.account();
        let has_place = account.requests < REQUESTS;
        account.requests += usize::from(has_place);
        has_place
    }

    /// One that has ended. Of those that were only refused, a program that tries again and again makes any number: they
    /// are told together, so that room is left for others.
    pub(crate) fn connection(&self, connection: Connection) {
        self.note_connection(connection);
        self.told();
    }

    /// One that is allowed and begins now.
    pub(crate) fn begin(&self, host: &str, port: u16) {
        self.lock_begun().begin(host, port);
        if let Some(link) = &self.link {
            link.wake();
        }
    }

    /// One whose first bytes are a miner's.
    pub(crate) fn speak_stratum(&self, host: &str, port: u16) {
        self.lock_begun().speak_stratum(host, port);
        if let Some(link) = &self.link {
            link.wake();
        }
    }

    /// Takes in what another journal was told of.
    pub(crate) fn take_begun(&self, begun: BegunConnections) {
        self.lock_traffic().begun(begun);
    }

    /// A name that may be reached was asked for, for the first time.
    pub(crate) fn named(&self, name: &str) {
        self.lock_traffic().name(name, 0, true);
    }

    /// What was done so far, in numbers.
    pub(crate) fn traffic(&self) -> TrafficTotals {
        self.lock_traffic().totals()
    }

    /// What was among it lately.
    pub(crate) fn examples(&self, figure: MonitorFigure) -> Vec<String> {
        self.lock_traffic().examples(figure)
    }

    fn note_traffic(&self, connection: &Connection) {
        if self.link.is_some() {
            // Whoever is told counts it.
            return;
        }
        let mut traffic = self.lock_traffic();
        if let Outcome::Refused(_) = connection.outcome {
            traffic.refused(&connection.host, connection.port, connection.times);
        }
        traffic.sent(&connection.host, connection.sent);
    }

    fn note_connection(&self, mut connection: Connection) {
        self.note_traffic(&connection);
        let account = &mut *self.account();
        let requests = connection.requests.iter().map(|request| &request.outcome);
        for outcome in requests.chain([&connection.outcome]) {
            if let Outcome::Refused(reason) = outcome {
                account.refuse(&connection.host, Some(connection.port), reason, connection.times);
            }
        }
        account.bound_requests(&mut connection);
        let refusal = connection.only_refused();
        if let Some(number) = refusal.as_ref().and_then(|refusal| account.refusals.get(refusal))
            && let Some(known) = account.connections.get_mut(*number)
        {
            known.times = known.times.saturating_add(connection.times);
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
        self.refused_names(name, 1);
        self.told();
    }

    fn refused_names(&self, name: String, more: u64) {
        let mut account = self.account();
        let is_new = !account.refused_names.contains_key(&name);
        if self.link.is_none() {
            self.lock_traffic().name(&name, more, is_new);
        }
        if let Some(times) = account.refused_names.get_mut(&name) {
            *times = times.saturating_add(more);
            return;
        }
        account.refuse(&name, None, "no rule allows the name", more);
        if account.refused_names.len() < NAMES {
            account.refused_names.insert(name, more);
        } else {
            account.more_refused_names = account.more_refused_names.saturating_add(more);
        }
    }

    pub(crate) fn inbound(&self, inbound: Inbound) {
        self.note_inbound(inbound);
        self.told();
    }

    fn note_inbound(&self, inbound: Inbound) {
        let mut account = self.account();
        if account.inbound.len() < CONNECTIONS {
            account.inbound.push(inbound);
        } else {
            account.more_inbound += 1;
        }
    }

    pub(crate) fn limit(&self, hit: LimitHit) {
        self.note_limit(hit);
        self.told();
    }

    fn note_limit(&self, hit: LimitHit) {
        let mut account = self.account();
        if !account.limits_hit.contains(&hit) && account.limits_hit.len() < LIMITS {
            account.news.push(News::Limit(hit.clone()));
            account.limits_hit.push(hit);
        }
    }

    /// What happened since the last time.
    pub(crate) fn news(&self) -> Vec<News> {
        let account = &mut *self.account();
        let mut news = std::mem::take(&mut account.news);
        let count = std::mem::take(&mut account.untold);
        if count > 0 {
            let is_first = !std::mem::replace(&mut account.has_told_of_more, true);
            news.push(News::More { count, is_first });
        }
        news
    }

    pub(crate) fn secret(&self, used: SecretUse) {
        self.secrets(used, 1);
        self.told();
    }

    fn secrets(&self, used: SecretUse, more: u64) {
        let mut account = self.account();
        if let Some(times) = account.secrets.get_mut(&used) {
            *times = times.saturating_add(more);
        } else if account.secrets.len() < SECRETS {
            account.secrets.insert(used, more);
        } else {
            account.more_secrets = account.more_secrets.saturating_add(more);
        }
    }

    /// What was reached so far, gathered.
    pub(crate) fn reached(&self) -> ReachedHosts {
        let account = self.account();
        ReachedHosts::of(&account.connections, account.more_connections)
    }

    /// All that was told, which is told no more.
    pub(crate) fn take(&self) -> Account {
        std::mem::take(&mut *self.account())
    }

    /// Whether something is among what was told that is told as it happens.
    pub(crate) fn has_news(&self) -> bool {
        !self.account().news.is_empty()
    }

    /// What was told since the last time, for another journal. What was refused is remembered, so that it is no news again.
    pub(crate) fn entries(&self) -> Vec<JournalEntry> {
        let account = &mut *self.account();
        account.refusals.clear();
        account.news.clear();
        account.untold = 0;
        let more = MoreEntries {
            connections: std::mem::take(&mut account.more_connections),
            refused_names: std::mem::take(&mut account.more_refused_names),
            inbound: std::mem::take(&mut account.more_inbound),
            secrets: std::mem::take(&mut account.more_secrets),
        };
        let names = std::mem::take(&mut account.refused_names).into_iter();
        let secrets = std::mem::take(&mut account.secrets).into_iter();
        // Each is told once, so that those that were hit stay.
        let limits = account
            .limits_hit
            .get(account.limits_told..)
            .unwrap_or_default()
            .to_vec();
        account.limits_told = account.limits_hit.len();
        let connections = std::mem::take(&mut account.connections).into_iter();
        connections
            .map(JournalEntry::Connection)
            .chain(names.map(|(name, times)| JournalEntry::RefusedName { name, times }))
            .chain(
                std::mem::take(&mut account.inbound)
                    .into_iter()
                    .map(JournalEntry::Inbound),
            )
            .chain(limits.into_iter().map(JournalEntry::Limit))
            .chain(secrets.map(|(used, times)| JournalEntry::Secret { used, times }))
            .chain((more != MoreEntries::default()).then_some(JournalEntry::More(more)))
            .collect()
    }

    /// Takes in what another journal was told.
    pub(crate) fn take_in(&self, entry: JournalEntry) {
        match entry {
            JournalEntry::Connection(connection) => self.connection(connection),
            JournalEntry::RefusedName { name, times } => self.refused_names(name, times),
            JournalEntry::Inbound(inbound) => self.inbound(inbound),
            JournalEntry::Limit(hit) => self.limit(hit),
            JournalEntry::Secret { used, times } => self.secrets(used, times),
            JournalEntry::More(more) => {
                let mut account = self.account();
                let add = |count: &mut u64, more: u64| *count = count.saturating_add(more);
                add(&mut account.more_connections, more.connections);
                add(&mut account.more_refused_names, more.refused_names);
                add(&mut account.more_inbound, more.inbound);
                add(&mut account.more_secrets, more.secrets);
            }
        }
    }

    fn lock_traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_begun(&self) -> MutexGuard<'_, BegunConnections> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
