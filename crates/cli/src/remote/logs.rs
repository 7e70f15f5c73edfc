//! `offleash logs`: what happened to a sandbox, and with `-f` what goes on happening.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use offleash_api::client::{Client, encoded, unix_ms};
use offleash_core::error::{ErrorKind, Explained as _};
use serde_json::Value;

use super::text;
use crate::failure::Failure;
use crate::terminal;

/// How often what is new is asked for.
const EVERY: Duration = Duration::from_millis(500);
/// How long the account of an end is waited for.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Lines may come late by so much, because several processes write them, milliseconds.
const LATE_MS: i64 = 5_000;

pub(super) fn logs(client: &Client, id: &str, follow: bool) -> Result<ExitCode, Failure> {
    let mut shown = Shown::default();
    let mut lived = false;
    loop {
        // Asked for first: what is written before the end is read after it.
        let lives = follow && lives(client, id)?;
        if lived && !lives {
            await_account(client, id)?;
        }
        lived = lives;
        let path = format!("/v2/sandboxes/{}/logs?cursor={}", encoded(id), shown.cursor());
        let answer = client.get(&path)?;
        let entries = answer.get("logs").and_then(Value::as_array);
        let lines: String = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| shown.take(entry))
            .collect();
        terminal::print(lines.as_bytes())?;
        if !lives {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(EVERY);
    }
}

/// Waits until it is known how a sandbox ended whose files are being removed; not for ever.
fn await_account(client: &Client, id: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + TIMEOUT;
    while client.ended(id)?.is_none() && Instant::now() < deadline {
        std::thread::sleep(EVERY / 5);
    }
    Ok(())
}

/// Whether a sandbox runs or is paused.
fn lives(client: &Client, id: &str) -> Result<bool, Failure> {
    match client.get(&format!("/sandboxes/{}", encoded(id))) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The latest lines that were shown, and how often each.
#[derive(Debug, Default)]
struct Shown {
    lines: BTreeMap<(i64, String), Count>,
}

#[derive(Debug, Default)]
struct Count {
    shown: usize,
    /// In the answer that is being read.
    seen: usize,
}

impl Shown {
    /// From when on lines are asked for; a new answer is about to be read.
    fn cursor(&mut self) -> i64 {
        let latest = self.lines.last_key_value().map_or(0, |((at, _), _)| *at);
        let cursor = latest.saturating_sub(LATE_MS).max(0);
        self.lines.retain(|(at, _), _| *at >= cursor);
        self.lines.values_mut().for_each(|count| count.seen = 0);
        cursor
    }

    /// A line as it is shown, unless it was.
    fn take(&mut self, entry: &Value) -> Option<String> {
        let (at, level, message) = (text(entry, "timestamp"), text(entry, "level"), text(entry, "message"));
        let line = format!("{at} {level:<5} {message}\n");
        let count = self.lines.entry((unix_ms(&at).unwrap_or(0), line.clone())).or_default();
        count.seen += 1;
        if count.seen <= count.shown {
            return None;
        }
        count.shown += 1;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_shown_once_and_equal_ones_as_often_as_there_are() {
        let entry = |second: u32, message: &str| json!({ "timestamp": format!("2026-01-02T03:04:{second:02}.000Z"), "level": "info", "message": message });
        let mut shown = Shown::default();
        let mut read = |entries: &[Value]| {
            let cursor = shown.cursor();
            let lines: Vec<String> = entries.iter().filter_map(|entry| shown.take(entry)).collect();
            (cursor, lines.concat())
        };
        let first = [entry(10, "a"), entry(10, "a"), entry(12, "b\u{1b}[2J")];
        let (cursor, lines) = read(&first);
        assert_eq!(cursor, 0);
        assert_eq!(lines.lines().count(), 3);
        assert!(
            lines.starts_with("2026-01-02T03:04:10.000Z info  a\n") && !lines.contains('\u{1b}'),
            "{lines}"
        );
        // One came late.
        let (cursor, lines) = read(&[
            entry(10, "a"),
            entry(10, "a"),
            entry(11, "late"),
            entry(12, "b\u{1b}[2J"),
        ]);
        assert_eq!(cursor, unix_ms("2026-01-02T03:04:07Z").unwrap());
        assert_eq!(lines, "2026-01-02T03:04:11.000Z info  late\n");
        let (_, lines) = read(&[entry(10, "a"), entry(10, "a"), entry(10, "a"), entry(30, "c")]);
        assert_eq!(lines.lines().count(), 2);
        assert_eq!(read(&[entry(30, "c")]).1, "");
        assert!(shown.lines.len() == 1);
    }
}
