//! Where code runs: the traits of a level, and one folder for each level.
//!
//! A [`Backend`](sandbox::Backend) makes a [`Sandbox`](sandbox::Sandbox) from a `core::plan::Plan`; the sandbox runs commands and reports
//! events. Deliberately not here: which level to take and what to grant (that is decided before, in `supervisor` and
//! `core`), and anything that prints.

pub mod container;
mod entered;
pub mod error;
pub mod guest_image;
mod guest_link;
pub mod limits;
pub mod microvm;
mod pause;
pub mod probe;
pub mod process;
pub mod process_landlock;
pub mod runtime_facts;
pub mod sandbox;
mod search_path;
mod supervised;
