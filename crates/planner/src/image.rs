//! A root that is an image: its users, its own files, and what its layers have where.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use offleash_core::plan::{PlanEntry, PlanNode, SandboxUser};
use offleash_core::spec::{IdChoice, ImageSpec, RootChoice};

use super::git_system;
use super::system::{system, usual};
use super::view::PlanView;

/// The users of a sandbox of an image, the usual one first. Where it has one id, all their names mean that.
pub(super) fn users(image: &ImageSpec, ids: IdChoice) -> Vec<SandboxUser> {
    let with_ids = |user: &SandboxUser| match ids {
        IdChoice::Range => user.clone(),
        IdChoice::Single | IdChoice::Zero => SandboxUser {
            uid: usual(ids).uid,
            gid: usual(ids).gid,
            ..user.clone()
        },
    };
    image.users.iter().map(with_ids).collect()
}

/// The lists of users and of groups of a sandbox of an image that are not the image's own.
pub fn own_accounts(image: &ImageSpec, ids: IdChoice) -> Vec<(PathBuf, String)> {
    match users(image, ids).first() {
        Some(usual) if ids.is_one() => vec![
            ("/etc/passwd".into(), passwd(usual, &image.passwd)),
            ("/etc/group".into(), group(usual, &image.group)),
        ],
        _ => Vec::new(),
    }
}

/// Files that the image has and that are others in the sandbox, or that it lacks.
pub(super) fn own_entries(image: &ImageSpec, ids: IdChoice, view: PlanView<'_>) -> Vec<PlanEntry> {
    let file = |path: &Path, text: String| {
        let contents = text.into_bytes();
        system(path, PlanNode::File { contents })
    };
    let accounts = own_accounts(image, ids).into_iter();
    let mut entries: Vec<PlanEntry> = accounts.map(|(path, text)| file(&path, text)).collect();
    let git = Path::new("/etc").join(git_system::NAME);
    if view.resolve(&git).is_none() {
        entries.push(file(&git, git_system::CONTENTS.to_owned()));
    }
    if let Some(directory) = &image.working_directory
        && view.resolve(directory).is_none()
    {
        entries.push(system(directory, PlanNode::Directory));
    }
    entries
}

/// The image's list with the one user in front, whom all its files belong to.
fn passwd(usual: &SandboxUser, others: &str) -> String {
    let SandboxUser { uid, gid, name, .. } = usual;
    let (home, shell) = (usual.home.display(), usual.shell.display());
    let mut text = String::new();
    let _always = writeln!(text, "{name}:x:{uid}:{gid}:{name}:{home}:{shell}");
    without(&mut text, name, others);
    text
}

fn group(usual: &SandboxUser, others: &str) -> String {
    let SandboxUser { gid, name, .. } = usual;
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

/// Where programs start that nothing says it of: the home of their user, or the root where an image does not have that.
pub(super) fn home<'a>(root: &RootChoice, home: &'a Path, view: PlanView<'_>) -> &'a Path {
    match root {
        RootChoice::Image(_) if view.resolve(home).is_none() => Path::new("/"),
        _ => home,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> ImageSpec {
        let user = |uid, name: &str, home: &str| SandboxUser {
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
            snapshot: None,
            template: None,
            layer: None,
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
}
