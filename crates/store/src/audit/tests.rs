use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use super::*;
use crate::testing::TestScratch;

fn event(number: usize) -> AuditEvent {
    AuditEvent {
        event: "run_started".to_owned(),
        run: Some(RunId::from_parts(1, 2)),
        data: serde_json::json!({ "number": number, "name": "a\nb\u{1b}[2J\",\"hash\":\"0" }),
    }
}

fn log_of(events: usize) -> (TestScratch, AuditLog, PathBuf) {
    let scratch = TestScratch::new();
    let audit = AuditLog::new(&scratch.state);
    for number in 0..events {
        assert_eq!(audit.append(&event(number)).unwrap(), None);
    }
    let path = audit.path();
    (scratch, audit, path)
}

fn bad_line(audit: &AuditLog) -> Option<u64> {
    let report = audit.verify().unwrap();
    assert_eq!(report.ok, report.first_bad.is_none());
    report.first_bad.map(|bad| bad.line)
}

fn head(path: &std::path::Path) -> PathBuf {
    path.with_file_name("audit.head")
}

#[test]
fn an_empty_log_is_fine() {
    let (_scratch, audit, _) = log_of(0);
    assert_eq!(
        audit.verify().unwrap(),
        VerifyReport {
            lines: 0,
            ok: true,
            torn: 0,
            moved_away: 0,
            is_archive: false,
            first_bad: None
        }
    );
    assert_eq!(audit.show().unwrap().count(), 0);
}

#[test]
fn lines_are_chained_and_shown() {
    let (_scratch, audit, path) = log_of(3);
    let report = audit.verify().unwrap();
    assert!(report.ok && report.lines == 3, "{report:?}");
    let lines: Vec<_> = audit.show().unwrap().map(Result::unwrap).collect();
    assert_eq!(lines.iter().map(|line| line.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(lines[2].prev, lines[1].hash);
    assert_eq!(lines[1].data, event(1).data);
    assert_eq!(
        fs::read(&path).unwrap().iter().filter(|byte| **byte == b'\n').count(),
        3
    );
    assert!(!fs::read(&path).unwrap().contains(&0x1b));
}

#[test]
fn a11_every_change_is_found() {
    type Tamper = fn(&mut Vec<Vec<u8>>);
    let cases: [(&str, Tamper, u64); 7] = [
        ("a changed byte", |lines| lines[1][10] ^= 1, 2),
        (
            "a changed name",
            |lines| {
                lines[1] = String::from_utf8(lines[1].clone())
                    .unwrap()
                    .replace("run_started", "run_ended")
                    .into_bytes()
            },
            2,
        ),
        ("a removed line", |lines| drop(lines.remove(1)), 2),
        ("a removed first line", |lines| drop(lines.remove(0)), 1),
        ("swapped lines", |lines| lines.swap(1, 2), 2),
        ("a repeated line", |lines| lines.insert(1, lines[1].clone()), 3),
        ("a line cut off the end", |lines| drop(lines.pop()), 4),
    ];
    for (what, tamper, expected) in cases {
        let (_scratch, audit, path) = log_of(4);
        let mut lines: Vec<Vec<u8>> = fs::read(&path)
            .unwrap()
            .split_inclusive(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        tamper(&mut lines);
        fs::write(&path, lines.concat()).unwrap();
        assert_eq!(bad_line(&audit), Some(expected), "{what}");
        // It stays found, whatever is appended.
        audit.append(&event(9)).unwrap();
        audit.append(&event(9)).unwrap();
        assert!(bad_line(&audit).is_some(), "{what}, later");
    }
}

#[test]
fn a_line_cut_short_by_a_crash_is_recovered_and_is_no_tampering() {
    for kept in [1, 40, 200] {
        let (_scratch, audit, path) = log_of(2);
        let line = fs::read(&path).unwrap()[..kept].to_vec();
        fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(&line)
            .unwrap();
        let report = audit.verify().unwrap();
        assert!(report.ok && report.torn == 1, "{report:?}");
        assert_eq!(audit.append(&event(2)).unwrap(), Some(LogRecovery::TornLine));
        let report = audit.verify().unwrap();
        assert_eq!(
            report,
            VerifyReport {
                lines: 4,
                ok: true,
                torn: 1,
                moved_away: 0,
                is_archive: false,
                first_bad: None
            }
        );
        assert_eq!(audit.append(&event(3)).unwrap(), None);
        // What was torn is vouched for byte by byte.
        let mut bytes = fs::read(&path).unwrap();
        let torn = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .take(2)
            .map(<[u8]>::len)
            .sum::<usize>();
        bytes[torn] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(bad_line(&audit), Some(3));
    }
}

#[test]
fn a_writer_that_died_before_the_head_is_no_tampering() {
    for events in [1, 3] {
        let (_scratch, audit, path) = log_of(events - 1);
        let before = fs::read(head(&path)).unwrap_or_default();
        audit.append(&event(events)).unwrap();
        fs::write(head(&path), before).unwrap();
        assert_eq!(bad_line(&audit), None);
        assert_eq!(audit.append(&event(9)).unwrap(), None);
        assert_eq!(audit.verify().unwrap().lines, u64::try_from(events).unwrap() + 1);
    }
}

#[test]
fn a_torn_line_whose_recovery_was_written_without_the_head_goes_on() {
    let (_scratch, audit, path) = log_of(2);
    let before = fs::read(head(&path)).unwrap();
    fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"{\"seq\":")
        .unwrap();
    audit.append(&event(2)).unwrap();
    fs::write(head(&path), before).unwrap();
    audit.append(&event(3)).unwrap();
    let report = audit.verify().unwrap();
    assert_eq!(
        report,
        VerifyReport {
            lines: 5,
            ok: true,
            torn: 1,
            moved_away: 0,
            is_archive: false,
            first_bad: None
        }
    );
}

#[test]
fn a_head_that_was_lost_or_cut_back_is_reported() {
    let (_scratch, audit, path) = log_of(3);
    fs::remove_file(head(&path)).unwrap();
    assert_eq!(bad_line(&audit), Some(4));
    assert_eq!(audit.append(&event(3)).unwrap(), Some(LogRecovery::HeadLost));
    assert_eq!(bad_line(&audit), Some(4));
    let (_scratch, audit, path) = log_of(3);
    fs::write(&path, "").unwrap();
    assert_eq!(bad_line(&audit), Some(1));
    assert_eq!(audit.append(&event(3)).unwrap(), Some(LogRecovery::Truncated));
    assert_eq!(bad_line(&audit), Some(1));
}

#[test]
fn data_that_is_too_large_is_summed_up() {
    let (_scratch, audit, _) = log_of(1);
    let data = serde_json::json!({ "argv": "x".repeat(3 << 20) });
    audit.append(&AuditEvent { data, ..event(0) }).unwrap();
    assert!(audit.verify().unwrap().ok);
    let last = audit.show().unwrap().last().unwrap().unwrap();
    assert_eq!(last.data["omitted_bytes"], (3 << 20) + 11);
}

#[test]
fn many_writers_make_one_chain() {
    let (scratch, audit, _) = log_of(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let state = scratch.state.clone();
            scope.spawn(move || {
                let audit = AuditLog::new(&state);
                (0..25).for_each(|number| assert_eq!(audit.append(&event(number)).unwrap(), None));
            });
        }
    });
    assert_eq!(
        audit.verify().unwrap(),
        VerifyReport {
            lines: 100,
            ok: true,
            torn: 0,
            moved_away: 0,
            is_archive: false,
            first_bad: None
        }
    );
}

/// The file that the log was set aside as.
fn rotated(audit: &AuditLog) -> PathBuf {
    audit.rotate().unwrap().unwrap()
}

#[test]
fn a_last_line_that_was_changed_is_named_itself() {
    for (at, expected) in [(0, 1), (2, 3)] {
        let (_scratch, audit, path) = log_of(3);
        let mut lines: Vec<Vec<u8>> = fs::read(&path)
            .unwrap()
            .split_inclusive(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        lines[at][10] ^= 1;
        fs::write(&path, lines.concat()).unwrap();
        assert_eq!(bad_line(&audit), Some(expected));
    }
    // So is one of which the rest is missing.
    let (_scratch, audit, path) = log_of(3);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
    assert_eq!(bad_line(&audit), Some(3));
}

#[test]
fn a_log_is_set_aside_and_the_chain_goes_on_over_files() {
    let (scratch, audit, path) = log_of(3);
    assert!(AuditLog::new(&TestScratch::new().state).rotate().unwrap().is_none());
    let first = rotated(&audit);
    assert_eq!(first.file_name().unwrap(), "audit-000001.jsonl");
    audit.append(&event(4)).unwrap();
    let second = rotated(&audit);
    assert_eq!(audit.append(&event(5)).unwrap(), None);
    let report = audit.verify().unwrap();
    // Three, one and one, and one at each end and each beginning.
    assert!(report.ok && report.lines == 9 && report.moved_away == 0, "{report:?}");
    let all: Vec<_> = audit.show().unwrap().map(Result::unwrap).collect();
    assert_eq!(
        all.iter().map(|line| line.seq).collect::<Vec<_>>(),
        (1..=9).collect::<Vec<_>>()
    );

    // What was set aside is as little to be changed as the rest.
    let kept = fs::read(&second).unwrap();
    let mut changed = kept.clone();
    changed[10] ^= 1;
    fs::write(&second, &changed).unwrap();
    let bad = audit.verify().unwrap().first_bad.unwrap();
    assert_eq!((bad.file.as_deref(), bad.line), (Some("audit-000005.jsonl"), 1));
    // The last line of a file is named itself, not what follows in the next.
    let mut changed = kept.clone();
    let at = changed.len() - 90;
    changed[at] ^= 1;
    fs::write(&second, &changed).unwrap();
    let bad = audit.verify().unwrap().first_bad.unwrap();
    assert_eq!((bad.file.as_deref(), bad.line), (Some("audit-000005.jsonl"), 3));
    fs::write(&second, &kept).unwrap();

    // The oldest may be moved away, and none between.
    fs::remove_file(&first).unwrap();
    let report = audit.verify().unwrap();
    assert!(report.ok && report.lines == 5 && report.moved_away == 4, "{report:?}");
    fs::rename(&second, &first).unwrap();
    assert!(audit.verify().unwrap().ok);
    fs::remove_file(&first).unwrap();
    assert_eq!(audit.verify().unwrap().moved_away, 7);
    // What was moved away is verified by itself.
    let elsewhere = TestScratch::new();
    let archive = AuditLog::new(&elsewhere.state);
    fs::write(archive.path().with_file_name("audit-000005.jsonl"), &kept).unwrap();
    let report = archive.verify().unwrap();
    assert!(report.ok && report.lines == 3 && report.moved_away == 4, "{report:?}");
    assert!(report.is_archive);
    let cut: Vec<u8> = kept
        .split_inclusive(|byte| *byte == b'\n')
        .take(2)
        .flatten()
        .copied()
        .collect();
    fs::write(archive.path().with_file_name("audit-000005.jsonl"), cut).unwrap();
    assert!(!archive.verify().unwrap().ok);
    // Where it ended is not to be forgotten because a new file has begun.
    let (begun, head) = (fs::read(&path).unwrap(), head(&path));
    let known = fs::read(&head).unwrap();
    let one_line: Vec<u8> = begun.split_inclusive(|byte| *byte == b'\n').next().unwrap().to_vec();
    for lost in [None, Some("")] {
        fs::write(&path, &one_line).unwrap();
        match lost {
            None => fs::remove_file(&head).unwrap(),
            Some(empty) => fs::write(&head, empty).unwrap(),
        }
        assert!(!audit.verify().unwrap().ok, "{lost:?}");
        fs::write(&head, &known).unwrap();
    }
    fs::write(&path, &begun).unwrap();
    let report = audit.verify().unwrap();
    assert!(report.ok && !report.is_archive, "{report:?}");
    // Nor is the current one what it was not.
    fs::write(&path, &kept).unwrap();
    assert!(!audit.verify().unwrap().ok);
    drop(scratch);
}

#[test]
fn a_crash_while_a_log_is_set_aside_loses_nothing() {
    type Crash = fn(&std::path::Path, &std::path::Path);
    let crashes: [(&str, Crash); 4] = [
        ("before it was renamed", |path, aside| {
            fs::rename(path, path.with_file_name("audit.next")).unwrap();
            fs::rename(aside, path).unwrap();
        }),
        ("while the next one was written", |path, aside| {
            fs::write(path.with_file_name("audit.next"), b"{\"seq\":").unwrap();
            fs::rename(aside, path).unwrap();
        }),
        ("before the next one had its name", |path, _| {
            fs::rename(path, path.with_file_name("audit.next")).unwrap();
        }),
        ("not at all", |_, _| {}),
    ];
    for (what, crash) in crashes {
        let (_scratch, audit, path) = log_of(2);
        audit.append(&event(2)).unwrap();
        let before = fs::read(head(&path)).unwrap();
        let aside = rotated(&audit);
        let after = fs::read(head(&path)).unwrap();
        crash(&path, &aside);
        // The head is written between the two names.
        for said in [&before, &after] {
            if what == "before the next one had its name" {
                fs::write(head(&path), said).unwrap();
            }
        }
        if what.starts_with("before it") || what.starts_with("while") {
            let line = fs::read_to_string(&path).unwrap();
            let last = line.lines().last().unwrap();
            let last: AuditLine = serde_json::from_str(last).unwrap();
            let text = serde_json::json!({ "seq": last.seq, "hash": last.hash, "length": line.len() }).to_string();
            fs::write(head(&path), format!("{text:160}\n")).unwrap();
        }
        assert_eq!(bad_line(&audit), None, "{what}");
        assert_eq!(audit.append(&event(3)).unwrap(), None, "{what}");
        let report = audit.verify().unwrap();
        assert!(report.ok && report.moved_away == 0, "{what}: {report:?}");
        rotated(&audit);
        assert_eq!(bad_line(&audit), None, "{what}, later");
    }
}
