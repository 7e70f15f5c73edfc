//! Serving: threads that take turns to read a message, and answer it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use rustix::io::Errno;
use rustix::net::Shutdown;

use crate::bounds::MAX_WORKERS;
use crate::channel::{MessageReader, ReplyWriter};
use crate::dispatch::{Outcome, dispatch};
use crate::error::{TreeError, setup};
use crate::greeting::{Greeting, greet};
use crate::message;
use crate::options::TreeOptions;
use crate::owner::FileMaker;
use crate::reply::ReplyBuffer;
use crate::tree::Tree;

/// Stack of a thread that answers, bytes.
const STACK: usize = 512 * 1024;

/// Serves the tree below `root` to whoever speaks FUSE on `channel`, a stream socket, until that end closes it or says
/// `FUSE_DESTROY`. Both are closed at the end.
///
/// Blocks; [`TreeOptions::workers`] threads are started for as long. The tree may have mounts; what is below them is served,
/// unless they show the kernel's state (proc, sysfs, cgroups).
///
/// # Errors
/// What [`TreeError`] says. A request that cannot be done is answered with its errno and is no error here.
pub fn serve(root: OwnedFd, channel: OwnedFd, options: &TreeOptions) -> Result<(), TreeError> {
    // A bound on the size of files is an answer to one request, and not the end of this process.
    offleash_sys::signals::outlive_file_sizes();
    let tree = Tree::new(root, options)?;
    let mut reader = MessageReader::new(channel.as_fd());
    let writer = ReplyWriter::new(channel.as_fd());
    if !greet_all(&mut reader, &writer)? {
        return Ok(());
    }
    // Whoever has its turn reads a message, gives the turn away and answers: nothing waits but what the socket holds.
    let turn = Mutex::new(Some(reader));
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for number in 0..options.workers.clamp(1, MAX_WORKERS) {
            let (tree, turn, writer, channel) = (&tree, &turn, &writer, channel.as_fd());
            let started = std::thread::Builder::new()
                .name(format!("tree-{number}"))
                .stack_size(STACK)
                .spawn_scoped(scope, move || {
                    let mut ending = EndOfServing {
                        channel,
                        is_drained: false,
                    };
                    ending.is_drained = work(tree, turn, writer, options)?;
                    Ok(())
                });
            match started {
                Ok(worker) => workers.push(worker),
                Err(error) => {
                    let _ = rustix::net::shutdown(channel, Shutdown::Both);
                    return Err(setup("starting a thread")(error));
                }
            }
        }
        let ends = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or(Err(TreeError::Worker)));
        ends.fold(Ok(()), Result::and)
    })
}

/// Answers until both speak the same version; `false` if the channel ended before.
fn greet_all(reader: &mut MessageReader<'_>, writer: &ReplyWriter<'_>) -> Result<bool, TreeError> {
    let mut reply = ReplyBuffer::new();
    // Once with a version that is not ours, once with ours.
    for _ in 0..2 {
        let Some(message) = reader.next()? else {
            return Ok(false);
        };
        reply.clear();
        let greeting = greet(&message, &mut reply)?;
        if !writer.send(reply.written())? {
            return Ok(false);
        }
        if greeting == Greeting::Done {
            return Ok(true);
        }
    }
    Err(TreeError::Version { major: 8, minor: 0 })
}

/// The next message, waited for; `None` when there are no more.
fn next_message(turn: &Mutex<Option<MessageReader<'_>>>) -> Result<Option<Vec<u8>>, TreeError> {
    let mut turn = turn.lock().map_err(|_| TreeError::Worker)?;
    let Some(reader) = turn.as_mut() else {
        return Ok(None);
    };
    let message = reader.next();
    if !matches!(message, Ok(Some(_))) {
        *turn = None;
    }
    message
}

/// Answers messages until there are no more, or until it is over; whether there were no more.
fn work(
    tree: &Tree,
    turn: &Mutex<Option<MessageReader<'_>>>,
    writer: &ReplyWriter<'_>,
    options: &TreeOptions,
) -> Result<bool, TreeError> {
    let mut maker = FileMaker::new(options.owners)?;
    let mut reply = ReplyBuffer::new();
    while let Some(message) = next_message(turn)? {
        let Ok((header, body)) = message::split(&message) else {
            continue;
        };
        reply.clear();
        let outcome = dispatch(tree, &mut maker, &header, body, &mut reply);
        let answer = match outcome {
            Outcome::Silence => continue,
            Outcome::Answer(answer) => answer,
            Outcome::Farewell => Ok::<(), Errno>(()),
        };
        let is_heard = writer.send(reply.finish(header.unique, answer))?;
        if !is_heard || outcome == Outcome::Farewell {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Ends all of serving when a thread ends before the messages did, whyever: nobody waits for an answer that never comes.
#[derive(Debug)]
struct EndOfServing<'a> {
    channel: BorrowedFd<'a>,
    is_drained: bool,
}

impl Drop for EndOfServing<'_> {
    fn drop(&mut self) {
        if !self.is_drained {
            // The other end may be gone already.
            let _ = rustix::net::shutdown(self.channel, Shutdown::Both);
        }
    }
}
