//! bashkit 0.20.2, whose sources `build.rs` takes from the registry and changes as `patches.rs` says.

#![allow(
    warnings,
    clippy::all,
    reason = "the sources are another's, as they are but for `patches.rs`"
)]

include!(concat!(env!("OUT_DIR"), "/bashkit/src/lib.rs"));
