//! One request after the other, until the host closes the socket.

use alloc::vec::Vec;

use offleash_protocol::files::{FileEntry, FileReply, FileRequest};
use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;

use super::channel::HostChannel;
use super::failure::{FileFailure, RequestStop, failed};
use super::names::AccountNames;
use super::path::{GuestPath, directory_mode};
use super::{content, entry, list, remove, watch};

/// Serves until nobody is there any more, or something is said that is no request.
pub(super) fn serve(channel: &mut HostChannel) {
    while let Ok(Some(request)) = channel.next() {
        match carry_out(channel, request) {
            Ok(()) => {}
            Err(RequestStop::Failed(failure)) => {
                if channel.send(&failure.into()).is_err() {
                    return;
                }
            }
            Err(RequestStop::Gone) => return,
        }
    }
}

fn carry_out(channel: &mut HostChannel, request: FileRequest) -> Result<(), RequestStop> {
    let reply = match request {
        FileRequest::Stat { path } => FileReply::Entry(stat(&GuestPath::parse(&path)?)?),
        FileRequest::MakeDirectory { path } => FileReply::Entry(make_directory(&GuestPath::parse(&path)?)?),
        FileRequest::Rename { source, destination } => {
            FileReply::Entry(rename(&GuestPath::parse(&source)?, &GuestPath::parse(&destination)?)?)
        }
        FileRequest::Remove { path } => {
            remove::remove(&GuestPath::parse(&path)?)?;
            FileReply::Done
        }
        FileRequest::List { path, depth } => return list::list(channel, &GuestPath::parse(&path)?, depth),
        FileRequest::Read { path, offset, length } => {
            return content::read(channel, &GuestPath::parse(&path)?, offset, length);
        }
        FileRequest::Write { path, metadata } => return write(channel, &path, &metadata),
        FileRequest::Watch {
            path,
            recursive,
            entries,
        } => return watch::watch(channel, &GuestPath::parse(&path)?, recursive, entries),
        // They follow a request to write, or nothing.
        FileRequest::Data { .. } | FileRequest::Finish => return Err(RequestStop::Gone),
    };
    channel.send(&reply)
}

fn stat(path: &GuestPath) -> Result<FileEntry, FileFailure> {
    entry::at(path, &mut AccountNames::default())
}

fn write(channel: &mut HostChannel, path: &[u8], metadata: &Vec<(Vec<u8>, Vec<u8>)>) -> Result<(), RequestStop> {
    match GuestPath::parse(path) {
        Ok(path) => content::write(channel, &path, metadata),
        Err(failure) => {
            channel.send(&failure.into())?;
            content::drop_data(channel)
        }
    }
}

fn make_directory(path: &GuestPath) -> Result<FileEntry, FileFailure> {
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

fn is_directory(path: &GuestPath) -> bool {
    let status = rustix::fs::stat(path.bytes());
    status.is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::Directory)
}

fn rename(source: &GuestPath, destination: &GuestPath) -> Result<FileEntry, FileFailure> {
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
