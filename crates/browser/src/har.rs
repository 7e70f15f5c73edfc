//! The network log of a session as HAR 1.2 (<http://www.softwareishard.com/blog/har-12-spec/>).
//!
//! Pure: it is made of the lines that a [`crate::Recorder`] kept, so it has no bodies, no cookies, and no header but those
//! that are recorded. What is a browser's word there is its word here: numbers are bounded, and nothing is trusted.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The longest time that is told, milliseconds: what is longer is nobody's request.
const MAX_MS: f64 = 1e9;
/// What a browser that does not say which protocol it spoke is said to have spoken.
const UNKNOWN_PROTOCOL: &str = "unknown";

/// A line of the log.
#[derive(Debug, Deserialize)]
struct LogLine {
    timestamp: u64,
    #[serde(rename = "pageId")]
    page: String,
    method: String,
    params: Map<String, Value>,
}

/// A request, and what came of it.
#[derive(Debug)]
struct Exchange {
    began_ms: u64,
    ended_ms: u64,
    page: String,
    request: Map<String, Value>,
    response: Option<Map<String, Value>>,
    end: Option<Map<String, Value>>,
}

/// What was read of a log.
#[derive(Debug, Default)]
struct Exchanges {
    all: Vec<Exchange>,
    /// Those that have not ended, by their page and their request.
    open: BTreeMap<(String, String), usize>,
    dropped: u64,
}

/// The requests of a log, whose lines are the oldest first, as one document of JSON. A line that is none is passed over.
pub fn har(log: &[u8]) -> Vec<u8> {
    let mut exchanges = Exchanges::default();
    for line in log.split(|byte| *byte == b'\n') {
        if let Ok(line) = serde_json::from_slice(line) {
            exchanges.take(line);
        }
    }
    exchanges.document().to_string().into_bytes()
}

impl Exchanges {
    fn take(&mut self, line: LogLine) {
        let id = text_of(&line.params, "requestId").to_owned();
        let key = (line.page.clone(), id);
        match line.method.as_str() {
            "Network.requestWillBeSent" => {
                if line.params.contains_key("redirectStatus") {
                    self.redirected(&key, &line);
                }
                self.begin(key, line);
            }
            "Network.webSocketCreated" => self.begin(key, line),
            "Network.responseReceived" | "Network.webSocketHandshakeResponseReceived" => {
                if let Some(exchange) = self.open.get(&key).and_then(|place| self.all.get_mut(*place)) {
                    exchange.ended_ms = line.timestamp;
                    exchange.response = Some(line.params);
                }
            }
            "Network.loadingFinished" | "Network.loadingFailed" => self.end(&key, line),
            "offleash.dropped" => {
                let count = line.params.get("count").and_then(Value::as_u64);
                self.dropped = self.dropped.saturating_add(count.unwrap_or(0));
            }
            _ => {}
        }
    }

    fn begin(&mut self, key: (String, String), line: LogLine) {
        // What is in an address was on no network.
        if text_of(&line.params, "url").starts_with("data:") {
            return;
        }
        self.open.insert(key, self.all.len());
        self.all.push(Exchange {
            began_ms: line.timestamp,
            ended_ms: line.timestamp,
            page: line.page,
            request: line.params,
            response: None,
            end: None,
        });
    }

    fn end(&mut self, key: &(String, String), line: LogLine) {
        if let Some(exchange) = self.open.remove(key).and_then(|place| self.all.get_mut(place)) {
            exchange.ended_ms = line.timestamp;
            exchange.end = Some(line.params);
        }
    }

    /// The next request of a chain tells how the one before was answered.
    fn redirected(&mut self, key: &(String, String), next: &LogLine) {
        let named = [
            ("status", "redirectStatus"),
            ("protocol", "redirectProtocol"),
            ("mimeType", "redirectMimeType"),
            ("headers", "redirectHeaders"),
        ];
        let response = named
            .iter()
            .filter_map(|(name, of)| Some(((*name).to_owned(), next.params.get(*of)?.clone())));
        let at = next.params.get("at").map(|at| ("at".to_owned(), at.clone()));
        if let Some(exchange) = self.open.remove(key).and_then(|place| self.all.get_mut(place)) {
            exchange.ended_ms = next.timestamp;
            exchange.response = Some(response.collect());
            exchange.end = Some(at.into_iter().collect());
        }
    }

    fn document(&self) -> Value {
        let mut log = json!({
            "version": "1.2",
            "creator": { "name": "offleash", "version": env!("CARGO_PKG_VERSION") },
            "pages": self.pages(),
            "entries": self.all.iter().map(Exchange::entry).collect::<Vec<_>>(),
        });
        if self.dropped > 0 {
            log["comment"] = format!("{} entries of the log were not kept", self.dropped).into();
        }
        json!({ "log": log })
    }

    /// Pages, frames and workers, by their first requests.
    fn pages(&self) -> Vec<Value> {
        let mut known = BTreeMap::new();
        for exchange in &self.all {
            let (_, title) = known.entry(&exchange.page).or_insert((exchange.began_ms, ""));
            if title.is_empty() && text_of(&exchange.request, "type") == "Document" {
                *title = text_of(&exchange.request, "url");
            }
        }
        let mut pages: Vec<_> = known.into_iter().collect();
        pages.sort_by_key(|(_, (began_ms, _))| *began_ms);
        let told = pages.into_iter().map(|(id, (began_ms, title))| {
            json!({ "id": id, "startedDateTime": time_of(began_ms), "title": title, "pageTimings": {} })
        });
        told.collect()
    }
}

impl Exchange {
    fn entry(&self) -> Value {
        let timings = self.timings();
        let url = text_of(&self.request, "url");
        let no_response = Map::new();
        let response = self.response.as_ref().unwrap_or(&no_response);
        let protocol = protocol(text_of(response, "protocol"));
        let error = self.end.as_ref().map(|end| text_of(end, "error")).unwrap_or_default();
        let mut entry = json!({
            "pageref": self.page,
            "startedDateTime": time_of(self.began_ms),
            "time": thousandths(timings.total()),
            "request": {
                "method": match text_of(&self.request, "method") { "" => "GET", method => method },
                "url": url,
                "httpVersion": protocol,
                "cookies": [],
                "headers": pairs(self.request.get("headers")),
                "queryString": query(url),
                "headersSize": -1,
                "bodySize": -1,
            },
            "response": {
                "status": response.get("status").and_then(Value::as_u64).filter(|status| *status < 1000).unwrap_or(0),
                "statusText": text_of(response, "statusText"),
                "httpVersion": protocol,
                "cookies": [],
                "headers": pairs(response.get("headers")),
                "content": { "size": self.content_bytes(response), "mimeType": text_of(response, "mimeType") },
                "redirectURL": header(response, "location"),
                "headersSize": -1,
                "bodySize": -1,
            },
            "cache": {},
            "timings": timings.told(),
        });
        if let Some(kind) = self.request.get("type").and_then(Value::as_str) {
            entry["_resourceType"] = kind.to_lowercase().into();
        }
        if let Some(bytes) = self
            .end
            .as_ref()
            .and_then(|end| end.get("bytes"))
            .and_then(Value::as_f64)
        {
            entry["response"]["_transferSize"] = Value::from(thousandths(bytes.clamp(0.0, 1e15)));
        }
        if !error.is_empty() {
            entry["response"]["_error"] = error.into();
        }
        entry
    }

    /// How long its body says that it is, where that is how long it is.
    fn content_bytes(&self, response: &Map<String, Value>) -> i64 {
        match header(response, "content-encoding") {
            "" | "identity" => header(response, "content-length")
                .parse::<i64>()
                .ok()
                .filter(|bytes| *bytes >= 0),
            _ => None,
        }
        .unwrap_or(-1)
    }

    /// From its beginning to its end, by the browser's clock where it tells both, milliseconds.
    fn total_ms(&self) -> f64 {
        let at = |of: Option<&Map<String, Value>>| of.and_then(|of| of.get("at")).and_then(Value::as_f64);
        let end = at(self.end.as_ref()).or_else(|| at(self.response.as_ref()));
        let by_browser = at(Some(&self.request))
            .zip(end)
            .map(|(begin, end)| (end - begin) * 1000.0);
        let by_host = || {
            let ms = u32::try_from(self.ended_ms.saturating_sub(self.began_ms)).unwrap_or(u32::MAX);
            f64::from(ms)
        };
        bounded(
            by_browser
                .filter(|ms| ms.is_finite() && *ms >= 0.0)
                .unwrap_or_else(by_host),
        )
    }

    fn timings(&self) -> Timings {
        let total = self.total_ms();
        let timing = self.response.as_ref().and_then(|response| response.get("timing"));
        let number = |name: &str| timing.and_then(|timing| timing.get(name)).and_then(Value::as_f64);
        // What did not happen is -1 there.
        let part = |name: &str| number(name).filter(|ms| *ms >= 0.0);
        let between = |from: &str, to: &str| Some(bounded(part(to)? - part(from)?));
        let begin = self.request.get("at").and_then(Value::as_f64);
        let (Some(begin), Some(requested), Some(send)) = (begin, number("requestTime"), part("sendStart")) else {
            return Timings {
                wait: total,
                ..Timings::default()
            };
        };
        let first = part("dnsStart").or_else(|| part("connectStart")).unwrap_or(send);
        let mut timings = Timings {
            blocked: Some(bounded((requested - begin) * 1000.0 + first)),
            dns: between("dnsStart", "dnsEnd"),
            connect: between("connectStart", "connectEnd"),
            ssl: between("sslStart", "sslEnd"),
            send: between("sendStart", "sendEnd").unwrap_or(0.0),
            wait: between("sendEnd", "receiveHeadersEnd").unwrap_or(0.0),
            receive: 0.0,
        };
        timings.receive = bounded(total - timings.total());
        timings
    }
}

/// How long what of a request took, milliseconds.
#[derive(Debug, Default)]
struct Timings {
    blocked: Option<f64>,
    dns: Option<f64>,
    /// With that of TLS.
    connect: Option<f64>,
    ssl: Option<f64>,
    send: f64,
    wait: f64,
    receive: f64,
}

impl Timings {
    /// All of it: that of TLS is in that of the connection.
    fn total(&self) -> f64 {
        let optional = [self.blocked, self.dns, self.connect]
            .into_iter()
            .flatten()
            .sum::<f64>();
        optional + self.send + self.wait + self.receive
    }

    fn told(&self) -> Value {
        let optional = |ms: Option<f64>| ms.map_or(-1.0, thousandths);
        json!({
            "blocked": optional(self.blocked),
            "dns": optional(self.dns),
            "connect": optional(self.connect),
            "ssl": optional(self.ssl),
            "send": thousandths(self.send),
            "wait": thousandths(self.wait),
            "receive": thousandths(self.receive),
        })
    }
}

fn text_of<'a>(of: &'a Map<String, Value>, name: &str) -> &'a str {
    of.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn header<'a>(response: &'a Map<String, Value>, name: &str) -> &'a str {
    let value = response.get("headers").and_then(|headers| headers.get(name));
    value.and_then(Value::as_str).unwrap_or_default()
}

fn pairs(headers: Option<&Value>) -> Vec<Value> {
    let headers = headers.and_then(Value::as_object).into_iter().flatten();
    headers
        .filter_map(|(name, value)| Some(json!({ "name": name, "value": value.as_str()? })))
        .collect()
}

/// What is behind the `?` of an address, as it is written there.
fn query(url: &str) -> Vec<Value> {
    let before_fragment = url.split('#').next().unwrap_or_default();
    let Some((_, query)) = before_fragment.split_once('?') else {
        return Vec::new();
    };
    let words = query.split('&').filter(|word| !word.is_empty());
    words
        .map(|word| {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            json!({ "name": name, "value": value })
        })
        .collect()
}

/// A protocol as HAR has it.
fn protocol(alpn: &str) -> &str {
    match alpn {
        "" => UNKNOWN_PROTOCOL,
        "http/1.0" => "HTTP/1.0",
        "http/1.1" => "HTTP/1.1",
        "h2" => "HTTP/2",
        "h3" => "HTTP/3",
        other => other,
    }
}

/// RFC 3339 in UTC, to the millisecond.
fn time_of(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    // Times that no calendar has come from nowhere.
    let stamp = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{stamp:.3}")
}

fn bounded(ms: f64) -> f64 {
    match ms.is_finite() {
        true => ms.clamp(0.0, MAX_MS),
        false => 0.0,
    }
}

fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
#[path = "har_tests.rs"]
mod tests;
