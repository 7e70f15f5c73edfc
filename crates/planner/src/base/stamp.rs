//! From what of the host a template was made: when that changes, another one is due.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use offleash_core::debian_libraries;
use offleash_core::plan::SandboxUser;

/// Goes up when the content of templates changes.
const FORM: u32 = 4;

/// Directories and files whose times tell of installed and removed packages. New directories deeper down are missing in
/// a skeleton until one of these changes; what they hold can be read all the same.
const TOLD_BY: [&str; 16] = [
    "bin",
    "include",
    "lib",
    "lib/python3",
    "lib/python3/dist-packages",
    debian_libraries!("lib/", ""),
    "lib64",
    "libexec",
    "local",
    "local/bin",
    "local/lib",
    "local/share",
    "sbin",
    "share",
    "status",
    "info",
];
const FILES: [&str; 6] = [
    "/etc",
    "/etc/alternatives",
    "/etc/apt",
    "/etc/group",
    "/etc/passwd",
    "/etc/ssl/certs",
];

/// The name of the template for this host and these users.
pub(super) fn of_host(parts: &[PathBuf], users: &[SandboxUser], has_skeletons: bool) -> String {
    let mut stamp = HostStamp::default();
    stamp.take(&FORM.to_le_bytes());
    stamp.take(&rustix::process::geteuid().as_raw().to_le_bytes());
    stamp.take(&[u8::from(has_skeletons)]);
    for user in users {
        stamp.take(format!("{user:?}").as_bytes());
    }
    stamp.take_parts(parts);
    for file in FILES {
        stamp.take_file(Path::new(file));
    }
    stamp.text()
}

/// Which packages the host has, whoever asks.
pub(super) fn of_system(parts: &[PathBuf]) -> String {
    let mut stamp = HostStamp::default();
    stamp.take_parts(parts);
    stamp.text()
}

/// FNV-1a, twice over; tells states of one host apart, and need not resist anybody.
struct HostStamp {
    low: u64,
    high: u64,
}

impl Default for HostStamp {
    fn default() -> Self {
        Self {
            low: 0xcbf2_9ce4_8422_2325,
            high: 0x6c62_272e_07bb_0142,
        }
    }
}

impl HostStamp {
    fn take(&mut self, bytes: &[u8]) {
        const PRIME: u64 = 0x0100_0000_01b3;
        for byte in bytes.iter().chain(&[0xff]) {
            self.low = (self.low ^ u64::from(*byte)).wrapping_mul(PRIME);
            self.high = (self.high ^ u64::from(!*byte)).wrapping_mul(PRIME);
        }
    }

    fn text(&self) -> String {
        format!("{:016x}{:016x}", self.low, self.high)
    }

    fn take_parts(&mut self, parts: &[PathBuf]) {
        for part in parts {
            self.take_file(part);
            for name in TOLD_BY {
                self.take_file(&part.join(name));
            }
        }
    }

    fn take_file(&mut self, path: &Path) {
        self.take(path.as_os_str().as_encoded_bytes());
        let Ok(found) = fs::symlink_metadata(path) else {
            return self.take(b"none");
        };
        for number in [found.dev(), found.ino(), found.size(), found.mtime().cast_unsigned()] {
            self.take(&number.to_le_bytes());
        }
        self.take(&found.mtime_nsec().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_state_of_the_host_or_other_users_have_another_name() {
        let host = tempfile::tempdir().unwrap();
        let parts = [host.path().to_owned()];
        let user = crate::system::user();
        let users = std::slice::from_ref(&user);
        let first = of_host(&parts, users, true);
        assert_eq!(of_host(&parts, users, true), first);
        assert_ne!(of_host(&parts, users, false), first);
        assert_ne!(of_host(&parts, &[], true), first);
        let system = of_system(&parts);
        assert_eq!(of_system(&parts), system);
        fs::create_dir(host.path().join("bin")).unwrap();
        assert_ne!(of_system(&parts), system);
        assert_ne!(of_host(&parts, users, true), first);
    }
}
