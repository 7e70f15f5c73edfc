//! Spans as they come to be: each of a request, and those of what is done for it.

use std::borrow::Cow;
use std::time::{Instant, SystemTime};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use offleash_core::id::RunId;
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::{Value, json};

use super::collector::{nanoseconds, number, scope, word};
use super::queue::SignalQueue;
use super::{RequestSubject, SpanOperation};
use crate::http::destination::{CODE_PORT, ENVD_PORT};

/// What names the span of the caller (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

tokio::task_local! {
    /// The request that is being answered.
    static REQUEST: Option<SpanContext>;
}

/// Which trace it is, and what is below which span in it.
#[derive(Debug, Clone)]
struct SpanContext {
    queue: SignalQueue<EndedSpan>,
    trace: [u8; 16],
    span: [u8; 8],
}

/// A span that has ended.
#[derive(Debug)]
pub(super) struct EndedSpan {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
    pub(super) parent: Option<[u8; 8]>,
    pub(super) name: Cow<'static, str>,
    /// Whether it is of a request; of what is done for one otherwise.
    pub(super) is_request: bool,
    pub(super) began: SystemTime,
    pub(super) ended: SystemTime,
    pub(super) facts: Vec<(&'static str, SpanFact)>,
    /// `None` where that is not known, or the caller's own fault.
    pub(super) well: Option<bool>,
}

/// The value of an attribute.
#[derive(Debug)]
pub(super) enum SpanFact {
    Word(&'static str),
    Id(String),
    Number(u64),
}

/// A span that goes on.
#[derive(Debug)]
struct BegunSpan {
    place: SpanContext,
    parent: Option<[u8; 8]>,
    since: Instant,
    began: SystemTime,
    facts: Vec<(&'static str, SpanFact)>,
}

impl BegunSpan {
    fn at(place: SpanContext, parent: Option<[u8; 8]>) -> Self {
        Self {
            place,
            parent,
            since: Instant::now(),
            began: SystemTime::now(),
            facts: Vec::new(),
        }
    }

    fn sandbox(&mut self, id: &str) {
        // What only looks like one is the caller's text.
        if id.parse::<RunId>().is_ok() {
            self.facts.push(("offleash.sandbox", SpanFact::Id(id.to_owned())));
        }
    }

    fn end(self, name: Cow<'static, str>, is_request: bool, well: Option<bool>) {
        let SpanContext { queue, trace, span } = self.place;
        queue.put(EndedSpan {
            trace,
            span,
            parent: self.parent,
            name,
            is_request,
            began: self.began,
            // By the clock that nobody sets.
            ended: self.began + self.since.elapsed(),
            facts: self.facts,
            well,
        });
    }
}

/// The span of a request, until its answer begins.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    begun: Option<BegunSpan>,
    method: &'static str,
}

impl RequestSpan {
    /// One whose caller does not record his is not recorded either.
    pub(super) fn begin(queue: Option<&SignalQueue<EndedSpan>>, method: &Method, fields: &HeaderMap) -> Self {
        let caller = caller(fields);
        let begun = queue.filter(|_| caller.is_none_or(|caller| caller.sampled));
        let begun = begun.and_then(|queue| {
            let trace = match caller {
                Some(caller) => caller.trace,
                None => random()?,
            };
            let place = SpanContext {
                queue: queue.clone(),
                trace,
                span: random()?,
            };
            Some(BegunSpan::at(place, caller.map(|caller| caller.span)))
        });
        let method = known_method(method);
        Self { begun, method }
    }

    /// Does `work`, in which other spans are below this one.
    pub(crate) async fn hold<T>(&self, work: impl Future<Output = T>) -> T {
        let place = self.begun.as_ref().map(|begun| begun.place.clone());
        REQUEST.scope(place, work).await
    }

    pub(crate) fn end(self, subject: &RequestSubject, status: StatusCode) {
        let Some(mut begun) = self.begun else { return };
        begun.facts.push(("http.request.method", SpanFact::Word(self.method)));
        let number = u64::from(status.as_u16());
        begun
            .facts
            .push(("http.response.status_code", SpanFact::Number(number)));
        if let Some(sandbox) = &subject.sandbox {
            begun.sandbox(sandbox);
        }
        let destination = match subject.port {
            None => "control",
            Some(ENVD_PORT) => "services",
            Some(CODE_PORT) => "code",
            Some(port) => {
                begun.facts.push(("offleash.port", SpanFact::Number(port.into())));
                "port"
            }
        };
        begun.facts.push(("offleash.destination", SpanFact::Word(destination)));
        let name = match subject.route {
            Some(route) => {
                begun.facts.push(("http.route", SpanFact::Word(route)));
                format!("{} {route}", self.method).into()
            }
            None => self.method.into(),
        };
        let failed = status.is_server_error();
        if failed {
            begun.facts.push(("error.type", SpanFact::Id(number.to_string())));
        }
        begun.end(name, true, failed.then_some(false));
    }
}

/// The span of what is done for a request.
#[derive(Debug)]
pub(crate) struct WorkSpan {
    begun: Option<BegunSpan>,
    name: &'static str,
    well: Option<bool>,
}

impl WorkSpan {
    /// Begins one below the request that is being answered. It ends when it is dropped.
    pub(crate) fn begin(operation: SpanOperation) -> Self {
        let place = REQUEST.try_with(Clone::clone).ok().flatten();
        let begun = place.and_then(|request| {
            let parent = request.span;
            Some(BegunSpan::at(
                SpanContext {
                    span: random()?,
                    ..request
                },
                Some(parent),
            ))
        });
        let name = match operation {
            SpanOperation::Create => "sandbox.create",
            SpanOperation::Pause => "sandbox.pause",
            SpanOperation::Kill => "sandbox.kill",
            SpanOperation::Resume => "sandbox.resume",
            SpanOperation::Exec => "sandbox.exec",
        };
        let well = None;
        Self { begun, name, well }
    }

    /// Says which sandbox it is about.
    pub(crate) fn sandbox(&mut self, id: impl FnOnce() -> String) {
        if let Some(begun) = &mut self.begun {
            begun.sandbox(&id());
        }
    }

    /// Says what came of it.
    pub(crate) fn ended(&mut self, well: bool) {
        self.well = Some(well);
    }
}

impl Drop for WorkSpan {
    fn drop(&mut self) {
        if let Some(mut begun) = self.begun.take() {
            if self.well == Some(false) {
                // Of the words for that there is none that would say more.
                begun.facts.push(("error.type", SpanFact::Word("_OTHER")));
            }
            begun.end(self.name.into(), false, self.well);
        }
    }
}

/// Lets `work` go on in a task of its own, with its spans below the request that is being answered.
pub(crate) fn carry<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let place = REQUEST.try_with(Clone::clone).ok().flatten();
    REQUEST.scope(place, work)
}

/// The request that is being answered, by its trace and its span, if it is recorded.
pub(super) fn current() -> Option<([u8; 16], [u8; 8])> {
    let place = REQUEST.try_with(Clone::clone).ok().flatten()?;
    Some((place.trace, place.span))
}

/// `ExportTraceServiceRequest`, in the form that OTLP gives it in JSON.
pub(super) fn message(resource: &Value, spans: &[EndedSpan]) -> Value {
    let spans: Vec<Value> = spans.iter().map(described).collect();
    json!({ "resourceSpans": [{
        "resource": resource,
        "scopeSpans": [{ "scope": scope(), "spans": spans }],
    }]})
}

fn described(span: &EndedSpan) -> Value {
    let facts = span.facts.iter().map(|(key, fact)| match fact {
        SpanFact::Word(text) => word(key, text),
        SpanFact::Id(id) => word(key, id),
        SpanFact::Number(count) => number(key, *count),
    });
    // `SPAN_KIND_SERVER` and `SPAN_KIND_INTERNAL`; `STATUS_CODE_UNSET`, `_OK` and `_ERROR`.
    let kind = if span.is_request { 2 } else { 1 };
    let status = match span.well {
        None => json!({}),
        Some(true) => json!({ "code": 1 }),
        Some(false) => json!({ "code": 2 }),
    };
    let mut described = json!({
        "traceId": HEXLOWER.encode(&span.trace),
        "spanId": HEXLOWER.encode(&span.span),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": nanoseconds(span.began),
        "endTimeUnixNano": nanoseconds(span.ended),
        "attributes": facts.collect::<Vec<_>>(),
        "status": status,
    });
    if let Some(parent) = &span.parent {
        described["parentSpanId"] = HEXLOWER.encode(parent).into();
    }
    described
}

/// The span of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TraceParent {
    trace: [u8; 16],
    span: [u8; 8],
    sampled: bool,
}

/// Who calls, if he says so once and in the form that the standard gives it.
fn caller(fields: &HeaderMap) -> Option<TraceParent> {
    let mut given = fields.get_all(TRACEPARENT).iter();
    let (text, more) = (given.next()?.to_str().ok()?, given.next());
    if more.is_some() || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    let mut parts = text.split('-');
    let [version] = digits::<1>(parts.next()?)?;
    let (trace, span) = (digits::<16>(parts.next()?)?, digits::<8>(parts.next()?)?);
    let [flags] = digits::<1>(parts.next()?)?;
    // Later versions may have more to say, this one not.
    let is_whole = parts.next().is_none() || version != 0;
    let is_valid = version != 0xff && trace != [0; 16] && span != [0; 8];
    (is_whole && is_valid).then_some(TraceParent {
        trace,
        span,
        sampled: flags & 1 == 1,
    })
}

fn digits<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// Bytes that nobody else has, not all of them zero.
fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).ok()?;
    (filled == N && bytes != [0; N]).then_some(bytes)
}

/// The method, if it is one of everybody's: others are the caller's text.
pub(crate) fn known_method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "_OTHER",
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_callers_span_is_taken_in_its_one_form() {
        let told = |text: &str| {
            let mut fields = HeaderMap::new();
            fields.insert(TRACEPARENT, HeaderValue::from_str(text).unwrap());
            caller(&fields)
        };
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let found = told(&format!("00-{trace}-{span}-01")).unwrap();
        assert_eq!((found.trace[0], found.span[7], found.sampled), (0x0a, 0x31, true));
        assert!(!told(&format!("00-{trace}-{span}-00")).unwrap().sampled);
        assert!(told(&format!("cc-{trace}-{span}-01-later")).is_some());
        for wrong in [
            String::new(),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-01-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}0-{span}-01"),
            format!("00-{}-{span}-01", "g".repeat(32)),
        ] {
            assert_eq!(told(&wrong), None, "{wrong}");
        }
    }
}
