use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::log_level::LogLevel;
use offleash_store::HostIdentity;
use offleash_supervisor::clock::UnixMs;
use proptest::prelude::*;

use super::*;

mod kept;

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn state(&self) -> StateDirectory {
        let path = self.directory.path().join("state");
        StateDirectory::open(Some(&path), &HostIdentity::of_this_process()).unwrap()
    }

    fn open(&self) -> Result<Registry, RegistryError> {
        Registry::open(&self.state())
    }

    fn file(&self) -> PathBuf {
        self.state().path().join(FILE)
    }
}

fn sandbox(id: &str) -> SandboxRow {
    SandboxRow {
        id: id.to_owned(),
        key_id: Some("k1".into()),
        state: SandboxState::Creating,
        template: "base".into(),
        spec: "{}".into(),
        metadata: BTreeMap::from([("a".into(), "b\0'\"%".into())]),
        started_ms: 1,
        end_ms: i64::MAX,
        auto_pause: true,
        auto_resume: false,
        access_token: Some("t".into()),
        traffic_token: None,
        supervisor: Some(SupervisorProcess {
            pid: 7,
            start_ticks: u64::MAX,
            boot: Some("0badcafe-0000-4000-8000-00000000000f".parse().unwrap()),
        }),
        generation: 0,
        idempotency_key: None,
    }
}

fn add(row: &SandboxRow) -> Change {
    Change::AddSandbox(Box::new(row.clone()))
}

fn set(row: &SandboxRow) -> Change {
    Change::SetSandbox(Box::new(row.clone()))
}

fn log(sandbox: &str, line: &str) -> Change {
    Change::AddLog(LogRow {
        number: 0,
        sandbox: sandbox.to_owned(),
        at_ms: 1,
        level: LogLevel::Info,
        line: line.to_owned(),
    })
}

fn event(sandbox: &str) -> Change {
    Change::AddEvent(EventRow {
        number: 0,
        key_id: Some("k1".into()),
        sandbox: sandbox.to_owned(),
        name: None,
        template: "base".into(),
        at_ms: 1,
        kind: EventKind::Created,
        detail: None,
    })
}

fn metric(sandbox: &str, number: u64) -> Change {
    Change::AddMetric {
        sandbox: sandbox.to_owned(),
        number,
        sample: MetricRow {
            at_ms: i64::try_from(number).unwrap(),
            cpu_milli: 2000,
            cpu_used_pct: 12.5,
            memory_used: u64::MAX,
            memory_total: 1,
            memory_cache: 2,
            disk_used: 3,
            disk_total: 4,
        },
    }
}

fn key(id: &str, key: &ApiKey) -> KeyRow {
    KeyRow {
        id: id.to_owned(),
        name: "laptop".into(),
        prefix: key.prefix().to_owned(),
        hash: key.hash(),
        scopes: Scopes(vec![Scope::Create]),
        tools: Some(vec!["pay where amount < 5 calls 1".parse().unwrap()]),
        quota: Quota {
            sandboxes: Some(3),
            ..Quota::default()
        },
        created_ms: 1,
        revoked_ms: None,
    }
}

#[test]
fn what_was_written_is_there_when_it_is_opened_again() {
    let place = Place::new();
    let mut row = sandbox("i1");
    let registry = place.open().unwrap();
    registry
        .apply(vec![add(&row), event("i1"), log("i1", "a line")])
        .unwrap();
    row.state = SandboxState::Running;
    row.generation = 1;
    registry.apply(vec![set(&row)]).unwrap();
    drop(registry);
    let registry = place.open().unwrap();
    assert_eq!(registry.sandboxes().unwrap(), [row]);
    assert_eq!(registry.logs("i1").unwrap()[0].line, "a line");
    let mode = std::fs::metadata(place.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn a_batch_is_applied_as_a_whole_and_does_not_disturb_others() {
    let place = Place::new();
    let registry = place.open().unwrap();
    let (sender, outcomes) = std::sync::mpsc::channel();
    let stale = SandboxRow {
        generation: 5,
        ..sandbox("i1")
    };
    for batch in [
        vec![add(&sandbox("i1"))],
        vec![add(&sandbox("i2")), add(&sandbox("i1"))],
        vec![event("i3"), set(&stale)],
        vec![add(&sandbox("i4"))],
    ] {
        let sender = sender.clone();
        registry.submit(batch, Box::new(move |outcome| sender.send(outcome).unwrap()));
    }
    let outcomes: Vec<_> = outcomes.iter().take(4).collect();
    assert!(outcomes[0].is_ok() && outcomes[3].is_ok());
    assert!(matches!(outcomes[1], Err(RegistryError::Exists { .. })));
    assert!(matches!(outcomes[2], Err(RegistryError::Stale { .. })));
    let mut ids: Vec<String> = registry.sandboxes().unwrap().into_iter().map(|row| row.id).collect();
    ids.sort();
    assert_eq!(ids, ["i1", "i4"]);
    assert_eq!(events(&registry), 0);
    assert_eq!(registry.waiting(), 0);
}

fn events(registry: &Registry) -> usize {
    let wanted = EventsQuery {
        limit: u32::MAX,
        ..EventsQuery::default()
    };
    registry.events(&wanted).unwrap().len()
}

#[test]
fn samples_go_with_their_sandbox_and_events_and_lines_stay_for_a_time() {
    let place = Place::new();
    let registry = place.open().unwrap();
    let ended = |id: &str, at_ms: UnixMs| match event(id) {
        Change::AddEvent(row) => Change::AddEvent(EventRow {
            kind: EventKind::Died,
            at_ms,
            detail: Some("{}".into()),
            ..row
        }),
        other => other,
    };
    let all = ["i1", "i2", "i3"];
    for id in all {
        registry
            .apply(vec![add(&sandbox(id)), log(id, "x"), metric(id, 1), event(id)])
            .unwrap();
    }
    assert_eq!(registry.end_of("i1").unwrap(), None);
    let gone = |id: &str, at_ms| vec![Change::RemoveSandbox(id.into()), ended(id, at_ms)];
    registry.apply(gone("i1", 1_000)).unwrap();
    registry.apply(gone("i2", 2_000)).unwrap();
    // Late ones, and what nobody knows of.
    let late = vec![
        log("i1", "late"),
        metric("i1", 2),
        Change::RemoveSandbox("i1".into()),
        log("i4", "y"),
    ];
    registry.apply(late).unwrap();
    assert_eq!(registry.metrics("i1", 0, i64::MAX).unwrap(), []);
    assert_eq!((registry.logs("i1").unwrap().len(), events(&registry)), (2, 5));
    assert_eq!(registry.end_of("i2").unwrap().unwrap().at_ms, 2_000);
    registry.apply(vec![Change::ForgetLogs { ended_ms: 2_000 }]).unwrap();
    let left = |id: &str| registry.logs(id).unwrap().len();
    assert_eq!((left("i1"), left("i2"), left("i3"), left("i4")), (0, 1, 1, 0));
    registry.apply(vec![Change::RemoveLogs("i3".into())]).unwrap();
    assert_eq!(left("i3"), 0);
}

#[test]
fn a_request_makes_one_sandbox() {
    let place = Place::new();
    let registry = place.open().unwrap();
    let of = |id: &str, key_id: &str| SandboxRow {
        key_id: Some(key_id.to_owned()),
        idempotency_key: Some("once".into()),
        ..sandbox(id)
    };
    registry
        .apply(vec![add(&of("i1", "k1")), add(&of("i2", "k2"))])
        .unwrap();
    let again = registry.apply(vec![add(&of("i3", "k1"))]);
    assert!(matches!(again, Err(RegistryError::Exists { .. })), "{again:?}");
    registry.apply(vec![add(&sandbox("i4")), add(&sandbox("i5"))]).unwrap();
}

#[test]
fn keys_are_found_by_themselves_alone_and_not_after_they_were_revoked() {
    let place = Place::new();
    let registry = place.open().unwrap();
    let (mine, other) = (ApiKey::generate().unwrap(), ApiKey::generate().unwrap());
    assert_ne!(mine.reveal(), other.reveal());
    registry
        .apply(vec![Change::AddKey(Box::new(key("k1", &mine)))])
        .unwrap();
    assert_eq!(registry.authenticate(&mine).unwrap(), Some(key("k1", &mine)));
    assert_eq!(registry.key("k1").unwrap(), Some(key("k1", &mine)));
    assert_eq!(registry.key("k2").unwrap(), None);
    assert_eq!(registry.authenticate(&other).unwrap(), None);
    let twin: ApiKey = format!("{}{}", mine.prefix(), "0".repeat(32)).parse().unwrap();
    assert_eq!(registry.authenticate(&twin).unwrap(), None);
    let revoke = || {
        let id = "k1".to_owned();
        registry.apply(vec![Change::RevokeKey { id, at_ms: 9 }])
    };
    // Those of a valid key live.
    let end = || Change::EndSandboxesOf { key: "k1".to_owned() };
    assert!(matches!(registry.apply(vec![end()]), Err(RegistryError::Stale { .. })));
    assert_eq!(registry.keys_without_sandboxes().unwrap(), Vec::<String>::new());
    revoke().unwrap();
    assert_eq!(registry.authenticate(&mine).unwrap(), None);
    assert_eq!(registry.keys().unwrap()[0].revoked_ms, Some(9));
    assert!(matches!(revoke(), Err(RegistryError::Stale { .. })));
    registry.apply(vec![end()]).unwrap();
    assert_eq!(registry.keys_without_sandboxes().unwrap(), ["k1"]);
    assert!(!format!("{mine:?}").contains(&mine.reveal()[4..]));
}

#[test]
fn text_that_is_no_key_is_refused() {
    for bad in [
        "",
        "e2b_",
        "e2b_xyz",
        &format!("E2B_{}", "0".repeat(40)),
        &format!("e2b_{}", "A".repeat(40)),
    ] {
        assert_eq!(bad.parse::<ApiKey>(), Err(BadApiKey), "{bad}");
    }
    assert!(format!("e2b_{}", "0a".repeat(20)).parse::<ApiKey>().is_ok());
}

#[test]
fn another_process_may_write_meanwhile() {
    let place = Place::new();
    let (one, other) = (place.open().unwrap(), place.open().unwrap());
    for number in 0..20 {
        let registry = if number % 2 == 0 { &one } else { &other };
        registry.apply(vec![add(&sandbox(&format!("i{number}")))]).unwrap();
    }
    assert_eq!(
        (one.sandboxes().unwrap().len(), other.sandboxes().unwrap().len()),
        (20, 20)
    );
}

#[test]
fn what_is_not_ours_or_broken_is_refused_and_left_as_it_is() {
    let foreign = {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let connection = Connection::open(&path).unwrap();
        connection
            .execute_batch("CREATE TABLE theirs (x); PRAGMA user_version = 1")
            .unwrap();
        drop(connection);
        std::fs::read(path).unwrap()
    };
    for contents in [b"not a database, and long enough to be none".repeat(100), foreign] {
        let place = Place::new();
        place.state();
        std::fs::write(place.file(), &contents).unwrap();
        let opened = place.open();
        assert!(matches!(opened, Err(RegistryError::Damaged { .. })), "{opened:?}");
        assert_eq!(std::fs::read(place.file()).unwrap(), contents);
    }
}

#[test]
fn pages_that_were_overwritten_are_noticed() {
    let place = Place::new();
    let registry = place.open().unwrap();
    let rows = (0..200).map(|number| add(&sandbox(&format!("i{number}"))));
    registry.apply(rows.collect()).unwrap();
    drop(registry);
    let mut contents = std::fs::read(place.file()).unwrap();
    let middle = contents.len() / 2;
    contents[4096..middle].fill(0xa5);
    std::fs::write(place.file(), &contents).unwrap();
    let opened = place.open();
    assert!(matches!(opened, Err(RegistryError::Damaged { .. })), "{opened:?}");
    assert_eq!(std::fs::read(place.file()).unwrap(), contents);
}

#[test]
fn another_schema_is_left_alone() {
    for number in [0, 2, 99] {
        let place = Place::new();
        drop(place.open().unwrap());
        let connection = Connection::open(place.file()).unwrap();
        connection.pragma_update(None, "user_version", number).unwrap();
        drop(connection);
        let error = place.open().unwrap_err();
        assert!(
            matches!(error, RegistryError::OtherSchema { found, known: 1 } if found == number),
            "{error:?}"
        );
        assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Unsupported, true));
    }
}

#[test]
fn a_boot_is_read_as_it_is_written() {
    let text = "0badcafe-0000-4000-8000-00000000000f";
    let boot: BootId = text.parse().unwrap();
    assert_eq!(boot.to_string(), text);
    for bad in [
        "",
        "0badcafe0000400080000000000000000f",
        "0badcafe-0000-4000-8000-00000000000",
        "0badcafe-0000-4000-8000-00000000000g",
        "+badcafe-0000-4000-8000-00000000000f",
        "0badcafe-0000-4000-8000-00000000000f\n",
    ] {
        assert!(bad.parse::<BootId>().is_err(), "{bad:?}");
    }
}

#[test]
fn a_full_disk_and_a_read_only_one_have_names() {
    let place = Place::new();
    let registry = place.open().unwrap();
    registry.apply(vec![add(&sandbox("i1"))]).unwrap();
    drop(registry);
    // As many pages as there are, as when the disk has no more.
    let mut connection = schema::open_file(&place.file()).unwrap();
    schema::prepare(&mut connection).unwrap();
    let pages: i64 = connection
        .pragma_query_value(None, "page_count", |row| row.get(0))
        .unwrap();
    connection.pragma_update(None, "max_page_count", pages).unwrap();
    let full = Registry {
        path: place.file(),
        reader: Mutex::new(connect(&place.file(), OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap()),
        writer: RegistryWriter::start(connection).unwrap(),
    };
    let big = SandboxRow {
        spec: "x".repeat(1 << 20),
        ..sandbox("i2")
    };
    let error = full.apply(vec![add(&big)]).unwrap_err();
    assert!(matches!(error, RegistryError::Full), "{error:?}");
    assert_eq!((error.kind(), error.hint().is_some()), (ErrorKind::Exhausted, true));
    // What was there is there, and what needs no space can be done.
    assert_eq!(full.sandboxes().unwrap(), [sandbox("i1")]);
    full.apply(vec![Change::RemoveSandbox("i1".into())]).unwrap();
    drop(full);

    let connection = connect(&place.file(), OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    connection.pragma_update(None, "query_only", true).unwrap();
    let error = making::make(&connection, &add(&sandbox("i3"))).unwrap_err();
    assert!(matches!(error, RegistryError::ReadOnly), "{error:?}");
}

/// One step of a history.
#[derive(Debug, Clone)]
enum Step {
    Add(u8),
    Set(u8, i64),
    Remove(u8),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6_u8).prop_map(Step::Add),
        (0..6_u8, any::<i64>()).prop_map(|(id, end)| Step::Set(id, end)),
        (0..6_u8).prop_map(Step::Remove),
        Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn it_holds_what_a_map_would(steps in prop::collection::vec(step(), 1..40)) {
        let place = Place::new();
        let mut registry = place.open().unwrap();
        let mut model: BTreeMap<String, SandboxRow> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add(id) => {
                    let row = sandbox(&format!("i{id}"));
                    let added = registry.apply(vec![add(&row)]);
                    prop_assert_eq!(added.is_ok(), !model.contains_key(&row.id));
                    model.entry(row.id.clone()).or_insert(row);
                }
                Step::Set(id, end_ms) => {
                    let id = format!("i{id}");
                    let mut row = model.get(&id).cloned().unwrap_or_else(|| sandbox(&id));
                    row.end_ms = end_ms;
                    row.generation += 1;
                    let changed = registry.apply(vec![set(&row)]);
                    prop_assert_eq!(changed.is_ok(), model.contains_key(&id));
                    if changed.is_ok() {
                        model.insert(id, row);
                    }
                }
                Step::Remove(id) => {
                    let id = format!("i{id}");
                    registry.apply(vec![Change::RemoveSandbox(id.clone())]).unwrap();
                    model.remove(&id);
                }
                Step::Reopen => {
                    drop(registry);
                    registry = place.open().unwrap();
                }
            }
        }
        let mut rows = registry.sandboxes().unwrap();
        rows.sort_by(|left, right| left.id.cmp(&right.id));
        prop_assert_eq!(rows, model.into_values().collect::<Vec<_>>());
    }
}
