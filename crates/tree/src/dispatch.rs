//! Which operation does what.

use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::message::{MessageBody, MessageHeader, Operation};
use crate::owner::FileMaker;
use crate::reply::ReplyBuffer;
use crate::tree::Tree;

/// Whether a message is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With what was written, or with an error.
    Answer(Result<(), Errno>),
    /// Not at all.
    Silence,
    /// With nothing, and it was the last.
    Farewell,
}

/// Does what a message asks for.
pub(crate) fn dispatch(
    tree: &Tree,
    maker: &mut FileMaker,
    header: &MessageHeader,
    body: MessageBody<'_>,
    reply: &mut ReplyBuffer,
) -> Outcome {
    let Some(operation) = Operation::from_number(header.operation) else {
        return Outcome::Answer(Err(Errno::NOSYS));
    };
    Outcome::Answer(match operation {
        Operation::Forget => {
            tree.forget(header.node, body);
            return Outcome::Silence;
        }
        Operation::BatchForget => {
            tree.batch_forget(body);
            return Outcome::Silence;
        }
        // Nothing here waits for anything but a disk, and an answer to this would have to be for a request that still waits.
        Operation::Interrupt => return Outcome::Silence,
        Operation::Destroy => return Outcome::Farewell,
        Operation::Init => Err(Errno::IO),
        Operation::Lookup => tree.lookup(header, body, reply),
        Operation::Getattr => tree.getattr(header, body, reply),
        Operation::Setattr => tree.setattr(header, body, reply),
        Operation::Statx => tree.statx(header, body, reply),
        Operation::Readlink => tree.readlink(header, body, reply),
        Operation::Symlink => tree.symlink(maker, header, body, reply),
        Operation::Mknod => tree.mknod(maker, header, body, reply),
        Operation::Mkdir => tree.mkdir(maker, header, body, reply),
        Operation::Unlink => tree.unlink(header, body, AtFlags::empty()),
        Operation::Rmdir => tree.unlink(header, body, AtFlags::REMOVEDIR),
        Operation::Rename => tree.rename(header, body),
        Operation::Rename2 => tree.rename_flagged(header, body),
        Operation::Link => tree.link(header, body, reply),
        Operation::Create => tree.create(maker, header, body, reply),
        Operation::Tmpfile => tree.tmpfile(maker, header, body, reply),
        Operation::Open => tree.open(header, body, reply),
        Operation::Read => tree.read(header, body, reply),
        Operation::Write => tree.write(header, body, reply),
        Operation::Statfs => tree.statfs(header, body, reply),
        Operation::Release | Operation::Releasedir => tree.release(body),
        Operation::Fsync => tree.fsync(header, body),
        Operation::Fsyncdir => tree.fsyncdir(header, body),
        Operation::Fallocate => tree.fallocate(header, body),
        Operation::Lseek => tree.lseek(header, body, reply),
        Operation::CopyFileRange => tree.copy_file_range(header, body, reply),
        Operation::Opendir => tree.opendir(header, body, reply),
        Operation::Readdir => tree.readdir(header, body, reply),
        Operation::Readdirplus => tree.readdirplus(header, body, reply),
        Operation::Getxattr => tree.getxattr(header, body, reply),
        Operation::Setxattr => tree.setxattr(header, body),
        Operation::Listxattr => tree.listxattr(header, body, reply),
        Operation::Removexattr => tree.removexattr(header, body),
    })
}

impl Tree {
    fn forget(&self, node: u64, mut body: MessageBody<'_>) {
        if let Ok(times) = body.u64() {
            let closed = self.nodes().forget(node, times);
            drop(closed);
        }
    }

    fn batch_forget(&self, mut body: MessageBody<'_>) {
        let Ok(count) = body.u32().and_then(|count| body.u32().map(|_| count)) else {
            return;
        };
        // The message ends them, whatever their number is said to be.
        for _ in 0..count {
            let (Ok(node), Ok(times)) = (body.u64(), body.u64()) else {
                return;
            };
            let closed = self.nodes().forget(node, times);
            drop(closed);
        }
    }
}
