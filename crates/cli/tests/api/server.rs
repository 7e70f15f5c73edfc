//! A server of a test's own: the real program, on a port of its own, with a state directory of its own.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::Signal;

use crate::client::{Answer, ask};
use crate::support::processes::{signal, wait};
use crate::support::terminal::Terminal;
use crate::support::{Site, stderr, stdout};

/// A server that runs until it is dropped.
pub(crate) struct Server {
    pub(crate) site: Site,
    pub(crate) address: SocketAddr,
    child: Child,
    /// What reads its standard error, so that it never has to wait.
    log: Option<std::thread::JoinHandle<String>>,
}

/// No sandbox is made ahead: tests that make none start no supervisor.
pub(crate) const QUIET: &str = "[pool]\nmin = 0\nmax = 0\n";

/// No browser is started either: of one that ends at once nobody waits.
pub(crate) const WITHOUT_BROWSER: &str = "[pool]\nmin = 0\nmax = 0\n[sandboxes]\nbrowser_command = [\"false\"]\n";

impl Server {
    /// A server with the defaults.
    pub(crate) fn start() -> Self {
        Self::start_with(QUIET, &[])
    }

    /// A server with a configuration file and flags.
    pub(crate) fn start_with(config: &str, flags: &[&str]) -> Self {
        let site = Site::sharing_templates();
        Self::start_on(site, config, flags)
    }

    /// A server on a state directory that is there.
    pub(crate) fn start_on(site: Site, config: &str, flags: &[&str]) -> Self {
        let file = site.root().join("offleash-serve.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = site.offleash(["serve", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(file).args(flags);
        Self::spawned(site, command)
    }

    /// The server that `command` starts.
    pub(crate) fn spawned(site: Site, mut command: Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self::of(site, child)
    }

    /// The server that `command` starts, whose log goes to a terminal.
    pub(crate) fn at_terminal(site: Site, mut command: Command, terminal: &Terminal) -> Self {
        Self::of(
            site,
            terminal.spawn(command.stdout(Stdio::piped()).stderr(terminal.stream())),
        )
    }

    fn of(site: Site, child: Child) -> Self {
        let (child, address, log) = Self::listening(child);
        Self {
            site,
            address,
            child,
            log,
        }
    }

    /// Waits until it listens, and has its log read.
    fn listening(mut child: Child) -> (Child, SocketAddr, Option<std::thread::JoinHandle<String>>) {
        let errors = child.stderr.take();
        let log = std::thread::spawn(move || {
            let mut text = String::new();
            if let Some(mut errors) = errors {
                errors.read_to_string(&mut text).unwrap();
            }
            text
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next();
        let Some(Ok(line)) = first else {
            let status = wait(&mut child);
            panic!("the server did not start: {status}: {}", log.join().unwrap());
        };
        let url = line.split_once("://").unwrap_or_else(|| panic!("{line}")).1;
        let address = url.parse().unwrap();
        (child, address, Some(log))
    }

    /// Makes a key with `offleash key create`.
    pub(crate) fn key(&self, flags: &[&str]) -> String {
        let mut arguments = vec!["key", "create"];
        arguments.extend_from_slice(flags);
        let output = self.site.offleash(arguments).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).trim().to_owned()
    }

    /// Asks with a key.
    pub(crate) fn ask(&self, key: &str, request_line: &str, body: &str) -> Answer {
        ask(self.address, request_line, &[("X-API-KEY", key)], body)
    }

    /// The socket of the owner.
    pub(crate) fn socket(&self) -> PathBuf {
        self.site.state().join("api.sock")
    }

    /// Its configuration file.
    pub(crate) fn config(&self) -> PathBuf {
        self.site.root().join("offleash-serve.toml")
    }

    /// Its process.
    pub(crate) fn child(&self) -> &Child {
        &self.child
    }

    /// Asks it to end and waits until it has; answers how, and what it logged.
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        signal(&self.child, Signal::TERM);
        let status = wait(&mut self.child);
        (status, self.log.take().unwrap().join().unwrap())
    }

    /// Ends it, and starts another on the same state directory.
    pub(crate) fn restart(&mut self) {
        let _ended = self.end();
        let mut command = self.site.offleash(["serve", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(self.config());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        (self.child, self.address, self.log) = Self::listening(child);
    }

    /// Kills every sandbox that is there, as the owner.
    fn kill_sandboxes(&self) {
        let Ok(output) = self.site.offleash(["ls", "--quiet"]).output() else {
            return;
        };
        for id in stdout(&output).split_whitespace() {
            // It may be gone already.
            let _killed = self.site.offleash(["rm", "--force", id]).output();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.log.is_some() {
            self.kill_sandboxes();
            signal(&self.child, Signal::TERM);
            wait(&mut self.child);
        }
    }
}
