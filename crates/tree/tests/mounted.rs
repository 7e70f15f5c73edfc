//! A tree that this machine's own kernel mounts, over the channel of a virtual machine: it does what the directory behind it does.
//!
//! Each test runs in a mount namespace of its own, an ordinary user's in a user namespace too, and serves from a process of its
//! own, so that nothing waits for itself.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "what is skipped is told")]
#![expect(clippy::disallowed_methods, reason = "a test starts programs of the machine")]
#![allow(missing_docs, unreachable_pub, reason = "a test has no callers")]

#[path = "support/mount.rs"]
mod mount;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use offleash_tree::{CacheTimes, TreeOptions};
use tempfile::TempDir;

/// In which of its roles this program runs.
const ROLE: &str = "OFFLEASH_TREE_TEST_ROLE";
const INSIDE: &str = "inside";
/// Says what to serve, where, and how.
const DIRECTORY: &str = "OFFLEASH_TREE_TEST_DIRECTORY";
const AT: &str = "OFFLEASH_TREE_TEST_AT";
const FORM: &str = "OFFLEASH_TREE_TEST_FORM";

const MOUNTED_TIMEOUT: Duration = Duration::from_secs(20);
/// What a file system of this kind is known by (linux/magic.h).
const FUSE: u64 = 0x6573_5546;

/// How a tree is served.
#[derive(Debug, Clone, Copy)]
enum Form {
    Alone,
    Shared,
    FewDescriptors,
}

impl Form {
    const ALL: [Self; 3] = [Self::Alone, Self::Shared, Self::FewDescriptors];

    fn options(self) -> TreeOptions {
        let options = TreeOptions::default();
        match self {
            Self::Alone => options,
            Self::Shared => TreeOptions {
                cache: CacheTimes::shared(),
                ..options
            },
            Self::FewDescriptors => TreeOptions {
                max_descriptors: Some(128),
                ..options
            },
        }
    }

    fn word(self) -> String {
        format!("{self:?}")
    }
}

/// Whether this process is the one in a namespace of its own; if not, it runs the test of that name in one.
fn is_inside(test: &str) -> bool {
    match std::env::var(ROLE) {
        Ok(role) => return role == INSIDE,
        Err(_) if File::options().read(true).write(true).open("/dev/fuse").is_err() => {
            println!("SKIP: /dev/fuse cannot be opened");
            return false;
        }
        Err(_) => {}
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    if !rustix::process::getuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let command = command
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, INSIDE);
    match command.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}{complaint}");
            print!(
                "{}",
                said.lines().filter(|line| line.starts_with("SKIP")).collect::<String>()
            );
        }
        Err(error) => println!("SKIP: unshare: {error}"),
    }
    false
}

/// The role of the process that serves; as a test of this program it does nothing.
#[test]
fn serves_a_tree() {
    if std::env::var(ROLE).as_deref() != Ok("serving") {
        return;
    }
    let variable = |name| PathBuf::from(std::env::var_os(name).unwrap());
    let form = std::env::var(FORM).unwrap();
    let form = Form::ALL.into_iter().find(|known| known.word() == form).unwrap();
    mount::serve_at(&variable(DIRECTORY), &variable(AT), &form.options(), || Ok(())).unwrap();
}

/// A tree that is mounted until this is dropped.
struct MountedTree {
    at: PathBuf,
    server: Child,
}

impl MountedTree {
    fn new(directory: &Path, at: &Path, form: Form) -> Self {
        fs::create_dir_all(at).unwrap();
        let mut server = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serves_a_tree", "--nocapture"])
            .env(ROLE, "serving")
            .env(DIRECTORY, directory)
            .env(AT, at)
            .env(FORM, form.word())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while kind_of(at) != FUSE {
            assert!(
                begun.elapsed() < MOUNTED_TIMEOUT && server.try_wait().unwrap().is_none(),
                "not mounted"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Self {
            at: at.to_owned(),
            server,
        }
    }

    /// Ends it; whoever served must have nothing to complain of.
    fn unmount(mut self) {
        rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::empty()).unwrap();
        assert!(self.server.wait().unwrap().success());
    }
}

impl Drop for MountedTree {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn kind_of(path: &Path) -> u64 {
    let kind = rustix::fs::statfs(path).unwrap().f_type;
    u64::from_ne_bytes(kind.to_ne_bytes())
}

/// What a program says that runs in a directory.
fn said_in(directory: &Path, program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .env("HOME", directory)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn has(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIP: {program} is not here");
    }
    found
}

/// Runs the table of operations in both directories, and compares.
fn compare(plain: &Path, served: &Path, form: Form) {
    let script = include_str!("operations.py");
    // Where all ids are mapped, files are given away too.
    let all_ids = fs::read_to_string("/proc/self/uid_map").unwrap().contains("4294967295");
    let arguments = ["-c", script, "xattr", if all_ids { "ids" } else { "" }];
    let (done, expected) = said_in(plain, "python3", &arguments);
    assert!(done && expected.ends_with("to the end\n"), "{expected}");
    let (_, found) = said_in(served, "python3", &arguments);
    let mut lines = expected.lines().zip(found.lines());
    let different = lines.find(|(expected, found)| expected != found);
    assert_eq!(different, None, "{form:?}");
    assert_eq!(expected.lines().count(), found.lines().count(), "{form:?}");
}

#[test]
fn a_tree_does_what_its_directory_does() {
    if !is_inside("a_tree_does_what_its_directory_does") || !has("python3") {
        return;
    }
    for form in Form::ALL {
        let base = TempDir::new().unwrap();
        let [plain, behind, at] = ["plain", "behind", "at"].map(|name| base.path().join(name));
        fs::create_dir(&plain).unwrap();
        fs::create_dir(&behind).unwrap();
        let mounted = MountedTree::new(&behind, &at, form);
        compare(&plain, &at, form);
        mounted.unmount();
    }
}

/// Mounts an overlay over two directories as sandboxes have them, and answers where.
fn overlay(base: &Path, is_split: bool) -> Result<PathBuf, rustix::io::Errno> {
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| base.join(name));
    for directory in [&lower, &upper, &work, &merged] {
        fs::create_dir_all(directory).unwrap();
    }
    let none = rustix::mount::MountFlags::empty();
    if is_split {
        // Layers of different file systems have inodes that change when they are copied up.
        rustix::mount::mount("none", &lower, "tmpfs", none, None)?;
    }
    fs::create_dir_all(lower.join("deep/er")).unwrap();
    for name in ["lower", "deep/er/lower", "deep/er/other"] {
        fs::write(lower.join(name), name).unwrap();
    }
    let [lower, upper, work] = [&lower, &upper, &work].map(|path| path.to_str().unwrap());
    let data = format!("lowerdir={lower},upperdir={upper},workdir={work},userxattr");
    let data = std::ffi::CString::new(data).unwrap();
    rustix::mount::mount("none", &merged, "overlay", none, Some(&*data))?;
    Ok(merged)
}

const COPIED_UP: &str = "
exec 3< lower 4< deep/er/lower
stat -c '%h %s' lower deep/er/lower
echo more >> lower; cat lower; cat <&3
cd deep/er; echo more >> lower; cat lower; stat -c '%h %s' lower
echo new > new; ls; mv lower ../lower; cat ../lower; ln other linked; stat -c %h other linked; chmod 600 other; stat -c %a linked
cd ..; ls; touch made; rm er/other; ls er; rm -r er; mkdir er; ls er; mv er renamed; ls; cat <&4
";

#[test]
fn a_tree_over_an_overlay_does_what_the_overlay_does() {
    if !is_inside("a_tree_over_an_overlay_does_what_the_overlay_does") || !has("python3") {
        return;
    }
    for is_split in [false, true] {
        for form in [Form::Alone, Form::FewDescriptors] {
            let base = TempDir::new().unwrap();
            // An overlay cannot be the upper layer of another one, as which `/tmp` may be mounted.
            let none = rustix::mount::MountFlags::empty();
            rustix::mount::mount("none", base.path(), "tmpfs", none, None).unwrap();
            let made = overlay(&base.path().join("plain"), is_split);
            let behind = overlay(&base.path().join("behind"), is_split);
            let (Ok(plain), Ok(behind)) = (made, behind) else {
                println!("SKIP: overlays cannot be mounted");
                return;
            };
            let at = base.path().join("at");
            let mounted = MountedTree::new(&behind, &at, form);
            compare(&plain, &at, form);
            assert_eq!(
                said_in(&plain, "sh", &["-c", COPIED_UP]),
                said_in(&at, "sh", &["-c", COPIED_UP]),
                "{form:?}"
            );
            mounted.unmount();
            rustix::mount::unmount(base.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    }
}

const DATABASE: &str = "
import sqlite3
one, two = sqlite3.connect('db'), sqlite3.connect('db')
print(one.execute('pragma journal_mode=wal').fetchall())
one.execute('create table t(a, b)')
for number in range(600):
    one.execute('insert into t values(?, ?)', (number, 'x' * (number % 500)))
    if number % 100 == 0:
        one.commit()
        print(two.execute('select count(*) from t').fetchall())
one.commit()
print(two.execute('pragma integrity_check').fetchall(), two.execute('select sum(length(b)) from t').fetchall())
one.execute('delete from t where a % 3 = 0'); one.commit(); one.execute('vacuum')
print(two.execute('select count(*) from t').fetchall())
";

const MANY: &str = "
import os
for package in range(12):
    os.makedirs(f'target/p{package}/deps')
    for unit in range(25):
        name = f'target/p{package}/deps/u{unit}'
        with open(name + '.tmp', 'w') as file: file.write(str(unit) * 1000)
        os.rename(name + '.tmp', name)
        os.link(name, f'target/u{package}-{unit}')
        os.utime(name, ns=(unit, package))
";

const PROGRAMS: [(&str, &str); 7] = [
    (
        "python3",
        "python3 -c \"$MANY\" && find target -type f | sort | xargs sha256sum | sha256sum && find target -type f -links 2 | wc -l",
    ),
    (
        "git",
        "git init -q r && cp -r target r && cd r && git add . && git -c user.name=a -c user.email=a@b commit -qm one && git clone -q . ../c && \
         cd ../c && git status --short && git fsck --strict && git checkout -qb other && git rm -qr target/p1 && git -c user.name=a -c user.email=a@b \
         commit -qm two && git checkout -q - && git status --short && git ls-files | wc -l && git gc -q && git fsck",
    ),
    (
        "tar",
        "tar cf a.tar target && mkdir t && tar xf a.tar -C t && diff -r target t/target && tar df a.tar && find t -type f -links 2 | wc -l",
    ),
    ("python3", "python3 -c \"$DATABASE\""),
    (
        "python3",
        "python3 -m venv --without-pip v && v/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'",
    ),
    (
        "rsync",
        "rsync -aH target/ synced && rsync -aHcn --itemize-changes target/ synced | wc -l && find synced -type f -links 2 | wc -l",
    ),
    ("find", "rm -rf target t synced v r c && ls"),
];

#[test]
fn programs_work_on_a_tree_as_on_a_directory() {
    if !is_inside("programs_work_on_a_tree_as_on_a_directory") {
        return;
    }
    for form in [Form::Alone, Form::FewDescriptors] {
        let base = TempDir::new().unwrap();
        let [plain, behind, at] = ["plain", "behind", "at"].map(|name| base.path().join(name));
        fs::create_dir(&plain).unwrap();
        fs::create_dir(&behind).unwrap();
        let mounted = MountedTree::new(&behind, &at, form);
        for (program, script) in PROGRAMS {
            if !has(program) {
                continue;
            }
            let script = format!(
                "MANY='{}'\nDATABASE='{}'\n{script}",
                MANY.replace('\'', "\""),
                DATABASE.replace('\'', "\"")
            );
            let (done, expected) = said_in(&plain, "sh", &["-c", &script]);
            assert!(done, "{program}: {expected}");
            assert_eq!(
                said_in(&at, "sh", &["-c", &script]),
                (true, expected),
                "{form:?}: {script}"
            );
        }
        mounted.unmount();
    }
}

#[test]
fn what_others_change_is_seen_where_it_is_shared() {
    if !is_inside("what_others_change_is_seen_where_it_is_shared") {
        return;
    }
    let base = TempDir::new().unwrap();
    let [behind, at] = ["behind", "at"].map(|name| base.path().join(name));
    fs::create_dir(&behind).unwrap();
    fs::write(behind.join("file"), "before").unwrap();
    let mounted = MountedTree::new(&behind, &at, Form::Shared);
    // In another process, which does not wait for itself.
    let see = |what: &str| said_in(&base.path().join("at"), "sh", &["-c", what]).1;
    assert_eq!(see("cat file; ls"), "beforefile\n");
    fs::write(behind.join("file"), "after it").unwrap();
    fs::write(behind.join("new"), "new").unwrap();
    assert_eq!(see("cat file; cat new; ls"), "after itnewfile\nnew\n");
    fs::remove_file(behind.join("file")).unwrap();
    fs::rename(behind.join("new"), behind.join("file")).unwrap();
    assert_eq!(see("cat file; ls"), "newfile\n");
    fs::create_dir(behind.join("d")).unwrap();
    fs::write(behind.join("d/in"), "in").unwrap();
    assert_eq!(see("cat d/in"), "in");
    fs::rename(behind.join("d"), behind.join("e")).unwrap();
    assert_eq!(see("cat e/in; ls"), "ine\nfile\n");
    mounted.unmount();
}
