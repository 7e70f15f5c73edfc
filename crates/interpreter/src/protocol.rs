//! What a driver and its host say to each other. This is the reference for writing a driver.
//!
//! # Where
//! A driver is one source file of its own language below `drivers/`. It is started as a command of the sandbox, with a
//! line that knows just enough to read the first frame, [`HostFrame::Source`], and to run what is in it
//! ([`Language::command`](crate::language::Language::command)). Frames from the host come on its standard input,
//! frames for the host go to its standard output. Before any code of a user runs, the driver moves both to other
//! descriptors that no child inherits, and puts `/dev/null` in place of the input and pipes of its own in place of
//! both outputs, so that what children and libraries write is output and never a frame. What it writes to standard
//! error is shown when it fails to start. Where a language cannot move descriptors, a driver is two processes instead,
//! of which the one that runs cells has neither of the two (`drivers/javascript.js`).
//!
//! # Frames
//! A frame is a line of text and a payload, so that a shell can speak it too:
//!
//! ```text
//! KIND ID LENGTH\n
//! PAYLOAD
//! ```
//!
//! `KIND` is a word of `[a-z_]`, `ID` 32 digits of `[0-9a-f]`, `LENGTH` how many bytes of payload follow the newline, in
//! decimal digits. There is nothing between two frames. `ID` says which cell a frame belongs to, or is [`NOBODY`].
//!
//! # From the host
//! Each has at most [`MAX_FROM_HOST`] bytes of payload, so that it arrives whole or not at all, whatever happens to the
//! host meanwhile.
//!
//! | kind | id | payload |
//! |---|---|---|
//! | `source` | nobody | the driver itself; the first frame, and there once |
//! | `sync` | a number that nobody can guess | nothing. The driver forgets every `code` and `env` without a `run`, and answers with a `sync` |
//! | `import` | nobody | names of modules, one a line, to be loaded before a cell asks; those that cannot be are passed over. Of Python alone |
//! | `variable` | nobody | `NAME=VALUE`, a variable for all cells; without effect once one has run. Of Python alone |
//! | `code` | a cell | a piece of its code; pieces follow each other |
//! | `env` | a cell | `NAME=VALUE`, a variable for this cell alone; what it was is restored at the end |
//! | `part` | nobody | more of the driver itself, to be run before what follows. Not of JavaScript and Java |
//! | `save` | a number that nobody can guess | three decimal numbers with spaces between (how many seconds it may take, how many bytes it may have, whether to leave out what cannot be carried: 0 or 1), a newline, and the path of a file that is not there. Writes what cells left to it; the driver removes the file when the next frame comes |
//! | `load` | a number that nobody can guess | the path of such a file, which the driver removes then. Before the first cell |
//! | `run` | a cell | two decimal numbers and a space between: how many bytes of output, and of results, are of any use. Runs the cell |
//!
//! A cell is interrupted with `SIGINT`, which also goes to the children in the driver's process group. A driver that
//! runs no cell ignores it. It reads no frame while a cell runs.
//!
//! # From the driver
//! Each has at most [`MAX_FROM_DRIVER`] bytes of payload.
//!
//! | kind | id | payload |
//! |---|---|---|
//! | `sync` | that of the question | decimal number of the cells that were run |
//! | `count` | the cell | decimal number of the cell, from 1; the first frame of every cell |
//! | `stdout`, `stderr` | the cell, or nobody | bytes of output, as they were written |
//! | `text` | the cell | a MIME type, a newline, and the form of the result that it names, as text; base64 where Jupyter has it (images, PDF) |
//! | `json` | the cell | a MIME type, a newline, and JSON |
//! | `omitted` | the cell | a MIME type, a newline, and the decimal number of bytes of a form that was too large to be sent |
//! | `result` | the cell | `main` or `display`. The forms since the last `result` are one result: that of the cell, or one that it displayed |
//! | `error_name`, `error_value` | the cell | as in `ValueError`, and what it says |
//! | `error` | the cell | the traceback, lines with newlines between; ends what the two before began |
//! | `truncated` | the cell | decimal number of bytes of output that were not sent because they were of no use |
//! | `done` | the cell | nothing; the last frame of every cell |
//! | `obstacle` | that of the `save` or `load` | the name of what cannot be carried, its type, and why, with newlines between |
//! | `saved` | that of the `save` | decimal number of bytes of the file |
//! | `loaded` | that of the `load` | decimal number of the cells that were run |
//! | `refused` | that of either | why (`obstacles`, `large`, `full`, `time`, `other`), a newline, and what there is to say of it. There is no file then |
//!
//! A frame of a cell that does not run is ignored, but for its size. Anything else that is not of this shape is an
//! error after which the driver is killed. When its input ends the driver ends.

use memchr::memchr;

use crate::id::HexId;

/// The id of frames that belong to no cell.
pub const NOBODY: HexId = HexId::ZERO;

/// Most bytes of payload in a frame from the host.
pub const MAX_FROM_HOST: usize = 512 * 1024;

/// Most bytes of payload in a frame from a driver.
pub const MAX_FROM_DRIVER: usize = 16 * 1024 * 1024;

/// Most bytes of the line of a frame, its newline included.
const MAX_LINE: usize = KIND_LENGTH + 1 + HexId::DIGITS + 1 + LENGTH_DIGITS + 1;
const KIND_LENGTH: usize = 16;
const LENGTH_DIGITS: usize = 8;

/// A frame for a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostFrame<'a> {
    /// The driver itself.
    Source(&'a [u8]),
    /// A question by whose id the answer is found in whatever was sent before.
    Sync(HexId),
    /// Modules to load ahead, one a line.
    Import(&'a [u8]),
    /// A variable for all cells, `NAME=VALUE`, before the first one.
    Variable(&'a [u8]),
    /// More of the driver.
    Part(&'a [u8]),
    /// Has what cells left written to a file.
    Save {
        /// By which the answer is known.
        id: HexId,
        /// How long it may take.
        seconds: u64,
        /// How large the file may be.
        bytes: u64,
        /// Whether what cannot be carried is left out.
        skip: bool,
        /// The file.
        path: &'a str,
    },
    /// Has what cells of another driver left read from a file.
    Load(HexId, &'a str),
    /// A piece of a cell's code.
    Code(HexId, &'a [u8]),
    /// A variable of a cell, `NAME=VALUE`.
    Env(HexId, &'a [u8]),
    /// Runs a cell.
    Run {
        /// The cell.
        cell: HexId,
        /// Bytes of output that are of use.
        output: u64,
        /// Bytes of results that are of use.
        results: u64,
    },
}

impl HostFrame<'_> {
    /// The frame as it goes over the wire.
    ///
    /// # Errors
    /// `TooLarge` when the payload has more than [`MAX_FROM_HOST`] bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let (bounds, asked);
        let (kind, id, payload): (_, _, &[u8]) = match self {
            Self::Source(source) => ("source", NOBODY, source),
            Self::Sync(id) => ("sync", *id, &[]),
            Self::Import(modules) => ("import", NOBODY, modules),
            Self::Variable(variable) => ("variable", NOBODY, variable),
            Self::Part(source) => ("part", NOBODY, source),
            Self::Save {
                id,
                seconds,
                bytes,
                skip,
                path,
            } => {
                asked = format!("{seconds} {bytes} {}\n{path}", u8::from(*skip));
                ("save", *id, asked.as_bytes())
            }
            Self::Load(id, path) => ("load", *id, path.as_bytes()),
            Self::Code(id, code) => ("code", *id, code),
            Self::Env(id, variable) => ("env", *id, variable),
            Self::Run { cell, output, results } => {
                bounds = format!("{output} {results}");
                ("run", *cell, bounds.as_bytes())
            }
        };
        if payload.len() > MAX_FROM_HOST {
            return Err(FrameError::TooLarge { most: MAX_FROM_HOST });
        }
        let mut frame = format!("{kind} {id} {}\n", payload.len()).into_bytes();
        frame.extend_from_slice(payload);
        Ok(frame)
    }
}

/// What a frame of a driver is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// The answer to a `sync`.
    Sync,
    /// The number of the cell.
    Count,
    /// Output.
    Stdout,
    /// Output of errors.
    Stderr,
    /// A form of a result, as text.
    Text,
    /// A form of a result, as JSON.
    Json,
    /// A form of a result that was too large.
    Omitted,
    /// The end of a result.
    Result,
    /// The name of an error.
    ErrorName,
    /// What it says.
    ErrorValue,
    /// Its traceback.
    Error,
    /// Output that was not sent.
    Truncated,
    /// The end of a cell.
    Done,
    /// Something that cannot be carried.
    Obstacle,
    /// A state was written.
    Saved,
    /// A state was read.
    Loaded,
    /// A state was neither.
    Refused,
}

impl FrameKind {
    fn parse(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"sync" => Self::Sync,
            b"count" => Self::Count,
            b"stdout" => Self::Stdout,
            b"stderr" => Self::Stderr,
            b"text" => Self::Text,
            b"json" => Self::Json,
            b"omitted" => Self::Omitted,
            b"result" => Self::Result,
            b"error_name" => Self::ErrorName,
            b"error_value" => Self::ErrorValue,
            b"error" => Self::Error,
            b"truncated" => Self::Truncated,
            b"done" => Self::Done,
            b"obstacle" => Self::Obstacle,
            b"saved" => Self::Saved,
            b"loaded" => Self::Loaded,
            b"refused" => Self::Refused,
            _ => return None,
        })
    }
}

/// A frame of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverFrame {
    /// What it is about.
    pub kind: FrameKind,
    /// Which cell.
    pub id: HexId,
    /// What comes with it.
    pub payload: Vec<u8>,
}

/// Why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The line is not one.
    #[error("the line of a frame is not of its shape")]
    Line,
    /// Nothing is known of that kind.
    #[error("a frame is of no kind that there is")]
    Kind,
    /// The payload is too large.
    #[error("a frame has more than {most} bytes")]
    TooLarge {
        /// How many it may have.
        most: usize,
    },
}

/// Makes frames of the bytes of a driver, however those are divided. An error is final.
#[derive(Debug, Default)]
pub struct DriverDecoder {
    /// Bytes of the line that is not whole, or nothing.
    line: Vec<u8>,
    /// The frame whose payload is not whole, and how many bytes it lacks.
    open: Option<(DriverFrame, usize)>,
}

impl DriverDecoder {
    /// A decoder before the first frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes from the front of `input` until a frame is whole, or all of them.
    ///
    /// What is kept is never more than was given, and never more than one frame.
    ///
    /// # Errors
    /// When what was given is no frame.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<DriverFrame>, FrameError> {
        if self.open.is_none() && !self.take_line(input)? {
            return Ok(None);
        }
        let Some((frame, lacks)) = &mut self.open else {
            return Ok(None);
        };
        let (taken, rest) = input.split_at((*lacks).min(input.len()));
        frame.payload.extend_from_slice(taken);
        *input = rest;
        *lacks -= taken.len();
        if *lacks > 0 {
            return Ok(None);
        }
        Ok(self.open.take().map(|(frame, _)| frame))
    }

    /// Takes bytes up to the end of the line; whether that was among them.
    fn take_line(&mut self, input: &mut &[u8]) -> Result<bool, FrameError> {
        let window = input
            .get(..input.len().min(MAX_LINE - self.line.len()))
            .unwrap_or_default();
        let end = memchr(b'\n', window);
        let (taken, rest) = input.split_at(end.map_or(window.len(), |end| end + 1));
        self.line.extend_from_slice(taken);
        *input = rest;
        if end.is_none() {
            return if self.line.len() == MAX_LINE {
                Err(FrameError::Line)
            } else {
                Ok(false)
            };
        }
        let open = parse_line(&self.line)?;
        self.line.clear();
        self.open = Some(open);
        Ok(true)
    }
}

fn parse_line(line: &[u8]) -> Result<(DriverFrame, usize), FrameError> {
    let text = std::str::from_utf8(line).map_err(|_| FrameError::Line)?;
    let text = text.strip_suffix('\n').ok_or(FrameError::Line)?;
    let mut words = text.split(' ');
    let (Some(kind), Some(id), Some(length), None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err(FrameError::Line);
    };
    let id = id.parse().map_err(|_| FrameError::Line)?;
    let digits =
        !length.is_empty() && length.len() <= LENGTH_DIGITS && length.bytes().all(|digit| digit.is_ascii_digit());
    let length: usize = length.parse().ok().filter(|_| digits).ok_or(FrameError::Line)?;
    if length > MAX_FROM_DRIVER {
        return Err(FrameError::TooLarge { most: MAX_FROM_DRIVER });
    }
    let kind = FrameKind::parse(kind.as_bytes()).ok_or(FrameError::Kind)?;
    let payload = Vec::new();
    Ok((DriverFrame { kind, id, payload }, length))
}

/// Finds the answer to a `sync` in bytes that may begin in the middle of a frame.
#[derive(Debug)]
pub struct SyncScanner {
    pattern: Vec<u8>,
    /// The last bytes, among which the answer may begin.
    tail: Vec<u8>,
}

impl SyncScanner {
    /// Looks for the answer to the `sync` with that id.
    pub fn new(id: HexId) -> Self {
        Self {
            pattern: format!("sync {id} ").into_bytes(),
            tail: Vec::new(),
        }
    }

    /// The bytes from the beginning of the answer on, once it is there.
    pub fn push(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.tail.extend_from_slice(bytes);
        if let Some(at) = memchr::memmem::find(&self.tail, &self.pattern) {
            return Some(self.tail.split_off(at));
        }
        let surplus = self.tail.len().saturating_sub(self.pattern.len() - 1);
        self.tail.drain(..surplus);
        None
    }
}

#[cfg(test)]
mod tests;
