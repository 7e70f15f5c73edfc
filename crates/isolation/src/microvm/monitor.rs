//! QEMU's monitor protocol (QMP), as far as a template of a machine takes it
//! (<https://www.qemu.org/docs/master/interop/qmp-spec.html>).

use std::io::{self, BufRead as _, BufReader};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use offleash_sys::socket;
use serde_json::{Value, json};

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a machine's state may take to be written or read.
const STATE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is asked whether that is done.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Longest line that is read, bytes: the hypervisor may have been broken out of.
const MAX_LINE: u64 = 256 * 1024;
/// Most lines until an answer comes.
const MAX_LINES: usize = 1024;
/// Bytes a second of a machine's state: no bound.
const UNBOUNDED: u64 = 1 << 40;

/// The monitor of one machine.
#[derive(Debug)]
pub(super) struct Monitor {
    reader: BufReader<UnixStream>,
}

impl Monitor {
    /// Takes the hypervisor's greeting.
    pub(super) fn open(socket: OwnedFd) -> io::Result<Self> {
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut monitor = Self {
            reader: BufReader::new(stream),
        };
        monitor.line()?;
        monitor.ask("qmp_capabilities", json!({}), None)?;
        Ok(monitor)
    }

    /// Writes the state of the machine's devices to `file`; the machine stands still afterwards. What it has of memory in a file
    /// is complete there then.
    pub(super) fn save(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.ask("stop", json!({}), None)?;
        self.transfer("migrate", file)
    }

    /// Reads the state of the machine's devices from `file`; it stands still afterwards.
    pub(super) fn restore(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.transfer("migrate-incoming", file)
    }

    /// Lets the machine go on.
    pub(super) fn go_on(&mut self) -> io::Result<()> {
        self.ask("cont", json!({}), None).map(drop)
    }

    fn transfer(&mut self, command: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        let without_memory = json!([{ "capability": "x-ignore-shared", "state": true }]);
        self.ask(
            "migrate-set-capabilities",
            json!({ "capabilities": without_memory }),
            None,
        )?;
        self.ask("migrate-set-parameters", json!({ "max-bandwidth": UNBOUNDED }), None)?;
        self.ask("getfd", json!({ "fdname": "state" }), Some(file))?;
        self.ask(command, json!({ "uri": "fd:state" }), None)?;
        let end = Instant::now() + STATE_TIMEOUT;
        loop {
            let said = self.ask("query-migrate", json!({}), None)?;
            match said.get("status").and_then(Value::as_str) {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => {
                    return Err(io::Error::other(format!("{command} failed")));
                }
                _ if Instant::now() > end => return Err(io::ErrorKind::TimedOut.into()),
                _ => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    fn ask(&mut self, command: &str, arguments: Value, file: Option<BorrowedFd<'_>>) -> io::Result<Value> {
        let message = json!({ "execute": command, "arguments": arguments }).to_string();
        let descriptors: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        socket::send_all(self.reader.get_ref().as_fd(), message.as_bytes(), &descriptors)?;
        for _ in 0..MAX_LINES {
            let line = self.line()?;
            // What comes between are events.
            if let Some(answer) = line.get("return") {
                return Ok(answer.clone());
            }
            if let Some(error) = line.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or("no reason");
                return Err(io::Error::other(format!("the hypervisor refuses `{command}`: {why}")));
            }
        }
        Err(io::Error::other(format!("the hypervisor does not answer `{command}`")))
    }

    fn line(&mut self) -> io::Result<Value> {
        let mut line = Vec::new();
        io::Read::take(&mut self.reader, MAX_LINE).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        serde_json::from_slice(&line).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    /// A hypervisor that answers with these lines, one for each request behind its greeting.
    fn answering(answers: &'static [&'static str]) -> OwnedFd {
        let (ours, mut its) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            its.write_all(b"{\"QMP\": {}}\n").unwrap();
            for answer in answers {
                let mut request = [0; 1024];
                if its.read(&mut request).unwrap() == 0 {
                    return;
                }
                its.write_all(answer.as_bytes()).unwrap();
            }
        });
        ours.into()
    }

    #[test]
    fn events_are_passed_over_and_refusals_are_told() {
        const DONE: &str = "{\"return\": {}}\n";
        const ANSWERS: &[&str] = &[DONE, "{\"event\": \"RESUME\"}\n{\"return\": {}}\n"];
        const REFUSED: &[&str] = &[DONE, "{\"error\": {\"desc\": \"not now\"}}\n"];
        Monitor::open(answering(ANSWERS)).unwrap().go_on().unwrap();
        let error = Monitor::open(answering(REFUSED)).unwrap().go_on().unwrap_err();
        assert!(error.to_string().contains("not now"), "{error}");
    }

    #[test]
    fn a_hypervisor_that_tells_of_events_for_ever_is_an_error() {
        let (ours, mut its) = UnixStream::pair().unwrap();
        let floods = std::thread::spawn(move || {
            its.write_all(b"{\"QMP\": {}}\n").unwrap();
            // Until nobody listens any more.
            while its.write_all(b"{\"event\": \"RESUME\"}\n").is_ok() {}
        });
        assert!(Monitor::open(ours.into()).is_err());
        floods.join().unwrap();
    }

    #[test]
    fn a_hypervisor_that_is_gone_or_speaks_no_json_is_an_error() {
        assert!(Monitor::open(answering(&[])).is_err());
        assert!(Monitor::open(answering(&["nothing\n"])).is_err());
    }
}
