//! What a command that failed says of limits that the kernel keeps without counting what it refuses.
//!
//! One descriptor too many is an error that only the program sees (`EMFILE`), and so are, without a control group, one
//! process too many and memory beyond the limit. Nobody else can be asked; but who fails of it mostly says so at the
//! end. It is the command's word, so it is told as that and decides nothing.

use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_core::limits::LimitName;

/// How much of the end of each stream is looked at: a traceback of many lines.
const KEPT: usize = 16 * 1024;

/// What programs and runtimes say, in lower case: the C library's words for the error (errno(3)), and those of runtimes
/// that have their own.
const MESSAGES: [(LimitName, &[&str]); 4] = [
    (LimitName::OpenFiles, &["too many open files"]),
    (
        LimitName::Pids,
        &[
            "cannot fork",
            "fork: retry",
            "fork: resource temporarily unavailable",
            "resource temporarily unavailable (os error 11)",
            "blockingioerror: [errno 11]",
            "can't start new thread",
            "unable to create native thread",
            "failed to create new os thread",
            "failed to spawn thread",
        ],
    ),
    (
        LimitName::Memory,
        &[
            "memoryerror",
            "cannot allocate memory",
            "std::bad_alloc",
            "out of memory",
            "memory exhausted",
            "memory allocation of",
        ],
    ),
    (LimitName::FileSize, &["file too large"]),
];
/// What says nothing of ours: that is the machine's limit (`ENFILE`).
const OF_THE_MACHINE: &str = "too many open files in system";

/// The end of a command's output.
#[derive(Debug, Default)]
pub(crate) struct OutputTail {
    stdout: Tail,
    stderr: Tail,
}

#[derive(Debug, Default)]
struct Tail(Vec<u8>);

impl OutputTail {
    pub(crate) fn take(&mut self, stream: OutputStream, bytes: &[u8]) {
        match stream {
            OutputStream::Stdout => self.stdout.take(bytes),
            OutputStream::Stderr => self.stderr.take(bytes),
        }
    }

    /// Which of the limits that nobody counts (`uncounted`) a command that ended so complains of.
    pub(crate) fn of(&self, end: &ExecEnd, uncounted: &[LimitName]) -> Vec<LimitName> {
        if !matches!(end, ExecEnd::Exited { code: 1.. } | ExecEnd::Signaled { .. }) {
            return Vec::new();
        }
        let texts = [&self.stdout, &self.stderr].map(|tail| tail.lower().replace(OF_THE_MACHINE, ""));
        let is_said = |saying: &&str| texts.iter().any(|text| text.contains(saying));
        let said = MESSAGES.iter().filter(|(_, messages)| messages.iter().any(&is_said));
        said.map(|(limit, _)| *limit)
            .filter(|limit| uncounted.contains(limit))
            .collect()
    }
}

impl Tail {
    fn take(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(bytes.len().saturating_sub(KEPT)..).unwrap_or_default();
        // Moved only every so often.
        if self.0.len() + bytes.len() > 2 * KEPT {
            let gone = (self.0.len() + bytes.len()).saturating_sub(KEPT).min(self.0.len());
            self.0.drain(..gone);
        }
        self.0.extend_from_slice(bytes);
    }

    fn lower(&self) -> String {
        String::from_utf8_lossy(&self.0).to_ascii_lowercase()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [LimitName; 4] = [
        LimitName::OpenFiles,
        LimitName::Pids,
        LimitName::Memory,
        LimitName::FileSize,
    ];
    const FAILED: ExecEnd = ExecEnd::Exited { code: 1 };

    fn said(stream: OutputStream, pieces: &[&[u8]]) -> OutputTail {
        let mut tail = OutputTail::default();
        for piece in pieces {
            tail.take(stream, piece);
        }
        tail
    }

    #[test]
    fn the_words_of_programs_and_runtimes_are_known() {
        for (text, limit) in [
            ("OSError: [Errno 24] Too many open files: 'x'", LimitName::OpenFiles),
            ("Error: EMFILE: too many open files, open 'x'", LimitName::OpenFiles),
            ("sh: 1: Cannot fork", LimitName::Pids),
            ("bash: fork: retry: Resource temporarily unavailable", LimitName::Pids),
            ("RuntimeError: can't start new thread", LimitName::Pids),
            (
                "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7 GiB",
                LimitName::Memory,
            ),
            ("memory allocation of 1000 bytes failed", LimitName::Memory),
            ("OSError: [Errno 27] File too large", LimitName::FileSize),
        ] {
            for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                let tail = said(stream, &[text.as_bytes()]);
                assert_eq!(tail.of(&FAILED, &ALL), [limit], "{text}");
                assert_eq!(tail.of(&ExecEnd::Signaled { signal: 6 }, &ALL), [limit], "{text}");
                // Whoever succeeds was not ended by it, and what is counted is known better.
                assert_eq!(tail.of(&ExecEnd::Exited { code: 0 }, &ALL), [], "{text}");
                let others: Vec<_> = ALL.into_iter().filter(|other| *other != limit).collect();
                assert_eq!(tail.of(&FAILED, &others), [], "{text}");
            }
        }
        for other in [
            &b"BlockingIOError: [Errno 12] nothing of it, \xff"[..],
            b"memfile.c: systemfile.txt is missing",
            b"OSError: [Errno 23] Too many open files in system",
            b"ENOSPC: System limit for number of file watchers reached",
        ] {
            assert_eq!(said(OutputStream::Stderr, &[other]).of(&FAILED, &ALL), []);
        }
    }

    #[test]
    fn words_are_found_at_the_end_however_they_come() {
        let long = vec![b'.'; 5 * KEPT];
        let text = b"Too many open files\n";
        for at in 0..text.len() {
            let (one, other) = text.split_at(at);
            let tail = said(OutputStream::Stderr, &[&long, one, other]);
            assert_eq!(tail.of(&FAILED, &ALL), [LimitName::OpenFiles], "{at}");
        }
        let single: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(
            said(OutputStream::Stderr, &single).of(&FAILED, &ALL),
            [LimitName::OpenFiles]
        );
        let mut before = text.to_vec();
        before.extend(&long);
        assert_eq!(said(OutputStream::Stderr, &[&before]).of(&FAILED, &ALL), []);
        let mut tail = said(OutputStream::Stderr, &[text]);
        for piece in long.chunks(100) {
            tail.take(OutputStream::Stderr, piece);
            assert!(tail.stderr.0.len() <= 2 * KEPT);
        }
        assert_eq!(tail.of(&FAILED, &ALL), []);
    }
}
