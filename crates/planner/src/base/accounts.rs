//! The accounts of the base template: its users, and the host's accounts of the system without its people.
//!
//! Packages give files to such accounts, and `dpkg` refuses to work when one of them is missing that it once knew.

use std::fmt::Write as _;
use std::fs;

use offleash_core::plan::SandboxUser;

/// `passwd`, `group` and `shadow`.
#[derive(Debug)]
pub(super) struct AccountFiles {
    pub(super) passwd: String,
    pub(super) group: String,
    pub(super) shadow: String,
}

/// Ids of people begin here (`UID_MIN` in login.defs(5)).
const PEOPLE: u32 = 1000;
const NOBODY: u32 = 65_534;

/// The accounts for these users on this host.
pub(super) fn of_host(users: &[SandboxUser]) -> AccountFiles {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    made_of(users, &read("/etc/passwd"), &read("/etc/group"))
}

fn made_of(users: &[SandboxUser], passwd: &str, group: &str) -> AccountFiles {
    let mut accounts = AccountFiles {
        passwd: String::new(),
        group: String::new(),
        shadow: String::new(),
    };
    // The superuser first, as everywhere; but where both names mean one id, that is called by the first.
    let has_superuser = users.iter().any(|user| user.uid == 0);
    let (superusers, others): (Vec<_>, Vec<_>) = users.iter().partition(|user| user.uid == 0);
    for user in superusers.into_iter().chain(others) {
        accounts.add(user);
    }
    if !has_superuser {
        accounts.group.push_str("root:x:0:\n");
    }
    for line in passwd.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        if let [name, _, uid, gid, _, home, shell] = fields[..]
            && is_of_the_system(name, uid, users)
            && gid.parse::<u32>().is_ok()
        {
            let _always = writeln!(accounts.passwd, "{name}:x:{uid}:{gid}:{name}:{home}:{shell}");
            accounts.lock(name);
        }
    }
    for line in group.lines() {
        // Members are people.
        if let [name, _, gid, _] = line.split(':').collect::<Vec<_>>()[..]
            && is_of_the_system(name, gid, users)
        {
            let _always = writeln!(accounts.group, "{name}:x:{gid}:");
        }
    }
    accounts
}

impl AccountFiles {
    fn add(&mut self, user: &SandboxUser) {
        let SandboxUser {
            uid,
            gid,
            name,
            home,
            shell,
        } = user;
        let (home, shell) = (home.display(), shell.display());
        let _always = writeln!(self.passwd, "{name}:x:{uid}:{gid}:{name}:{home}:{shell}");
        if !self.group.contains(&format!(":{gid}:")) {
            let _always = writeln!(self.group, "{name}:x:{gid}:");
        }
        self.lock(name);
    }

    /// No password fits.
    fn lock(&mut self, name: &str) {
        let _always = writeln!(self.shadow, "{name}:*:19000:0:99999:7:::");
    }
}

fn is_of_the_system(name: &str, id: &str, users: &[SandboxUser]) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let id = id.parse::<u32>().unwrap_or(0);
    let is_taken = users.iter().any(|user| user.name == name || user.uid == id);
    !name.is_empty() && name.bytes().all(is_plain) && (1..PEOPLE).contains(&id) && !is_taken
        || id == NOBODY && !name.is_empty() && name.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{superuser, user};

    const PASSWD: &str = "root:x:0:0:The Admin:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
                          _apt:x:100:65534::/nonexistent:/usr/sbin/nologin\nalice:x:1001:1001:Alice,,,:/home/alice:/bin/zsh\n\
                          toor:x:0:0::/root:/bin/sh\nbroken\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
    const GROUP: &str = "root:x:0:alice\nadm:x:4:alice\nalice:x:1001:\nnogroup:x:65534:\n";

    #[test]
    fn the_host_s_people_are_not_shown() {
        let accounts = made_of(&[user(), superuser()], PASSWD, GROUP);
        assert!(!format!("{accounts:?}").contains("alice"), "{accounts:?}");
        assert!(!format!("{accounts:?}").contains("Admin"), "{accounts:?}");
        assert_eq!(accounts.passwd.lines().filter(|line| line.contains(":x:0:")).count(), 1);
        assert!(accounts.passwd.starts_with("root:x:0:0:root:/root:"));
        assert!(accounts.passwd.contains("\nuser:x:1000:1000:user:/home/user:"));
        assert!(accounts.passwd.contains("\n_apt:x:100:65534:"));
        assert_eq!(accounts.group, "root:x:0:\nuser:x:1000:\nadm:x:4:\nnogroup:x:65534:\n");
        assert!(accounts.shadow.lines().all(|line| line.contains(":*:")));
    }

    #[test]
    fn one_id_is_called_by_the_usual_name() {
        let same = SandboxUser {
            uid: 1000,
            gid: 1000,
            ..superuser()
        };
        let accounts = made_of(&[user(), same], PASSWD, GROUP);
        let names: Vec<_> = accounts
            .passwd
            .lines()
            .map(|line| line.split(':').next().unwrap())
            .collect();
        assert_eq!(names, ["user", "root", "daemon", "_apt", "nobody"]);
        assert!(accounts.passwd.contains("root:x:1000:1000:root:/root:"));
        assert_eq!(accounts.group.lines().filter(|line| line.contains(":1000:")).count(), 1);
    }
}
