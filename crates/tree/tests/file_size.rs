//! A bound on the size of files that whoever serves has. The only test of its process, whose bound it is.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "a test has no callers, and uses a part of what is shared"
)]

mod support;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use support::*;
use tempfile::TempDir;

#[test]
fn a_file_that_grows_too_large_is_an_error_and_not_the_end() {
    let base = TempDir::new().unwrap();
    let most = 1 << 20;
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    setrlimit(Resource::Fsize, limit).unwrap();
    let mut machine = Machine::plain(base.path());
    let (node, handle) = machine.create(ROOT, "file", 2, 0o600).unwrap();
    assert_eq!(machine.write(node, handle, most - 2, (0, 2), b"1234"), Ok(2));
    assert_eq!(machine.write(node, handle, most, (0, 2), b"1234"), Err(Errno::FBIG));
    let size = Body::new().u32(8).u32(0).u64(0).u64(most + 1).bytes(&[0; 64]);
    assert_eq!(machine.ask(SETATTR, node, size), Err(Errno::FBIG));
    let longer = Body::new().u64(handle).u64(0).u64(most * 2).u32(0).u32(0);
    assert_eq!(machine.ask(FALLOCATE, node, longer), Err(Errno::FBIG));
    assert_eq!(machine.getattr(node).unwrap().0, most);
    machine.end().unwrap();
}
