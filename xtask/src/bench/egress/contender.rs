//! The ways to the server that are compared.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::SERVER;
use super::client::Work;
use crate::bench::contender::Arena;
use crate::bench::sample::CommandLine;
use crate::error::TaskError;
use crate::program;

/// Nobody is in between.
pub(super) const DIRECT: &str = "direct";
/// Somebody is in between who does nothing else.
pub(super) const RELAY: &str = "relay";
/// A proxy that the client must speak to.
pub(super) const TINYPROXY: &str = "tinyproxy";
/// Our name.
pub(super) const OFFLEASH: &str = "offleash";

const AT_RELAY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9001);
const AT_TINYPROXY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9002);
/// How long a program may take until it can be connected to.
const READY: Duration = Duration::from_secs(10);

/// One way to the server.
#[derive(Debug)]
pub(super) struct Contender {
    /// As it is named in reports.
    pub(super) name: &'static str,
    /// The client's command line before its own arguments.
    client: CommandLine,
    server: SocketAddr,
    via: Option<SocketAddr>,
    /// Who is in between, where that is a program of its own.
    _between: Option<Running>,
}

impl Contender {
    /// All ways, or why one cannot be prepared.
    pub(super) fn all(arena: &Arena, client: &Path) -> [(&'static str, Result<Self, TaskError>); 4] {
        let plain = arena.command(vec![client.into()]);
        let way = |name, server, via, between| Self {
            name,
            client: plain.clone(),
            server,
            via,
            _between: between,
        };
        let ours = Self {
            client: arena.command(sandboxed(arena, Some(&SERVER.to_string()), &["./client"])),
            ..way(OFFLEASH, SERVER, None, None)
        };
        [
            (DIRECT, Ok(way(DIRECT, SERVER, None, None))),
            (
                RELAY,
                relay(client).map(|relay| way(RELAY, AT_RELAY, None, Some(relay))),
            ),
            (
                TINYPROXY,
                tinyproxy(arena).map(|proxy| way(TINYPROXY, SERVER, Some(AT_TINYPROXY), Some(proxy))),
            ),
            (OFFLEASH, Ok(ours)),
        ]
    }

    /// Has the client do so much work; what each part of it took, in nanoseconds.
    ///
    /// # Errors
    /// When it does not do it, or says something else.
    pub(super) fn times(&self, work: Work, amount: u64) -> Result<Vec<u64>, TaskError> {
        let mut command = self.client.clone();
        let work = work.to_possible_value().map(|value| value.get_name().to_owned());
        let words = ["bench".to_owned(), "egress-part".to_owned(), "client".to_owned()];
        command.arguments.extend(words.map(OsString::from));
        command.arguments.push(work.unwrap_or_default().into());
        command.arguments.push(self.server.to_string().into());
        command.arguments.push(amount.to_string().into());
        if let Some(via) = self.via {
            command.arguments.push(format!("--via={via}").into());
        }
        serde_json::from_str(&command.output()?).map_err(|error| TaskError::Answer {
            from: "the client",
            why: error.to_string(),
        })
    }
}

/// `offleash run`, with a rule for `allowed` if there is one.
fn sandboxed(arena: &Arena, allowed: Option<&str>, command: &[&str]) -> Vec<OsString> {
    let mut words = vec![arena.binary().as_os_str().to_owned(), "run".into()];
    if let Some(allowed) = allowed {
        words.extend(["--allow".into(), allowed.into()]);
    }
    words.push("--".into());
    words.extend(command.iter().map(OsString::from));
    words
}

/// A start of a sandbox that does nothing.
#[derive(Debug)]
pub(super) struct Startup {
    pub(super) with_network: bool,
    pub(super) command: CommandLine,
}

impl Startup {
    /// Without a network and with one.
    pub(super) fn both(arena: &Arena) -> [Self; 2] {
        [None, Some("www.example.com")].map(|allowed| Self {
            with_network: allowed.is_some(),
            command: arena.command(sandboxed(arena, allowed, &["/usr/bin/true"])),
        })
    }
}

/// A program that is killed when this is dropped, and when we are killed.
#[derive(Debug)]
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended; then there is only its status to be fetched.
        self.0.kill().unwrap_or_default();
        self.0.wait().map(drop).unwrap_or_default();
    }
}

/// Starts a program and waits until it answers at `address`.
fn started(command: &mut Command, address: SocketAddr) -> Result<Running, TaskError> {
    let line = program::command_line(command);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = Running(command.spawn().map_err(TaskError::start(line.clone()))?);
    let start = Instant::now();
    while TcpStream::connect(address).is_err() {
        let ended = running.0.try_wait().map_err(TaskError::start(line.clone()))?;
        if ended.is_some() || start.elapsed() > READY {
            let status = ended.map_or("no answer".to_owned(), |status| status.to_string());
            return Err(TaskError::Ended {
                command: line,
                status,
                stderr: String::new(),
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(running)
}

fn relay(client: &Path) -> Result<Running, TaskError> {
    let mut command = Command::new(client);
    command.args(["bench", "egress-part", "relay"]);
    command.args([AT_RELAY.to_string(), SERVER.to_string()]);
    started(&mut command, AT_RELAY)
}

/// As Debian has it, without its logging and its limits.
fn tinyproxy(arena: &Arena) -> Result<Running, TaskError> {
    let missing = || TaskError::start("tinyproxy")(std::io::ErrorKind::NotFound.into());
    let tinyproxy = program::find("tinyproxy").ok_or_else(missing)?;
    let path = arena.path("tinyproxy.conf");
    let (port, server) = (AT_TINYPROXY.port(), SERVER.port());
    let text = format!(
        "Port {port}\nListen 127.0.0.1\nAllow 127.0.0.1\nConnectPort {server}\nMaxClients 1024\nTimeout 600\nLogLevel \
         Critical\n"
    );
    fs::write(&path, text).map_err(TaskError::file("writing", &path))?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(tinyproxy);
    command.args(["-d", "-c"]).arg(&path);
    started(&mut command, AT_TINYPROXY)
}

/// Has the kernel kill this process when the one that started it ends.
pub(super) fn end_with_parent() {
    // Without it what is left runs until it is done, in namespaces where nobody is disturbed.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}
