//! The gateway as a process: what it has left, what happens when it or its supervisor dies, and who knows the secrets.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::processes::{children_named, eventually, finish, read_until, start};
use crate::support::{Site, is_root, skip, stderr, stdout};
use crate::world::{World, world};

/// What a list of processes shows.
const NAME: &str = "offleash: gateway";

/// A run whose program says that it goes, and then does what `rest` says once it is sent a line.
fn going(world: &World, site: &Site, flags: &[&str], rest: &str) -> Child {
    let attempts = format!("os.write(1, b\"going\\n\")\nsys.stdin.readline()\n{rest}");
    let program = format!("import sys\n{}\n{attempts}", crate::world::CLIENT);
    let mut arguments = vec!["run", "--report", "report.json"];
    arguments.extend_from_slice(flags);
    arguments.extend_from_slice(&["--", "/usr/bin/python3", "-I", "-S", "-c", &program]);
    let mut run = start(world.offleash(site, &arguments).stdin(Stdio::piped()));
    read_until(run.stdout.as_mut().unwrap(), "going\n");
    run
}

fn go_on(run: &mut Child) {
    use std::io::Write as _;
    writeln!(run.stdin.take().unwrap()).unwrap();
}

fn gateway_of(run: &Child) -> u32 {
    let found = children_named(run.id(), NAME);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

fn report(site: &Site) -> Value {
    serde_json::from_slice(&fs::read(site.workspace().join("report.json")).unwrap()).unwrap()
}

fn kill(process: u32) {
    let process = rustix::process::Pid::from_raw(process.cast_signed()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

fn status(process: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

#[test]
fn a_gateway_has_no_capability_no_files_and_a_filter_and_no_other_process_is_its_user_where_that_can_be() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let mut run = going(world, &site, &["--allow", "www.example.com:7"], "");
    let gateway = gateway_of(&run);
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(gateway, set).trim_start_matches('0'), "", "{set}");
    }
    assert_eq!(
        (status(gateway, "NoNewPrivs"), status(gateway, "Seccomp")),
        ("1".into(), "2".into())
    );
    let ids = |process: u32, kind: &str| -> Vec<String> {
        status(process, kind).split_whitespace().map(str::to_owned).collect()
    };
    let (own, supervisors) = (ids(gateway, "Uid"), ids(run.id(), "Uid"));
    assert!(own.iter().all(|id| *id == own[0]), "{own:?}");
    if supervisors[0] == "0" {
        assert!(own[0].parse::<u32>().unwrap() > 65_000, "{own:?}");
        assert_eq!(ids(gateway, "Gid"), own);
        assert_eq!(status(gateway, "Groups"), "");
        assert_eq!(status(gateway, "CapBnd").trim_start_matches('0'), "");
    } else {
        assert_eq!(own, supervisors);
    }
    // Its memory is nobody's who may not look into everybody's.
    if !is_root() {
        assert!(fs::File::open(format!("/proc/{gateway}/mem")).is_err());
    }
    go_on(&mut run);
    assert!(finish(run).status.success());
}

#[test]
fn a_run_without_a_network_has_no_gateway() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let mut run = going(world, &site, &[], "");
    assert!(children_named(run.id(), NAME).is_empty());
    go_on(&mut run);
    assert!(finish(run).status.success());
}

#[test]
fn a_run_whose_gateway_is_killed_goes_on_without_a_network_and_all_say_so() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let rest = r#"
try:
    print("still", echoed("www.example.com"))
except Exception as failure:
    print("none:", type(failure).__name__)
try:
    socket.create_connection(("93.184.216.34", 7), timeout=5)
    print("still")
except OSError as failure:
    print("refused" if failure.errno == 111 else failure)
print("went on", flush=True)
"#;
    let mut run = going(
        world,
        &site,
        &["--allow", "www.example.com:7", "--allow", "93.184.216.34:7"],
        rest,
    );
    kill(gateway_of(&run));
    eventually("its end", || children_named(run.id(), NAME).is_empty().then_some(()));
    go_on(&mut run);
    let output = finish(run);
    assert!(output.status.success(), "{}", stderr(&output));
    let told = stdout(&output);
    assert!(
        told.contains("none:") && told.contains("went on") && !told.contains("still"),
        "{told}"
    );
    assert!(told.contains("refused"), "{told}");
    let line = "the gateway of the sandbox's network was killed by signal 9; there is no network any more";
    assert_eq!(stderr(&output).matches(line).count(), 1, "{}", stderr(&output));
    let record = report(&site);
    assert_eq!(record["outcome"]["kind"], "exited");
    let lost = &record["network"]["lost"];
    assert_eq!(
        (&lost["cause"], &lost["signal"]),
        (&"signaled".into(), &9.into()),
        "{record:#}"
    );
    assert!(lost["at"].as_str().unwrap().ends_with('Z'));
    assert!(site.succeed(["audit", "verify"]).contains("unbroken"));
    let log = stdout(&site.offleash(["audit", "show"]).output().unwrap());
    let ended = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let ended: Vec<Value> = ended.filter(|line| line["event"] == "run_ended").collect();
    assert_eq!(ended[0]["data"]["network"]["lost"], *lost);
}

#[test]
fn what_a_killed_gateway_had_told_is_in_the_record() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let before =
        "print(echoed('www.example.com'))\ntry:\n    echoed('www.example.com', 22)\nexcept Exception:\n    pass\n";
    let rest = "os.write(1, b'gone?\\n')\nsys.stdin.readline()";
    let program = format!("{before}{rest}");
    let mut run = going(world, &site, &["--allow", "www.example.com:7"], &program);
    let mut input = run.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    read_until(run.stdout.as_mut().unwrap(), "gone?\n");
    // What was made is told within a moment, what was refused at once.
    std::thread::sleep(std::time::Duration::from_millis(500));
    kill(gateway_of(&run));
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    drop(input);
    assert!(finish(run).status.success());
    let record = report(&site);
    let verdicts: Vec<&Value> = record["network"]["connections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["verdict"])
        .collect();
    assert!(
        verdicts.contains(&&"allowed".into()) && verdicts.contains(&&"refused".into()),
        "{record:#}"
    );
    assert!(record["network"]["lost"].is_object());
}

#[test]
fn the_gateway_of_a_killed_supervisor_ends() {
    let Some(world) = world() else { return };
    let site = Site::new();
    let mut run = going(world, &site, &["--allow", "www.example.com:7"], "");
    let gateway = gateway_of(&run);
    run.kill().unwrap();
    run.wait().unwrap();
    eventually("the end of the gateway", || {
        let name = fs::read(format!("/proc/{gateway}/cmdline")).unwrap_or_default();
        (!name.starts_with(NAME.as_bytes())).then_some(())
    });
}

/// Whether `value` is in the memory of a process; `None` where that is not to be read.
fn is_in_memory(process: u32, value: &[u8]) -> Option<bool> {
    let mut memory = fs::File::open(format!("/proc/{process}/mem")).ok()?;
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).ok()?;
    for line in maps
        .lines()
        .filter(|line| line.contains("rw") && !line.contains("[vvar"))
    {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let mut bytes = vec![0; usize::try_from(end - start).ok()?];
        if memory.seek(SeekFrom::Start(start)).is_err() || memory.read_exact(&mut bytes).is_err() {
            continue;
        }
        if bytes.windows(value.len()).any(|part| part == value) {
            return Some(true);
        }
    }
    Some(false)
}

#[test]
fn the_values_of_secrets_are_in_the_memory_of_the_gateway_alone() {
    let Some(world) = world() else { return };
    let site = Site::new();
    // Neither is in this file as it is in memory.
    let of_file = ["of-a-file", "0123456789", "abcdefgh"].concat();
    let of_variable = ["of-a-variable", "0123456789", "abcdefgh"].concat();
    let file = site.root().join("kept-elsewhere");
    fs::write(&file, &of_file).unwrap();
    let secret = format!("ONE=file:{}@api.vault.example.net", file.display());
    let flags = [
        "--allow",
        "api.vault.example.net:9443/tls",
        "--secret",
        &secret,
        "--secret",
        "TWO=env:TWO_REAL@api.vault.example.net",
    ];
    let program = format!(
        "import sys\n{}\nos.write(1, b'going\\n')\nsys.stdin.readline()",
        crate::world::CLIENT
    );
    let mut arguments = vec!["run"];
    arguments.extend_from_slice(&flags);
    arguments.extend_from_slice(&["--", "/usr/bin/python3", "-I", "-S", "-c", &program]);
    let mut command = world.offleash(&site, &arguments);
    command
        .env("TWO_REAL", &of_variable)
        .env("SSL_CERT_FILE", world.file("vault-ca.pem"));
    let mut run = start(command.stdin(Stdio::piped()));
    read_until(run.stdout.as_mut().unwrap(), "going\n");
    let gateway = gateway_of(&run);
    for (what, value) in [("file", &of_file), ("variable", &of_variable)] {
        match is_in_memory(run.id(), value.as_bytes()) {
            None => skip("the memory of other processes is not to be read here"),
            Some(is_there) => assert!(!is_there, "the value of a {what} is in the memory of the supervisor"),
        }
        // That it would be found.
        assert_ne!(is_in_memory(gateway, value.as_bytes()), Some(false), "{what}");
    }
    let environment = fs::read(format!("/proc/{}/environ", run.id())).unwrap_or_default();
    assert!(!String::from_utf8_lossy(&environment).contains(&of_variable));
    go_on(&mut run);
    assert!(finish(run).status.success());
}
