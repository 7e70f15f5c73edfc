use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver as StdReceiver, channel as std_channel};

use super::*;
use crate::registry::EventKind;
use crate::webhook_config::WebhookError;

const SECRET: &[u8] = b"0123456789abcdef";

fn event(kind: EventKind) -> EventRow {
    EventRow {
        number: 0,
        key_id: Some("k1".to_owned()),
        sandbox: "i1".to_owned(),
        name: None,
        template: "base".to_owned(),
        at_ms: 0,
        kind,
        detail: Some("{\"reason\":\"because\"}".to_owned()),
    }
}

/// A server that answers each request with the next of `answers`, and tells what it was sent: headers and body.
fn server(answers: Vec<&'static str>) -> (String, StdReceiver<(Vec<String>, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (tell, told) = std_channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    break;
                }
                head.push(line.trim().to_owned());
            }
            let length = head
                .iter()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut body).unwrap();
            tell.send((head, String::from_utf8(body).unwrap())).unwrap();
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, told)
}

async fn sent(url: &str, messages: Vec<WebhookMessage>) -> Arc<WebhookCounts> {
    let (queue, waiting) = mpsc::channel(MAX_QUEUED);
    for message in messages {
        queue.try_send(Arc::new(message)).unwrap();
    }
    drop(queue);
    let counts: Arc<WebhookCounts> = Arc::default();
    sending::send_all(endpoint(url).unwrap(), SECRET.to_vec(), waiting, Arc::clone(&counts)).await;
    counts
}

const TAKEN: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn a_message_is_signed_and_sent_again_until_it_is_taken() {
    let (url, told) = server(vec![
        "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
        "nonsense\r\n\r\n",
        TAKEN,
    ]);
    let message = WebhookMessage::of_event(&event(EventKind::Died));
    let counts = sent(&url, vec![message.clone()]).await;
    assert_eq!(counts.delivered.load(Ordering::Relaxed), 1);
    let all: Vec<_> = told.iter().collect();
    assert_eq!(all.len(), 3);
    let (head, body) = &all[2];
    assert_eq!(head[0], "POST /hook HTTP/1.1");
    let header = |name: &str| head.iter().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
    let at = header("offleash-timestamp: ");
    assert_eq!(
        header("offleash-signature: "),
        sending::signature(SECRET, &at, body.as_bytes())
    );
    assert_eq!(header("offleash-webhook-id: "), message.id);
    let said: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(said["type"], "sandbox.lifecycle.killed");
    assert_eq!(
        (&said["event_data"]["kind"], &said["event_data"]["reason"]),
        (&"died".into(), &"because".into())
    );
    assert_eq!(
        (&said["sandbox_id"], &said["event_label"]),
        (&"i1".into(), &"kill".into())
    );
}

#[test]
fn a_signature_is_the_hmac_of_time_and_body() {
    // Of RFC 4231's kind, made with `printf '1.{}' | openssl dgst -sha256 -hmac key`.
    let made = sending::signature(b"key", "1", b"{}");
    assert!(made.starts_with("v1=") && made.len() == 3 + 64);
    assert_ne!(made, sending::signature(b"key", "2", b"{}"));
    assert_ne!(made, sending::signature(b"kez", "1", b"{}"));
}

#[tokio::test]
async fn no_more_waits_for_an_endpoint_than_may_and_types_are_chosen() {
    let (queue, mut waiting) = mpsc::channel(2);
    let counts = WebhookCounts::default();
    let types = vec!["sandbox.alert".to_owned()];
    for kind in [EventKind::Alert, EventKind::Created, EventKind::Alert, EventKind::Alert] {
        put(
            std::slice::from_ref(&queue),
            &types,
            WebhookMessage::of_event(&event(kind)),
            &counts,
        );
    }
    assert_eq!(counts.dropped.load(Ordering::Relaxed), 1);
    assert_eq!(waiting.recv().await.unwrap().kind, "sandbox.alert");
}

#[test]
fn endpoints_that_cannot_be_told_safely_are_refused() {
    let config = |url: &str, secret: &[u8], kind: &str| WebhooksConfig {
        urls: vec![url.to_owned()],
        secret: secret.to_vec(),
        types: vec![kind.to_owned()],
    };
    let fits = |url: &str| config(url, SECRET, "sandbox.alert").check();
    assert_eq!(fits("https://example.com/hook"), Ok(()));
    assert_eq!(fits("http://127.0.0.1:80/hook"), Ok(()));
    assert!(matches!(
        fits("http://example.com/hook"),
        Err(WebhookError::InTheOpen(_))
    ));
    assert!(matches!(
        fits("nonsense"),
        Err(WebhookError::Url { .. } | WebhookError::InTheOpen(_))
    ));
    assert_eq!(
        config("https://example.com", b"short", "sandbox.alert").check(),
        Err(WebhookError::Secret)
    );
    let unknown = config("https://example.com", SECRET, "alert").check();
    assert_eq!(unknown, Err(WebhookError::Type("alert".to_owned())));
    assert!(!format!("{:?}", config("https://example.com", SECRET, "x")).contains("0123456789"));
}
