//! Takes the calls of one sandbox at a socket, has them judged, asks about some, makes them side by side, and answers.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use offleash_protocol::tools::{MAX_CALLS, MAX_REQUEST, NumberedFrames, header};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

use crate::answer::CallFailure;
use crate::asking::{AskNotice, Asking, Decided, ToolAsker, refusal};
use crate::callers::ToolCallers;
use crate::callers::client::ToolClients;
use crate::desk::{DeskStep, JudgedCall, ToolDesk};

/// What became of a call that was made.
type CallOutcome = (u32, JudgedCall, Result<Value, CallFailure>);

/// Serves until the other end of `socket` is closed. Calls that are on their way then are given up, and so are questions.
///
/// # Errors
/// When the socket fails, or what comes is no conversation about tools.
pub async fn serve(
    desk: &mut ToolDesk,
    socket: UnixStream,
    asker: ToolAsker,
    clients: Arc<ToolClients>,
) -> io::Result<()> {
    let (mut reader, writer) = socket.into_split();
    let ToolAsker {
        notices,
        mut answers,
        timeout,
    } = asker;
    let mut counter = ToolCounter {
        desk,
        writer,
        notices: notices.clone(),
        asking: Asking::new(notices, timeout),
        callers: Arc::new(ToolCallers::with_clients(clients)),
        made: JoinSet::new(),
        under_way: HashMap::new(),
    };
    let mut frames = NumberedFrames::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let due = counter.asking.due();
        tokio::select! {
            read = reader.read(&mut buffer) => {
                match read? {
                    0 => return Ok(()),
                    count => frames.push(buffer.get(..count).unwrap_or_default()),
                }
                while let Some((call, request)) = frames.next(MAX_REQUEST).map_err(|_| wrong("a request is too long"))? {
                    counter.take(call, request).await?;
                }
            }
            Some(ended) = counter.made.join_next() => counter.ended(ended).await?,
            Some((question, answer)) = answers.recv() => {
                let decided = counter.asking.answered(question, answer);
                counter.go_on(decided).await?;
            }
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let decided = counter.asking.timed_out();
                counter.go_on(decided).await?;
            }
        }
        while let Some(decided) = counter.asking.next(counter.desk) {
            counter.go_on(Some(decided)).await?;
        }
        counter.tell_notes();
    }
}

/// What comes over the socket and is none of what may.
fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Where calls are taken and answered.
struct ToolCounter<'d> {
    desk: &'d mut ToolDesk,
    writer: OwnedWriteHalf,
    notices: UnboundedSender<AskNotice>,
    asking: Asking,
    callers: Arc<ToolCallers>,
    made: JoinSet<CallOutcome>,
    under_way: HashMap<u32, AbortHandle>,
}

impl ToolCounter<'_> {
    /// Takes a request, or that its caller left.
    async fn take(&mut self, call: u32, request: &[u8]) -> io::Result<()> {
        if request.is_empty() {
            // Its caller left; what it started ends.
            self.under_way.remove(&call).iter().for_each(AbortHandle::abort);
            self.asking.forget(call);
            return Ok(());
        }
        let is_known = self.under_way.contains_key(&call) || self.asking.has(call);
        if is_known || self.under_way.len() + self.asking.len() >= MAX_CALLS {
            return Err(wrong("there are more calls at a time than there may be"));
        }
        let step = self.desk.take(request);
        self.step(call, step).await
    }

    async fn step(&mut self, call: u32, step: DeskStep) -> io::Result<()> {
        match step {
            DeskStep::Answer(answer) => send(&mut self.writer, call, &answer).await?,
            DeskStep::Ask(judged) => self.asking.take(call, judged),
            DeskStep::Call(judged) => {
                let Some(tool) = self.desk.tool(&judged).cloned() else {
                    return Ok(());
                };
                let callers = Arc::clone(&self.callers);
                let handle = self.made.spawn(async move {
                    let outcome = callers.call(&tool, &judged.parameters).await;
                    (call, judged, outcome)
                });
                self.under_way.insert(call, handle);
            }
        }
        Ok(())
    }

    /// Goes on with a call that a person was asked about.
    async fn go_on(&mut self, decided: Option<Decided>) -> io::Result<()> {
        let Some(Decided { number, call, answer }) = decided else {
            return Ok(());
        };
        let step = match answer.allows() {
            true => self.desk.approve(call),
            false => DeskStep::Answer(self.desk.refuse(&call, refusal(answer))),
        };
        self.step(number, step).await
    }

    fn tell_notes(&mut self) {
        for note in self.desk.take_notes() {
            // Whoever keeps them may be gone.
            let _told = self.notices.send(AskNotice::Noted(note));
        }
    }

    async fn ended(&mut self, ended: Result<CallOutcome, JoinError>) -> io::Result<()> {
        // One that was given up has nobody who waits.
        let Ok((call, judged, outcome)) = ended else {
            return Ok(());
        };
        let answer = self.desk.answer(&judged, &outcome);
        match self.under_way.remove(&call) {
            Some(_) => send(&mut self.writer, call, &answer).await,
            None => Ok(()),
        }
    }
}

async fn send(writer: &mut OwnedWriteHalf, call: u32, answer: &[u8]) -> io::Result<()> {
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
