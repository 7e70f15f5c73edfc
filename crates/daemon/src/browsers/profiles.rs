//! Contexts, and profiles on their way into sandboxes and out of them.
//!
//! A profile is an archive that is made and unpacked by programs of the sandbox. Here it is bytes, and so many at most.

use std::sync::Arc;
use std::time::Duration;

use offleash_browser::{ContextError, ContextRecord, MAX_PROFILE, PROFILE_IN, PROFILE_OUT};
use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_supervisor::clock::own_ms;
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::message::{Selector, StartExec};
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::{BrowserService, ContextChoice, locked, writes_to};
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::jobs::blocking;
use crate::random;
use crate::session_error::SessionError;

/// How long a profile may take on its way.
const PROFILE_TIMEOUT: Duration = Duration::from_secs(60);
/// What of a cookie a browser is told again.
const COOKIE_FIELDS: [&str; 8] = [
    "name",
    "value",
    "domain",
    "path",
    "secure",
    "httpOnly",
    "sameSite",
    "partitionKey",
];
const TRIED: &str = "use the browser contexts";

/// That a session is about to write to a context, until this is dropped.
#[derive(Debug)]
pub(super) struct ContextClaim {
    service: Arc<BrowserService>,
    id: String,
}

impl Drop for ContextClaim {
    fn drop(&mut self) {
        locked(&self.service.claimed).remove(&self.id);
    }
}

impl BrowserService {
    /// Makes a context of the caller's, called so if it is to have a name.
    ///
    /// # Errors
    /// `Invalid`, `ContextExists`, `Host`.
    pub(crate) async fn create_context(
        &self,
        caller: &Caller,
        name: Option<String>,
    ) -> Result<ContextRecord, DaemonError> {
        let _one_at_a_time = self.adding.lock().await;
        let now = own_ms();
        let record = ContextRecord {
            id: random::name('b', 23)?,
            name,
            owner: caller.key_id.clone(),
            created_ms: now,
            updated_ms: now,
            bytes: 0,
        };
        let (store, added) = (self.contexts(), record.clone());
        blocking(TRIED, move || store.add(&added)).await??;
        Ok(record)
    }

    /// The caller's contexts; those of all keys, removed ones included, for the owner of the daemon.
    ///
    /// # Errors
    /// `Host`.
    pub(crate) async fn list_contexts(&self, caller: &Caller) -> Result<Vec<ContextRecord>, DaemonError> {
        let (store, owner) = (self.contexts(), (!caller.is_owner()).then(|| caller.key_id.clone()));
        let listed = move || match owner {
            Some(owner) => store.all_of(&owner),
            None => store.all(),
        };
        Ok(blocking(TRIED, listed).await??)
    }

    /// A context of the caller's, by its id or its name.
    ///
    /// # Errors
    /// `UnknownContext`, also for another key's; `Host`.
    pub(crate) async fn find_context(&self, caller: &Caller, which: &str) -> Result<ContextRecord, DaemonError> {
        let all = self.list_contexts(caller).await?;
        // A name is one of the caller's own contexts.
        let is_meant = |record: &&ContextRecord| {
            record.id == which || (record.owner == caller.key_id && record.name.as_deref() == Some(which))
        };
        let found = all.iter().find(is_meant).cloned();
        found.ok_or_else(|| SessionError::UnknownContext { name: which.to_owned() }.into())
    }

    /// Removes a context of the caller's that no session writes to.
    ///
    /// # Errors
    /// `UnknownContext`, `ContextInUse`, `Host`.
    pub(crate) async fn remove_context(self: &Arc<Self>, caller: &Caller, which: &str) -> Result<(), DaemonError> {
        let record = self.find_context(caller, which).await?;
        let _claim = self.claim(&record.id)?;
        let store = self.contexts();
        Ok(blocking(TRIED, move || store.remove(&record)).await??)
    }

    pub(super) async fn context_on_disk(&self, id: &str) -> Result<Option<ContextRecord>, DaemonError> {
        let (store, id) = (self.contexts(), id.to_owned());
        Ok(blocking(TRIED, move || store.get(&id)).await??)
    }

    /// The context of a session that is about to be made, and that it writes to it if it does.
    pub(super) async fn context_of(
        self: &Arc<Self>,
        caller: &Caller,
        choice: Option<&ContextChoice>,
    ) -> Result<(Option<ContextRecord>, Option<ContextClaim>), DaemonError> {
        let Some(choice) = choice else {
            return Ok((None, None));
        };
        let record = self.find_context(caller, &choice.context).await?;
        let claim = choice.persist.then(|| self.claim(&record.id)).transpose()?;
        Ok((Some(record), claim))
    }

    /// The right to write to a context, as long as no session does.
    fn claim(self: &Arc<Self>, id: &str) -> Result<ContextClaim, DaemonError> {
        let in_use = |session: Option<String>| {
            let name = id.to_owned();
            DaemonError::from(SessionError::ContextInUse { name, session })
        };
        let mut claimed = locked(&self.claimed);
        let writer = self.core.sandboxes.all().into_iter().find(|entry| writes_to(entry, id));
        if let Some(writer) = writer {
            return Err(in_use(Some(writer.name().to_owned())));
        }
        if !claimed.insert(id.to_owned()) {
            return Err(in_use(None));
        }
        Ok(ContextClaim {
            service: Arc::clone(self),
            id: id.to_owned(),
        })
    }

    /// Puts what was saved of a context into a sandbox, and answers the cookies that the browser is to be told.
    pub(super) async fn unpack(
        &self,
        supervisor: &SupervisorClient,
        context: ContextRecord,
    ) -> Result<Option<Value>, DaemonError> {
        let _place = self.profiles.acquire().await;
        let store = self.contexts();
        let Some(saved) = blocking(TRIED, move || store.load(&context)).await?? else {
            return Ok(None);
        };
        let failed = |error| DaemonError::supervisor("unpack a browser context", error);
        let mut stream = supervisor.start(script(PROFILE_IN, true)).await.map_err(failed)?;
        let which = Selector::Pid(stream.pid());
        let unpacked = async {
            // One that ends before it has read all says so.
            let _given = supervisor.input(&which, saved.files).await;
            let _closed = supervisor.close_input(&which).await;
            output(&mut stream).await
        };
        let outcome = timeout(PROFILE_TIMEOUT, unpacked).await;
        outcome.unwrap_or_else(|_| Err(not_carried("unpacking it takes too long")))?;
        Ok(serde_json::from_slice(&saved.cookies).ok())
    }

    /// The files of a profile.
    pub(super) async fn pack(&self, supervisor: &SupervisorClient) -> Result<Vec<u8>, DaemonError> {
        let failed = |error| DaemonError::supervisor("pack a browser context", error);
        let mut stream = supervisor.start(script(PROFILE_OUT, false)).await.map_err(failed)?;
        let packed = timeout(PROFILE_TIMEOUT, output(&mut stream)).await;
        packed.unwrap_or_else(|_| Err(not_carried("packing it takes too long")))
    }
}

fn script(line: &str, stdin: bool) -> StartExec {
    StartExec {
        argv: ["/bin/sh", "-c", line].map(|word| word.as_bytes().to_vec()).to_vec(),
        stdin,
        ..StartExec::default()
    }
}

fn not_carried(why: &str) -> DaemonError {
    SessionError::Failed {
        why: format!("its profile: {why}"),
    }
    .into()
}

/// What a command that succeeds writes, and no more than a profile may have.
async fn output(stream: &mut ExecStream) -> Result<Vec<u8>, DaemonError> {
    let mut written = Vec::new();
    loop {
        match stream.next().await {
            Ok(Some(ExecNews::Output {
                stream: OutputStream::Stdout,
                bytes,
            })) => {
                if written.len() + bytes.len() > MAX_PROFILE {
                    return Err(ContextError::TooLarge.into());
                }
                written.extend(bytes);
            }
            Ok(Some(ExecNews::Output { .. } | ExecNews::TimedOut)) => {}
            Ok(Some(ExecNews::Ended(ExecEnd::Exited { code: 0 }))) => return Ok(written),
            Ok(Some(ExecNews::Ended(end))) => return Err(not_carried(&format!("`tar` ended with {end:?}"))),
            Ok(None) | Err(_) => return Err(not_carried("its sandbox ended")),
        }
    }
}

/// The cookies of an answer that end with the browser, as JSON, each as it is to be told again.
pub(super) fn ending_cookies(answer: &Value) -> Vec<u8> {
    let all = answer.get("cookies").and_then(Value::as_array).into_iter().flatten();
    let ending = all.filter(|cookie| cookie.get("session") == Some(&Value::Bool(true)));
    let told = ending.filter_map(Value::as_object).map(|cookie| {
        let fields = COOKIE_FIELDS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), cookie.get(*name)?.clone())));
        Value::Object(Map::from_iter(fields))
    });
    serde_json::to_vec(&told.collect::<Vec<_>>()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cookies_that_end_with_the_browser_are_told_again_and_no_others() {
        let answer = json!({ "cookies": [
            { "name": "a", "value": "1", "domain": "x", "path": "/", "session": true, "expires": -1, "size": 2 },
            { "name": "b", "value": "2", "session": false },
            "none",
        ] });
        let told: Value = serde_json::from_slice(&ending_cookies(&answer)).unwrap();
        assert_eq!(told, json!([{ "name": "a", "value": "1", "domain": "x", "path": "/" }]));
        assert_eq!(ending_cookies(&json!({ "cookies": 1 })), b"[]");
    }
}
