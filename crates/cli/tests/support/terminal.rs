//! A terminal for a program under test: the test sits at the other end.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use super::processes::eventually;

/// A pseudoterminal; what is written to it is collected. Programs at it do not outlive it: a test that fails leaves none.
pub struct Terminal {
    programs: Mutex<Vec<OwnedFd>>,
    keyboard: File,
    line: File,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// One of this size.
    pub fn new(rows: u16, columns: u16) -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let line = OpenOptions::new()
            .read(true)
            .write(true)
            // A test that leads a session must not get it as its own, or no program can.
            .custom_flags(rustix::fs::OFlags::NOCTTY.bits().cast_signed())
            .open(name.to_str().unwrap())
            .unwrap();
        let keyboard = File::from(master);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails when the last program has closed its end.
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                shown.lock().unwrap().extend_from_slice(&buffer[..read]);
            }
        });
        let programs = Mutex::default();
        let terminal = Self {
            programs,
            keyboard,
            line,
            screen,
        };
        terminal.resize(rows, columns);
        terminal
    }

    /// Changes the size; programs learn of it by a signal only.
    pub fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.keyboard, size).unwrap();
    }

    /// Starts a program whose three streams are this terminal.
    pub fn start(&self, command: &mut Command) -> Child {
        self.spawn(command.stdin(self.stream()).stdout(self.stream()).stderr(self.stream()))
    }

    /// Starts a program that has some of its streams from elsewhere.
    pub fn spawn(&self, command: &mut Command) -> Child {
        let child = command.spawn().unwrap();
        let program = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        self.programs.lock().unwrap().push(program);
        child
    }

    /// A stream of a program, if it is not to have all three.
    pub fn stream(&self) -> Stdio {
        Stdio::from(self.line.try_clone().unwrap())
    }

    /// Types.
    pub fn type_keys(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// What was shown so far.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Waits until `text` was shown.
    pub fn wait_for(&self, text: &str) -> String {
        eventually(&format!("{text:?} on the terminal"), || {
            Some(self.screen()).filter(|screen| screen.contains(text))
        })
    }

    /// How the line is set: echo, raw mode and so on.
    pub fn settings(&self) -> Termios {
        tcgetattr(&self.line).unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        for program in self.programs.get_mut().unwrap().drain(..) {
            // It has ended already, if the test went well.
            let _killed = pidfd_send_signal(&program, Signal::KILL);
        }
    }
}
