//! Columns of text, as wide as what is in them.

use std::process::ExitCode;

use offleash_core::text;

use crate::failure::Failure;
use crate::terminal;

/// Rows of as many cells as the first.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(titles: &[&str]) -> Self {
        Self {
            rows: vec![titles.iter().map(ToString::to_string).collect()],
        }
    }

    /// Adds a row. What is in it may have come from anywhere, and drives no terminal.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    pub(crate) fn print(&self) -> Result<ExitCode, Failure> {
        terminal::print(self.text().as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }

    /// The rows as text.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// How much of a cell is shown, in characters: others chose what is in it, and every row is as wide as the widest.
const MAX_SHOWN: usize = 80;

fn shown(cell: String) -> String {
    if cell.is_empty() {
        return cell;
    }
    let cell = text::one_line(cell.as_bytes());
    if cell.chars().count() <= MAX_SHOWN {
        return cell.into_owned();
    }
    cell.chars().take(MAX_SHOWN - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_cell_drives_no_terminal() {
        let mut table = Table::new(&["LABELS"]);
        table.row(["a\u{1b}]0;x\u{7}=\u{1b}[2J\nfake \u{202e}".to_owned()]);
        let text = table.text();
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{text:?}");
    }

    #[test]
    fn a_cell_that_is_too_long_is_cut() {
        let mut table = Table::new(&["LABELS", "ID"]);
        table.row(["a".repeat(100_000), "i".to_owned()]);
        let text = table.text();
        let row = text.lines().nth(1).unwrap();
        assert_eq!(row, format!("{}…  i", "a".repeat(79)));
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new(&["ID", "STATE", "LABELS"]);
        table.row(["iabc".to_owned(), "up".to_owned(), "a=b".to_owned()]);
        table.row(["i".to_owned(), "paused".to_owned(), String::new()]);
        assert_eq!(table.text(), "ID    STATE   LABELS\niabc  up      a=b\ni     paused\n");
    }
}
