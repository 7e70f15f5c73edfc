//! Floods of files, descriptors and output: R3, R4, R6.

use super::arena::{Attack, can_attack, knows_numbers, not_proven, run};
use super::resources::hit;
use super::resources::outcome;
use super::support::{Site, id_of, stderr};

#[test]
fn r3_the_disk_is_bounded_in_bytes_inodes_and_apparent_size() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
def fill():
    with open("big", "wb", buffering=0) as file:
        for _ in range(32):
            file.write(bytes(1 << 20))
    return os.stat("big").st_size
def fill_without_name():
    with open("nameless", "wb", buffering=0) as file:
        os.unlink("nameless")
        for _ in range(32):
            file.write(bytes(1 << 20))
        time.sleep(8 if os.path.exists("/home/user") else 0)
    return 32
def allocate():
    with open("allocated", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 32 << 20)
    return os.stat("allocated").st_blocks
def inodes():
    for number in range(3000):
        open("file-%d" % number, "w").close()
    return 3000
def links():
    open("one", "w").close()
    for number in range(3000):
        os.link("one", "link-%d" % number)
    return 3000
def directories():
    for number in range(3000):
        os.mkdir("directory-%d" % number)
    return 3000
def sparse():
    with open("sparse", "wb") as file:
        file.truncate(1 << 40)
    return os.stat("sparse").st_size
def sparse_by_seek():
    with open("seeked", "wb") as file:
        file.seek((1 << 40) - 1)
        file.write(b"x")
    return os.stat("seeked").st_size
def deep():
    for _ in range(1200):
        os.mkdir("d")
        os.chdir("d")
    return 1200
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def stays():
    answer = globals()[arguments[0]]()
    # Long enough for whoever watches to look.
    if os.path.exists("/home/user"):
        time.sleep(8)
    return answer
attempt("disk", stays)
"##,
    )
    .flags(["--workspace-size", "16M", "--inodes", "500", "--file-size", "40M"]);
    let kinds = [
        ("fill", "workspace"),
        ("fill_without_name", "workspace"),
        ("allocate", "workspace"),
        ("inodes", "inodes"),
        ("links", "inodes"),
        ("directories", "inodes"),
        ("deep", "inodes"),
        ("sparse", "file_size"),
        ("sparse_by_seek", "file_size"),
    ];
    std::thread::scope(|scope| {
        for (what, limit) in kinds {
            let attack = &attack;
            scope.spawn(move || {
                let site = Site::new();
                assert_disk_is_bounded(&site, &attack.at(&site).with_arguments([what]), what, limit);
            });
        }
    });
    for what in ["fill", "allocate", "inodes", "links", "sparse", "deep"] {
        let scratch = Site::new();
        attack
            .at(&scratch)
            .with_arguments([what])
            .outside()
            .prove(if what == "sparse" { &[] } else { &["disk"] });
    }
}

/// One way to fill a disk is ended or refused, and what it left can be removed.
fn assert_disk_is_bounded(site: &Site, attack: &Attack<'_>, what: &str, limit: &str) {
    let record = outcome(attack);
    let written = record["stdout"]["data"].as_str().unwrap();
    assert!(
        !written.contains("\tdone\t"),
        "{what} succeeded: {:#}",
        record["outcome"]
    );
    if limit != "file_size" {
        // No file may be larger than the whole workspace, so that one alone may be refused before the watcher looks.
        assert!(hit(&record, limit) || written.contains("EFBIG"), "{what}: {record:#}");
    }
    let id = id_of(&record);
    let discarded = run(&mut site.offleash(["discard", &id]));
    let runs = run(&mut site.offleash(["runs"]));
    let listed = String::from_utf8_lossy(&runs.stdout).contains(&id);
    assert!(
        discarded.status.success() || !listed,
        "{what} cannot be removed: {}",
        stderr(&discarded)
    );
}

#[test]
pub(crate) fn r4_descriptors_are_bounded() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import resource
def many():
    descriptors = []
    try:
        while len(descriptors) < 200:
            descriptors.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return len(descriptors)
def raised():
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))
    except ValueError as failure:
        raise RuntimeError(str(failure))
attempt("raise", raised)
attempt("many", many)
"##,
    )
    .flags(["--open-files", "64"]);
    attack.inside().assert_all_refused();
    attack.outside().prove(&["many"]);
}

#[test]
fn r6_floods_of_output_are_bounded() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    for (name, script) in [
        ("lines", "yes"),
        ("no newline", "tr '\\0' x < /dev/zero"),
        ("binary", "cat /dev/urandom"),
        ("standard error", "yes >&2"),
        ("both, from many", "for i in 1 2 3 4; do (yes; yes >&2) & done; yes"),
        ("terminal escapes", "yes \"$(printf '\\033]52;c;x\\007')\""),
    ] {
        let record = site.record(&["--output", "1M", "--wall-time", "60s"], script);
        assert_eq!(
            record["outcome"]["kind"], "limit_exceeded",
            "{name}: {:#}",
            record["outcome"]
        );
        assert_eq!(record["outcome"]["limit"], "output", "{name}");
        let kept: usize = ["stdout", "stderr"]
            .iter()
            .map(|stream| record[stream]["data"].as_str().unwrap().len())
            .sum();
        assert!(kept < 3 << 20, "{name}: {kept} bytes are in the record");
    }
    let mut command = site.offleash(["run", "--quiet", "--output", "1M", "--", "yes"]);
    let output = run(&mut command);
    assert!(
        output.stdout.len() <= (1 << 20) + (1 << 17),
        "{} bytes were passed on",
        output.stdout.len()
    );
    let state = directory_size(&site.state());
    assert!(state < 4 << 20, "the state directory grew to {state} bytes");
    not_proven("endless output", "it would never end");
}

fn directory_size(path: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => directory_size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

#[test]
fn r6_a_flood_of_refusals_does_not_grow_the_record() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import socket
deadline = time.time() + 1
count = 0
while time.time() < deadline:
    libc.unshare(NEWUSER)
    for port in range(1, 50):
        try:
            with socket.socket() as client:
                client.setblocking(False)
                client.connect(("10.%d.%d.%d" % (count >> 16 & 255, count >> 8 & 255, count & 255), port))
        except OSError:
            pass
    count += 1
attempt("flood", lambda: count)
"##,
    );
    let inside = attack.inside();
    let denials = inside.record["denials"].as_array().unwrap();
    assert!(
        denials.len() <= 400,
        "{} kinds of refusals are told apart",
        denials.len()
    );
    let audit = directory_size(&site.state());
    assert!(audit < 1 << 20, "the state directory grew to {audit} bytes");
}
