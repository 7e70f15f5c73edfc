//! What can go wrong in a task.

use std::io;
use std::path::PathBuf;

/// Why a task did not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskError {
    /// Something in the file system refused.
    #[error("{tried} `{}`", path.display())]
    File {
        /// What was tried, as "reading".
        tried: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("starting `{program}`")]
    Start {
        /// The program's name.
        program: String,
        /// Why not.
        source: io::Error,
    },
    /// A program ended with an error.
    #[error("`{command}` ended with {status}{}", detail(stderr))]
    Ended {
        /// The command line.
        command: String,
        /// How it ended, in words.
        status: String,
        /// What it wrote to standard error; may be empty.
        stderr: String,
    },
    /// A program answered with something that is not what it promises.
    #[error("unexpected answer from {from}: {why}")]
    Answer {
        /// Who answered.
        from: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Parts that something is made with are not there.
    #[error("for {what} this is missing:{parts}")]
    Missing {
        /// What was to be made.
        what: String,
        /// What is missing, each on a line of its own, with how it is had.
        parts: String,
    },
    /// Steps or tests failed; the summary, already printed, names them.
    #[error("{count} of the checks above failed")]
    Failed {
        /// How many.
        count: usize,
    },
}

fn detail(stderr: &str) -> String {
    if stderr.trim().is_empty() {
        String::new()
    } else {
        format!(":\n{}", stderr.trim_end())
    }
}

impl TaskError {
    /// For `map_err`: the file error of having `tried` something on `path`.
    pub(crate) fn file(tried: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { tried, path, source }
    }

    /// For `map_err`: the error of not having been able to start `program`.
    pub(crate) fn start(program: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let program = program.into();
        move |source| Self::Start { program, source }
    }
}
