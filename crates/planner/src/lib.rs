//! Resolves what was asked for into a plan in which nothing optional is left open.
//!
//! Looks at the host (what exists, what links lead where) and changes nothing there. Decisions are `core`'s; here they
//! become entries. A later entry covers an earlier one, so the order is fixed in one place (`tree`). Deliberately not
//! here: the choice among levels that the machine offers, and making the directories of layers.

pub mod base;
mod base_entries;
mod commands;
pub mod dockerfile;
mod environment;
mod error;
pub mod etc;
mod explain;
mod git;
pub mod git_system;
mod gpu;
mod host;
pub mod image;
mod image_stack;
pub mod instructions;
mod known;
mod mounts;
mod outside;
mod program_search;
mod reach;
pub mod recipes;
mod regular_file;
mod resolve;
mod rules;
pub mod system;
#[cfg(test)]
mod tests;
mod toolchain;
mod toolchain_names;
mod tools;
mod tree;
mod trust;
mod view;
mod workspace;

pub use base_entries::{BasePart, BaseTemplate};
pub use base_entries::{first_user, users};
pub use error::PlanError;
pub use explain::{PathAnswer, explain_path, has_variable_of_its_own};
pub use host::{ExecBasis, FoundVolume, PlanningHost, this_home};
pub use known::KnownEtc;
pub use outside::find_outside;
pub use reach::absolute;
pub use reach::from_home;
pub use regular_file::{RegularFileError, read_named_file, read_regular_file};
pub use resolve::{resolve, resolve_without_command};
pub use rules::check_exists;
pub use rules::grants_of_nothing;
pub use trust::TrustStores;
pub use trust::{files as trust_files, own_paths as trust_paths, variables as trust_variables};
