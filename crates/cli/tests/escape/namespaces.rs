//! Namespaces, mounts and sockets: S5, S6, S8, S9.

use std::collections::BTreeSet;

use super::arena::{Attack, can_attack, knows_numbers, not_proven, tell};
use super::support::{Site, is_root};

#[test]
pub(crate) fn s5_no_namespace_can_be_made_or_entered() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import socket
names = {"user": NEWUSER, "mount": NEWNS, "network": NEWNET, "pid": NEWPID, "uts": NEWUTS, "ipc": NEWIPC,
         "cgroup": NEWCGROUP, "time": 0x80}
def cloned(flags):
    child = call(56, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1]
def with_user(flags):
    c("unshare", NEWUSER)
    return c("unshare", flags)
for name, flag in names.items():
    attempt("unshare " + name, in_child, with_user if flag != NEWUSER else (lambda flags: c("unshare", flags)), flag)
    if flag != 0x80:
        attempt("clone " + name, in_child, cloned, NEWUSER | flag)
attempt("unshare with high bits", in_child, lambda: call(272, NEWUSER | 1 << 40))
attempt("clone with high bits", in_child, cloned, NEWUSER | 1 << 40)
def chain_overlay():
    with_user(NEWNS)
    os.makedirs("a", exist_ok=True)
    return c("mount", b"none", b"a", b"tmpfs", 0, None)
def chain_packet():
    with_user(NEWNET)
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).fileno()
def chain_nftables():
    with_user(NEWNET)
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).fileno()
attempt("then mount", in_child, chain_overlay)
attempt("then packet socket", in_child, chain_packet)
attempt("then nftables", in_child, chain_nftables)
for name in ["user", "mnt", "net", "pid"]:
    attempt("setns own " + name, in_child, lambda: c("setns", os.open("/proc/self/ns/" + name, os.O_RDONLY), 0))
"##,
    );
    attack.inside().assert_all_refused();
    let outside = attack.outside();
    if outside.of("unshare user").is_err() {
        return not_proven("user namespaces", "this machine forbids them");
    }
    outside.prove(&[
        "unshare user",
        "clone user",
        "then mount",
        "then packet socket",
        "then nftables",
    ]);
}

#[test]
pub(crate) fn s6_the_mount_calls_are_refused() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
def privileged(action):
    # Without a sandbox a mount namespace gives the right and keeps the machine from harm; inside there is none to make.
    try:
        c("unshare", NEWUSER | NEWNS)
    except OSError:
        if not os.path.exists("/home/user"):
            raise
    return action()
attempt("fsopen", in_child, privileged, lambda: call(430, b"tmpfs", 0))
attempt("fspick", in_child, privileged, lambda: call(433, -100, b"/", 0))
attempt("open_tree", in_child, privileged, lambda: call(428, -100, b".", 0))
attempt("open_tree clone", in_child, privileged, lambda: call(428, -100, b".", 1))
attempt("open_tree_attr", in_child, privileged, lambda: call(467, -100, b".", 1, None, 0))
attempt("mount_setattr", in_child, privileged, lambda: call(442, -100, b"/", 0, struct.pack("4Q", 1, 0, 0, 0), 32))
attempt("mount", in_child, privileged, lambda: c("mount", b"none", b".", b"tmpfs", 0, None))
attempt("umount", in_child, privileged, lambda: c("umount2", b"/proc", 2))
attempt("pivot_root", in_child, privileged, lambda: call(155, b".", b"."))
attempt("statmount", lambda: call(457, None, None, 0, 0))
attempt("listmount", lambda: call(458, struct.pack("IIQQ", 24, 0, 0xffffffffffffffff, 0), ctypes.create_string_buffer(800), 100, 0))
def move():
    tree = call(428, -100, b".", 1)
    return call(429, tree, b"", -100, b".", 4)
attempt("move_mount", in_child, privileged, move)
"##,
    );
    let inside = attack.inside();
    inside.assert_all_refused();
    for name in ["fsopen", "open_tree", "mount_setattr", "mount", "pivot_root"] {
        assert_eq!(
            inside.of(name),
            &Err("EPERM".to_owned()),
            "`{name}` got further than the filter"
        );
    }
    let outside = attack.outside();
    let namespaces = is_root() || outside.of("mount").is_ok();
    outside.prove(if namespaces {
        &["fsopen", "open_tree clone", "mount", "move_mount", "mount_setattr"]
    } else {
        &[]
    });
}

#[test]
pub(crate) fn s8_only_four_families_of_sockets_exist() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
def opens(family, kind, protocol):
    descriptor = c("socket", ctypes.c_long(family), ctypes.c_long(kind), ctypes.c_long(protocol))
    os.close(descriptor)
    return descriptor
for family in range(0, 50):
    for kind in (1, 2, 3, 5, 10):
        attempt("%d %d 0" % (family, kind), opens, family, kind, 0)
for protocol in range(0, 25):
    attempt("16 3 %d" % protocol, opens, 16, 3, protocol)
for family in (2, 10):
    for kind, protocol in [(1, 6), (2, 17), (3, 1), (3, 255), (2, 1), (2, 58), (1, 132), (1, 262), (2, 136), (5, 132), (1, 33), (3, 2)]:
        attempt("%d %d %d" % (family, kind, protocol), opens, family, kind, protocol)
for family in (38, 40, 17, 44):
    attempt("%d with high bits" % family, lambda: call(41, family | 1 << 32, 1, 0))
    attempt("%d with flags" % family, opens, family, 1 | 0o2000000 | 0o4000, 0)
    attempt("pair %d" % family, lambda: call(53, family, 1, 0, ctypes.create_string_buffer(8)))
"##,
    );
    let inside = attack.inside();
    let opened: BTreeSet<_> = inside
        .all()
        .iter()
        .filter(|(_, got)| got.is_ok())
        .map(|(name, _)| name.as_str())
        .collect();
    let expected: BTreeSet<_> = [
        "1 1 0", "1 2 0", "1 3 0", "1 5 0", "2 1 0", "2 2 0", "10 1 0", "10 2 0", "16 2 0", "16 3 0", "2 1 6",
        "2 2 17", "10 1 6", "10 2 17",
    ]
    .into();
    let surplus: Vec<_> = opened.difference(&expected).collect();
    assert!(
        surplus.is_empty(),
        "sockets beyond those that programs need (family type protocol): {surplus:?}"
    );
    assert!(
        opened.contains("1 1 0") && opened.contains("2 1 0"),
        "ordinary sockets do not work: {opened:?}"
    );
    let outside = attack.outside();
    let opened_outside = outside.all().values().filter(|outcome| outcome.is_ok()).count();
    assert!(
        opened_outside > opened.len(),
        "without a sandbox there are no more families"
    );
    tell(&format!(
        "sockets that open: {} inside, {opened_outside} without a sandbox",
        opened.len()
    ));
}

#[test]
fn s9_sockets_that_lead_out_of_a_machine_cannot_be_opened() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import socket
def vsock(address):
    client = socket.socket(40, socket.SOCK_STREAM)
    client.settimeout(1)
    return client.connect_ex(address)
def crypto():
    algorithm = socket.socket(38, 5, 0)
    algorithm.bind(("hash", "sha256"))
    return algorithm.fileno()
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM).fileno())
attempt("vsock to the host", vsock, (2, 1))
attempt("vsock to itself", vsock, (1, 1))
attempt("crypto", crypto)
attempt("packets", lambda: socket.socket(17, socket.SOCK_RAW).fileno())
attempt("express data path", lambda: socket.socket(44, socket.SOCK_RAW).fileno())
attempt("bluetooth", lambda: socket.socket(31, socket.SOCK_RAW, 1).fileno())
attempt("key management", lambda: socket.socket(15, socket.SOCK_RAW, 2).fileno())
attempt("ping", lambda: socket.socket(2, socket.SOCK_DGRAM, 1).fileno())
"##,
    );
    let inside = attack.inside();
    inside.assert_all_refused();
    let denials = inside.record["denials"].to_string();
    assert!(
        denials.contains("AF_VSOCK"),
        "the record does not name the way out: {denials}"
    );
    attack.outside().prove(if is_root() { &["packets"] } else { &[] });
}
