//! What the contents of protected files name: programs and files that run, or are trusted, because such a file says so.
//!
//! Pure: bytes to words. Whether a word leads into a workspace, and where, is the caller's to find out (`store`). What is
//! read here was perhaps written by a sandbox: nothing fails, and what cannot be understood names nothing.
//!
//! Not here: what a named program itself goes on to start or read (a script's commands, a Makefile, a module).

mod git_config;
mod settings;
mod words;

pub use git_config::{GitNames, NamedTarget, git_names};
pub use settings::{SettingsForm, named_programs};
pub use words::words;

use crate::protected::{folded_names, protected_non_directory_rule};

/// Hooks that git runs by name, for where their directory holds other things as well (githooks(5)).
pub const GIT_HOOKS: [&str; 28] = [
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "p4-prepare-changelist",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-receive",
    "post-rewrite",
    "post-update",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "pre-receive",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
];

/// How the contents of a protected file are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrustedContents {
    /// Configuration of git ([`git_names`]).
    GitConfig,
    /// `gitdir: PATH`, in place of a repository.
    GitFile,
    /// The path of the directory that a worktree has in common with others.
    GitCommon,
    /// Settings that name programs ([`named_programs`]).
    Settings(SettingsForm),
}

impl TrustedContents {
    /// How the file `path` is read that is no directory; `None` if nothing is looked for in it.
    pub fn of(path: &[u8]) -> Option<Self> {
        let rule = protected_non_directory_rule(path)?;
        let names = folded_names(path);
        let last = names.last()?.as_slice();
        let is_configuration = rule.why == "git runs commands that its configuration names";
        match last {
            b".git" => Some(Self::GitFile),
            b"commondir" => Some(Self::GitCommon),
            b"config" | b"config.worktree" | b".gitconfig" if is_configuration => Some(Self::GitConfig),
            _ => SettingsForm::of(&names).map(Self::Settings),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_what_their_names_say() {
        for (path, contents) in [
            (".git/config", Some(TrustedContents::GitConfig)),
            ("a/.GIT/Config", Some(TrustedContents::GitConfig)),
            (".git/modules/a/b/config", Some(TrustedContents::GitConfig)),
            (".git/worktrees/a/config.worktree", Some(TrustedContents::GitConfig)),
            (".gitconfig", Some(TrustedContents::GitConfig)),
            (".config/git/config", Some(TrustedContents::GitConfig)),
            ("sub/.git", Some(TrustedContents::GitFile)),
            (".git/worktrees/a/commondir", Some(TrustedContents::GitCommon)),
            (".npmrc", Some(TrustedContents::Settings(SettingsForm::Lines))),
            (
                ".cargo/config.toml",
                Some(TrustedContents::Settings(SettingsForm::Toml)),
            ),
            (".cargo/config", Some(TrustedContents::Settings(SettingsForm::Toml))),
            (".mcp.json", Some(TrustedContents::Settings(SettingsForm::Json))),
            (
                ".codex/config.toml",
                Some(TrustedContents::Settings(SettingsForm::Toml)),
            ),
            (
                ".claude/settings.json",
                Some(TrustedContents::Settings(SettingsForm::Json)),
            ),
            (
                ".gemini/settings.json",
                Some(TrustedContents::Settings(SettingsForm::Json)),
            ),
            (
                ".cursor/hooks.json",
                Some(TrustedContents::Settings(SettingsForm::Json)),
            ),
            (
                ".devcontainer/devcontainer.json",
                Some(TrustedContents::Settings(SettingsForm::Json)),
            ),
            (".git/hooks/config", None),
            ("config", None),
            (".envrc", None),
            (".bashrc", None),
        ] {
            assert_eq!(TrustedContents::of(path.as_bytes()), contents, "{path}");
        }
    }
}
