//! A kernel without packet filters: the ports that rules name are listened on.

use std::process::Command;

use crate::support::Site;
use crate::support::processes::{finish, start};
use crate::world::{Seen, World, world};

/// Runs a program where the kernel says that it has no netfilter, as one without `NETFILTER_NETLINK` does: no netlink
/// socket of that protocol can be made. Nothing of offleash knows that it is a test.
const WITHOUT_FILTERS: &str = r#"
import ctypes, os, struct, sys
SYSCALL, LOAD, EQUAL, RETURN = {"x86_64": 41, "aarch64": 198}[os.uname().machine], 0x20, 0x15, 0x06
AF_NETLINK, NETLINK_NETFILTER, EPROTONOSUPPORT, ALLOW, ERRNO = 16, 12, 93, 0x7fff0000, 0x00050000
def step(code, if_true, if_false, value):
    return struct.pack("HBBI", code, if_true, if_false, value)
# The number of the call, its first argument, its third.
steps = [step(LOAD, 0, 0, 0), step(EQUAL, 0, 5, SYSCALL), step(LOAD, 0, 0, 16), step(EQUAL, 0, 3, AF_NETLINK),
         step(LOAD, 0, 0, 32), step(EQUAL, 0, 1, NETLINK_NETFILTER), step(RETURN, 0, 0, ERRNO | EPROTONOSUPPORT),
         step(RETURN, 0, 0, ALLOW)]
program = ctypes.create_string_buffer(b"".join(steps))
filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(filter_)), 0, 0):
    sys.exit("no filter: %s" % os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
"#;

/// The same command on such a kernel.
fn without_filters(plain: &Command) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-I", "-S", "-c", WITHOUT_FILTERS]);
    command.arg(plain.get_program()).args(plain.get_args());
    command.env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// Attempts in a sandbox there.
pub(crate) fn inside(world: &World, flags: &[&str], attempts: &str) -> Seen {
    let site = Site::new();
    let mut command = without_filters(&world.sandboxed(&site, flags, attempts));
    Seen::of_output(&finish(start(&mut command)))
}

const ATTEMPTS: &str = r#"
attempt("http", get, "www.example.com")
attempt("https", get_secure, "www.example.com")
attempt("raw", echoed, "www.example.com")
attempt("another name", get, "secret.example.com")
attempt("an address", get, "93.184.216.35")
attempt("IPv6", get, "2606:2800:220:1::5")
attempt("metadata", get, "169.254.169.254")
attempt("the host", get, "127.0.0.1")
attempt("SNI", get_secure, "www.example.com", sni="secret.example.com")
attempt("Host", get, "www.example.com", asked="secret.example.com")
attempt("unheard", get, "listeners.unheard.example")
attempt("another port", get, "www.example.com", 8080)
attempt("another port of an address", get, "93.184.216.35", 8080)
attempt("datagram", datagram, "93.184.216.35")
attempt("QUIC", datagram, "93.184.216.35", 443)
def by_proxy():
    with socket.create_connection(("127.0.0.1", 1), timeout=TIMEOUT) as connection:
        return say(connection, "GET http://www.example.com/ HTTP/1.1\r\nHost: www.example.com\r\n\r\n")
attempt("by the proxy", by_proxy)
"#;

const ALLOWED: [&str; 4] = ["http", "https", "raw", "by the proxy"];

#[test]
fn d3_the_ports_of_the_rules_lead_to_the_gateway_where_there_are_no_filters() {
    let Some(world) = world() else { return };
    let flags = ["--allow", "www.example.com:7,80,443"];
    let seen = inside(world, &flags, ATTEMPTS);
    let network = seen.record["enforced"]["network"].as_str().unwrap();
    assert!(
        network.contains("the ports of the rules lead to the gateway"),
        "{network}"
    );
    assert!(network.contains("NETFILTER_NETLINK"), "{network}");
    // With filters all of it is the same.
    for seen in [seen, world.inside(&flags, ATTEMPTS)] {
        seen.all_refused_but(&ALLOWED);
    }
    world.assert_never_asked("unheard.example");
}

#[test]
fn d3_rules_for_more_ports_than_can_be_listened_on_are_refused() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let plain = world.offleash(&site, &["run", "--allow", "www.example.com:*", "--", "/bin/true"]);
    let output = finish(start(&mut without_filters(&plain)));
    assert!(!output.status.success());
    let told = crate::support::stderr(&output);
    assert!(told.contains("cannot start a sandbox"), "{told}");
    // The control: with filters every port is one.
    let mut command = world.offleash(&site, &["run", "--allow", "www.example.com:*", "--", "/bin/true"]);
    assert!(finish(start(&mut command)).status.success());
}

#[test]
fn d3_doctor_says_which_form_there_is_and_what_it_lacks() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let plain = world.offleash(&site, &["doctor"]);
    let told = |mut command: Command| String::from_utf8_lossy(&finish(start(&mut command)).stdout).into_owned();
    let without = told(without_filters(&plain));
    assert!(without.contains("only connections to at most 12 ports"), "{without}");
    let with = told(plain);
    assert!(
        with.contains("every connection of a sandbox can be led to the gateway"),
        "{with}"
    );
}
