//! A host and an internet of our own, in network namespaces, and programs that are run there.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

pub(crate) use crate::support::openssl::openssl;
use crate::support::processes::{eventually, finish, program, start};
use crate::support::{Site, is_root, record_of, skip, stderr};

const PYTHON: &str = "/usr/bin/python3";
const INTERNET: &str = include_str!("internet.py");
pub(crate) const CLIENT: &str = include_str!("client.py");
/// The first address of the host, from which whatever it does by itself comes.
const HOST: [&str; 2] = ["151.101.64.2", "2606:2800:220::2"];

/// The host and the internet. They end with this process, which holds the pipe that they read.
pub(crate) struct World {
    directory: PathBuf,
    machine: Child,
}

/// What every test shares; the reason if it cannot be made here.
static WORLD: OnceLock<Result<World, String>> = OnceLock::new();

/// The host and the internet, or a counted skip.
pub(crate) fn world() -> Option<&'static World> {
    match WORLD.get_or_init(World::make) {
        Ok(world) => Some(world),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

impl World {
    fn make() -> Result<Self, String> {
        for needed in ["python3", "openssl", "unshare", "nsenter"] {
            program(needed).ok_or_else(|| format!("`{needed}` is missing"))?;
        }
        if !["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"]
            .iter()
            .any(|path| Path::new(path).exists())
        {
            return Err("`ip` (iproute2) is missing".to_owned());
        }
        let directory = tempfile::Builder::new().prefix("offleash-network-").tempdir().unwrap();
        certify(directory.path())?;
        crate::opened::prepare(directory.path())?;
        crate::secrets::prepare(directory.path())?;
        crate::clients::prepare(directory.path())?;
        crate::ways_out::prepare(directory.path());
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount"]);
        if !is_root() {
            command.args(["--user", "--map-current-user", "--keep-caps"]);
        }
        command.args([PYTHON, "-I", "-S", "-c", INTERNET]).arg(directory.path());
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        // An error file rather than a pipe: nobody reads the pipe later.
        let errors = std::fs::File::create(directory.path().join("errors")).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut machine = command.spawn().map_err(|error| error.to_string())?;
        let mut line = String::new();
        BufReader::new(machine.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        if line == "ready\n" {
            // It is removed by the other process, since this one ends without dropping what is shared.
            return Ok(Self {
                directory: directory.keep(),
                machine,
            });
        }
        machine.wait().unwrap();
        let said = std::fs::read_to_string(directory.path().join("errors")).unwrap();
        Err(format!(
            "no network of our own: {}",
            said.lines().last().unwrap_or_default()
        ))
    }

    /// A file of the internet.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Gives the host one more address, and waits until it has that.
    pub(crate) fn add_address(&self, address: &str) {
        let mut told = self.machine.stdin.as_ref().unwrap();
        writeln!(told, "address add {address}/32 dev lo").unwrap();
        eventually("an address", || {
            let mut command = self.command(&self.directory);
            command.args([
                "/usr/bin/env",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                "ip",
                "-o",
                "address",
                "show",
                "to",
                address,
            ]);
            (!finish(start(&mut command)).stdout.is_empty()).then_some(())
        });
    }

    /// A program of the host, with the user and the privileges of this process.
    pub(crate) fn command(&self, directory: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--net", "--mount", "--target"])
            .arg(self.machine.id().to_string());
        if !is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        // The working directory is lost with the mount namespace.
        command.args(["--", "env", "-C"]).arg(directory);
        command
    }

    /// `offleash` on the host, at `site`.
    pub(crate) fn offleash(&self, site: &Site, arguments: &[&str]) -> Command {
        let plain = site.offleash(arguments);
        let mut command = self.command(&site.workspace());
        command.arg(plain.get_program()).args(plain.get_args());
        command.env_clear();
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// `offleash run --json` of a program in Python, to be started.
    pub(crate) fn sandboxed(&self, site: &Site, flags: &[&str], attempts: &str) -> Command {
        let text = full(attempts);
        let mut arguments = vec!["run", "--json"];
        arguments.extend_from_slice(flags);
        arguments.extend_from_slice(&["--", PYTHON, "-I", "-S", "-c", &text]);
        self.offleash(site, &arguments)
    }

    /// The same, where offleash itself may have no more than `files` open.
    pub(crate) fn sandboxed_with_files(&self, site: &Site, files: u32, flags: &[&str], attempts: &str) -> Command {
        let plain = self.sandboxed(site, flags, attempts);
        let mut command = Command::new("prlimit");
        command
            .arg(format!("--nofile={files}:{files}"))
            .arg(plain.get_program())
            .args(plain.get_args());
        command.env_clear();
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// A command in a session of its own, of which the terminal that is its standard input is the terminal; or none.
    pub(crate) fn in_session(command: &Command, has_terminal: bool) -> Command {
        let mut wrapped = Command::new("setsid");
        wrapped.args(has_terminal.then_some("--ctty"));
        wrapped.arg(command.get_program()).args(command.get_args());
        wrapped.env_clear();
        wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        wrapped
    }

    /// Runs attempts in a sandbox.
    #[track_caller]
    pub(crate) fn inside(&self, flags: &[&str], attempts: &str) -> Seen {
        let site = Site::new();
        std::fs::copy(self.directory.join("certificate"), site.workspace().join("certificate")).unwrap();
        Seen::of_output(&finish(start(&mut self.sandboxed(&site, flags, attempts))))
    }

    /// Runs attempts on the host, without a sandbox. The servers see them come from another address.
    #[track_caller]
    pub(crate) fn outside(&self, attempts: &str) -> Seen {
        let mut command = self.command(&self.directory);
        command.args([PYTHON, "-I", "-S", "-c", &full(attempts)]);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("CONTROL", "1");
        let output: Output = finish(start(&mut command));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        Seen::parse(&String::from_utf8_lossy(&output.stdout), Value::String(errors))
    }

    /// What the servers met, other than controls.
    pub(crate) fn met(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.directory.join("journal")).unwrap();
        let entries = text.lines().map(|line| serde_json::from_str(line).unwrap());
        entries.filter(|entry: &Value| !is_control(entry)).collect()
    }

    /// Asserts that nobody but controls reached a server at `address`, or at any port of the host itself.
    #[track_caller]
    pub(crate) fn assert_untouched(&self, address: &str) {
        let touched: Vec<_> = self
            .met()
            .into_iter()
            .filter(|entry| entry["local"] == address)
            .collect();
        assert!(touched.is_empty(), "{touched:#?}");
    }

    /// Asserts that the internet was not asked for `name`, nor for anything below it.
    #[track_caller]
    pub(crate) fn assert_never_asked(&self, name: &str) {
        let below = format!(".{name}");
        let leaked = self.met().into_iter().find(|entry| {
            let asked = entry["name"].as_str().unwrap_or_default();
            asked == name || asked.ends_with(&below)
        });
        assert!(leaked.is_none(), "{leaked:?}");
    }
}

/// Whether it was met by somebody who bound the address of controls; everything else may be offleash.
fn is_control(entry: &Value) -> bool {
    let peer = entry["peer"].as_str().unwrap_or_default();
    ["151.101.64.3", "2606:2800:220::3", "127.0.0.9"].contains(&peer)
}

/// Whether the host itself, and so offleash, was the one who came.
pub(crate) fn is_from_host(entry: &Value) -> bool {
    HOST.contains(&entry["peer"].as_str().unwrap_or_default())
}

fn full(attempts: &str) -> String {
    format!("{CLIENT}\n{attempts}\nprint(json.dumps(results))\n")
}

/// How many connections these entries of a record stand for.
pub(crate) fn times<'a>(entries: impl IntoIterator<Item = &'a Value>) -> u64 {
    entries.into_iter().map(|one| one["times"].as_u64().unwrap()).sum()
}

/// Runs a program that prepares something.
///
/// # Errors
/// What it said when it failed.
pub(crate) fn carry_out(command: &mut Command) -> Result<(), String> {
    let made = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if made.status.success() {
        Ok(())
    } else {
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&made.stderr)))
    }
}

/// Asserts that `offleash run` refuses each of these flags and says what to do.
#[track_caller]
pub(crate) fn assert_refused_with_hints(all: &[&[&str]]) {
    let site = Site::new();
    for flags in all {
        let arguments = [&["run"], *flags, &["--", "true"]].concat();
        let output = site.offleash(arguments).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{flags:?}: {said}");
        assert!(said.contains("hint: "), "{flags:?}: {said}");
    }
}

/// A certificate for every name that has a server.
fn certify(directory: &Path) -> Result<(), String> {
    openssl(
        directory,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=internet \
         -addext subjectAltName=DNS:www.example.com,DNS:secret.example.com,DNS:api.example.com,IP:93.184.216.34 \
         -keyout key -out certificate",
    )
}

/// What came of attempts.
#[derive(Debug)]
pub(crate) struct Seen {
    attempts: BTreeMap<String, BTreeMap<String, String>>,
    /// The record of the run; without a sandbox, what was written to standard error.
    pub(crate) record: Value,
}

impl Seen {
    /// What came of attempts in a sandbox.
    #[track_caller]
    pub(crate) fn of_output(output: &Output) -> Self {
        let record = record_of(output);
        let written = record["stdout"]["data"].as_str().unwrap_or_default().to_owned();
        Self::parse(&written, record)
    }

    #[track_caller]
    fn parse(written: &str, record: Value) -> Self {
        let attempts = written.lines().last().and_then(|line| serde_json::from_str(line).ok());
        let Some(attempts) = attempts else {
            panic!(
                "the program did not come to its end: {written}{}",
                record.get("stderr").unwrap_or(&record)
            );
        };
        Self { attempts, record }
    }

    #[track_caller]
    fn outcome(&self, name: &str, outcome: &str) -> &str {
        let attempt = self.attempts.get(name).unwrap_or_else(|| panic!("no attempt `{name}`"));
        let text = attempt.get(outcome);
        text.unwrap_or_else(|| panic!("`{name}` is not {outcome}: {attempt:?}\n{:#}", self.record["network"]))
    }

    /// What a successful attempt answered.
    #[track_caller]
    pub(crate) fn done(&self, name: &str) -> &str {
        self.outcome(name, "done")
    }

    /// Why an attempt was refused, which it must have been at once.
    #[track_caller]
    pub(crate) fn refused(&self, name: &str) -> &str {
        self.outcome(name, "refused")
    }

    /// What came of an attempt, whichever it was.
    #[track_caller]
    pub(crate) fn told(&self, name: &str) -> &str {
        let attempt = self.attempts.get(name).unwrap_or_else(|| panic!("no attempt `{name}`"));
        attempt.values().next().unwrap()
    }

    /// The names of all attempts.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.attempts.keys().map(String::as_str)
    }

    /// Asserts that every attempt succeeded.
    #[track_caller]
    pub(crate) fn all_done(&self) {
        for name in self.names() {
            self.done(name);
        }
    }

    /// Asserts that every attempt was refused.
    #[track_caller]
    pub(crate) fn all_refused(&self) {
        assert!(!self.attempts.is_empty());
        for name in self.names() {
            self.refused(name);
        }
    }

    /// Asserts that the attempts that must be possible succeeded, and that all others were refused.
    #[track_caller]
    pub(crate) fn all_refused_but(&self, possible: &[&str]) {
        for name in possible {
            self.done(name);
        }
        assert!(self.attempts.len() > possible.len());
        for name in self.names().filter(|name| !possible.contains(name)) {
            self.refused(name);
        }
    }

    /// The connections to `host` in the record.
    pub(crate) fn connections(&self, host: &str) -> Vec<&Value> {
        let all = self.record["network"]["connections"].as_array();
        all.into_iter()
            .flatten()
            .filter(|connection| connection["host"] == host)
            .collect()
    }

    /// The only connection to `host` in the record.
    #[track_caller]
    pub(crate) fn connection(&self, host: &str) -> &Value {
        let found = self.connections(host);
        assert_eq!(found.len(), 1, "{:#}", self.record["network"]);
        found[0]
    }

    /// How often a name was asked for that does not exist for the sandbox.
    pub(crate) fn refused_name(&self, name: &str) -> Option<u64> {
        self.record["network"]["refused_names"][name].as_u64()
    }
}
