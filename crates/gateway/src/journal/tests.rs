//! What is told together, what is told as it happens, and what passes from one journal to another.

use offleash_core::approval::ApprovalAnswer;

use super::*;
use crate::journal_entries::Request;

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
    let asked = Some(ApprovalAnswer::Denied);
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

#[test]
fn what_one_journal_tells_another_comes_to_the_same_in_any_pieces() {
    let (told, taken) = (Journal::default(), Journal::of_another());
    let pass_on = || told.entries().into_iter().for_each(|entry| taken.take_in(entry));
    for number in 0..3 {
        for _ in 0..100 {
            told.connection(accepted("a.example"));
            told.refused_name("b.example".to_owned());
        }
        if number < 2 {
            pass_on();
            assert!(!told.has_news());
        }
    }
    told.connection(Connection {
        outcome: Outcome::Allowed,
        ..accepted("c.example")
    });
    told.secret(SecretUse {
        secret: "KEY".to_owned(),
        host: "c.example".to_owned(),
        port: 443,
        refused: None,
    });
    pass_on();
    pass_on();
    assert_eq!(taken.news().len(), 2);
    let account = taken.take();
    let times: Vec<u64> = account.connections.iter().map(|one| one.times).collect();
    assert_eq!((times, account.refused_names["b.example"]), (vec![300, 1], 300));
    assert_eq!(account.secrets.values().sum::<u64>(), 1);
}

#[test]
fn requests_beyond_those_that_are_told_are_counted_whoever_says_how_many_there_are() {
    let taken = Journal::of_another();
    let request = Request {
        method: "GET".to_owned(),
        path: "/".to_owned(),
        status: None,
        outcome: Outcome::Allowed,
        rule: None,
        secrets: Vec::new(),
        sent: 0,
        received: 0,
        duration: Duration::ZERO,
    };
    for _ in 0..3 {
        taken.take_in(JournalEntry::Connection(Connection {
            requests: vec![request.clone(); REQUESTS / 2],
            ..accepted("a.example")
        }));
    }
    let account = taken.take();
    let told: Vec<usize> = account.connections.iter().map(|one| one.requests.len()).collect();
    assert_eq!(told.iter().sum::<usize>(), REQUESTS);
    let more: u64 = account.connections.iter().map(|one| one.more_requests).sum();
    assert_eq!(more, u64::try_from(REQUESTS / 2).unwrap());
}
