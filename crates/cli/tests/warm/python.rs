//! `run --python` in a sandbox that waited, and sandboxes of templates.

use std::fs;
use std::process::{Output, Stdio};

use super::support::processes::{eventually, feed};
use super::support::{Site, id_of, record_of, skip, stderr, stdout};
use super::{comparable, heated};

/// Whether the module is there before anything imports it, and what else is asked for.
const ASKS: &str = "import sys; print('poplib' in sys.modules, sys.argv, __name__)";

/// Builds the template that `--python` takes, with `step` and a module that no Python imports by itself.
fn build(site: &Site, step: &str) -> bool {
    build_importing(site, step, &["poplib", "not_there"])
}

fn build_importing(site: &Site, step: &str, imports: &[&str]) -> bool {
    let file = site.root().join("recipe.toml");
    let recipe = format!("name = \"code-interpreter\"\nrun = [\"python3 --version; {step}\"]\nimports = {imports:?}\n");
    fs::write(&file, recipe).unwrap();
    let built = site
        .offleash(["template", "build", "-q", "-f", file.to_str().unwrap()])
        .output()
        .unwrap();
    let said = stderr(&built);
    if said.contains("python3: not found") {
        skip("there is no python3");
        return false;
    }
    assert!(built.status.success(), "{said}");
    true
}

fn python(site: &Site, flags: &[&str], code: &str) -> Output {
    let arguments = [&["run", "--warm", "1", "--python"], flags, &["-c", code]].concat();
    site.offleash(arguments).output().unwrap()
}

/// Ends what waits, and sees that nothing of it or of its root is left.
fn leave_nothing(site: &Site) {
    site.succeed(["warm", "stop"]);
    let left = |name: &str| fs::read_dir(site.state().join(name)).map_or(0, Iterator::count);
    eventually("the end of all that waited", || {
        ["live", "warm", "scratch"]
            .iter()
            .all(|name| left(name) == 0)
            .then_some(())
    });
}

#[test]
fn python_waits_with_what_the_template_says_imported() {
    let site = Site::new();
    if !build(&site, "true") {
        return;
    }
    let cold = python(&site, &["--json"], ASKS);
    let id = heated(&site);
    let warm = python(&site, &["--json"], ASKS);
    let (cold, mut warm) = (record_of(&cold), record_of(&warm));
    assert_eq!(id_of(&warm), id, "it was made anew");
    assert_eq!(cold["stdout"]["data"], "False ['-c'] __main__\n");
    assert_eq!(warm["stdout"]["data"], "True ['-c'] __main__\n");
    warm["stdout"] = cold["stdout"].clone();
    assert_eq!(comparable(warm), comparable(cold));

    // A template that was built again is another one.
    let id = heated(&site);
    assert!(build(&site, "touch /made"));
    let again = record_of(&python(&site, &["--json"], "import os; print(os.path.exists('/made'))"));
    assert_ne!(id_of(&again), id);
    assert_eq!(again["stdout"]["data"], "True\n");
    heated(&site);
    leave_nothing(&site);
}

#[test]
fn python_that_waited_does_what_python_does() {
    let site = Site::new();
    if !build(&site, "true") {
        return;
    }
    for code in [
        "import os; print(sorted(os.environ.items()), os.getcwd()); raise SystemExit(3)",
        "def f(): 1/0\nf()",
        "x = (",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import sys; print(len(sys.stdin.buffer.read()))",
        // What is in the directory comes first.
        "import poplib; print(poplib.mine)",
    ] {
        if code.contains("mine") {
            site.write("poplib.py", "mine = 1");
        }
        let said = |output: Output| (stdout(&output), stderr(&output), output.status);
        let run = |warm: &str| {
            let mut command = site.offleash(["run", "-q", "--warm", warm, "--python", "-c", code]);
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .stdin(Stdio::piped());
            said(feed(&mut command, vec![b'x'; 300_000]))
        };
        let cold = run("0");
        run("1");
        heated(&site);
        assert_eq!(run("1"), cold, "{code}");
        heated(&site);
        leave_nothing(&site);
    }
}

#[test]
fn a_run_with_other_variables_makes_its_own() {
    let site = Site::new();
    if !build(&site, "true") {
        return;
    }
    let asks = "import os, sys; print(os.environ.get('TERM'), 'poplib' in sys.modules)";
    let run = |term: &str| {
        let mut command = site.offleash(["run", "--warm", "1", "--python", "--json", "-c", asks]);
        record_of(&command.env("TERM", term).output().unwrap())
    };
    run("one");
    for (term, expected) in [("one", "one True\n"), ("two", "two False\n"), ("two", "two True\n")] {
        let id = heated(&site);
        let record = run(term);
        assert_eq!(record["stdout"]["data"], expected);
        assert_eq!(id_of(&record) == id, expected.contains("True"));
    }
    heated(&site);
    leave_nothing(&site);
}

#[test]
fn sandboxes_of_a_template_wait_for_commands() {
    let site = Site::new();
    let step = [
        "template",
        "build",
        "-q",
        "--name",
        "tiny",
        "--run",
        "echo built > /made",
    ];
    site.succeed(step);
    let run = || {
        let flags = ["run", "--json", "--warm", "1", "--template", "tiny", "--", "sh", "-c"];
        let script = "cat /made; echo changed > /made; ls -d /usr/local/gone; touch /usr/local/gone; echo x > here";
        site.offleash([&flags[..], &[script]].concat()).output().unwrap()
    };
    let cold = record_of(&run());
    for _ in 0..2 {
        let id = heated(&site);
        let warm = record_of(&run());
        assert_eq!(id_of(&warm), id, "it was made anew");
        assert_eq!(comparable(warm.clone()), comparable(cold.clone()));
    }
    heated(&site);
    leave_nothing(&site);
}

#[test]
fn what_is_done_to_the_workspace_while_python_waits_is_seen() {
    let site = Site::new();
    if !build(&site, "true") {
        return;
    }
    site.write("settings", "old");
    let asks = "import os; print(open('settings').read(), os.path.exists('later'), os.getcwd())";
    for flags in [&["--json"][..], &["--json", "-w", ".:rw"]] {
        python(&site, flags, asks);
        let id = heated(&site);
        // As editors do it.
        site.write("new", "newer");
        fs::rename(site.workspace().join("new"), site.workspace().join("settings")).unwrap();
        site.write("later", "");
        let record = record_of(&python(&site, flags, asks));
        assert_eq!(id_of(&record), id, "it was made anew");
        let workspace = site.workspace().canonicalize().unwrap();
        let expected = format!("newer True {}\n", workspace.display());
        assert_eq!(record["stdout"]["data"], expected.as_str());
        heated(&site);
        leave_nothing(&site);
        fs::remove_file(site.workspace().join("later")).unwrap();
        site.write("settings", "old");
    }
}

#[test]
fn a_python_that_would_be_noticed_does_not_wait_and_the_sandbox_does() {
    let site = Site::new();
    for (imports, flags) in [
        // It would have to be told from what the run itself takes.
        ("poplib", &["--memory", "100M"][..]),
        ("poplib", &["--pids", "8"]),
        // Of these nothing is said to anybody, and nothing of them is left.
        ("antigravity_that_ends", &[]),
        ("writes_to_the_workspace", &[]),
    ] {
        let module = "/usr/local/lib/python3.11/dist-packages";
        let step = format!(
            "for d in /usr/local/lib/python3*/dist-packages {module}; do mkdir -p $d; \
             echo 'import os; os._exit(3)' > $d/antigravity_that_ends.py; \
             echo 'open(os.environ[\\\"PWD\\\"] + \\\"/mine\\\", \\\"w\\\")' | sed '1s/^/import os\\\\n/' > $d/writes_to_the_workspace.py; done"
        );
        if !build_importing(&site, &step, &[imports]) {
            return;
        }
        let flags = [&["--json"], flags].concat();
        python(&site, &flags, ASKS);
        let id = heated(&site);
        let record = record_of(&python(&site, &flags, ASKS));
        assert_eq!(id_of(&record), id, "{imports} {flags:?}: it was made anew");
        assert_eq!(
            record["stdout"]["data"], "False ['-c'] __main__\n",
            "{imports} {flags:?}"
        );
        assert_eq!(record["changes"]["added"], 0, "{record}");
        heated(&site);
        leave_nothing(&site);
    }
    // What the last one imported does write there.
    let import = ["run", "--python", "--json", "-c", "import writes_to_the_workspace"];
    let record = record_of(&site.offleash(import).output().unwrap());
    assert_eq!(record["changes"]["added"], 1, "{record}");
    let log = site.succeed(["audit", "show"]);
    assert!(!log.contains("run_crashed"), "{log}");
}

#[test]
fn what_waits_is_ended_also_while_python_imports() {
    let site = Site::new();
    if !build(
        &site,
        "for d in /usr/local/lib/python3*/dist-packages; do mkdir -p $d; echo 'import time; time.sleep(300)' > $d/not_there.py; done",
    ) {
        return;
    }
    let begun = std::time::Instant::now();
    let output = python(&site, &[], "pass");
    assert!(output.status.success(), "{}", stderr(&output));
    // While it is being made, one that waits has no id yet.
    leave_nothing(&site);
    assert!(
        begun.elapsed().as_secs() < 55,
        "it waited for the imports, which may take a minute"
    );
}
