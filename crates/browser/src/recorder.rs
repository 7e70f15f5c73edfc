//! What is recorded of a session, from what its browser says.
//!
//! Pure: no socket, no file, no clock. The browser is told to speak of its pages; of what it says some fields are taken,
//! each cut, and so many a second. Whatever else it says is passed over.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::bounds::{MAX_ENTRIES_PER_SECOND, MAX_FRAMES_PER_SECOND, MAX_LOOKED_INTO, MAX_TARGETS};
use crate::endpoint::cut;

/// What of a call to the console is taken.
const MAX_ARGUMENTS: usize = 16;
/// The largest picture, characters of base64.
const MAX_FRAME: usize = 1 << 20;
/// Headers that are kept: what was asked for and what came, and nothing by which somebody proves who he is.
const REQUEST_HEADERS: [&str; 6] = [
    "accept",
    "accept-language",
    "cache-control",
    "content-type",
    "range",
    "user-agent",
];
const RESPONSE_HEADERS: [&str; 11] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "etag",
    "last-modified",
    "location",
    "server",
    "vary",
];
/// What is kept of one, characters.
const MAX_HEADER: usize = 512;
/// What is kept of how long the parts of a request took.
const TIMINGS: [&str; 10] = [
    "requestTime",
    "dnsStart",
    "dnsEnd",
    "connectStart",
    "connectEnd",
    "sslStart",
    "sslEnd",
    "sendStart",
    "sendEnd",
    "receiveHeadersEnd",
];
/// Pictures are of this size at most, pixels.
const FRAME_SIDES: (u16, u16) = (1280, 720);

/// Something that is kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum RecordedItem {
    /// A line of the log.
    Entry {
        /// When, milliseconds since 1970.
        timestamp: u64,
        /// The page, frame or worker.
        #[serde(rename = "pageId")]
        page: String,
        /// As in `Network.requestWillBeSent`.
        method: String,
        /// What is told of it.
        params: Map<String, Value>,
    },
    /// A picture of a page.
    Frame {
        /// When, milliseconds since 1970.
        timestamp: u64,
        /// The page.
        #[serde(rename = "pageId")]
        page: String,
        /// A JPEG, in base64.
        data: String,
    },
}

/// What came of a message.
#[derive(Debug, Default, PartialEq)]
pub struct Taken {
    /// What is to be kept, in this order.
    pub items: Vec<RecordedItem>,
    /// What the browser is to be told.
    pub commands: Vec<String>,
}

/// What is observed, and how much of this second was taken.
#[derive(Debug)]
pub struct Recorder {
    /// Whether pictures are kept.
    pictures: bool,
    last_id: u64,
    /// Pages, frames and workers by the name of the conversation with each.
    targets: BTreeMap<String, String>,
    second: u64,
    entries: u32,
    frames: u32,
    dropped: u64,
}

#[derive(Debug, Deserialize)]
struct BrowserEvent {
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(rename = "sessionId")]
    session: Option<String>,
}

impl Recorder {
    /// One that keeps pictures, or does not.
    pub fn new(pictures: bool) -> Self {
        Self {
            pictures,
            last_id: 0,
            targets: BTreeMap::new(),
            second: 0,
            entries: 0,
            frames: 0,
            dropped: 0,
        }
    }

    /// What a browser is told at first.
    pub fn begin(&mut self) -> String {
        self.command(
            None,
            "Target.setAutoAttach",
            json!({ "autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true }),
        )
    }

    /// Takes in a message that came so long after the beginning of 1970.
    pub fn take(&mut self, text: &str, now: Duration) -> Taken {
        let mut taken = Taken::default();
        if text.len() > MAX_LOOKED_INTO {
            self.go_on_to(now, &mut taken);
            self.dropped += 1;
            return taken;
        }
        let Ok(event) = serde_json::from_str::<BrowserEvent>(text) else {
            return taken;
        };
        let (Some(method), params) = (event.method, event.params) else {
            return taken;
        };
        self.go_on_to(now, &mut taken);
        match method.as_str() {
            "Target.attachedToTarget" => self.attached(&params, &mut taken),
            "Target.detachedFromTarget" => {
                self.targets.remove(text_of(&params, "/sessionId"));
            }
            "Page.screencastFrame" => self.frame(event.session.as_deref(), params, now, &mut taken),
            _ => self.entry(event.session.as_deref(), &method, &params, now, &mut taken),
        }
        taken
    }

    /// What is to be kept where nothing came until now.
    pub fn pass(&mut self, now: Duration) -> Taken {
        let mut taken = Taken::default();
        self.go_on_to(now, &mut taken);
        taken
    }

    /// Says how much of the last second was not kept.
    fn go_on_to(&mut self, now: Duration, taken: &mut Taken) {
        if now.as_secs() == self.second {
            return;
        }
        self.second = now.as_secs();
        (self.entries, self.frames) = (0, 0);
        if self.dropped > 0 {
            let params = Map::from_iter([("count".to_owned(), Value::from(self.dropped))]);
            self.dropped = 0;
            taken.items.push(RecordedItem::Entry {
                timestamp: millis(now),
                page: String::new(),
                method: "offleash.dropped".to_owned(),
                params,
            });
        }
    }

    fn attached(&mut self, params: &Value, taken: &mut Taken) {
        let session = text_of(params, "/sessionId");
        let kind = text_of(params, "/targetInfo/type");
        let is_observed = ["page", "iframe", "worker", "service_worker", "shared_worker"].contains(&kind);
        if !is_observed || session.is_empty() || self.targets.len() >= MAX_TARGETS {
            return;
        }
        let session = cut(session);
        let target = cut(text_of(params, "/targetInfo/targetId"));
        let of = Some(session.as_str());
        // No body of any answer is to be kept for us in the browser.
        let network = json!({ "maxTotalBufferSize": 1, "maxResourceBufferSize": 1 });
        let attach = json!({ "autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true });
        taken.commands.extend([
            self.command(of, "Network.enable", network),
            self.command(of, "Runtime.enable", json!({})),
            self.command(of, "Log.enable", json!({})),
            self.command(of, "Target.setAutoAttach", attach),
        ]);
        if self.pictures && kind == "page" {
            let (width, height) = FRAME_SIDES;
            let cast = json!({ "format": "jpeg", "quality": 50, "maxWidth": width, "maxHeight": height });
            taken.commands.push(self.command(of, "Page.enable", json!({})));
            taken.commands.push(self.command(of, "Page.startScreencast", cast));
        }
        self.targets.insert(session, target);
    }

    fn page_of(&self, session: Option<&str>) -> Option<&String> {
        self.targets.get(session?)
    }

    fn frame(&mut self, session: Option<&str>, params: Value, now: Duration, taken: &mut Taken) {
        let Some(page) = self.page_of(session).cloned() else {
            return;
        };
        // The browser makes the next one when this one was taken, or it would wait for ever.
        if let Some(number) = params.get("sessionId").and_then(Value::as_i64) {
            let ack = self.command(session, "Page.screencastFrameAck", json!({ "sessionId": number }));
            taken.commands.push(ack);
        }
        let data = text_of(&params, "/data");
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
        if self.frames >= MAX_FRAMES_PER_SECOND || data.len() > MAX_FRAME || !data.bytes().all(is_base64) {
            return;
        }
        self.frames += 1;
        taken.items.push(RecordedItem::Frame {
            timestamp: millis(now),
            page,
            data: data.to_owned(),
        });
    }

    fn entry(&mut self, session: Option<&str>, method: &str, params: &Value, now: Duration, taken: &mut Taken) {
        let (Some(page), Some(told)) = (self.page_of(session).cloned(), told(method, params)) else {
            return;
        };
        if self.entries >= MAX_ENTRIES_PER_SECOND {
            self.dropped += 1;
            return;
        }
        self.entries += 1;
        taken.items.push(RecordedItem::Entry {
            timestamp: millis(now),
            page,
            method: method.to_owned(),
            params: told,
        });
    }

    fn command(&mut self, session: Option<&str>, method: &str, params: Value) -> String {
        self.last_id += 1;
        let mut command = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(session) = session {
            command["sessionId"] = session.into();
        }
        command.to_string()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn text_of<'a>(params: &'a Value, pointer: &str) -> &'a str {
    params.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// What is taken of an event; `None` of those that nobody looks for.
fn told(method: &str, params: &Value) -> Option<Map<String, Value>> {
    let fields: &[(&str, &str)] = match method {
        "Network.requestWillBeSent" => &[
            ("requestId", "/requestId"),
            ("method", "/request/method"),
            ("url", "/request/url"),
            ("type", "/type"),
            ("at", "/timestamp"),
            ("redirectStatus", "/redirectResponse/status"),
            ("redirectProtocol", "/redirectResponse/protocol"),
            ("redirectMimeType", "/redirectResponse/mimeType"),
        ],
        "Network.responseReceived" => &[
            ("requestId", "/requestId"),
            ("url", "/response/url"),
            ("status", "/response/status"),
            ("statusText", "/response/statusText"),
            ("mimeType", "/response/mimeType"),
            ("protocol", "/response/protocol"),
            ("at", "/timestamp"),
        ],
        "Network.loadingFinished" => &[
            ("requestId", "/requestId"),
            ("at", "/timestamp"),
            ("bytes", "/encodedDataLength"),
        ],
        "Network.loadingFailed" => &[
            ("requestId", "/requestId"),
            ("at", "/timestamp"),
            ("error", "/errorText"),
            ("blocked", "/blockedReason"),
            ("type", "/type"),
        ],
        "Network.webSocketCreated" => &[("requestId", "/requestId"), ("url", "/url")],
        "Network.webSocketHandshakeResponseReceived" => &[
            ("requestId", "/requestId"),
            ("status", "/response/status"),
            ("at", "/timestamp"),
        ],
        "Runtime.consoleAPICalled" => &[("type", "/type")],
        "Runtime.exceptionThrown" => &[
            ("text", "/exceptionDetails/text"),
            ("exception", "/exceptionDetails/exception/description"),
            ("url", "/exceptionDetails/url"),
            ("line", "/exceptionDetails/lineNumber"),
        ],
        "Log.entryAdded" => &[
            ("level", "/entry/level"),
            ("text", "/entry/text"),
            ("url", "/entry/url"),
        ],
        _ => return None,
    };
    let mut told = Map::new();
    for (name, pointer) in fields {
        let value = match params.pointer(pointer) {
            Some(Value::String(url)) if *name == "url" => Value::from(cut(&without_user(url))),
            Some(Value::String(text)) => Value::from(cut(text)),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => value.clone(),
            _ => continue,
        };
        told.insert((*name).to_owned(), value);
    }
    let mut objects = Vec::new();
    match method {
        "Runtime.consoleAPICalled" => {
            told.insert("text".to_owned(), Value::from(console_text(params)));
        }
        "Network.requestWillBeSent" => {
            objects.push(("headers", headers(params, "/request/headers", &REQUEST_HEADERS)));
            objects.push((
                "redirectHeaders",
                headers(params, "/redirectResponse/headers", &RESPONSE_HEADERS),
            ));
        }
        "Network.responseReceived" => {
            objects.push(("headers", headers(params, "/response/headers", &RESPONSE_HEADERS)));
            objects.push(("timing", numbers(params, "/response/timing", &TIMINGS)));
        }
        _ => {}
    }
    let objects = objects.into_iter().filter(|(_, object)| !object.is_empty());
    told.extend(objects.map(|(name, object)| (name.to_owned(), Value::Object(object))));
    Some(told)
}

/// An address, or what is relative to one, without the name and the password of a user.
fn without_user(url: &str) -> Cow<'_, str> {
    let authority = url
        .find("//")
        .filter(|at| *at == 0 || (url[..*at].ends_with(':') && !url[..*at].contains(['/', '?', '#'])))
        .map(|at| at + 2);
    let Some(start) = authority else {
        return url.into();
    };
    let end = url[start..]
        .find(['/', '?', '#', '\\'])
        .map_or(url.len(), |at| start + at);
    match url[start..end].rfind('@') {
        Some(at) => format!("{}{}", &url[..start], &url[start + at + 1..]).into(),
        None => url.into(),
    }
}

/// Those of `kept` among headers, by their names in small letters.
fn headers(params: &Value, pointer: &str, kept: &[&str]) -> Map<String, Value> {
    let all = params.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
    let named = all.filter_map(|(name, value)| {
        let name = kept.iter().find(|kept| kept.eq_ignore_ascii_case(name))?;
        let value = match *name {
            "location" => without_user(value.as_str()?),
            _ => value.as_str()?.into(),
        };
        let value: String = value.chars().take(MAX_HEADER).collect();
        Some(((*name).to_owned(), Value::from(value)))
    });
    named.collect()
}

/// Those of `kept` that are numbers.
fn numbers(params: &Value, pointer: &str, kept: &[&str]) -> Map<String, Value> {
    let of = params.pointer(pointer);
    let number = |name: &&str| {
        Some((
            (*name).to_owned(),
            of?.get(*name).filter(|value| value.is_number())?.clone(),
        ))
    };
    kept.iter().filter_map(number).collect()
}

fn console_text(params: &Value) -> String {
    let arguments = params.get("args").and_then(Value::as_array).into_iter().flatten();
    let words = arguments
        .take(MAX_ARGUMENTS)
        .map(|argument| match argument.get("value") {
            Some(Value::String(text)) => cut(text),
            Some(value @ (Value::Number(_) | Value::Bool(_) | Value::Null)) => value.to_string(),
            _ => cut(text_of(argument, "/description")),
        });
    cut(&words.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;
