//! Tools: what the owner offers to code in a sandbox, each by a name, with what may be asked of it.
//!
//! A tool runs outside. Code inside has its name, its schema of parameters, and no way around the judge, which reads the
//! grants here: which tools, with which parameters, how often. All of it is pure: the same call, grants and counts give
//! the same verdict.

mod constraint;
mod decimal;
mod declared;
mod domain;
mod grant;
mod parse;

pub use constraint::{Comparison, Constraint, ParameterPath, Requirement, Scalar};
pub use decimal::Decimal;
pub use declared::{DeclaredTool, MAX_DESCRIPTION, MAX_SCHEMA, MAX_TOOLS, ToolCaller, ToolName, ToolNameError};
pub use grant::{GrantError, GrantVerdict, MAX_GRANTS, ToolGrant, ToolPattern, WiderGrant, judge};
pub use parse::ConstraintError;
