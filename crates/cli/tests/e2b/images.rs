//! Sandboxes of images: each door makes them, what is in use stays whoever dies, and the owner says who may use and pull what.

use serde_json::{Value, json};

use crate::docker_registry::Registry;
use crate::kits::Kit;
use crate::layout::{self, Busybox};
use crate::server::{NO_POOL, Server};
use crate::support::{Site, skip, stderr, stdout};

const CREATE: &str = "POST /v1/sandboxes";

/// A server that has the image of busybox as `localhost/box:t`.
fn with_busybox(config: &str) -> Option<Server> {
    let site = Site::new();
    let layout = Busybox::layout(site.root())?;
    site.succeed(["image", "load", "-q", layout.to_str().unwrap()]);
    Some(Server::start_on(site, None, &format!("{NO_POOL}{config}")))
}

fn create(server: &Server, image: &str) -> String {
    let (status, sandbox) = server.ask(CREATE, &json!({ "image": image }).to_string());
    assert_eq!(status, 201, "{sandbox}");
    sandbox["id"].as_str().unwrap().to_owned()
}

/// What is said to a key that cannot have a sandbox of the image, with the status.
fn refused(server: &Server, key: &str, image: &str) -> (u16, String) {
    let body = json!({ "image": image }).to_string();
    let (status, body) = crate::client::ask(server.address, key, CREATE, "", body.as_bytes()).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    (status, body["message"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn each_door_makes_sandboxes_of_images() {
    let Some(server) = with_busybox("") else { return };
    let (status, sandbox) = server.ask(CREATE, r#"{"image":"localhost/box:t"}"#);
    assert_eq!(
        (status, sandbox["template"].as_str()),
        (201, Some("image:localhost/box:t")),
        "{sandbox}"
    );
    let shown: Value = serde_json::from_str(&server.site.succeed(["image", "inspect", "localhost/box:t"])).unwrap();
    assert_eq!(sandbox["image_digest"], shown[0]["digest"]);
    // Its directory, files, variables; a line for a shell is for the one that it has.
    let line = "pwd; cat /etc/replaced; echo $OF_THE_IMAGE; echo x >/opt/mine; test -e /usr || echo alone";
    assert_eq!(
        server.shell(sandbox["id"].as_str().unwrap(), line),
        "/work\nnew\nyes\nalone\n"
    );
    let (status, sandbox) = server.ask("POST /v2/sandboxes", r#"{"templateID":"image:localhost/box:t"}"#);
    assert_eq!(
        (status, sandbox["templateID"].as_str()),
        (201, Some("image:localhost/box:t")),
        "{sandbox}"
    );
    assert_eq!(
        server.shell(sandbox["sandboxID"].as_str().unwrap(), "ls /opt"),
        "file\n"
    );
    let id = server.site.succeed(["create", "--image", "localhost/box:t"]);
    assert_eq!(
        server.site.succeed(["exec", id.trim(), "cat", "/etc/replaced"]),
        "new\n"
    );
    server.site.succeed(["rm", "--force", id.trim()]);
    let (status, answer) = server.ask(
        "POST /v1/run",
        r#"{"command":{"argv":["id","-u"]},"sandbox":{"image":"localhost/box:t"}}"#,
    );
    assert_eq!((status, answer["exit_code"].as_i64()), (200, Some(0)), "{answer}");
    for (body, status, said) in [
        (
            json!({ "image": "localhost/box:t", "template": "base" }),
            400,
            "exclude each other",
        ),
        (json!({ "image": "Upper/case" }), 400, "upper-case"),
        (json!({ "image": "not-here" }), 404, "offleash image pull"),
        (json!({ "template": "image:" }), 400, "no name of an image"),
    ] {
        let (found, answer) = server.ask(CREATE, &body.to_string());
        assert_eq!(found, status, "{body}: {answer}");
        assert!(answer["message"].as_str().unwrap().contains(said), "{answer}");
    }
    let output = server
        .site
        .offleash(["create", "--image", "not-here"])
        .output()
        .unwrap();
    let told = stderr(&output);
    assert!(
        !output.status.success() && told.contains("no image `not-here`") && told.contains("offleash image pull"),
        "{}{told}",
        stdout(&output)
    );
    server.end();
}

#[test]
fn an_image_stays_as_long_as_a_sandbox_is_of_it_whoever_dies() {
    let Some(mut server) = with_busybox("") else { return };
    let id = create(&server, "localhost/box:t");
    server.shell(&id, "echo mine >/etc/mine");
    let stays = |server: &Server| {
        let said = server.site.refuse(["image", "rm", "localhost/box:t"]);
        assert!(said.contains("in use"), "{said}");
        assert_eq!(server.site.succeed(["image", "prune", "--all"]), "");
    };
    stays(&server);
    let (status, answer) = server.ask(&format!("POST /sandboxes/{id}/pause"), "");
    assert_eq!(status, 204, "{answer}");
    stays(&server);
    server.kill_now();
    stays(&server);
    server.wait_and_start_again();
    stays(&server);
    let (status, answer) = server.ask(&format!("POST /v1/sandboxes/{id}/resume"), "{}");
    assert_eq!(status, 200, "{answer}");
    assert_eq!(server.shell(&id, "cat /etc/mine"), "mine\n");
    // The name means another image now, and nothing that only the sandbox needs is gone.
    let Some(other) = layout::python(server.site.root()) else {
        return;
    };
    server.site.succeed([
        "image",
        "load",
        "-q",
        "--name",
        "localhost/box:t",
        other.to_str().unwrap(),
    ]);
    server.site.succeed(["image", "prune", "--all"]);
    let (status, forks) = server.ask(&format!("POST /v1/sandboxes/{id}/fork"), "{}");
    assert_eq!(status, 201, "{forks}");
    let fork = forks["forks"][0]["sandbox"]["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{forks}"));
    assert_eq!(
        server.shell(fork, "cat /etc/mine /etc/replaced; echo of-fork >/etc/mine"),
        "mine\nnew\n"
    );
    assert_eq!(server.shell(&id, "cat /etc/mine"), "mine\n");
    for id in [fork, &id] {
        let (status, answer) = server.ask(&format!("DELETE /sandboxes/{id}"), "");
        assert_eq!(status, 204, "{answer}");
    }
    crate::support::processes::eventually("nothing needs the images any more", || {
        server.site.offleash(["image", "prune", "--all"]).output().unwrap();
        let left = ["blobs", "references"].map(|name| {
            let directory = server.site.state().join("images").join(name);
            std::fs::read_dir(directory).unwrap().count()
        });
        (left == [0, 0]).then_some(())
    });
    server.end();
}

#[test]
fn code_runs_where_the_image_has_the_language_and_forks_have_what_it_left() {
    let site = Site::new();
    let Some(layout) = layout::python(site.root()) else {
        return;
    };
    site.succeed(["image", "load", "-q", layout.to_str().unwrap()]);
    let server = Server::start_on(site, None, NO_POOL);
    let id = create(&server, "localhost/python:t");
    let execute = |id: &str, body: Value| {
        let request = format!("POST /v1/sandboxes/{id}/execute");
        let answer = crate::client::ask(server.address, &server.key, &request, "", body.to_string().as_bytes());
        let (status, body) = answer.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    };
    let (status, told) = execute(&id, json!({ "code": "x = 40 + 1\nprint(x)" }));
    assert!(status == 200 && told.contains("41\\n"), "{status} {told}");
    for language in ["javascript", "bash", "r", "java"] {
        let (status, told) = execute(&id, json!({ "code": "1", "language": language }));
        assert_eq!(status, 501, "{told}");
        assert!(
            told.contains(&format!("{language} is not installed in the sandbox")) && told.contains("image"),
            "{told}"
        );
    }
    let (status, forks) = server.ask(&format!("POST /v1/sandboxes/{id}/fork"), "{}");
    assert_eq!(status, 201, "{forks}");
    let fork = forks["forks"][0]["sandbox"]["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{forks}"));
    let (status, told) = execute(fork, json!({ "code": "print(x + 1)" }));
    assert!(status == 200 && told.contains("42\\n"), "{status} {told}");
    server.end();
}

#[test]
fn the_owner_says_which_key_may_use_which_image() {
    let Some(mut server) = with_busybox("[images]\nallow = [\"python\"]\n") else {
        return;
    };
    let key = server.key.clone();
    let digest = server.site.succeed(["image", "ls", "--json"]);
    let digest: Value = serde_json::from_str(&digest).unwrap();
    let digest = digest[0]["digest"].as_str().unwrap().to_owned();
    let (status, told) = refused(&server, &key, "localhost/box:t");
    assert!(status == 403 && told.contains("images.allow"), "{status} {told}");
    // By its id nobody learns that it is there.
    assert_eq!(refused(&server, &key, &digest).0, 404);
    assert_eq!(refused(&server, &key, "python").0, 404);
    // The owner speaks for the machine.
    let id = server.site.succeed(["create", "--image", "localhost/box:t"]);
    server.site.succeed(["rm", "--force", id.trim()]);
    let keys = server.site.succeed(["key", "ls", "--json"]);
    let first: Value = serde_json::from_str(keys.lines().next().unwrap()).unwrap();
    let id = first["id"].as_str().unwrap_or_else(|| panic!("{keys}"));
    let config = format!("{NO_POOL}[images]\nallow = [\"python\"]\n[images.keys.{id}]\nallow = [\"localhost/*:t\"]\n");
    server.start_again_with(&config);
    create(&server, "localhost/box:t");
    create(&server, &digest);
    let other = stdout(&server.site.offleash(["key", "create"]).output().unwrap());
    assert_eq!(refused(&server, other.trim(), "localhost/box:t").0, 403);
    server.end();
}

#[test]
fn a_server_pulls_what_its_owner_lets_it_and_says_why_it_cannot() {
    let site = Site::new();
    let Some(layout) = Busybox::layout(site.root()) else {
        return;
    };
    let Some(registry) = Registry::start(site.root(), "", "") else {
        return;
    };
    if !registry.push(&layout, &[]) {
        return;
    }
    let name = registry.name();
    let host = format!("127.0.0.1:{}", registry.port);
    let images =
        |pull: &str| format!("{NO_POOL}[images]\nallow = [\"{host}/a/*\"]\npull = \"{pull}\"\nplain_http = true\n");
    let mut server = Server::start_on(site, None, &images("never"));
    let key = server.key.clone();
    let (status, told) = refused(&server, &key, &name);
    assert!(status == 404 && told.contains("images.pull"), "{status} {told}");
    server.start_again_with(&images("missing"));
    // One dies while an image is pulled, and the next one has it all the same.
    std::thread::scope(|scope| {
        let server = &server;
        scope.spawn(|| {
            let body = json!({ "image": name }).to_string();
            let _cut = crate::client::ask(server.address, &server.key, CREATE, "", body.as_bytes());
        });
        std::thread::sleep(std::time::Duration::from_millis(60));
        server.kill_now();
    });
    server.wait_and_start_again();
    let ids: Vec<String> = std::thread::scope(|scope| {
        let creating: Vec<_> = (0..4).map(|_| scope.spawn(|| create(&server, &name))).collect();
        creating.into_iter().map(|made| made.join().unwrap()).collect()
    });
    for id in &ids {
        assert_eq!(server.shell(id, "cat /etc/replaced"), "new\n");
    }
    let (status, told) = refused(&server, &key, &format!("{host}/a/other"));
    assert!(status == 404 && told.contains("has no image"), "{status} {told}");
    assert_eq!(refused(&server, &key, &format!("{host}/b/box:t")).0, 403);
    drop(registry);
    let (status, told) = refused(&server, &key, &format!("{host}/a/third"));
    assert!(status == 503 && told.contains("cannot be reached"), "{status} {told}");
    server.end();
}

/// What E2B's users write.
const SCRIPT: &str = r#"
import os, sys
from e2b import Sandbox
from e2b.exceptions import NotFoundException, SandboxException
sandbox = Sandbox.create(template="image:localhost/box:t")
assert sandbox.commands.run("cat /etc/replaced; pwd").stdout == "new\n/work\n"
sandbox.files.write("/tmp/a", "text")
assert sandbox.files.read("/tmp/a") == "text"
assert "busybox" in [entry.name for entry in sandbox.files.list("/bin")]
assert sandbox.get_info().template_id == "image:localhost/box:t"
sandbox.kill()
try:
    Sandbox.create(template="image:not-here")
    sys.exit("it was made")
except (NotFoundException, SandboxException) as error:
    assert "offleash image pull" in str(error), error
print("done")
"#;

#[test]
fn users_of_e2b_s_sdk_name_an_image_where_they_name_a_template() {
    let Some(kit) = Kit::find("python") else { return };
    let Some(server) = with_busybox("") else { return };
    let script = server.site.root().join("script.py");
    std::fs::write(&script, SCRIPT).unwrap();
    let mut command = kit.python(&script);
    let url = server.url();
    command.envs([
        ("E2B_API_URL", url.as_str()),
        ("E2B_SANDBOX_URL", &url),
        ("E2B_API_KEY", &server.key),
    ]);
    let Ok(output) = command.output() else {
        return skip("there is no Python to run the SDK with");
    };
    assert_eq!(stdout(&output), "done\n", "{}", stderr(&output));
    server.end();
}

#[test]
fn sandboxes_of_images_and_of_templates_made_of_them_have_snapshots_and_are_put_back() {
    let Some(server) = with_busybox("") else { return };
    let site = &server.site;
    let context = site.root().join("context");
    std::fs::create_dir(&context).unwrap();
    let build = |number: u32| {
        let text = format!("FROM localhost/box:t\nRUN mkdir -p /w && echo {number} >/w/number\nWORKDIR /w\n");
        std::fs::write(context.join("Dockerfile"), text).unwrap();
        let file = context.join("Dockerfile");
        let (file, context) = (file.to_str().unwrap(), context.to_str().unwrap());
        site.succeed(["template", "build", "--name", "number", "-f", file, context]);
    };
    build(1);
    for from in [["--image", "localhost/box:t"], ["--template", "number"]] {
        let id = site.succeed(["create", from[0], from[1]]);
        let id = id.trim();
        let shell = |id: &str, line: &str| site.succeed(["exec", id, "--", "sh", "-c", line]);
        shell(id, "echo before >/etc/mine");
        site.succeed(["checkpoint", id, "--name", "c"]);
        shell(id, "echo after >/etc/mine; rm /etc/replaced");
        site.succeed(["restore", id, "--checkpoint", "c"]);
        assert_eq!(shell(id, "cat /etc/mine /etc/replaced"), "before\nnew\n");
        site.succeed(["snapshot", "create", id, "--name", "s"]);
        let copy = site.succeed(["create", "--snapshot", "s"]);
        assert_eq!(shell(copy.trim(), "cat /etc/mine /etc/replaced"), "before\nnew\n");
        if from[0] == "--template" {
            // Commands start where the image says.
            assert_eq!(shell(copy.trim(), "cat number"), "1\n");
            build(2);
            let said = site.offleash(["restore", id, "--checkpoint", "c"]).output().unwrap();
            assert!(
                !said.status.success() && stderr(&said).contains("built anew"),
                "{said:?}"
            );
            assert_eq!(shell(id, "cat number /etc/mine"), "1\nbefore\n");
        }
        site.succeed(["rm", "--force", id, copy.trim()]);
    }
    server.end();
}
