//! Machines that say nothing, anything or too much, played over a socket pair: each ends in time, and with its reason.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use offleash_protocol::vm::{CONTROL_STREAM, FromVm, Hello, StreamFrame, VERSION, VmTree};
use offleash_protocol::{GuestIds, encode};
use offleash_sys::socket;

use super::*;

/// Long enough for nothing here to hit it by chance.
const AMPLE: Duration = Duration::from_secs(300);
const NONE: Duration = Duration::ZERO;

fn begin() -> Begin {
    Begin {
        version: VERSION,
        entropy: Vec::new(),
        seconds: 0,
        nanoseconds: 0,
        hostname: Vec::new(),
        network: None,
        user: GuestIds { uid: 0, gid: 0 },
        capabilities: 0,
        filter: Vec::new(),
        limits: Vec::new(),
        max_processes: None,
        max_memory: None,
        mounts: Vec::new(),
        read_only_root: false,
        tree: VmTree::Served,
    }
}

fn framed(message: &FromVm) -> Vec<u8> {
    encode(message).unwrap()
}

fn greeting() -> Vec<u8> {
    framed(&FromVm::Hello(Hello {
        version: VERSION,
        guest: offleash_protocol::VERSION,
        uptime_us: 1,
    }))
}

/// Why a machine that does this with its channel is no longer carried; `times` for its boot and its beginning.
fn ended(times: [Duration; 2], machine: impl FnOnce(UnixStream) + Send + 'static) -> String {
    let (channel, its) = socket::stream_pair().unwrap();
    let (supervisor, control) = socket::stream_pair().unwrap();
    let played: JoinHandle<()> = std::thread::spawn(move || machine(UnixStream::from(its)));
    let [boot, beginning] = times;
    let carrier = MachineCarrier::new(channel, control, begin());
    let why = carrier.carry(&CarrierTimes { boot, beginning }).unwrap();
    drop(supervisor);
    played.join().unwrap();
    why
}

/// Until the carrier closes its end.
fn listen(mut machine: UnixStream) {
    let mut ignored = [0; 4096];
    while machine.read(&mut ignored).is_ok_and(|count| count > 0) {}
}

#[test]
fn a_machine_that_never_greets_is_given_up() {
    let why = ended([NONE, AMPLE], listen);
    assert_eq!(why, "the machine did not boot within 0 s");
}

#[test]
fn a_machine_that_is_silent_after_its_greeting_is_given_up() {
    let why = ended([AMPLE, NONE], |mut machine| {
        machine.write_all(&greeting()).unwrap();
        listen(machine);
    });
    assert_eq!(why, "the machine did not become what it was told to within 0 s");
}

#[test]
fn a_machine_whose_guest_speaks_is_not_given_up() {
    let why = ended([AMPLE, Duration::from_secs(30)], |mut machine| {
        machine.write_all(&greeting()).unwrap();
        let word = FromVm::Stream(StreamFrame::Data {
            stream: CONTROL_STREAM,
            bytes: b"ready".to_vec(),
        });
        let mut ignored = [0; 4096];
        // It was told to begin.
        assert!(machine.read(&mut ignored).unwrap() > 0);
        machine.write_all(&framed(&word)).unwrap();
    });
    assert_eq!(why, "the virtual machine closed its channel");
}

#[test]
fn a_hypervisor_that_is_killed_at_any_moment_ends_its_machine() {
    for words in [Vec::new(), greeting(), greeting()[..3].to_vec()] {
        let why = ended([AMPLE, AMPLE], move |mut machine| machine.write_all(&words).unwrap());
        assert_eq!(why, "the virtual machine closed its channel");
    }
}

#[test]
fn a_machine_that_floods_or_talks_nonsense_ends() {
    let nonsense = ended([AMPLE, AMPLE], |mut machine| {
        // Until nobody listens any more.
        while machine.write_all(&[0xff; 4096]).is_ok() {}
    });
    assert!(nonsense.contains("broke the rules"), "{nonsense}");
    let greetings = ended(
        [AMPLE, AMPLE],
        |mut machine| {
            while machine.write_all(&greeting()).is_ok() {}
        },
    );
    assert!(greetings.contains("broke the rules"), "{greetings}");
    let flood = ended([AMPLE, AMPLE], |mut machine| {
        machine.write_all(&greeting()).unwrap();
        let word = framed(&FromVm::Stream(StreamFrame::Data {
            stream: CONTROL_STREAM,
            bytes: vec![0; 4096],
        }));
        while machine.write_all(&word).is_ok() {}
    });
    assert!(flood.contains("broke the rules"), "{flood}");
}
