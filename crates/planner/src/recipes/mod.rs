//! Recipes of templates: which steps they mean, and what of the host's package indexes their sandboxes may reach.
//!
//! Reads the host's configuration of package managers. Deliberately not here: what a recipe may say (`core`), and
//! carrying it out.

mod configured;
mod error;
mod indexes;
pub mod steps;

pub use self::configured::{IndexConfiguration, PackageIndex};
pub use self::error::RecipeError;
pub use self::indexes::RecipeIndexes;
