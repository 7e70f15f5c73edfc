//! Where trusted names lead: by links, by the files of a repository, by settings.

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use offleash_core::protected::{folded_names, leads_to_protected};
use offleash_core::text::Text;
use offleash_core::trusted::TrustedContents;

use super::forms::{EntryForms, lexical, names_of};
use super::marks::MarkTree;
use super::{LayerPath, TrustedPaths};
use crate::change::shown_path;
use crate::node::NodeKind;

/// How many names of links and settings are walked, in all.
const MAX_STEPS: usize = 200_000;
/// How many entries are looked at by names of their own: those above protected names, and files of repositories. All others are
/// looked at once.
const MAX_NAMED: usize = if cfg!(test) { 1000 } else { 10_000 };
/// As the kernel has it: links on the way of one name (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// How often one of those may go on where a link, a file of a repository or an include leads.
const MAX_TURNS: usize = 5;

/// What holds no repository in a repository.
const DATA_OF_GIT: [&str; 5] = ["objects", "refs", "logs", "info", "lfs"];

/// By what an entry is trusted.
#[derive(Debug, Clone)]
pub(super) enum TrustReason {
    /// A protected name, or one beneath which names are protected, which leads there; and the directory in which what
    /// it names runs.
    Name { name: LayerPath, directory: LayerPath },
    /// Something that is said of it. Configuration of git is read as such, with that directory.
    Said {
        why: Rc<str>,
        configures: Option<LayerPath>,
    },
}

#[derive(Debug)]
struct FollowTask {
    at: LayerPath,
    by: TrustReason,
    turns: usize,
}

/// What was looked at, and as what: a repository's files mean something else wherever they are found from.
#[derive(Debug, PartialEq, Eq, Hash)]
struct SeenEntry {
    at: LayerPath,
    contents: Option<TrustedContents>,
    name: Option<LayerPath>,
    directory: Option<LayerPath>,
}

/// Where a path leads within the layers.
#[derive(Debug, Default)]
pub(super) struct ResolvedWay {
    /// Links on it.
    pub(super) links: Vec<LayerPath>,
    /// Where it ends, if that exists or not.
    pub(super) ends: Vec<LayerPath>,
}

#[derive(Debug)]
pub(super) struct TrustFollower<'a> {
    pub(super) forms: EntryForms<'a>,
    pub(super) roots: Vec<PathBuf>,
    pub(super) home: Option<&'a Path>,
    marks: MarkTree,
    /// Directories in which repositories have their files.
    pub(super) tops: HashSet<LayerPath>,
    waiting: VecDeque<FollowTask>,
    done: HashSet<SeenEntry>,
    steps: usize,
    named: usize,
}

impl<'a> TrustFollower<'a> {
    pub(super) fn new(forms: EntryForms<'a>, home: Option<&'a Path>) -> Self {
        Self {
            forms,
            roots: forms.around.trees.iter().map(|trees| trees.root.clone()).collect(),
            home,
            marks: MarkTree::default(),
            tops: HashSet::new(),
            waiting: VecDeque::new(),
            done: HashSet::new(),
            steps: 0,
            named: 0,
        }
    }

    /// Adds names by which things are trusted where they are.
    pub(super) fn starts(&mut self, places: &[LayerPath]) {
        for place in places {
            let by = TrustReason::Name {
                name: place.clone(),
                directory: place.parent(),
            };
            self.push(place.clone(), by, 0);
        }
    }

    pub(super) fn finish(mut self) -> TrustedPaths {
        self.work();
        self.of_the_users_configuration();
        self.work();
        TrustedPaths {
            too_much: self.is_too_much(),
            marks: self.marks,
        }
    }

    fn work(&mut self) {
        while let Some(task) = self.waiting.pop_front() {
            if self.is_too_much() {
                return;
            }
            self.look(&task);
        }
    }

    fn is_too_much(&self) -> bool {
        self.steps >= MAX_STEPS || self.named >= MAX_NAMED
    }

    /// Whether another name may be walked.
    fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_add(1);
        self.steps < MAX_STEPS
    }

    pub(super) fn push(&mut self, at: LayerPath, by: TrustReason, turns: usize) {
        // What is protected as a whole is looked at once, whatever it is called.
        let (contents, name, runs_in) = match &by {
            TrustReason::Name { name, directory } => {
                let contents = TrustedContents::of(&self.whole_name(name));
                let is_gits = matches!(
                    contents,
                    Some(TrustedContents::GitConfig | TrustedContents::GitFile | TrustedContents::GitCommon)
                );
                let named = (is_gits || self.is_above_protected(name)).then(|| (name.clone(), directory.clone()));
                let (name, directory) = named.unzip();
                (contents, name, directory)
            }
            TrustReason::Said { configures, .. } => (None, None, configures.clone()),
        };
        let is_named = runs_in.is_some();
        if is_named && (turns > MAX_TURNS || self.is_too_much()) {
            return;
        }
        self.named += usize::from(is_named);
        let seen = SeenEntry {
            at: at.clone(),
            contents,
            name,
            directory: runs_in,
        };
        if self.done.insert(seen) {
            self.waiting.push_back(FollowTask { at, by, turns });
        }
    }

    fn look(&mut self, task: &FollowTask) {
        let (mut links, mut kinds) = (Vec::new(), Vec::new());
        for node in self.forms.of(&task.at) {
            kinds.push(node.kind);
            links.extend(node.target.filter(|_| node.kind == NodeKind::Symlink));
        }
        for target in links {
            self.mark_link(&task.at, &task.by);
            let from = task.at.parent();
            self.lead(&from, target.as_os_str(), &task.by, task.turns + 1);
        }
        if kinds.contains(&NodeKind::Directory) {
            self.look_in(task);
        }
        if kinds.contains(&NodeKind::File) {
            self.read(&task.at, &task.by, task.turns);
        }
    }

    fn look_in(&mut self, task: &FollowTask) {
        if let TrustReason::Name { name, directory } = &task.by {
            let last = folded_names(name.path.as_os_str().as_bytes()).pop();
            let is_layer = name.path.as_os_str().is_empty();
            if is_layer || last.is_some_and(|last| last == b".git") {
                self.tops.insert(directory.clone());
            }
        }
        let children = self.forms.children(&task.at);
        let has = |name: &str| children.contains_key(Path::new(name));
        let is_repository = has("HEAD") && has("objects") && has("refs");
        for (name, kinds) in &children {
            // `modules/**` would have each of the many directories of a repository looked at.
            if is_repository && DATA_OF_GIT.iter().any(|data| name == Path::new(data)) {
                continue;
            }
            let by = match &task.by {
                TrustReason::Name { name: above, directory } => TrustReason::Name {
                    name: above.join(name),
                    directory: directory.clone(),
                },
                said @ TrustReason::Said { .. } => said.clone(),
            };
            let (is_trusted, is_read) = match &by {
                TrustReason::Name { name, .. } => {
                    let is_above = self.is_above_protected(name);
                    (
                        is_above || self.is_protected(name),
                        TrustedContents::of(&self.whole_name(name)).is_some(),
                    )
                }
                TrustReason::Said { .. } => (true, false),
            };
            if is_trusted && (kinds.directory || kinds.link || kinds.file && is_read) {
                self.push(task.at.join(name), by, task.turns);
            }
        }
    }

    /// Marks and follows what a path leads to that trusted `by` names, from the directory `from`.
    pub(super) fn lead(&mut self, from: &LayerPath, path: &OsStr, by: &TrustReason, turns: usize) {
        let way = self.way(from, path.as_bytes());
        for link in &way.links {
            self.mark_link(link, by);
        }
        for end in way.ends {
            match by {
                TrustReason::Name { name, .. } if *name != end => self.marks.name(&end, name),
                TrustReason::Name { .. } => {}
                TrustReason::Said { why, .. } => self.marks.whole(&end, why),
            }
            self.push(end, by.clone(), turns);
        }
    }

    pub(super) fn mark(&mut self, place: &LayerPath, why: &Rc<str>) {
        self.marks.whole(place, why);
    }

    /// A link on the way to what is trusted; one with a protected name says so itself.
    pub(super) fn mark_link(&mut self, link: &LayerPath, by: &TrustReason) {
        let why = match by {
            TrustReason::Said { why, .. } => why.clone(),
            TrustReason::Name { name, .. } => {
                let shown = self.shown(name);
                match self.rule(name) {
                    Some(_) if name == link => return,
                    Some(rule) => format!("`{shown}` leads here: {rule}").into(),
                    None => format!("`{shown}` leads through here, and names beneath it are protected").into(),
                }
            }
        };
        self.marks.whole(link, &why);
    }

    /// Where `path` leads from the directory `from`, in every form of what is on the way.
    pub(super) fn way(&mut self, from: &LayerPath, path: &[u8]) -> ResolvedWay {
        let mut way = ResolvedWay::default();
        let owned = |names: Vec<&OsStr>| -> Vec<OsString> { names.into_iter().rev().map(OsStr::to_owned).collect() };
        // The names that are left, the next one last.
        let mut open: Vec<(LayerPath, Vec<OsString>, usize)> = Vec::new();
        match path.first() {
            None => return way,
            Some(b'/') => open.extend(
                self.enter(Path::new(OsStr::from_bytes(path)))
                    .map(|(at, left)| (at, left, 0)),
            ),
            Some(_) => open.push((from.clone(), owned(names_of(path)), 0)),
        }
        let mut seen = HashSet::new();
        while let Some((at, mut left, links)) = open.pop() {
            if !self.step() {
                return way;
            }
            let Some(name) = left.pop() else {
                way.ends.push(at);
                continue;
            };
            if name == ".." {
                if at.path.as_os_str().is_empty() {
                    let above = self.roots[at.layer].parent().unwrap_or(Path::new("/"));
                    let whole = above.join(left.iter().rev().collect::<PathBuf>());
                    open.extend(self.enter(&whole).map(|(at, left)| (at, left, links + 1)));
                } else {
                    open.push((at.parent(), left, links));
                }
                continue;
            }
            let next = self.inner_layer(at.join(&name));
            let mut is_other = false;
            let nodes: Vec<_> = self.forms.of(&next).collect();
            for node in &nodes {
                let Some(target) = node.target.as_ref().filter(|_| node.kind == NodeKind::Symlink) else {
                    is_other = true;
                    continue;
                };
                // Each copies what is left.
                self.steps = self.steps.saturating_add(left.len() / 8);
                if links >= MAX_LINKS || !seen.insert((next.clone(), left.clone(), target.clone())) {
                    continue;
                }
                if !way.links.contains(&next) {
                    way.links.push(next.clone());
                }
                let target = target.as_os_str().as_bytes();
                if target.first() == Some(&b'/') {
                    let whole = Path::new(OsStr::from_bytes(target)).join(left.iter().rev().collect::<PathBuf>());
                    open.extend(self.enter(&whole).map(|(at, left)| (at, left, links + 1)));
                } else {
                    let mut rest = left.clone();
                    rest.extend(owned(names_of(target)));
                    open.push((at.clone(), rest, links + 1));
                }
            }
            if is_other || nodes.is_empty() {
                open.push((next, left, links));
            }
        }
        way
    }

    /// The layer that an absolute path enters, and the names that are left there, the next one last. Outside of the
    /// layers no link is looked at.
    fn enter(&self, path: &Path) -> Option<(LayerPath, Vec<OsString>)> {
        let names = names_of(path.as_os_str().as_bytes());
        let mut outside = PathBuf::from("/");
        for (index, name) in names.iter().enumerate() {
            if *name == ".." {
                outside.pop();
            } else {
                outside.push(name);
            }
            if let Some(layer) = self.roots.iter().position(|root| *root == outside) {
                let left = names[index + 1..].iter().rev().map(|name| (*name).to_owned());
                return Some((LayerPath::new(layer, ""), left.collect()));
            }
        }
        None
    }

    /// A place of the workspace at which another layer is lies in that one.
    fn inner_layer(&self, place: LayerPath) -> LayerPath {
        let whole = self.roots[place.layer].join(&place.path);
        match self.roots.iter().position(|root| *root == whole) {
            Some(layer) => LayerPath::new(layer, ""),
            None => place,
        }
    }

    /// A path of settings: relative, of the home directory, or absolute.
    pub(super) fn expanded(&self, path: &[u8]) -> Option<PathBuf> {
        match path.strip_prefix(b"~/") {
            Some(rest) => Some(lexical(&self.home?.join(OsStr::from_bytes(rest)))),
            None => Some(PathBuf::from(OsStr::from_bytes(path))),
        }
    }

    pub(super) fn rule(&self, name: &LayerPath) -> Option<String> {
        let root = self.roots.get(name.layer)?;
        let protection = self.forms.around.protection;
        protection.rule(name.layer, root, &name.path, false)
    }

    fn is_protected(&self, name: &LayerPath) -> bool {
        self.rule(name).is_some()
    }

    fn is_above_protected(&self, name: &LayerPath) -> bool {
        leads_to_protected(&self.whole_name(name))
    }

    /// The name as protected names are compared with it: in the workspace those above it do not count.
    pub(super) fn whole_name(&self, name: &LayerPath) -> Vec<u8> {
        match self.roots.get(name.layer) {
            Some(root) if name.layer > 0 => root.join(&name.path).into_os_string().into_encoded_bytes(),
            _ => name.path.as_os_str().as_bytes().to_vec(),
        }
    }

    pub(super) fn shown(&self, place: &LayerPath) -> Text {
        Text::from(shown_path(&self.roots, place.layer, &place.path))
    }
}
