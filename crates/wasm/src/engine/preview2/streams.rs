//! Streams, their errors, and what waits. Files and output are always ready; a timer is when its time has come.

use std::time::{Duration, Instant};

use offleash_core::exec::OutputStream;
use offleash_simulated::engine::MAX_PIECE;
use rustix::io::Errno;
use wasmtime::component::{ComponentType, Lift, Linker, LinkerInstance, Lower, Resource, ResourceType};
use wasmtime::{Error, Result, StoreContextMut};

use super::super::command::CommandState;
use super::super::paths::{ReadAhead, TreePath};
use super::interface;

/// How many can be waited for at once.
const MAX_POLLED: usize = 4096;

type Context<'a> = StoreContextMut<'a, CommandState>;

/// Where bytes come from.
pub(super) enum InputStream {
    Standard,
    File {
        path: TreePath,
        position: u64,
        ahead: ReadAhead,
    },
}

/// Where bytes go.
pub(super) enum OutputSink {
    Standard(OutputStream),
    File {
        path: TreePath,
        /// None at its end.
        position: Option<u64>,
    },
}

/// What is waited for.
pub(super) struct Pollable(Option<Instant>);

/// Why a stream failed, as the kernel numbers it.
pub(super) struct StreamFailure(pub(super) i32);

#[derive(ComponentType, Lift, Lower)]
#[component(variant)]
enum StreamError {
    #[component(name = "last-operation-failed")]
    Failed(Resource<StreamFailure>),
    #[component(name = "closed")]
    Closed,
}

type Streamed<T> = std::result::Result<T, StreamError>;

impl Pollable {
    pub(super) fn after(wait: Duration) -> Self {
        // A time that is never reached is as good as none that can be told.
        Self(Some(Instant::now().checked_add(wait).unwrap_or_else(|| {
            Instant::now() + Duration::from_secs(100 * 366 * 24 * 3600)
        })))
    }

    fn wait(&self) -> Duration {
        self.0
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }
}

fn failed(state: &mut CommandState, errno: i32) -> Result<StreamError> {
    Ok(StreamError::Failed(state.table.push(StreamFailure(errno))?))
}

fn read(mut c: Context<'_>, (stream, length): (Resource<InputStream>, u64)) -> Result<(Streamed<Vec<u8>>,)> {
    let state = c.data_mut();
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(MAX_PIECE);
    let bytes = match state.table.get_mut(&stream)? {
        InputStream::Standard => Ok(state.descriptors.input(length).to_vec()),
        InputStream::File { path, position, ahead } => {
            let mut buffer = vec![0; length];
            let taken = state.files.read(path, ahead, *position, &mut buffer);
            taken.map(|taken| {
                *position = position.saturating_add(taken as u64);
                buffer.truncate(taken);
                buffer
            })
        }
    };
    Ok((match bytes {
        Ok(bytes) if bytes.is_empty() && length > 0 => Err(StreamError::Closed),
        Ok(bytes) => Ok(bytes),
        Err(errno) => Err(failed(state, errno)?),
    },))
}

fn skip(c: Context<'_>, arguments: (Resource<InputStream>, u64)) -> Result<(Streamed<u64>,)> {
    let (skipped,) = read(c, arguments)?;
    Ok((skipped.map(|bytes| bytes.len() as u64),))
}

/// Writes all of it, which is no more than was permitted.
fn write_all(state: &mut CommandState, sink: &Resource<OutputSink>, bytes: &[u8]) -> Result<Streamed<()>> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let given = match state.table.get_mut(sink)? {
            OutputSink::Standard(stream) => {
                let stream = *stream;
                Ok(state.output(stream, rest))
            }
            OutputSink::File { path, position } => {
                let given = state.files.write(path, *position, rest);
                if let (Ok(given), Some(position)) = (given, position) {
                    *position = position.saturating_add(given as u64);
                }
                given
            }
        };
        match given {
            Ok(given) => rest = rest.get(given..).unwrap_or_default(),
            Err(errno) => return Ok(Err(failed(state, errno)?)),
        }
    }
    Ok(Ok(()))
}

fn write(mut c: Context<'_>, (sink, bytes): (Resource<OutputSink>, Vec<u8>)) -> Result<(Streamed<()>,)> {
    Ok((write_all(c.data_mut(), &sink, &bytes)?,))
}

fn write_zeroes(mut c: Context<'_>, (sink, length): (Resource<OutputSink>, u64)) -> Result<(Streamed<()>,)> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_PIECE {
        return Err(Error::msg("a write that was not permitted"));
    }
    Ok((write_all(c.data_mut(), &sink, &vec![0; length])?,))
}

fn splice(
    mut c: Context<'_>,
    (sink, from, length): (Resource<OutputSink>, Resource<InputStream>, u64),
) -> Result<(Streamed<u64>,)> {
    let (bytes,) = read(wasmtime::AsContextMut::as_context_mut(&mut c), (from, length))?;
    Ok((match bytes {
        Ok(bytes) => write_all(c.data_mut(), &sink, &bytes)?.map(|()| bytes.len() as u64),
        Err(error) => Err(error),
    },))
}

fn flush(mut c: Context<'_>, (sink,): (Resource<OutputSink>,)) -> Result<(Streamed<()>,)> {
    c.data_mut().table.get(&sink)?;
    Ok((Ok(()),))
}

fn ready(mut c: Context<'_>) -> Result<(Resource<Pollable>,)> {
    Ok((c.data_mut().table.push(Pollable(None))?,))
}

/// Defines a resource whose handles are in the table.
pub(super) fn resource<T: 'static>(here: &mut LinkerInstance<'_, CommandState>, name: &str) -> Result<()> {
    here.resource(name, ResourceType::host::<T>(), |mut c, number| {
        c.data_mut().table.delete(Resource::<T>::new_own(number))?;
        Ok(())
    })
}

pub(super) fn add_to(linker: &mut Linker<CommandState>) -> Result<()> {
    let mut here = linker.instance(&interface("wasi:io/error"))?;
    here.resource("error", ResourceType::host::<StreamFailure>(), |mut c, number| {
        c.data_mut().table.delete(Resource::<StreamFailure>::new_own(number))?;
        Ok(())
    })?;
    here.func_wrap(
        "[method]error.to-debug-string",
        |c: Context<'_>, (error,): (Resource<StreamFailure>,)| {
            let errno = c.data().table.get(&error)?.0;
            Ok((Errno::from_raw_os_error(errno).to_string(),))
        },
    )?;
    add_poll(linker)?;
    let mut here = linker.instance(&interface("wasi:io/streams"))?;
    resource::<InputStream>(&mut here, "input-stream")?;
    resource::<OutputSink>(&mut here, "output-stream")?;
    for name in ["read", "blocking-read"] {
        here.func_wrap(&format!("[method]input-stream.{name}"), read)?;
    }
    for name in ["skip", "blocking-skip"] {
        here.func_wrap(&format!("[method]input-stream.{name}"), skip)?;
    }
    here.func_wrap(
        "[method]input-stream.subscribe",
        |c: Context<'_>, _: (Resource<InputStream>,)| ready(c),
    )?;
    here.func_wrap(
        "[method]output-stream.check-write",
        |c: Context<'_>, (sink,): (Resource<OutputSink>,)| {
            c.data().table.get(&sink)?;
            Ok((Streamed::Ok(MAX_PIECE as u64),))
        },
    )?;
    for name in ["write", "blocking-write-and-flush"] {
        here.func_wrap(&format!("[method]output-stream.{name}"), write)?;
    }
    for name in ["write-zeroes", "blocking-write-zeroes-and-flush"] {
        here.func_wrap(&format!("[method]output-stream.{name}"), write_zeroes)?;
    }
    for name in ["flush", "blocking-flush"] {
        here.func_wrap(&format!("[method]output-stream.{name}"), flush)?;
    }
    for name in ["splice", "blocking-splice"] {
        here.func_wrap(&format!("[method]output-stream.{name}"), splice)?;
    }
    here.func_wrap(
        "[method]output-stream.subscribe",
        |c: Context<'_>, _: (Resource<OutputSink>,)| ready(c),
    )
}

fn add_poll(linker: &mut Linker<CommandState>) -> Result<()> {
    let mut here = linker.instance(&interface("wasi:io/poll"))?;
    resource::<Pollable>(&mut here, "pollable")?;
    here.func_wrap(
        "[method]pollable.ready",
        |c: Context<'_>, (pollable,): (Resource<Pollable>,)| Ok((c.data().table.get(&pollable)?.wait().is_zero(),)),
    )?;
    here.func_wrap(
        "[method]pollable.block",
        |c: Context<'_>, (pollable,): (Resource<Pollable>,)| {
            std::thread::sleep(c.data().table.get(&pollable)?.wait());
            Ok(())
        },
    )?;
    here.func_wrap("poll", |c: Context<'_>, (pollables,): (Vec<Resource<Pollable>>,)| {
        if pollables.is_empty() || pollables.len() > MAX_POLLED {
            return Err(Error::msg("a poll of nothing, or of too much"));
        }
        let table = &c.data().table;
        let waits = pollables.iter().map(|pollable| Ok(table.get(pollable)?.wait()));
        let waits = waits.collect::<Result<Vec<Duration>>>()?;
        let shortest = waits.iter().min().copied().unwrap_or_default();
        std::thread::sleep(shortest);
        let due = waits.iter().enumerate().filter(|(_, wait)| **wait <= shortest);
        let due = due.filter_map(|(number, _)| u32::try_from(number).ok());
        Ok((due.collect::<Vec<u32>>(),))
    })
}
