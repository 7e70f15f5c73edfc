//! Calls of the prelude: files, streams, time and randomness. One that fails answers a negative error number.

use std::time::Duration;

use offleash_core::exec::OutputStream;
use offleash_simulated::engine::{FileFacts, FileKind, FileOperation};
use rustix::io::Errno;
use wasmtime::Store;

use super::super::super::command::{CommandState, fill_randomly, wall_clock};
use super::super::super::paths::{OpenWish, Opened, ReadAhead, Resolved, TreePath};
use super::super::super::{ExitCode, OutputFull};
use super::values::{JsHandle, QuickJs};
use super::{Called, engine_of};

/// The calls by their names.
const CALLS: [&str; 23] = [
    "encode", "decode", "write", "stdin", "stat", "list", "read", "writeAt", "open", "mkdir", "remove", "rename",
    "symlink", "readlink", "chmod", "touch", "truncate", "exit", "now", "sleep", "random", "evaluate", "wall",
];
/// How much randomness one call can ask for, in bytes.
const MAX_RANDOM: usize = 64 * 1024 * 1024;
/// How much of standard input is taken at once.
const ALL: usize = usize::MAX;

/// What a call answers.
enum CallAnswer {
    Nothing,
    Number(f64),
    Text(Vec<u8>),
    Bytes(Vec<u8>),
    Value(JsHandle),
    /// Something was thrown.
    Thrown,
}

/// Why a call did not answer.
enum CallFailure {
    Errno(i32),
    /// The script ends.
    Ends(wasmtime::Error),
}

impl From<i32> for CallFailure {
    fn from(errno: i32) -> Self {
        Self::Errno(errno)
    }
}

impl From<Errno> for CallFailure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno.raw_os_error())
    }
}

impl From<wasmtime::Error> for CallFailure {
    fn from(error: wasmtime::Error) -> Self {
        Self::Ends(error)
    }
}

/// An object whose properties are the calls.
pub(super) fn host_object(engine: &QuickJs, store: &mut Store<CommandState>) -> wasmtime::Result<JsHandle> {
    let object = engine.new_object(&mut *store)?;
    for name in CALLS {
        let function = engine.new_host_function(&mut *store, name)?;
        engine.set_property(&mut *store, object, name, function)?;
    }
    let version = engine.new_string(&mut *store, crate::artifacts::JAVASCRIPT_VERSION.as_bytes())?;
    engine.set_property(&mut *store, object, "version", version)?;
    Ok(object)
}

/// Carries out a call of this name; a handle of its answer, or zero if something was thrown.
pub(super) fn carry_out(
    caller: &mut Called<'_>,
    name: (u32, u32),
    count: u32,
    arguments: u32,
) -> wasmtime::Result<u32> {
    let engine = engine_of(caller)?;
    let name = engine.read(&mut *caller, name.0, name.1)?;
    let list = engine.read(&mut *caller, arguments, count.saturating_mul(4))?;
    let handles = list.as_chunks::<4>().0.iter();
    let arguments = handles.map(|bytes| JsHandle(u32::from_le_bytes(*bytes))).collect();
    let mut call = HostCall {
        engine: engine.clone(),
        caller,
        arguments,
    };
    let answer = match call.answer(&name) {
        Ok(answer) => answer,
        Err(CallFailure::Errno(errno)) => CallAnswer::Number(-f64::from(errno)),
        Err(CallFailure::Ends(error)) => return Err(error),
    };
    if call.caller.data().is_output_full {
        return Err(wasmtime::Error::new(OutputFull));
    }
    let handle = match answer {
        CallAnswer::Nothing => engine.undefined(caller)?,
        CallAnswer::Number(number) => engine.new_number(caller, number)?,
        CallAnswer::Text(text) => engine.new_string(caller, &text)?,
        CallAnswer::Bytes(bytes) => engine.new_bytes(caller, &bytes)?,
        CallAnswer::Value(value) => value,
        CallAnswer::Thrown => return Ok(0),
    };
    Ok(handle.0)
}

/// The code that a script ends with: the low byte, as the kernel has it.
pub(super) fn exit_code(number: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "it is cut to a byte anyway")]
    let code = number as i64;
    u32::from((code & 0xff).unsigned_abs().to_le_bytes()[0])
}

/// A call, while it is carried out.
struct HostCall<'a, 'b> {
    engine: QuickJs,
    caller: &'a mut Called<'b>,
    arguments: Vec<JsHandle>,
}

type Answered = Result<CallAnswer, CallFailure>;

impl HostCall<'_, '_> {
    fn argument(&self, place: usize) -> Result<JsHandle, CallFailure> {
        self.arguments.get(place).copied().ok_or(Errno::INVAL.into())
    }

    fn text(&mut self, place: usize) -> Result<Vec<u8>, CallFailure> {
        let argument = self.argument(place)?;
        Ok(self.engine.text(&mut *self.caller, argument)?)
    }

    fn bytes(&mut self, place: usize) -> Result<Vec<u8>, CallFailure> {
        let argument = self.argument(place)?;
        Ok(self.engine.bytes(&mut *self.caller, argument)?)
    }

    fn number(&mut self, place: usize) -> Result<f64, CallFailure> {
        let argument = self.argument(place)?;
        Ok(self.engine.number(&mut *self.caller, argument)?)
    }

    /// A number that is not negative and has no fraction.
    fn count(&mut self, place: usize) -> Result<u64, CallFailure> {
        let number = self.number(place)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "what is outside is the nearest that is inside"
        )]
        match number.is_nan() {
            true => Err(Errno::INVAL.into()),
            false => Ok(number as u64),
        }
    }

    fn flag(&mut self, place: usize) -> Result<bool, CallFailure> {
        Ok(self.number(place)? > 0.0)
    }

    fn state(&mut self) -> &mut CommandState {
        self.caller.data_mut()
    }

    /// The path of an argument, followed to its end.
    fn found(&mut self, place: usize, follow: bool) -> Result<Resolved, CallFailure> {
        let path = self.text(place)?;
        let path = match path.strip_prefix(b"/") {
            Some(b"") | None => b".".to_vec(),
            Some(below) => below.to_vec(),
        };
        let files = &self.state().files;
        let root = files.root().ok_or(Errno::NOENT)?;
        Ok(files.resolve(&root, &path, follow)?)
    }

    /// The path of something that is there.
    fn there(&mut self, place: usize) -> Result<(TreePath, FileFacts), CallFailure> {
        let found = self.found(place, true)?;
        Ok((found.path, found.facts.ok_or(Errno::NOENT)?))
    }

    fn change(&mut self, path: &TreePath, operation: FileOperation) -> Answered {
        self.state().files.change(path, operation)?;
        Ok(CallAnswer::Nothing)
    }

    fn answer(&mut self, name: &[u8]) -> Answered {
        match name {
            b"encode" => self.text(0).map(CallAnswer::Bytes),
            b"decode" => {
                let bytes = self.bytes(0)?;
                Ok(CallAnswer::Text(
                    String::from_utf8_lossy(&bytes).into_owned().into_bytes(),
                ))
            }
            b"write" => self.write(),
            b"stdin" => {
                let bytes = self.state().descriptors.input(ALL).to_vec();
                Ok(CallAnswer::Bytes(bytes))
            }
            b"stat" => self.stat(),
            b"list" => self.list(),
            b"read" => self.read(),
            b"writeAt" => self.write_at(),
            b"open" => self.open(),
            b"mkdir" => {
                let found = self.found(0, false)?;
                match found.facts {
                    Some(_) => Err(Errno::EXIST.into()),
                    None => self.change(&found.path, FileOperation::MakeDirectory),
                }
            }
            b"remove" => {
                let (path, is_directory) = (self.found(0, false)?.path, self.flag(1)?);
                self.state().files.remove(&path, is_directory)?;
                Ok(CallAnswer::Nothing)
            }
            b"rename" => {
                let (from, to) = (self.found(0, false)?, self.found(1, false)?);
                from.facts.ok_or(Errno::NOENT)?;
                self.state().files.rename(&from.path, &to.path)?;
                Ok(CallAnswer::Nothing)
            }
            b"symlink" => {
                let (target, found) = (self.text(0)?, self.found(1, false)?);
                self.change(&found.path, FileOperation::Symlink { target })
            }
            b"readlink" => {
                let path = self.found(0, false)?.path;
                Ok(CallAnswer::Text(self.state().files.link_target(&path)?))
            }
            b"chmod" => {
                let (path, _) = self.there(0)?;
                let mode = u32::try_from(self.count(1)? & 0o7777).unwrap_or(0);
                self.change(&path, FileOperation::Chmod { mode })
            }
            b"touch" => {
                let (path, _) = self.there(0)?;
                let milliseconds = self.count(1)?;
                let operation = FileOperation::Touch {
                    seconds: i64::try_from(milliseconds / 1000).unwrap_or(i64::MAX),
                    nanoseconds: u32::try_from(milliseconds % 1000).unwrap_or(0) * 1_000_000,
                };
                self.change(&path, operation)
            }
            b"truncate" => {
                let ((path, _), size) = (self.there(0)?, self.count(1)?);
                self.change(&path, FileOperation::Resize { size })
            }
            b"exit" => {
                let code = exit_code(self.number(0)?);
                Err(CallFailure::Ends(wasmtime::Error::new(ExitCode(code))))
            }
            b"now" => {
                let nanoseconds = Duration::from_nanos(self.state().monotonic());
                Ok(CallAnswer::Number(nanoseconds.as_secs_f64() * 1000.0))
            }
            b"wall" => Ok(CallAnswer::Number(
                Duration::from_nanos(wall_clock()).as_secs_f64() * 1000.0,
            )),
            b"sleep" => {
                std::thread::sleep(Duration::from_millis(self.count(0)?));
                Ok(CallAnswer::Nothing)
            }
            b"random" => self.random(),
            b"evaluate" => self.evaluate(),
            _ => Err(Errno::NOSYS.into()),
        }
    }

    fn write(&mut self) -> Answered {
        let stream = match self.count(0)? {
            1 => OutputStream::Stdout,
            2 => OutputStream::Stderr,
            _ => return Err(Errno::BADF.into()),
        };
        let bytes = self.bytes(1)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() && !self.state().is_output_full {
            let taken = self.state().output(stream, rest);
            rest = rest.get(taken..).unwrap_or_default();
        }
        Ok(CallAnswer::Nothing)
    }

    fn stat(&mut self) -> Answered {
        let follow = self.flag(1)?;
        let facts = self.found(0, follow)?.facts.ok_or(Errno::NOENT)?;
        let milliseconds = facts.seconds.saturating_mul(1000) + i64::from(facts.nanoseconds / 1_000_000);
        let kind = kind_of(facts.kind);
        let text = format!("{kind} {} {} {milliseconds}", facts.mode, facts.size);
        Ok(CallAnswer::Text(text.into_bytes()))
    }

    /// Names, each behind the digit of what is there, with zeroes between them.
    fn list(&mut self) -> Answered {
        let (path, _) = self.there(0)?;
        let entries = self.state().files.entries(&path)?;
        let words = entries
            .into_iter()
            .map(|(name, kind)| [kind_of(kind).to_string().into_bytes(), name].concat());
        let words: Vec<Vec<u8>> = words.collect();
        Ok(CallAnswer::Text(words.join(&0)))
    }

    fn read(&mut self) -> Answered {
        let ((path, facts), offset) = (self.there(0)?, self.count(1)?);
        match facts.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::ISDIR.into()),
            FileKind::Symlink | FileKind::Special => return Err(Errno::NXIO.into()),
        }
        let mut buffer = vec![0; offleash_simulated::engine::MAX_PIECE];
        let read = self
            .state()
            .files
            .read(&path, &mut ReadAhead::default(), offset, &mut buffer)?;
        buffer.truncate(read);
        Ok(CallAnswer::Bytes(buffer))
    }

    fn write_at(&mut self) -> Answered {
        let ((path, _), at) = (self.there(0)?, self.number(1)?);
        let offset = match at < 0.0 {
            true => None,
            false => Some(self.count(1)?),
        };
        let bytes = self.bytes(2)?;
        let mut done = 0;
        while done < bytes.len() {
            let rest = bytes.get(done..).unwrap_or_default();
            let at = offset.map(|offset| offset.saturating_add(done as u64));
            done += self.state().files.write(&path, at, rest)?;
        }
        Ok(CallAnswer::Nothing)
    }

    fn open(&mut self) -> Answered {
        let found = self.found(0, true)?;
        let wish = OpenWish {
            follow: true,
            create: self.flag(1)?,
            exclusive: self.flag(2)?,
            truncate: self.flag(3)?,
            directory: false,
            write: self.flag(1)?,
        };
        match self.state().files.open_found(found, wish)? {
            Opened::File(_) => Ok(CallAnswer::Nothing),
            Opened::Directory(_) => Err(Errno::ISDIR.into()),
        }
    }

    fn random(&mut self) -> Answered {
        let count = usize::try_from(self.count(0)?).unwrap_or(usize::MAX);
        if count > MAX_RANDOM {
            return Err(Errno::INVAL.into());
        }
        let mut bytes = vec![0; count];
        fill_randomly(&mut bytes)?;
        Ok(CallAnswer::Bytes(bytes))
    }

    fn evaluate(&mut self) -> Answered {
        let (code, name) = (self.text(0)?, self.text(1)?);
        let how = match self.flag(2)? {
            true => super::MODULE,
            false => super::GLOBAL,
        };
        let value = self.engine.evaluate(&mut *self.caller, &code, &name, how)?;
        Ok(value.map_or(CallAnswer::Thrown, CallAnswer::Value))
    }
}

fn kind_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => 0,
        FileKind::Directory => 1,
        FileKind::Symlink => 2,
        FileKind::Special => 3,
    }
}
