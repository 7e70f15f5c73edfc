//! Loads code that wasmtime made of WebAssembly before.
//!
//! Whoever says what is loaded says what is executed: nothing in such bytes is checked but that this version of wasmtime made
//! them for this machine. It is done in a process that is locked away, and nowhere else.

use std::fs::File;
use std::os::fd::OwnedFd;

use wasmtime::component::Component;
use wasmtime::{Engine, Error, Module};

/// Bytes that a process of ours serialised and kept where its owner alone writes, and whose digest was compared since.
#[derive(Debug, Clone, Copy)]
pub struct OwnCode<'a>(&'a [u8]);

impl<'a> OwnCode<'a> {
    /// The caller answers for what the type says: they are what a supervisor gave its worker.
    pub fn of_supervisor(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Loads a core module.
    ///
    /// # Errors
    /// When another version, another configuration or another machine made it, or it is a component.
    pub fn load_module(self, engine: &Engine) -> Result<Module, Error> {
        // SAFETY: `Module::serialize` made these bytes and nobody else has written them, for which whoever made `self` answers.
        unsafe { Module::deserialize(engine, self.0) }
    }

    /// Loads a component.
    ///
    /// # Errors
    /// As [`Self::load_module`].
    pub fn load_component(self, engine: &Engine) -> Result<Component, Error> {
        // SAFETY: as above, by `Component::serialize`.
        unsafe { Component::deserialize(engine, self.0) }
    }
}

/// A file of such code, which nobody writes to any more.
#[derive(Debug)]
pub struct OwnCodeFile(File);

impl OwnCodeFile {
    /// The caller answers for what the type says: it is what a supervisor handed its worker.
    pub fn of_supervisor(file: OwnedFd) -> Self {
        Self(file.into())
    }

    /// Maps the file, and loads the core module in it. Its memory begins as a private copy of pages of the file.
    ///
    /// # Errors
    /// As [`OwnCode::load_module`]; or when the file cannot be mapped.
    pub fn load_module(self, engine: &Engine) -> Result<Module, Error> {
        // SAFETY: as above; who keeps such files writes another one rather than to one that is there.
        unsafe { Module::deserialize_open_file(engine, self.0) }
    }
}
