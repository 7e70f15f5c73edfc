//! Keys in the native REST.

use http::{Response, StatusCode};
use offleash_daemon::{DaemonError, KeyStore, Quota, Scope, Scopes};

use super::shapes::{KeyAnswer, KeyList, MadeKey, NewKey};
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::http::query;

/// Works with the keys; that goes on when the client goes away meanwhile.
async fn with_keys<T: Send + 'static>(
    asked: &ApiRequest<'_>,
    work: impl FnOnce(KeyStore) -> Result<T, DaemonError> + Send + 'static,
) -> Result<T, ApiRefusal> {
    asked.whole(|_, _| asked.control.keys().work(work)).await
}

pub(crate) async fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let keys = with_keys(asked, |keys| keys.list()).await?;
    let keys = keys.into_iter().map(KeyAnswer::from).collect();
    Ok(answer::json(StatusCode::OK, &KeyList { keys }))
}

pub(crate) async fn create(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let new: NewKey = body.read().await?;
    let scopes = scopes(new.scopes)?;
    let quota: Quota = new.quota.unwrap_or_default().into();
    let within = new
        .tools
        .as_deref()
        .map(|tools| asked.daemon().grants_of(&asked.caller, tools));
    within.transpose().map_err(|error| asked.refused(&error))?;
    let made = with_keys(asked, move |keys| match &new.tools {
        Some(tools) => keys.create_with_tools(&new.name, scopes, quota, tools),
        None => keys.create(&new.name, scopes, quota),
    });
    let (key, row) = made.await?;
    let made = MadeKey {
        key: key.reveal().to_owned(),
        about: row.into(),
    };
    Ok(answer::json(StatusCode::CREATED, &made))
}

pub(crate) async fn revoke(asked: &ApiRequest<'_>, which: &str) -> Result<Response<Body>, ApiRefusal> {
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
        return Err(ApiRefusal::not_found("there is no such key"));
    }
    with_keys(asked, move |keys| match stops {
        true => keys.revoke_with_sandboxes(&which),
        false => keys.revoke(&which),
    })
    .await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

fn scopes(words: Option<Vec<String>>) -> Result<Scopes, ApiRefusal> {
    let Some(words) = words else {
        return Ok(Scopes(vec![Scope::Create]));
    };
    let scopes: Result<Vec<Scope>, _> = words.iter().map(|word| word.parse()).collect();
    let scopes = scopes.map_err(|error| ApiRefusal::bad_request(format!("scopes: {error}")))?;
    Ok(Scopes(scopes))
}
