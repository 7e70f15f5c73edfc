//! Every reason for which a head is refused.

use super::super::HttpHeadError as Error;
use super::{MAX_FIELDS, MAX_HEAD, Progress, RequestHeadReader, Scheme, head, read, read_in_parts, with};

/// Asserts the refusal, and that it is the same when the bytes come one by one.
fn refused(bytes: impl AsRef<[u8]>, error: &Error) {
    let bytes = bytes.as_ref();
    let expected = Progress::Invalid(error.clone());
    assert_eq!(read(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
    assert_eq!(read_in_parts(bytes, std::iter::empty()).0, expected);
}

/// Refused when these lines stand behind `Host`, or before it.
fn refused_lines(lines: &str, error: &Error) {
    refused(with(lines), error);
    refused(format!("GET / HTTP/1.1\r\n{lines}Host: example.com\r\n\r\n"), error);
}

#[test]
fn n9_two_lengths() {
    refused_lines(
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        &Error::TwoLengths,
    );
    refused_lines(
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        &Error::TwoLengths,
    );
    refused_lines(
        "Transfer-Encoding: chunked\r\ncontent-LENGTH: 0\r\n",
        &Error::TwoLengths,
    );
    for second in ["5", "6", "0"] {
        let lines = format!("Content-Length: 5\r\nCONTENT-length: {second}\r\n");
        refused_lines(&lines, &Error::Duplicate("content-length"));
    }
    let codings = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n";
    refused_lines(codings, &Error::Duplicate("transfer-encoding"));
}

#[test]
fn n9_lengths_that_are_no_plain_number() {
    for length in [
        "",
        "+5",
        "-5",
        "-0",
        "5,5",
        "5, 5",
        "5 5",
        "0x5",
        "5a",
        "a",
        "1e3",
        "5.0",
        "05",
        "00",
        "5;",
        "\u{665}",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "00000000000000000005",
        "99999999999999999999999999",
    ] {
        refused_lines(&format!("Content-Length: {length}\r\n"), &Error::ContentLength);
    }
    for spaced in ["  5", "\t5", "5 ", "5\t", " \t5"] {
        refused_lines(
            &format!("Content-Length: {spaced}\r\n"),
            &Error::Space("content-length"),
        );
    }
}

#[test]
fn n9_codings_other_than_chunked() {
    for coding in [
        "",
        "identity",
        "gzip",
        "gzip, chunked",
        "chunked, chunked",
        "chunked,",
        ",chunked",
        "Chunked",
        "CHUNKED",
        "chunked;x=1",
        "\"chunked\"",
        "xchunked",
        "chunked, identity",
        "chunke\u{301}d",
    ] {
        refused_lines(&format!("Transfer-Encoding: {coding}\r\n"), &Error::TransferEncoding);
    }
    for spaced in ["  chunked", "\tchunked", "chunked ", "chunked\t"] {
        refused_lines(
            &format!("Transfer-Encoding: {spaced}\r\n"),
            &Error::Space("transfer-encoding"),
        );
    }
    refused_lines("Transfer-Encoding: \x0bchunked\r\n", &Error::Control(0x0b));
    refused(
        "POST / HTTP/1.0\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n",
        &Error::TransferEncodingIn10,
    );
}

#[test]
fn n9_lines_that_are_folded_or_end_otherwise() {
    refused_lines("Transfer-Encoding:\r\n chunked\r\n", &Error::Folded);
    refused_lines("X: a\r\n\tb\r\n", &Error::Folded);
    refused("GET / HTTP/1.1\r\n Host: example.com\r\n\r\n", &Error::Folded);
    refused("GET / HTTP/1.1\nHost: example.com\n\n", &Error::BareLf);
    refused("GET / HTTP/1.1\r\nHost: example.com\nX: y\r\n\r\n", &Error::BareLf);
    refused("GET / HTTP/1.1\r\nHost: example.com\r\n\n", &Error::BareLf);
    refused_lines("X: a\rb\r\n", &Error::BareCr);
    refused_lines("X: a\r\r\n", &Error::BareCr);
    refused("GET / HTTP/1.1\rHost: example.com\r\n\r\n", &Error::BareCr);
    refused("GET / HTTP/1.1\r\nHost: example.com\r\n\rX", &Error::BareCr);
}

#[test]
fn control_characters() {
    for control in (0..b' ').chain([0x7f]).filter(|byte| !b"\t\r\n".contains(byte)) {
        let sign = char::from(control);
        refused_lines(&format!("X: a{sign}b\r\n"), &Error::Control(control));
        refused_lines(&format!("X{sign}: a\r\n"), &Error::Control(control));
        refused(
            format!("GET /{sign} HTTP/1.1\r\nHost: a\r\n\r\n"),
            &Error::Control(control),
        );
    }
}

#[test]
fn names_of_fields_that_are_no_tokens() {
    for line in [
        "Content-Length : 5",
        "Content-Length\t: 5",
        "Content Length: 5",
        ": x",
        "x",
        "X(a): b",
        "X\u{fc}: b",
        "X/Y: b",
        "\"X\": b",
        "X\u{a0}: b",
        "X@: b",
        "[X]: b",
    ] {
        refused_lines(&format!("{line}\r\n"), &Error::FieldName);
    }
    refused("GET / HTTP/1.1\r\nHost : example.com\r\n\r\n", &Error::FieldName);
}

#[test]
fn names_that_imitate_others() {
    refused_lines("Content_Length: 5\r\n", &Error::Imitated("content-length"));
    refused_lines("Transfer_Encoding: chunked\r\n", &Error::Imitated("transfer-encoding"));
    refused_lines("TRANSFER.ENCODING: chunked\r\n", &Error::Imitated("transfer-encoding"));
    refused_lines("content~length: 5\r\n", &Error::Imitated("content-length"));
}

#[test]
fn request_lines_that_are_not_three_words() {
    for line in [
        "GET  / HTTP/1.1",
        "GET /  HTTP/1.1",
        "GET / a HTTP/1.1",
        "GET / HTTP/1.1 HTTP/1.1",
    ] {
        refused(format!("{line}\r\nHost: example.com\r\n\r\n"), &Error::RequestLine);
    }
    refused("GET HTTP/1.1\r\nHost: example.com\r\n\r\n", &Error::RequestLine);
    for version in ["HTTP/2.0", "HTTP/0.9", "HTTP/1.2", "HTTP/3.0"] {
        refused(format!("GET / {version}\r\nHost: example.com\r\n\r\n"), &Error::Version);
    }
    refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &Error::Version);
    for method in ["get", "Get", "G_T", "GET1", "G!T"] {
        refused(
            format!("{method} / HTTP/1.1\r\nHost: example.com\r\n\r\n"),
            &Error::Method,
        );
    }
}

#[test]
fn n8_connect_and_targets_of_other_forms() {
    refused(
        "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n",
        &Error::Connect,
    );
    refused("CONNECT / HTTP/1.1\r\nHost: example.com\r\n\r\n", &Error::Connect);
    for target in [
        "example.com:80",
        "*",
        "a",
        "?x",
        "/a#b",
        "/a\\b",
        "/\u{fc}",
        "/<x>",
        "/\"",
        "/a\tb",
        ".",
        "http:/example.com/",
        "mailto:a@b",
    ] {
        refused(
            format!("GET {target} HTTP/1.1\r\nHost: example.com\r\n\r\n"),
            &Error::Target,
        );
    }
    for target in [
        "https://example.com/",
        "ftp://example.com/",
        "://example.com/",
        "h\u{74}tps://a/http://example.com",
    ] {
        refused(
            format!("GET {target} HTTP/1.1\r\nHost: example.com\r\n\r\n"),
            &Error::TargetScheme,
        );
    }
    let bytes = b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n";
    let verdict = RequestHeadReader::new(Scheme::Https).read(bytes);
    assert_eq!(verdict, Progress::Invalid(Error::TargetScheme));
}

/// Spellings of a host that are refused wherever it stands.
const BAD_HOSTS: &str = "user@example.com user:pw@example.com @example.com example.com@ example.com,other.example \
    exam%70le.com example.com: example.com:0 example.com:080 example.com:65536 example.com:+80 \
    example.com:80a example.com:80:80 :80 . .example.com example..com example.com.. *.example.com ::1 \
    [::1 ::1] [] [::1]x [::1%25eth0] [::1%eth0] [1.2.3.4] [v1.x] example.com;x ex!ample.com \
    example.com?x example\u{3002}com b\u{fc}cher.example";

#[test]
fn n5_hosts_that_are_none() {
    for host in BAD_HOSTS.split(' ') {
        refused(
            format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            &Error::Host("`Host`"),
        );
        if host.is_ascii() {
            let target = Error::Host("the request target");
            refused(
                format!("GET http://{host}/ HTTP/1.1\r\nHost: example.com\r\n\r\n"),
                &target,
            );
        }
    }
    let others = [
        "",
        "example.com other",
        "example.com/path",
        "example.com#x",
        "example.com\\x",
        "http://example.com",
    ];
    for host in others {
        refused(
            format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            &Error::Host("`Host`"),
        );
    }
    let long = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", ["a"; 128].join("."));
    refused(long, &Error::Host("`Host`"));
    refused(
        format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(64)),
        &Error::Host("`Host`"),
    );
    for spaced in ["  example.com", "\texample.com", "example.com ", "example.com\t"] {
        refused(
            format!("GET / HTTP/1.1\r\nHost: {spaced}\r\n\r\n"),
            &Error::Space("host"),
        );
    }
    refused(
        "GET http:///path HTTP/1.1\r\nHost: a\r\n\r\n",
        &Error::Host("the request target"),
    );
}

#[test]
fn n8_no_host_two_hosts_and_hosts_that_disagree() {
    refused("GET / HTTP/1.1\r\n\r\n", &Error::NoHost);
    refused("GET / HTTP/1.0\r\n\r\n", &Error::NoHost);
    refused("GET http://example.com/ HTTP/1.1\r\n\r\n", &Error::NoHost);
    refused("OPTIONS * HTTP/1.0\r\n\r\n", &Error::NoHost);
    for second in ["example.com", "other.example", ""] {
        refused(with(&format!("Host: {second}\r\n")), &Error::Duplicate("host"));
        refused(with(&format!("hOST: {second}\r\n")), &Error::Duplicate("host"));
    }
    for host in [
        "other.example",
        "example.com:81",
        "example.com.",
        "www.example.com",
        "[::1]",
    ] {
        let bytes = format!("GET http://example.com/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
        refused(&bytes, &Error::HostsDisagree);
        refused(bytes.replace("1.1", "1.0"), &Error::HostsDisagree);
    }
}

#[test]
fn n9_connections_that_name_other_fields() {
    let others = [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "Cookie",
        "X-Any",
        "close,",
        ",",
        "a b",
    ];
    for option in others {
        refused_lines(&format!("Connection: {option}\r\n"), &Error::Connection);
        refused_lines(&format!("Connection: close, {option}\r\n"), &Error::Connection);
    }
    refused_lines("Connection: close\r\nConnection: host\r\n", &Error::Connection);
    refused_lines("Connection:\r\n", &Error::Connection);
    refused_lines("Connection:  close\r\n", &Error::Space("connection"));
}

#[test]
fn n9_upgrades_and_expectations_that_are_odd() {
    for lines in [
        "Upgrade: websocket\r\n",
        "Connection: upgrade\r\n",
        "Connection: upgrade\r\nUpgrade: websocket, h2c\r\n",
        "Connection: upgrade\r\nUpgrade: \r\n",
        "Connection: upgrade\r\nUpgrade: a/b/c\r\n",
        "Connection: upgrade\r\nUpgrade: a/\r\n",
    ] {
        refused_lines(lines, &Error::Upgrade);
    }
    let twice = "Connection: upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n";
    refused_lines(twice, &Error::Duplicate("upgrade"));
    refused(
        "GET / HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        &Error::Upgrade,
    );
    for value in ["", "200-ok", "100-continue, x", "y 100-continue"] {
        refused_lines(&format!("Expect: {value}\r\n"), &Error::Expect);
    }
    refused(
        "PUT / HTTP/1.0\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
        &Error::Expect,
    );
    refused_lines(
        "Expect: 100-continue\r\nExpect: 100-continue\r\n",
        &Error::Duplicate("expect"),
    );
}

#[test]
fn n12_heads_that_are_too_long() {
    refused(with(&"a: b\r\n".repeat(MAX_FIELDS)), &Error::ManyFields);
    let endless = ["GET /", &"a".repeat(300_000)].concat();
    refused(endless, &Error::TooLong);
    let rest = with("X: \r\n").len();
    refused(
        with(&format!("X: {}\r\n", "a".repeat(MAX_HEAD - rest + 1))),
        &Error::TooLong,
    );
    assert_eq!(head(&with("")).fields.len(), 1);
}
