//! What the contents of trusted files name.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use offleash_core::trusted::{GIT_HOOKS, GitNames, NamedTarget, TrustedContents, git_names, named_programs, words};

use super::LayerPath;
use super::follow::{TrustFollower, TrustReason};
use crate::node::NodeKind;

/// How many words of one command line are looked at.
const MAX_WORDS: usize = 1000;

/// Where a configuration of git stands, and where what it names is looked for.
struct ConfigPlace<'a> {
    /// How it is called, for messages.
    shown: String,
    /// The directory it is in, under each name that it has; none for one outside of the layers.
    around: Vec<LayerPath>,
    /// Where commands run.
    bases: Vec<LayerPath>,
    directory: &'a LayerPath,
    turns: usize,
}

impl TrustFollower<'_> {
    /// Reads a trusted file, if it may name something.
    pub(super) fn read(&mut self, at: &LayerPath, by: &TrustReason, turns: usize) {
        let (contents, directory) = match by {
            TrustReason::Name { name, directory } => (TrustedContents::of(&self.whole_name(name)), directory.clone()),
            TrustReason::Said {
                configures: Some(directory),
                ..
            } => (Some(TrustedContents::GitConfig), directory.clone()),
            TrustReason::Said { configures: None, .. } => (None, at.parent()),
        };
        let Some(contents) = contents else { return };
        for text in self.forms.contents(at) {
            match (&text, contents) {
                (Ok(text), TrustedContents::GitConfig) => self.git_config(at, by, &directory, text, turns),
                (Ok(text), TrustedContents::GitFile) => {
                    if let Some(target) = text.strip_prefix(b"gitdir:") {
                        self.repository(at, &directory, target.trim_ascii(), turns);
                    }
                }
                (Ok(text), TrustedContents::GitCommon) => self.repository(at, &directory, text.trim_ascii(), turns),
                (Ok(text), TrustedContents::Settings(form)) => {
                    for (key, value) in named_programs(form, text) {
                        let why = format!("`{key}` in `{}` leads here", self.shown(at)).into();
                        self.command(&value, &why, &[directory.clone(), at.parent()]);
                    }
                }
                (Err(why), TrustedContents::GitConfig) => {
                    let shown = self.shown(at);
                    let why = format!("`{shown}` cannot be read ({why}), so that what it names is not known").into();
                    self.mark(&directory, &why);
                }
                (Err(_), _) => {}
            }
        }
    }

    /// What a file of a repository says of where the rest of it is.
    fn repository(&mut self, at: &LayerPath, directory: &LayerPath, target: &[u8], turns: usize) {
        let by = TrustReason::Name {
            name: directory.join(".git"),
            directory: directory.clone(),
        };
        self.lead(&at.parent(), OsStr::from_bytes(target), &by, turns + 1);
    }

    fn git_config(&mut self, at: &LayerPath, by: &TrustReason, directory: &LayerPath, text: &[u8], turns: usize) {
        let mut around = vec![at.parent()];
        if let TrustReason::Name { name, .. } = by {
            // Paths are relative to the name by which git opens it.
            let other = name.parent();
            around.extend(
                self.way(&LayerPath::new(other.layer, ""), other.path.as_os_str().as_bytes())
                    .ends,
            );
        }
        around.dedup();
        let standing = ConfigPlace {
            shown: self.shown(at).to_string(),
            bases: [&[directory.clone()][..], &around].concat(),
            around,
            directory,
            turns,
        };
        self.git_settings(standing, &git_names(text));
    }

    fn git_settings(&mut self, mut standing: ConfigPlace<'_>, settings: &[GitNames]) {
        for setting in settings {
            if let NamedTarget::Worktree(path) = &setting.what {
                for around in standing.around.clone() {
                    standing.bases.extend(self.way(&around, path).ends);
                }
            }
        }
        let mut seen = BTreeSet::new();
        standing
            .bases
            .retain(|base| seen.insert((base.layer, base.path.clone())));
        for setting in settings {
            let why: Rc<str> = format!("`{}` in `{}` leads here", setting.key, standing.shown).into();
            match &setting.what {
                NamedTarget::Worktree(_) => {}
                NamedTarget::Include(path) => {
                    let by = TrustReason::Said {
                        why,
                        configures: Some(standing.directory.clone()),
                    };
                    let from = if standing.around.is_empty() {
                        &standing.bases
                    } else {
                        &standing.around
                    };
                    self.lead_from(from, path, &by, standing.turns + 1);
                }
                NamedTarget::Hooks(path) => self.hooks(path, &why, &standing),
                NamedTarget::Path(path) => {
                    let by = TrustReason::Said { why, configures: None };
                    self.lead_from(&standing.bases, path, &by, standing.turns + 1);
                }
                NamedTarget::Command(text) => self.command(text, &why, &standing.bases),
            }
        }
    }

    fn lead_from(&mut self, bases: &[LayerPath], path: &[u8], by: &TrustReason, turns: usize) {
        let Some(path) = self.expanded(path) else { return };
        for base in bases {
            self.lead(base, path.as_os_str(), by, turns);
        }
    }

    /// A directory of hooks; where it holds the whole working tree, its hooks by their names.
    fn hooks(&mut self, path: &[u8], why: &Rc<str>, standing: &ConfigPlace<'_>) {
        let Some(path) = self.expanded(path) else { return };
        let by = TrustReason::Said {
            why: why.clone(),
            configures: None,
        };
        for base in &standing.bases {
            let way = self.way(base, path.as_os_str().as_bytes());
            for link in &way.links {
                self.mark_link(link, &by);
            }
            for end in way.ends {
                let holds = |place: &LayerPath| place.layer == end.layer && place.path.starts_with(&end.path);
                if standing.bases.iter().any(holds) {
                    for hook in GIT_HOOKS {
                        self.lead(&end, OsStr::new(hook), &by, standing.turns + 1);
                    }
                } else {
                    self.mark(&end, why);
                    self.push(end, by.clone(), standing.turns + 1);
                }
            }
        }
    }

    /// Files that the words of a command line name. A directory is none: a command that names one may as well read
    /// what it is there to build.
    fn command(&mut self, text: &[u8], why: &Rc<str>, bases: &[LayerPath]) {
        let by = TrustReason::Said {
            why: why.clone(),
            configures: None,
        };
        for word in words(text).take(MAX_WORDS) {
            let whole = self.expanded(word);
            // What follows a variable may belong to any of them.
            let relative = word.strip_prefix(b"/").unwrap_or(word);
            for base in bases {
                for path in [whole.as_deref().map(Path::as_os_str), Some(OsStr::from_bytes(relative))] {
                    let Some(path) = path else { continue };
                    let way = self.way(base, path.as_bytes());
                    let is_file = |end: &LayerPath| self.forms.of(end).any(|node| node.kind == NodeKind::File);
                    let (files, _): (Vec<LayerPath>, Vec<LayerPath>) = way.ends.into_iter().partition(is_file);
                    if files.is_empty() {
                        continue;
                    }
                    for link in &way.links {
                        self.mark_link(link, &by);
                    }
                    for file in &files {
                        self.mark(file, why);
                    }
                }
            }
        }
    }

    /// What the configuration of the user and of the machine names in repositories here, and names of the home
    /// directory that lead here.
    pub(super) fn of_the_users_configuration(&mut self) {
        let outside = super::outside::configuration(self.home);
        let tops: Vec<LayerPath> = self.tops.iter().cloned().collect();
        for (file, settings) in &outside {
            for top in &tops {
                let standing = ConfigPlace {
                    shown: file.to_string(),
                    around: Vec::new(),
                    bases: vec![top.clone()],
                    directory: top,
                    turns: 0,
                };
                self.git_settings(standing, settings);
            }
        }
        let Some(home) = self.home.filter(|home| !self.roots.iter().any(|root| root == home)) else {
            return;
        };
        for (name, target, rule) in super::outside::links(home) {
            let by = TrustReason::Said {
                why: format!("`{name}` leads here: {rule}").into(),
                configures: None,
            };
            let root = LayerPath::new(0, "");
            self.lead(&root, target.as_os_str(), &by, 0);
        }
    }
}
