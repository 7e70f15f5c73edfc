//! What a sandbox reached, in the native REST.

use http::{Response, StatusCode};
use offleash_supervisor::clock::from_ms;
use offleash_supervisor::service::message::{Reached, ReachedPlace};
use schemars::JsonSchema;
use serde::Serialize;

use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::time;

/// What a sandbox reached, by connections that have ended.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Reached")]
pub(crate) struct ReachedAnswer {
    /// Connections of one kind each, the latest first, 500 at most.
    hosts: Vec<ReachedHostAnswer>,
    /// How many connections there were beyond those.
    more: u64,
}

/// Connections of one kind.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReachedHost")]
struct ReachedHostAnswer {
    /// The name, or the address where none was used.
    host: String,
    /// The port.
    port: u16,
    /// The rule that allowed them; `null` where no rule named it, and every public address may be reached.
    rule: Option<String>,
    /// Why there was none, or why it ended early; `null` if it was made and ended as usual.
    failure: Option<String>,
    /// Methods of the requests on them, where these were seen, eight at most.
    methods: Vec<String>,
    /// How many there were.
    times: u64,
    /// Bytes that the sandbox sent.
    sent: u64,
    /// Bytes that it received.
    received: u64,
    /// When the latest was asked for.
    last: String,
}

impl From<Reached> for ReachedAnswer {
    fn from(reached: Reached) -> Self {
        Self {
            hosts: reached.hosts.into_iter().map(ReachedHostAnswer::from).collect(),
            more: reached.more,
        }
    }
}

impl From<ReachedPlace> for ReachedHostAnswer {
    fn from(place: ReachedPlace) -> Self {
        Self {
            host: place.host,
            port: place.port,
            rule: place.rule,
            failure: place.failure,
            methods: place.methods,
            times: place.times,
            sent: place.sent,
            received: place.received,
            last: time::text(from_ms(place.last_ms)),
        }
    }
}

pub(crate) async fn reached(asked: &ApiRequest<'_>, id: &str) -> Result<Response<Body>, ApiRefusal> {
    let reached = asked.daemon().reached(&asked.caller, asked.sandbox_id(id)?).await;
    let reached = reached.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &ReachedAnswer::from(reached)))
}
