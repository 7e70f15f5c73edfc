//! A machine that keeps to the rules, and one that does not.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use offleash_protocol::GuestIds;
use offleash_protocol::vm::{CloseDirection, ENTROPY, MAX_STREAM_DATA, MAX_UNSENT, STREAM_WINDOW, StreamFrame, VmTree};
use offleash_sys::socket;
use rustix::event::{PollFd, Timespec};

use super::*;

/// Rounds of 10 ms within which everything here has come about.
const ROUNDS: usize = 2000;

/// The carrier's end, and a machine and a supervisor that the test plays.
struct Played {
    mux: ChannelMux,
    machine: UnixStream,
    decoder: MessageDecoder<ToVm>,
    supervisor: UnixStream,
    control: Option<OwnedFd>,
}

fn booting() -> Played {
    let (channel, machine) = socket::stream_pair().unwrap();
    let (supervisor, control) = socket::stream_pair().unwrap();
    let (machine, supervisor) = (UnixStream::from(machine), UnixStream::from(supervisor));
    machine.set_nonblocking(true).unwrap();
    supervisor.set_nonblocking(true).unwrap();
    Played {
        mux: ChannelMux::new(channel),
        machine,
        decoder: MessageDecoder::new(),
        supervisor,
        control: Some(control),
    }
}

fn begin() -> Begin {
    Begin {
        version: VERSION,
        entropy: vec![1; ENTROPY],
        seconds: 1,
        nanoseconds: 0,
        hostname: b"inside".to_vec(),
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

fn hello() -> FromVm {
    FromVm::Hello(Hello {
        version: VERSION,
        guest: offleash_protocol::VERSION,
        uptime_us: 1,
    })
}

/// One that has begun, with its beginning read.
fn begun() -> Played {
    let mut played = booting();
    played.say(&hello());
    let events = played.turn_until(|events, _| !events.is_empty()).unwrap();
    assert!(matches!(events[..], [MuxEvent::Greeted(_)]));
    played.mux.begin(begin(), played.control.take().unwrap()).unwrap();
    assert_eq!(played.heard(1), [ToVm::Begin(begin())]);
    played
}

fn data(stream: u32, bytes: &[u8]) -> StreamFrame {
    let bytes = bytes.to_vec();
    StreamFrame::Data { stream, bytes }
}

impl Played {
    fn say(&mut self, message: &FromVm) {
        self.machine
            .write_all(&offleash_protocol::encode(message).unwrap())
            .unwrap();
    }

    /// One turn of the carrier's loop, which waits for 10 ms at most.
    fn turn(&mut self) -> Result<Vec<MuxEvent>, MuxEnd> {
        let ready: Vec<PollFlags> = {
            let waited = self.mux.wait_on();
            let mut polled: Vec<PollFd<'_>> = waited
                .iter()
                .map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags))
                .collect();
            let patience = Timespec {
                tv_sec: 0,
                tv_nsec: 10_000_000,
            };
            rustix::event::poll(&mut polled, Some(&patience)).unwrap();
            polled.iter().map(PollFd::revents).collect()
        };
        self.mux.turn(&ready)
    }

    /// Turns until something is so; answers all that came about.
    fn turn_until(&mut self, mut is_so: impl FnMut(&[MuxEvent], &mut Self) -> bool) -> Result<Vec<MuxEvent>, MuxEnd> {
        let mut events = Vec::new();
        for _ in 0..ROUNDS {
            events.extend(self.turn()?);
            if is_so(&events, self) {
                return Ok(events);
            }
        }
        panic!("it never came about: {events:?}");
    }

    fn end(&mut self) -> MuxEnd {
        self.turn_until(|_, _| false).unwrap_err()
    }

    /// The next messages that the machine gets.
    fn heard(&mut self, count: usize) -> Vec<ToVm> {
        let mut messages = Vec::new();
        self.turn_until(|_, played| {
            played.listen(&mut messages);
            messages.len() >= count
        })
        .unwrap();
        messages
    }

    fn listen(&mut self, messages: &mut Vec<ToVm>) {
        let mut buffer = vec![0; 1 << 20];
        if let Ok(count) = self.machine.read(&mut buffer) {
            self.decoder.push(&buffer[..count]);
        }
        while let Some(message) = self.decoder.next().unwrap() {
            messages.push(message);
        }
    }

    /// What the supervisor reads, as long as it is.
    fn supervisor_reads(&mut self, length: usize) -> Vec<u8> {
        let mut found = Vec::new();
        self.turn_until(|_, played| {
            let mut buffer = vec![0; 1 << 20];
            if let Ok(count) = played.supervisor.read(&mut buffer) {
                found.extend_from_slice(&buffer[..count]);
            }
            found.len() >= length
        })
        .unwrap();
        found
    }
}

#[test]
fn the_control_socket_goes_over_the_channel_and_a_descriptor_at_its_place() {
    let mut played = begun();
    let (ours, theirs) = socket::stream_pair().unwrap();
    played.supervisor.write_all(b"before").unwrap();
    socket::send_now(played.supervisor.as_fd(), b"!", &[theirs.as_fd()]).unwrap();
    drop(theirs);
    played.supervisor.write_all(b"after").unwrap();
    let mut ours = UnixStream::from(ours);
    let mut heard = Vec::new();
    played
        .turn_until(|_, played| {
            played.listen(&mut heard);
            heard.iter().any(|message| *message == ToVm::from(data(0, b"after")))
        })
        .unwrap();
    let place = heard
        .iter()
        .position(|message| matches!(message, ToVm::Stream(StreamFrame::Open { .. })))
        .unwrap();
    let kind = StreamKind::Descriptor;
    assert_eq!(heard[place], ToVm::from(StreamFrame::Open { stream: 1, kind }));
    assert_eq!(heard[place + 1], ToVm::from(data(0, b"!")));
    let said_before = heard[..place].iter().map(|message| match message {
        ToVm::Stream(StreamFrame::Data { stream: 0, bytes }) => bytes.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(said_before.collect::<Vec<_>>().concat(), b"before");

    // What the descriptor leads to is a stream like any other.
    ours.write_all(b"question").unwrap();
    assert_eq!(played.heard(1), [ToVm::from(data(1, b"question"))]);
    played.say(&FromVm::from(data(1, b"answer")));
    played.say(&FromVm::from(data(0, b"to the supervisor")));
    assert_eq!(played.supervisor_reads(17), b"to the supervisor");
    let mut answer = [0; 6];
    ours.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"answer");
}

#[test]
fn a_connection_to_a_port_ends_in_each_direction_by_itself() {
    let mut played = begun();
    let (ours, theirs) = socket::stream_pair().unwrap();
    let mut ours = UnixStream::from(ours);
    played.mux.connect(theirs, 8080);
    ours.write_all(b"request").unwrap();
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    let kind = StreamKind::Port { number: 8080 };
    let direction = CloseDirection::Sending;
    assert_eq!(
        played.heard(3),
        [
            StreamFrame::Open { stream: 1, kind },
            data(1, b"request"),
            StreamFrame::Close { stream: 1, direction }
        ]
        .map(ToVm::from)
    );
    played.say(&FromVm::from(data(1, b"response")));
    played.say(&FromVm::from(StreamFrame::Close { stream: 1, direction }));
    played.turn_until(|_, played| played.mux.mux.streams() == 1).unwrap();
    let mut response = String::new();
    ours.read_to_string(&mut response).unwrap();
    assert_eq!(response, "response");
}

#[test]
fn what_a_machine_tells_comes_as_events_and_problems_are_bounded() {
    let mut played = begun();
    played.say(&FromVm::ListenersChanged {
        ports: vec![80, 22, 80],
    });
    for _ in 0..2 * MAX_PROBLEMS {
        played.say(&FromVm::Problem { text: "p".to_owned() });
    }
    played.say(&FromVm::ListenersChanged { ports: vec![] });
    let last = MuxEvent::ListenersChanged(BTreeSet::new());
    let events = played.turn_until(|events, _| events.contains(&last)).unwrap();
    assert_eq!(events[0], MuxEvent::ListenersChanged([22, 80].into()));
    assert_eq!(events.len(), 2 + MAX_PROBLEMS);
}

#[test]
fn a_machine_that_breaks_the_rules_is_ended() {
    let open = StreamFrame::Open {
        stream: 1,
        kind: StreamKind::Port { number: 1 },
    };
    for lie in [
        hello(),
        FromVm::from(open),
        FromVm::from(data(7, b"x")),
        FromVm::from(StreamFrame::Window { stream: 0, count: 1 }),
        FromVm::Problem {
            text: "x".repeat(MAX_PROBLEM + 1),
        },
        FromVm::ListenersChanged {
            ports: vec![1; MAX_LISTENING_PORTS + 1],
        },
    ] {
        let mut played = begun();
        played.say(&lie);
        let end = played.end();
        assert!(matches!(end, MuxEnd::Breach(_)), "{lie:?}: {end:?}");
    }
    for early in [FromVm::from(data(0, b"x")), FromVm::ListenersChanged { ports: vec![] }] {
        let mut played = booting();
        played.say(&early);
        assert!(matches!(played.end(), MuxEnd::Breach(MuxBreach::OutOfPlace { .. })));
    }
    let mut played = begun();
    played.machine.write_all(&[0xff; 64]).unwrap();
    assert!(matches!(played.end(), MuxEnd::Breach(MuxBreach::Frame(_))));
}

#[test]
fn a_machine_of_another_build_is_not_begun() {
    let mut played = booting();
    played.say(&FromVm::Hello(Hello {
        version: VERSION + 1,
        guest: 0,
        uptime_us: 0,
    }));
    assert!(matches!(played.end(), MuxEnd::OtherVersion { version } if version == VERSION + 1));
    let mut played = booting();
    let control = played.control.take().unwrap();
    let refused = played.mux.begin(begin(), control);
    assert!(matches!(refused, Err(MuxEnd::Breach(MuxBreach::OutOfPlace { .. }))));
}

/// It may not be believed that it waits: what it sends beyond the window is not kept.
#[test]
fn a_machine_that_floods_a_supervisor_who_takes_nothing_is_ended() {
    let mut played = begun();
    let piece = offleash_protocol::encode(&FromVm::from(data(0, &vec![7; MAX_STREAM_DATA]))).unwrap();
    let mut unsaid = Vec::new();
    for _ in 0..8 * STREAM_WINDOW / MAX_STREAM_DATA {
        unsaid.extend_from_slice(&piece);
    }
    let end = played.turn_until(|_, played| {
        if let Ok(count) = played.machine.write(&unsaid) {
            unsaid.drain(..count);
        }
        false
    });
    let expected = MuxBreach::WindowExceeded { stream: 0 };
    assert!(matches!(end, Err(MuxEnd::Breach(breach)) if breach == expected));
}

#[test]
fn a_machine_that_takes_nothing_makes_nothing_wait_or_grow() {
    let mut played = begun();
    let piece = vec![7; 1 << 20];
    for _ in 0..200 {
        let _ = played.supervisor.write(&piece);
        played.turn().unwrap();
        assert!(played.mux.mux.unsent().len() <= MAX_UNSENT + MAX_STREAM_DATA);
    }
    // What it says is heard all the same.
    played.say(&FromVm::ListenersChanged { ports: vec![1] });
    played.turn_until(|events, _| !events.is_empty()).unwrap();
}

#[test]
fn connections_are_bounded_and_leave_room_for_the_supervisor() {
    let mut played = begun();
    let mut kept = Vec::new();
    while played.mux.takes_connections() {
        let (ours, theirs) = socket::stream_pair().unwrap();
        played.mux.connect(theirs, 1);
        kept.push(ours);
    }
    assert_eq!(kept.len(), MAX_CONNECTIONS - 1);
    let (ours, theirs) = socket::stream_pair().unwrap();
    played.mux.connect(theirs, 1);
    let mut closed = [0; 1];
    assert_eq!(UnixStream::from(ours).read(&mut closed).unwrap(), 0);
    let (_ours, theirs) = socket::stream_pair().unwrap();
    socket::send_now(played.supervisor.as_fd(), b"!", &[theirs.as_fd()]).unwrap();
    let opens = |messages: &[ToVm]| {
        let kind = StreamKind::Descriptor;
        let is =
            |message: &ToVm| matches!(message, ToVm::Stream(StreamFrame::Open { kind: found, .. }) if *found == kind);
        messages.iter().any(is)
    };
    let mut heard = Vec::new();
    played
        .turn_until(|_, played| {
            played.listen(&mut heard);
            opens(&heard)
        })
        .unwrap();
}

#[test]
fn the_last_word_of_a_machine_comes_after_what_its_guest_said() {
    let mut played = begun();
    let said = vec![7; 3 * MAX_STREAM_DATA];
    for piece in said.chunks(MAX_STREAM_DATA) {
        played.say(&FromVm::from(data(0, piece)));
        played.turn().unwrap();
    }
    played.say(&FromVm::Ended(VmEnd::Exited { code: 3 }));
    let mut found = Vec::new();
    let end = played.turn_until(|_, played| {
        let mut buffer = vec![0; 32 * 1024];
        if let Ok(count) = played.supervisor.read(&mut buffer) {
            found.extend_from_slice(&buffer[..count]);
        }
        false
    });
    assert!(matches!(end, Err(MuxEnd::Ended(VmEnd::Exited { code: 3 }))));
    let mut rest = vec![0; said.len()];
    while let Ok(count @ 1..) = played.supervisor.read(&mut rest) {
        found.extend_from_slice(&rest[..count]);
    }
    assert!(found == said, "{} of {}", found.len(), said.len());
}

#[test]
fn the_end_of_either_side_is_told_apart() {
    let mut played = begun();
    played.machine.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(matches!(played.end(), MuxEnd::ChannelClosed));
    let mut played = begun();
    played.supervisor.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(matches!(played.end(), MuxEnd::ControlClosed));
}

/// Frames by chance, most of them well formed: whatever comes of them, it is an end or a bounded rest.
#[test]
fn a_machine_that_says_anything_is_an_end_at_worst() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..200 {
        let mut played = begun();
        for _ in 0..20 {
            let stream = u32::try_from(random(3)).unwrap();
            let length = usize::try_from(random(70_000)).unwrap().clamp(1, MAX_STREAM_DATA);
            let message = match random(7) {
                0 | 1 => FromVm::from(data(stream, &vec![1; length])),
                2 => FromVm::from(StreamFrame::Window {
                    stream,
                    count: u32::try_from(random(10)).unwrap(),
                }),
                3 => FromVm::from(StreamFrame::Close {
                    stream,
                    direction: CloseDirection::Sending,
                }),
                4 => FromVm::from(StreamFrame::Close {
                    stream,
                    direction: CloseDirection::Receiving,
                }),
                5 => FromVm::ListenersChanged {
                    ports: vec![1; length % 2000],
                },
                _ => FromVm::Ended(VmEnd::Signaled { signal: 9 }),
            };
            let mut frame = offleash_protocol::encode(&message).unwrap();
            if random(4) == 0 {
                let place = usize::try_from(random(u64::try_from(frame.len()).unwrap())).unwrap();
                frame[place] = u8::try_from(random(256)).unwrap();
            }
            // It does not fit when the carrier has ended what it reads.
            let _ = played.machine.write(&frame);
            if played.turn().is_err() {
                break;
            }
            assert!(played.mux.mux.unsent().len() <= MAX_UNSENT + MAX_STREAM_DATA);
            assert!(played.mux.mux.streams() <= 1);
        }
    }
}
