//! Programs in many languages, each run once in a sandbox of its own: what doors for judges and playgrounds are made on.
//!
//! Which languages there are is found out by asking the base, and the templates that the owner of the server names; nothing is assumed.

mod catalog;
mod program;
mod table;
mod version;

pub(crate) use self::catalog::{CatalogReader, RuntimeCatalog};
pub(crate) use self::program::{
    Program, ProgramEvent, ProgramExtras, ProgramFile, ProgramOutcome, ProgramWatcher, StageLimits, StageName,
    StageOutcome, StageStatus,
};
pub(crate) use self::table::{LanguageEntry, OWN_SCRIPTS, find as find_language};
pub(crate) use self::version::{RuntimeVersion, VersionSelector};

/// A language as it is at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LanguageRuntime {
    pub(crate) language: &'static LanguageEntry,
    pub(crate) version: RuntimeVersion,
    /// The template that has it; the base is one, too.
    pub(crate) template: String,
}
