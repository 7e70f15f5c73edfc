//! What becomes of logs, honest ones and others.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::recorder::Recorder;

const NOW: Duration = Duration::from_millis(1_700_000_000_120);

/// The HAR of what a browser says of a page.
fn recorded(events: &[(&str, Value)]) -> Value {
    let mut recorder = Recorder::new(false);
    let attached = json!({ "method": "Target.attachedToTarget",
        "params": { "sessionId": "s", "targetInfo": { "targetId": "page-1", "type": "page" } } });
    recorder.take(&attached.to_string(), NOW);
    let mut log = Vec::new();
    for (number, (method, params)) in events.iter().enumerate() {
        let event = json!({ "method": method, "sessionId": "s", "params": params });
        let now = NOW + Duration::from_millis(10 * u64::try_from(number).unwrap());
        for item in recorder.take(&event.to_string(), now).items {
            serde_json::to_writer(&mut log, &item).unwrap();
            log.push(b'\n');
        }
    }
    serde_json::from_slice(&har(&log)).unwrap()
}

fn request(id: &str, url: &str, at: f64) -> (&'static str, Value) {
    let headers =
        json!({ "Accept": "*/*", "Cookie": "sesame", "Authorization": "Bearer sesame", "X-Api-Key": "sesame" });
    let request = json!({ "method": "GET", "url": url, "headers": headers });
    let told = json!({ "requestId": id, "type": "Document", "timestamp": at, "request": request });
    ("Network.requestWillBeSent", told)
}

#[test]
fn a_request_is_told_with_its_times_and_without_what_proves_who_asks() {
    let timing = json!({ "requestTime": 100.001, "dnsStart": 0.5, "dnsEnd": 1.5, "connectStart": 1.5, "connectEnd": 4.5,
        "sslStart": 2.5, "sslEnd": 4.5, "sendStart": 5, "sendEnd": 5.5, "receiveHeadersEnd": 25.5 });
    let response = json!({ "url": "https://a.example/?q=1%202&r", "status": 200, "statusText": "OK", "mimeType": "text/html",
        "protocol": "h2", "timing": timing,
        "headers": { "content-type": "text/html", "content-length": "12", "set-cookie": "id=sesame" } });
    let har = recorded(&[
        request("1", "https://a.example/?q=1%202&r#part", 100.0),
        (
            "Network.responseReceived",
            json!({ "requestId": "1", "timestamp": 100.03, "response": response }),
        ),
        (
            "Network.loadingFinished",
            json!({ "requestId": "1", "timestamp": 100.05, "encodedDataLength": 120 }),
        ),
    ]);
    assert!(!har.to_string().contains("sesame"), "{har}");
    let log = &har["log"];
    assert_eq!(
        (&log["version"], log["entries"].as_array().unwrap().len()),
        (&json!("1.2"), 1)
    );
    assert_eq!(
        log["pages"][0],
        json!({ "id": "page-1", "startedDateTime": "2023-11-14T22:13:20.120Z",
        "title": "https://a.example/?q=1%202&r#part", "pageTimings": {} })
    );
    let entry = &log["entries"][0];
    assert_eq!(
        entry["request"]["headers"],
        json!([{ "name": "accept", "value": "*/*" }])
    );
    assert_eq!(
        entry["request"]["queryString"],
        json!([{ "name": "q", "value": "1%202" }, { "name": "r", "value": "" }])
    );
    assert_eq!(
        (&entry["response"]["status"], &entry["response"]["httpVersion"]),
        (&json!(200), &json!("HTTP/2"))
    );
    assert_eq!(
        entry["response"]["content"],
        json!({ "size": 12, "mimeType": "text/html" })
    );
    assert_eq!(
        entry["timings"],
        json!({ "blocked": 1.5, "dns": 1.0, "connect": 3.0, "ssl": 2.0, "send": 0.5, "wait": 20.0, "receive": 24.0 })
    );
    assert_eq!(entry["time"], 50.0);
}

#[test]
fn a_chain_of_redirects_is_a_request_each_and_one_that_fails_says_why() {
    let (_, mut next) = request("1", "https://a.example/second", 100.2);
    next["redirectResponse"] = json!({ "status": 302, "protocol": "http/1.1",
        "headers": { "Location": "/second", "Set-Cookie": "id=sesame" } });
    let har = recorded(&[
        request("1", "http://a.example/", 100.0),
        ("Network.requestWillBeSent", next),
        (
            "Network.loadingFailed",
            json!({ "requestId": "1", "timestamp": 100.3, "errorText": "net::ERR_FAILED" }),
        ),
        (
            "Network.webSocketCreated",
            json!({ "requestId": "2", "url": "ws://a.example/" }),
        ),
        (
            "Network.webSocketHandshakeResponseReceived",
            json!({ "requestId": "2", "timestamp": 1, "response": { "status": 101 } }),
        ),
        request("3", "data:text/html,hello", 100.0),
        request("4", "https://a.example/open", 100.0),
    ]);
    let entries = har["log"]["entries"].as_array().unwrap();
    let told: Vec<_> = entries
        .iter()
        .map(|entry| {
            (
                entry["request"]["url"].as_str().unwrap(),
                entry["response"]["status"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("http://a.example/", 302),
            ("https://a.example/second", 0),
            ("ws://a.example/", 101),
            ("https://a.example/open", 0),
        ]
    );
    assert_eq!(entries[0]["response"]["redirectURL"], "/second");
    assert_eq!(
        (&entries[0]["time"], &entries[1]["response"]["_error"]),
        (&json!(200.0), &json!("net::ERR_FAILED"))
    );
    assert!(!har.to_string().contains("sesame"), "{har}");
}

#[test]
fn what_was_not_kept_is_told_and_lines_that_are_none_are_passed_over() {
    let log = b"{\"timestamp\":1,\"pageId\":\"\",\"method\":\"offleash.dropped\",\"params\":{\"count\":7}}\n{\"timest\n\n[]\n";
    let har: Value = serde_json::from_slice(&har(log)).unwrap();
    assert_eq!(har["log"]["comment"], "7 entries of the log were not kept");
    assert_eq!(har["log"]["entries"], json!([]));
}

proptest! {
    #[test]
    fn numbers_that_no_clock_has_are_numbers_of_json(at in any::<f64>(), end in any::<f64>(), part in any::<f64>()) {
        let timing = json!({ "requestTime": part, "dnsStart": part, "dnsEnd": at, "sendStart": end, "sendEnd": part, "receiveHeadersEnd": at });
        let har = recorded(&[
            request("1", "http://a/", at),
            ("Network.responseReceived", json!({ "requestId": "1", "timestamp": part, "response": { "status": part, "timing": timing } })),
            ("Network.loadingFinished", json!({ "requestId": "1", "timestamp": end, "encodedDataLength": part })),
        ]);
        let entry = &har["log"]["entries"][0];
        prop_assert!(entry["time"].as_f64().unwrap() >= 0.0);
        for (name, ms) in entry["timings"].as_object().unwrap() {
            prop_assert!(ms.as_f64().unwrap() >= -1.0, "{}", name);
        }
    }
}
