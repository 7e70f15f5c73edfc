//! The streams of a virtual machine: against arbitrary bytes, against a machine that lies, and two sides against each other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use offleash_protocol::vm::{
    Begin, CONTROL_STREAM, CloseDirection, ENTROPY, EndRead, EndWrite, FromVm, Hello, MAX_LISTENING_PORTS,
    MAX_STREAM_DATA, MAX_STREAMS, MAX_UNSENT, Mux, MuxBreach, STREAM_WINDOW, StreamEnd, StreamFrame, StreamKind, ToVm,
    VERSION, VmEnd, VmLimit, VmMount, VmMountKind, VmNetwork, VmTree,
};
use offleash_protocol::{Dialogue, FrameError, GuestIds, MessageDecoder, encode};
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

fn frame() -> impl Strategy<Value = StreamFrame> {
    let stream = 0u32..6;
    let kind = prop_oneof![
        Just(StreamKind::Descriptor),
        any::<u16>().prop_map(|number| StreamKind::Port { number })
    ];
    let direction = prop_oneof![Just(CloseDirection::Sending), Just(CloseDirection::Receiving)];
    prop_oneof![
        (stream.clone(), kind).prop_map(|(stream, kind)| StreamFrame::Open { stream, kind }),
        (stream.clone(), bytes()).prop_map(|(stream, bytes)| StreamFrame::Data { stream, bytes }),
        (stream.clone(), 0u32..300).prop_map(|(stream, count)| StreamFrame::Window { stream, count }),
        (stream, direction).prop_map(|(stream, direction)| StreamFrame::Close { stream, direction }),
    ]
}

fn mount() -> impl Strategy<Value = VmMount> {
    let kind = prop_oneof![
        any::<(u64, u64, u32)>().prop_map(|(bytes, inodes, mode)| VmMountKind::Tmpfs { bytes, inodes, mode }),
        Just(VmMountKind::Proc),
        any::<u64>().prop_map(|shm_bytes| VmMountKind::Devices { shm_bytes }),
        Just(VmMountKind::ReadOnly),
    ];
    (bytes(), kind).prop_map(|(target, kind)| VmMount { target, kind })
}

fn begin() -> impl Strategy<Value = Begin> {
    let network = prop::option::of(
        any::<([u8; 4], u8, [u8; 4])>().prop_map(|(address, prefix, gateway)| VmNetwork {
            address,
            prefix,
            gateway,
        }),
    );
    let limit = any::<(u32, u64, u64)>().prop_map(|(resource, soft, hard)| VmLimit { resource, soft, hard });
    let tree = prop_oneof![
        Just(VmTree::Served),
        bytes().prop_map(|path| VmTree::Initramfs { path })
    ];
    let lists = (
        prop::collection::vec(limit, 0..5),
        prop::collection::vec(mount(), 0..5),
        bytes(),
        bytes(),
        prop::collection::vec(any::<u8>(), ENTROPY),
    );
    let numbers = any::<(u64, u32, u32, u32, u64, Option<u64>, bool)>();
    (lists, numbers, network, tree).prop_map(|(lists, numbers, network, tree)| {
        let (limits, mounts, hostname, filter, entropy) = lists;
        let (seconds, nanoseconds, uid, gid, capabilities, max_processes, read_only_root) = numbers;
        Begin {
            version: VERSION,
            entropy,
            seconds,
            nanoseconds,
            hostname,
            network,
            user: GuestIds { uid, gid },
            capabilities,
            filter,
            limits,
            max_processes,
            max_memory: max_processes,
            mounts,
            read_only_root,
            tree,
        }
    })
}

fn to_vm() -> impl Strategy<Value = ToVm> {
    prop_oneof![begin().prop_map(ToVm::Begin), frame().prop_map(ToVm::Stream)]
}

fn from_vm() -> impl Strategy<Value = FromVm> {
    let end = prop_oneof![
        any::<u8>().prop_map(|code| VmEnd::Exited { code }),
        any::<i32>().prop_map(|signal| VmEnd::Signaled { signal }),
        (".*", any::<i32>()).prop_map(|(step, errno)| VmEnd::Failed { step, errno }),
    ];
    prop_oneof![
        any::<(u32, u32, u64)>().prop_map(|(version, guest, uptime_us)| FromVm::Hello(Hello {
            version,
            guest,
            uptime_us
        })),
        frame().prop_map(FromVm::Stream),
        prop::collection::vec(any::<u16>(), 0..50).prop_map(|ports| FromVm::ListenersChanged { ports }),
        ".*".prop_map(|text| FromVm::Problem { text }),
        end.prop_map(FromVm::Ended),
    ]
}

fn decode<M: Dialogue>(stream: &[u8], cut: usize) -> Result<Vec<M>, FrameError> {
    let (mut decoder, mut messages) = (MessageDecoder::new(), Vec::new());
    let (before, after) = stream.split_at(cut.min(stream.len()));
    for piece in [before, after] {
        decoder.push(piece);
        while let Some(message) = decoder.next()? {
            messages.push(message);
        }
    }
    Ok(messages)
}

fn check_roundtrip<M: Dialogue + PartialEq + std::fmt::Debug>(messages: &[M], cut: usize) {
    let stream: Vec<u8> = messages
        .iter()
        .flat_map(|message| encode(message).expect("small messages fit"))
        .collect();
    assert_eq!(decode::<M>(&stream, cut).expect("whole messages"), messages);
}

/// What a stream leads to in these tests: two queues that whoever holds the other handle fills and empties.
#[derive(Debug, Default)]
struct Pipe {
    source: VecDeque<u8>,
    has_ended: bool,
    sink: Vec<u8>,
    room: usize,
    refuses: bool,
    is_shut: bool,
    is_closed_for_reading: bool,
    attached: Option<TestEnd>,
}

#[derive(Debug, Clone, Default)]
struct TestEnd(Rc<RefCell<Pipe>>);

impl TestEnd {
    fn with_room(room: usize) -> Self {
        let end = Self::default();
        end.0.borrow_mut().room = room;
        end
    }

    fn sink(&self) -> Vec<u8> {
        self.0.borrow().sink.clone()
    }
}

impl StreamEnd for TestEnd {
    fn read(&mut self, buffer: &mut [u8]) -> EndRead {
        let mut pipe = self.0.borrow_mut();
        let count = buffer.len().min(pipe.source.len());
        for (place, byte) in buffer.iter_mut().zip(pipe.source.drain(..count)) {
            *place = byte;
        }
        match count {
            0 if pipe.has_ended => EndRead::Ended,
            0 => EndRead::Nothing,
            count => EndRead::Bytes(count),
        }
    }

    fn take_attached(&mut self) -> Option<Self> {
        self.0.borrow_mut().attached.take()
    }

    fn write(&mut self, bytes: &[u8]) -> EndWrite {
        let mut pipe = self.0.borrow_mut();
        if pipe.refuses {
            return EndWrite::Refused;
        }
        match bytes.len().min(pipe.room) {
            0 => EndWrite::Full,
            count => {
                pipe.room -= count;
                pipe.sink.extend_from_slice(&bytes[..count]);
                EndWrite::Bytes(count)
            }
        }
    }

    fn end_writing(&mut self) {
        self.0.borrow_mut().is_shut = true;
    }

    fn end_reading(&mut self) {
        self.0.borrow_mut().is_closed_for_reading = true;
    }
}

type HostMux = Mux<ToVm, TestEnd>;
type VmMux = Mux<FromVm, TestEnd>;

fn host() -> (HostMux, TestEnd) {
    let control = TestEnd::with_room(usize::MAX);
    let mut mux = HostMux::new();
    mux.begin(control.clone());
    (mux, control)
}

fn data(stream: u32, length: usize) -> StreamFrame {
    StreamFrame::Data {
        stream,
        bytes: vec![7; length],
    }
}

fn close(stream: u32, direction: CloseDirection) -> StreamFrame {
    StreamFrame::Close { stream, direction }
}

/// What a side says now, taken from it.
fn said<M: Dialogue + From<StreamFrame>>(mux: &mut Mux<M, TestEnd>) -> Vec<M> {
    mux.advance();
    let messages = decode(mux.unsent(), 0).expect("its own messages");
    mux.sent(mux.unsent().len());
    messages
}

/// Has both sides speak until neither has more to say; answers the ends of streams that were opened inside.
fn settle(host: &mut HostMux, vm: &mut VmMux, inside: &TestEnd) -> Vec<(u32, StreamKind)> {
    let mut opened = Vec::new();
    loop {
        let (down, up) = (said(host), said(vm));
        if down.is_empty() && up.is_empty() {
            return opened;
        }
        for message in down {
            let ToVm::Stream(frame) = message else {
                panic!("{message:?}")
            };
            if let Some((stream, kind)) = vm.take(frame).expect("the host keeps the rules") {
                vm.accept(stream, inside.clone()).expect("a number that is next");
                opened.push((stream, kind));
            }
        }
        for message in up {
            let FromVm::Stream(frame) = message else {
                panic!("{message:?}")
            };
            assert_eq!(host.take(frame), Ok(None));
        }
    }
}

proptest! {
    #[test]
    fn messages_survive_any_cut(
        down in prop::collection::vec(to_vm(), 0..4),
        up in prop::collection::vec(from_vm(), 0..4),
        cut in 0usize..2000,
    ) {
        check_roundtrip(&down, cut);
        check_roundtrip(&up, cut);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), cut in 0usize..2000) {
        let _ = decode::<FromVm>(&bytes, cut);
        let body = [&u32::try_from(bytes.len()).unwrap().to_le_bytes()[..], &bytes].concat();
        let _ = decode::<FromVm>(&body, cut);
        let _ = decode::<ToVm>(&body, cut);
    }

    #[test]
    fn a_damaged_message_never_panics(message in from_vm(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut stream = encode(&message).unwrap();
        let at = at.index(stream.len());
        stream[at] = byte;
        let _ = decode::<FromVm>(&stream, 0);
    }

    /// Whatever a machine sends, in whatever order: what is kept for it stays within the bounds, and it ends no stream of others.
    #[test]
    fn a_hostile_machine_is_bounded(frames in prop::collection::vec(frame(), 0..60), takes in any::<bool>()) {
        let (mut mux, control) = host();
        control.0.borrow_mut().room = if takes { usize::MAX } else { 0 };
        let ends: Vec<TestEnd> = (0..3).map(|_| TestEnd::with_room(if takes { usize::MAX } else { 0 })).collect();
        for end in &ends {
            end.0.borrow_mut().source.extend(vec![1; 2 * STREAM_WINDOW]);
            mux.open(StreamKind::Port { number: 1 }, end.clone()).expect("few");
        }
        for frame in frames {
            match mux.take(frame) {
                Ok(None) => {}
                // One that opens a stream is a breach to the host, which never accepts it.
                Ok(Some(_)) | Err(_) => break,
            }
            mux.advance();
            prop_assert!(mux.unsent().len() <= MAX_UNSENT + MAX_STREAM_DATA);
            prop_assert!(mux.streams() <= 4);
        }
        for end in &ends {
            prop_assert!(end.sink().len() <= 60 * MAX_STREAM_DATA);
        }
    }
}

proptest! {
    // Each moves a megabyte.
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Two sides that keep the rules lose nothing and reorder nothing, however much is to go and however the ends take it.
    #[test]
    fn streams_arrive_as_they_were_sent(lengths in prop::collection::vec(0usize..400_000, 1..4), step in 10_000usize..200_000) {
        let (mut host, _) = host();
        let mut vm = VmMux::new();
        vm.begin(TestEnd::with_room(usize::MAX));
        let mut pairs = Vec::new();
        for (number, length) in lengths.iter().enumerate() {
            let (outer, inner) = (TestEnd::with_room(0), TestEnd::with_room(0));
            let content: Vec<u8> = (0..*length).map(|place| u8::try_from((place * 31 + number) % 251).unwrap()).collect();
            outer.0.borrow_mut().source.extend(&content);
            inner.0.borrow_mut().source.extend(content.iter().rev());
            outer.0.borrow_mut().has_ended = true;
            inner.0.borrow_mut().has_ended = true;
            host.open(StreamKind::Port { number: 80 }, outer.clone()).expect("few");
            settle(&mut host, &mut vm, &inner);
            pairs.push((outer, inner, content));
        }
        for _ in 0..=(1 + 400_000 / step) * 2 {
            for (number, (outer, inner, _)) in pairs.iter().enumerate() {
                outer.0.borrow_mut().room = step;
                inner.0.borrow_mut().room = step;
                let stream = u32::try_from(number + 1).unwrap();
                host.ready(stream, true, true);
                vm.ready(stream, true, true);
            }
            settle(&mut host, &mut vm, &TestEnd::default());
        }
        for (outer, inner, content) in pairs {
            prop_assert!(inner.sink() == content);
            prop_assert!(outer.sink().iter().eq(content.iter().rev()));
            prop_assert!(inner.0.borrow().is_shut && outer.0.borrow().is_shut);
        }
        prop_assert_eq!((host.streams(), vm.streams()), (1, 1));
    }
}

#[test]
fn a_full_beginning_and_a_full_piece_fit_into_a_frame() {
    let mount = VmMount {
        target: vec![b'x'; 64],
        kind: VmMountKind::Proc,
    };
    let limit = VmLimit {
        resource: u32::MAX,
        soft: u64::MAX,
        hard: u64::MAX,
    };
    let begin = Begin {
        version: VERSION,
        entropy: vec![1; ENTROPY],
        seconds: u64::MAX,
        nanoseconds: u32::MAX,
        hostname: vec![b'h'; 64],
        network: None,
        user: GuestIds { uid: 1, gid: 1 },
        capabilities: u64::MAX,
        filter: vec![0; 32 * 1024],
        limits: vec![limit; 16],
        max_processes: Some(u64::MAX),
        max_memory: Some(u64::MAX),
        mounts: vec![mount; 256],
        read_only_root: true,
        tree: VmTree::Served,
    };
    assert!(encode(&ToVm::Begin(begin)).is_ok());
    assert!(encode(&ToVm::from(data(u32::MAX, MAX_STREAM_DATA))).is_ok());
    assert!(encode(&FromVm::from(data(u32::MAX, MAX_STREAM_DATA))).is_ok());
    let ports = vec![u16::MAX; MAX_LISTENING_PORTS];
    assert!(encode(&FromVm::ListenersChanged { ports }).is_ok());
    assert!(encode(&FromVm::from(data(1, 2 * MAX_STREAM_DATA))).is_err());
}

#[test]
fn what_is_against_the_rules_is_named() {
    use CloseDirection::{Receiving, Sending};
    let unknown = |stream| Err(MuxBreach::UnknownStream { stream });
    let exceeded = Err(MuxBreach::WindowExceeded { stream: 0 });
    for (frames, expected) in [
        (vec![data(1, 1)], unknown(1)),
        (vec![close(9, Sending)], unknown(9)),
        (vec![StreamFrame::Window { stream: 9, count: 1 }], unknown(9)),
        (vec![data(0, 0)], exceeded.clone()),
        (vec![data(0, MAX_STREAM_DATA + 1)], exceeded),
        (
            vec![StreamFrame::Window { stream: 0, count: 1 }],
            Err(MuxBreach::NeverSent { stream: 0 }),
        ),
        (
            vec![close(0, Sending), data(0, 1)],
            Err(MuxBreach::DataAfterEnd { stream: 0 }),
        ),
        (
            vec![close(0, Sending), close(0, Sending)],
            Err(MuxBreach::ClosedTwice { stream: 0 }),
        ),
        (vec![close(0, Receiving), close(0, Receiving)], Ok(None)),
    ] {
        let (mut mux, _) = host();
        let mut answer = Ok(None);
        for frame in frames.clone() {
            answer = mux.take(frame);
        }
        assert_eq!(answer, expected, "{frames:?}");
    }
}

#[test]
fn more_than_the_window_is_a_breach_and_the_window_itself_is_not() {
    let (mut mux, control) = host();
    control.0.borrow_mut().room = 0;
    for _ in 0..STREAM_WINDOW / MAX_STREAM_DATA {
        assert_eq!(mux.take(data(0, MAX_STREAM_DATA)), Ok(None));
    }
    assert_eq!(mux.take(data(0, 1)), Err(MuxBreach::WindowExceeded { stream: 0 }));
}

#[test]
fn bytes_that_were_taken_count_until_that_was_told() {
    let (mut mux, _) = host();
    let pieces = STREAM_WINDOW / MAX_STREAM_DATA;
    for _ in 0..pieces {
        assert_eq!(mux.take(data(0, MAX_STREAM_DATA)), Ok(None));
    }
    // All was taken, and nothing said of it: a machine that sends on has not waited.
    assert!(mux.take(data(0, 1)).is_err());
    let (mut mux, _) = host();
    for _ in 0..10 * pieces {
        assert_eq!(mux.take(data(0, MAX_STREAM_DATA)), Ok(None));
        let count = u32::try_from(MAX_STREAM_DATA).unwrap();
        assert_eq!(said(&mut mux), [ToVm::from(StreamFrame::Window { stream: 0, count })]);
    }
}

/// A machine that acknowledges nothing gets a window's worth of each stream and no more, and one that takes nothing from its
/// channel gets no more than waits here.
#[test]
fn a_machine_that_takes_nothing_is_bounded_and_stops_no_other_stream() {
    let (mut mux, control) = host();
    control.0.borrow_mut().source.extend(vec![1; 4 * STREAM_WINDOW]);
    let other = TestEnd::default();
    mux.open(StreamKind::Port { number: 1 }, other.clone())
        .expect("the first");
    let mut sent = [0, 0];
    for round in 0..100 {
        if round == 50 {
            other.0.borrow_mut().source.extend(b"still here");
            mux.ready(1, true, false);
        }
        for message in said(&mut mux) {
            if let ToVm::Stream(StreamFrame::Data { stream, bytes }) = message {
                sent[usize::try_from(stream).unwrap()] += bytes.len();
            }
        }
        assert!(mux.unsent().len() <= MAX_UNSENT);
    }
    assert_eq!(sent, [STREAM_WINDOW, 10]);

    let (mut mux, control) = host();
    control.0.borrow_mut().source.extend(vec![1; 4 * STREAM_WINDOW]);
    for _ in 0..100 {
        mux.advance();
    }
    assert!(mux.unsent().len() <= MAX_UNSENT + 64, "{}", mux.unsent().len());
}

#[test]
fn a_descriptor_is_opened_just_before_its_byte() {
    let (mut mux, control) = host();
    control.0.borrow_mut().source.extend(b"before!");
    control.0.borrow_mut().attached = Some(TestEnd::default());
    assert_eq!(
        said(&mut mux),
        [
            StreamFrame::Data {
                stream: 0,
                bytes: b"before".to_vec()
            },
            StreamFrame::Open {
                stream: 1,
                kind: StreamKind::Descriptor
            },
            StreamFrame::Data {
                stream: 0,
                bytes: b"!".to_vec()
            },
        ]
        .map(ToVm::from)
    );
}

#[test]
fn an_end_that_refuses_stops_the_other_side_and_the_stream_is_forgotten() {
    let (mut host, _) = host();
    let mut vm = VmMux::new();
    vm.begin(TestEnd::with_room(usize::MAX));
    let (outer, inner) = (TestEnd::default(), TestEnd::default());
    outer.0.borrow_mut().refuses = true;
    inner.0.borrow_mut().source.extend(vec![1; 4 * STREAM_WINDOW]);
    host.open(StreamKind::Port { number: 1 }, outer.clone())
        .expect("the first");
    assert_eq!(
        settle(&mut host, &mut vm, &inner),
        [(1, StreamKind::Port { number: 1 })]
    );
    assert!(inner.0.borrow().is_closed_for_reading);
    // The connection is closed outside, and then in both directions.
    outer.0.borrow_mut().has_ended = true;
    host.ready(1, true, false);
    settle(&mut host, &mut vm, &inner);
    assert_eq!((host.streams(), vm.streams()), (1, 1));
    // What crossed the end on the way is no breach, and data is one.
    assert_eq!(host.take(StreamFrame::Window { stream: 1, count: 5 }), Ok(None));
    assert_eq!(host.take(data(1, 1)), Err(MuxBreach::UnknownStream { stream: 1 }));
}

#[test]
fn there_are_so_many_streams_and_then_the_control_stream_waits() {
    let (mut mux, control) = host();
    for number in 1..MAX_STREAMS {
        let stream = mux
            .open(StreamKind::Port { number: 1 }, TestEnd::default())
            .expect("room");
        assert_eq!(usize::try_from(stream).unwrap(), number);
    }
    assert!(mux.open(StreamKind::Port { number: 1 }, TestEnd::default()).is_err());
    while !said(&mut mux).is_empty() {}
    control.0.borrow_mut().source.extend(b"x");
    mux.ready(CONTROL_STREAM, true, false);
    assert_eq!(said(&mut mux), []);
    // One that ends on both sides makes room.
    mux.take(close(5, CloseDirection::Receiving)).unwrap();
    mux.take(close(5, CloseDirection::Sending)).unwrap();
    assert_eq!(said(&mut mux), [ToVm::from(close(5, CloseDirection::Sending))]);
    assert_eq!(
        said(&mut mux),
        [ToVm::from(StreamFrame::Data {
            stream: 0,
            bytes: b"x".to_vec()
        })]
    );
}

#[test]
fn numbers_only_rise() {
    let mut vm = VmMux::new();
    vm.begin(TestEnd::default());
    assert_eq!(vm.accept(4, TestEnd::default()), Ok(()));
    for stream in [0, 3, 4] {
        assert_eq!(
            vm.accept(stream, TestEnd::default()),
            Err(MuxBreach::NotToOpen { stream })
        );
    }
}
