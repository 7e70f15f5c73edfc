//! The host's file system: F1 to F4, F6.

use std::os::unix::fs::symlink;

use super::arena::{self, Attack, HostState, can_attack, knows_numbers};
use super::support::{Site, is_root, skip};

/// The contents of a file that no sandbox may see.
const SECRET: &str = "canary-5f2c1d9e";

/// A site with a secret beside the workspace.
pub(super) fn site_with_secret() -> Site {
    let site = Site::new();
    std::fs::write(site.root().join("secret"), SECRET).unwrap();
    site
}

#[test]
pub(crate) fn f1_host_file_by_symlink_is_unreadable() {
    if !can_attack() {
        return;
    }
    let site = site_with_secret();
    let secret = site.root().join("secret");
    symlink(&secret, site.workspace().join("planted")).unwrap();
    symlink("..", site.workspace().join("up")).unwrap();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
secret = arguments[0]
def through(path):
    return must(b"canary" in read(path), "something else is there")
def through_own_link():
    os.symlink(secret, "own")
    try:
        return through("own")
    finally:
        os.unlink("own")
def below_descriptor():
    directory = os.open("..", os.O_PATH)
    file = os.open("secret", os.O_RDONLY, dir_fd=directory)
    return must(b"canary" in os.read(file, 100), "something else is there")
attempt("absolute", through, secret)
attempt("dotdot", through, "../secret")
attempt("many dotdots", through, "../" * 40 + secret)
attempt("planted link", through, "planted")
attempt("planted directory link", through, "up/secret")
attempt("own link", through_own_link)
attempt("descriptor", below_descriptor)
attempt("proc self root", through, "/proc/self/root" + secret)
attempt("proc self cwd", through, "/proc/self/cwd/../secret")
attempt("proc parent root", through, "/proc/%d/root%s" % (os.getppid(), secret))
attempt("proc parent cwd", through, "/proc/%d/cwd/../secret" % os.getppid())
attempt("proc 1 root", through, "/proc/1/root" + secret)
attempt("proc thread root", through, "/proc/thread-self/root" + secret)
"##,
    )
    .argument(&secret);
    attack.inside().assert_all_refused();
    before.assert_unchanged(&site);
    attack.outside().prove(&[
        "absolute",
        "dotdot",
        "many dotdots",
        "planted link",
        "planted directory link",
        "own link",
        "descriptor",
        "proc self root",
        "proc self cwd",
    ]);
}

#[test]
fn f1_the_hosts_directories_are_not_in_the_tree() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
def list_directory(path):
    return must(sorted(os.listdir(path)), "empty")
for path in ["/root", "/home", "/var/log", "/var/lib", "/run", "/boot", "/mnt", "/media", "/srv", "/opt", "/sys",
             "/proc/1/cwd", "/proc/1/root", "/proc/1/fd", "/proc/1/map_files"]:
    attempt(path, list_directory, path)
"##,
    );
    let inside = attack.inside();
    for (path, outcome) in inside.all() {
        // The sandbox's own home is in `/home`, and nobody else's; in `/sys` what shows it its limits.
        let expected = match path.as_str() {
            "/home" => outcome.as_deref() == Ok("['user']"),
            "/sys" => outcome.as_deref() == Ok("['fs']"),
            _ => false,
        };
        assert!(outcome.is_err() || expected, "{path}: {outcome:?}");
    }
    attack.outside().prove(&["/var/lib"]);
}

#[test]
pub(crate) fn f2_nothing_outside_the_workspace_can_be_written() {
    if !can_attack() {
        return;
    }
    let site = site_with_secret();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
beside = arguments[0]
def append(path):
    with open(path, "ab") as file:
        file.write(b"pwned")
    return path
def create(path):
    write(path)
    return path
attempt("beside", create, beside + "/made")
attempt("append", append, beside + "/secret")
attempt("rename over", lambda: (write("mine"), os.rename("mine", beside + "/secret")))
attempt("remove", os.unlink, beside + "/made")
attempt("chmod", os.chmod, beside + "/secret", 0o666)
# These would change the machine, so only the right to open them is tried.
for path in ["/etc/passwd", "/etc/hosts", "/etc/crontab", "/usr/bin/env", "/bin/sh", "/etc/ssl/openssl.cnf"]:
    attempt("open " + path, opened, path, os.O_WRONLY | os.O_APPEND)
for path in ["/usr", "/etc", "/usr/local/bin", "/etc/cron.d", "/var/spool/cron", "/root", "/root/.ssh"]:
    attempt("writable " + path, lambda: must(os.access(path, os.W_OK), "no"))
"##,
    )
    .argument(site.root());
    // The parents of the workspace are empty directories in the sandbox's own `/tmp`, which it may fill.
    attack
        .inside()
        .assert_refused_except(&["beside", "append", "remove", "chmod"]);
    before.assert_unchanged(&site);
    let must: &[&str] = &["beside", "append", "rename over", "remove", "chmod"];
    let as_root: &[&str] = &["open /etc/passwd", "open /usr/bin/env", "writable /usr"];
    attack
        .outside()
        .prove(&[must, if is_root() { as_root } else { &[] }].concat());
}

#[test]
pub(crate) fn f2_files_that_only_attackers_make_cannot_be_made() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
for path in ["/etc/ld.so.preload", "/etc/cron.d/x", "/etc/profile.d/x.sh", "/etc/sudoers.d/x", "/root/.bashrc",
             "/root/.ssh/authorized_keys", "/usr/bin/offleash-x", "/usr/lib/offleash-x.so", "/var/spool/cron/root", "/x",
             "/boot/x", "/lib/x", "/proc/x", "/dev/x", "/run/x"]:
    attempt(path, write, path)
"##,
    );
    attack.inside().assert_all_refused();
    before.assert_unchanged(&site);
    arena::not_proven("making files in system directories", "it would harm the machine");
}

#[test]
pub(crate) fn f3_files_cannot_be_opened_by_handle() {
    if !knows_numbers() {
        return;
    }
    let site = site_with_secret();
    // First a handle of the secret is made outside, then it is used inside, as in the attack on early Docker.
    let make = r##"
def handle_of(path):
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    call(303, -100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0)
    size, = struct.unpack_from("I", handle.raw)
    return handle.raw[:8 + size].hex()
def open_handle(mount_path, handle):
    mount = os.open(mount_path, os.O_RDONLY)
    buffer = ctypes.create_string_buffer(bytes.fromhex(handle))
    file = call(304, mount, ctypes.byref(buffer), os.O_RDONLY)
    return must(b"canary" in os.read(file, 100), "something else is there")
"##;
    let secret = site.root().join("secret");
    let maker = Attack::new(&site, &format!("{make}\nattempt('handle', handle_of, arguments[0])")).argument(&secret);
    maker.inside().assert_all_refused();
    let handles = maker.outside();
    let Ok(handle) = handles.of("handle") else {
        return skip("the file system of the temporary directory has no file handles");
    };
    let handle = handle.trim_matches('\'').to_owned();
    let user = Attack::new(
        &site,
        &format!(
            r##"{make}
for path in ["/", "/usr", ".", "/usr/bin/env", "/etc/hosts", "/etc/ssl/certs"]:
    attempt("by " + path, open_handle, path, arguments[0])
attempt("by workspace's neighbour", open_handle, arguments[1], arguments[0])
"##
        ),
    )
    .argument(&handle)
    .argument(site.root());
    user.inside().assert_all_refused();
    user.outside().prove(if is_root() {
        &["by workspace's neighbour", "by ."]
    } else {
        &[]
    });
}

#[test]
pub(crate) fn f4_chroot_does_not_lead_out() {
    if !can_attack() {
        return;
    }
    let site = site_with_secret();
    let attack = Attack::new(
        &site,
        r##"
secret = arguments[0]
def escape_from_jail():
    # The classic way out of a chroot: keep a directory open, enter another root, climb.
    os.makedirs("jail", exist_ok=True)
    outside = os.open(".", os.O_RDONLY)
    os.chroot("jail")
    os.fchdir(outside)
    for _ in range(100):
        os.chdir("..")
    os.chroot(".")
    return must(b"canary" in read(secret), "something else is there")
def climb():
    directory = os.open("/", os.O_RDONLY)
    for _ in range(100):
        os.chdir("..")
    return must(b"canary" in read(secret.lstrip("/")), "something else is there")
def with_user_namespace(action):
    c("unshare", NEWUSER)
    return action()
attempt("chroot", in_child, escape_from_jail)
attempt("chroot in a user namespace", in_child, with_user_namespace, escape_from_jail)
attempt("climb", in_child, climb)
"##,
    )
    .argument(site.root().join("secret"));
    attack.inside().assert_all_refused();
    attack
        .outside()
        .prove(if is_root() { &["chroot", "climb"] } else { &["climb"] });
}

#[test]
pub(crate) fn f4_masks_and_read_only_mounts_cannot_be_peeled() {
    if !knows_numbers() {
        return;
    }
    let site = site_with_secret();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
BIND, REC, PRIVATE, REMOUNT, RDONLY, DETACH = 4096, 16384, 1 << 18, 32, 1, 2
path = os.getcwd().encode()
def namespaces():
    c("unshare", NEWUSER | NEWNS)
def peel(place):
    namespaces()
    c("mount", b"none", b"/", None, REC | PRIVATE, None)
    c("mount", path, place, None, BIND, None)
    return c("umount2", place, DETACH)
def peel_at_once(place):
    return c("umount2", place, DETACH)
def remount():
    namespaces()
    c("mount", b"none", b"/", None, REC | PRIVATE, None)
    c("mount", path, path, None, BIND, None)
    c("mount", None, path, None, BIND | REMOUNT | RDONLY, None)
    c("mount", None, path, None, BIND | REMOUNT, None)
def remount_at_once(place):
    c("mount", None, place, None, BIND | REMOUNT, None)
    opened(place + b"/x", os.O_CREAT | os.O_WRONLY)
def new_proc():
    namespaces()
    c("unshare", NEWPID)
    return c("mount", b"proc", b"/proc", b"proc", 0, None)
def pivot():
    namespaces()
    c("mount", b"none", b"/", None, REC | PRIVATE, None)
    c("mount", path, path, None, BIND, None)
    os.chdir(path)
    return call(155, b".", b".")
attempt("peel in a namespace", in_child, peel, path)
attempt("remount in a namespace", in_child, remount)
attempt("new proc", in_child, new_proc)
attempt("pivot", in_child, pivot)
inside = arguments[0] == "inside"
for place in [b"/proc/kcore", b"/proc/keys", b"/proc/sys", b"/proc/sys/kernel/random/boot_id", b"/usr", b"/dev/shm"]:
    if inside:
        attempt("umount %s" % place.decode(), in_child, peel_at_once, place)
for place in [b"/", b"/usr", b"/proc/sys", b"/etc/ssl/certs"]:
    if inside:
        attempt("remount %s" % place.decode(), in_child, remount_at_once, place)
"##,
    );
    let attack = attack.argument("inside");
    attack.inside().assert_all_refused();
    before.assert_unchanged(&site);
    let outside = attack.with_arguments(["outside"]).outside();
    let must: &[&str] = if outside.of("peel in a namespace").is_ok() || is_root() {
        &["peel in a namespace", "remount in a namespace", "pivot"]
    } else {
        &[]
    };
    outside.prove(must);
}

#[test]
pub(crate) fn f6_credentials_of_the_home_directory_are_out_of_reach() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let names = [
        ".ssh/id_ed25519",
        ".aws/credentials",
        ".kube/config",
        ".netrc",
        ".npmrc",
        ".pypirc",
        ".docker/config.json",
        ".config/gh/hosts.yml",
        ".config/gcloud/credentials.db",
        ".gnupg/secring.gpg",
        ".mozilla/firefox/x.default/logins.json",
        ".bash_history",
        ".git-credentials",
        ".claude/.credentials.json",
    ];
    for name in names {
        let path = site.root().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, SECRET).unwrap();
    }
    let before = HostState::of(&site);
    let mut attack = Attack::new(
        &site,
        r##"
home = arguments[0]
def search(root):
    # Everywhere that a program may look, not only where the files are known to be.
    found = []
    for directory, directories, files in os.walk(root):
        directories[:] = [name for name in directories if os.path.join(directory, name) not in ("/proc", "/dev", "/usr", "/sys")]
        for name in files:
            path = os.path.join(directory, name)
            try:
                if os.path.getsize(path) < 65536 and b"canary-5f2c1d9e" in read(path, 65536):
                    found.append(path)
            except OSError:
                pass
    return must(found, "nothing found")
for name in arguments[1:]:
    attempt(name, read, os.path.join(home, name))
    attempt("~/" + name, read, os.path.join(os.path.expanduser("~"), name))
attempt("search", search, "/" if os.getuid() == 1000 and os.path.exists("/home/user") else home)
"##,
    )
    .argument(site.root());
    for name in names {
        attack = attack.argument(name);
    }
    attack.inside().assert_all_refused();
    before.assert_unchanged(&site);
    attack
        .outside()
        .prove(&[".ssh/id_ed25519", "~/.aws/credentials", "search"]);
}
