//! Communication and terminals: K6 to K9.

use std::process::Command;

use super::arena::{self, Attack, can_attack, knows_numbers, not_proven, run, token};
use super::support::{Site, binary, is_root};

#[test]
pub(crate) fn k6_keyrings_cannot_be_reached() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
ADD_KEY, REQUEST_KEY, KEYCTL = 248, 249, 250
PROCESS, SESSION, USER = -2, -3, -4
def key(ring):
    return call(ADD_KEY, b"user", b"offleash-test", b"x", 1, ring)
attempt("add to the process's", in_child, key, PROCESS)
attempt("the user's", lambda: call(KEYCTL, 0, USER, 0))
attempt("the session's", lambda: call(KEYCTL, 0, SESSION, 0))
attempt("link", in_child, lambda: call(KEYCTL, 8, USER, PROCESS))
attempt("search", in_child, lambda: call(KEYCTL, 10, USER, b"user", b"offleash-none", 0))
attempt("request", in_child, lambda: call(REQUEST_KEY, b"user", b"offleash-none", None, 0))
attempt("join a session", in_child, lambda: call(KEYCTL, 1, None))
attempt("listed", lambda: must(read("/proc/keys"), "none"))
"##,
    );
    let inside = attack.inside();
    inside.assert_all_refused();
    for name in ["add to the process's", "the user's", "search", "request"] {
        assert_eq!(
            inside.of(name),
            &Err("EPERM".to_owned()),
            "`{name}` reached the kernel's keys"
        );
    }
    let outside = attack.outside();
    if outside.of("add to the process's") == &Err("ENOSYS".to_owned()) {
        return not_proven("keyrings", "this kernel has none");
    }
    outside.prove(&["add to the process's", "the user's"]);
}

#[test]
pub(crate) fn k7_shared_memory_and_queues_of_the_host_are_not_shared() {
    if !knows_numbers() {
        return;
    }
    let site = Site::new();
    let name = token("shm");
    let key = 0x6b37_0000 ^ u64::from(std::process::id());
    let common = r##"
SHMGET, SEMGET, MSGGET, MQ_OPEN = 29, 64, 68, 240
name, key = arguments[0], int(arguments[1])
"##;
    let make = Attack::new(
        &site,
        &format!(
            r##"{common}
attempt("segment", lambda: call(SHMGET, key, 4096, 0o1600))
attempt("file", lambda: write("/dev/shm/" + name))
attempt("queue", lambda: call(MQ_OPEN, name.encode(), os.O_CREAT | os.O_RDWR, 0o600, None))
"##
        ),
    )
    .argument(&name)
    .argument(key.to_string());
    let find = Attack::new(
        &site,
        &format!(
            r##"{common}
attempt("segment", lambda: call(SHMGET, key, 4096, 0))
attempt("file", lambda: read("/dev/shm/" + name))
attempt("queue", lambda: call(MQ_OPEN, name.encode(), os.O_RDWR, 0, None))
attempt("listed", lambda: must([l for l in open("/proc/sysvipc/shm") if l.split()[0] == str(key)], "not there"))
attempt("semaphores", lambda: call(SEMGET, 0, 1, 0o1600))
attempt("messages", lambda: call(MSGGET, 0, 0o1600))
"##
        ),
    )
    .with_arguments([name.clone(), key.to_string()]);
    make.outside().prove(&["segment", "file"]);
    let inside = find.inside();
    let outside = Attack::new(
        &site,
        &format!(
            r##"{common}
attempt("segment", lambda: call(SHMGET, key, 4096, 0))
attempt("file", lambda: read("/dev/shm/" + name))
attempt("listed", lambda: must([l for l in open("/proc/sysvipc/shm") if l.split()[0] == str(key)], "not there"))
attempt("removed", lambda: (os.unlink("/dev/shm/" + name), libc.shmctl(call(SHMGET, key, 4096, 0), 0, None)))
libc.syscall(native(241), name.encode())
"##
        ),
    )
    .with_arguments([name.clone(), key.to_string()])
    .outside();
    inside.assert_all_refused();
    outside.prove(&["segment", "file", "listed", "removed"]);
    // The other way round: what a sandbox makes is not on the host.
    make.inside().prove(&["segment", "file"]);
    assert!(!std::path::Path::new("/dev/shm").join(&name).exists());
    let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    assert!(
        !segments.split_whitespace().any(|word| word == key.to_string()),
        "the segment is on the host"
    );
}

#[test]
pub(crate) fn k8_sockets_of_the_host_cannot_be_connected_to() {
    if !can_attack() {
        return;
    }
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let site = Site::new();
    let name = token("socket");
    let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = UnixListener::bind_addr(&abstract_address).unwrap();
    let beside = site.root().join("socket");
    let _beside = UnixListener::bind(&beside).unwrap();
    // A listener of the host in the very directory that the sandbox has: an agent's socket in a project.
    let within = site.workspace().join("agent.sock");
    let _within = UnixListener::bind(&within).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let attack = Attack::new(
        &site,
        r##"
import socket
name, beside, port = arguments
def stream(address):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(2)
    client.connect(address)
def datagram(address):
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", address)
def linked(path):
    os.symlink(path, "to-socket")
    try:
        stream("to-socket")
    finally:
        os.unlink("to-socket")
attempt("abstract", stream, "\0" + name)
attempt("abstract datagram", datagram, "\0" + name)
attempt("beside", stream, beside)
attempt("by link", linked, beside)
attempt("in the workspace", stream, "agent.sock")
attempt("loopback", lambda: socket.create_connection(("127.0.0.1", int(port)), 2))
attempt("listed", lambda: must([l for l in open("/proc/net/unix") if name in l or beside in l], "not there"))
for path in ["/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
             "/run/dbus/system_bus_socket", "/run/user/%d/bus" % os.getuid(), "/run/systemd/private", "/run/snapd.socket",
             "/tmp/.X11-unix/X0", "/dev/log", "/run/user/1000/bus", "/run/systemd/journal/socket"]:
    attempt(path, stream, path)
"##,
    )
    .argument(&name)
    .argument(&beside)
    .argument(tcp.local_addr().unwrap().port().to_string());
    for mode in [".:overlay", ".:rw"] {
        attack.again().flags(["-w", mode]).inside().assert_all_refused();
    }
    attack.outside().prove(&[
        "abstract",
        "beside",
        "by link",
        "in the workspace",
        "loopback",
        "listed",
    ]);
}

/// Starts a program on a terminal of its own, and tells what was typed into that terminal meanwhile.
const ON_A_TERMINAL: &str = r##"
import array, fcntl, os, pty, select, sys, termios, time
controller, terminal = pty.openpty()
settings = termios.tcgetattr(terminal)
settings[3] &= ~(termios.ECHO | termios.ICANON)
termios.tcsetattr(terminal, termios.TCSANOW, settings)
child = os.fork()
if child == 0:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(terminal, number)
    os.closerange(3, 1000)
    os.execv(sys.argv[1], sys.argv[1:])
output = b""
while True:
    ready, _, _ = select.select([controller], [], [], 0.05)
    if ready:
        output += os.read(controller, 65536)
        continue
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
waiting = array.array("i", [0])
fcntl.ioctl(terminal, termios.FIONREAD, waiting)
sys.stdout.buffer.write(output.replace(b"\r\n", b"\n"))
sys.stdout.buffer.write(b"\n@\ttyped\t%s\t%d\n" % (b"done" if waiting[0] else b"refused", waiting[0]))
"##;

#[test]
fn k9_nothing_is_typed_into_the_callers_terminal() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let attack = Attack::new(
        &site,
        r##"
import fcntl, termios
TIOCSTI, TIOCLINUX, TIOCSCTTY, TIOCCONS, TIOCSETD, TIOCNOTTY = 0x5412, 0x541C, 0x540E, 0x541D, 0x5423, 0x5422
inside = os.path.exists("/home/user")
def terminals():
    yield from (0, 1, 2)
    # Without a sandbox these are terminals of other people.
    others = ("/dev/console", "/dev/tty1", "/dev/pts/0", "/proc/%d/fd/0" % os.getppid())
    for path in ("/dev/tty",) + (others if inside else ()):
        try:
            yield os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:
            pass
def each(command, argument):
    worked, refusals = [], set()
    for terminal in terminals():
        ctypes.set_errno(0)
        if libc.ioctl(terminal, ctypes.c_ulong(command), argument) == 0:
            worked.append(terminal)
        else:
            refusals.add(errno.errorcode.get(ctypes.get_errno()))
    return must(worked, " ".join(sorted(refusals)))
for high in (0, 1 << 32, 0xffffffff << 32):
    attempt("TIOCSTI %x" % high, each, TIOCSTI | high, b"x")
    if inside:
        attempt("TIOCLINUX %x" % high, each, TIOCLINUX | high, b"\x03")
if inside:
    attempt("TIOCCONS", each, TIOCCONS, None)
    attempt("TIOCSETD", each, TIOCSETD, ctypes.byref(ctypes.c_int(2)))
"##,
    );
    let on_terminal = |line: Vec<std::ffi::OsString>| {
        let mut command = Command::new(arena::PYTHON);
        command
            .args(["-I", "-S", "-c", ON_A_TERMINAL])
            .args(line)
            .current_dir(site.workspace())
            .env_clear();
        command
            .env("HOME", site.root())
            .env("OFFLEASH_STATE", site.state())
            .env("PATH", "/usr/bin:/bin");
        arena::Findings::of_output(&run(&mut command))
    };
    for flags in [&["run"][..], &["run", "-t"]] {
        let mut line = vec![binary().into_os_string()];
        line.extend(flags.iter().map(Into::into));
        line.push("--".into());
        line.extend(attack.command_line());
        on_terminal(line).assert_all_refused();
    }
    let outside = on_terminal(attack.command_line());
    let types_for_all =
        std::fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").map_or(true, |value| value.trim() == "1");
    let typed: &[&str] = &["TIOCSTI 0", "TIOCSTI 100000000", "typed"];
    outside.prove(if is_root() || types_for_all { typed } else { &[] });
}

#[test]
pub(crate) fn k9_there_is_no_controlling_terminal_to_take() {
    if !can_attack() {
        return;
    }
    let site = Site::new();
    let inside = Attack::new(
        &site,
        r##"
attempt("tty", opened, "/dev/tty", os.O_RDWR)
attempt("console", opened, "/dev/console", os.O_RDWR)
attempt("number", lambda: must(int(read("/proc/self/stat").split()[6]), "none"))
attempt("init's number", lambda: must(int(read("/proc/1/stat").split()[6]), "none"))
attempt("pts", lambda: must([name for name in os.listdir("/dev/pts") if name != "ptmx"], "none"))
"##,
    )
    .inside();
    inside.assert_all_refused();
}
