//! Which changes are not applied unless named: the built-in names and the owner's own patterns.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use offleash_core::path_rules::{PathAccess, PathPattern, PatternAnchors, rule_text};
use offleash_core::protected::{protected_non_directory_rule, protected_rule};
use offleash_core::text::Text;

use crate::RunError;
use crate::run_file::RunFile;

/// The rules of one run.
#[derive(Debug)]
pub(crate) struct ProtectionRules {
    patterns: Vec<PathPattern>,
    workspace: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl ProtectionRules {
    pub(crate) fn of(file: &RunFile) -> Result<Self, RunError> {
        let workspace = file.layers.first().map(|layer| layer.root.as_path().to_owned());
        let home = file.home.as_ref().map(|home| home.as_path().to_owned());
        Ok(Self::new(parse(&file.protect)?, workspace, home))
    }

    /// The rules of a workspace that is in no run.
    pub(crate) fn new(patterns: Vec<PathPattern>, workspace: Option<PathBuf>, home: Option<PathBuf>) -> Self {
        Self {
            patterns,
            workspace,
            home,
        }
    }

    /// Whether the owner has patterns.
    pub(crate) fn has_patterns(&self) -> bool {
        !self.patterns.is_empty()
    }

    /// The rule that protects `path` in the layer above `root`, where a directory or something else is to be.
    ///
    /// In the workspace, names above it do not count. Another layer is there for what it is, a git directory outside
    /// the workspace, so that its own name counts.
    pub(crate) fn rule(&self, layer: usize, root: &Path, path: &Path, becomes_directory: bool) -> Option<String> {
        let whole = root.join(path);
        let named = if layer == 0 { path } else { &whole }.as_os_str().as_bytes();
        let builtin = if becomes_directory {
            protected_rule(named)
        } else {
            protected_non_directory_rule(named)
        };
        if let Some(name) = builtin {
            return Some(format!("protected name {}: {}", name.pattern, name.why));
        }
        let anchors = PatternAnchors {
            workspace: self.workspace.as_deref(),
            home: self.home.as_deref(),
        };
        let pattern = self.patterns.iter().find(|pattern| pattern.covers(&whole, anchors))?;
        Some(rule_text(PathAccess::Protected, pattern))
    }
}

/// The patterns that `texts` spell.
pub(crate) fn parse(texts: &[Text]) -> Result<Vec<PathPattern>, RunError> {
    let parse = |text: &Text| {
        PathPattern::parse(text.as_bytes()).map_err(|source| RunError::Pattern {
            pattern: text.clone(),
            source,
        })
    };
    texts.iter().map(parse).collect()
}
