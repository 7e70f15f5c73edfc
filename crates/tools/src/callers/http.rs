//! An HTTP endpoint: parameters are posted as JSON.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Request};
use offleash_images::{Connector, RegistryAddress, RegistrySettings};
use offleash_protocol::tools::MAX_ANSWER;
use serde_json::Value;

use super::value_of;
use crate::answer::CallFailure;

/// How much of what an endpoint says to an error is told, characters.
const MAX_SAID: usize = 400;

pub(super) async fn call(url: &str, headers: &[(String, String)], parameters: &Value) -> Result<Value, CallFailure> {
    let failed = |reason: String| CallFailure::Failed(format!("the tool's endpoint: {reason}"));
    let address = RegistryAddress::parse(url).map_err(|reason| failed(reason.clone()))?;
    if !address.is_encrypted() && !address.is_loopback() {
        return Err(failed("only one on this machine is called without TLS".to_owned()));
    }
    let json = HeaderValue::from_static("application/json");
    let mut request = Request::post(address.path())
        .header(CONTENT_TYPE, json.clone())
        .header(ACCEPT, json);
    for (name, origin) in headers {
        let value = value_from(origin)
            .await
            .map_err(|reason| failed(format!("header {name}: {reason}")))?;
        let name: HeaderName = name
            .parse()
            .map_err(|_| failed(format!("`{name}` is no name of a header")))?;
        let mut value: HeaderValue = value
            .trim()
            .parse()
            .map_err(|_| failed(format!("header {name} has no such value")))?;
        value.set_sensitive(true);
        request = request.header(name, value);
    }
    let body = Bytes::from(parameters.to_string());
    let request = request.body(body).map_err(|error| failed(error.to_string()))?;
    let connector = Connector::new(&RegistrySettings::default()).map_err(|error| failed(error.to_string()))?;
    // Where it leads elsewhere nobody follows: what was declared is this endpoint.
    let response = connector.send(&address, request, "the endpoint").await;
    let response = response.map_err(|error| failed(error.to_string()))?;
    let status = response.status();
    let most = u64::try_from(MAX_ANSWER).unwrap_or(u64::MAX);
    let answer = connector.read(response, most, "the endpoint").await;
    let answer = answer.map_err(|error| failed(error.to_string()))?;
    if !status.is_success() {
        let said: String = String::from_utf8_lossy(&answer).chars().take(MAX_SAID).collect();
        let said = offleash_core::text::one_line(said.trim().as_bytes()).into_owned();
        return Err(failed(format!("{status} {said}")));
    }
    value_of(&answer)
}

/// What a header is: itself, or what a variable or a file of the owner's holds.
async fn value_from(origin: &str) -> Result<String, String> {
    if let Some(variable) = origin.strip_prefix("env:") {
        return std::env::var(variable).map_err(|_| format!("the variable `{variable}` is not set"));
    }
    match origin.strip_prefix("file:") {
        Some(path) => tokio::fs::read_to_string(path)
            .await
            .map_err(|error| format!("`{path}`: {error}")),
        None => Ok(origin.to_owned()),
    }
}
