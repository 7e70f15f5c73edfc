//! Sends messages to one endpoint, each again after a while if it was not taken.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::Request;
use http::header::CONTENT_TYPE;
use offleash_images::{Connector, RegistryAddress, RegistrySettings};
use offleash_supervisor::clock::now_ms;
use ring::hmac;
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};

use super::WebhookCounts;
use super::message::WebhookMessage;

/// How often a message is sent.
const MAX_TRIES: u32 = 5;
/// How long the first wait is between two tries; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long an endpoint may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The header with the time of sending, seconds since 1970.
const TIMESTAMP: &str = "offleash-timestamp";
/// The header with `v1=` and the HMAC-SHA256 of `TIMESTAMP.BODY`, in hexadecimal.
const SIGNATURE: &str = "offleash-signature";
/// The header with the message's id.
const ID: &str = "offleash-webhook-id";

/// Sends what comes until nothing more can.
pub(super) async fn send_all(
    address: RegistryAddress,
    secret: Vec<u8>,
    mut waiting: Receiver<Arc<WebhookMessage>>,
    counts: Arc<WebhookCounts>,
) {
    let Ok(connector) = Connector::new(&RegistrySettings::default()) else {
        return;
    };
    while let Some(message) = waiting.recv().await {
        let count = match deliver(&connector, &address, &secret, &message).await {
            true => &counts.delivered,
            false => &counts.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends a message as often as it takes; whether it was taken.
async fn deliver(connector: &Connector, address: &RegistryAddress, secret: &[u8], message: &WebhookMessage) -> bool {
    for number in 0..MAX_TRIES {
        if number > 0 {
            sleep(FIRST_WAIT * 2_u32.pow(number - 1)).await;
        }
        if matches!(
            timeout(ANSWER_TIMEOUT, post(connector, address, secret, message)).await,
            Ok(Some(()))
        ) {
            return true;
        }
    }
    false
}

/// Sends it once; nothing where it was not taken. What else is answered is not read.
async fn post(connector: &Connector, address: &RegistryAddress, secret: &[u8], message: &WebhookMessage) -> Option<()> {
    let at = (now_ms() / 1000).to_string();
    let request = Request::post(address.path())
        .header(CONTENT_TYPE, "application/json")
        .header(TIMESTAMP, at.as_str())
        .header(SIGNATURE, signature(secret, &at, &message.body))
        .header(ID, message.id.as_str())
        .body(Bytes::from(message.body.clone()))
        .ok()?;
    let response = connector.send(address, request, "the webhook").await.ok()?;
    response.status().is_success().then_some(())
}

/// The signature of a body that is sent at that time.
pub(super) fn signature(secret: &[u8], at: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let signed = [at.as_bytes(), b".", body].concat();
    format!("v1={}", HEXLOWER.encode(hmac::sign(&key, &signed).as_ref()))
}
