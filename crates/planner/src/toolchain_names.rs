//! The names that toolchains are asked for by.

/// Every name.
pub(crate) const TOOLCHAIN_NAMES: [&str; 11] = [
    "pyenv", "nvm", "uv", "cargo", "conda", "asdf", "mise", "volta", "go", "deno", "bun",
];
