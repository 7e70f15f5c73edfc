//! Volumes: directories that outlive sandboxes, on the command line.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::disks::SmallDisk;
use crate::support::{Site, is_root, skip, stderr, stdout};

/// How long something may take that takes a moment.
const TIMEOUT: Duration = Duration::from_secs(120);

fn site() -> Site {
    let site = Site::new();
    site.succeed(["volume", "create", "data"]);
    site
}

/// Runs a line of a shell, which must succeed, in a sandbox with these flags.
fn run(site: &Site, flags: &[&str], script: &str) -> String {
    let output = site.run_shell(flags, script);
    assert!(output.status.success(), "{script}: {}", stderr(&output));
    stdout(&output)
}

/// A run that has the volume, and has it until it is ended.
fn hold(site: &Site, volume: &str) -> Child {
    let mark = site.workspace().join("held");
    let _gone = fs::remove_file(&mark);
    let mut command = site.offleash(["run", "--quiet", "--volume", volume]);
    let workspace = format!("{}:/mark:rw", site.workspace().display());
    command.args(["--no-workspace", "--mount", &workspace, "--", "/bin/sh", "-c"]);
    command.arg("touch /mark/held; sleep 3600");
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while !mark.exists() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn used(site: &Site, what: &str) -> u64 {
    let inspected: Value = serde_json::from_str(&site.succeed(["volume", "inspect", "data"])).unwrap();
    inspected[what].as_u64().unwrap()
}

#[test]
fn what_one_sandbox_wrote_the_next_one_reads_and_writes() {
    let site = site();
    run(
        &site,
        &["-v", "data:/data"],
        "echo first >/data/a; mkdir -m 700 /data/d; echo deep >/data/d/f",
    );
    // Whoever works in a sandbox is the same, with one id and with many.
    let base = ["--root", "base", "-v", "data:/mnt"];
    run(&site, &base, "test -O /mnt/a && echo second >>/mnt/a && cat /mnt/d/f");
    // Its superuser may do everything, and what it made is its own.
    let root = ["--root", "base", "-u", "root", "-v", "data:/mnt"];
    run(
        &site,
        &root,
        "echo third >>/mnt/a; echo own >/mnt/d/root; chmod 600 /mnt/d/root",
    );
    assert_eq!(
        run(&site, &root, "cat /mnt/d/root; stat -c %u /mnt/d/root")
            .lines()
            .next(),
        Some("own")
    );
    // One with one id makes them its own.
    assert_eq!(run(&site, &["-v", "data:/data"], "cat /data/d/root"), "own\n");
    assert_eq!(
        run(&site, &["-v", "data:/data"], "cat /data/a"),
        "first\nsecond\nthird\n"
    );
}

#[test]
fn one_that_is_only_read_is_not_written() {
    let site = site();
    run(&site, &["-v", "data:/data"], "echo text >/data/a");
    let read = ["-v", "data:/data:ro"];
    assert_eq!(run(&site, &read, "cat /data/a"), "text\n");
    for script in [
        "echo x >/data/a",
        "rm /data/a",
        "mkdir /data/d",
        "mount -o remount,rw /data",
    ] {
        assert!(!site.run_shell(&read, script).status.success(), "{script}");
    }
    assert_eq!(run(&site, &read, "cat /data/a"), "text\n");
}

#[test]
fn one_writes_at_a_time_and_a_killed_one_does_not_any_more() {
    let site = site();
    let writer = hold(&site, "data:/data");
    let said = site.refuse(["run", "-v", "data:/data", "--", "true"]);
    assert!(said.contains("is written to by another sandbox"), "{said}");
    run(&site, &["-v", "data:/data:ro"], "true");
    let said = site.refuse(["volume", "rm", "data"]);
    assert!(said.contains("is in use"), "{said}");
    assert!(site.succeed(["volume", "ls"]).contains("used"));
    end(writer);
    run(&site, &["-v", "data:/data"], "true");
    site.succeed(["volume", "rm", "data"]);
    assert!(!site.succeed(["volume", "ls"]).contains("data"));
}

#[test]
fn many_write_where_that_was_said() {
    let site = Site::new();
    site.succeed(["volume", "create", "data", "--shared"]);
    let writer = hold(&site, "data:/data");
    run(&site, &["-v", "data:/data"], "echo x >/data/a");
    end(writer);
}

#[test]
fn more_bytes_than_there_may_be_end_the_run_and_keep_others_from_writing() {
    let site = Site::new();
    site.succeed(["volume", "create", "data", "--size", "4M"]);
    let record = site.record(&["-v", "data:/data"], "head -c 64M /dev/zero >/data/big; sleep 3600");
    assert_eq!(record["outcome"]["kind"], "limit_exceeded", "{record}");
    assert_eq!(record["outcome"]["limit"], "volume");
    assert_eq!(record["limits_hit"][0]["effect"], "killed");
    let said = site.refuse(["run", "-v", "data:/data", "--", "true"]);
    assert!(said.contains("may hold 4M"), "{said}");
    run(&site, &["-v", "data:/data:ro"], "test -s /data/big");
    site.succeed(["volume", "rm", "data:/big"]);
    run(&site, &["-v", "data:/data"], "echo x >/data/a");
}

#[test]
fn what_is_too_much_only_at_the_end_is_told_too() {
    let site = Site::new();
    site.succeed(["volume", "create", "data", "--size", "1M"]);
    let record = site.record(&["-v", "data:/data"], "head -c 2M /dev/zero >/data/big");
    assert_eq!(record["outcome"]["limit"], "volume", "{record}");
}

#[test]
fn more_files_than_there_may_be_end_the_run() {
    let site = Site::new();
    site.succeed(["volume", "create", "data", "--inodes", "100"]);
    let record = site.record(
        &["-v", "data:/data"],
        "i=0; while test $i -lt 100000; do i=$((i+1)); : >/data/$i; done; sleep 3600",
    );
    assert_eq!(record["outcome"]["limit"], "volume_inodes", "{record}");
}

#[test]
fn a_file_without_a_name_counts() {
    let site = Site::new();
    site.succeed(["volume", "create", "data", "--size", "4M"]);
    let flags = ["--no-workspace", "-v", "data:/data"];
    let record = site.record(
        &flags,
        "exec 3>/data/f; rm /data/f; head -c 64M /dev/zero >&3; sleep 3600",
    );
    assert_eq!(record["outcome"]["limit"], "volume", "{record}");
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let site = site();
    for (flags, said) in [
        (&["-v", "none:/data"][..], "there is no volume `none`"),
        (&["-v", "data:/usr"], "is a directory of the system"),
        (&["-v", "data:/proc/x"], "an interface of the kernel"),
        (&["-v", "data:/"], "is the root directory"),
        (&["-v", "data:x"], "is not absolute"),
        (&["-v", "data:/a/../b"], "`..`"),
        (&["-v", "data:/usr/none"], "does not exist"),
        (&["-v", "data"], "names no volume and target"),
        (&["-v", "data:/x:xx"], "names no volume and target"),
        (&["--volume=-x:/x"], "is not valid"),
        (&["-v", "data:/x", "--tmpfs", "/x"], "is taken by"),
        (&["-v", "data:/x", "--warm", "1"], "do not go together"),
    ] {
        let arguments = [&["run"], flags, &["--", "true"]].concat();
        let refused = site.refuse(arguments);
        assert!(refused.contains(said), "{flags:?}: {refused}");
    }
    let twice = site
        .offleash(["run", "-v", "data:/a", "-v", "data:/b", "--", "true"])
        .output()
        .unwrap();
    assert!(stderr(&twice).contains("is mounted twice"), "{}", stderr(&twice));
    let landlock = [
        "run",
        "-v",
        "data:/x",
        "--level",
        "process-landlock",
        "--no-workspace",
        "--",
        "true",
    ];
    let refused = site.offleash(landlock).output().unwrap();
    assert!(stderr(&refused).contains("volume"), "{}", stderr(&refused));
    assert!(!refused.status.success());
    for name in ["", ".", "..", "../x", "a/b", "a b", "a:b", "-"] {
        assert!(
            !site
                .offleash(["volume", "create", "--", name])
                .output()
                .unwrap()
                .status
                .success(),
            "{name:?}"
        );
    }
    assert!(site.refuse(["volume", "create", "data"]).contains("already"));
    assert!(site.refuse(["volume", "rm", "none"]).contains("there is no volume"));
    // None of it was left in the way.
    run(&site, &["-v", "data:/data"], "true");
    assert_eq!(fs::read_dir(site.state().join("volumes")).unwrap().count(), 1 + 1);
}

#[test]
fn nothing_in_one_gains_privileges() {
    let site = site();
    run(
        &site,
        &["-v", "data:/data"],
        "cp /bin/true /data/t; chmod 4755 /data/t; /data/t",
    );
    let options = run(&site, &["-v", "data:/data"], "grep ' /data ' /proc/self/mountinfo");
    for option in ["nosuid", "nodev"] {
        assert!(options.contains(option), "{options}");
    }
    assert!(
        !site
            .run_shell(&["-v", "data:/data"], "mknod /data/null c 1 3")
            .status
            .success()
    );
    let lock = site.run_shell(&["-v", "data:/data"], "ls /data/.. | grep -c volume.json");
    assert_eq!(stdout(&lock), "0\n", "what is beside the data is not seen");
}

#[test]
fn files_are_copied_in_and_out() {
    let site = site();
    site.write("tree/a/f", "text");
    symlink("f", site.workspace().join("tree/a/link")).unwrap();
    site.succeed(["volume", "cp", "tree", "data:/"]);
    site.succeed(["volume", "cp", "tree/a/f", "data:/single"]);
    assert_eq!(
        run(
            &site,
            &["-v", "data:/data"],
            "cat /data/tree/a/link /data/single; test -O /data/tree/a/f; echo more >>/data/single"
        ),
        "texttext"
    );
    site.succeed(["volume", "cp", "data:/single", "."]);
    site.succeed(["volume", "cp", "data:/tree", "out"]);
    assert_eq!(
        fs::read_to_string(site.workspace().join("single")).unwrap(),
        "textmore\n"
    );
    assert_eq!(fs::read_to_string(site.workspace().join("out/a/link")).unwrap(), "text");
    assert!(site.refuse(["volume", "cp", "a", "b"]).contains("neither side"));
    assert!(site.refuse(["volume", "cp", "none", "data:/"]).contains("none"));
    for path in ["data:/none", "data:/../volume.json", "data:/single/x"] {
        let refused = site.offleash(["volume", "cp", path, "got"]).output().unwrap();
        assert!(
            !refused.status.success() && !site.workspace().join("got").exists(),
            "{path}"
        );
    }
}

#[test]
fn links_that_a_sandbox_plants_lead_nowhere() {
    let site = site();
    let secret = site.write("secret", "secret").display().to_string();
    let script =
        format!("ln -s {secret} /data/file; ln -s /etc /data/etc; ln -s ../volume.json /data/up; mkfifo /data/pipe");
    run(&site, &["-v", "data:/data"], &script);
    let out = site.offleash(["volume", "cp", "data:/", "out"]).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(stderr(&out).matches("left out: ").count(), 4, "{}", stderr(&out));
    assert_eq!(fs::read_dir(site.workspace().join("out")).unwrap().count(), 0);
    site.write("new", "new");
    for to in ["data:/etc/new", "data:/file/new"] {
        assert!(
            !site
                .offleash(["volume", "cp", "new", to])
                .output()
                .unwrap()
                .status
                .success(),
            "{to}"
        );
    }
    site.succeed(["volume", "cp", "new", "data:/file"]);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    site.succeed(["volume", "rm", "data:/etc"]);
    site.succeed(["volume", "rm", "data"]);
}

#[test]
fn twenty_thousand_files_are_measured_copied_and_removed() {
    let site = site();
    let script = "import os\nfor i in range(20):\n os.mkdir(f'/data/{i}')\n for j in range(1000): open(f'/data/{i}/{j}', 'w').close()";
    let made = format!("python3 -c \"{script}\" || (cd /data && seq 1 20000 | xargs touch)");
    run(&site, &["-v", "data:/data"], &made);
    assert!(used(&site, "used_inodes") >= 20_000);
    run(&site, &["-v", "data:/data"], "echo x >/data/one");
    site.succeed(["volume", "cp", "data:/", "out"]);
    site.succeed(["volume", "rm", "data"]);
    assert_eq!(fs::read_dir(site.state().join("volumes")).unwrap().count(), 1);
}

#[test]
fn a_policy_names_volumes_if_its_owner_names_the_policy() {
    let site = site();
    let policy = "[[volume]]\nname = \"data\"\ntarget = \"/data\"\naccess = \"ro\"\n";
    fs::write(site.root().join("policy.toml"), policy).unwrap();
    let named = site.root().join("policy.toml").display().to_string();
    run(
        &site,
        &["--policy", &named],
        "test -d /data && ! touch /data/x 2>/dev/null",
    );
    site.write("offleash.toml", policy);
    let found = site.offleash(["run", "--", "true"]).output().unwrap();
    assert!(
        !found.status.success() && stderr(&found).contains("volume"),
        "{}",
        stderr(&found)
    );
}

#[test]
fn a_disk_that_is_full_leaves_nothing_that_is_half_there() {
    let site = Site::new();
    let Some(_disk) = SmallDisk::mount(&site.state(), 4) else {
        return skip("only root can mount a small disk");
    };
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(site.state(), fs::Permissions::from_mode(0o700)).unwrap();
    site.succeed(["volume", "create", "data"]);
    site.write("large", vec![7; 16 << 20]);
    let refused = site.offleash(["volume", "cp", "large", "data:/"]).output().unwrap();
    assert!(
        !refused.status.success() && stderr(&refused).contains("space"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(used(&site, "used_inodes"), 0);
    // As full as it can be.
    let filled = fs::write(site.state().join("fill"), vec![7; 16 << 20]);
    assert!(filled.is_err() && is_root());
    let _made = site.offleash(["volume", "create", "more"]).output().unwrap();
    fs::remove_file(site.state().join("fill")).unwrap();
    site.succeed(["volume", "create", "other"]);
    let listed = site.succeed(["volume", "ls", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let directories = fs::read_dir(site.state().join("volumes")).unwrap().count();
    assert_eq!(listed.as_array().unwrap().len() + 1, directories, "{listed}");
}
