//! Nothing: this package is there for its dependencies, see its manifest.
