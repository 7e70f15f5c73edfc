//! Names: which exist for the sandbox, and that asking for them tells nobody.

use crate::world::world;

#[test]
fn n4_a_name_that_is_not_allowed_does_not_exist_and_nobody_is_asked() {
    let Some(world) = world() else { return };
    let attempts = r#"
attempt("secret", get, "key-1234.secret.example.com")
attempt("other", ask, "leak-one.secret.example.com")
attempt("by connection", ask_by_connection, "leak-two.secret.example.com")
attempt("elsewhere", ask, "leak-three.secret.example.com", server="9.9.9.9")
attempt("stub", ask, "leak-four.secret.example.com", server="127.0.0.53")
attempt("text", ask, "leak-five.secret.example.com", 16)
attempt("service", ask, "_x._tcp.secret.example.com", 33)
attempt("reverse", ask, "34.216.184.93.in-addr.arpa", 12)
"#;
    let seen = world.inside(&["--allow", "www.example.com"], attempts);
    assert!(
        seen.refused("secret").contains("gaierror"),
        "{}",
        seen.refused("secret")
    );
    for name in [
        "other",
        "by connection",
        "elsewhere",
        "stub",
        "text",
        "service",
        "reverse",
    ] {
        assert_eq!(seen.done(name), "code 3, answers 0", "{name}");
    }
    assert_eq!(seen.refused_name("leak-one.secret.example.com"), Some(1));
    assert!(seen.refused_name("key-1234.secret.example.com") >= Some(1));
    assert!(seen.refused_name("leak-three.secret.example.com") >= Some(1));
    world.assert_never_asked("secret.example.com");
}

#[test]
fn n4_asking_for_an_allowed_name_tells_nobody_until_it_is_connected_to() {
    let Some(world) = world() else { return };
    let flags = ["--allow", "*.wild.example.org"];
    let seen = world.inside(
        &flags,
        r#"
attempt("address", ask, "asked.wild.example.org")
attempt("IPv6", ask, "asked.wild.example.org", 28)
attempt("text", ask, "asked.wild.example.org", 16)
attempt("by connection", ask_by_connection, "asked.wild.example.org")
attempt("port that is not allowed", echoed, "asked.wild.example.org")
attempt("control", get, "connected.wild.example.org")
"#,
    );
    assert_eq!(seen.done("address"), "code 0, answers 1");
    assert_eq!(seen.done("by connection"), "code 0, answers 1");
    assert_eq!(seen.done("IPv6"), "code 0, answers 0");
    assert_eq!(seen.done("text"), "code 0, answers 0");
    seen.refused("port that is not allowed");
    seen.done("control");
    assert!(seen.record["network"]["refused_names"].as_object().unwrap().is_empty());
    world.assert_never_asked("asked.wild.example.org");
    let asked = world
        .met()
        .iter()
        .any(|entry| entry["name"] == "connected.wild.example.org");
    assert!(asked, "the control: what is connected to is asked for");
}

#[test]
fn n5_case_and_a_dot_at_the_end_do_not_matter_and_nothing_else_is_the_same_name() {
    let Some(world) = world() else { return };
    let flags = ["--allow", "example.com:80,7"];
    let seen = world.inside(
        &flags,
        r#"
attempt("upper case", echoed, "EXAMPLE.com")
attempt("dot", echoed, "example.com.")
attempt("Host in upper case", get, "example.com", asked="Example.COM")
attempt("Host with a dot", get, "example.com", asked="example.com.")
attempt("Host with a port", get, "example.com", asked="example.com:80")
"#,
    );
    seen.all_done();
    assert_eq!(seen.connections("example.com").len(), 5, "{:#}", seen.record["network"]);
    let other = world.inside(
        &flags,
        r#"
names = ["www.example.com", "notexample.com", "example.com.notexample.com", ".example.com", "example.com..",
         "example\uff0ecom", "example.co", "com", "example.com%00.notexample.com", "example.com/.notexample.com"]
for number, name in enumerate(names):
    def connect(name=name):
        try:
            return echoed(name)
        except UnicodeError as failure:
            raise OSError(str(failure))
    if name != "example\uff0ecom":
        attempt("name %d" % number, connect)
def label(*labels):
    asked = b"\x12\x34\1\0\0\1\0\0\0\0\0\0" + b"".join(bytes([len(one)]) + one for one in labels) + b"\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.settimeout(TIMEOUT)
        connection.connect(("198.18.0.1", 53))
        connection.send(asked)
        if connection.recv(512)[3] & 15:
            raise OSError("no such name")
attempt("dot in a label", label, b"example.com")
attempt("NUL", label, b"example\0", b"com")
attempt("NUL and more", label, b"example", b"com\0", b"notexample", b"com")
attempt("space", label, b"example ", b"com")
attempt("slash", label, b"example", b"com/")
attempt("not ASCII", label, b"ex\xc3\xa4mple", b"com")
"#,
    );
    other.all_refused();
    world.assert_never_asked("notexample.com");
}

#[test]
fn n5_wildcards_mean_what_is_below_and_a_deny_rule_holds_under_them_in_any_spelling() {
    let Some(world) = world() else { return };
    let flags = ["--allow", "*.example.com:7", "--deny-host", "secret.example.com"];
    let seen = world.inside(
        &flags,
        r#"
attempt("below", echoed, "www.example.com")
attempt("also below", echoed, "api.example.com")
"#,
    );
    seen.all_done();
    assert_eq!(
        seen.connection("api.example.com")["rule"],
        "network.allow: *.example.com:7"
    );
    let denied = world.inside(
        &flags,
        r#"
for name in ["secret.example.com", "SECRET.Example.com", "secret.example.com.", "example.com", "notexample.com"]:
    attempt(name, echoed, name)
"#,
    );
    denied.all_refused();
    assert!(
        denied.refused_name("secret.example.com") >= Some(1),
        "{:#}",
        denied.record["network"]
    );
    world.assert_never_asked("secret.example.com");
}

#[test]
fn n6_addresses_in_odd_spelling_are_judged_as_the_address_they_are() {
    let Some(world) = world() else { return };
    let flags = ["--allow", "93.184.216.34:7"];
    let spellings = r#"
for spelling in ["93.184.216.%s", "0x5db8d8%s", "0135.0270.0330.%s", "1572395%s", "::ffff:93.184.216.%s"]:
    ends = {"0x5db8d8%s": ("22", "23"), "0135.0270.0330.%s": ("042", "043"), "1572395%s": ("042", "043")}
    for name, end in zip(["allowed", "other"], ends.get(spelling, ("34", "35"))):
        attempt("%s %s" % (name, spelling), echoed, spelling % end)
"#;
    let seen = world.inside(&flags, spellings);
    for name in seen.names() {
        if name.starts_with("allowed") {
            seen.done(name);
        } else {
            seen.refused(name);
        }
    }
    assert_eq!(
        seen.connections("93.184.216.34").len(),
        5,
        "{:#}",
        seen.record["network"]
    );
}

#[test]
fn n12_questions_that_make_no_sense_do_not_end_the_gateway() {
    let Some(world) = world() else { return };
    let seen = world.inside(
        &["--allow", "www.example.com:7"],
        r#"
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
    asker.connect(("198.18.0.1", 53))
    for junk in [b"", b"\0", b"\xff" * 12, b"\0" * 4000, question("www.example.com")[:-3], b"\x12\x34\1\0\0\1" + b"\0" * 6 + b"\xc0\x0c\0\1\0\1"]:
        asker.send(junk)
for number in range(20):
    junk = socket.create_connection(("198.18.0.1", 53))
    junk.sendall(os.urandom(40))
    junk.close()
attempt("still there", echoed, "www.example.com")
"#,
    );
    seen.all_done();
}
