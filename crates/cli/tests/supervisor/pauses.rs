//! Pauses where no control group can freeze: what code inside does against them.

use super::support::processes::{eventually, is_gateway};
use super::support::{is_root, skip};
use super::world::{Kept, shell, test, until, within};

/// Whose main thread has ended while another goes on.
const HEADLESS: &str = r#"
import ctypes, threading, time
def work():
    while True:
        time.sleep(0.001)
threading.Thread(target=work).start()
print("up", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"#;

/// A sandbox in which such a program runs; `None` where another means of pausing would be tested.
async fn with(program: &str) -> Option<Kept> {
    if is_root() {
        skip("a control group freezes the sandboxes of root");
        return None;
    }
    let kept = Kept::new().await;
    let mut start = shell("exec python3 -c \"$PROGRAM\"");
    start.env.push((b"PROGRAM".to_vec(), program.as_bytes().to_vec()));
    let mut stream = within(kept.supervisor.start(start)).await.unwrap();
    until(&mut stream, "up").await;
    Some(kept)
}

/// The states of all threads below a process.
fn states_below(pid: u32) -> Vec<String> {
    let mut states = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        for child in read("children").split_whitespace() {
            let child: u32 = child.parse().unwrap();
            if is_gateway(child.cast_signed()) {
                // It is no part of the sandbox; what it carries is held back otherwise.
                continue;
            }
            states.extend(states_below(child));
            for thread in std::fs::read_dir(format!("/proc/{child}/task"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').next());
                states.extend(state.map(str::to_owned));
            }
        }
    }
    states
}

#[test]
fn a_process_whose_main_thread_has_ended_is_paused_as_any() {
    test(async {
        let Some(kept) = with(HEADLESS).await else { return };
        let states = || states_below(kept.hello.pid);
        eventually("the end of the main thread", || {
            states().contains(&"Z".to_owned()).then_some(())
        });
        within(kept.supervisor.pause()).await.unwrap();
        let paused = states();
        assert!(paused.iter().all(|state| ["T", "Z"].contains(&&**state)), "{paused:?}");
        within(kept.supervisor.resume()).await.unwrap();
        eventually("that it goes on", || states().contains(&"S".to_owned()).then_some(()));
        within(kept.supervisor.kill()).await.unwrap();
    });
}
