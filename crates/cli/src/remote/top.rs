//! `offleash top`: what sandboxes of the daemon use, again and again.

use std::process::ExitCode;
use std::time::Duration;

use offleash_core::units::Millis;
use serde_json::Value;

use super::table::Table;
use super::{field, mebibytes, text};
use crate::args::TopArgs;
use crate::failure::Failure;
use crate::server_at::ServerAt;
use crate::terminal;

/// How often it is looked, if nothing is said.
const USUAL: Duration = Duration::from_secs(2);
/// How often at most.
const LEAST: Duration = Duration::from_millis(200);
/// To the upper left, and nothing below.
const HOME: &str = "\u{1b}[H\u{1b}[J";
/// How many sandboxes a terminal is shown.
const MAX_ROWS: usize = 40;

pub(crate) fn top(arguments: &TopArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let every = match &arguments.every {
        None => USUAL,
        Some(written) => {
            let parsed = written.parse::<Millis>();
            let Millis(time) = parsed.map_err(|error| Failure::new(format!("`--every`: {error}")))?;
            Duration::from_millis(time).max(LEAST)
        }
    };
    let client = at.client()?;
    let lives = terminal::shows_to_a_person() && !arguments.once;
    loop {
        let overview = client.get("/v1/overview")?;
        let shown = page(&overview, if lives { MAX_ROWS } else { usize::MAX });
        let shown = if lives { format!("{HOME}{shown}") } else { shown };
        terminal::print(shown.as_bytes())?;
        if !lives {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(every);
    }
}

/// One look: a line of sums, and a row for each sandbox, the busiest first.
fn page(overview: &Value, most: usize) -> String {
    let none = Vec::new();
    let mut sandboxes: Vec<&Value> = overview["sandboxes"].as_array().unwrap_or(&none).iter().collect();
    sandboxes.sort_by(|one, other| cpu(other).total_cmp(&cpu(one)));
    let running = sandboxes.iter().filter(|one| text(one, "state") == "running").count();
    let used = |name: &str| -> u64 { sandboxes.iter().filter_map(|one| one["used"][name].as_u64()).sum() };
    let all_cpu: f64 = sandboxes.iter().map(|one| cpu(one)).sum();
    let mut table = Table::new(&["ID", "NAME", "STATE", "LEVEL", "CPU", "MEMORY", "DISK"]);
    for one in sandboxes.iter().take(most) {
        let of = |name: &str| one["used"][name].as_u64().map_or_else(|| "-".to_owned(), mebibytes);
        let cpu = match one["used"]["cpu_percent"].as_f64() {
            Some(percent) => format!("{percent:.1} %"),
            None => "-".to_owned(),
        };
        let (memory, disk) = (of("memory_bytes"), of("disk_bytes"));
        table.row([
            field(one, "id"),
            field(one, "name"),
            field(one, "state"),
            field(one, "level"),
            cpu,
            memory,
            disk,
        ]);
    }
    format!(
        "{} sandboxes, {running} running: CPU {all_cpu:.1} %, memory {}, disk {}\n{}",
        overview["total"],
        mebibytes(used("memory_bytes")),
        mebibytes(used("disk_bytes")),
        table.text(),
    )
}

fn cpu(sandbox: &Value) -> f64 {
    sandbox["used"]["cpu_percent"].as_f64().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_busiest_comes_first_and_all_are_summed() {
        let one = |id: &str, used: Value| json!({ "id": id, "name": null, "state": "running", "level": "process", "used": used });
        let used = |cpu: f64| json!({ "cpu_percent": cpu, "memory_bytes": 1 << 20, "disk_bytes": 2 << 20 });
        let overview =
            json!({ "total": 3, "sandboxes": [one("a", used(1.0)), one("b", used(50.5)), one("c", Value::Null)] });
        let shown = page(&overview, 2);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "3 sandboxes, 3 running: CPU 51.5 %, memory 2 MiB, disk 4 MiB");
        assert!(
            lines[2].starts_with("b ") && lines[2].contains("50.5 %") && lines[3].starts_with("a "),
            "{shown}"
        );
        assert_eq!(lines.len(), 4);
        assert!(
            !shown.contains(['$', '\'']),
            "what has no name has an empty cell: {shown}"
        );
    }
}
