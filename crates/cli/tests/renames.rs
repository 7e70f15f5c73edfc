//! Directories that were there before the sandbox get another name in it, as anywhere.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Output;

use rustix::process::Signal;
use support::listing::listing;
use support::processes::{eventually, program, read_until, signal, start, wait};
use support::workspace::changes_of;
use support::{Site, id_of, record_of, skip, stderr, stdout};

/// A workspace with a directory `pkg`.
fn site() -> Site {
    let site = Site::new();
    site.write("pkg/f", "1\n");
    site.write("pkg/sub/deep/g", "2\n");
    site.write("other/x", "3\n");
    site
}

/// Runs a program in Python over the workspace; it must succeed.
#[track_caller]
fn python(site: &Site, flags: &[&str], program: &str) -> Output {
    let mut arguments = vec!["run", "--json"];
    arguments.extend(flags);
    let program = format!("import os, errno, sys\n{program}");
    arguments.extend(["--", "python3", "-c", &program]);
    let output = site.offleash(arguments).output().unwrap();
    let record = record_of(&output);
    assert_eq!(record["outcome"]["code"], 0, "{}", record["stderr"]["data"]);
    output
}

/// Runs a shell script over the workspace; it must succeed. Answers the run.
#[track_caller]
fn shell(site: &Site, script: &str) -> String {
    let record = site.record(&[], script);
    assert_eq!(record["outcome"]["code"], 0, "{record}");
    id_of(&record)
}

fn names_of(site: &Site, run: &str) -> Vec<String> {
    let shown = |(path, kind): (String, String)| format!("{kind} {path}");
    changes_of(site, run).into_iter().map(shown).collect()
}

const RENAMED: [&str; 10] = [
    "added new",
    "added new/f",
    "added new/sub",
    "added new/sub/deep",
    "added new/sub/deep/g",
    "deleted pkg",
    "deleted pkg/f",
    "deleted pkg/sub",
    "deleted pkg/sub/deep",
    "deleted pkg/sub/deep/g",
];

#[test]
fn whoever_renames_a_directory_finds_it_renamed_and_so_do_the_changes() {
    let ways = [
        ("mv", "mv -T --no-copy pkg new 2>/dev/null || mv pkg new"),
        ("python3", "python3 -c \"import os; os.rename('pkg', 'new')\""),
        ("perl", "perl -e 'rename(\"pkg\", \"new\") or die $!'"),
        ("node", "node -e \"fs.renameSync('pkg', 'new')\""),
        (
            "git",
            "git -c init.defaultBranch=m init -q . && git add . && git mv pkg new && rm -r .git",
        ),
    ];
    for (needed, script) in ways {
        if program(needed).is_none() {
            skip(&format!("there is no `{needed}`"));
            continue;
        }
        let site = site();
        let before = listing(&site.workspace());
        let run = shell(
            &site,
            &format!("set -e; {script}; test ! -e pkg; cat new/f new/sub/deep/g; ls -A"),
        );
        assert_eq!(listing(&site.workspace()), before, "{needed}");
        assert_eq!(names_of(&site, &run), RENAMED, "{needed}");
        site.succeed(["apply", &run]);
        let after = listing(&site.workspace());
        assert!(!after.keys().any(|path| path.starts_with("pkg")), "{needed}: {after:?}");
        assert_eq!(
            fs::read_to_string(site.workspace().join("new/sub/deep/g")).unwrap(),
            "2\n"
        );
    }
}

#[test]
fn a_renamed_directory_can_be_renamed_again_and_back() {
    let site = site();
    let script = "set -e; for i in 1 2 3; do mv -T pkg new; mv -T new other/pkg; mv -T other/pkg pkg; done; ls pkg";
    let record = site.record(&[], script);
    assert_eq!(record["outcome"]["code"], 0, "{record}");
    assert_eq!(record["stdout"]["data"], "f\nsub\n");
    // What changed nothing is not kept.
    assert_eq!(site.succeed(["runs", "--json"]).trim(), "[]");
}

#[test]
fn changes_are_discarded_with_the_run() {
    let site = site();
    let before = listing(&site.workspace());
    let run = shell(&site, "mv pkg new");
    site.succeed(["discard", &run]);
    assert_eq!(listing(&site.workspace()), before);
}

#[test]
fn what_is_written_back_has_the_new_name_alone() {
    let site = site();
    let workspace = format!("{}:rw", site.workspace().display());
    python(&site, &["--workspace", &workspace], "os.rename('pkg', 'other/new')");
    let after = listing(&site.workspace());
    let names: Vec<_> = after.keys().map(|path| path.display().to_string()).collect();
    assert!(names.contains(&"other/new/sub/deep/g".to_owned()), "{names:?}");
    assert!(
        !names
            .iter()
            .any(|name| name.starts_with("pkg") || name.contains(".offleash")),
        "{names:?}"
    );
}

#[test]
fn a_protected_name_in_a_renamed_directory_stays_protected() {
    let site = site();
    site.write("pkg/.git/hooks/pre-commit", "#!/bin/sh\n");
    let run = shell(&site, "mv pkg new; echo evil >> new/.git/hooks/pre-commit");
    let output = site.offleash(["apply", &run]).output().unwrap();
    assert!(
        !site.workspace().join("new/.git/hooks/pre-commit").exists(),
        "{}",
        stdout(&output)
    );
    assert_eq!(
        fs::read_to_string(site.workspace().join("pkg/.git/hooks/pre-commit")).unwrap(),
        "#!/bin/sh\n"
    );
}

#[test]
fn a_renamed_directory_keeps_what_it_had() {
    let site = site();
    let root = site.workspace();
    for (name, mode) in [("pkg/sub", 0o2775), ("pkg/sub/deep", 0o1711), ("pkg/f", 0o640)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    symlink("nowhere", root.join("pkg/link")).unwrap();
    fs::hard_link(root.join("pkg/f"), root.join("pkg/sub/again")).unwrap();
    fs::File::create(root.join("pkg/sparse"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    fs::create_dir(root.join("pkg/shut")).unwrap();
    fs::write(root.join("pkg/shut/in"), "x").unwrap();
    fs::set_permissions(root.join("pkg/shut"), fs::Permissions::from_mode(0o555)).unwrap();
    let attribute = rustix::fs::XattrFlags::empty();
    let has_attributes = rustix::fs::setxattr(root.join("pkg/sub"), "user.colour", b"red", attribute).is_ok();
    rustix::fs::setxattr(root.join("pkg/f"), "user.colour", b"blue", attribute).ok();
    for name in ["pkg/f", "pkg/sub/deep", "pkg/sub", "pkg"] {
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
        fs::File::open(root.join(name)).unwrap().set_modified(time).unwrap();
    }
    let output = python(
        &site,
        &[],
        r#"
def told(top):
    names = [top] + sorted(os.path.join(d, n) for d, ds, fs in os.walk(top) for n in ds + fs)
    for name in names:
        s = os.lstat(name)
        is_directory = os.path.isdir(name)
        yield (name[len(top):], oct(s.st_mode), s.st_mtime_ns, s.st_uid, s.st_gid, None if is_directory else s.st_size,
            os.path.islink(name) and os.readlink(name), [] if os.path.islink(name) else
            [(a, os.getxattr(name, a)) for a in sorted(os.listxattr(name)) if a.startswith("user.")])
before = list(told("pkg"))
os.rename("pkg", "new")
after = list(told("new"))
for one, other in zip(before, after):
    assert one == other, (one, other)
assert len(before) == len(after)
assert os.stat("new/f").st_ino == os.stat("new/sub/again").st_ino and os.stat("new/f").st_nlink == 2
assert os.stat("new/sparse").st_blocks < 1000, os.stat("new/sparse").st_blocks
assert oct(os.stat("new/sub").st_mode) == "0o42775", oct(os.stat("new/sub").st_mode)
"#,
    );
    drop(output);
    if !has_attributes {
        skip("no attributes of users in this file system");
    }
    fs::set_permissions(root.join("pkg/shut"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn what_rename_refuses_is_refused_as_anywhere() {
    let site = site();
    fs::create_dir(site.workspace().join("empty")).unwrap();
    fs::create_dir(site.workspace().join("shut")).unwrap();
    site.write("shut/in/x", "4\n");
    fs::set_permissions(site.workspace().join("shut"), fs::Permissions::from_mode(0o555)).unwrap();
    symlink("loop", site.workspace().join("loop")).unwrap();
    let run = python(
        &site,
        &[],
        r#"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def renameat2(old, new, flags):
    if libc.renameat2(-100, old.encode(), -100, new.encode(), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")
def refused(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == number, (errno.errorcode[error.errno], errno.errorcode[number], arguments)
    else:
        raise AssertionError(arguments)
    assert not [name for name in os.listdir(".") if name.startswith(".offleash")], os.listdir(".")
refused(errno.ENOTEMPTY, os.rename, "pkg", "other")
refused(errno.ENOTDIR, os.rename, "pkg", "other/x")
refused(errno.EINVAL, os.rename, "pkg", "pkg/sub/pkg")
refused(errno.EXDEV, os.rename, "pkg", "/tmp/pkg")
refused(errno.ENOENT, os.rename, "none", "new")
refused(errno.ENOENT, os.rename, "pkg", "none/new")
refused(errno.ELOOP, os.rename, "pkg", "loop/new")
refused(errno.ELOOP, os.rename, "loop/pkg", "new")
refused(errno.ENAMETOOLONG, os.rename, "pkg", "n" * 256)
refused(errno.EBUSY, os.rename, "pkg/.", "new")
refused(errno.EACCES, os.rename, "shut/in", "new")
refused(errno.EACCES, os.rename, "pkg", "shut/new")
refused(errno.EEXIST, renameat2, "pkg", "empty", 1)
refused(errno.EXDEV, renameat2, "pkg", "other", 2)
assert open("pkg/sub/deep/g").read() == "2\n" and open("other/x").read() == "3\n"
renameat2("pkg", "new", 1)
os.rename("new", "empty")
assert sorted(os.listdir("empty")) == ["f", "sub"] and not os.path.exists("pkg") and not os.path.exists("new")
os.rename("other/", "third/")
assert os.listdir("third") == ["x"]
directory = os.open("empty", os.O_RDONLY)
os.rename("sub", "../from-there", src_dir_fd=directory, dst_dir_fd=directory)
assert open("from-there/deep/g").read() == "2\n"
"#,
    );
    fs::set_permissions(site.workspace().join("shut"), fs::Permissions::from_mode(0o755)).unwrap();
    drop(run);
}

#[test]
fn of_many_at_once_each_gets_its_own_and_one_gets_what_all_want() {
    let site = site();
    for number in 0..32 {
        site.write(format!("own-{number}/sub/file"), format!("{number}"));
    }
    python(
        &site,
        &[],
        r#"
def each(number):
    os.rename(f"own-{number}", f"moved-{number}")
    try:
        os.rename("pkg", f"won-{number}")
        return 0
    except FileNotFoundError:
        return 1
children = []
for number in range(32):
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = each(number)
        finally:
            os._exit(code)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert sorted(codes) == [0] + [1] * 31, codes
for number in range(32):
    assert open(f"moved-{number}/sub/file").read() == str(number)
    assert not os.path.exists(f"own-{number}")
won = [name for name in os.listdir(".") if name.startswith("won-")]
assert len(won) == 1 and open(won[0] + "/sub/deep/g").read() == "2\n", won
assert not os.path.exists("pkg") and not [name for name in os.listdir(".") if name.startswith(".off")]
"#,
    );
}

#[test]
fn whoever_looks_sees_the_new_name_with_everything() {
    let site = site();
    for number in 0..500 {
        site.write(format!("pkg/many/{number}"), "x");
    }
    python(
        &site,
        &[],
        r#"
child = os.fork()
if child == 0:
    os.rename("pkg", "new")
    os._exit(0)
while not os.path.exists("new"):
    pass
assert len(os.listdir("new/many")) == 500 and open("new/sub/deep/g").read() == "2\n"
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert not os.path.exists("pkg")
"#,
    );
}

#[test]
fn what_others_write_to_the_old_name_meanwhile_is_under_the_new_one() {
    let site = site();
    for number in 0..300 {
        site.write(format!("pkg/many/{number}"), "x");
    }
    python(
        &site,
        &[],
        r#"
child = os.fork()
if child == 0:
    os.rename("pkg", "new")
    os._exit(0)
written = []
try:
    for number in range(100000):
        with open("pkg/.temporary", "w") as file:
            file.write(str(number))
        os.rename("pkg/.temporary", f"pkg/written-{number % 50}")
        written.append(number)
except FileNotFoundError:
    pass
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
last = {number % 50: number for number in written}
for place, number in last.items():
    assert int(open(f"new/written-{place}").read()) >= number, (place, number)
assert not os.path.exists("pkg")
"#,
    );
}

/// A workspace whose directory takes a while to copy.
fn large() -> Site {
    let site = site();
    for number in 0..3000 {
        site.write(format!("pkg/many/{number}"), "x");
    }
    site
}

/// Exactly one of both names is there, with everything.
#[track_caller]
fn assert_one_name(workspace: &Path) {
    let has = |name: &str| workspace.join(name).exists();
    assert_ne!(has("pkg"), has("new"));
    let name = if has("pkg") { "pkg" } else { "new" };
    assert_eq!(
        fs::read_dir(workspace.join(name).join("many")).unwrap().count(),
        3000,
        "{name}"
    );
    assert_eq!(
        fs::read_to_string(workspace.join(name).join("sub/deep/g")).unwrap(),
        "2\n"
    );
    let others = fs::read_dir(workspace).unwrap().map(|entry| entry.unwrap().file_name());
    let hidden: Vec<_> = others
        .filter(|name| name.as_encoded_bytes().starts_with(b".offleash"))
        .collect();
    assert!(hidden.is_empty(), "{hidden:?}");
}

#[test]
fn when_everything_is_killed_in_the_middle_one_name_is_written_back() {
    // The moment is another each time.
    for entries in [0_usize, 40, 2000] {
        let site = large();
        let script = r#"
import os, sys
child = os.fork()
if child == 0:
    os.rename("pkg", "new")
    os._exit(0)
print("begun", flush=True)
wanted = int(sys.argv[1])
while True:
    if wanted and os.path.exists("new"):
        break
    hidden = [name for name in os.listdir(".") if name.startswith(".offleash-rename-")]
    if not wanted and hidden:
        break
while wanted and os.path.exists("pkg/many") and len(os.listdir("pkg/many")) > 3000 - wanted:
    pass
os.kill(-1, 9)
os.kill(os.getpid(), 9)
"#;
        let workspace = format!("{}:rw", site.workspace().display());
        let words = [
            "run",
            "--workspace",
            &workspace,
            "--",
            "python3",
            "-c",
            script,
            &entries.to_string(),
        ];
        let output = site.offleash(words).output().unwrap();
        assert!(!output.status.success(), "{}", stdout(&output));
        assert_one_name(&site.workspace());
    }
}

#[test]
fn when_the_caller_is_killed_the_renaming_is_whole_or_none() {
    let site = large();
    let script = r#"
import os, signal, time
child = os.fork()
if child == 0:
    os.rename("pkg", "new")
    os._exit(0)
while not os.path.exists("new"):
    pass
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"#;
    let workspace = format!("{}:rw", site.workspace().display());
    python(&site, &["--workspace", &workspace], script);
    assert_one_name(&site.workspace());
    assert!(site.workspace().join("new").exists());
}

#[test]
fn when_the_worker_is_killed_another_one_undoes_or_finishes() {
    let site = large();
    python(
        &site,
        &[],
        r#"
import signal
me = os.getpid()
child = os.fork()
if child == 0:
    try:
        os.rename("pkg", "new")
    except OSError as error:
        os._exit(error.errno)
    os._exit(0)
while not [name for name in os.listdir(".") if name.startswith(".offleash-rename-")]:
    pass
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, me, child):
        os.kill(int(name), signal.SIGKILL)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert code in (0, errno.EXDEV), code
assert os.path.exists("pkg") == (code != 0) and os.path.exists("new") == (code == 0), (code, os.listdir("."))
name = "pkg" if code else "new"
assert len(os.listdir(name + "/many")) == 3000
assert not [name for name in os.listdir(".") if name.startswith(".off")], os.listdir(".")
"#,
    );
}

#[test]
fn when_the_supervisor_is_killed_the_old_name_is_whole_or_gone() {
    let site = large();
    let script = r#"
import os
child = os.fork()
if child == 0:
    os.rename("pkg", "new")
    os._exit(0)
while not os.path.exists("new"):
    pass
print("there", flush=True)
os.waitpid(child, 0)
"#;
    let mut command = site.offleash(["run", "--", "python3", "-c", script]);
    command.stdout(std::process::Stdio::piped());
    let mut child = start(&mut command);
    read_until(child.stdout.as_mut().unwrap(), "there");
    signal(&child, Signal::KILL);
    wait(&mut child);
    let run = eventually("the run is known as crashed", || {
        let listed: serde_json::Value = serde_json::from_str(&site.succeed(["runs", "--json"])).ok()?;
        let run = listed.as_array()?.first()?.clone();
        (run["state"] != "running").then(|| run["id"].as_str().unwrap().to_owned())
    });
    let output = site.offleash(["apply", &run]).output().unwrap();
    if output.status.code() == Some(1) {
        // That the old name is no more is then what the sandbox alone says, so it goes when it is named.
        assert!(
            stderr(&output).contains("a renaming that was not finished"),
            "{}",
            stderr(&output)
        );
        let count = |name: &str| fs::read_dir(site.workspace().join(name)).unwrap().count();
        assert_eq!((count("pkg/many"), count("new/many")), (3000, 3000));
        site.succeed(["apply", &run, "pkg"]);
    }
    assert_one_name(&site.workspace());
}

#[test]
fn a_directory_of_a_file_system_of_its_own_and_one_made_inside_are_the_kernels() {
    let site = site();
    let inode = fs::metadata(site.workspace()).unwrap().ino();
    assert_ne!(inode, 0);
    let script = "set -e; mkdir /tmp/a made; echo x > made/x; mv -T /tmp/a /tmp/b; mv -T made again; cat again/x";
    let output = site.run_shell(&[], script);
    assert_eq!(stdout(&output), "x\n", "{}", stderr(&output));
}
