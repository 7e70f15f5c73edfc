//! The policy file `offleash.toml`: typed, every key known, errors with line and column.
