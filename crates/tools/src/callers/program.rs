//! A program of the owner's: parameters on standard input, the answer on standard output.

use std::process::Stdio;

use offleash_protocol::tools::MAX_ANSWER;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use super::{too_long, value_of};
use crate::answer::CallFailure;

/// How much of what it writes to standard error is told, bytes.
const MAX_SAID: u64 = 4096;

/// A program with all that it started, which ends when nobody waits for it.
#[derive(Debug)]
pub(super) struct OwnGroup(pub(super) Child);

impl OwnGroup {
    pub(super) fn start(argv: &[String]) -> Result<Self, CallFailure> {
        let Some((program, arguments)) = argv.split_first() else {
            return Err(CallFailure::Failed("the tool names no program".to_owned()));
        };
        let mut command = Command::new(program);
        command.args(arguments).process_group(0).kill_on_drop(true);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // What it was is for its owner, not for code in the sandbox.
        let failed =
            |error: std::io::Error| CallFailure::Failed(format!("the tool's program cannot be started: {error}"));
        command.spawn().map(Self).map_err(failed)
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        let group = self
            .0
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            // Not waited for yet, so the group is still its.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

pub(super) async fn call(argv: &[String], parameters: &Value) -> Result<Value, CallFailure> {
    let mut program = OwnGroup::start(argv)?;
    let (stdin, stdout, stderr) = (program.0.stdin.take(), program.0.stdout.take(), program.0.stderr.take());
    let said_to_it = async {
        if let Some(mut stdin) = stdin {
            // One that does not read it does not want it.
            let _ = stdin.write_all(parameters.to_string().as_bytes()).await;
        }
    };
    let most = u64::try_from(MAX_ANSWER).unwrap_or(u64::MAX);
    let ((), (answer, is_cut), (said, _)) = tokio::join!(said_to_it, read(stdout, most), read(stderr, MAX_SAID));
    if is_cut {
        return Err(too_long());
    }
    match program.0.wait().await {
        Ok(status) if status.success() => value_of(&answer),
        Ok(status) => {
            let said = offleash_core::text::one_line(String::from_utf8_lossy(&said).trim().as_bytes()).into_owned();
            let said = if said.is_empty() { said } else { format!(": {said}") };
            Err(CallFailure::Failed(format!("the tool failed ({status}){said}")))
        }
        Err(error) => Err(CallFailure::Failed(format!("waiting for the tool: {error}"))),
    }
}

/// All of a stream up to `most` bytes, and whether there was more; what is more is thrown away.
async fn read(stream: Option<impl AsyncRead + Unpin>, most: u64) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let Some(stream) = stream else {
        return (bytes, false);
    };
    let mut stream = stream.take(most);
    let _as_far_as_it_comes = stream.read_to_end(&mut bytes).await;
    let mut rest = stream.into_inner();
    let more = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.unwrap_or(0);
    (bytes, more > 0)
}
