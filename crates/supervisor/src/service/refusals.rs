//! What a sandbox was refused lately, for whoever asks: the newest, and as many as are of use.

use std::collections::VecDeque;

use offleash_core::text::one_line;
use offleash_gateway::News;

use super::message::Refusals;

/// How many are kept.
const KEPT: usize = 32;
/// Longest one; what is longer is cut.
const MAX_LENGTH: usize = 512;

/// The newest refusals, and how many there were.
#[derive(Debug, Default)]
pub(super) struct RecentRefusals {
    count: u64,
    lines: VecDeque<String>,
    /// How much had found no way out when that was looked at last.
    strays: u64,
}

impl RecentRefusals {
    /// Takes in what the gateway tells.
    pub(super) fn note(&mut self, news: &News) {
        if let Some(line) = line(news) {
            self.keep(line);
        }
    }

    /// Takes in how much has found no way out so far, of a sandbox that has none.
    pub(super) fn note_strays(&mut self, strays: u64) {
        if strays > self.strays {
            self.strays = strays;
            self.keep("network: the sandbox has none, and something in it tried to reach one".to_owned());
        }
    }

    pub(super) fn keep(&mut self, mut line: String) {
        line.truncate(line.floor_char_boundary(MAX_LENGTH));
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
        self.count += 1;
    }

    /// Those that came after there were so many, as far as they are kept.
    pub(super) fn after(&self, count: u64) -> Refusals {
        let new = usize::try_from(self.count.saturating_sub(count)).unwrap_or(usize::MAX);
        let skipped = self.lines.len().saturating_sub(new);
        Refusals {
            count: self.count,
            lines: self.lines.iter().skip(skipped).cloned().collect(),
        }
    }
}

/// What was refused, and why; `None` if it is something else.
pub(super) fn line(news: &News) -> Option<String> {
    let (host, port, reason) = match news {
        News::Refused { host, port, reason } => (host, port, reason),
        News::More { count, .. } => {
            return Some(format!(
                "network: refused {count} times more; that many differ that they are not told one by one"
            ));
        }
        News::Limit(_) => return None,
    };
    let host = one_line(host.as_bytes());
    let place = port.map_or_else(|| host.to_string(), |port| format!("{host}:{port}"));
    Some(format!(
        "network: `{place}` was refused: {}",
        one_line(reason.as_bytes())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(host: &str) -> News {
        News::Refused {
            host: host.to_owned(),
            port: Some(443),
            reason: "no rule allows it".to_owned(),
        }
    }

    #[test]
    fn those_are_told_that_came_since_and_no_more_than_are_kept() {
        let mut recent = RecentRefusals::default();
        assert_eq!(recent.after(0), Refusals::default());
        recent.note(&refused("a.example"));
        let first = recent.after(0);
        assert_eq!(
            (first.count, &*first.lines[0]),
            (1, "network: `a.example:443` was refused: no rule allows it")
        );
        assert!(recent.after(1).lines.is_empty());
        for number in 0..100 {
            recent.note(&refused(&format!("h{number}")));
        }
        let all = recent.after(0);
        assert_eq!((all.count, all.lines.len()), (101, KEPT));
        assert!(all.lines[KEPT - 1].contains("h99"), "{all:?}");
        let newest = recent.after(99);
        assert!(newest.lines.len() == 2 && newest.lines[0].contains("h98"), "{newest:?}");
        // Of a supervisor that is another one, or from somebody who makes it up.
        assert!(recent.after(u64::MAX).lines.is_empty());
    }

    #[test]
    fn what_a_sandbox_asked_for_is_short_and_drives_no_terminal() {
        let mut recent = RecentRefusals::default();
        recent.note(&refused(&format!("\u{1b}[2J{}", "é".repeat(1000))));
        let line = &recent.after(0).lines[0];
        assert!(line.len() <= MAX_LENGTH && !line.contains('\u{1b}'), "{line:?}");
    }

    #[test]
    fn what_finds_no_way_out_is_told_once_for_each_look() {
        let mut recent = RecentRefusals::default();
        recent.note_strays(0);
        assert_eq!(recent.after(0), Refusals::default());
        recent.note_strays(3);
        recent.note_strays(3);
        let told = recent.after(0);
        assert_eq!((told.count, told.lines.len()), (1, 1));
        assert!(told.lines[0].contains("the sandbox has none"), "{told:?}");
        recent.note_strays(4);
        assert_eq!(recent.after(1).lines.len(), 1);
    }

    #[test]
    fn what_is_not_told_one_by_one_is_told_by_its_number() {
        let mut recent = RecentRefusals::default();
        for (count, is_first) in [(7, true), (2, false)] {
            recent.note(&News::More { count, is_first });
        }
        let told = recent.after(0);
        assert_eq!(told.count, 2);
        assert!(told.lines[0].contains("refused 7 times more"), "{told:?}");
        assert!(told.lines[1].contains("refused 2 times more"), "{told:?}");
    }
}
