//! What a program is started with, and rights that it could gain: K3 to K5, K10.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

use super::arena::{self, Attack, HostState, can_attack, knows_numbers, not_proven, run};
use super::support::processes::{copy_program, eventually, long_sleep, processes_with};
use super::support::{Site, binary, is_root, record_of, skip};

#[test]
pub(crate) fn k3_descriptors_of_the_caller_are_not_inherited() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    std::fs::write(site.root().join("secret"), "canary").unwrap();
    let program = r##"
def canary(descriptor):
    return must(b"canary" in os.pread(descriptor, 100, 0), "something else is there")
def below(descriptor):
    file = os.open("secret", os.O_RDONLY, dir_fd=descriptor)
    return must(b"canary" in os.read(file, 100), "something else is there")
def others():
    # The listing itself has a descriptor, which is gone afterwards.
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return must([n for n in numbers if n > 2 and os.path.lexists("/proc/self/fd/%d" % n)], "none")
attempt("file", canary, 10)
attempt("directory", below, 9)
attempt("high", canary, 900)
attempt("working directory", lambda: must(b"canary" in read("/proc/self/cwd/../secret"), "another"))
attempt("others", others)
attempt("streams", lambda: must([n for n in range(3) if "/secret" in os.readlink("/proc/self/fd/%d" % n)], "none"))
"##;
    let attack = Attack::new(&site, program);
    // A shell that leaves a directory and files open to what it starts; it knows no numbers above 9, python does.
    let hand_over = r##"
import os, sys
os.dup2(os.open(sys.argv[1], os.O_RDONLY), 9)
for number in (10, 900):
    os.dup2(os.open(sys.argv[1] + "/secret", os.O_RDONLY), number)
for number in (9, 10, 900):
    os.set_inheritable(number, True)
os.execv(sys.argv[2], sys.argv[2:])
"##;
    let handed = |program: &std::ffi::OsStr, arguments: Vec<std::ffi::OsString>| {
        let mut command = Command::new(arena::PYTHON);
        command
            .args(["-I", "-S", "-c", hand_over])
            .arg(site.root())
            .arg(program)
            .args(arguments);
        command.current_dir(site.workspace()).env_clear();
        command
            .env("HOME", site.root())
            .env("OFFLEASH_STATE", site.state())
            .env("PATH", "/usr/bin:/bin");
        run(&mut command)
    };
    let sandboxed = attack.sandboxed();
    let output = handed(binary().as_os_str(), sandboxed.get_args().map(Into::into).collect());
    let record = record_of(&output);
    let inside = arena::Findings::of_record(record);
    inside.assert_all_refused();
    let line = attack.command_line();
    let outside = arena::Findings::of_output(&handed(&line[0], line[1..].to_vec()));
    outside.prove(&["file", "directory", "high", "working directory", "others"]);
}

#[test]
pub(crate) fn k4_secrets_in_the_environment_do_not_come_in() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let names = [
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "ANTHROPIC_API_KEY",
        "DATABASE_URL",
        "SSH_AUTH_SOCK",
        "DBUS_SESSION_BUS_ADDRESS",
        "XDG_RUNTIME_DIR",
        "LD_PRELOAD_OF_MINE",
        "OFFLEASH_STATE",
        "SOMETHING_ELSE",
    ];
    let attack = Attack::new(
        &site,
        r##"
def anywhere(value):
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            for file in ("environ", "cmdline"):
                try:
                    if int(name) != os.getpid() and value in read("/proc/%s/%s" % (name, file), 65536):
                        found.append(name)
                except OSError:
                    pass
    return must(found, "nowhere")
for name in arguments:
    attempt(name, lambda: must(os.environ.get(name), "not set"))
attempt("canary", lambda: must([v for v in os.environ.values() if "canary" in v], "none"))
attempt("other processes", anywhere, b"canary-5f2c")
attempt("own stack", lambda: must(b"canary" in read("/proc/self/environ", 65536), "none"))
"##,
    );
    let attack = attack.with_arguments(names);
    let mut sandboxed = attack.sandboxed();
    let mut plain = Command::new(arena::PYTHON);
    plain
        .args(&attack.command_line()[1..])
        .env_clear()
        .current_dir(site.workspace());
    for command in [&mut sandboxed, &mut plain] {
        for name in names.iter().filter(|name| **name != "OFFLEASH_STATE") {
            command.env(name, "canary-5f2c");
        }
    }
    plain.env("OFFLEASH_STATE", site.state());
    let inside = arena::Findings::of_record(record_of(&run(&mut sandboxed)));
    inside.assert_all_refused();
    let outside = arena::Findings::of_output(&run(&mut plain));
    outside.prove(&[
        "AWS_SECRET_ACCESS_KEY",
        "SSH_AUTH_SOCK",
        "SOMETHING_ELSE",
        "canary",
        "own stack",
    ]);
}

#[test]
pub(crate) fn k5_there_is_no_privilege_to_use_or_to_gain() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    // A setuid program in the workspace, as root may have left it: it must not raise anybody.
    let tool = site.workspace().join("setuid-id");
    copy_program("/usr/bin/id".as_ref(), &tool);
    std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
import subprocess
def status(key):
    with open("/proc/self/status") as file:
        return dict(line.split(":", 1) for line in file)[key].strip()
def capabilities():
    return must([set for set in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status(set), 16)], "none")
def becomes(uid):
    os.setresuid(uid, uid, uid)
    return os.getuid()
def group(gid):
    os.setresgid(gid, gid, gid)
def real_uid():
    # In a user namespace of its own a process sees its id of the outside in the second column.
    return must([line for line in open("/proc/self/uid_map") if line.split()[1] == "0"], "not the host's root")
def ambient():
    return c("prctl", 47, 2, 7, 0, 0)
def raise_capabilities():
    header, data = struct.pack("Ii", 0x20080522, 0), struct.pack("IIIIII", *[0xffffffff] * 6)
    return call(126, header, data)
def setuid_program(path, *values):
    output = subprocess.run([path, *values], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    return must(b"euid=0" in output or output.strip() == b"0", "not raised: %r" % output[:100])
def realtime(policy):
    os.sched_setscheduler(0, policy, os.sched_param(1))
attempt("capabilities", capabilities)
attempt("new privileges", lambda: must(status("NoNewPrivs") == "0", "forbidden"))
attempt("no filter", lambda: must(status("Seccomp") == "0", "filtered"))
attempt("host's root", real_uid)
for uid in (0, 1, 4242, 65534):
    attempt("become %d" % uid, in_child, becomes, uid)
attempt("group 0", in_child, group, 0)
attempt("groups", in_child, lambda: os.setgroups([0]))
attempt("ambient", ambient)
attempt("capset", in_child, raise_capabilities)
attempt("securebits", lambda: c("prctl", 28, 0, 0, 0, 0))
attempt("setuid program", setuid_program, "./setuid-id")
attempt("sudo", setuid_program, "/usr/bin/sudo", "-n", "id", "-u")
attempt("su", setuid_program, "/usr/bin/su", "-c", "id -u")
attempt("nice", lambda: os.nice(-1))
attempt("fifo", in_child, realtime, 1)
attempt("round robin", in_child, realtime, 2)
attempt("deadline", in_child, lambda: call(314, 0, struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10**7, 10**7, 10**7), 0))
attempt("oom_score_adj", in_child, lambda: write("/proc/self/oom_score_adj", b"-1000"))
attempt("chroot", in_child, lambda: os.chroot("/tmp"))
attempt("set the clock", lambda: call(227, 0, struct.pack("qq", *(int(x) for x in (time.time(), 0)))) if inside else must(0, "not tried"))
attempt("ioperm", in_child, lambda: call(173, 0x80, 1, 1))
attempt("iopl", in_child, lambda: call(172, 3))
"##
        .replace("inside", "os.path.exists('/home/user')")
        .as_str(),
    );
    for flags in [&[][..], &["--ids", "range"]] {
        if flags.len() == 2 && !is_root() {
            not_proven("a range of ids", "this user may have no subordinate ids");
            continue;
        }
        attack.again().flags(flags).inside().assert_all_refused();
    }
    before.assert_unchanged(&site);
    let outside = attack.outside();
    let root: &[&str] = &["capabilities", "host's root", "become 65534", "group 0", "chroot"];
    outside.prove(if is_root() {
        root
    } else {
        &["new privileges", "no filter"]
    });
    if is_root() {
        let as_nobody = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&tool)
            .output();
        let raised = as_nobody.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("euid=0"));
        if !raised {
            not_proven(
                "the setuid program",
                "the temporary directory is not reachable for others or mounted nosuid",
            );
        }
    }
}

#[test]
pub(crate) fn k10_the_program_that_runs_the_sandbox_cannot_be_overwritten() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r##"
victim = int(arguments[0])
def overwrite(path):
    # CVE-2019-5736: keep a handle while it runs, write through it when it no longer does.
    handle = os.open(path, os.O_PATH)
    if victim != 1:
        os.kill(victim, signal.SIGKILL)
        time.sleep(0.2)
    file = os.open("/proc/self/fd/%d" % handle, os.O_WRONLY)
    return os.write(file, b"pwned")
attempt("own program", lambda: opened("/proc/self/exe", os.O_WRONLY))
attempt("read init's", opened, "/proc/1/exe", os.O_RDONLY) if victim == 1 else None
attempt("truncate", lambda: os.truncate("/proc/%d/exe" % victim, 0))
attempt("overwrite", overwrite, "/proc/%d/exe" % victim)
"##,
    );
    attack.with_arguments(["1"]).inside().assert_all_refused();
    before.assert_unchanged(&site);
    // The same on the host, against a program of our own that can be lost.
    let program = site.workspace().join("victim");
    copy_program("/bin/sleep".as_ref(), &program);
    let mut victim = Command::new(&program).arg("600").spawn().unwrap();
    let comm = format!("/proc/{}/comm", victim.id());
    eventually("the start of the victim", || {
        (std::fs::read_to_string(&comm).ok()?.trim() == "victim").then_some(())
    });
    let outside = attack.with_arguments([victim.id().to_string()]).outside();
    let _gone = victim.kill();
    let _status = victim.wait().unwrap();
    outside.prove(&["overwrite"]);
    assert!(std::fs::read(&program).unwrap().starts_with(b"pwned"));
}

/// Whoever got hold of it all the same, by a defect of the kernel's or ours, holds something that cannot be changed.
#[test]
fn k10_the_program_that_sandboxes_share_is_read_only_where_they_have_it() {
    if !can_attack() {
        return;
    }
    if !is_root() {
        return skip("only root may look at what the first process of a sandbox was started from");
    }
    let site = Site::new();
    let seconds = long_sleep();
    let mut command = site.offleash(["run", "--quiet", "--", "/bin/sleep", &seconds]);
    let mut supervisor = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The first process looks like its supervisor until it is the guest.
    let sleeps = |process: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
        name.is_ok_and(|name| name == "sleep\n")
    };
    let sleeper = eventually("the start of the command", || {
        processes_with(&seconds).into_iter().find(sleeps)
    });
    let status = std::fs::read_to_string(format!("/proc/{sleeper}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    let program = format!("/proc/{}/exe", parent.unwrap_or_default().trim());
    let files = std::fs::read_dir(site.state()).unwrap().flatten();
    let is_guest = |name: &OsStr| name.as_encoded_bytes().starts_with(b"offleash-guest-");
    let file = files
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(is_guest));
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let shared = (identity(program.as_ref()), file.as_deref().and_then(identity));
    let mode = || std::fs::Permissions::from_mode(0o777);
    let inside = std::fs::set_permissions(&program, mode()).map_err(|error| error.kind());
    let outside = file.map(|file| std::fs::set_permissions(file, mode()).is_ok());
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    assert!(shared.0.is_some() && shared.0 == shared.1, "{shared:?}");
    assert_eq!(inside, Err(std::io::ErrorKind::ReadOnlyFilesystem));
    assert_eq!(outside, Some(true), "the same where it is not mounted");
}
