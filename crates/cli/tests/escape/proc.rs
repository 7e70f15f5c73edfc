//! What procfs, sysfs, devices and control groups show and steer: P1 to P8.

use std::collections::BTreeSet;

use super::arena::{Attack, HostState, can_attack, knows_numbers, not_proven, tell};
use super::support::{Site, is_root};

#[test]
pub(crate) fn p1_the_kernels_insides_cannot_be_read() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r#"
def contents(path):
    # The log waits for a new line when there is none.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    return len(must(os.read(file, 64), "empty"))
def addresses():
    with open("/proc/kallsyms") as file:
        return must([line for line in file if not line.startswith("0000000000000000")], "no addresses")[0]
for name in ["kcore", "kallsyms", "kmsg", "keys", "key-users", "timer_list", "slabinfo", "vmallocinfo", "iomem", "ioports",
             "config.gz", "cmdline", "modules", "interrupts", "sched_debug", "kpagecount", "kpageflags", "kpagecgroup",
             "pagetypeinfo", "1/stack", "self/stack", "1/syscall", "1/pagemap", "1/auxv", "1/maps"]:
    attempt(name, contents, "/proc/" + name)
attempt("addresses", addresses)
for action in [2, 3, 4, 10]:
    attempt("syslog %d" % action, call, 103, action, ctypes.create_string_buffer(4096), 4096)
for path in ["/sys/kernel/notes", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/firmware",
             "/sys/module", "/sys/class/net", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/tasks"]:
    attempt(path, lambda: must(os.path.exists(path), "absent"))
"#,
    );
    let outside_only = Attack::new(&site, SHOWN_TO_ALL);
    attack.inside().assert_all_refused();
    // Reading the log's new lines would take them away from others, so outside only what reads without taking.
    let outside = outside_only.outside();
    outside.prove(if is_root() {
        &["kallsyms", "slabinfo", "syslog 3"]
    } else {
        &["kallsyms", "cmdline"]
    });
}

/// What can be tried outside without taking anything away from other readers.
const SHOWN_TO_ALL: &str = r#"
def contents(path):
    return len(must(read(path, 64), "empty"))
for name in ["kcore", "kallsyms", "keys", "key-users", "timer_list", "slabinfo", "vmallocinfo", "iomem", "ioports", "config.gz",
             "cmdline", "modules", "interrupts"]:
    attempt(name, contents, "/proc/" + name)
for action in [3, 10]:
    attempt("syslog %d" % action, call, 103, action, ctypes.create_string_buffer(4096), 4096)
"#;

#[test]
pub(crate) fn p2_the_kernels_switches_cannot_be_turned() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r#"
# Opened and not written: a success would change the whole machine.
for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug",
             "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger", "/proc/sys/vm/panic_on_oom",
             "/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/user/max_user_namespaces", "/proc/irq/default_smp_affinity",
             "/proc/mtrr", "/proc/scsi/scsi", "/proc/acpi/wakeup", "/proc/driver", "/proc/1/oom_score_adj", "/proc/1/mem",
             "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run"]:
    attempt(path, opened, path, os.O_WRONLY)
def every_switch():
    writable = []
    for directory, _, files in os.walk("/proc/sys"):
        for name in files:
            path = os.path.join(directory, name)
            try:
                writable.append(opened(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                pass
    return must(writable, "none can be written")
attempt("every switch", every_switch)
attempt("remake", os.unlink, "/proc/sys/kernel/core_pattern")
attempt("change mode", os.chmod, "/proc/sys/kernel/core_pattern", 0o666)
"#,
    );
    attack.inside().assert_all_refused();
    let root: &[&str] = &[
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/panic_on_oom",
        "every switch",
    ];
    let outside = Attack::new(
        &site,
        r#"
for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/proc/sys/vm/panic_on_oom"]:
    attempt(path, opened, path, os.O_WRONLY)
attempt("every switch", opened, "/proc/sys/kernel/core_pattern", os.O_WRONLY)
"#,
    );
    outside.outside().prove(if is_root() { root } else { &[] });
}

/// What tells one machine from another.
const IDENTITY: &str = r#"
def value(path):
    return must(read(path).strip(), "empty").decode("latin-1")
def found(action):
    return must(action(), "empty")
attempt("hostname", lambda: os.uname().nodename)
attempt("domain", lambda: must(value("/proc/sys/kernel/domainname") != "(none)", "none"))
attempt("boot id", value, "/proc/sys/kernel/random/boot_id")
for path in ["/etc/machine-id", "/var/lib/dbus/machine-id", "/sys/class/dmi/id/product_uuid", "/sys/class/dmi/id/sys_vendor",
             "/sys/class/net/eth0/address", "/sys/devices/virtual/dmi/id/board_serial", "/proc/cmdline", "/etc/hostid",
             "/proc/acpi/wakeup", "/proc/bus/pci/devices", "/proc/interrupts"]:
    attempt(path, value, path)
attempt("interfaces", lambda: must([l.split(":")[0].strip() for l in open("/proc/net/dev") if ":" in l and not l.strip().startswith("lo:")], "only lo"))
attempt("boot time", lambda: [line for line in open("/proc/stat") if line.startswith("btime")][0].strip())
attempt("processor", lambda: [line for line in open("/proc/cpuinfo") if line.startswith("model name")][0].strip())
"#;

#[test]
pub(crate) fn p3_two_sandboxes_cannot_tell_that_they_share_a_machine_by_its_names() {
    if !can_attack() {
        return;
    }
    let (site, other) = (Site::new(), Site::new());
    let [first, second] = [&site, &other].map(|site| Attack::new(site, IDENTITY).inside());
    let outside = Attack::new(&site, IDENTITY).outside();
    assert_eq!(first.got("hostname"), "'sandbox'");
    assert_ne!(first.got("hostname"), outside.got("hostname"));
    let boot_ids: BTreeSet<_> = [&first, &second, &outside]
        .map(|findings| findings.got("boot id"))
        .into();
    assert_eq!(boot_ids.len(), 3, "a boot id is shared: {boot_ids:?}");
    // The time of the last start and the processor are the machine's, and programs need them. A time namespace could
    // shift the first, but load and counters tell the same.
    let shared = ["hostname", "boot id", "boot time", "processor"];
    for findings in [&first, &second] {
        findings.assert_refused_except(&shared);
    }
    if first.of("boot time") == outside.of("boot time") {
        tell("the machine's boot time is visible in every sandbox (/proc/stat)");
    }
    outside.prove(&["hostname", "boot id", "/proc/cmdline", "interfaces"]);
}

#[test]
pub(crate) fn p4_mounts_and_groups_show_no_paths_of_the_host() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r#"
state, site = arguments
workspace = os.getcwd()
def lines(name, shown):
    with open("/proc/self/" + name) as file:
        return must([line for line in file if shown(line)], "no such line")
def beyond_workspace(line):
    return state in line or site in line.replace(workspace, "")
def names_a_layer(line):
    # Parts that are attached nowhere are shown relative to themselves.
    own = ["lowerdir+=/", "upperdir=/upper", "workdir=/work"]
    options = line.split()[-1].split(",")
    return any("dir" in option and "=/" in option and option not in own for option in options)
for name in ["mountinfo", "mounts", "mountstats"]:
    attempt(name + " state", lines, name, lambda line: state in line)
    attempt(name + " site", lines, name, beyond_workspace)
    attempt(name + " layers", lines, name, names_a_layer)
attempt("cgroup", lines, "cgroup", lambda line: not line.rstrip().endswith(":/"))
attempt("cgroup above", lines, "cgroup", lambda line: "/.." in line)
attempt("init's cgroup", lambda: must([l for l in open("/proc/1/cgroup") if not l.rstrip().endswith(":/")], "none"))
"#,
    )
    .argument(site.state())
    .argument(site.root());
    attack.inside().assert_all_refused();
    let outside = Attack::new(
        &site,
        "attempt('mountinfo', lambda: must([l for l in open('/proc/self/mountinfo') if ' / ' in l], 'none')[0])\n\
         attempt('cgroup', lambda: must([l for l in open('/proc/self/cgroup') if not l.rstrip().endswith(':/')], 'in the root group')[0])",
    );
    outside.outside().prove(&["mountinfo"]);
}

#[test]
fn p5_there_are_six_devices_and_no_other() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r#"
for name in ["mem", "kmem", "port", "kvm", "fuse", "net/tun", "loop-control", "loop0", "vda", "sda", "nvme0n1", "vsock",
             "vhost-vsock", "vhost-net", "userfaultfd", "uinput", "kmsg", "console", "tty0", "tty1", "ttyS0", "hpet", "rtc0",
             "nvram", "cpu/0/msr", "snapshot", "mapper/control", "dri/card0", "input/event0", "watchdog", "hwrng", "mqueue",
             "hugepages", "btrfs-control", "autofs", "cuse", "ppp", "uhid", "vfio/vfio", "udmabuf", "sev", "tpm0"]:
    attempt(name, opened, "/dev/" + name, os.O_RDONLY | os.O_NONBLOCK)
"#,
    );
    attack.inside().assert_all_refused();
    let listing = Attack::new(&site, "attempt('list', lambda: ' '.join(sorted(os.listdir('/dev'))))").inside();
    assert_eq!(
        listing.got("list"),
        "'fd full null ptmx pts random shm stderr stdin stdout tty urandom zero'",
        "what is in /dev"
    );
    // Opening a watchdog starts it, so outside only what opening does not change.
    let outside = Attack::new(
        &site,
        "for name in ['mem', 'vda', 'sda', 'kvm', 'fuse', 'net/tun', 'loop-control', 'kmsg', 'userfaultfd', 'vsock']:\n    \
         attempt(name, opened, '/dev/' + name, os.O_RDONLY | os.O_NONBLOCK)",
    );
    let outside = outside.outside();
    assert!(
        !is_root() || outside.all().values().any(Result::is_ok),
        "no device can be opened outside either"
    );
    outside.prove(&[]);
}

#[test]
pub(crate) fn p6_the_hosts_disks_cannot_be_made_as_nodes() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let before = HostState::of(&site);
    let attack = Attack::new(
        &site,
        r#"
def disks():
    with open("/proc/partitions") as file:
        return [tuple(map(int, line.split()[:2])) for line in file if line.strip() and line.split()[0].isdigit()]
def disk(place):
    for major, minor in disks() or [(8, 0), (254, 0)]:
        path = os.path.join(place, "disk")
        os.mknod(path, 0o060600, os.makedev(major, minor))
        try:
            return len(must(read(path, 512), "empty"))
        finally:
            os.unlink(path)
def memory(place):
    path = os.path.join(place, "memory")
    os.mknod(path, 0o020600, os.makedev(1, 1))
    try:
        return opened(path, os.O_RDONLY)
    finally:
        os.unlink(path)
def in_namespace(action, place):
    c("unshare", NEWUSER | NEWNS)
    return action(place)
for place in arguments:
    attempt("disk in " + place, disk, place)
    attempt("memory in " + place, memory, place)
    attempt("disk in a namespace " + place, in_child, in_namespace, disk, place)
"#,
    );
    attack
        .with_arguments([".", "/tmp", "/dev", "/dev/shm", "/home/user", "/run"])
        .inside()
        .assert_all_refused();
    before.assert_unchanged(&site);
    attack.with_arguments(["."]).outside().prove(&[]);
}

#[test]
pub(crate) fn p7_control_groups_cannot_be_reached() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r#"
def visible():
    with open("/proc/mounts") as file:
        return must([line for line in file if line.split()[2] in ("cgroup", "cgroup2")], "none is mounted")
def mounted(kind, options):
    os.makedirs("groups", exist_ok=True)
    c("mount", b"none", b"groups", kind, 0, options)
    return must(os.listdir("groups"), "empty")
def in_namespaces(action, *values):
    c("unshare", NEWUSER | NEWNS | NEWCGROUP)
    return action(*values)
def as_root(action, *values):
    c("unshare", NEWNS)
    c("mount", b"none", b"/", None, 16384 | 1 << 18, None)
    return action(*values)
attempt("visible", visible)
attempt("cgroup2", in_child, as_root, mounted, b"cgroup2", None)
attempt("cgroup2 in namespaces", in_child, in_namespaces, mounted, b"cgroup2", None)
attempt("release agent", in_child, as_root, mounted, b"cgroup", b"memory")
attempt("release agent in namespaces", in_child, in_namespaces, mounted, b"cgroup", b"memory")
attempt("by fsopen", in_child, lambda: call(430, b"cgroup2", 0))
for path in ["/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/release_agent",
             "/sys/fs/cgroup/devices/devices.allow", "/sys/fs/cgroup/unified/cgroup.procs"]:
    attempt(path, opened, path, os.O_WRONLY)
"#,
    );
    attack.inside().assert_all_refused();
    attack.outside().prove(if is_root() {
        &["cgroup2", "visible"]
    } else {
        &["visible"]
    });
}

/// Dies in a way that dumps core, after trying to get one.
const CRASH: &str = r#"
import resource
def raised():
    unlimited = resource.RLIM_INFINITY
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (unlimited, unlimited))
    except ValueError:
        pass
    return must(resource.getrlimit(resource.RLIMIT_CORE) == (unlimited, unlimited), "not raised")
def crash(wanted):
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (wanted, wanted))
    except (OSError, ValueError):
        pass
    os.kill(os.getpid(), signal.SIGSEGV)
def dumped(wanted):
    child = os.fork()
    if child == 0:
        crash(wanted)
    status = os.waitpid(child, 0)[1]
    must(os.WIFSIGNALED(status), "it did not crash")
    return must(os.WCOREDUMP(status), "no core was dumped")
attempt("raise", in_child, raised)
attempt("dump", dumped, resource.RLIM_INFINITY)
attempt("dump without limit", dumped, 0)
def lowered():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return must(resource.getrlimit(resource.RLIMIT_CORE)[0] != 1, "not lowered")
attempt("lower", in_child, lowered)
attempt("limit", lambda: resource.getrlimit(resource.RLIMIT_CORE))
"#;

#[test]
pub(crate) fn p8_crashes_leave_no_core_and_reach_no_handler() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let inside = Attack::new(&site, CRASH).inside();
    inside.assert_refused_except(&["limit"]);
    let outside = Attack::new(&site, CRASH).outside();
    if outside.got("limit").ends_with(" 0)") {
        not_proven("keeping from handlers of cores", "the hard limit of this user is 0");
    } else {
        // With this soft limit, and with no other, the kernel starts no program of the host.
        assert_eq!(inside.got("limit"), "(1, 1)");
    }
    assert_eq!(
        inside.record["changes"]["added"], 0,
        "a core was left: {:#}",
        inside.record
    );
    let handler = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if outside.of("dump").is_err() {
        not_proven(
            "dumping core",
            "the hard limit of this user or the pattern of this machine forbids it",
        );
    }
    if !handler.starts_with('|') {
        not_proven("reaching a handler of cores", "this machine writes them to files");
    }
}
