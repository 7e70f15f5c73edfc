//! Packages are installed as on any machine: by `apt-get` where there is a superuser, by `pip` for everybody.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{Site, skip, stderr, stdout};
use super::{BASE, has_superuser, printed, shared};

/// What installs and removes the package, and what must come of it.
pub(super) const INSTALL: &str = "set -e; apt-get install -qq -y --no-install-recommends /mnt/tiny.deb >/tmp/log 2>&1 || \
    { cat /tmp/log; exit 1; }; offleash-tiny; stat -c '%U %G %a' /var/lib/offleash-tiny /usr/bin/offleash-tiny; \
    cat /etc/offleash-tiny; apt-get purge -qq -y offleash-tiny >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }; \
    test ! -e /usr/bin/offleash-tiny; test ! -e /etc/offleash-tiny";
pub(super) const INSTALLED: &str = "tiny\ndaemon adm 2750\nroot root 755\nvalue\n";

fn write(path: &Path, contents: &str, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A package with a program, a configuration file and a script that gives a directory away; `None`, and said so, where
/// there is no `dpkg-deb` or no `apt-get`.
pub(super) fn tiny_package(directory: &Path) -> Option<PathBuf> {
    if !["/usr/bin/dpkg-deb", "/usr/bin/apt-get"]
        .iter()
        .all(|program| Path::new(program).exists())
    {
        skip("this system has no dpkg-deb and apt-get");
        return None;
    }
    let tree = directory.join("tiny");
    let control =
        "Package: offleash-tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: T <t@example.org>\nDescription: t\n";
    write(&tree.join("DEBIAN/control"), control, 0o644);
    write(&tree.join("DEBIAN/conffiles"), "/etc/offleash-tiny\n", 0o644);
    let script =
        "#!/bin/sh\nset -e\nchown daemon:adm /var/lib/offleash-tiny\nchmod 2750 /var/lib/offleash-tiny\nldconfig\n";
    write(&tree.join("DEBIAN/postinst"), script, 0o755);
    write(&tree.join("usr/bin/offleash-tiny"), "#!/bin/sh\necho tiny\n", 0o755);
    write(&tree.join("etc/offleash-tiny"), "value\n", 0o644);
    fs::create_dir_all(tree.join("var/lib/offleash-tiny")).unwrap();
    let package = directory.join("tiny.deb");
    let built = Command::new("dpkg-deb")
        .args(["--root-owner-group", "-b"])
        .args([&tree, &package])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", stderr(&built));
    Some(package)
}

#[test]
fn a_package_of_the_distribution_is_installed_and_removed() {
    let site = shared();
    if !has_superuser(&site) {
        return skip("this user has no subordinate ids, and apt-get asks for uid 0");
    }
    let own = Site::new();
    let Some(package) = tiny_package(own.root()) else {
        return;
    };
    let mount = format!("{}:/mnt/tiny.deb", package.display());
    let flags = [&BASE[..], &["--user", "root", "--mount", &mount]].concat();
    let output = site.run_shell(&flags, INSTALL);
    assert_eq!(stdout(&output), INSTALLED, "{}", stderr(&output));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!Path::new("/usr/bin/offleash-tiny").exists());
}

/// Builds a wheel with a module and a script, and installs it for everybody and for one user.
const WHEEL: &str = r#"set -e
cat > /tmp/build.py <<'END'
import zipfile
name = "offleash_tiny-1.0-py3-none-any.whl"
info = "offleash_tiny-1.0.dist-info/"
files = {
    "offleash_tiny.py": "def main():\n    print('wheel')\n",
    info + "METADATA": "Metadata-Version: 2.1\nName: offleash-tiny\nVersion: 1.0\n",
    info + "WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    info + "entry_points.txt": "[console_scripts]\noffleash-wheel = offleash_tiny:main\n",
}
files[info + "RECORD"] = "".join(f"{path},,\n" for path in [*files, info + "RECORD"])
with zipfile.ZipFile("/tmp/" + name, "w") as wheel:
    for path, text in files.items():
        wheel.writestr(path, text)
END
cd /tmp
/usr/bin/python3 build.py
/usr/bin/python3 -m pip install -q --no-index --root-user-action=ignore /tmp/offleash_tiny-1.0-py3-none-any.whl >log 2>&1 || { cat log; exit 1; }
PATH=$PATH:$HOME/.local/bin offleash-wheel
/usr/bin/python3 -c 'import offleash_tiny; offleash_tiny.main()'
/usr/bin/python3 -m pip uninstall -q -y --root-user-action=ignore offleash-tiny >log 2>&1 || { cat log; exit 1; }
"#;

#[test]
fn a_wheel_is_installed_for_everybody_and_for_one_user() {
    let site = shared();
    let has_pip = printed(
        &site,
        "user",
        "/usr/bin/python3 -m pip --version >/dev/null 2>&1 && echo yes; true",
    );
    if has_pip != "yes\n" {
        return skip("this system's Python has no pip");
    }
    for user in ["root", "user"] {
        assert_eq!(printed(&site, user, WHEEL), "wheel\nwheel\n", "{user}");
    }
}
