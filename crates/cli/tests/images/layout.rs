//! Images that are made here, as layouts of OCI.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::support::{skip, stderr};

/// A layout under construction.
pub(crate) struct Layout;

impl Layout {
    /// Writes an image of these layers, called `t`, with what it says of its programs.
    pub(crate) fn write(directory: &Path, layers: &[Vec<u8>], process: &Value) -> PathBuf {
        fs::create_dir_all(directory.join("blobs/sha256")).unwrap();
        let keep = |bytes: &[u8], kind: &str| {
            let digest = sha256(directory, bytes);
            fs::rename(directory.join("new"), directory.join("blobs/sha256").join(&digest)).unwrap();
            json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len() })
        };
        let digests: Vec<String> = layers
            .iter()
            .map(|layer| format!("sha256:{}", sha256(directory, layer)))
            .collect();
        let config = json!({
            "architecture": offleash_core::processor::ImagePlatform::OURS.architecture, "os": "linux", "config": process, "rootfs": { "type": "layers", "diff_ids": digests },
        });
        let config = keep(
            config.to_string().as_bytes(),
            "application/vnd.oci.image.config.v1+json",
        );
        let layers: Vec<Value> = layers
            .iter()
            .map(|layer| keep(layer, "application/vnd.oci.image.layer.v1.tar"))
            .collect();
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({ "schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers });
        let mut manifest = keep(manifest.to_string().as_bytes(), kind);
        manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "t" });
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        fs::write(directory.join("index.json"), index.to_string()).unwrap();
        fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        directory.to_owned()
    }
}

/// The digest of bytes, which are then in the file `new`.
pub(crate) fn sha256(directory: &Path, bytes: &[u8]) -> String {
    let new = directory.join("new");
    fs::write(&new, bytes).unwrap();
    let output = Command::new("sha256sum").arg(&new).output().unwrap();
    String::from_utf8_lossy(&output.stdout)
        .split(' ')
        .next()
        .unwrap()
        .to_owned()
}

/// What is in a directory as a layer; `owner` has all of it.
pub(crate) fn layer(directory: &Path, owner: &str) -> Vec<u8> {
    let mut command = Command::new("tar");
    command
        .arg("-C")
        .arg(directory)
        .args(["--numeric-owner", "--sort=name", "--format=gnu", "-c"]);
    command.arg(format!("--owner={owner}")).arg(format!("--group={owner}"));
    let output = command.arg(".").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    output.stdout
}

/// Copies an image, if there is a skopeo.
pub(crate) fn skopeo(arguments: &[&str]) -> bool {
    let mut command = Command::new("skopeo");
    match command
        .args(["--insecure-policy", "copy", "-q"])
        .args(arguments)
        // Where it looks for passwords, of which there are none.
        .env("XDG_RUNTIME_DIR", std::env::temp_dir())
        .output()
    {
        Ok(output) => {
            assert!(output.status.success(), "{}", stderr(&output));
            true
        }
        Err(_) => false,
    }
}

/// An image of busybox in three layers.
pub(crate) struct Busybox;

impl Busybox {
    /// `None`, and said so, where there is no static busybox.
    pub(crate) fn layout(site: &Path) -> Option<PathBuf> {
        let program = Path::new("/bin/busybox");
        if !program.exists() || dynamic(program) {
            skip("there is no static busybox to make an image of");
            return None;
        }
        let [first, second, third] = ["first", "second", "third"].map(|name| site.join("layers").join(name));
        for directory in ["bin", "etc/kept", "opt", "tmp", "root"] {
            fs::create_dir_all(first.join(directory)).unwrap();
        }
        fs::copy(program, first.join("bin/busybox")).unwrap();
        for name in [
            "sh",
            "ls",
            "cat",
            "id",
            "whoami",
            "touch",
            "stat",
            "wc",
            "rm",
            "mkdir",
            "sleep",
            "grep",
            "env",
            "find",
            "sha256sum",
        ] {
            symlink("busybox", first.join("bin").join(name)).unwrap();
        }
        let accounts = "root:x:0:0:root:/root:/bin/sh\napp:x:1234:1234::/work:/bin/sh\n";
        for (path, text) in [
            ("etc/passwd", accounts),
            ("etc/group", "root:x:0:\n"),
            ("etc/replaced", "old\n"),
            ("etc/kept/old", ""),
            ("bin/gone", ""),
            ("bin/setuid", ""),
            ("opt/file", "file\n"),
        ] {
            fs::write(first.join(path), text).unwrap();
        }
        fs::set_permissions(first.join("bin/setuid"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::set_permissions(first.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        for directory in ["bin", "etc/kept"] {
            fs::create_dir_all(second.join(directory)).unwrap();
        }
        for (path, text) in [
            ("bin/.wh.gone", ""),
            ("etc/kept/.wh..wh..opq", ""),
            ("etc/kept/new", ""),
            ("etc/replaced", "new\n"),
        ] {
            fs::write(second.join(path), text).unwrap();
        }
        fs::hard_link(second.join("etc/replaced"), second.join("etc/linked")).unwrap();
        fs::create_dir_all(third.join("work")).unwrap();
        let layers = [layer(&first, "0"), layer(&second, "0"), rooted(layer(&third, "33"))];
        let process = json!({
            "Env": ["PATH=/bin", "OF_THE_IMAGE=yes"], "WorkingDir": "/work", "Cmd": ["own"],
            "Entrypoint": ["sh", "-c", "echo its $0"],
        });
        let layout = Layout::write(&site.join("box"), &layers, &process);
        Some(layout)
    }
}

/// Without the entry of the root directory, which is not the layer's to change.
fn rooted(layer: Vec<u8>) -> Vec<u8> {
    layer[512..].to_vec()
}

fn dynamic(program: &Path) -> bool {
    let output = Command::new("ldd").arg(program).output();
    output.is_ok_and(|output| output.status.success())
}

/// An image of the host's Python and what it is linked to; `None`, and said so, where there is none.
pub(crate) fn python(site: &Path) -> Option<PathBuf> {
    let script = r#"set -e; root=$1; python=$(readlink -f /usr/bin/python3); library=$(/usr/bin/python3 -c 'import os; print(os.path.dirname(os.__file__))')
        mkdir -p "$root/usr/bin" "$root/tmp" "$root$library"; ln -s usr/lib "$root/lib"; ln -s usr/lib64 "$root/lib64"; ln -s usr/bin "$root/bin"; mkdir -p "$root/usr/lib" "$root/usr/lib64"
        cp "$python" "$root/usr/bin/python3"
        for part in json encodings collections importlib re lib-dynload; do cp -rL "$library/$part" "$root$library/"; done
        cp "$library"/*.py "$root$library/"
        for file in "$python" "$root$library"/lib-dynload/_ssl*.so "$root$library"/lib-dynload/_json*.so; do ldd "$file" | grep -o '/[^ ]*' || true; done | sort -u |
            while read -r file; do mkdir -p "$root$(dirname "$(readlink -f "$file")")" "$root/usr/lib/x86_64-linux-gnu"; cp -L "$file" "$root/usr/lib/x86_64-linux-gnu/"; done
        cp -L /lib64/ld-linux-x86-64.so.2 "$root/usr/lib64/""#;
    let root = site.join("python-root");
    fs::create_dir(&root).unwrap();
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(&root)
        .output()
        .unwrap();
    if !output.status.success() {
        skip("there is no Python of the usual form to make an image of");
        return None;
    }
    let process = json!({ "Env": ["PATH=/usr/bin", "PYTHONDONTWRITEBYTECODE=1"], "Cmd": ["python3"] });
    Some(Layout::write(&site.join("python"), &[layer(&root, "0")], &process))
}
