//! `mount DIRECTORY AT [shared] [server] [MAX_DESCRIPTORS]`: serves a directory at a mount point of this machine, over a socket
//! as to a virtual machine, until it is unmounted. For trying and measuring; takes `/dev/fuse` and the right to mount.

#![allow(missing_docs, unreachable_pub, reason = "a program has no callers")]

#[path = "../tests/support/mount.rs"]
mod mount;

use offleash_tree::{CacheTimes, FileOwners, TreeOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, at, rest @ ..] = &words[..] else {
        return Err("which directory, and where?".into());
    };
    let mut options = TreeOptions::default();
    for word in rest {
        match word.as_str() {
            "shared" => options.cache = CacheTimes::shared(),
            "server" => options.owners = FileOwners::Server,
            number => options.max_descriptors = Some(number.parse()?),
        }
    }
    mount::serve_at(directory.as_ref(), at.as_ref(), &options, || Ok(()))
}
