//! That a gateway ends by itself is told before anything that it held is closed.
//!
//! A program inside sees its connections close and may end at once; whoever is told of that end must find that the gateway
//! was first. When the process is killed the kernel closes its descriptors in the order of their numbers, of which the
//! socket to the supervisor has the lowest.

use crate::link::Link;
use crate::wire::Report;

/// Tells of the end when it is dropped, by a return as well as by a panic. To be made after everything that is closed with
/// the gateway, so that it is dropped before.
#[derive(Debug)]
#[must_use = "the end is told when it is dropped"]
pub(crate) struct TellsOfEnd(Link);

impl TellsOfEnd {
    pub(crate) fn by(link: &Link) -> Self {
        Self(link.clone())
    }
}

impl Drop for TellsOfEnd {
    fn drop(&mut self) {
        self.0.send(&Report::Ending);
    }
}
