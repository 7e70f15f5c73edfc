use std::fs;

use super::*;

const MIB: u64 = 1 << 20;

fn free(bytes: u64, inodes: u64) -> FreeSpace {
    FreeSpace { bytes, inodes }
}

fn room(bytes: u64) -> LayerRoom {
    LayerRoom {
        bytes: Some(bytes),
        inodes: Some(100_000),
    }
}

/// A layer on a file system that is on a disk, as those of sandboxes are.
fn layer() -> (tempfile::TempDir, LayerMeter) {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::create_dir(directory.path().join("upper")).unwrap();
    let meter = LayerMeter::new(directory.path()).unwrap();
    (directory, meter)
}

#[test]
fn whether_to_walk_follows_from_free_space() {
    let then = free(1000 * MIB, 50_000);
    let short = Duration::from_millis(20);
    let cases = [
        ("nothing changed", then, room(100 * MIB), LATEST * 10, WalkNeed::No),
        (
            "a little less",
            free(999 * MIB, 50_000),
            room(100 * MIB),
            short,
            WalkNeed::No,
        ),
        (
            "a little less for a while",
            free(999 * MIB, 50_000),
            room(100 * MIB),
            LATEST,
            WalkNeed::Soon,
        ),
        ("more", free(1001 * MIB, 50_000), room(100 * MIB), short, WalkNeed::No),
        (
            "more for a while",
            free(1001 * MIB, 50_000),
            room(100 * MIB),
            LATEST,
            WalkNeed::Soon,
        ),
        (
            "as much less as matters",
            free(996 * MIB, 50_000),
            room(100 * MIB),
            short,
            WalkNeed::Soon,
        ),
        (
            "a quarter of little room",
            free(999 * MIB, 50_000),
            room(4 * MIB),
            short,
            WalkNeed::Soon,
        ),
        (
            "more than there is room for",
            free(999 * MIB, 50_000),
            room(MIB / 2),
            short,
            WalkNeed::Urgent,
        ),
        (
            "no room left",
            free(999 * MIB, 50_000),
            room(0),
            short,
            WalkNeed::Urgent,
        ),
        (
            "inodes",
            free(1000 * MIB, 40_000),
            room(100 * MIB),
            short,
            WalkNeed::Soon,
        ),
        ("no limit", free(0, 0), LayerRoom::default(), short, WalkNeed::No),
        (
            "no limit for a while",
            free(0, 0),
            LayerRoom::default(),
            LATEST,
            WalkNeed::Soon,
        ),
    ];
    for (what, now, room, waited, expected) in cases {
        assert_eq!(need(then, now, room, waited), expected, "{what}");
    }
}

#[test]
fn what_is_written_is_noticed_within_a_few_ticks() {
    let (directory, mut meter) = layer();
    let began = Instant::now();
    let file = fs::File::create(directory.path().join("upper/file")).unwrap();
    io::Write::write_all(&mut &file, &vec![1; 16 << 20]).unwrap();
    file.sync_all().unwrap();
    // Other writers of this disk may delay it up to the time that any change may wait.
    while meter.tick(Instant::now(), room(8 * MIB)).bytes < 16 * MIB {
        assert!(began.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(meter.usage().inodes, 1);
}

#[test]
fn the_exact_measurement_does_not_depend_on_free_space() {
    let (directory, mut meter) = layer();
    fs::create_dir(directory.path().join("upper/d")).unwrap();
    fs::write(directory.path().join("upper/d/f"), "x").unwrap();
    fs::write(directory.path().join("not-in-upper"), vec![1; 1 << 20]).unwrap();
    let usage = meter.measure();
    assert_eq!((usage.inodes, usage.names), (2, 2));
    assert!(usage.bytes < MIB);
    assert!(!usage.incomplete && !usage.hidden);
    fs::remove_dir_all(directory.path().join("upper/d")).unwrap();
    assert_eq!(meter.measure(), LayerUsage::default());
}

#[test]
fn only_walk_after_walk_counts_as_hiding() {
    let counts = WalkCounts {
        hidden: true,
        ..WalkCounts::default()
    };
    assert!(!usage_of(counts, 1).hidden);
    assert!(usage_of(counts, 1).incomplete);
    assert!(usage_of(counts, HIDDEN_WALKS).hidden);
}

#[test]
fn a_layer_without_an_upper_directory_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(
        LayerMeter::new(directory.path()).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
    std::os::unix::fs::symlink("/usr", directory.path().join("upper")).unwrap();
    LayerMeter::new(directory.path()).unwrap_err();
}
