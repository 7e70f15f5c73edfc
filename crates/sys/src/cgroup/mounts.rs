//! Reads where control group hierarchies are mounted and where in them this process is.
//!
//! Pure: text in, words out. Formats: `cgroups(7)` for `/proc/PID/cgroup`, `proc_pid_mountinfo(5)` for the mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// One line of `/proc/self/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupMembership {
    /// The controllers of the hierarchy, empty in version 2.
    pub(super) controllers: Vec<String>,
    /// Our group in it, as seen from our cgroup namespace.
    pub(super) path: PathBuf,
}

impl GroupMembership {
    pub(super) fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HierarchyMount {
    /// The group that is seen at `point`.
    pub(super) root: PathBuf,
    /// Where it is mounted.
    pub(super) point: PathBuf,
    /// Version 2 or 1.
    pub(super) v2: bool,
    /// Whether this mount or its file system is read-only.
    pub(super) read_only: bool,
    /// The file system's options, among them the controllers in version 1.
    pub(super) options: Vec<String>,
}

impl HierarchyMount {
    /// Where `group` is found in the file tree, if it is at or below what this mount shows.
    pub(super) fn locate(&self, group: &Path) -> Option<PathBuf> {
        // A group outside of our cgroup namespace is written with leading `..`.
        if group.components().any(|part| part == Component::ParentDir) {
            return None;
        }
        let below = group.strip_prefix(&self.root).ok()?;
        Some(if below.as_os_str().is_empty() {
            self.point.clone()
        } else {
            self.point.join(below)
        })
    }
}

/// Parses `/proc/self/cgroup`; a line that does not have its form is left out.
pub(super) fn parse_memberships(text: &[u8]) -> Vec<GroupMembership> {
    text.split(|byte| *byte == b'\n').filter_map(parse_membership).collect()
}

fn parse_membership(line: &[u8]) -> Option<GroupMembership> {
    let mut fields = line.splitn(3, |byte| *byte == b':');
    let id = fields.next()?;
    let controllers = std::str::from_utf8(fields.next()?).ok()?;
    let path = path_from(fields.next()?);
    // Version 2 is always `0::PATH`; a version 1 hierarchy has a number and at least a name.
    if !path.is_absolute() || controllers.is_empty() != (id == b"0") {
        return None;
    }
    let controllers = controllers
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    Some(GroupMembership { controllers, path })
}

/// Parses the control group mounts of `/proc/self/mountinfo`; other mounts are left out.
pub(super) fn parse_mounts(text: &[u8]) -> Vec<HierarchyMount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<HierarchyMount> {
    // Machines with containers have hundreds of other mounts; none of them is worth taking apart.
    line.windows(9).any(|part| part == b" - cgroup").then_some(())?;
    let mut fields = line.split(|byte| *byte == b' ');
    let root = fields.nth(3)?;
    let point = fields.next()?;
    let mount_options = fields.next()?;
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let v2 = match fields.next()? {
        b"cgroup2" => true,
        b"cgroup" => false,
        _ => return None,
    };
    let options = std::str::from_utf8(fields.nth(1)?).ok()?;
    let options: Vec<String> = options.split(',').map(str::to_owned).collect();
    let read_only = mount_options.split(|byte| *byte == b',').any(|option| option == b"ro")
        || options.iter().any(|option| option == "ro");
    Some(HierarchyMount {
        root: unescape(root),
        point: unescape(point),
        v2,
        read_only,
        options,
    })
}

/// Undoes the octal escapes (`\040` for a space) of mountinfo.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        match (byte, octal(after)) {
            (b'\\', Some(escaped)) => {
                bytes.push(escaped);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    path_from(&bytes)
}

fn octal(bytes: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(bytes.get(..3)?).ok()?;
    u8::from_str_radix(digits, 8).ok()
}

fn path_from(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_of_both_versions_are_read() {
        let text = b"9:name=systemd:/\n4:cpu,cpuacct:/a:b/c\n0::/user.slice/x.scope\nrubbish\n7:memory:relative\n";
        assert_eq!(
            parse_memberships(text),
            [
                GroupMembership {
                    controllers: vec!["name=systemd".into()],
                    path: "/".into()
                },
                GroupMembership {
                    controllers: vec!["cpu".into(), "cpuacct".into()],
                    path: "/a:b/c".into()
                },
                GroupMembership {
                    controllers: vec![],
                    path: "/user.slice/x.scope".into()
                },
            ]
        );
    }

    #[test]
    fn mounts_are_read_with_optional_fields_and_escapes() {
        let text = b"31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
            40 31 0:37 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro,nosuid shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct\n\
            41 31 0:38 / /mnt/a\\040b\\134c rw,relatime - cgroup2 none rw,nsdelegate\n\
            short line\n";
        let mounts = parse_mounts(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].root, Path::new("/docker/ab"));
        assert_eq!(mounts[0].point, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(mounts[0].options, ["rw", "cpu", "cpuacct"]);
        assert!(mounts[0].read_only && !mounts[0].v2);
        assert_eq!(mounts[1].point, Path::new("/mnt/a b\\c"));
        assert!(!mounts[1].read_only && mounts[1].v2);
    }

    #[test]
    fn our_group_is_found_below_the_root_of_the_mount() {
        let cases = [
            ("/", "/", Some("/cg")),
            ("/", "/a/b", Some("/cg/a/b")),
            ("/docker/ab", "/docker/ab", Some("/cg")),
            ("/docker/ab", "/docker/ab/c", Some("/cg/c")),
            ("/docker/ab", "/docker/abc", None),
            ("/docker/ab", "/docker", None),
            ("/", "/../other", None),
            ("/..", "/", None),
        ];
        for (root, group, expected) in cases {
            let mount = HierarchyMount {
                root: root.into(),
                point: "/cg".into(),
                v2: true,
                read_only: false,
                options: vec![],
            };
            assert_eq!(
                mount.locate(Path::new(group)).as_deref(),
                expected.map(Path::new),
                "{root} {group}"
            );
        }
    }
}
