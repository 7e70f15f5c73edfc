//! The features, each with what shows it.

use std::fs;
use std::process::{Command, Output, Stdio};

use super::support::processes::feed;
use super::support::terminal::Terminal;
use super::support::{Site, id_of, record_of, stderr, stdout};
use super::{Cell, Column, Feature};
use Cell::{Differs, Refused, Yes};

const PYTHON: &str = "/usr/bin/python3";

pub(crate) const FEATURES: &[Feature] = &[
    Feature {
        name: "exit codes, signals, programs that are not there",
        cells: [Yes; 6],
        needs_root: false,
        show: ends,
        ask: &[],
    },
    Feature {
        name: "standard input, output and error",
        cells: [Yes; 6],
        needs_root: false,
        show: streams,
        ask: &[],
    },
    Feature {
        name: "a terminal",
        cells: [
            Refused("cannot give a command a terminal"),
            Refused("cannot give a command a terminal"),
            Yes,
            Yes,
            Yes,
            Yes,
        ],
        needs_root: false,
        show: terminal,
        ask: &["-t", "--", "true"],
    },
    Feature {
        name: "a kernel of its own",
        cells: [
            Differs("none"),
            Differs("the host's"),
            Differs("the host's"),
            Differs("gVisor's, in user space"),
            Differs("the host's"),
            Differs("the machine's own Linux"),
        ],
        needs_root: false,
        show: kernel,
        ask: &[],
    },
    Feature {
        name: "namespaces of the host's kernel cannot be made",
        cells: [
            Differs("no program makes a call"),
            Yes,
            Yes,
            Differs("only gVisor's own"),
            Yes,
            Yes,
        ],
        needs_root: false,
        show: namespaces,
        ask: &[],
    },
    Feature {
        name: "processes of the host are not there",
        cells: [Yes, Differs("seen, not touched"), Yes, Yes, Yes, Yes],
        needs_root: false,
        show: processes,
        ask: &[],
    },
    Feature {
        name: "changes to the workspace are kept aside, shown, applied",
        cells: [Yes; 6],
        needs_root: false,
        show: changes,
        ask: &[],
    },
    Feature {
        name: "a workspace that is written to (`:rw`)",
        cells: [Yes; 6],
        needs_root: false,
        show: written,
        ask: &[],
    },
    Feature {
        name: "directories of the workspace can be renamed",
        cells: [Yes; 6],
        needs_root: false,
        show: renamed,
        ask: &[],
    },
    Feature {
        name: "files of the host that were not granted are not there",
        cells: [Yes; 6],
        needs_root: false,
        show: hidden,
        ask: &[],
    },
    Feature {
        name: "wall time",
        cells: [Yes; 6],
        needs_root: false,
        show: wall_time,
        ask: &[],
    },
    Feature {
        name: "memory",
        cells: [Yes; 6],
        needs_root: false,
        show: memory,
        ask: &[],
    },
    Feature {
        name: "processes at once",
        cells: [
            Differs("none are started"),
            Differs("no more are started"),
            Differs("no more are started"),
            Differs("the sandbox ends"),
            Differs("no more are started"),
            Differs("no more are started"),
        ],
        needs_root: true,
        show: pids,
        ask: &[],
    },
    Feature {
        name: "size of directories in memory",
        cells: [
            Differs("held; the shell says so"),
            Differs("on disk, where they count as workspace"),
            Yes,
            Differs("held, and not told"),
            Differs("held, and not told"),
            Yes,
        ],
        needs_root: false,
        show: tmp_size,
        ask: &[],
    },
    Feature {
        name: "CPU time",
        cells: [Yes; 6],
        needs_root: false,
        show: cpu_time,
        ask: &[],
    },
    Feature {
        name: "size of a file",
        cells: [Yes; 6],
        needs_root: false,
        show: file_size,
        ask: &[],
    },
    Feature {
        name: "services of the host by name of their port",
        cells: [
            Refused("cannot enforce a network"),
            Refused("a network of which every connection leads to the gateway"),
            Yes,
            Yes,
            Yes,
            Refused("that services of the host are reached"),
        ],
        needs_root: false,
        show: service,
        ask: &["--host-port", "9", "--", "true"],
    },
    Feature {
        name: "no network unless it is asked for",
        cells: [Differs("it has no sockets"), Yes, Yes, Yes, Yes, Yes],
        needs_root: false,
        show: no_network,
        ask: &[],
    },
    Feature {
        name: "a root of its own (`--root base`, templates, images)",
        cells: [
            Differs("without the programs in it; no images"),
            Refused("give a sandbox a root of its own"),
            Yes,
            Yes,
            Yes,
            Yes,
        ],
        needs_root: false,
        show: own_root,
        ask: &["--root", "base", "--no-workspace", "--", "true"],
    },
    Feature {
        name: "volumes",
        cells: [Yes, Refused("cannot enforce volume"), Yes, Yes, Yes, Yes],
        needs_root: false,
        show: volumes,
        ask: &["--volume", "v:/data", "--", "true"],
    },
    Feature {
        name: "only some programs (`commands`)",
        cells: [
            Refused("that only some programs run"),
            Yes,
            Yes,
            Refused("Landlock holds that"),
            Refused("Landlock holds that"),
            Refused("Landlock holds that"),
        ],
        needs_root: false,
        show: commands,
        ask: &["--allow-command", "/bin/sh", "--", "/bin/sh", "-c", "exit"],
    },
    Feature {
        name: "the record says what holds it",
        cells: [Yes; 6],
        needs_root: false,
        show: record,
        ask: &[],
    },
];

fn run(site: &Site, flags: &[&str], more: &[&str], command: &[&str]) -> Output {
    let arguments = [&["run", "--quiet"], flags, more, &["--"], command].concat();
    site.offleash(arguments).output().unwrap()
}

fn shell(site: &Site, flags: &[&str], more: &[&str], script: &str) -> Output {
    run(site, flags, more, &["/bin/sh", "-c", script])
}

#[track_caller]
fn printed(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{:?}: {}{}",
        output.status,
        stdout(output),
        stderr(output)
    );
    stdout(output)
}

fn ends(site: &Site, _: Column, flags: &[&str]) {
    let code = |script: &str| shell(site, flags, &[], script).status.code();
    assert_eq!(code("exit 7"), Some(7));
    assert_eq!(code("kill -TERM $$"), Some(143));
    let missing = run(site, flags, &[], &["no-such-program"]);
    assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
    site.write("plain", "text");
    assert_eq!(run(site, flags, &[], &["./plain"]).status.code(), Some(126));
}

fn streams(site: &Site, _: Column, flags: &[&str]) {
    let arguments = [&["run", "--quiet"], flags, &["--", "/bin/sh", "-c", "cat; echo no >&2"]].concat();
    let input = vec![b'x'; 300_000];
    let output = feed(&mut site.offleash(arguments), input.clone());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stdout == input, "{} bytes", output.stdout.len());
    assert_eq!(stderr(&output), "no\n");
}

fn terminal(site: &Site, _: Column, flags: &[&str]) {
    let mut terminal = Terminal::new(31, 97);
    let arguments = [
        &["run", "--quiet", "-t"],
        flags,
        &["--", "/bin/sh", "-c", "stty size; read line; echo [$line]"],
    ]
    .concat();
    let mut child = terminal.start(site.offleash(arguments).env("TERM", "dumb"));
    terminal.wait_for("31 97");
    terminal.type_keys(b"typed\n");
    terminal.wait_for("[typed]");
    assert!(child.wait().unwrap().success());
}

fn kernel(site: &Site, column: Column, flags: &[&str]) {
    let inside = printed(&run(site, flags, &[], &["uname", "-r"]));
    let host = Command::new("uname").arg("-r").stdin(Stdio::null()).output().unwrap();
    assert_eq!(
        inside == stdout(&host),
        !matches!(column, Column::Simulated | Column::Gvisor | Column::Microvm),
        "{inside}"
    );
}

fn namespaces(site: &Site, column: Column, flags: &[&str]) {
    let ask = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint([libc.unshare(0x10000000), libc.syscall(250, 0, 0, 0, 0, 0)])";
    if column == Column::Simulated {
        let output = shell(site, flags, &[], "unshare --user true");
        return assert!(matches!(output.status.code(), Some(126 | 127)), "{}", stderr(&output));
    }
    let said = printed(&run(site, flags, &[], &[PYTHON, "-c", ask]));
    // A user namespace, and the keys of the kernel (keyctl(2)).
    let expected = if column == Column::Gvisor {
        "[0, -1]\n"
    } else {
        "[-1, -1]\n"
    };
    assert_eq!(said, expected);
}

fn processes(site: &Site, column: Column, flags: &[&str]) {
    let seen = printed(&shell(site, flags, &[], "ls -d /proc/[0-9]* | wc -l"));
    let count: usize = seen.trim().parse().unwrap();
    let is_alone = count < 12;
    assert!(is_alone || column == Column::Landlock, "{count} processes");
}

fn changes(site: &Site, _: Column, flags: &[&str]) {
    site.write("kept", "as it was\n");
    site.write("gone", "soon\n");
    let record = site.record(
        flags,
        "echo changed > kept; rm gone; mkdir -p new/deep; echo made > new/deep/file",
    );
    assert_eq!(record["exit_code"], 0, "{record}");
    let id = id_of(&record);
    assert_eq!(
        fs::read_to_string(site.workspace().join("kept")).unwrap(),
        "as it was\n"
    );
    let told = site.succeed(["diff", "-s", &id]);
    for line in ["M kept", "D gone", "A new/deep/file"] {
        assert!(told.contains(line), "{told}");
    }
    site.succeed(["apply", &id]);
    assert_eq!(fs::read_to_string(site.workspace().join("kept")).unwrap(), "changed\n");
    assert!(!site.workspace().join("gone").exists());
    assert_eq!(
        fs::read_to_string(site.workspace().join("new/deep/file")).unwrap(),
        "made\n"
    );
}

fn written(site: &Site, _: Column, flags: &[&str]) {
    printed(&shell(site, flags, &["-w", ".:rw"], "echo written > file"));
    assert_eq!(fs::read_to_string(site.workspace().join("file")).unwrap(), "written\n");
}

fn renamed(site: &Site, _: Column, flags: &[&str]) {
    site.write("one/two/file", "kept\n");
    let record = site.record(flags, "mv one other && cat other/two/file");
    assert_eq!(record["stdout"]["data"], "kept\n", "{record}");
    site.succeed(["apply", &id_of(&record)]);
    assert!(site.workspace().join("other/two/file").exists() && !site.workspace().join("one").exists());
}

fn hidden(site: &Site, _: Column, flags: &[&str]) {
    let outside = site.root().join("outside");
    fs::write(&outside, "secret\n").unwrap();
    let script = format!("cat {} /etc/shadow 2>/dev/null; echo end", outside.display());
    assert_eq!(printed(&shell(site, flags, &[], &script)), "end\n");
}

fn wall_time(site: &Site, _: Column, flags: &[&str]) {
    let output = shell(site, flags, &["--wall-time", "2s"], "sleep 60");
    assert_eq!(output.status.code(), Some(124), "{}", stderr(&output));
}

fn memory(site: &Site, column: Column, flags: &[&str]) {
    let hog = "import sys\nheld = []\nwhile True: held.append(b'x' * (8 << 20))";
    if column == Column::Microvm {
        // The machine's kernel counts, for root and for others.
        let arguments = [
            &["run", "--json"],
            flags,
            &["--memory", "100M", "--", PYTHON, "-c", hog],
        ]
        .concat();
        let record = record_of(&site.offleash(arguments).output().unwrap());
        assert_eq!(
            record["outcome"],
            serde_json::json!({"kind": "out_of_memory", "limit": 100 << 20}),
            "{record}"
        );
        assert_eq!(record["exit_code"], 137, "{record}");
        return;
    }
    if column == Column::Simulated {
        let output = shell(site, flags, &["--memory", "100M"], "x=x; while :; do x=$x$x; done");
        return assert!(matches!(output.status.code(), Some(137 | 1)), "{}", stderr(&output));
    }
    let output = run(site, flags, &["--memory", "300M"], &[PYTHON, "-c", hog]);
    // Where no group counts, allocations fail first.
    assert!(
        matches!(output.status.code(), Some(137 | 1)),
        "{:?} {}",
        output.status,
        stderr(&output)
    );
}

fn pids(site: &Site, column: Column, flags: &[&str]) {
    let bomb = "i=0; while [ $i -lt 400 ]; do sleep 9 & i=$((i+1)); done 2>/dev/null; exit 0";
    let arguments = [
        &["run", "--json", "--pids", "60", "--wall-time", "60s"],
        flags,
        &["--", "/bin/sh", "-c", bomb],
    ]
    .concat();
    let record = record_of(&site.offleash(arguments).output().unwrap());
    let hits = record["limits_hit"].as_array().unwrap();
    let hit = hits.iter().find(|hit| hit["limit"] == "pids");
    if column == Column::Simulated {
        return assert!(hit.is_none() && record["usage"]["peak_pids"] == 0, "{record}");
    }
    assert!(hit.is_some(), "{record}");
    let is_ended = record["outcome"]["kind"] == "limit_exceeded";
    assert_eq!(is_ended, column == Column::Gvisor, "{}", record["outcome"]);
}

fn tmp_size(site: &Site, column: Column, flags: &[&str]) {
    if column == Column::Landlock {
        let flags = [flags, &["--workspace-size", "1M"]].concat();
        let record = site.record(&flags, "head -c 3000000 /dev/zero > $TMPDIR/full; sleep 20");
        assert_eq!(record["outcome"]["limit"], "workspace", "{record}");
        return;
    }
    let flags = [flags, &["--tmp-size", "1M"]].concat();
    let fill = match column {
        Column::Simulated => "x=x; for i in $(seq 22); do x=$x$x; done; echo $x > /var/tmp/full; exit 3",
        _ => "head -c 3000000 /dev/zero > /var/tmp/full; exit 3",
    };
    let record = site.record(&flags, fill);
    assert_eq!(record["exit_code"], 3, "{record}");
    let hits = record["limits_hit"].as_array().unwrap();
    let hit = hits.iter().find(|hit| hit["limit"] == "tmp");
    // The runtime's own directories are looked at by nobody; the error of whoever writes tells.
    let is_told = !matches!(column, Column::Simulated | Column::Gvisor | Column::Crun);
    assert_eq!(hit.is_some_and(|hit| hit["value"] == 1 << 20), is_told, "{record}");
    let errors = record["stderr"]["data"].as_str().unwrap();
    let words = match column {
        Column::Simulated => "filesystem full",
        _ => "No space left",
    };
    assert!(errors.contains(words), "{record}");
}

fn cpu_time(site: &Site, _: Column, flags: &[&str]) {
    let output = shell(site, flags, &["--cpu-time", "2s"], "while :; do :; done");
    assert_eq!(output.status.code(), Some(137), "{}", stderr(&output));
}

fn file_size(site: &Site, _: Column, flags: &[&str]) {
    let output = shell(
        site,
        flags,
        &["--file-size", "1M"],
        "head -c 3000000 /dev/zero > big; wc -c < big",
    );
    let size: u64 = stdout(&output).trim().parse().unwrap_or(0);
    assert!(size <= 1 << 20, "{}", stdout(&output));
}

fn service(site: &Site, _: Column, flags: &[&str]) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"served\n").unwrap();
    });
    let ask = format!("import socket\nprint(socket.create_connection(('127.0.0.1', {port}), 20).recv(100))");
    let output = run(site, flags, &["--host-port", &port], &[PYTHON, "-c", &ask]);
    assert_eq!(printed(&output), "b'served\\n'\n");
    server.join().unwrap();
}

fn no_network(site: &Site, column: Column, flags: &[&str]) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let ask = format!(
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', {port}), 3)\n    print('reached')\nexcept OSError:\n    print('not there')"
    );
    if column == Column::Simulated {
        let output = shell(site, flags, &[], &format!("exec 3<>/dev/tcp/127.0.0.1/{port}"));
        assert!(!output.status.success(), "{}", stdout(&output));
        listener.set_nonblocking(true).unwrap();
        return assert!(listener.accept().is_err());
    }
    assert_eq!(printed(&run(site, flags, &[], &[PYTHON, "-c", &ask])), "not there\n");
}

fn own_root(site: &Site, column: Column, flags: &[&str]) {
    let more = ["--root", "base", "--no-workspace"];
    if column == Column::Simulated {
        let output = shell(
            site,
            flags,
            &more,
            "echo made > ~/made && cat ~/made && ls -a / && cat /usr/bin/perl",
        );
        let (said, errors) = (stdout(&output), stderr(&output));
        assert!(said.starts_with("made\n") && said.contains("\netc\n"), "{said}{errors}");
        return assert!(errors.contains("No such file"), "{errors}");
    }
    let script = "sudo -n sh -c 'echo made > /etc/made' && cat /etc/made && ls /home";
    let output = shell(site, flags, &more, script);
    assert!(printed(&output).starts_with("made\n"), "{}", stdout(&output));
}

fn volumes(site: &Site, _: Column, flags: &[&str]) {
    site.succeed(["volume", "create", "v"]);
    let add = || {
        printed(&shell(
            site,
            flags,
            &["--volume", "v:/data"],
            "echo line >> /data/file; cat /data/file",
        ))
    };
    assert_eq!(add(), "line\n");
    assert_eq!(add(), "line\nline\n");
}

fn commands(site: &Site, _: Column, flags: &[&str]) {
    let output = shell(site, flags, &["--allow-command", "/bin/sh"], "ls; echo $?");
    assert_eq!(stdout(&output), "126\n", "{}", stderr(&output));
}

fn record(site: &Site, column: Column, flags: &[&str]) {
    let record = site.record(flags, "true");
    let level = match column {
        Column::Simulated => "simulated",
        Column::Landlock => "process-landlock",
        Column::Process => "process",
        Column::Gvisor | Column::Crun => "container",
        Column::Microvm => "microvm",
    };
    assert_eq!(record["level"], level, "{record}");
    let runtime = record["enforced"]["runtime"].as_str().unwrap_or_default();
    // `crun 1.8.1 (/usr/bin/crun)`
    let named = flags.iter().skip_while(|flag| **flag != "--runtime").nth(1);
    let name = named.and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let version = runtime.strip_prefix(name).unwrap_or_else(|| panic!("{record}"));
    let has_version = version.bytes().any(|byte| byte.is_ascii_digit());
    assert!(named.is_none() || has_version, "{record}");
    let kernel = record["enforced"]["kernel"].as_str().unwrap_or_default();
    assert_eq!(kernel.contains("platform"), column == Column::Gvisor, "{record}");
    if column == Column::Microvm {
        assert_eq!(record["enforced"]["emulation"], "TCG", "{record}");
        let hypervisor = record["enforced"]["hypervisor"].as_str().unwrap_or_default();
        assert!(hypervisor.starts_with("QEMU "), "{record}");
    }
}
