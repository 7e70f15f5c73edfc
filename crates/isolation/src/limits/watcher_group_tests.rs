//! A watcher of a sandbox that is in a control group.

use super::*;

#[test]
fn memory_that_was_there_between_two_looks_is_the_most() {
    let Some(group) = group(GroupLimits {
        memory_bytes: Some(256 << 20),
        ..GroupLimits::default()
    }) else {
        return;
    };
    let layer = layer();
    let after = layer.path().join("after");
    let script = format!(
        "(x=$(head -c 60000000 /dev/zero | tr '\\0' a); :); : > {}; exec sleep 600",
        after.display()
    );
    let mut sandbox = WaitingSandbox::new(&script);
    group.join(sandbox.child.id()).unwrap();
    let mut watcher = LimitWatcher::new(unlimited(), Some(group), sandbox.pid, Vec::new());
    sandbox.go_on();
    while !after.exists() {
        std::thread::yield_now();
    }
    let measure = watcher.measure();
    assert!(measure.memory_peak_bytes > 60_000_000, "{measure:?}");
    assert!(measure.memory_bytes < 60_000_000, "{measure:?}");
    sandbox.end(&mut watcher);
}
