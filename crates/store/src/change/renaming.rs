//! What is left in a layer of a directory that was being renamed when everything ended: the sandbox's worker was killed in
//! the middle (`offleash_protocol::rename`).
//!
//! A copy that has not got its name yet is nothing. A link to an old name without such a copy says that the name is no more,
//! whatever may be left of it. Both are the sandbox's word, which may be about what it could not have removed: so what a link
//! says is shown, and applied only when it is named.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use offleash_protocol::rename::{COPY, GONE, token};
use rustix::io::Errno;

use crate::node::{NodeKind, TreeNode};
use crate::tree::node_at;

/// Takes the names that are in the way only while something is renamed out of `names`, those in the directory `path`; answers
/// the old names that are no more.
pub(crate) fn take_out(path: &Path, upper: &OwnedFd, names: &mut Vec<PathBuf>) -> Result<Vec<PathBuf>, Errno> {
    let token_of = |prefix, name: &Path| token(prefix, name.as_os_str().as_bytes());
    let is_ours = |name: &PathBuf| token_of(COPY, name).is_some() || token_of(GONE, name).is_some();
    if !names.iter().any(is_ours) {
        return Ok(Vec::new());
    }
    let (mut copies, mut links, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for name in std::mem::take(names) {
        let node = match is_ours(&name) {
            true => node_at(upper, name.as_os_str())?,
            false => None,
        };
        match (node, token_of(COPY, &name), token_of(GONE, &name)) {
            (
                Some(TreeNode {
                    kind: NodeKind::Directory,
                    ..
                }),
                Some(token),
                _,
            ) => copies.push(token),
            (
                Some(TreeNode {
                    target: Some(target), ..
                }),
                _,
                Some(token),
            ) => links.push((token, target)),
            _ => others.push(name),
        }
    }
    *names = others;
    links.retain(|(token, _)| !copies.contains(token));
    let gone = links.iter().filter_map(|(_, target)| below(path, target.as_ref()));
    Ok(gone.collect())
}

/// Where a link leads, if that is below the layer's directory.
fn below(directory: &Path, target: &Path) -> Option<PathBuf> {
    let mut path = directory.to_owned();
    for part in target.components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => path.pop().then_some(())?,
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!path.as_os_str().is_empty()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_only_to_what_is_below_the_layer() {
        let leads = |from: &str, to: &str| below(Path::new(from), Path::new(to));
        assert_eq!(leads("", "pkg"), Some("pkg".into()));
        assert_eq!(leads("a/b", "../c/pkg"), Some("a/c/pkg".into()));
        for (from, to) in [("", "../x"), ("a", "../../x"), ("a", "/etc"), ("a", ".."), ("", "")] {
            assert_eq!(leads(from, to), None, "{from} {to}");
        }
    }
}
