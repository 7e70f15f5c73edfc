//! Keys in the native REST.

use http::{Response, StatusCode};
use offleash_daemon::{Caller, Daemon, DaemonError, Keys, Quota, Scope, Scopes};

use super::shapes::{Key, KeyList, MadeKey, NewKey};
use crate::answer::{self, Refusal};
use crate::body::Body;
use crate::control::{Asked, whole};
use crate::json::RequestBody;
use crate::query;

/// Works with the keys, away from the threads that answer requests: their file may have to be waited for.
async fn with_keys<T: Send + 'static>(
    asked: &Asked<'_>,
    work: impl FnOnce(Keys) -> Result<T, DaemonError> + Send + 'static,
) -> Result<T, Refusal> {
    let blocking = |daemon: Daemon, _caller: Caller| async move {
        let state = daemon.config().state.clone();
        let work = move || Keys::open(state.as_deref()).and_then(work);
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| {
            let (tried, source) = ("work with the keys", error.into());
            Err(DaemonError::Host { tried, source })
        })
    };
    whole(asked, blocking).await
}

pub(crate) async fn list(asked: &Asked<'_>) -> Result<Response<Body>, Refusal> {
    let keys = with_keys(asked, |keys| keys.list()).await?;
    let keys = keys.into_iter().map(Key::from).collect();
    Ok(answer::json(StatusCode::OK, &KeyList { keys }))
}

pub(crate) async fn create(asked: &Asked<'_>, body: RequestBody) -> Result<Response<Body>, Refusal> {
    let new: NewKey = body.read().await?;
    let scopes = scopes(new.scopes)?;
    let quota: Quota = new.quota.unwrap_or_default().into();
    let (key, row) = with_keys(asked, move |keys| keys.create(&new.name, scopes, quota)).await?;
    let made = MadeKey {
        key: key.reveal().to_owned(),
        about: row.into(),
    };
    Ok(answer::json(StatusCode::CREATED, &made))
}

pub(crate) async fn revoke(asked: &Asked<'_>, which: &str) -> Result<Response<Body>, Refusal> {
    let which = which.to_owned();
    let stops = query::flag(&query::pairs(asked.query()), "stop_sandboxes")?;
    let known = {
        let which = which.clone();
        with_keys(asked, move |keys| keys.list())
            .await?
            .iter()
            .any(|key| key.id == which && (stops || key.revoked_ms.is_none()))
    };
    if !known {
        return Err(Refusal::not_found("there is no such key"));
    }
    with_keys(asked, move |keys| match stops {
        true => keys.revoke_with_sandboxes(&which),
        false => keys.revoke(&which),
    })
    .await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

fn scopes(words: Option<Vec<String>>) -> Result<Scopes, Refusal> {
    let Some(words) = words else {
        return Ok(Scopes(vec![Scope::Create]));
    };
    let scopes: Result<Vec<Scope>, _> = words.iter().map(|word| word.parse()).collect();
    let scopes = scopes.map_err(|error| Refusal::bad_request(format!("scopes: {error}")))?;
    Ok(Scopes(scopes))
}
