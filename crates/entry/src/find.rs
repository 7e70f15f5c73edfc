//! Finds the sandboxes that wait for a run of some key.

use core::ffi::{CStr, c_int};

use crate::buffer::Buffer;
use crate::kernel::{self, Descriptor, File, HERE};
use crate::strings::{self, Strings};
use crate::words::Words;

/// The state directory of root (`store::HostIdentity` says the same).
const OF_ROOT: &[u8] = b"/var/lib/offleash";
/// That of others, below their home.
const BELOW_HOME: &[u8] = b"/.local/state/offleash";
/// What sandboxes wait in, in a state directory (`store::WarmDirectory` says the same).
const WARM: &CStr = c"warm";
/// What the names of those begin with at which nobody waits yet.
const UNFINISHED: u8 = b'~';
const DIRECTORY: c_int = libc::O_DIRECTORY | libc::O_NOFOLLOW;
/// What others may do with a directory that is nobody else's.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Writes the path of the state directory, with a zero byte behind it. `false` where more has to be known for that than the
/// words and the environment say.
pub(crate) fn state_path<A, E>(path: &mut Buffer<'_>, (list, words): (&A, Words), env: &E, user: u32) -> bool
where
    A: Strings + ?Sized,
    E: Strings + ?Sized,
{
    let named = words.state(list).or_else(|| strings::variable(env, b"OFFLEASH_STATE"));
    if let Some(named) = named {
        path.add(named);
    } else if user == 0 {
        path.add(OF_ROOT);
    } else {
        let is_set = |name: &[u8]| strings::variable(env, name).is_some_and(|value| !value.is_empty());
        let Some(home @ [b'/', ..]) = strings::variable(env, b"HOME").filter(|_| !is_set(b"XDG_STATE_HOME")) else {
            return false;
        };
        // `sudo` and `setpriv` leave that of somebody else.
        path.add(home);
        path.add(b"\0");
        let found = zero_ended(path).and_then(|home| kernel::stat(HERE, home).ok());
        let is_ours = |found: File| found.owner == user && found.mode & libc::S_IFMT == libc::S_IFDIR;
        if !found.is_some_and(is_ours) {
            return false;
        }
        path.clear();
        path.add(home);
        path.add(BELOW_HOME);
    }
    path.add(b"\0");
    true
}

/// What a buffer has up to its first zero byte.
pub(crate) fn zero_ended<'a>(text: &'a Buffer<'_>) -> Option<&'a CStr> {
    kernel::zero_ended(text.text()?)
}

/// `warm` in the state directory `path`, with the state directory itself, if both are there and nobody else's.
pub(crate) fn all(path: &CStr, user: u32) -> Option<Descriptor> {
    let root = kernel::open(HERE, path, DIRECTORY).ok()?;
    let all = kernel::open(root.number(), WARM, DIRECTORY).ok()?;
    (is_ours(&root, user) && is_ours(&all, user)).then_some(all)
}

/// The directory of those of one key, whose name is `name`.
pub(crate) fn of_key(all: &Descriptor, name: &CStr, user: u32) -> Option<Descriptor> {
    let directory = kernel::open(all.number(), name, DIRECTORY).ok()?;
    is_ours(&directory, user).then_some(directory)
}

fn is_ours(directory: &Descriptor, user: u32) -> bool {
    kernel::stat(directory.number(), c"").is_ok_and(|found| found.owner == user && found.mode & WRITABLE_BY_OTHERS == 0)
}

/// The first name behind `last` among entries as getdents64(2) writes them, places at which nobody waits left out.
pub(crate) fn next<'a>(entries: &'a [u8], last: Option<&[u8]>) -> Option<&'a [u8]> {
    /// Where in an entry its length and its name are.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let (mut found, mut rest): (Option<&[u8]>, _) = (None, entries);
    loop {
        let (Some(low), Some(high)) = (rest.get(LENGTH), rest.get(LENGTH + 1)) else {
            return found;
        };
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let (Some(entry), true) = (rest.get(..length), length > NAME) else {
            return found;
        };
        rest = rest.get(length..)?;
        let name = entry.get(NAME..)?;
        let name = name.get(..name.iter().position(|byte| *byte == 0)?)?;
        let is_one = !matches!(name.first(), None | Some(b'.' | &UNFINISHED));
        let is_behind = last.is_none_or(|last| strings::is_before(last, name));
        if is_one && is_behind && found.is_none_or(|found| strings::is_before(name, found)) {
            found = Some(name);
        }
    }
}

/// Writes a path by which this process reaches what is called `name` in a directory, however long that one's own path is.
pub(crate) fn reach(path: &mut Buffer<'_>, directory: &Descriptor, name: &[u8]) {
    path.add(b"/proc/self/fd/");
    let number = directory.number().unsigned_abs();
    let mut place = 1_000_000_000;
    while place > 0 {
        let digit = number / place % 10;
        // No zeroes before the first digit but for zero itself.
        if number >= place || place == 1 {
            path.add(&[u8::try_from(digit).unwrap_or_default() + b'0']);
        }
        place /= 10;
    }
    path.add(b"/");
    path.add(name);
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn entries_come_in_the_order_of_their_names() {
        let place = tempfile::tempdir().unwrap();
        for name in ["b", "c", "~0", "aa"] {
            std::fs::write(place.path().join(name), "").unwrap();
        }
        let path = format!("{}\0", place.path().display());
        let directory = kernel::open(HERE, CStr::from_bytes_with_nul(path.as_bytes()).unwrap(), DIRECTORY).unwrap();
        let mut room = [0; 4096];
        let mut entries = Buffer::new(&mut room);
        kernel::list(&directory, &mut entries).unwrap();
        let entries = entries.text().unwrap();
        let (mut names, mut last) = (Vec::new(), None);
        while let Some(name) = next(entries, last) {
            names.push(String::from_utf8(name.to_vec()).unwrap());
            last = Some(name);
        }
        assert_eq!(names, ["aa", "b", "c"]);
        for length in 0..entries.len() {
            let _none_is_read_behind_the_end = next(&entries[..length], None);
        }
    }

    #[test]
    fn a_directory_is_found_where_it_is_ours_alone() {
        use std::fs::Permissions;
        use std::os::unix::fs::{PermissionsExt as _, symlink};

        let place = tempfile::tempdir().unwrap();
        let (root, warm) = (place.path(), place.path().join("warm"));
        let path = format!("{}\0", root.display());
        let user = kernel::user();
        let is_found = |user| {
            let all = all(kernel::zero_ended(path.as_bytes()).unwrap(), user);
            all.is_some_and(|all| of_key(&all, c"k", user).is_some())
        };
        assert!(!is_found(user));
        std::fs::create_dir_all(warm.join("k")).unwrap();
        let all_of_them = [root, &warm, &warm.join("k")];
        for directory in all_of_them {
            std::fs::set_permissions(directory, Permissions::from_mode(0o700)).unwrap();
        }
        assert!(is_found(user));
        assert!(!is_found(user.wrapping_add(1)));
        for (changed, mode) in all_of_them.into_iter().zip([0o777, 0o770, 0o722]) {
            std::fs::set_permissions(changed, Permissions::from_mode(mode)).unwrap();
            assert!(!is_found(user), "{}", changed.display());
            std::fs::set_permissions(changed, Permissions::from_mode(0o700)).unwrap();
        }
        std::fs::remove_dir(warm.join("k")).unwrap();
        symlink("/tmp", warm.join("k")).unwrap();
        assert!(!is_found(user));
    }

    #[test]
    fn a_path_leads_through_the_descriptor() {
        let directory = kernel::open(HERE, c"/", DIRECTORY).unwrap();
        let mut room = [0; 64];
        let mut path = Buffer::new(&mut room);
        reach(&mut path, &directory, b"x");
        let expected = format!("/proc/self/fd/{}/x", directory.number());
        assert_eq!(path.text(), Some(expected.as_bytes()));
    }

    #[test]
    fn the_state_directory_is_named_or_the_usual_one() {
        let path_of = |list: &[&str], env: &[&str], user| {
            let mut room = [0; 256];
            let mut path = Buffer::new(&mut room);
            let words = Words::split(list, 0).unwrap();
            let is_known = state_path(&mut path, (list, words), env, user);
            is_known.then(|| String::from(zero_ended(&path).unwrap().to_str().unwrap()))
        };
        let home = tempfile::tempdir().unwrap();
        let mine = kernel::user();
        let home = format!("HOME={}", home.path().display());
        let below = format!("{}/.local/state/offleash", &home[5..]);
        assert_eq!(
            path_of(&["--state", "/s", "--", "a"], &["OFFLEASH_STATE=/t"], 7),
            Some("/s".into())
        );
        assert_eq!(path_of(&["--", "a"], &["OFFLEASH_STATE=/t"], 0), Some("/t".into()));
        assert_eq!(path_of(&["--", "a"], &[], 0), Some("/var/lib/offleash".into()));
        assert_eq!(path_of(&["--", "a"], &["HOME=/nowhere"], 7), None);
        assert_eq!(path_of(&["--", "a"], &[], 7), None);
        if mine != 0 {
            assert_eq!(path_of(&["--", "a"], &[&home], mine), Some(below));
            assert_eq!(path_of(&["--", "a"], &[&home, "XDG_STATE_HOME=/x"], mine), None);
        }
        assert_eq!(path_of(&["--", "a"], &[&home], mine.wrapping_add(1)), None);
    }
}
