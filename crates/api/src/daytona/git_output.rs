//! What git writes for programs, read: a status, and commits.

use serde::Serialize;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct CommitInfo {
    hash: String,
    author: String,
    email: String,
    message: String,
    timestamp: String,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusAnswer {
    current_branch: String,
    ahead: i64,
    behind: i64,
    branch_published: bool,
    detached: bool,
    upstream: String,
    file_status: Vec<FileStatus>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct FileStatus {
    name: String,
    extra: String,
    staging: &'static str,
    worktree: &'static str,
}

/// What `git status --porcelain=v2 --branch -z` says (git-status(1)).
pub(super) fn status_of(said: &str) -> StatusAnswer {
    let mut status = StatusAnswer::default();
    let mut lines = said.split('\0');
    while let Some(line) = lines.next() {
        let Some((kind, rest)) = line.split_once(' ') else {
            continue;
        };
        match kind {
            "#" => note_branch(&mut status, rest),
            "1" | "2" | "u" => {
                let fields = match kind {
                    "1" => 8,
                    "2" => 9,
                    _ => 10,
                };
                let mut words = rest.splitn(fields, ' ');
                let (Some(states), Some(name)) = (words.next(), words.last()) else {
                    continue;
                };
                // A file that was renamed is followed by what it was called.
                let before = (kind == "2").then(|| lines.next().unwrap_or_default());
                let mut states = states.chars();
                let (staging, worktree) = (states.next().unwrap_or('.'), states.next().unwrap_or('.'));
                status.file_status.push(FileStatus {
                    name: name.to_owned(),
                    extra: before.unwrap_or_default().to_owned(),
                    staging: if kind == "u" { UNMERGED } else { state_word(staging) },
                    worktree: if kind == "u" { UNMERGED } else { state_word(worktree) },
                });
            }
            "?" => status.file_status.push(FileStatus {
                name: rest.to_owned(),
                extra: String::new(),
                staging: UNTRACKED,
                worktree: UNTRACKED,
            }),
            _ => {}
        }
    }
    status
}

const UNMERGED: &str = "Updated but unmerged";
const UNTRACKED: &str = "Untracked";

fn note_branch(status: &mut StatusAnswer, line: &str) {
    match line.split_once(' ') {
        Some(("branch.head", "(detached)")) => {
            status.detached = true;
            "HEAD".clone_into(&mut status.current_branch);
        }
        Some(("branch.head", head)) => head.clone_into(&mut status.current_branch),
        Some(("branch.upstream", upstream)) => {
            status.branch_published = true;
            upstream.clone_into(&mut status.upstream);
        }
        Some(("branch.ab", counts)) => {
            let mut counts = counts.split(' ').map(|count| count.parse().unwrap_or(0));
            status.ahead = counts.next().unwrap_or(0);
            status.behind = -counts.next().unwrap_or(0);
        }
        _ => {}
    }
}

fn state_word(state: char) -> &'static str {
    match state {
        'M' | 'T' => "Modified",
        'A' => "Added",
        'D' => "Deleted",
        'R' => "Renamed",
        'C' => "Copied",
        'U' => UNMERGED,
        _ => "Unmodified",
    }
}

/// A commit, as `FIELD 0x1f FIELD …` has it.
pub(super) fn commit_of(said: &str) -> Option<CommitInfo> {
    let mut fields = said.trim_start_matches('\n').splitn(5, '\x1f').map(str::to_owned);
    Some(CommitInfo {
        hash: fields.next().filter(|hash| !hash.is_empty())?,
        author: fields.next()?,
        email: fields.next()?,
        timestamp: fields.next()?,
        message: fields.next()?.trim_end_matches('\n').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_as_git_writes_it() {
        let said = [
            "# branch.oid 1",
            "# branch.head main",
            "# branch.upstream origin/main",
            "# branch.ab +2 -1",
            "1 A. N... 000000 100644 100644 0 1 a b.txt",
            "1 .M N... 100644 100644 100644 1 1 c",
            "2 R. N... 100644 100644 100644 1 1 R100 new",
            "old",
            "u UU N... 100644 100644 100644 100644 1 1 1 both",
            "? new file",
            "",
        ];
        let said = said.join("\0");
        let status = status_of(&said);
        assert_eq!(
            (status.current_branch.as_str(), status.ahead, status.behind),
            ("main", 2, 1)
        );
        assert!(status.branch_published && !status.detached);
        let told: Vec<_> = status
            .file_status
            .iter()
            .map(|file| (file.name.as_str(), file.staging, file.worktree, file.extra.as_str()))
            .collect();
        let expected = [
            ("a b.txt", "Added", "Unmodified", ""),
            ("c", "Unmodified", "Modified", ""),
            ("new", "Renamed", "Unmodified", "old"),
            ("both", UNMERGED, UNMERGED, ""),
            ("new file", UNTRACKED, UNTRACKED, ""),
        ];
        assert_eq!(told, expected);
        assert_eq!(status_of("1 \0x\0"), StatusAnswer::default());
    }

    #[test]
    fn commits_are_read_one_by_one() {
        let said = "h\x1fa\x1fe@x\x1f2026-01-02T03:04:05Z\x1fone\n\ntwo\n\x1e\nh2\x1fa\x1fe\x1ft\x1fm\n\x1e\n";
        let commits: Vec<_> = said.split('\x1e').filter_map(commit_of).collect();
        assert_eq!(commits.len(), 2);
        assert_eq!(
            (commits[0].message.as_str(), commits[1].hash.as_str()),
            ("one\n\ntwo", "h2")
        );
    }
}
