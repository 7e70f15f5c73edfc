//! Subordinate user and group ids, with which a sandbox can have a range of ids instead of one (subuid(5)).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{FeatureCheck, FeatureRemedy, FeatureStatus};
use crate::search_path::find_program;

/// How many ids a range needs: those of a usual system, `nobody` included.
const COUNT: u64 = 65_536;

pub(super) fn check(search_path: &OsStr) -> FeatureCheck {
    let uid = rustix::process::getuid();
    if uid.is_root() {
        return FeatureCheck::new("subordinate-ids", FeatureStatus::Ok, "not needed by root", NEEDED_FOR);
    }
    let uid = uid.as_raw();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = user_name(&passwd, uid);
    let count = |path| count(&fs::read_to_string(path).unwrap_or_default(), name, uid);
    let unprivileged = ["newuidmap", "newgidmap"]
        .into_iter()
        .filter(|program| !can_map(program, search_path));
    from_findings(name, count("/etc/subuid"), count("/etc/subgid"), unprivileged.collect())
}

const NEEDED_FOR: &str = "several users inside one sandbox; without them `root` and `user` of a root of its own are one id, and apt-get does \
     not work there";

fn from_findings(name: Option<&str>, uids: u64, gids: u64, cannot_map: Vec<&str>) -> FeatureCheck {
    let check = |status, found: String| FeatureCheck::new("subordinate-ids", status, found, NEEDED_FOR);
    if uids < COUNT || gids < COUNT {
        let found = format!("{uids} user ids and {gids} group ids, {COUNT} of each are needed");
        let explanation = "no range is registered for this user; this registers one: choose another if it overlaps one in /etc/subuid";
        let mend = match name {
            Some(name) => FeatureRemedy::new(
                explanation,
                &[&format!(
                    "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 '{name}'"
                )],
            ),
            None => FeatureRemedy::new(
                "this user has no name in /etc/passwd, and ranges are registered by name",
                &[],
            ),
        };
        return check(FeatureStatus::Missing, found).with_mend(Some(mend));
    }
    if !cannot_map.is_empty() {
        let found = format!(
            "{uids} user ids and {gids} group ids, but no privileged {}",
            cannot_map.join(" and ")
        );
        let mend = FeatureRemedy::new(
            "these programs write the map of ids for ordinary users",
            &["sudo apt-get install uidmap"],
        );
        return check(FeatureStatus::Missing, found).with_mend(Some(mend));
    }
    check(FeatureStatus::Ok, format!("{uids} user ids and {gids} group ids"))
}

/// The login name of `uid` in the text of `/etc/passwd`.
fn user_name(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

/// The size of the largest range of this user; ranges are registered by name or by number.
fn count(ranges: &str, name: Option<&str>, uid: u32) -> u64 {
    let of_user = ranges.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let is_ours = Some(owner) == name || owner.parse() == Ok(uid);
        is_ours.then(|| fields.nth(1)?.parse::<u64>().ok())?
    });
    of_user.max().unwrap_or(0)
}

/// Whether `program` is there and has the privilege that it needs: the setuid bit or file capabilities.
fn can_map(program: &str, search_path: &OsStr) -> bool {
    find_program(program, search_path).is_some_and(|path| is_privileged(&path))
}

fn is_privileged(path: &Path) -> bool {
    let is_setuid = fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o4000 != 0);
    let mut capabilities = [0_u8; 64];
    is_setuid || rustix::fs::getxattr(path, c"security.capability", &mut capabilities[..]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nana:x:1000:1000::/home/ana:/bin/sh\n";

    #[test]
    fn users_are_named_by_the_third_field() {
        assert_eq!(user_name(PASSWD, 1000), Some("ana"));
        assert_eq!(user_name(PASSWD, 0), Some("root"));
        assert_eq!(user_name(PASSWD, 7), None);
    }

    #[test]
    fn the_largest_range_of_the_user_counts_whether_by_name_or_by_number() {
        let ranges = "ben:1:99999\nana:100000:1000\n1000:200000:65536\nana:x\n";
        assert_eq!(count(ranges, Some("ana"), 1000), 65_536);
        assert_eq!(count(ranges, Some("ana"), 1), 1000);
        assert_eq!(count(ranges, None, 7), 0);
    }

    #[test]
    fn ranges_and_both_programs_are_needed() {
        let cases = [
            (COUNT, COUNT, vec![], FeatureStatus::Ok),
            (COUNT, 0, vec![], FeatureStatus::Missing),
            (COUNT - 1, COUNT, vec![], FeatureStatus::Missing),
            (COUNT, COUNT, vec!["newgidmap"], FeatureStatus::Missing),
        ];
        for (uids, gids, cannot_map, expected) in cases {
            let check = from_findings(Some("ana"), uids, gids, cannot_map);
            assert_eq!(
                (check.status, check.mend.is_some()),
                (expected, expected != FeatureStatus::Ok),
                "{check:?}"
            );
        }
        assert!(from_findings(None, 0, 0, vec![]).mend.unwrap().commands.is_empty());
    }
}
