//! A real registry on this machine.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::layout::skopeo;
use super::support::processes::eventually;
use super::support::skip;

/// A registry on loopback, which is ended at the end.
pub(crate) struct Registry {
    pub(crate) port: u16,
    process: Child,
}

impl Registry {
    /// `None`, and said so, where there is none to be started.
    pub(crate) fn start(directory: &Path, more_of_http: &str, more: &str) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let storage = directory.join("storage");
        fs::create_dir_all(&storage).unwrap();
        let config = format!(
            "version: 0.1\nlog:\n  level: error\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n    rootdirectory: \
             {}\nhttp:\n  addr: 127.0.0.1:{port}\n  secret: any\n{more_of_http}{more}",
            storage.display()
        );
        let file = directory.join("registry.yml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new("docker-registry");
        command
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let Ok(process) = command.spawn() else {
            skip("there is no docker-registry to pull from");
            return None;
        };
        let registry = Self { port, process };
        eventually("the registry listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        Some(registry)
    }

    pub(crate) fn name(&self) -> String {
        format!("127.0.0.1:{}/a/box:t", self.port)
    }

    /// Pushes the image of a layout; whether that was possible.
    pub(crate) fn push(&self, layout: &Path, flags: &[&str]) -> bool {
        let (from, to) = (
            format!("oci:{}:t", layout.display()),
            format!("docker://{}", self.name()),
        );
        let is_pushed = skopeo(&[flags, &["--dest-tls-verify=false", &from, &to]].concat());
        if !is_pushed {
            skip("there is no skopeo to push with");
        }
        is_pushed
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
