//! What all APIs share: bodies and their bounds, answers and refusals, whom a request is for and from.
//!
//! Nothing here knows an API.

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod certificates;
pub(crate) mod clients;
pub(crate) mod connect;
pub(crate) mod cors;
pub(crate) mod destination;
pub(crate) mod driven;
pub(crate) mod failure;
pub(crate) mod file_mode;
pub(crate) mod guard;
pub(crate) mod json;
pub(crate) mod large;
pub(crate) mod multipart;
pub(crate) mod pace;
pub(crate) mod path;
pub(crate) mod peer;
pub(crate) mod query;
pub(crate) mod schema;
pub(crate) mod source;
pub(crate) mod time;
pub(crate) mod watched;
pub(crate) mod websocket;
