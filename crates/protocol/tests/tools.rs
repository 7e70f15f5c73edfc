//! Calls of tools in their frames.

use offleash_protocol::tools::{CommandAnswer, NumberedFrames, TooLong, header};
use proptest::prelude::*;

proptest! {
    #[test]
    fn frames_come_out_as_they_went_in(sent in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..40)), 0..8), step in 1_usize..30) {
        let bytes: Vec<u8> = sent.iter().flat_map(|(call, body)| [&header(*call, body.len())[..], body].concat()).collect();
        let mut frames = NumberedFrames::default();
        let mut came = Vec::new();
        for piece in bytes.chunks(step) {
            frames.push(piece);
            while let Some((call, body)) = frames.next(40).expect("none is too long") {
                came.push((call, body.to_vec()));
            }
        }
        prop_assert_eq!(came, sent);
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut frames = NumberedFrames::default();
        frames.push(&bytes);
        while let Ok(Some((_, body))) = frames.next(20) {
            prop_assert!(body.len() <= 20);
        }
        let _read_or_not = CommandAnswer::of(&bytes);
    }

    #[test]
    fn an_answer_is_read_as_it_was_written(status in any::<u8>(), stdout in prop::collection::vec(any::<u8>(), 0..40), stderr in prop::collection::vec(any::<u8>(), 0..40)) {
        let answer = CommandAnswer { status, stdout: &stdout, stderr: &stderr };
        let bytes = answer.to_bytes();
        prop_assert_eq!(CommandAnswer::of(&bytes), Some(answer));
    }
}

#[test]
fn a_frame_that_is_announced_too_long_is_refused_before_it_comes() {
    let mut frames = NumberedFrames::default();
    frames.push(&header(1, 41));
    assert_eq!(frames.next(40), Err(TooLong));
}
