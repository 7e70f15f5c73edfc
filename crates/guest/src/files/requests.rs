//! One request after the other, until the host closes the socket.

use alloc::vec::Vec;

use offleash_protocol::files::{Entry, FileReply, FileRequest};
use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;

use super::channel::Channel;
use super::failure::{Failure, Stop, failed};
use super::names::Names;
use super::path::{Path, directory_mode};
use super::{content, entry, list, remove, watch};

/// Serves until nobody is there any more, or something is said that is no request.
pub(super) fn serve(channel: &mut Channel) {
    while let Ok(Some(request)) = channel.next() {
        match carry_out(channel, request) {
            Ok(()) => {}
            Err(Stop::Failed(failure)) => {
                if channel.send(&failure.into()).is_err() {
                    return;
                }
            }
            Err(Stop::Gone) => return,
        }
    }
}

fn carry_out(channel: &mut Channel, request: FileRequest) -> Result<(), Stop> {
    let reply = match request {
        FileRequest::Stat { path } => FileReply::Entry(stat(&Path::parse(&path)?)?),
        FileRequest::MakeDirectory { path } => FileReply::Entry(make_directory(&Path::parse(&path)?)?),
        FileRequest::Rename { source, destination } => {
            FileReply::Entry(rename(&Path::parse(&source)?, &Path::parse(&destination)?)?)
        }
        FileRequest::Remove { path } => {
            remove::remove(&Path::parse(&path)?)?;
            FileReply::Done
        }
        FileRequest::List { path, depth } => return list::list(channel, &Path::parse(&path)?, depth),
        FileRequest::Read { path, offset, length } => {
            return content::read(channel, &Path::parse(&path)?, offset, length);
        }
        FileRequest::Write { path, metadata } => return write(channel, &path, &metadata),
        FileRequest::Watch {
            path,
            recursive,
            entries,
        } => return watch::watch(channel, &Path::parse(&path)?, recursive, entries),
        // They follow a request to write, or nothing.
        FileRequest::Data { .. } | FileRequest::Finish => return Err(Stop::Gone),
    };
    channel.send(&reply)
}

fn stat(path: &Path) -> Result<Entry, Failure> {
    entry::at(path, &mut Names::default())
}

fn write(channel: &mut Channel, path: &[u8], metadata: &Vec<(Vec<u8>, Vec<u8>)>) -> Result<(), Stop> {
    match Path::parse(path) {
        Ok(path) => content::write(channel, &path, metadata),
        Err(failure) => {
            channel.send(&failure.into())?;
            content::drop_data(channel)
        }
    }
}

fn make_directory(path: &Path) -> Result<Entry, Failure> {
    let make = || rustix::fs::mkdir(path.bytes(), directory_mode());
    let made = match make() {
        Err(Errno::NOENT) => {
            path.make_parents()?;
            make()
        }
        made => made,
    };
    match made {
        Ok(()) => stat(path),
        Err(Errno::EXIST) if !is_directory(path) => Err(failed("mkdir")(Errno::NOTDIR)),
        Err(errno) => Err(failed("mkdir")(errno)),
    }
}

fn is_directory(path: &Path) -> bool {
    let status = rustix::fs::stat(path.bytes());
    status.is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::Directory)
}

fn rename(source: &Path, destination: &Path) -> Result<Entry, Failure> {
    let rename = || rustix::fs::rename(source.bytes(), destination.bytes());
    let renamed = match rename() {
        Err(Errno::NOENT) => {
            rustix::fs::statat(CWD, source.bytes(), AtFlags::SYMLINK_NOFOLLOW).map_err(failed("rename"))?;
            destination.make_parents()?;
            rename()
        }
        renamed => renamed,
    };
    renamed.map_err(failed("rename"))?;
    stat(destination)
}
