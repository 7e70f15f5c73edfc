//! Contexts of code in a sandbox that has no memory left.

use offleash_core::exec::ExecEnd;
use offleash_daemon::Caller;
use offleash_interpreter::cell::{CellEnd, ContextDeath};
use offleash_interpreter::language::Language;

use super::world::{World, create_with, end_of, output, test, within};

const MEMORY_MIB: u64 = 256;

/// What takes more than there is, in the process of the context; and what shows that there is one.
const CODE: [(Language, &str, &str); 2] = [
    (
        Language::Bash,
        "kept=; while :; do kept=$kept$(head -c 20000000 /dev/zero | tr '\\0' a); done",
        "true",
    ),
    (
        Language::Python,
        "kept = []\nwhile True:\n    kept.append(bytearray(50_000_000))",
        "1 + 1",
    ),
];

#[test]
fn a_context_that_dies_of_memory_is_told_so_and_can_be_restarted() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let sandbox = create_with(&daemon, |request| request.limits.memory_mib = Some(MEMORY_MIB)).await;
        let supervisor = daemon.supervisor(&sandbox.id).await.unwrap();
        let hello = supervisor.hello().await.unwrap();
        let by_kernel = hello.enforced["limit.memory"].starts_with("cgroup");
        let contexts = within(daemon.contexts(&sandbox.id)).await.unwrap();
        for (language, hog, more) in CODE {
            let id = within(contexts.create(language, None)).await.unwrap().id;
            let end = end_of(&contexts, &id, hog).await.unwrap();
            let told = ContextDeath::Ended(ExecEnd::OutOfMemory {
                limit: MEMORY_MIB << 20,
            });
            match by_kernel {
                true => assert_eq!(end, CellEnd::Died(told), "{language:?}"),
                // Each process is bounded, which Python tells its cell.
                false => assert!(
                    matches!(
                        end,
                        CellEnd::Done | CellEnd::Died(ContextDeath::Ended(ExecEnd::Exited { .. }))
                    ),
                    "{language:?}: {end:?}"
                ),
            }
            within(contexts.restart(&id)).await.unwrap();
            assert_eq!(end_of(&contexts, &id, more).await, Some(CellEnd::Done), "{language:?}");
        }
        assert_eq!(output(&supervisor, "echo on").await, "on\n");
        within(daemon.kill(&Caller::local(), &sandbox.id)).await.unwrap();
        world.emptied().await;
    });
}
