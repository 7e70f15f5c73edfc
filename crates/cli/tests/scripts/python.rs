//! CPython. Where a test says `has no`, it also says what a script is told.

use std::fs;

use crate::support::{stderr, stdout};
use crate::{CODE, SHELL, has_python, record, run, shell, site};

#[test]
fn code_scripts_and_standard_input_run_with_their_arguments_and_status() {
    if !has_python() {
        return;
    }
    let site = site();
    let python = |words: &[&str], input: &str| run(&site, &[&SHELL, &["--", "python3"], words].concat(), input);
    let json = python(&["-c", r#"import json; print(json.dumps({"a":1}))"#], "");
    assert_eq!(stdout(&json), "{\"a\": 1}\n", "{}", stderr(&json));
    fs::write(
        site.workspace().join("script.py"),
        "import sys\nprint(sys.argv)\nsys.exit(7)\n",
    )
    .unwrap();
    let script = python(&["script.py", "a b", "-x"], "");
    assert_eq!(stdout(&script), "['script.py', 'a b', '-x']\n", "{}", stderr(&script));
    assert_eq!(script.status.code(), Some(7));
    let piped = python(&["-"], "import sys; print('piped', file=sys.stderr)");
    assert_eq!(stderr(&piped), "piped\n");
    let read = python(&["-c", "import sys; print(sys.stdin.read().upper())"], "text\n");
    assert_eq!(stdout(&read), "TEXT\n\n");
    let uncaught = python(&["-c", "1/0"], "");
    assert_eq!(uncaught.status.code(), Some(1));
    assert!(stderr(&uncaught).contains("ZeroDivisionError"), "{}", stderr(&uncaught));
    assert_eq!(stdout(&python(&["--version"], "")), "Python 3.14.8\n");
}

#[test]
fn the_library_is_there_and_what_needs_a_machine_is_not() {
    if !has_python() {
        return;
    }
    let site = site();
    let script = r#"
import csv, io, re, sqlite3, hashlib, datetime, decimal, dataclasses, pathlib, tempfile, random, os, time, uuid, asyncio
assert re.findall(r"\d+", "a1b22") == ["1", "22"]
assert list(csv.reader(io.StringIO("a,b"))) == [["a", "b"]]
assert sqlite3.connect(":memory:").execute("select 1+1").fetchone() == (2,)
assert abs(time.time() - float(os.environ["NOW"])) < 300
assert random.random() != random.random() and uuid.uuid4() != uuid.uuid4()
async def wait(): await asyncio.sleep(0.01); return 5
assert asyncio.run(wait()) == 5
with tempfile.TemporaryDirectory() as d:
    p = pathlib.Path(d) / "x"; p.write_text("é"); assert p.read_text() == "é" and os.listdir(d) == ["x"]
def fails(what):
    try: what()
    except Exception as error: return type(error).__name__ + ": " + str(error)
import subprocess, socket, urllib.request
print(fails(lambda: subprocess.run(["ls"])))
print(fails(lambda: urllib.request.urlopen("http://127.0.0.1:1/")))
print(fails(lambda: socket.socket()))
"#;
    fs::write(site.workspace().join("t.py"), script).unwrap();
    let told = shell(&site, "NOW=$(date +%s) python3 t.py");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    assert!(lines.iter().all(|line| line.contains("Error")), "{told}");
    assert!(lines[1].contains("this level has no network"), "{told}");
}

#[test]
fn the_workspace_is_read_and_written_as_the_shell_does() {
    if !has_python() {
        return;
    }
    let site = site();
    fs::create_dir(site.workspace().join("sub")).unwrap();
    fs::write(site.workspace().join("sub/data.txt"), "1\n2\n3\n").unwrap();
    fs::write(site.workspace().join("module.py"), "VALUE = 41\n").unwrap();
    let script = r#"
cd sub
python3 - <<'EOF'
import os, sys
sys.path.insert(0, "..")
import module
total = sum(map(int, open("data.txt")))
with open("../out.txt", "w") as f: f.write(f"{total + module.VALUE}\n" * 3)
with open("data.txt", "a") as f: f.write("4\n")
os.mkdir("made"); os.rename("made", "moved"); os.symlink("../out.txt", "link")
print(sorted(os.listdir(".")), os.path.exists("/proc"), os.getcwd() == os.environ["PWD"], open("link").readline().strip())
EOF
wc -l < data.txt; sed -n 2p ../out.txt; [ -d moved ] && readlink link
"#;
    let expected = "['data.txt', 'link', 'moved'] False True 47\n4\n47\n../out.txt\n";
    assert_eq!(shell(&site, script), expected);
    // It is all in the layer.
    assert_eq!(
        fs::read_to_string(site.workspace().join("sub/data.txt")).unwrap(),
        "1\n2\n3\n"
    );
    let refused = shell(
        &site,
        r#"python3 -c '
for path in ["/etc/passwd", "/proc/self/status", "../../../../etc/shadow"]:
    try: print(open(path).read())
    except OSError as error: print(error.strerror)'"#,
    );
    assert_eq!(refused, "No such file or directory\n".repeat(3));
}

#[test]
fn pipes_variables_and_shebangs_are_those_of_the_shell() {
    if !has_python() {
        return;
    }
    let site = site();
    let script = r##"
        python3 -c 'for i in range(1000): print(i)' | wc -l
        seq 3 | python3 -c 'import sys; print(sum(map(int, sys.stdin)))'
        export X=ex; Y=not; python3 -c 'import os; print(os.environ.get("X"), os.environ.get("Y"))'
        printf '#!/usr/bin/env python3\nimport sys; print("ran", sys.argv[1:])\n' > s.py; chmod +x s.py; ./s.py 1 2
        x=$(python -c 'print(6*7)'); echo "$x"; command -v python3 > /dev/null && echo found
        python3 -c 'import sys; sys.stdout.buffer.write(bytes([0, 255]))' | od -An -tx1
        python3 -c 'raise SystemExit(3)' || echo "status $?"
    "##;
    let expected = "1000\n6\nex None\nran ['1', '2']\n42\nfound\n 00 ff\nstatus 3\n";
    assert_eq!(shell(&site, script), expected);
}

#[test]
fn code_mode_has_files_of_its_own_beside_the_workspace() {
    if !has_python() {
        return;
    }
    let site = site();
    fs::write(site.workspace().join("in.txt"), "text").unwrap();
    let code = r#"
import tempfile, os
open("/tmp/x", "w").write("y"); f = tempfile.NamedTemporaryFile("w+"); f.write("z"); f.flush()
open("out.txt", "w").write(open("in.txt").read() + open("/tmp/x").read() + open(f.name).read())
print(open("out.txt").read(), sorted(os.listdir("/")))
"#;
    let output = run(&site, &[&CODE[..], &["--python", "-c", code]].concat(), "");
    let told = stdout(&output);
    assert!(told.starts_with("textyz ["), "{told}{}", stderr(&output));
    assert!(!site.workspace().join("out.txt").exists());
    assert!(!stderr(&output).contains("host"), "{}", stderr(&output));
}

#[test]
fn what_does_not_end_or_grows_without_end_is_ended_typed() {
    if !has_python() {
        return;
    }
    let site = site();
    let endless = record(
        &site,
        &[&CODE[..], &["--wall-time", "1s", "--python", "-c", "while True: pass"]].concat(),
    );
    assert_eq!(endless["outcome"]["limit"], "wall_time", "{endless}");
    let grows = "x = []\nwhile True: x.append(bytes(1 << 20))";
    let memory = record(
        &site,
        &[&CODE[..], &["--memory", "100M", "--python", "-c", grows]].concat(),
    );
    assert_eq!(memory["exit_code"], 1, "{memory}");
    assert!(
        memory["stderr"]["data"].as_str().unwrap().contains("MemoryError"),
        "{memory}"
    );
    assert_eq!(memory["denials"][0]["subject"], "limit", "{memory}");
    let deep = record(
        &site,
        &[&CODE[..], &["--python", "-c", "f = lambda: f()\nf()"]].concat(),
    );
    assert!(
        deep["stderr"]["data"].as_str().unwrap().contains("RecursionError"),
        "{deep}"
    );
    let talks = "while True: print('x' * 1000)";
    let output = record(
        &site,
        &[&SHELL[..], &["--output", "1M", "--", "python3", "-c", talks]].concat(),
    );
    assert_eq!(output["exit_code"], 1, "{output}");
    assert!(
        output["stderr"]["data"].as_str().unwrap().contains("limit: output"),
        "{output}"
    );
    let streams = record(
        &site,
        &[&CODE[..], &["--output", "1M", "--python", "-c", talks]].concat(),
    );
    assert_eq!(streams["outcome"]["limit"], "output", "{streams}");
}

#[test]
fn files_go_from_one_language_to_the_other_and_to_the_shell() {
    if !has_python() {
        return;
    }
    let site = site();
    let script = r#"
        node -e 'require("fs").writeFileSync("/tmp/from-js", JSON.stringify([1, 2]))'
        python3 -c 'import json; open("/tmp/from-py", "w").write(str(sum(json.load(open("/tmp/from-js")))))'
        cat /tmp/from-js /tmp/from-py; echo
        echo 'print("in the workspace")' > made.py && python3 made.py | tr a-z A-Z
    "#;
    assert_eq!(shell(&site, script), "[1,2]3\nIN THE WORKSPACE\n");
    // The workspace itself is as it was.
    assert!(!site.workspace().join("made.py").exists());
}
