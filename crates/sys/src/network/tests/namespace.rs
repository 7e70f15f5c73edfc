//! Runs tests in a network namespace of their own, as root as well as an ordinary user.

use std::io;
use std::os::unix::process::CommandExt as _;

use rustix::thread::UnshareFlags;

/// Says to a copy of this program that it is in the namespace.
const INSIDE: &str = "OFFLEASH_TEST_INSIDE";

/// Runs `body`, the whole of a test, in new user and network namespaces, with every capability over them.
///
/// Only a process with one thread may enter a user namespace, so the test is run by a copy of this program, which is
/// in the namespaces before it starts.
pub(in crate::network) fn in_namespace<Body: FnOnce()>(body: Body) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    if !std::path::Path::new("/proc/sys/net/ipv6").exists() {
        println!("SKIP: this machine has no IPv6");
        return;
    }
    // The closure is named after the function that it is in: `crate::module::test::{{closure}}`.
    let name = std::any::type_name::<Body>();
    let test = name
        .split_once("::")
        .and_then(|(_, test)| test.strip_suffix("::{{closure}}"));
    let output = match run_inside(test.expect("a closure of a test")) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            println!("SKIP: user namespaces are forbidden here");
            return;
        }
        output => output.expect("this program can be started again"),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success() && said.contains("1 passed"), "{complained}");
}

fn run_inside(test: &str) -> io::Result<std::process::Output> {
    let uid_map = format!("0 {} 1", rustix::process::geteuid().as_raw());
    let gid_map = format!("0 {} 1", rustix::process::getegid().as_raw());
    let arguments = [test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"];
    #[expect(clippy::disallowed_methods, reason = "the test runs itself")]
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.args(arguments).env(INSIDE, "1");
    let enter = move || {
        let flags = UnshareFlags::NEWUSER | UnshareFlags::NEWNET;
        // SAFETY: only namespaces are unshared, never the descriptor table.
        unsafe { rustix::thread::unshare_unsafe(flags) }?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", &uid_map)?;
        std::fs::write("/proc/self/gid_map", &gid_map)
    };
    // SAFETY: after `fork`, `enter` makes system calls only: short paths are not put on the heap.
    unsafe { command.pre_exec(enter) };
    command.output()
}
