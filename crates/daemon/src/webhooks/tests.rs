use super::*;
use crate::registry::{EventFacts, EventKind, EventRow};
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

#[test]
fn a_message_says_what_happened_and_has_the_same_id_whoever_makes_it() {
    let event = |number| EventRow {
        number,
        ..event(EventKind::Died)
    };
    let message = WebhookMessage::of_event(&event(7));
    let said: serde_json::Value = serde_json::from_slice(&message.body).unwrap();
    assert_eq!(said["type"], "sandbox.lifecycle.killed");
    assert_eq!(
        (&said["event_data"]["kind"], &said["event_data"]["reason"]),
        (&"died".into(), &"because".into())
    );
    assert_eq!(
        (&said["sandbox_id"], &said["event_label"], &said["id"]),
        (&"i1".into(), &"kill".into(), &message.id.as_str().into())
    );
    assert_eq!(message, WebhookMessage::of_event(&event(7)));
    assert_ne!(message.id, WebhookMessage::of_event(&event(8)).id);
}

#[test]
fn a_key_is_told_with_the_fields_and_the_signature_of_e2b() {
    let died = EventRow {
        number: 7,
        at_ms: 5000,
        ..event(EventKind::Died)
    };
    let facts = EventFacts {
        metadata: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
        started_ms: 2000,
    };
    let message = WebhookMessage::of_key("w1", &died, Some(&facts));
    let said: serde_json::Value = serde_json::from_slice(&message.body).unwrap();
    for (field, value) in [
        ("/type", "sandbox.lifecycle.killed"),
        ("/event_data/sandbox_metadata/team", "a"),
        ("/event_data/execution/started_at", "1970-01-01T00:00:02.000Z"),
        ("/sandbox_team_id", "k1"),
        ("/sandbox_id", "i1"),
        ("/version", "v2"),
    ] {
        assert_eq!(said.pointer(field).unwrap(), value, "{field}: {said}");
    }
    assert_eq!(said["event_data"]["execution"]["execution_time"], 3000);
    // Each webhook of a key has messages of its own, which are the same each time.
    assert_eq!(message, WebhookMessage::of_key("w1", &died, Some(&facts)));
    assert_ne!(message.id, WebhookMessage::of_key("w2", &died, Some(&facts)).id);
    let created = WebhookMessage::of_key("w1", &event(EventKind::Created), None);
    let said: serde_json::Value = serde_json::from_slice(&created.body).unwrap();
    assert_eq!(said["event_data"].get("execution"), None);
    // `printf 'secret{}' | openssl dgst -sha256 -binary | base64`, as E2B's receivers turn it.
    assert_eq!(
        sending::e2b_signature(b"secret", b"{}"),
        "e9B8ejqc2_sG6v6Lh2cAHsXgRKkAkGentpGLCOuoSYs"
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

#[test]
fn no_more_questions_wait_for_an_endpoint_than_may_and_types_are_chosen() {
    let (queue, mut waiting) = mpsc::channel(2);
    let counts = WebhookCounts::default();
    for number in 0..3 {
        let event = EventRow {
            number,
            ..event(EventKind::Alert)
        };
        put(std::slice::from_ref(&queue), WebhookMessage::of_event(&event), &counts);
    }
    assert_eq!(counts.dropped.load(Ordering::Relaxed), 1);
    assert_eq!(waiting.try_recv().unwrap().kind, "sandbox.alert");
    let config = WebhooksConfig {
        types: vec!["sandbox.alert".to_owned()],
        ..WebhooksConfig::default()
    };
    assert!(config.wants("sandbox.alert") && !config.wants(message::QUESTION));
    assert!(WebhooksConfig::default().wants(message::QUESTION));
}

#[test]
fn endpoints_that_cannot_be_told_safely_are_refused() {
    let config = |url: &str, secret: &[u8], kind: &str| WebhooksConfig {
        urls: vec![url.to_owned()],
        secret: secret.to_vec(),
        types: vec![kind.to_owned()],
        ..WebhooksConfig::default()
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
