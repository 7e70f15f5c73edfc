//! How much is kept, and of whom.

use super::*;

#[test]
fn lines_and_samples_are_bounded() {
    let place = Place::new();
    let registry = place.open().unwrap();
    registry.apply(vec![add(&sandbox("i1")), add(&sandbox("i2"))]).unwrap();
    let many = 2 * usize::try_from(schema::KEPT_LOGS).unwrap();
    for start in (0..many).step_by(500) {
        let batch = (start..start + 500).flat_map(|number| {
            let number_u64 = u64::try_from(number).unwrap();
            [log("i1", &number.to_string()), metric("i1", number_u64)]
        });
        registry.apply(batch.collect()).unwrap();
    }
    registry.apply(vec![log("i2", "other"), metric("i2", 0)]).unwrap();
    let lines = registry.logs("i1").unwrap();
    assert_eq!((lines.len(), lines[0].line.as_str()), (many / 2, "1000"));
    let samples = registry.metrics("i1", 0, i64::MAX).unwrap();
    assert_eq!(
        (samples.len(), samples[0].at_ms, samples[0].memory_used),
        (1000, 1000, u64::MAX)
    );
    assert_eq!(registry.metrics("i1", 1100, 1101).unwrap().len(), 2);
    assert_eq!(registry.logs("i2").unwrap().len(), 1);
}

#[test]
fn one_keys_events_and_lines_do_not_drive_out_anothers() {
    let place = Place::new();
    let registry = place.open().unwrap();
    let of = |id: &str, key: Option<&str>| SandboxRow {
        key_id: key.map(str::to_owned),
        ..sandbox(id)
    };
    let noted = |id: &str, key: Option<&str>| match event(id) {
        Change::AddEvent(row) => Change::AddEvent(EventRow {
            key_id: key.map(str::to_owned),
            ..row
        }),
        other => other,
    };
    let (mine, theirs) = (Some("k1"), Some("k2"));
    registry
        .apply(vec![add(&of("i1", mine)), add(&of("i2", None)), add(&of("i3", theirs))])
        .unwrap();
    let first = vec![noted("i1", mine), log("i1", "a"), noted("i2", None), log("i2", "b")];
    registry.apply(first).unwrap();
    // As after a flood of lines of one sandbox, of which most are gone again, and as many events as one key may have.
    let other = schema::open_file(&place.file()).unwrap();
    let counting = "WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < ?1)";
    let flood = format!(
        "{counting} INSERT INTO events (key_id, sandbox, template, at_ms, kind)
            SELECT 'k2', 'i3', 'base', 1, 'updated' FROM counted"
    );
    other.execute(&flood, [schema::KEPT_EVENTS_OF_KEY]).unwrap();
    let gone = "UPDATE sqlite_sequence SET seq = seq + 200000";
    other.execute(gone, []).unwrap();
    let last = (0..3).flat_map(|_| [noted("i3", theirs), log("i3", "x")]);
    registry.apply(last.collect()).unwrap();
    let left = |id: &str| registry.logs(id).unwrap().len();
    assert_eq!((left("i1"), left("i2"), left("i3")), (1, 1, 3));
    let kept = usize::try_from(schema::KEPT_EVENTS_OF_KEY).unwrap();
    assert_eq!(events(&registry), kept + 2);
    // Above what is kept of all, the oldest go of the key that has most.
    let more = format!(
        "{counting} INSERT INTO logs (sandbox, at_ms, level, line, key_id)
            SELECT 's' || (n % 200), 1, 'info', 'y', 'k2' FROM counted"
    );
    other.execute(&more, [schema::KEPT_LOGS_OF_ALL - 5]).unwrap();
    let full = vec![log("i1", "c"), log("i2", "d")];
    registry.apply(full).unwrap();
    assert_eq!((left("i1"), left("i2"), left("i3")), (2, 2, 1));
    let third = format!(
        "{counting} INSERT INTO events (key_id, sandbox, template, at_ms, kind)
            SELECT 'k3', 'i4', 'base', 1, 'updated' FROM counted"
    );
    other
        .execute(&third, [schema::KEPT_EVENTS - i64::try_from(kept).unwrap() - 2])
        .unwrap();
    registry.apply(vec![noted("i1", mine), noted("i2", None)]).unwrap();
    let by = |key_id| {
        let wanted = EventsQuery {
            key_id,
            limit: u32::MAX,
            ..EventsQuery::default()
        };
        registry.events(&wanted).unwrap().len()
    };
    assert_eq!(
        (by(theirs), by(Some("k3")), by(mine), by(None)),
        (kept - 2, kept - 2, 2, 2 * kept)
    );
    // What goes with its sandbox is counted no more.
    registry.apply(vec![Change::ForgetLogs { ended_ms: 0 }]).unwrap();
    assert_eq!((left("i1"), left("i2"), left("i3"), left("s7")), (2, 2, 1, 0));
    let counted = "SELECT (SELECT count(*) FROM logs) = (SELECT sum(number) FROM tallies WHERE kind = 'logs')";
    assert!(other.query_row(counted, [], |row| row.get::<_, bool>(0)).unwrap());
}

#[test]
fn of_the_sandboxes_that_had_a_name_the_last_of_each_key_is_known() {
    let place = Place::new();
    let registry = place.open().unwrap();
    let happened = |id: &str, key: &str, name: Option<&str>, kind| match event(id) {
        Change::AddEvent(row) => Change::AddEvent(EventRow {
            key_id: Some(key.to_owned()),
            name: name.map(str::to_owned),
            kind,
            ..row
        }),
        other => other,
    };
    let (killed, web) = (EventKind::Killed, Some("web"));
    registry
        .apply(vec![
            happened("i1", "k1", web, killed),
            happened("i2", "k2", web, EventKind::Died),
            happened("i3", "k1", web, killed),
            happened("i4", "k1", web, EventKind::Created),
            happened("i5", "k1", Some("other"), killed),
            happened("i6", "k1", None, killed),
        ])
        .unwrap();
    let ids = |name, key| {
        let ends = registry.ends_of_name(name, key).unwrap();
        ends.into_iter().map(|end| end.sandbox).collect::<Vec<_>>()
    };
    assert_eq!(ids("web", None), ["i3", "i2"]);
    assert_eq!(ids("web", Some("k2")), ["i2"]);
    assert_eq!(ids("other", Some("k2")), [""; 0]);
}
