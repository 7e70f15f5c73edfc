//! Images as roots of sandboxes: whose ids their files have, and what a run is to know of them.

mod fetch;

use std::io;
use std::path::{Path, PathBuf};

use offleash_core::plan::SandboxUser;
use offleash_core::record::ImageUse;
use offleash_core::spec::{IdChoice, ImageSpec, RootChoice};
use offleash_images::{
    IdNamespace, ImageConfig, ImageError, ImageRoot, ImageStore, LayerOwnership, LayerReport, NoProgress,
};
use offleash_isolation::process;

use offleash_planner::base::{BaseError, prepare};
use offleash_planner::{BasePart, BaseTemplate};

pub use self::fetch::{FETCH_ROLE, FetchAnswer, FetchOrder, fetch};

/// The largest lists of users and groups that are read.
const MAX_ACCOUNTS: u64 = 1 << 20;
/// How many accounts of an image can be named.
const MAX_USERS: usize = 1_000;
/// How many ids a sandbox has at most.
const IDS: u32 = 65_536;

/// The ids of the caller, subordinate ones among them.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallerIds;

impl IdNamespace for CallerIds {
    fn run(&self, body: &mut dyn FnMut() -> io::Result<()>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        process::as_superuser_of_range(body).map_err(Into::into)
    }
}

/// The form in which images are unpacked that most sandboxes of the caller use: those of root have a range of ids, and
/// those of others, which have a workspace, one.
pub fn usual_ownership() -> LayerOwnership {
    match offleash_sys::process::is_root() {
        true => LayerOwnership::Owned,
        false => LayerOwnership::Flat,
    }
}

/// What a run of the image `name` is to know of it; the image is here.
///
/// # Errors
/// When it is not, or cannot be unpacked; when it names a user that it does not have.
pub fn specify(store: &ImageStore, name: &str) -> Result<ImageSpec, ImageError> {
    let root = store.open_image(name, usual_ownership(), &CallerIds, &NoProgress)?;
    spec_of(&root, &root.config)
}

/// The same of the image with that digest, which was called `name`, for a sandbox without a workspace: it has a range of ids
/// where the caller has one.
pub(crate) fn specify_pinned(state: &Path, name: &str, digest: &str) -> Result<ImageSpec, ImageError> {
    let store = ImageStore::in_directory(state)?;
    let open = |ownership| store.open_digest(name, digest, ownership, &CallerIds, &NoProgress);
    let root = match open(LayerOwnership::Owned) {
        // What a running sandbox needs may be all that is left of it: layers in the form that this has.
        Err(ImageError::Ids { .. } | ImageError::MissingBlob { .. }) => open(LayerOwnership::Flat),
        opened => opened,
    }?;
    spec_of(&root, &root.config)
}

/// What a sandbox of an image is to know of it whose programs are started as `config` says.
pub(crate) fn spec_of(root: &ImageRoot, config: &ImageConfig) -> Result<ImageSpec, ImageError> {
    let Accounts { passwd, group } = Accounts::of(root)?;
    let usual = usual_user(&config.user, &passwd, &group)?;
    let mut users = vec![usual];
    for user in accounts(&passwd).take(MAX_USERS) {
        if users.iter().all(|known| known.name != user.name) {
            users.push(user);
        }
    }
    let working_directory = Some(config.working_directory.as_str()).filter(|path| !matches!(*path, "" | "/"));
    Ok(ImageSpec {
        name: root.name.clone(),
        digest: root.digest.to_string(),
        users,
        passwd,
        group,
        env: config.env.clone(),
        working_directory: working_directory.map(|path| normal(&Path::new("/").join(path))),
        snapshot: None,
        template: None,
        layer: None,
    })
}

/// An image's lists of users and of groups.
pub(crate) struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    pub(crate) fn of(root: &ImageRoot) -> Result<Self, ImageError> {
        let text = |path| {
            let bytes = root.read_file(path, MAX_ACCOUNTS)?.unwrap_or_default();
            Ok::<_, ImageError>(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Self {
            passwd: text("etc/passwd")?,
            group: text("etc/group")?,
        })
    }

    /// Whether there is a user of this name.
    pub(crate) fn has(&self, user: &str) -> bool {
        accounts(&self.passwd).any(|account| account.name == user)
    }

    /// The ids that `user[:group]` means; a number alone is that of both.
    pub(crate) fn ids_of(&self, named: &str) -> Result<(u32, u32), ImageError> {
        let named = match named.parse::<u32>() {
            Ok(id) => format!("{id}:{id}"),
            Err(_) => named.to_owned(),
        };
        let found = usual_user(&named, &self.passwd, &self.group)?;
        Ok((found.uid, found.gid))
    }
}

/// Without `.` and `..`.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::from("/");
    for component in path.components() {
        match component {
            std::path::Component::Normal(name) => normal.push(name),
            std::path::Component::ParentDir => drop(normal.pop()),
            _ => {}
        }
    }
    normal
}

/// The accounts of an image that a sandbox can have.
fn accounts(passwd: &str) -> impl Iterator<Item = SandboxUser> {
    passwd.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, shell] = fields[..] else {
            return None;
        };
        let id = |text: &str| text.parse::<u32>().ok().filter(|id| *id < IDS);
        let is_path = |text: &str| text.starts_with('/');
        Some(SandboxUser {
            uid: id(uid)?,
            gid: id(gid)?,
            name: Some(name).filter(|name| !name.is_empty())?.to_owned(),
            home: if is_path(home) {
                normal(Path::new(home))
            } else {
                "/".into()
            },
            shell: if is_path(shell) { shell } else { "/bin/sh" }.into(),
        })
    })
}

/// The user that a configuration names: `name`, `uid`, each with a group or without; nothing is the superuser.
fn usual_user(named: &str, passwd: &str, group: &str) -> Result<SandboxUser, ImageError> {
    let (user, group_named) = match named.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (named, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let unknown = |what: String| ImageError::UnknownAccount { what };
    let uid = user.parse::<u32>().ok();
    let is_meant = |account: &SandboxUser| account.name == user || Some(account.uid) == uid;
    let found = accounts(passwd).find(is_meant).or_else(|| {
        // A number needs no account, and the superuser is everywhere.
        let uid = uid.or((user == "root").then_some(0)).filter(|uid| *uid < IDS)?;
        Some(SandboxUser {
            uid,
            gid: 0,
            name: if uid == 0 { "root".to_owned() } else { uid.to_string() },
            home: if uid == 0 { "/root" } else { "/" }.into(),
            shell: "/bin/sh".into(),
        })
    });
    let mut found = found.ok_or_else(|| unknown(format!("user `{}`", user.escape_debug())))?;
    if let Some(named) = group_named {
        let of_line = |line: &str| {
            let mut fields = line.split(':');
            let is_it = fields.next() == Some(named);
            fields.nth(1).filter(|_| is_it)?.parse::<u32>().ok()
        };
        let gid = named.parse::<u32>().ok().or_else(|| group.lines().find_map(of_line));
        let gid = gid.filter(|gid| *gid < IDS);
        found.gid = gid.ok_or_else(|| unknown(format!("group `{}`", named.escape_debug())))?;
    }
    Ok(found)
}

/// Opens the image of a spec for a sandbox with so many ids; nothing of it is removed as long as what is answered lives.
pub(crate) fn open(state: &Path, image: &ImageSpec, ids: IdChoice) -> Result<ImageRoot, ImageError> {
    let store = ImageStore::in_directory(state)?;
    store.open_digest(&image.name, &image.digest, ownership_of(ids), &CallerIds, &NoProgress)
}

/// The form in which images are unpacked for sandboxes with so many ids.
pub(crate) fn ownership_of(ids: IdChoice) -> LayerOwnership {
    match ids {
        IdChoice::Range => LayerOwnership::Owned,
        IdChoice::Single | IdChoice::Zero => LayerOwnership::Flat,
    }
}

/// What a root of the image consists of whose writable layer is in `layer`.
pub(crate) fn parts(image: &ImageRoot, layer: &Path, snapshot: Option<&Path>) -> Result<BaseTemplate, BaseError> {
    let layer = layer.join("root");
    prepare(&layer, 0o755)?;
    let root = BasePart {
        target: "/".into(),
        lower: image.directory.clone(),
        stack: image
            .layers
            .iter()
            .filter_map(|path| path.strip_prefix(&image.directory).ok())
            .map(Path::to_owned)
            .collect(),
        template: None,
        snapshot: snapshot.map(|snapshot| snapshot.join("root")),
        skeleton: None,
        layer,
    };
    Ok(BaseTemplate {
        parts: vec![root],
        variables: Vec::new(),
    })
}

/// What the owner should know of an image that is other here than elsewhere.
pub(crate) fn note(report: &LayerReport) -> Option<String> {
    let LayerReport { flattened, .. } = report;
    (*flattened > 0).then(|| {
        format!(
            "the sandbox has one user id: files of the image that belong to others ({flattened}) are its user's; \
             `--ids range` gives it more where there are subordinate ids"
        )
    })
}

/// The image in the record of a run.
pub(crate) fn used(root: &RootChoice) -> Option<ImageUse> {
    match root {
        RootChoice::Image(image) => Some(ImageUse {
            name: image.name.clone(),
            digest: image.digest.clone(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\napp:x:1001:1002::/home/app/../app:/bin/sh\nbig:x:70000:1::/:/bin/sh\nbroken\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:app\n";

    #[test]
    fn the_user_is_the_one_that_the_configuration_names() {
        for (named, ids, home) in [
            ("", (0, 0), "/root"),
            ("root", (0, 0), "/root"),
            ("app", (1001, 1002), "/home/app"),
            ("1001", (1001, 1002), "/home/app"),
            ("app:staff", (1001, 50), "/home/app"),
            ("1234:77", (1234, 77), "/"),
            ("1234", (1234, 0), "/"),
            (":staff", (0, 50), "/root"),
        ] {
            let user = usual_user(named, PASSWD, GROUP).unwrap();
            assert_eq!(
                ((user.uid, user.gid), user.home.as_path()),
                (ids, Path::new(home)),
                "{named}"
            );
        }
        for unknown in ["nobody-here", "app:nobody-here", "big", "70000", "app:70000"] {
            assert!(usual_user(unknown, PASSWD, GROUP).is_err(), "{unknown}");
        }
        assert_eq!(usual_user("", "", "").unwrap().name, "root");
    }
}
