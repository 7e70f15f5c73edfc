//! QuickJS with the part of Node.js that needs no machine.

use std::fs;

use crate::support::{stderr, stdout};
use crate::{CODE, SHELL, has_empty_root, record, run, shell, site};

#[test]
fn code_scripts_and_standard_input_run_with_their_arguments_and_status() {
    if !has_empty_root() {
        return;
    }
    let site = site();
    let node = |words: &[&str], input: &str| run(&site, &[&SHELL, &["--", "node"], words].concat(), input);
    let code = node(
        &["-e", "console.log(JSON.stringify({a: 1}), process.argv.slice(1))", "x"],
        "",
    );
    assert_eq!(stdout(&code), "{\"a\":1} [ 'x' ]\n", "{}", stderr(&code));
    assert_eq!(stdout(&node(&["-p", "[1, 2].map((n) => n * 2)"], "")), "[ 2, 4 ]\n");
    fs::write(
        site.workspace().join("script.js"),
        "console.log(process.argv[2], __filename.endsWith('script.js')); process.exit(7)\n",
    )
    .unwrap();
    let script = node(&["script.js", "a b"], "");
    assert_eq!(stdout(&script), "a b true\n", "{}", stderr(&script));
    assert_eq!(script.status.code(), Some(7));
    let piped = node(&["-"], "console.error('piped')");
    assert_eq!(stderr(&piped), "piped\n");
    let read = node(
        &["-e", "console.log(require('fs').readFileSync(0, 'utf8').toUpperCase())"],
        "text\n",
    );
    assert_eq!(stdout(&read), "TEXT\n\n");
    let uncaught = node(&["-e", "function f() { throw new TypeError('no') }\nf()"], "");
    assert_eq!(uncaught.status.code(), Some(1));
    assert!(
        stderr(&uncaught).contains("Uncaught TypeError: no\n    at f"),
        "{}",
        stderr(&uncaught)
    );
    let rejected = node(&["-e", "Promise.reject(new Error('later'))"], "");
    assert_eq!(
        (rejected.status.code(), stderr(&rejected).contains("later")),
        (Some(1), true)
    );
    assert_eq!(node(&["--frobnicate"], "").status.code(), Some(9));
}

#[test]
fn where_the_root_is_served_files_are_those_of_the_shell() {
    if !has_empty_root() {
        return;
    }
    let site = site();
    let script = "echo hi >a; node -e \"console.log(require('fs').readFileSync('a', 'utf8').trim())\"; \
                  node -e \"require('fs').writeFileSync('/home/user/p', 'x')\"; cat /home/user/p; echo; \
                  node -e \"console.log(require('fs').existsSync('/dev/null'), require('fs').readdirSync('/home').includes('user'))\"";
    let seen = run(&site, &[&SHELL[..], &["--root", "base", "-c", script]].concat(), "");
    assert_eq!(stdout(&seen), "hi\nx\ntrue true\n", "{}", stderr(&seen));
}

#[test]
fn a_script_that_waits_for_no_time_at_all_is_ended_by_the_clock() {
    if !has_empty_root() {
        return;
    }
    let site = site();
    let code = "Map.prototype.values = function* () { yield { due: Infinity, order: 1 } }; setTimeout(() => {}, 1)";
    let record = record(&site, &[&CODE[..], &["--wall-time", "1s", "--js", "-c", code]].concat());
    assert_eq!(record["outcome"]["limit"], "wall_time", "{record}");
}

#[test]
fn timers_promises_and_modules_come_in_their_order() {
    if !has_empty_root() {
        return;
    }
    let site = site();
    let files = [
        (
            "main.mjs",
            "import fs, { readFileSync } from 'node:fs';\nimport { twice } from './lib.mjs';\nimport data from './data.json';\nimport old from './old.cjs';\nconst late = await import('./late.js');\nconsole.log(twice(data.n), old.name, late.default.x, fs.readFileSync === readFileSync);\n",
        ),
        ("lib.mjs", "export const twice = (n) => n * 2;\n"),
        ("data.json", "{\"n\": 21}"),
        (
            "old.cjs",
            "module.exports = { name: require('./sub').name + require('path').basename(__dirname) };\n",
        ),
        ("sub/index.js", "exports.name = 'sub of ';\n"),
        ("late.js", "module.exports = { x: 'late' };\n"),
    ];
    for (name, text) in files {
        site.write(name, text);
    }
    assert_eq!(shell(&site, "node main.mjs"), "42 sub of workspace late true\n");
    let order = "
        setTimeout(() => console.log(5), 20); setTimeout(() => console.log(4), 1); setImmediate(() => console.log(3));
        Promise.resolve().then(() => console.log(2)); console.log(1);
        let n = 0; const timer = setInterval(() => { if (++n === 3) { clearInterval(timer); console.log('end'); } }, 10);
        process.on('exit', (code) => console.log('exit', code));";
    let output = run(&site, &[&CODE[..], &["--js", "-c", order]].concat(), "");
    assert_eq!(stdout(&output), "1\n2\n3\n4\n5\nend\nexit 0\n", "{}", stderr(&output));
}

#[test]
fn the_workspace_is_read_and_written_as_the_shell_does() {
    if !has_empty_root() {
        return;
    }
    let site = site();
    site.write("sub/data.txt", "1\n2\n3\n");
    let script = r#"
cd sub
cat > t.js <<'EOF'
const fs = require("fs"), path = require("path");
fs.appendFileSync("data.txt", "4\n");
fs.writeFileSync("../out.txt", String(fs.readFileSync("data.txt", "utf8").split("\n").map(Number).reduce((a, b) => a + b)));
fs.mkdirSync("a/b/c", { recursive: true }); fs.renameSync("a", "moved"); fs.symlinkSync("../out.txt", "link");
console.log(fs.readdirSync("."), fs.existsSync("/proc"), process.cwd() === process.env.PWD, fs.readFileSync("link", "utf8"));
console.log(fs.statSync("data.txt").size, fs.lstatSync("link").isSymbolicLink(), path.relative("/a/b", "/a/c/d"));
try { fs.readFileSync("absent") } catch (error) { console.log(error.code, error.message) }
fs.rmSync("moved", { recursive: true });
EOF
node t.js; ls; wc -l < data.txt; cat ../out.txt
"#;
    let told = shell(&site, script);
    let expected = "[ 'data.txt', 'link', 'moved', 't.js' ] false true 10\n8 true ../c/d\nENOENT ENOENT: no such file or \
                    directory, open '";
    assert!(told.starts_with(expected), "{told}");
    assert!(told.ends_with("sub/absent'\ndata.txt\nlink\nt.js\n4\n10"), "{told}");
    assert_eq!(
        fs::read_to_string(site.workspace().join("sub/data.txt")).unwrap(),
        "1\n2\n3\n"
    );
}

#[test]
fn what_needs_a_machine_says_so() {
    if !has_empty_root() {
        return;
    }
    let site = site();
    let code = "
        for (const what of [() => require('child_process').exec('ls'), () => require('net').connect(1), () => require('absent')])
            try { what(); } catch (error) { console.log(error.message.split('\\n')[0]); }
        fetch('http://127.0.0.1/').catch((error) => console.log(error.message));";
    let output = run(&site, &[&CODE[..], &["--js", "-c", code]].concat(), "");
    let expected = "needs level process: module 'child_process' has no use without an operating system\n\
                    needs level process: module 'net' has no use without an operating system\n\
                    Cannot find module 'absent'\nneeds level process: this level has no network\n";
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
}

#[test]
fn what_does_not_end_or_grows_without_end_is_ended_typed() {
    if !has_empty_root() {
        return;
    }
    let site = site();
    let endless = record(
        &site,
        &[&CODE[..], &["--wall-time", "1s", "--js", "-c", "for (;;);"]].concat(),
    );
    assert_eq!(endless["outcome"]["limit"], "wall_time", "{endless}");
    let grows = "const x = []; for (;;) x.push(new Uint8Array(1 << 20).fill(1))";
    let memory = record(&site, &[&CODE[..], &["--memory", "50M", "--js", "-c", grows]].concat());
    assert_eq!(memory["exit_code"], 1, "{memory}");
    assert!(
        memory["stderr"]["data"].as_str().unwrap().contains("out of memory"),
        "{memory}"
    );
    assert_eq!(memory["denials"][0]["subject"], "limit", "{memory}");
    let deep = record(
        &site,
        &[&CODE[..], &["--js", "-c", "(function f() { f() })()"]].concat(),
    );
    assert!(
        deep["stderr"]["data"].as_str().unwrap().contains("Maximum call stack"),
        "{deep}"
    );
    let talks = "for (;;) console.log('x'.repeat(1000))";
    let output = record(
        &site,
        &[&SHELL[..], &["--output", "1M", "--", "node", "-e", talks]].concat(),
    );
    assert_eq!(output["exit_code"], 1, "{output}");
    assert!(
        output["stderr"]["data"].as_str().unwrap().contains("limit: output"),
        "{output}"
    );
}
