//! The form of a line and of the head.

use offleash_core::id::RunId;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{AuditEvent, AuditLine};

pub(super) const LOG: &str = "audit.jsonl";
pub(super) const HEAD: &str = "audit.head";
pub(super) const LOCK: &str = "audit.lock";
/// The next log, until the one before it is set aside.
pub(super) const NEXT: &str = "audit.next";
/// What logs begin and end with that were set aside, in order: `audit-000001.jsonl`.
const ASIDE: (&str, &str) = ("audit-", ".jsonl");
/// The event that a log ends with that is set aside.
pub(super) const ROTATING: &str = "rotating";
/// The event that a log begins with whose beginning is in another file.
pub(super) const ROTATED: &str = "rotated";
/// What `prev` is in the first line.
pub(super) const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const HASH_FIELD: &str = ",\"hash\":\"";
const HASH_TAIL: &str = "\"}";
const MAX_DATA: usize = 256 * 1024;
/// More than any line that we write.
pub(super) const MAX_LINE: usize = 4 * MAX_DATA;

/// The end of the log, as `audit.head` has it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct ChainHead {
    pub(super) seq: u64,
    pub(super) hash: String,
    /// Length of the log in bytes.
    pub(super) length: u64,
}

impl ChainHead {
    pub(super) fn genesis() -> Self {
        Self {
            seq: 0,
            hash: GENESIS.to_owned(),
            length: 0,
        }
    }
}

/// The fields of a line but for its hash, in the order in which they are written.
#[derive(serde::Serialize)]
struct LineBody<'a> {
    seq: u64,
    time: &'a str,
    event: &'a str,
    run: Option<&'a RunId>,
    data: &'a Value,
    prev: &'a str,
}

/// The line after `head`, with its newline, and the head after it.
pub(super) fn line_after(
    head: &ChainHead,
    time: &str,
    event: &AuditEvent,
) -> Result<(Vec<u8>, ChainHead), serde_json::Error> {
    let data = bounded(&event.data)?;
    let body = LineBody {
        seq: head.seq + 1,
        time,
        event: &event.event,
        run: event.run.as_ref(),
        data: &data,
        prev: &head.hash,
    };
    let mut text = serde_json::to_string(&body)?;
    text.pop();
    let hash = hex_sha256(text.as_bytes());
    text.push_str(HASH_FIELD);
    text.push_str(&hash);
    text.push_str(HASH_TAIL);
    text.push('\n');
    let length = head.length + u64::try_from(text.len()).unwrap_or(0);
    Ok((
        text.into_bytes(),
        ChainHead {
            seq: head.seq + 1,
            hash,
            length,
        },
    ))
}

fn bounded(data: &Value) -> Result<Value, serde_json::Error> {
    let text = serde_json::to_vec(data)?;
    if text.len() <= MAX_DATA {
        return Ok(data.clone());
    }
    Ok(serde_json::json!({ "omitted_bytes": text.len(), "sha256": hex_sha256(&text) }))
}

/// Reads a line without its newline and checks its own hash, not what it is chained to.
pub(super) fn parse(line: &[u8]) -> Result<AuditLine, String> {
    let parsed: AuditLine =
        serde_json::from_slice(line).map_err(|error| format!("it is not an audit line: {error}"))?;
    let tail = [HASH_FIELD, &parsed.hash, HASH_TAIL].concat();
    let body = line.strip_suffix(tail.as_bytes()).ok_or("its hash is not at its end")?;
    if hex_sha256(body) == parsed.hash {
        Ok(parsed)
    } else {
        Err("its hash does not fit its contents".to_owned())
    }
}

pub(super) fn hex_sha256(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digest = Sha256::digest(bytes);
    let digits = digest.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// The event that stands for a torn line, by which `verify` recognises it.
pub(super) fn recovered(what: super::LogRecovery, torn: &[u8]) -> AuditEvent {
    AuditEvent {
        event: RECOVERED.to_owned(),
        run: None,
        data: serde_json::json!({ "what": what, "torn_bytes": torn.len(), "torn_sha256": hex_sha256(torn) }),
    }
}

pub(super) const RECOVERED: &str = "recovered";

/// Whether `line` is the `recovered` event for the torn bytes before it.
pub(super) fn recovers(line: &AuditLine, torn: &[u8]) -> bool {
    let field = |name: &str| line.data.get(name);
    line.event == RECOVERED
        && field("torn_bytes").and_then(Value::as_u64) == u64::try_from(torn.len()).ok()
        && field("torn_sha256").and_then(Value::as_str) == Some(&hex_sha256(torn))
}

/// The name of a log that is set aside, by the number of its first line.
pub(super) fn set_aside_name(number: u64) -> String {
    let (beginning, end) = ASIDE;
    format!("{beginning}{number:06}{end}")
}

/// The number of the first line of a log that was set aside, by its name.
pub(super) fn set_aside_number(name: &[u8]) -> Option<u64> {
    let (beginning, end) = ASIDE;
    let digits = name.strip_prefix(beginning.as_bytes())?.strip_suffix(end.as_bytes())?;
    let number: u64 = str::from_utf8(digits).ok()?.parse().ok()?;
    (set_aside_name(number).as_bytes() == name).then_some(number)
}
