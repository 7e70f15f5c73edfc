//! An image of this machine's files, in a registry on loopback.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::api::client::answered;
use crate::error::TaskError;
use crate::program;

/// What stands for the image in a Dockerfile.
pub(super) const IMAGE_NAME: &str = "bench";
/// The layers: directories of this machine, those of them that are there.
const LAYERS: [&[&str]; 3] = [
    &["bin/busybox"],
    &[
        "usr/lib/python3",
        "usr/lib/python3.11",
        "usr/lib/python3.13",
        "usr/share/perl",
    ],
    &["usr/share/zoneinfo", "usr/share/locale"],
];
/// Names of busybox in the image.
const APPLETS: [&str; 8] = ["sh", "true", "cat", "ls", "mkdir", "cp", "date", "id"];
const STARTED_TIMEOUT: Duration = Duration::from_secs(20);

/// A registry with one image; ended when dropped.
#[derive(Debug)]
pub(super) struct Registry {
    child: Child,
    port: u16,
}

impl Registry {
    /// Makes the image below `place`, starts the registry and pushes to it.
    ///
    /// # Errors
    /// `Start` where `docker-registry`, `umoci` or `skopeo` are missing, `Ended` when one of them fails.
    pub(super) fn start(place: &Path) -> Result<Self, TaskError> {
        let layout = make_image(place)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(TaskError::start("a listener"))?;
        let port = listener.local_addr().map_err(TaskError::start("a listener"))?.port();
        drop(listener);
        let config = place.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog:\n  level: error\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
             http:\n  addr: 127.0.0.1:{port}\n  secret: any\n",
            place.join("registry").display()
        );
        fs::write(&config, text).map_err(TaskError::file("writing", &config))?;
        let mut command = Command::new("docker-registry");
        command
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(TaskError::start("docker-registry"))?;
        let registry = Self { child, port };
        let deadline = Instant::now() + STARTED_TIMEOUT;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if Instant::now() > deadline {
                return Err(answered("docker-registry", "it does not listen".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut push = Command::new("skopeo");
        push.args(["--insecure-policy", "copy", "-q", "--dest-tls-verify=false"]);
        push.arg(format!("oci:{}:t", layout.display()));
        push.arg(format!("docker://{}", registry.image()));
        program::run(&mut push)?;
        Ok(registry)
    }

    /// The image's name.
    pub(super) fn image(&self) -> String {
        format!("127.0.0.1:{}/bench/image:t", self.port)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Makes a layout with an image of three layers, called `t`.
fn make_image(place: &Path) -> Result<PathBuf, TaskError> {
    let (layout, root) = (place.join("layout"), place.join("root"));
    fs::create_dir_all(root.join("bin")).map_err(TaskError::file("creating", &root))?;
    let busybox = root.join("bin/busybox");
    fs::copy("/bin/busybox", &busybox).map_err(TaskError::file("copying", "/bin/busybox"))?;
    for name in APPLETS {
        let link = root.join("bin").join(name);
        std::os::unix::fs::symlink("busybox", &link).map_err(TaskError::file("linking", &link))?;
    }
    umoci(&["init", "--layout"], &[&layout])?;
    let image = format!("{}:t", layout.display());
    umoci(&["new", "--image", &image], &[])?;
    for (number, members) in LAYERS.iter().enumerate() {
        let archive = place.join(format!("layer{number}.tar"));
        let (from, members): (&Path, Vec<&str>) = match number {
            0 => (&root, vec!["."]),
            _ => (
                Path::new("/"),
                members
                    .iter()
                    .copied()
                    .filter(|member| Path::new("/").join(member).exists())
                    .collect(),
            ),
        };
        let mut tar = Command::new("tar");
        tar.arg("-C")
            .arg(from)
            .args(["--numeric-owner", "--owner=0", "--group=0", "-cf"])
            .arg(&archive)
            .args(members);
        program::run(&mut tar)?;
        umoci(&["raw", "add-layer", "--image", &image], &[&archive])?;
        fs::remove_file(&archive).map_err(TaskError::file("removing", &archive))?;
    }
    Ok(layout)
}

fn umoci(words: &[&str], paths: &[&Path]) -> Result<(), TaskError> {
    let mut command = Command::new("umoci");
    command
        .args(words)
        .args(paths)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    program::run(&mut command)
}
