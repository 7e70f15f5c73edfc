//! A sandbox that has no memory left: one process ends of that, and the sandbox is there for others.

use std::time::Duration;

use offleash_core::exec::ExecEnd;
use offleash_core::units::Bytes;
use offleash_supervisor::service::ExecNews;

use super::support::skip;
use super::world::{Kept, collect, test, until, within};

const MEMORY: u64 = 192 << 20;
/// One fits, two do not; and nobody may have more than the sandbox.
const HOG: &str =
    "exec python3 -c 'import time; kept = bytearray(120 << 20); print(\"has it\", flush=True); time.sleep(600)'";

async fn small() -> Kept {
    Kept::with(|order| order.limits.memory = Some(Bytes(MEMORY))).await
}

fn log(kept: &Kept) -> String {
    std::fs::read_to_string(kept.directory().join("log.jsonl")).unwrap()
}

#[test]
fn a_command_that_dies_of_memory_is_told_so_and_the_sandbox_lives() {
    test(async {
        let kept = small().await;
        let (mut first, mut second) = (kept.shell(HOG).await, kept.shell(HOG).await);
        let end = loop {
            let news = tokio::select! {
                news = within(first.next()) => news,
                news = within(second.next()) => news,
            };
            match news.unwrap() {
                Some(ExecNews::Ended(end)) => break end,
                None => panic!("the sandbox is gone: {}", log(&kept)),
                _ => {}
            }
        };
        assert_eq!(end, ExecEnd::OutOfMemory { limit: MEMORY });
        assert_eq!(
            kept.output("pgrep -c python3").await,
            "1\n",
            "the other has what it has"
        );
        let log = log(&kept);
        let told = |what: &str| log.matches(what).count();
        assert_eq!(
            told("the limit `memory` of 192M was hit: processes are ended"),
            1,
            "{log}"
        );
        assert_eq!(
            told("the sandbox was out of memory, of which it may use 192M"),
            1,
            "{log}"
        );

        // Somebody else's kill is none for want of memory, though there was one.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let killed = collect(kept.shell("kill -9 $$").await).await.1;
        assert_eq!(killed, Some(ExecEnd::Signaled { signal: 9 }));
        assert_eq!(kept.output("pkill python3; echo on").await, "on\n");
        let mut again = kept.shell(HOG).await;
        until(&mut again, "has it").await;
    });
}

#[test]
fn a_sandbox_that_runs_out_of_memory_again_and_again_is_ended() {
    test(async {
        // So little that each time takes no time to speak of.
        let kept = Kept::with(|order| order.limits.memory = Some(Bytes::mib(48))).await;
        if !kept.hello.enforced["limit.memory"].starts_with("cgroup") {
            return skip("needs a control group for memory: else each process is bounded, and kills are few");
        }
        // The shell lives on and says so, until it was too often.
        let mut stream = kept
            .shell("while :; do tail /dev/zero 2>/dev/null; printf 1; done 2>/dev/null")
            .await;
        let mut times = 0;
        while let Some(news) = within(stream.next()).await.unwrap() {
            match news {
                ExecNews::Output { bytes, .. } if times < 100 => times += bytes.len(),
                other => panic!("{other:?}"),
            }
        }
        assert!(times >= 10, "{times}");
        assert_eq!(stream.why_gone(), Some("it exceeded the limit `memory` of 48M"));
    });
}
