use super::*;

fn example() -> RequestBatch {
    let mut requests = RequestBatch::default();
    requests.push("first", 0x0a06, libc::NLM_F_ACK, |request| {
        request.header(&[2, 0, 0, 0]).text(1, "abc").nested(4, |inner| {
            inner.number(2, 0x0102_0304).attribute(3, &[9]);
        });
    });
    requests.push("second", 0x11, 0, |_| {});
    requests
}

#[test]
fn requests_are_laid_out_as_the_kernel_reads_them() {
    let bytes = example().bytes;
    let native = |number: u32| number.to_ne_bytes();
    assert_eq!(bytes.len(), 48 + 16);
    assert_eq!(bytes[..4], native(48));
    assert_eq!(bytes[4..8], [0x06, 0x0a, 5, 0]);
    assert_eq!(bytes[8..16], [0; 8], "number and port");
    assert_eq!(bytes[16..20], [2, 0, 0, 0]);
    assert_eq!(bytes[20..28], [8, 0, 1, 0, b'a', b'b', b'c', 0]);
    // Its length has no padding, except of what is inside.
    assert_eq!(bytes[28..32], [20, 0, 4, 0x80]);
    assert_eq!(bytes[32..40], [8, 0, 2, 0, 1, 2, 3, 4]);
    assert_eq!(bytes[40..48], [5, 0, 3, 0, 9, 0, 0, 0]);
    assert_eq!(bytes[48..52], native(16));
    assert_eq!(bytes[56..60], native(1), "the number of the second");
}

#[test]
fn the_last_request_can_be_made_to_be_answered() {
    let mut requests = example();
    assert_eq!(requests.awaited, Some(0));
    requests.await_last();
    assert_eq!(requests.awaited, Some(1));
    assert_eq!(requests.bytes[54..56], [5, 0]);
    let netlink = NetlinkSocket::open(NetlinkFamily::Route).unwrap();
    let mut unanswered = RequestBatch::default();
    unanswered.push("nothing", u16::try_from(libc::NLMSG_NOOP).unwrap(), 0, |_| {});
    assert!(netlink.send(&unanswered, |_| {}).unwrap().is_empty());
    unanswered.awaited = Some(0);
    let error = netlink.send(&unanswered, |_| {}).unwrap_err();
    assert!(matches!(error, NetworkError::Talking { .. }), "{error:?}");
}

#[test]
fn what_is_written_is_read_again() {
    let bytes = example().bytes;
    let read: Vec<_> = messages(&bytes).map(Option::unwrap).collect();
    assert_eq!(read.len(), 2);
    assert_eq!((read[0].kind, read[0].number, read[1].number), (0x0a06, 0, 1));
    let found: Vec<_> = attributes(&read[0].payload[4..]).map(Option::unwrap).collect();
    assert_eq!(found[0], (1, &b"abc\0"[..]));
    assert_eq!(found[1].0, 4, "without the bit for nesting");
    let inner: Vec<_> = attributes(found[1].1).map(Option::unwrap).collect();
    assert_eq!(inner, [(2, &[1, 2, 3, 4][..]), (3, &[9][..])]);
}

#[test]
fn too_much_for_a_length_is_an_error_and_not_a_wrap() {
    let mut requests = RequestBatch::default();
    requests.push("long", 1, 0, |request| {
        request.attribute(1, &vec![0; 70_000]);
    });
    assert!(requests.too_long);
    let netlink = NetlinkSocket::open(NetlinkFamily::Route).unwrap();
    let error = netlink.send(&requests, |_| {}).unwrap_err();
    assert!(matches!(error, NetworkError::Talking { step: "long", .. }), "{error:?}");
}

/// Cut anywhere, and with any length in its fields, a datagram is read to its end or found broken.
#[test]
fn broken_answers_are_found() {
    let whole = example().bytes;
    for cut in 1..whole.len() {
        let good = cut == 48;
        assert_eq!(
            messages(&whole[..cut]).all(|message| message.is_some()),
            good,
            "cut at {cut}"
        );
    }
    for at in 0..whole.len() {
        for value in [0, 1, 3, 4, 15, 16, 17, 0x7f, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[at] = value;
            for message in messages(&changed).flatten() {
                let _read = message.verdict();
                for attribute in attributes(message.payload).flatten() {
                    assert!(attribute.1.len() < whole.len());
                }
            }
        }
    }
}

fn error_message(flags: i32, payload: &[u8]) -> KernelMessage<'_> {
    KernelMessage {
        kind: u16::try_from(libc::NLMSG_ERROR).unwrap(),
        flags: u16::try_from(flags).unwrap(),
        number: 0,
        payload,
    }
}

#[test]
fn refusals_carry_the_kernels_words() {
    let mut payload = (-libc::EINVAL).to_ne_bytes().to_vec();
    payload.extend(20_u32.to_ne_bytes());
    payload.extend([0; 12]);
    let capped = payload.len();
    payload.extend([0; 4]);
    let text = [b"\x0c\0\x01\0".as_slice(), b"no such", b"\0"].concat();
    payload.extend(&text);
    let refused = |words| {
        Some(RequestVerdict::Refused {
            errno: Errno::INVAL,
            words,
        })
    };
    let with_words = libc::NLM_F_ACK_TLVS;
    assert_eq!(error_message(with_words, &payload).verdict(), refused("no such"));
    assert_eq!(error_message(0, &payload).verdict(), refused(""));
    let short = [&payload[..capped], &text].concat();
    let flags = with_words | libc::NLM_F_CAPPED;
    assert_eq!(error_message(flags, &short).verdict(), refused("no such"));
    for cut in 4..payload.len() - 1 {
        assert_eq!(
            error_message(with_words, &payload[..cut]).verdict(),
            refused(""),
            "cut at {cut}"
        );
    }
}

#[test]
fn errors_that_are_none_of_the_kernels_are_broken() {
    for errno in [1, libc::EINVAL, i32::MIN] {
        let payload = errno.to_ne_bytes();
        assert_eq!(error_message(0, &payload).verdict(), None, "{errno}");
    }
    assert_eq!(error_message(0, &[0, 0]).verdict(), None);
    assert_eq!(error_message(0, &[0; 4]).verdict(), Some(RequestVerdict::Done));
}
