//! Tools that whoever made the sandbox answers: one of its clients hears of calls, and answers each by its number.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::answer::CallFailure;

/// How many calls wait for a client that takes none: as many as there may be at a time.
const MAX_QUEUED: usize = offleash_protocol::tools::MAX_CALLS;

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientNotice {
    /// It is to answer this call.
    Call {
        /// Its number in the sandbox.
        id: u64,
        /// The tool's name.
        tool: String,
        /// What it is called with, as JSON.
        parameters: String,
    },
    /// The call of this number needs no answer any more.
    Withdrawn(u64),
}

/// The clients of one sandbox: the latest that came hears of calls.
#[derive(Debug, Default)]
pub struct ToolClients {
    state: Mutex<ClientState>,
}

#[derive(Debug, Default)]
struct ClientState {
    listening: Option<(u64, mpsc::Sender<ClientNotice>)>,
    open: HashMap<u64, oneshot::Sender<Result<Value, String>>>,
    last_call: u64,
    last_client: u64,
}

/// A client that hears of calls. Dropped, its calls fail.
#[derive(Debug)]
pub struct ListeningClient<'c> {
    clients: &'c ToolClients,
    number: u64,
    notices: mpsc::Receiver<ClientNotice>,
}

/// A call that waits for its answer. Dropped, its client is told that none is needed.
struct OpenCall<'c> {
    clients: &'c ToolClients,
    id: u64,
}

impl ToolClients {
    /// Has the caller hear of calls from now on. A client that did so far hears of none any more, and those that it has fail.
    pub fn listen(&self) -> ListeningClient<'_> {
        let (sender, notices) = mpsc::channel(MAX_QUEUED);
        let mut state = self.state();
        state.last_client += 1;
        let number = state.last_client;
        state.open.clear();
        state.listening = Some((number, sender));
        ListeningClient {
            clients: self,
            number,
            notices,
        }
    }

    /// Answers the call of this number; `false` where none such waits.
    pub fn answer(&self, id: u64, outcome: Result<Value, String>) -> bool {
        let waiting = self.state().open.remove(&id);
        waiting.is_some_and(|waiting| waiting.send(outcome).is_ok())
    }

    pub(crate) async fn call(&self, tool: &str, parameters: &Value) -> Result<Value, CallFailure> {
        let (open, answer) = self.put(tool, parameters)?;
        let answered = answer.await;
        drop(open);
        match answered {
            Ok(outcome) => outcome.map_err(CallFailure::Failed),
            Err(_) => Err(unanswered("the client that answers this tool left")),
        }
    }

    fn put(
        &self,
        tool: &str,
        parameters: &Value,
    ) -> Result<(OpenCall<'_>, oneshot::Receiver<Result<Value, String>>), CallFailure> {
        let mut state = self.state();
        state.last_call += 1;
        let id = state.last_call;
        let Some((_, listening)) = &state.listening else {
            return Err(unanswered("no client is there that answers this tool"));
        };
        let call = ClientNotice::Call {
            id,
            tool: tool.to_owned(),
            parameters: parameters.to_string(),
        };
        match listening.try_send(call) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Err(unanswered(
                    "the client that answers this tool does not take what it has to answer already",
                ));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                return Err(unanswered("the client that answers this tool left"));
            }
        }
        let (sender, answer) = oneshot::channel();
        state.open.insert(id, sender);
        Ok((OpenCall { clients: self, id }, answer))
    }

    fn state(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ListeningClient<'_> {
    /// What there is to know next; `None` once another client hears of calls.
    pub async fn next(&mut self) -> Option<ClientNotice> {
        self.notices.recv().await
    }
}

impl Drop for ListeningClient<'_> {
    fn drop(&mut self) {
        let mut state = self.clients.state();
        if state.listening.take_if(|(number, _)| *number == self.number).is_some() {
            state.open.clear();
        }
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let mut state = self.clients.state();
        if state.open.remove(&self.id).is_some()
            && let Some((_, listening)) = &state.listening
        {
            // A client that takes nothing answers nothing either.
            let _told = listening.try_send(ClientNotice::Withdrawn(self.id));
        }
    }
}

fn unanswered(why: &str) -> CallFailure {
    CallFailure::Unanswered(why.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::join;

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(work)
    }

    fn id_of(notice: Option<ClientNotice>) -> u64 {
        match notice {
            Some(ClientNotice::Call { id, .. }) => id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_call_is_answered_by_its_number() {
        run(async {
            let (clients, one) = (ToolClients::default(), json!({"a": 1}));
            let mut client = clients.listen();
            let (answered, ()) = join!(clients.call("t", &one), async {
                let notice = client.next().await;
                assert!(
                    matches!(&notice, Some(ClientNotice::Call { tool, parameters, .. }) if tool == "t" && parameters == "{\"a\":1}")
                );
                let id = id_of(notice);
                assert!(!clients.answer(id + 1, Ok(json!(0))));
                assert!(clients.answer(id, Ok(json!(2))));
                assert!(!clients.answer(id, Ok(json!(3))));
            });
            assert_eq!(answered, Ok(json!(2)));
        });
    }

    #[test]
    fn calls_fail_without_a_client_when_it_leaves_and_when_another_comes() {
        run(async {
            let (clients, none) = (ToolClients::default(), json!({}));
            let kind = |outcome: Result<Value, CallFailure>| outcome.expect_err("a failure").kind();
            assert_eq!(kind(clients.call("t", &none).await), "unanswered");
            let mut client = clients.listen();
            let (answered, ()) = join!(clients.call("t", &none), async move {
                id_of(client.next().await);
            });
            assert_eq!(kind(answered), "unanswered");
            let mut first = clients.listen();
            let (answered, ()) = join!(clients.call("t", &none), async {
                id_of(first.next().await);
                let _second = clients.listen();
                assert_eq!(first.next().await, None);
                // Its end is none of the other's.
                drop(first);
            });
            assert_eq!(kind(answered), "unanswered");
        });
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_given_up_is_told() {
        run(async {
            let clients = ToolClients::default();
            let mut client = clients.listen();
            let parameters = json!({});
            let waiting: Vec<_> = (0..MAX_QUEUED).map(|_| clients.put("t", &parameters)).collect();
            assert!(waiting.iter().all(Result::is_ok));
            assert!(clients.put("t", &parameters).is_err());
            let id = id_of(client.next().await);
            drop(waiting);
            let mut last = None;
            while let Ok(notice) = client.notices.try_recv() {
                last = Some(notice);
            }
            assert!(matches!(last, Some(ClientNotice::Withdrawn(_))));
            assert!(!clients.answer(id, Ok(json!(1))));
        });
    }
}
