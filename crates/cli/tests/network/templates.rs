//! Packages of templates come from their index, and a build reaches nothing else.

use std::process::{Command, Output};

use crate::support::processes::{finish, start};
use crate::support::{Site, skip, stderr, stdout};
use crate::world::{World, world};

const INDEX: &str = "http://web.clients.example.net:9680/public/simple/";

const BUILD: [&str; 6] = ["template", "build", "--name", "hello", "--pip", "hello"];
/// Without TLS, pip wants to be told.
const TRUSTED: &str = "PIP_TRUSTED_HOST=web.clients.example.net";

/// The internet, where this system's Python has pip; a counted skip otherwise.
fn world_with_pip() -> Option<&'static World> {
    let has_pip = Command::new("/usr/bin/python3")
        .args(["-m", "pip", "--version"])
        .output();
    if !has_pip.is_ok_and(|output| output.status.success()) {
        skip("`pip` is missing");
        return None;
    }
    world()
}

fn offleash(world: &World, site: &Site, arguments: &[&str]) -> Output {
    finish(start(&mut world.offleash(site, arguments)))
}

#[test]
fn a_package_is_installed_from_the_index_that_is_named() {
    let Some(world) = world_with_pip() else { return };
    let site = Site::sharing_templates();
    let build = [&BUILD[..], &["--build-env", TRUSTED]].concat();
    let pip = [&build[..], &["--index-url", INDEX]].concat();
    let output = offleash(world, &site, &pip);
    assert!(output.status.success(), "{}", stderr(&output));
    // For everybody, and where Python looks by itself; and more can be added by who uses it.
    let script = "set -e; python3 -c 'import hello; print(hello.WORD)'; \
                  python3 -m pip install --quiet --no-index --dry-run hello; id -un";
    for user in ["user", "root"] {
        let arguments = [
            "run",
            "-q",
            "--no-workspace",
            "--template",
            "hello",
            "--user",
            user,
            "--",
            "sh",
            "-c",
            script,
        ];
        let output = offleash(world, &site, &arguments);
        let first = stdout(&output);
        assert!(
            first.starts_with("hello from a package\n"),
            "{user}: {first}{}",
            stderr(&output)
        );
        assert!(output.status.success(), "{user}: {}", stderr(&output));
    }
    // The same by a variable of the owner's, which no record has.
    let with_variable = [&build[..], &["--build-env", "PIP_INDEX_URL"]].concat();
    let mut command = world.offleash(&site, &with_variable);
    command.env("PIP_INDEX_URL", INDEX.replace("web.", "me:confidential@web."));
    let output = finish(start(&mut command));
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = stdout(&offleash(world, &site, &["template", "inspect", "hello"]));
    assert!(
        shown.contains("\"hello\"") && !shown.contains("confidential"),
        "{shown}"
    );
}

#[test]
fn a_build_reaches_its_index_and_nothing_else() {
    let Some(world) = world_with_pip() else { return };
    let site = Site::sharing_templates();
    let build = [&BUILD[..], &["--build-env", TRUSTED]].concat();
    // Without a word of it the index is PyPI, which this internet does not have.
    let output = offleash(world, &site, &[&build[..], &["--build-env", "PIP_RETRIES=0"]].concat());
    let said = stderr(&output);
    assert!(
        said.contains("pip install failed") && said.contains("--index-url"),
        "{said}"
    );
    let get = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://web.clients.example.net:9680/open\").read())'";
    let with_script = [&build[..], &["--index-url", INDEX, "--run", get]].concat();
    let output = offleash(world, &site, &with_script);
    assert!(
        output.status.success(),
        "the host of the index is reached: {}",
        stderr(&output)
    );
    let other = get.replace("web.clients.example.net:9680/open", "www.example.com/");
    let with_script = [&build[..], &["--index-url", INDEX, "--run", &other]].concat();
    let said = stderr(&offleash(world, &site, &with_script));
    assert!(
        said.contains("command 1 failed") && said.contains("may not reach www.example.com"),
        "{said}"
    );
    let allowed = [&with_script[..], &["--allow", "www.example.com"]].concat();
    let output = offleash(world, &site, &allowed);
    assert!(output.status.success(), "{}", stderr(&output));
}
