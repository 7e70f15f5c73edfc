//! Volumes and buckets of S3: brings the files of the one and the objects of the other to the same, object by object.
//!
//! What volume and bucket had in common the last time is written beside the volume's data (`baseline`). From that follows
//! which side has changed (`decide`). Nothing of either side is replaced that has changed since: objects by conditions of
//! the request (`If-Match`), files by what the kernel knows of them. Names of objects are nobody's to trust (`key`).
//!
//! Deliberately not here: how much room a volume has, and where credentials are kept. Requests are made by `rusty-s3` and
//! sent by the connections that `images` has.

mod baseline;
mod bounds;
mod client;
mod decide;
mod digests;
mod error;
mod key;
mod local;
mod report;
mod sync;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use bounds::MAX_OBJECTS;
pub use error::{BucketError, ObjectFault};
pub use report::{ObjectList, ObjectNote, SyncReport};
pub use sync::{SyncOrder, SyncOutcome, sync};
