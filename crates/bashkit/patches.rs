//! What is changed in bashkit 0.20.2, and why.

/// A change.
pub(crate) struct Patch {
    /// Below `src`.
    pub(crate) file: &'static str,
    /// What is there.
    pub(crate) old: &'static str,
    /// How often.
    pub(crate) times: usize,
    /// What takes its place.
    pub(crate) new: &'static str,
    /// Why.
    pub(crate) why: &'static str,
}

const fn once(file: &'static str, old: &'static str, new: &'static str, why: &'static str) -> Patch {
    Patch {
        file,
        old,
        times: 1,
        new,
        why,
    }
}

const RAISED: &str =
    "time and memory of the worker are the bounds; a smaller one only makes scripts fail that bash runs";
const SAID: &str = "what is cut without an error is noted, so that the shell can say so and end with another status";

const TOLD: &str =
    "what a command says of itself goes on record from where it is said: a script can write the same words";

/// The changes, in the order in which they are made.
pub(crate) const PATCHES: &[Patch] = &[
    once(
        "lib.rs",
        "pub use async_trait::async_trait;",
        "pub use async_trait::async_trait;\n\n/// What was cut and could not be said where it was.\npub mod cuts {\n    static CUTS: std::sync::Mutex<Vec<&'static str>> = std::sync::Mutex::new(Vec::new());\n\n    pub(crate) fn note(what: &'static str) {\n        let mut cuts = CUTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);\n        if !cuts.contains(&what) {\n            cuts.push(what);\n        }\n    }\n\n    /// Those since this was asked last.\n    pub fn take() -> Vec<&'static str> {\n        std::mem::take(&mut CUTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner))\n    }\n\n    /// How many of what was told are kept.\n    const MAX_TOLD: usize = 1000;\n\n    /// What a command cut or does not have, and told in words of its own.\n    #[derive(Debug, Clone, PartialEq, Eq)]\n    pub enum Told {\n        /// A limit.\n        Limit(String),\n        /// Something that is not there.\n        Lacks(String),\n    }\n\n    static TOLD: std::sync::Mutex<Vec<Told>> = std::sync::Mutex::new(Vec::new());\n\n    pub(crate) fn tell(what: Told) {\n        let mut told = TOLD.lock().unwrap_or_else(std::sync::PoisonError::into_inner);\n        if told.len() < MAX_TOLD {\n            told.push(what);\n        }\n    }\n\n    /// What was told since this was asked last.\n    pub fn take_told() -> Vec<Told> {\n        std::mem::take(&mut TOLD.lock().unwrap_or_else(std::sync::PoisonError::into_inner))\n    }\n}\n",
        SAID,
    ),
    once(
        "lib.rs",
        "pub use async_trait::async_trait;",
        "pub use async_trait::async_trait;\n\n/// Whether a command reads its standard input to the end.\npub(crate) fn drains_stdin(name: &str, args: &[String]) -> bool {\n    let names_no_file = || {\n        args.iter()\n            .all(|word| word.starts_with('-') || word.bytes().all(|byte| byte.is_ascii_digit()))\n    };\n    match name {\n        \"tee\" | \"tr\" | \"xargs\" | \"mapfile\" | \"readarray\" => true,\n        \"cat\" | \"sort\" | \"wc\" | \"uniq\" | \"rev\" | \"tac\" | \"nl\" | \"base64\" | \"md5sum\" | \"sha1sum\" | \"sha256sum\"\n        | \"head\" | \"tail\" => names_no_file(),\n        _ => false,\n    }\n}\n",
        "what one command has read of standard input is not there for the next",
    ),
    once(
        "interpreter/mod.rs",
        "                        Some(bytes[..used].into())\n                    } else {\n                        Some(ps.clone())\n                    }",
        "                        Some(bytes[..used].into())\n                    } else {\n                        let all = ps.clone();\n                        if crate::drains_stdin(name, &args) {\n                            self.pipeline_stdin = Some(crate::StreamData::new());\n                        }\n                        Some(all)\n                    }",
        "what one command has read of standard input is not there for the next",
    ),
    once(
        "interpreter/mod.rs",
        "    // Check for unavailable command hints first",
        "    return format!(\"{msg}\\n\");",
        "bash suggests nothing",
    ),
    once(
        "limits.rs",
        "const HARD_MAX_FUNCTION_DEPTH: usize = 16;",
        "const HARD_MAX_FUNCTION_DEPTH: usize = 2_000;",
        "the worker has a stack for them, and overflowing it ends the worker alone",
    ),
    once(
        "interpreter/mod.rs",
        "const MAX_CHILD_SHELL_DEPTH: usize = 8;",
        "const MAX_CHILD_SHELL_DEPTH: usize = 100;",
        RAISED,
    ),
    once(
        "interpreter/brace_expansion.rs",
        "const MAX_BRACE_RANGE: u64 = 10_000;",
        "const MAX_BRACE_RANGE: u64 = 1_000_000;",
        RAISED,
    ),
    once(
        "interpreter/brace_expansion.rs",
        "                return None; // Treat as literal — too large",
        "                crate::cuts::note(\"a brace range of more than 1000000 words\");\n                return None;",
        SAID,
    ),
    once(
        "interpreter/brace_expansion.rs",
        "const MAX_BRACE_EXPANSION_TOTAL: usize = 100_000;",
        "const MAX_BRACE_EXPANSION_TOTAL: usize = 1_000_001;",
        RAISED,
    ),
    once(
        "interpreter/brace_expansion.rs",
        "            || recursion_depth >= MAX_BRACE_EXPANSION_DEPTH\n        {",
        "            || recursion_depth >= MAX_BRACE_EXPANSION_DEPTH\n        {\n            crate::cuts::note(\"a brace expansion of more than 1000000 words\");",
        SAID,
    ),
    once(
        "parser/budget.rs",
        "const MAX_STATIC_BRACE_RANGE: u64 = 100_000;",
        "const MAX_STATIC_BRACE_RANGE: u64 = 1_000_000;",
        RAISED,
    ),
    once(
        "parser/budget.rs",
        "const MAX_LOOP_NESTING: usize = 10;",
        "const MAX_LOOP_NESTING: usize = 100;",
        RAISED,
    ),
    once(
        "parser/budget.rs",
        "const MAX_AST_COMMANDS: usize = 50_000;",
        "const MAX_AST_COMMANDS: usize = 5_000_000;",
        RAISED,
    ),
    once(
        "interpreter/expansion.rs",
        "MAX_EXPANSION_RESULT_BYTES: usize = 10 * 1024 * 1024;",
        "MAX_EXPANSION_RESULT_BYTES: usize = 1024 * 1024 * 1024;",
        RAISED,
    ),
    Patch {
        file: "interpreter/expansion.rs",
        old: "const MAX_GLOB_MATCH_CALLS: usize = 10_000;",
        times: 2,
        new: "const MAX_GLOB_MATCH_CALLS: usize = 10_000_000;",
        why: RAISED,
    },
    once(
        "interpreter/mod.rs",
        "const MAX_GLOB_STEPS: usize = 100_000;",
        "const MAX_GLOB_STEPS: usize = 100_000_000;",
        RAISED,
    ),
    once(
        "interpreter/glob.rs",
        "        if steps.get() == 0 {\n            return false;",
        "        if steps.get() == 0 {\n            crate::cuts::note(\"the steps of matching a pattern\");\n            return false;",
        SAID,
    ),
    Patch {
        file: "interpreter/glob.rs",
        old: "        if depth >= Self::MAX_GLOB_DEPTH {\n            return false;",
        times: 2,
        new: "        if depth >= Self::MAX_GLOB_DEPTH {\n            crate::cuts::note(\"the depth of a pattern\");\n            return false;",
        why: SAID,
    },
    once(
        "builtins/limits.rs",
        "FIND_MAX_OUTPUT_BYTES: usize = 1_048_576;",
        "FIND_MAX_OUTPUT_BYTES: usize = 1 << 30;",
        RAISED,
    ),
    once(
        "builtins/limits.rs",
        "EXPAND_MAX_OUTPUT_BYTES: usize = 1_048_576;",
        "EXPAND_MAX_OUTPUT_BYTES: usize = 1 << 30;",
        RAISED,
    ),
    once(
        "builtins/limits.rs",
        "NUMFMT_MAX_OUTPUT_BYTES: usize = 1_048_576;",
        "NUMFMT_MAX_OUTPUT_BYTES: usize = 1 << 30;",
        RAISED,
    ),
    once(
        "builtins/limits.rs",
        "SED_MAX_CYCLE_STEPS: usize = 1_000;",
        "SED_MAX_CYCLE_STEPS: usize = 100_000_000;",
        RAISED,
    ),
    once(
        "builtins/limits.rs",
        "SLEEP_MAX_SECONDS: f64 = 60.0;",
        "SLEEP_MAX_SECONDS: f64 = 1e9;",
        "a sleep that is cut is told by nothing",
    ),
    once(
        "builtins/limits.rs",
        "TIMEOUT_MAX_SECONDS: u64 = 300;",
        "TIMEOUT_MAX_SECONDS: u64 = 1_000_000_000;",
        "a time that is cut is told by nothing",
    ),
    once(
        "builtins/limits.rs",
        "SEQ_MAX_LINES: usize = 100_000;",
        "SEQ_MAX_LINES: usize = 100_000_000;",
        RAISED,
    ),
    once(
        "builtins/limits.rs",
        "SEQ_MAX_OUTPUT_BYTES: usize = 1_048_576;",
        "SEQ_MAX_OUTPUT_BYTES: usize = 1 << 30;",
        RAISED,
    ),
    once(
        "builtins/limits.rs",
        "AWK_MAX_CALL_DEPTH: usize = 64;",
        "AWK_MAX_CALL_DEPTH: usize = 1_000;",
        "the worker has a stack for them",
    ),
    once(
        "builtins/limits.rs",
        "AWK_MAX_OUTPUT_BYTES: usize = 10_000_000;",
        "AWK_MAX_OUTPUT_BYTES: usize = 1 << 30;",
        RAISED,
    ),
    once(
        "builtins/limits.rs",
        "AWK_MAX_GETLINE_FILE_BYTES: usize = 10_000_000;",
        "AWK_MAX_GETLINE_FILE_BYTES: usize = 1 << 30;",
        RAISED,
    ),
    once(
        "builtins/limits.rs",
        "AWK_MAX_GETLINE_CACHE_BYTES: usize = 10_000_000;",
        "AWK_MAX_GETLINE_CACHE_BYTES: usize = 1 << 30;",
        RAISED,
    ),
    once(
        "builtins/limits.rs",
        "    let mut result = crate::interpreter::ExecResult::err(\n        format!(\"{cmd}: {what} limit ({limit}) exceeded; output truncated\\n\"),",
        "    crate::cuts::tell(crate::cuts::Told::Limit(format!(\"{cmd}: {what} of {limit}\")));\n    let mut result = crate::interpreter::ExecResult::err(\n        format!(\"{cmd}: {what} limit ({limit}) exceeded; output truncated\\n\"),",
        TOLD,
    ),
    once(
        "builtins/shuf.rs",
        "                return Ok(ExecResult::err(\n                    format!(\"shuf: --{unsupported} not yet",
        "                crate::cuts::tell(crate::cuts::Told::Lacks(format!(\"shuf --{unsupported}\")));\n                return Ok(ExecResult::err(\n                    format!(\"shuf: --{unsupported} not yet",
        TOLD,
    ),
    once(
        "builtins/truncate.rs",
        "            return Ok(ExecResult::err(\n                \"truncate: --io-blocks not yet",
        "            crate::cuts::tell(crate::cuts::Told::Lacks(\"truncate --io-blocks\".to_string()));\n            return Ok(ExecResult::err(\n                \"truncate: --io-blocks not yet",
        TOLD,
    ),
    once(
        "builtins/ls/list.rs",
        "            return Ok(ExecResult::err(\n                format!(\n                    \"ls: option(s) not yet",
        "            crate::cuts::tell(crate::cuts::Told::Lacks(format!(\"ls --{}\", unsupported.join(\", --\"))));\n            return Ok(ExecResult::err(\n                format!(\n                    \"ls: option(s) not yet",
        TOLD,
    ),
    once(
        "builtins/ls/list.rs",
        "                    return Ok(ExecResult::err(\n                        format!(\"ls: quoting style '{style}' not yet",
        "                    crate::cuts::tell(crate::cuts::Told::Lacks(format!(\"ls --quoting-style={style}\")));\n                    return Ok(ExecResult::err(\n                        format!(\"ls: quoting style '{style}' not yet",
        TOLD,
    ),
];
