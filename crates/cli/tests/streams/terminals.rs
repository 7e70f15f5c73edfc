//! Terminals: those a command is given, and what it cannot do to the user's.

use rustix::process::Signal;

use super::shell;
use super::support::processes::{program, signal, wait};
use super::support::terminal::Terminal;
use super::support::{Site, id_of, record_of, skip, stderr, stdout};

#[test]
fn a_terminal_has_the_size_of_the_users() {
    let site = Site::new();
    let terminal = Terminal::new(31, 97);
    let mut child = terminal.start(&mut site.offleash([
        "run",
        "-q",
        "-t",
        "-c",
        "tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all three",
    ]));
    assert!(wait(&mut child).success(), "{}", terminal.screen());
    let screen = terminal.wait_for("all three");
    assert!(screen.contains("/dev/pts/0") && screen.contains("31 97"), "{screen}");
}

#[test]
fn a_terminal_follows_the_users_when_it_changes() {
    let site = Site::new();
    let terminal = Terminal::new(24, 80);
    let script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut child = terminal.start(&mut site.offleash(["run", "-q", "-t", "-c", script]));
    terminal.wait_for("ready");
    terminal.resize(43, 132);
    signal(&child, Signal::WINCH);
    assert!(wait(&mut child).success());
    terminal.wait_for("43 132");
}

#[test]
fn keys_go_to_the_command_and_the_terminal_is_put_back() {
    let site = Site::new();
    let mut terminal = Terminal::new(24, 80);
    let before = terminal.settings();
    let mut child = terminal.start(&mut site.offleash([
        "run",
        "-q",
        "-t",
        "-c",
        "echo ready; read line; echo got $line; exec sleep 600",
    ]));
    terminal.wait_for("ready");
    terminal.type_keys(b"words\r");
    terminal.wait_for("got words");
    assert!(
        !terminal
            .settings()
            .local_modes
            .contains(rustix::termios::LocalModes::ISIG),
        "raw while the command runs"
    );
    // Ctrl-C is a key: the command's own terminal makes a signal of it.
    terminal.type_keys(b"\x03");
    assert_eq!(wait(&mut child).code(), Some(130), "{}", terminal.screen());
    let after = terminal.settings();
    assert_eq!(after.local_modes, before.local_modes);
    assert_eq!(after.input_modes, before.input_modes);
    assert_eq!(after.output_modes, before.output_modes);
}

#[test]
fn what_a_command_shows_on_its_terminal_is_in_the_record() {
    let site = Site::new();
    let output = site
        .offleash(["run", "--json", "-t", "-c", "test -t 1 && echo shown; echo too >&2"])
        .output()
        .unwrap();
    let record = record_of(&output);
    assert_eq!(record["stdout"]["data"], "shown\r\ntoo\r\n", "{record}");
    assert_eq!(record["stderr"]["bytes"], 0, "{record}");
}

#[test]
fn a_terminal_can_be_had_without_one() {
    let site = Site::new();
    let output = site
        .offleash(["run", "-q", "-t", "-c", "stty size; tty"])
        .output()
        .unwrap();
    assert_eq!(
        stdout(&output).replace('\r', ""),
        "24 80\n/dev/pts/0\n",
        "{}",
        stderr(&output)
    );
}

const DRIVES_A_TERMINAL: &str =
    r"printf 'a\033]52;c;aGk=\007b\033[2Jc\033]0;title\033\\d\033[31mred\033[0m\302\2332Je\n'";

#[test]
fn output_does_not_drive_the_users_terminal() {
    let site = Site::new();
    for to_stderr in ["", " >&2"] {
        let terminal = Terminal::new(24, 80);
        let mut child = terminal.start(&mut site.offleash(shell(&format!("{DRIVES_A_TERMINAL}{to_stderr}"))));
        assert!(wait(&mut child).success());
        let screen = terminal.wait_for("e\r\n");
        assert!(
            !screen.contains("\x1b]") && !screen.contains("\x1b[2J") && !screen.contains('\x07'),
            "{screen:?}"
        );
        assert!(!screen.contains('\u{9b}'), "{screen:?}");
        assert!(screen.contains("\x1b[31mred\x1b[0m"), "colours stay: {screen:?}");
    }
}

#[test]
fn with_a_terminal_of_its_own_a_command_may_draw() {
    let site = Site::new();
    let terminal = Terminal::new(24, 80);
    let mut child = terminal.start(&mut site.offleash(["run", "-q", "-t", "-c", DRIVES_A_TERMINAL]));
    assert!(wait(&mut child).success());
    assert!(terminal.wait_for("e\r\n").contains("\x1b[2J"));
}

#[test]
fn what_a_run_left_cannot_drive_the_terminal_when_it_is_shown() {
    let site = Site::new();
    let script = "printf 'x\\033]0;t\\007\\n' > \"$(printf 'name\\033[2J')\"; printf 'y\\033[2J\\n' > plain";
    let record = site.record(&[], script);
    let id = id_of(&record);
    for arguments in [
        vec!["diff", &id],
        vec!["diff", "-s", &id],
        vec!["runs"],
        vec!["apply", &id],
    ] {
        let terminal = Terminal::new(24, 80);
        let mut child = terminal.start(&mut site.offleash(&arguments));
        assert!(wait(&mut child).success(), "{arguments:?}: {}", terminal.screen());
        let screen = terminal.screen();
        assert!(
            !screen.contains('\x1b') && !screen.contains('\x07'),
            "{arguments:?}: {screen:?}"
        );
    }
}

#[test]
fn a_command_cannot_type_into_the_users_terminal() {
    let site = Site::new();
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    let terminal = Terminal::new(24, 80);
    let script = "import fcntl, sys\nfor fd in (0, 1, 2):\n    try:\n        fcntl.ioctl(fd, 0x5412, b'X'); print('typed', fd)\n    \
                  except OSError as error:\n        print('refused', fd)\n";
    let mut child = terminal.start(&mut site.offleash(["run", "-q", "--", "python3", "-c", script]));
    assert!(wait(&mut child).success(), "{}", terminal.screen());
    let screen = terminal.wait_for("refused 2");
    assert!(!screen.contains("typed"), "{screen}");
}
