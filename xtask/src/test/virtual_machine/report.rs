//! Reads what the virtual machine wrote of its jobs.

use std::collections::BTreeMap;

/// How a job ended, as the shell numbers it, and what it wrote.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) status: i32,
    pub(super) output: String,
}

/// The jobs in `text` that came to their end, by number.
pub(super) fn parse(text: &str) -> BTreeMap<usize, Ended> {
    let mut ended = BTreeMap::new();
    let mut current: Option<(usize, String)> = None;
    for line in text.lines() {
        if let Some(number) = line.strip_prefix("=== begin ") {
            current = number.parse().ok().map(|number| (number, String::new()));
        } else if let Some(end) = end_of(line) {
            // An end that does not fit its beginning is of a job whose output nobody can tell apart: it is missing.
            if let Some((number, output)) = current.take().filter(|(number, _)| *number == end.0) {
                ended.insert(number, Ended { status: end.1, output });
            }
        } else if let Some((_, output)) = &mut current {
            output.push_str(line);
            output.push('\n');
        }
    }
    ended
}

fn end_of(line: &str) -> Option<(usize, i32)> {
    let (number, status) = line.strip_prefix("=== end ")?.split_once(' ')?;
    Some((number.parse().ok()?, status.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_what_is_between_its_beginning_and_its_end() {
        let text = "noise\n=== begin 3\nsaid\n\n=== end 3 101\n=== begin 4\n\n=== end 4 0\n=== begin 5\nnever ended\n";
        let ended = parse(text);
        let status: Vec<_> = ended.iter().map(|(number, ended)| (*number, ended.status)).collect();
        assert_eq!(status, [(3, 101), (4, 0)]);
        assert_eq!(ended[&3].output, "said\n\n");
        assert_eq!(parse("=== begin 1\n=== end 2 0\n"), BTreeMap::new());
    }
}
