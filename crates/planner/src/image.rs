//! A root that is an image: its users, its own files, and what its layers have where.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use offleash_core::plan::{Entry, Node, User};
use offleash_core::spec::{IdChoice, ImageSpec, RootChoice};

use super::git_system;
use super::system::{system, user};
use super::view::PlanView;

/// The users of a sandbox of an image, the usual one first. Where it has one id, all their names mean that.
pub(super) fn users(image: &ImageSpec, ids: IdChoice) -> Vec<User> {
    let one = user().ids();
    let with_ids = |user: &User| match ids {
        IdChoice::Range => user.clone(),
        IdChoice::Single => User {
            uid: one.uid,
            gid: one.gid,
            ..user.clone()
        },
    };
    image.users.iter().map(with_ids).collect()
}

/// Files that the image has and that are others in the sandbox, or that it lacks.
pub(super) fn own_entries(image: &ImageSpec, ids: IdChoice, view: PlanView<'_>) -> Vec<Entry> {
    let mut entries = Vec::new();
    let file = |path: &str, text: String| {
        let contents = text.into_bytes();
        system(path, Node::File { contents })
    };
    if ids == IdChoice::Single
        && let Some(usual) = users(image, ids).first()
    {
        entries.push(file("/etc/passwd", passwd(usual, &image.passwd)));
        entries.push(file("/etc/group", group(usual, &image.group)));
    }
    let git = Path::new("/etc").join(git_system::NAME);
    if view.resolve(&git).is_none() {
        entries.push(file(&git.to_string_lossy(), git_system::CONTENTS.to_owned()));
    }
    if let Some(directory) = &image.working_directory
        && view.resolve(directory).is_none()
    {
        entries.push(system(directory, Node::Directory));
    }
    entries
}

/// The image's list with the one user in front, whom all its files belong to.
fn passwd(usual: &User, others: &str) -> String {
    let User { uid, gid, name, .. } = usual;
    let (home, shell) = (usual.home.display(), usual.shell.display());
    let mut text = String::new();
    let _always = writeln!(text, "{name}:x:{uid}:{gid}:{name}:{home}:{shell}");
    without(&mut text, name, others);
    text
}

fn group(usual: &User, others: &str) -> String {
    let User { gid, name, .. } = usual;
    let mut text = format!("{name}:x:{gid}:\n");
    without(&mut text, name, others);
    text
}

fn without(text: &mut String, name: &str, lines: &str) {
    let is_another = |line: &&str| {
        line.split(':')
            .next()
            .is_some_and(|other| !other.is_empty() && other != name)
    };
    for line in lines.lines().filter(is_another) {
        text.push_str(line);
        text.push('\n');
    }
}

/// The directory in which an image's programs start, if it names one.
pub(super) fn directory(root: &RootChoice) -> Option<PathBuf> {
    match root {
        RootChoice::Image(image) => image.working_directory.clone(),
        _ => None,
    }
}

/// Where an image has its programs, if it says so.
pub(super) fn search_path(root: &RootChoice) -> Option<Vec<PathBuf>> {
    let RootChoice::Image(image) = root else { return None };
    let (_, path) = image.env.iter().rfind(|(name, _)| name == "PATH")?;
    let directories = path.split(':').map(PathBuf::from);
    let known: Vec<PathBuf> = directories.filter(|directory| directory.is_absolute()).collect();
    (!known.is_empty()).then_some(known)
}

/// What one layer says of a path.
enum LayerPath {
    Found(PathBuf),
    /// Lower layers may have it.
    Unknown,
    /// It hides what lower layers have.
    Hidden,
}

/// The host's path of what the layers of an image show at `rest`. No link is followed, whatever the layers hold.
pub(super) fn path_in(lower: &Path, stack: &[PathBuf], rest: &Path) -> Option<PathBuf> {
    for layer in stack {
        match look(&lower.join(layer), rest) {
            LayerPath::Found(path) => return Some(path),
            LayerPath::Hidden => return None,
            LayerPath::Unknown => {}
        }
    }
    None
}

fn look(layer: &Path, rest: &Path) -> LayerPath {
    let mut path = layer.to_owned();
    let mut names = rest.iter().peekable();
    while let Some(name) = names.next() {
        path.push(name);
        match fs::symlink_metadata(&path) {
            Err(_) => return LayerPath::Unknown,
            Ok(found) if is_whiteout(&found) => return LayerPath::Hidden,
            Ok(found) if names.peek().is_some() && !found.is_dir() => return LayerPath::Hidden,
            Ok(_) => {}
        }
    }
    LayerPath::Found(path)
}

/// The names that the layers of an image show in the directory `rest`.
pub(super) fn names_in(lower: &Path, stack: &[PathBuf], rest: &Path) -> BTreeSet<OsString> {
    let (mut names, mut hidden) = (BTreeSet::new(), BTreeSet::new());
    for layer in stack {
        match look(&lower.join(layer), rest) {
            // What is no directory hides those below, and a link is not followed.
            LayerPath::Found(path) if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) => break,
            LayerPath::Found(directory) => {
                for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                    let name = entry.file_name();
                    match entry.metadata() {
                        Ok(found) if is_whiteout(&found) => drop(hidden.insert(name)),
                        Ok(_) if !hidden.contains(&name) => drop(names.insert(name)),
                        _ => {}
                    }
                }
            }
            LayerPath::Hidden => break,
            LayerPath::Unknown => {}
        }
    }
    names
}

fn is_whiteout(found: &Metadata) -> bool {
    found.file_type().is_char_device() && found.rdev() == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn image() -> ImageSpec {
        let user = |uid, name: &str, home: &str| User {
            uid,
            gid: uid,
            name: name.to_owned(),
            home: home.into(),
            shell: "/bin/sh".into(),
        };
        ImageSpec {
            name: "docker.io/library/a:latest".to_owned(),
            digest: "sha256:0".to_owned(),
            users: vec![user(33, "www-data", "/var/www"), user(0, "root", "/root")],
            passwd: "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/sh\n".to_owned(),
            group: "root:x:0:\n".to_owned(),
            env: vec![("PATH".to_owned(), "/opt/bin:relative::/bin".to_owned())],
            working_directory: None,
        }
    }

    #[test]
    fn one_id_is_called_as_the_image_s_user_is() {
        let users = users(&image(), IdChoice::Single);
        assert!(users.iter().all(|user| (user.uid, user.gid) == (1000, 1000)));
        let text = passwd(&users[0], &image().passwd);
        assert_eq!(
            text,
            "www-data:x:1000:1000:www-data:/var/www:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n"
        );
        assert_eq!(group(&users[0], &image().group), "www-data:x:1000:\nroot:x:0:\n");
        assert_eq!(super::users(&image(), IdChoice::Range), image().users);
    }

    #[test]
    fn programs_are_looked_for_where_the_image_says() {
        let root = RootChoice::Image(Box::new(image()));
        assert_eq!(search_path(&root), Some(vec!["/opt/bin".into(), "/bin".into()]));
        assert_eq!(search_path(&RootChoice::System), None);
    }

    #[test]
    fn layers_hide_what_is_below_them_and_no_link_is_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let lower = scratch.path();
        for directory in ["top/usr", "bottom/usr/bin", "bottom/gone", "outside"] {
            fs::create_dir_all(lower.join(directory)).unwrap();
        }
        for file in [
            "top/usr/new",
            "bottom/usr/bin/tool",
            "bottom/gone/file",
            "outside/secret",
        ] {
            fs::write(lower.join(file), "").unwrap();
        }
        symlink(lower.join("outside"), lower.join("bottom/link")).unwrap();
        let whiteout = rustix::fs::FileType::CharacterDevice;
        let empty = rustix::fs::Mode::empty();
        rustix::fs::mknodat(rustix::fs::CWD, lower.join("top/gone"), whiteout, empty, 0).unwrap();
        let stack = ["top".into(), "bottom".into()];
        let found = |path: &str| path_in(lower, &stack, Path::new(path));
        assert_eq!(found("usr/bin/tool"), Some(lower.join("bottom/usr/bin/tool")));
        assert_eq!(found("usr/new"), Some(lower.join("top/usr/new")));
        assert_eq!(found("link"), Some(lower.join("bottom/link")));
        for hidden in ["gone", "gone/file", "link/secret", "none"] {
            assert_eq!(found(hidden), None, "{hidden}");
        }
        let names = |path: &str| names_in(lower, &stack, Path::new(path));
        assert_eq!(names(""), ["link", "usr"].map(OsString::from).into());
        assert_eq!(names("usr"), ["bin", "new"].map(OsString::from).into());
        assert!(names("gone").is_empty() && names("link").is_empty());
    }
}
