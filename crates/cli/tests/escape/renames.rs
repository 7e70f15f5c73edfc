//! What renames directories for the sandbox cannot be led out of it, nor does it do more than its caller may: F1, F2, F4.

use std::os::unix::fs::symlink;

use super::arena::{Attack, HostState, can_attack};
use super::files::site_with_secret;
use super::support::{Site, skip, stderr, stdout};

/// A site with a directory beside the workspace that a link in it leads to, and one in the workspace that is renamed.
fn site_with_directories() -> Site {
    let site = site_with_secret();
    let beside = site.root().join("beside/inner");
    std::fs::create_dir_all(&beside).unwrap();
    std::fs::write(beside.join("secret"), "canary").unwrap();
    symlink(site.root().join("beside"), site.workspace().join("out")).unwrap();
    for number in 0..200 {
        site.write(format!("pkg/sub-{number}/inner/secret"), "own");
    }
    site
}

#[test]
pub(crate) fn f1_a_renaming_through_a_link_reaches_no_directory_of_the_host() {
    if !can_attack() {
        return;
    }
    let site = site_with_directories();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
beside = arguments[0]
def take(path):
    os.rename(path, "taken")
    try:
        return must(read("taken/secret") == b"canary", "something else is there")
    finally:
        os.rename("taken", path)
def give(path):
    os.rename("pkg/sub-0", path)
    try:
        return must(os.path.exists(path), "it went elsewhere")
    finally:
        os.rename(path, "pkg/sub-0")
attempt("through a link", take, "out/inner")
attempt("absolute", take, beside + "/inner")
attempt("above", take, "../beside/inner")
attempt("to a link", give, "out/given")
attempt("to above", give, "../beside/given")
"##,
    )
    .argument(site.root().join("beside"));
    attack.inside().assert_all_refused();
    before.assert_unchanged(&site);
    attack
        .outside()
        .prove(&["through a link", "absolute", "above", "to a link", "to above"]);
}

#[test]
fn f4_what_a_link_calls_renamed_is_not_removed_from_the_host() {
    let site = Site::new();
    site.write("sub/key", "k\n");
    let sub = site.workspace().join("sub");
    let workspace = format!("{}:rw", site.workspace().display());
    let output = site
        .offleash(["run", "-w", &workspace, "--read"])
        .arg(&sub)
        .args(["--", "sh", "-c", "ln -s sub .offleash-renamed-0123456789abcdef"])
        .output()
        .unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("not applied: `sub/key`"), "{said}");
    assert_eq!(std::fs::read_to_string(sub.join("key")).unwrap(), "k\n");
}

#[test]
fn f2_what_is_swapped_for_a_link_during_the_copy_leads_nowhere() {
    if !can_attack() {
        return;
    }
    let site = site_with_directories();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
beside = arguments[0]
def swap_in(directory, target):
    """Puts links in the place of directories, there and in the copy that is being made, for as long as it lasts."""
    while True:
        names = [directory] + [name for name in os.listdir(".") if name.startswith(".offleash-rename")]
        for top in names:
            try:
                for name in os.listdir(top):
                    place = top + "/" + name
                    os.rename(place, "moved-%d" % time.monotonic_ns())
                    os.symlink(target, place)
            except OSError:
                pass
def rename_meanwhile(target):
    os.mkdir("scratch")
    swapper = os.fork()
    if swapper == 0:
        swap_in("pkg", target)
    try:
        for number in range(20):
            for old, new in (("pkg", "new"), ("new", "pkg")):
                try:
                    os.rename(old, new)
                except OSError:
                    pass
    finally:
        os.kill(swapper, signal.SIGKILL)
        os.waitpid(swapper, 0)
    for directory, directories, files in os.walk("."):
        for name in files:
            if not os.path.islink(directory + "/" + name):
                if read(directory + "/" + name) == b"canary":
                    return directory
    raise RuntimeError("nothing of the host's came in")
attempt("swap", rename_meanwhile, beside)
"##,
    )
    .argument(site.root().join("beside"));
    attack.inside().assert_all_refused();
    before.assert_unchanged(&site);
}

/// Runs a program as a user of a sandbox with a root of its own; `None` where there is no superuser.
fn in_base(site: &Site, user: &str, program: &str) -> Option<String> {
    let flags = ["--root", "base", "--no-workspace", "--user", user];
    let output = site.run_shell(&flags, "id -u");
    if user == "root" && stdout(&output) != "0\n" {
        skip("the sandbox has no superuser: the caller has no subordinate ids");
        return None;
    }
    let program = format!("python3 - <<'END'\nimport os, errno\n{program}\nEND\n");
    let output = site.run_shell(&flags, &program);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    Some(stdout(&output))
}

/// A program that says what came of renaming.
const TRY: &str = r#"
def tried(old, new):
    try:
        os.rename(old, new)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
"#;

#[test]
fn f2_no_directory_is_renamed_for_a_user_who_may_not() {
    let site = Site::sharing_templates();
    let program = format!(
        "{TRY}\nfor old, new in (('/usr/share/doc', '/usr/share/doc2'), ('/etc', '/home/user/etc'), ('/usr', '/usr2')):\n    \
         print(tried(old, new))"
    );
    if in_base(&site, "root", "").is_none() {
        return;
    }
    assert_eq!(
        in_base(&site, "user", &program).as_deref(),
        Some("EACCES\nEACCES\nEACCES\n")
    );
}

#[test]
fn f4_a_path_in_a_root_of_the_callers_own_means_no_other_directory() {
    let site = Site::sharing_templates();
    let program = format!(
        "{TRY}
os.chroot('/usr/share')
print(tried('/etc', '/etc2'), tried('/doc', '/doc2'), os.path.isdir('/doc'))
os.chdir('/')
print(tried('../etc', 'etc2'), tried('doc', 'doc2'))"
    );
    let Some(printed) = in_base(&site, "root", &program) else {
        return;
    };
    assert_eq!(printed, "ENOENT EXDEV True\nENOENT EXDEV\n");
}

#[test]
fn k5_a_caller_with_less_than_its_user_has_is_not_acted_for() {
    let site = Site::sharing_templates();
    // The superuser without its capabilities may not write in a directory of another user's.
    let program = format!(
        "{TRY}
import ctypes
os.mkdir('/usr/share/own', 0o755)
os.chown('/usr/share/own', 1000, 1000)
class Header(ctypes.Structure):
    _fields_ = [('version', ctypes.c_uint32), ('pid', ctypes.c_int)]
none = (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(ctypes.byref(Header(0x20080522, 0)), none) == 0
print(tried('/usr/share/doc', '/usr/share/own/doc'), tried('/usr/share/doc', '/usr/share/doc2'))"
    );
    let Some(printed) = in_base(&site, "root", &program) else {
        return;
    };
    assert_eq!(printed, "EACCES EXDEV\n");
}
