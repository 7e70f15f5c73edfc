//! `sudo` at a terminal: what it starts has one of its own, with job control, Ctrl-C and the size of the user's.

use super::support::processes::wait;
use super::support::terminal::Terminal;
use super::{BASE, shared};

/// What is asked of a terminal, then an interactive shell.
const SCRIPT: &str = r#"
cat > /tmp/inner <<'END'
trap 'echo caught; exit 7' INT
exec 3</dev/tty && echo has a terminal
stty size
test "$(ps -o tty= -p $$ 2>/dev/null || tty)" != '?' && echo ready
while :; do sleep 0.05; done
END
sudo sh /tmp/inner
echo "ended by $?"
stty -a | grep -q ' icanon' && stty -a | grep -q ' echo ' && echo as before
sudo bash --norc -i
echo "shell ended by $?"
echo one | sudo cat
sudo sh -c 'echo two; exec >/dev/null; sleep 0' | cat
"#;

#[test]
fn what_sudo_starts_at_a_terminal_has_one_of_its_own() {
    let site = shared();
    let mut terminal = Terminal::new(30, 90);
    let arguments = [&["run", "--quiet", "-t"], &BASE[..], &["--", "/bin/sh", "-c", SCRIPT]].concat();
    let mut child = terminal.start(&mut site.offleash(arguments));
    terminal.wait_for("has a terminal");
    terminal.wait_for("30 90");
    terminal.wait_for("ready");
    terminal.type_keys(b"\x03");
    terminal.wait_for("caught");
    terminal.wait_for("ended by 7");
    terminal.wait_for("as before");
    // The words as they are typed are shown, too. What starts a program could be waiting for that in a `vfork`, which does
    // not stop.
    terminal.type_keys(b"sh -c 'echo runn''ing; read line'\n");
    terminal.wait_for("running");
    terminal.type_keys(b"\x1a");
    terminal.wait_for("Stopped");
    terminal.type_keys(b"kill %1; jobs; exit 3\n");
    terminal.wait_for("shell ended by 3");
    terminal.wait_for("one");
    terminal.wait_for("two");
    assert!(wait(&mut child).success(), "{}", terminal.screen());
    assert!(!terminal.screen().contains("no job control"), "{}", terminal.screen());
}
