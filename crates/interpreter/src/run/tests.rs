//! What is told of a cell does not depend on how its driver divides what it says.

use proptest::prelude::*;

use super::*;

/// What was told, texts of a stream that follow one another taken together.
#[derive(Debug, PartialEq)]
enum Seen {
    Text(OutputStream, String),
    Other(String),
}

fn frame(kind: FrameKind, payload: &[u8]) -> DriverFrame {
    let payload = payload.to_vec();
    let id = id();
    DriverFrame { kind, id, payload }
}

fn id() -> HexId {
    format!("{:032x}", 1).parse().unwrap()
}

fn kind_of(stream: OutputStream) -> FrameKind {
    match stream {
        OutputStream::Stdout => FrameKind::Stdout,
        OutputStream::Stderr => FrameKind::Stderr,
    }
}

/// Tells of frames, and answers what comes of them.
fn seen(limits: &CellLimits, frames: Vec<DriverFrame>) -> Vec<Seen> {
    let mut told = CellReporter::new(id(), limits);
    for frame in frames {
        told.take(frame);
    }
    told.take(frame(FrameKind::Done, b""));
    let mut seen = Vec::new();
    for event in told.pending {
        match event {
            CellEvent::Output { stream, text, .. } => match seen.last_mut() {
                Some(Seen::Text(last, before)) if *last == stream => before.push_str(&text),
                _ => seen.push(Seen::Text(stream, text)),
            },
            other => seen.push(Seen::Other(format!("{other:?}"))),
        }
    }
    seen
}

/// Something that a cell writes, or a result.
#[derive(Debug, Clone)]
enum Said {
    Wrote(OutputStream, Vec<u8>),
    Result(String),
}

fn said() -> impl Strategy<Value = Said> {
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        "[aé€😀]{0,12}".prop_map(String::into_bytes),
    ];
    let stream = prop_oneof![Just(OutputStream::Stdout), Just(OutputStream::Stderr)];
    prop_oneof![
        4 => (stream, bytes).prop_map(|(stream, bytes)| Said::Wrote(stream, bytes)),
        1 => "[a-z]{0,5}".prop_map(Said::Result),
    ]
}

/// The frames of it, output divided at `cuts`.
fn frames(all: &[Said], cuts: &[prop::sample::Index]) -> Vec<DriverFrame> {
    let mut frames = Vec::new();
    for one in all {
        match one {
            Said::Wrote(stream, bytes) => {
                let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
                cuts.sort_unstable();
                let mut from = 0;
                for cut in cuts.into_iter().chain([bytes.len()]) {
                    frames.push(frame(kind_of(*stream), &bytes[from..cut]));
                    from = cut;
                }
            }
            Said::Result(text) => {
                frames.push(frame(FrameKind::Text, format!("text/plain\n{text}").as_bytes()));
                frames.push(frame(FrameKind::Result, b"display"));
            }
        }
    }
    frames
}

proptest! {
    #[test]
    fn any_division_of_output_tells_the_same(
        all in proptest::collection::vec(said(), 0..8),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
        output in prop_oneof![0_u64..60, Just(1000)],
    ) {
        let limits = CellLimits { output, ..CellLimits::default() };
        let whole = seen(&limits, frames(&all, &[]));
        prop_assert_eq!(&seen(&limits, frames(&all, &cuts)), &whole);
        let kept: usize = whole.iter().map(|one| match one {
            // What is no UTF-8 becomes longer, and one byte is three then.
            Seen::Text(_, text) => text.chars().map(|c| if c == char::REPLACEMENT_CHARACTER { 1 } else { c.len_utf8() }).sum(),
            Seen::Other(_) => 0,
        }).sum();
        prop_assert!(u64::try_from(kept).unwrap() <= output, "{} bytes of {}", kept, output);
    }
}
