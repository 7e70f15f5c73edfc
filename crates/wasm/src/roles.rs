//! What processes of this room are, behind `offleash supervise`.

/// The word of the role that compiles an interpreter.
pub const COMPILER_ROLE: &str = "compile-interpreter";
