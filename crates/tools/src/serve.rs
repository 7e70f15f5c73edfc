//! Takes the calls of one sandbox at a socket, has them judged, makes them side by side, and answers.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use offleash_protocol::tools::{MAX_CALLS, MAX_REQUEST, NumberedFrames, header};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::{AbortHandle, JoinSet};

use crate::answer::CallFailure;
use crate::callers::ToolCallers;
use crate::desk::{DeskStep, JudgedCall, ToolDesk};

/// What became of a call that was made.
type CallOutcome = (u32, JudgedCall, Result<Value, CallFailure>);

/// Serves until the other end of `socket` is closed. Calls that are on their way then are given up.
///
/// # Errors
/// When the socket fails, or what comes is no conversation about tools.
pub async fn serve(desk: &mut ToolDesk, socket: UnixStream) -> io::Result<()> {
    let (mut reader, mut writer) = socket.into_split();
    let callers = Arc::new(ToolCallers::default());
    let mut frames = NumberedFrames::default();
    let mut made: JoinSet<CallOutcome> = JoinSet::new();
    let mut under_way: HashMap<u32, AbortHandle> = HashMap::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        tokio::select! {
            read = reader.read(&mut buffer) => {
                match read? {
                    0 => return Ok(()),
                    count => frames.push(buffer.get(..count).unwrap_or_default()),
                }
                let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
                while let Some((call, request)) = frames.next(MAX_REQUEST).map_err(|_| wrong("a request is too long"))? {
                    if request.is_empty() {
                        // Its caller left; what it started ends.
                        under_way.remove(&call).iter().for_each(AbortHandle::abort);
                        continue;
                    }
                    if under_way.len() >= MAX_CALLS || under_way.contains_key(&call) {
                        return Err(wrong("there are more calls at a time than there may be"));
                    }
                    match desk.take(request) {
                        DeskStep::Answer(answer) => send(&mut writer, call, &answer).await?,
                        DeskStep::Call(judged) => {
                            let Some(tool) = desk.tool(&judged).cloned() else { continue };
                            let callers = Arc::clone(&callers);
                            let handle = made.spawn(async move {
                                let outcome = callers.call(&tool, &judged.parameters).await;
                                (call, judged, outcome)
                            });
                            under_way.insert(call, handle);
                        }
                    }
                }
            }
            Some(ended) = made.join_next() => {
                // One that was given up has nobody who waits.
                let Ok((call, judged, outcome)) = ended else { continue };
                let answer = desk.answer(&judged, &outcome);
                if under_way.remove(&call).is_some() {
                    send(&mut writer, call, &answer).await?;
                }
            }
        }
    }
}

async fn send(writer: &mut tokio::net::unix::OwnedWriteHalf, call: u32, answer: &[u8]) -> io::Result<()> {
    writer.write_all(&header(call, answer.len())).await?;
    writer.write_all(answer).await
}

/// Makes one call that was granted; answers the bytes for its caller.
pub async fn make(desk: &mut ToolDesk, call: &JudgedCall) -> Vec<u8> {
    let outcome = match desk.tool(call).cloned() {
        Some(tool) => ToolCallers::default().call(&tool, &call.parameters).await,
        None => Err(CallFailure::Unknown(String::new())),
    };
    desk.answer(call, &outcome)
}
