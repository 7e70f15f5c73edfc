//! What a sandbox leaves to the host and to the next sandbox: F5, F7 to F9.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use super::arena::{self, Attack, HostState, can_attack, knows_numbers, run};
use super::files::site_with_secret;
use super::support::{Site, is_root, stderr, stdout};

#[test]
pub(crate) fn f5_files_with_rights_for_the_host_cannot_be_left_behind() {
    if !can_attack() {
        return;
    }
    let site = site_with_secret();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
secret = arguments[0]
def setuid_by(action):
    write("tool", b"#!/bin/sh\n")
    try:
        action()
        return must(os.stat("tool").st_mode & 0o6000, "no such bit was set")
    finally:
        os.unlink("tool")
def at_creation(flags):
    os.unlink("tool")
    os.umask(0)
    descriptor = os.open("tool", os.O_CREAT | os.O_WRONLY | flags, 0o4755)
    os.close(descriptor)
def by_temporary_file():
    os.umask(0)
    descriptor = os.open(".", 0o20200000 | os.O_WRONLY, 0o4755)
    c("linkat", -100, b"/proc/self/fd/%d" % descriptor, -100, b"unnamed", 0x400)
    mode = os.stat("unnamed").st_mode
    os.unlink("unnamed")
    return must(mode & 0o6000, "no such bit was set")
def capability():
    write("tool", b"x")
    try:
        return os.setxattr("tool", "security.capability", struct.pack("<IIIII", 0x02000001, 0xffffffff, 0, 0, 0))
    finally:
        os.unlink("tool")
def device(kind, number):
    os.mknod("node", kind | 0o666, number)
    try:
        return opened("node", os.O_RDONLY)
    finally:
        os.unlink("node")
def hard_link(path):
    os.link(path, "linked")
    os.unlink("linked")
attempt("chmod", setuid_by, lambda: os.chmod("tool", 0o4755))
attempt("chmod with high bits", setuid_by, lambda: libc.chmod(b"tool", ctypes.c_ulong(0xffff0000_00000000 | 0o4755)))
attempt("setgid", setuid_by, lambda: os.chmod("tool", 0o2755))
attempt("fchmod", setuid_by, lambda: os.fchmod(os.open("tool", os.O_RDWR), 0o6755))
attempt("fchmodat", setuid_by, lambda: os.chmod("tool", 0o4755, dir_fd=os.open(".", os.O_RDONLY)))
attempt("open", setuid_by, lambda: at_creation(os.O_EXCL))
attempt("O_TMPFILE", by_temporary_file)
attempt("openat2", setuid_by, lambda: (os.unlink("tool"), call(437, -100, b"tool", struct.pack("QQQ", 0o102, 0o4755, 0), 24)))
attempt("fchmodat2", setuid_by, lambda: call(452, -100, b"tool", 0o4755, 0))
attempt("file capability", capability)
attempt("character device", device, 0o020000, os.makedev(1, 3))
attempt("block device", device, 0o060000, os.stat("/").st_dev)
attempt("hard link", hard_link, secret)
attempt("hard link of a system file", hard_link, "/usr/bin/env")
"##,
    )
    .argument(site.root().join("secret"));
    for mode in ["overlay", "rw"] {
        let inside = Attack::flags(attack.again(), ["-w", &format!(".:{mode}")]).inside();
        inside.assert_all_refused();
        before.assert_unchanged(&site);
    }
    let must: &[&str] = &["chmod", "chmod with high bits", "setgid", "fchmod", "open", "hard link"];
    attack.outside().prove(
        &[
            must,
            if is_root() {
                &["character device", "file capability"]
            } else {
                &[]
            },
        ]
        .concat(),
    );
}

#[test]
pub(crate) fn f5_what_reaches_the_host_has_no_rights_there() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    // Set in the workspace by its owner; the sandbox rewrites it and must not inherit the bit for its own program.
    let path = site.write("owned", "#!/bin/sh\necho owner's\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let output = site.run_shell(
        &["-w", ".:rw"],
        "printf 'pwned' > owned; cp /usr/bin/env tool; chmod 755 tool",
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let tool = site.workspace().join("tool").metadata().unwrap();
    assert_eq!(
        (tool.mode() & 0o7777, tool.uid()),
        (0o755, rustix::process::geteuid().as_raw())
    );
    let owned = path.metadata().unwrap();
    let contents = std::fs::read_to_string(&path).unwrap();
    assert!(
        owned.mode() & 0o6000 == 0 || contents.contains("owner's"),
        "a setuid file with the sandbox's contents"
    );
}

/// Names in a workspace that something on the host later executes.
const EXECUTED_LATER: [&str; 12] = [
    ".git/hooks/post-checkout",
    ".git/config",
    ".vscode/tasks.json",
    ".envrc",
    ".mcp.json",
    ".claude/settings.json",
    ".github/workflows/ci.yml",
    ".npmrc",
    ".husky/pre-commit",
    ".bashrc",
    ".cursor/mcp.json",
    ".idea/workspace.xml",
];

#[test]
pub(crate) fn f7_names_that_the_host_executes_later_are_not_written_back() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    site.write(".git/config", "[core]\n");
    site.write(".envrc", "original\n");
    let program = r##"
for name in arguments:
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    attempt(name, write, name)
write("ordinary")
"##;
    let mut attack = Attack::new(&site, program).flags(["-w", ".:rw"]);
    for name in EXECUTED_LATER {
        attack = attack.argument(name);
    }
    let findings = attack.inside();
    let present = |name: &str| std::fs::read_to_string(site.workspace().join(name)).ok();
    assert_eq!(present("ordinary").as_deref(), Some("pwned"), "{:#}", findings.record);
    for name in EXECUTED_LATER {
        let expected = match name {
            ".git/config" => Some("[core]\n"),
            ".envrc" => Some("original\n"),
            _ => None,
        };
        assert_eq!(present(name).as_deref(), expected, "{name}");
    }
    let protected = findings.record["changes"]["protected"].to_string();
    for name in [".git/hooks", ".envrc", ".mcp.json"] {
        assert!(
            protected.contains(name),
            "the record does not tell of `{name}`: {protected}"
        );
    }
    attack.outside().prove(&EXECUTED_LATER);
    assert_eq!(present(".envrc").as_deref(), Some("pwned"));
}

#[test]
pub(crate) fn f8_evil_names_neither_stop_nor_fool_the_host() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
evil = [b"new\nline", b"\x1b]52;c;cHduZWQ=\x07escape", b"\xff\xfe", "\u202egpj.exe".encode(), b"n" * 255, b" ", b"-rf",
        b"..\\..\\x", b"%2e%2e%2f", b"$(touch pwned)", b"a\rb"]
for number, name in enumerate(evil):
    attempt("name %d" % number, write, name)
def deep():
    home = os.open(".", os.O_RDONLY)
    for _ in range(300):
        os.mkdir(b"d" * 200)
        os.chdir(b"d" * 200)
    write(b"bottom")
    os.fchdir(home)
def swap_to_link():
    os.mkdir("was-directory")
    os.rmdir("was-directory")
    os.symlink("/etc", "was-directory")
attempt("deep", deep)
attempt("loop", os.symlink, "loop", "loop")
attempt("fifo", os.mkfifo, "fifo")
attempt("link to fifo", os.symlink, "fifo", "to-fifo")
attempt("directory became link", swap_to_link)
attempt("socket", lambda: __import__("socket").socket(1).bind("socket"))
attempt("unreadable", lambda: (os.mkdir("closed"), write("closed/inside"), os.chmod("closed", 0)))
"##,
    );
    let inside = attack.inside();
    inside.prove(&[
        "name 0",
        "name 1",
        "name 2",
        "name 4",
        "deep",
        "loop",
        "fifo",
        "unreadable",
    ]);
    let id = inside.record["id"].as_str().unwrap();
    for arguments in [
        vec!["diff", id],
        vec!["diff", "--json", id],
        vec!["runs"],
        vec!["apply", id],
    ] {
        let output = run(&mut site.offleash(&arguments));
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        assert!(
            !said.contains(&0x1b) && !said.contains(&b'\r'),
            "{arguments:?} prints what terminals obey"
        );
        let reversed = said.windows(3).any(|part| part == "\u{202e}".as_bytes());
        assert!(!reversed, "{arguments:?} prints in reverse");
    }
    for (name, metadata) in entries(&site) {
        let kind = metadata.file_type();
        assert!(
            kind.is_file() || kind.is_dir() || kind.is_symlink(),
            "{name} was applied"
        );
    }
    let gone = run(&mut site.offleash(["discard", id]));
    let runs = run(&mut site.offleash(["runs"]));
    assert!(
        gone.status.success() || !stdout(&runs).contains(id),
        "the run cannot be removed: {}",
        stderr(&gone)
    );
}

fn entries(site: &Site) -> Vec<(String, std::fs::Metadata)> {
    let entry = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        (
            String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned(),
            path.symlink_metadata().unwrap(),
        )
    };
    std::fs::read_dir(site.workspace()).unwrap().map(entry).collect()
}

#[test]
fn f9_nothing_of_one_run_is_left_for_the_next() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let name = arena::token("leftover");
    let places = ["/tmp", "/dev/shm", "/home/user", "."];
    let leave = r##"
def leave(place):
    path = os.path.join(place, arguments[0])
    write(path)
    return path
def segment(flags):
    return call(29, 0x6f666631 ^ os.getuid(), 4096, flags)
"##;
    let first = Attack::new(
        &site,
        &format!(
            r##"{leave}
for place in arguments[1:]:
    attempt(place, leave, place)
attempt("System V", segment, 0o1600)
"##
        ),
    );
    let second = Attack::new(
        &site,
        &format!(
            r##"{leave}
for place in arguments[1:]:
    attempt(place, read, os.path.join(place, arguments[0]))
attempt("System V", segment, 0)
"##
        ),
    );
    let all = |places: &[&'static str]| [&[&*name], places].concat();
    let (first, second) = (first.with_arguments(all(&places)), second.with_arguments(all(&places)));
    first
        .inside()
        .prove(&["/tmp", "/dev/shm", "/home/user", ".", "System V"]);
    second.inside().assert_all_refused();
    for place in places {
        assert!(
            !std::path::Path::new(place).join(&name).exists(),
            "{place} of the host has the file"
        );
    }
    let shared = ["/dev/shm", "."];
    let (first, second) = (first.with_arguments(all(&shared)), second.with_arguments(all(&shared)));
    first.outside().prove(&["/dev/shm", "System V"]);
    let outside = second.outside();
    let removal = Attack::new(
        &site,
        "os.unlink('/dev/shm/' + arguments[0])\nattempt('removed', lambda: libc.shmctl(call(29, 0x6f666631 ^ os.getuid(), 4096, 0), 0, None))",
    )
    .argument(&name);
    removal.outside().prove(&["removed"]);
    outside.prove(&["/dev/shm", "System V"]);
}
