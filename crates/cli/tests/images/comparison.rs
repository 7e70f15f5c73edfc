//! What we unpack, against what umoci unpacks: file by file, with modes, owners, links, sizes and contents.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::layout::{Busybox, Layout, layer, sha256};
use super::support::{Site, is_root, skip, stderr, stdout};

/// What a tree consists of. Setuid is taken from programs by us alone.
const LIST: &str = "find . -printf '%P|%y|%m|%U|%G|%l|%n|%T@|' \\( -type f -printf '%s|' -exec sha256sum {} \\; -o -printf '\\n' \\) | sort";

/// The trees of an image's layers, the lowest first: each is called by the digest of the chain up to it.
fn layers(site: &Site, layout: &Path) -> Vec<PathBuf> {
    let read = |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let hex = |digest: &str| digest.strip_prefix("sha256:").unwrap().to_owned();
    let blob = |digest: &Value| read(layout.join("blobs/sha256").join(hex(digest.as_str().unwrap())));
    let manifest = blob(&read(layout.join("index.json"))["manifests"][0]["digest"]);
    let config = blob(&manifest["config"]["digest"]);
    let mut chain: Option<String> = None;
    let mut trees = Vec::new();
    for layer in config["rootfs"]["diff_ids"].as_array().unwrap() {
        let layer = layer.as_str().unwrap();
        let next = match &chain {
            None => layer.to_owned(),
            Some(below) => format!("sha256:{}", sha256(site.root(), format!("{below} {layer}").as_bytes())),
        };
        trees.push(site.state().join("images/layers/owned").join(hex(&next)).join("upper"));
        chain = Some(next);
    }
    trees
}

/// Lists the layers of an image of ours, put together in a mount namespace of its own.
fn ours(site: &Site, layout: &Path, name: &str) -> String {
    let shown: Value = serde_json::from_str(&site.succeed(["image", "inspect", name])).unwrap();
    assert_eq!(shown[0]["unpacked"][0]["ownership"], "owned");
    let uppers = layers(site, layout);
    let mut lowers: Vec<String> = uppers.iter().rev().map(|path| path.display().to_string()).collect();
    let empty = site.root().join("empty");
    fs::create_dir_all(&empty).unwrap();
    lowers.push(empty.display().to_string());
    let script = format!(
        "set -e; mount -t overlay overlay -o ro,userxattr,lowerdir={} /mnt; cd /mnt; {LIST}",
        lowers.join(":")
    );
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", &script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Lists what umoci unpacks; `None` where there is none.
fn theirs(site: &Site, layout: &Path) -> Option<String> {
    let bundle = site.root().join("bundle");
    let image = format!("{}:t", layout.display());
    let output = Command::new("umoci")
        .args(["unpack", "--image", &image])
        .arg(&bundle)
        .output()
        .ok()?;
    assert!(output.status.success(), "{}", stderr(&output));
    let output = Command::new("sh")
        .args(["-c", LIST])
        .current_dir(bundle.join("rootfs"))
        .output()
        .unwrap();
    Some(stdout(&output))
}

/// Lines as both should have them: links are counted by inode, which overlays change for directories, and setuid is ours.
fn comparable(listing: &str) -> Vec<String> {
    let line = |line: &str| {
        let mut fields: Vec<String> = line.split('|').map(str::to_owned).collect();
        if fields.len() > 7 {
            if fields[1] == "d" {
                fields[6] = String::new();
            }
            if fields[1] == "f" && fields[2].len() == 4 {
                fields[2].remove(0);
            }
            // Of directories that no layer names nobody knows the time, and links have one of their own in each tool.
            if fields[0].is_empty() {
                fields[7] = String::new();
            }
        }
        fields.join("|")
    };
    listing.lines().map(line).collect()
}

fn compare(site: &Site, layout: &Path, name: &str) {
    site.succeed(["image", "load", "-q", layout.to_str().unwrap()]);
    let Some(theirs) = theirs(site, layout) else {
        return skip("there is no umoci to compare with");
    };
    let (ours, theirs) = (comparable(&ours(site, layout, name)), comparable(&theirs));
    assert!(ours.len() > 5, "{ours:?}");
    for (one, other) in ours.iter().zip(&theirs) {
        assert_eq!(one, other);
    }
    assert_eq!(ours.len(), theirs.len());
}

fn can_compare() -> bool {
    if !is_root() {
        skip("only root can mount layers together and keep owners");
    }
    is_root()
}

#[test]
fn an_image_with_whiteouts_is_what_umoci_makes_of_it() {
    if !can_compare() {
        return;
    }
    let site = Site::new();
    let Some(layout) = Busybox::layout(site.root()) else {
        return;
    };
    compare(&site, &layout, "localhost/box:t");
}

#[test]
fn an_image_of_the_host_s_files_is_what_umoci_makes_of_it() {
    if !can_compare() {
        return;
    }
    let site = Site::new();
    let [first, second] = ["first", "second"].map(|name| site.root().join(name));
    // Of every kind that packages have: links of both kinds, modes, owners, times, long names, holes.
    let script = r#"set -e; mkdir -p "$1/usr/share/doc" "$1/var" "$2/usr/share/doc"
        cp -a $(ls -d /usr/share/doc/* | head -100) "$1/usr/share/doc/"; cp -a /etc/alternatives "$1/var/"
        mkdir -p "$1/var/mail"; chmod 2775 "$1/var/mail"; chown 8:8 "$1/var/mail"; mkfifo "$1/var/pipe"; chmod 0 "$1/var/pipe"
        truncate -s 5M "$1/var/holes"; echo end >>"$1/var/holes"; ln "$1/var/holes" "$1/var/linked"; ln -s linked "$1/var/link"
        long=$(printf 'n%.0s' $(seq 200)); mkdir -p "$1/var/$long/$long"; echo x >"$1/var/$long/$long/$long"; ln -s "$long/$long/$long" "$1/var/far"
        printf 'ä\n\001' >"$1/var/$(printf '\344\001 strange')"
        for gone in $(ls "$1/usr/share/doc" | head -40); do : >"$2/usr/share/doc/.wh.$gone"; done
        mkdir "$2/usr/share/doc/new"; echo new >"$2/usr/share/doc/new/file"; mkdir -p "$2/var"; : >"$2/var/.wh.mail""#;
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .args([&first, &second])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let tar = |directory: &Path, format: &str| {
        let mut command = Command::new("tar");
        command
            .arg("-C")
            .arg(directory)
            .args(["--numeric-owner", "--sort=name", format, "-c", "."]);
        command.output().unwrap().stdout
    };
    for (number, format) in ["--format=pax", "--format=gnu"].into_iter().enumerate() {
        let site = Site::new();
        let layers = [tar(&first, format), tar(&second, format)];
        let layout = Layout::write(&site.root().join("host"), &layers, &serde_json::json!({}));
        compare(&site, &layout, "localhost/host:t");
        assert!(number < 2);
    }
}

#[test]
fn each_compression_makes_the_same_of_a_layer() {
    let site = Site::new();
    let directory = site.root().join("root");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), b"some words ".repeat(10_000)).unwrap();
    let plain = layer(&directory, "0");
    let layout = Layout::write(&site.root().join("plain"), &[plain], &serde_json::json!({}));
    site.succeed(["image", "load", "-q", layout.to_str().unwrap()]);
    for format in ["gzip", "zstd"] {
        let to = site.root().join(format);
        let arguments = [
            "--dest-compress-format",
            format,
            &format!("oci:{}:t", layout.display()),
            &format!("oci:{}:t", to.display()),
        ];
        if !super::layout::skopeo(&[&["--dest-compress"], &arguments[..]].concat()) {
            return skip("there is no skopeo to compress layers");
        }
        site.succeed(["image", "load", "-q", to.to_str().unwrap()]);
    }
    assert_eq!(site.succeed(["image", "ls"]).lines().count(), 4);
    let form = if is_root() { "owned" } else { "flat" };
    let layers = fs::read_dir(site.state().join("images/layers").join(form)).unwrap();
    assert_eq!(
        layers.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count(),
        1,
        "one layer, whatever it came in"
    );
}
