//! The programs that people use, as they are: none is told of a proxy, an authority or a secret.
//!
//! Their requests go over TLS that the gateway opens to put a secret in. A program that is not installed is a counted
//! skip.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::secrets::{assert_free_of_values, with_values};
use crate::support::processes::{finish, program, start};
use crate::support::{Site, record_of, skip};
use crate::world::{World, carry_out, world};

const SERVERS: &str = include_str!("clients.py");
/// Where pages, packages and repositories are, and how they may be reached.
const WEB: &str = "https://web.clients.example.net:9643";
const FLAGS: [&str; 6] = [
    "--allow",
    "web.clients.example.net:9643/tls",
    "--allow",
    "web.clients.example.net:9680,2022",
    "--secret",
    "API_KEY=env:REAL_KEY@web.clients.example.net",
];

/// Makes what the servers serve, and puts their program where the internet finds it.
pub(crate) fn prepare(directory: &Path) -> Result<(), String> {
    std::fs::write(directory.join("clients.py"), SERVERS).unwrap();
    if program("git").is_some() {
        let repository = directory.join("git/project.git");
        std::fs::create_dir_all(&repository).unwrap();
        git(
            &repository,
            &["init", "--quiet", "--bare", "--initial-branch=main", "."],
        )?;
        git(&repository, &["config", "http.receivepack", "true"])?;
    }
    if program("ssh-keygen").is_some() && Path::new("/usr/sbin/sshd").exists() {
        for name in ["ssh-host-key", "ssh-user-key"] {
            // It makes keys only for users that the system knows, as root is.
            let mut command = Command::new("unshare");
            if !crate::support::is_root() {
                command.args(["--user", "--map-root-user"]);
            }
            command
                .args(["--", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(directory.join(name));
            let made = command
                .stdin(Stdio::null())
                .output()
                .map_err(|error| error.to_string())?;
            if !made.status.success() {
                return Err(format!("no key for SSH: {}", String::from_utf8_lossy(&made.stderr)));
            }
        }
    }
    Ok(())
}

fn git(directory: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(arguments);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null");
    carry_out(&mut command)
}

/// The internet, for clients that are all installed; a counted skip otherwise.
fn world_of(programs: &[&str]) -> Option<&'static World> {
    let missing = programs.iter().find(|name| program(name).is_none());
    if let Some(name) = missing {
        skip(&format!("`{name}` is missing"));
        return None;
    }
    world()
}

/// Runs a shell script in a sandbox; it must succeed. Answers what it wrote.
#[track_caller]
fn script(world: &World, site: &Site, flags: &[&str], text: &str) -> String {
    let text = format!("set -e\nWEB={WEB}\n{text}");
    let mut arguments = vec!["run", "--json", "--memory", "4G"];
    arguments.extend_from_slice(&FLAGS);
    arguments.extend_from_slice(flags);
    arguments.extend_from_slice(&["--", "/bin/sh", "-c", &text]);
    let output = finish(start(&mut with_values(world, world.offleash(site, &arguments))));
    assert_free_of_values(site, &output);
    let record = record_of(&output);
    let said = |stream: &str| record[stream]["data"].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        record["outcome"]["code"],
        0,
        "{}\n{}\n{:#}\n{:#}",
        said("stdout"),
        said("stderr"),
        record["outcome"],
        record["network"]
    );
    said("stdout")
}

#[test]
fn curl_needs_no_option() {
    let Some(world) = world_of(&["curl"]) else { return };
    let said = script(
        world,
        &Site::new(),
        &[],
        r#"
curl -sS -u "me:$API_KEY" $WEB/
head -c 3000000 /dev/zero | curl -sS -H "X-Key: $API_KEY" -T - $WEB/
curl -sS http://web.clients.example.net:9680/open
"#,
    );
    let expected = [
        "welcome by GET of 0 bytes",
        "welcome by PUT of 3000000 bytes",
        "open to everybody",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn pip_downloads_from_an_index_with_credentials() {
    let Some(world) = world() else { return };
    let has_pip = Command::new("/usr/bin/python3")
        .args(["-m", "pip", "--version"])
        .output();
    if !has_pip.is_ok_and(|output| output.status.success()) {
        return skip("`pip` is missing");
    }
    let said = script(
        world,
        &Site::new(),
        &[],
        r#"
export HOME=/tmp
/usr/bin/python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir -d /tmp/got \
    --index-url "https://me:$API_KEY@web.clients.example.net:9643/simple/" hello >&2
PYTHONPATH=$(echo /tmp/got/hello-*.whl) /usr/bin/python3 -c 'import hello; print(hello.WORD)'
"#,
    );
    assert_eq!(said, "hello from a package\n");
}

#[test]
fn node_resolves_and_fetches() {
    let Some(world) = world_of(&["node"]) else { return };
    let site = Site::new();
    site.write(
        "get.mjs",
        r#"
import dns from "node:dns";
import https from "node:https";
import http from "node:http";
const key = { "X-Key": process.env.API_KEY };
const web = process.env.WEB;
const address = (await dns.promises.lookup("web.clients.example.net")).address;
const [resolved] = await dns.promises.resolve4("web.clients.example.net");
console.log(address === resolved && address.startsWith("198.18."));
console.log(await dns.promises.lookup("not.allowed.example").catch(error => error.code));
const got = (library, url, headers) => new Promise((done, failed) => library.get(url, { headers }, answer => {
    let text = "";
    answer.on("data", part => text += part).on("end", () => done(text.trim()));
}).on("error", failed));
console.log(await got(https, web + "/", key));
console.log(await got(http, "http://web.clients.example.net:9680/open", {}));
if (globalThis.fetch) console.log((await (await fetch(web + "/", { headers: key })).text()).trim());
"#,
    );
    let said = script(world, &site, &[], "WEB=$WEB node get.mjs");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(
        lines[..4],
        ["true", "ENOTFOUND", "welcome by GET of 0 bytes", "open to everybody"],
        "{said}"
    );
    assert!(
        lines.get(4).is_none_or(|line| *line == "welcome by GET of 0 bytes"),
        "{said}"
    );
}

#[test]
fn npm_publishes_and_installs_with_a_token() {
    let Some(world) = world_of(&["node", "npm"]) else {
        return;
    };
    let site = Site::new();
    // Its own: the tests are run by several users of one internet, and a name can be published once.
    let said = script(
        world,
        &site,
        &[],
        r#"
export HOME=/tmp/home npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false
mkdir -p /tmp/home /tmp/package /tmp/project
echo "//web.clients.example.net:9643/npm/:_authToken=\${API_KEY}" > /tmp/home/.npmrc
echo "registry=$WEB/npm/" >> /tmp/home/.npmrc
cd /tmp/package
echo '{"name": "hello-npm", "version": "1.0.0"}' > package.json
echo 'module.exports = "hello from npm";' > index.js
npm publish >&2
cd /tmp/project
echo '{"name": "project", "version": "1.0.0"}' > package.json
npm install hello-npm >&2
node -e 'console.log(require("hello-npm"))'
"#,
    );
    assert_eq!(said, "hello from npm\n");
}

#[test]
fn git_clones_and_pushes_over_https_with_credentials() {
    let Some(world) = world_of(&["git"]) else { return };
    let said = script(
        world,
        &Site::new(),
        &[],
        r#"
export HOME=/tmp GIT_TERMINAL_PROMPT=0
cd /tmp
url="https://me:$API_KEY@web.clients.example.net:9643/git/project.git"
git clone --quiet "$url" one 2>&1 | grep -v empty >&2 || true
cd one
git -c user.name=me -c user.email=me@example.com commit --quiet --allow-empty -m 'hello from git'
git push --quiet origin HEAD:refs/heads/https >&2
git clone --quiet --branch https "$url" ../two >&2
git -C ../two log --format=%s -1
"#,
    );
    assert_eq!(said, "hello from git\n");
}

#[test]
fn git_clones_and_pushes_over_ssh() {
    let Some(world) = world_of(&["git", "ssh", "ssh-keygen"]) else {
        return;
    };
    if !Path::new("/usr/sbin/sshd").exists() {
        return skip("`sshd` is missing");
    }
    let user = if crate::support::is_root() { "root" } else { "tester" };
    let site = Site::new();
    std::fs::copy(world.file("ssh-user-key"), site.workspace().join("key")).unwrap();
    let repository = world.file("git/project.git");
    let said = script(
        world,
        &site,
        &[],
        &format!(
            r#"
export HOME=/tmp
cp key /tmp/key && chmod 600 /tmp/key
export GIT_SSH_COMMAND="ssh -p 2022 -i /tmp/key -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/tmp/known -o LogLevel=ERROR"
cd /tmp
git clone --quiet "{user}@web.clients.example.net:{}" one 2>&1 | grep -v empty >&2 || true
cd one
git -c user.name=me -c user.email=me@example.com commit --quiet --allow-empty -m 'hello over ssh'
git push --quiet origin HEAD:refs/heads/ssh >&2
git ls-remote origin refs/heads/ssh | cut -f 2
"#,
            repository.display()
        ),
    );
    assert_eq!(said, "refs/heads/ssh\n");
}

#[test]
fn java_uses_its_own_store_of_authorities() {
    let Some(world) = world_of(&["java", "javac"]) else {
        return;
    };
    let site = Site::new();
    site.write(
        "Get.java",
        r#"
import java.net.*;
import java.net.http.*;

public class Get {
    public static void main(String[] arguments) throws Exception {
        String web = System.getenv("WEB"), key = System.getenv("API_KEY");
        System.out.println(InetAddress.getByName("web.clients.example.net").getHostAddress().startsWith("198.18."));
        try {
            System.out.println(InetAddress.getByName("not.allowed.example"));
        } catch (UnknownHostException error) {
            System.out.println("unknown");
        }
        var request = HttpRequest.newBuilder(URI.create(web + "/")).header("X-Key", key).build();
        System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
        var connection = (HttpURLConnection) new URL(web + "/").openConnection();
        connection.setRequestProperty("X-Key", key);
        System.out.print(new String(connection.getInputStream().readAllBytes()));
        var open = new URL("http://web.clients.example.net:9680/open").openConnection();
        System.out.print(new String(open.getInputStream().readAllBytes()));
    }
}
"#,
    );
    let said = script(world, &site, &[], "WEB=$WEB java -Xmx256m Get.java");
    let welcome = "welcome by GET of 0 bytes";
    let expected = ["true", "unknown", welcome, welcome, "open to everybody"];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_program_in_go_resolves_by_itself() {
    let Some(world) = world_of(&["rclone"]) else { return };
    let said = script(
        world,
        &Site::new(),
        &[],
        r#"
export HOME=/tmp
for resolver in go cgo; do
  GODEBUG=netdns=$resolver rclone copyurl --stdout --header "X-Key: $API_KEY" $WEB/ x:
done
if GODEBUG=netdns=go rclone copyurl --stdout --retries 1 --low-level-retries 1 https://not.allowed.example/ x: 2>/tmp/why; then
  exit 1
fi
grep -o 'no such host' /tmp/why | head -n 1
"#,
    );
    let welcome = "welcome by GET of 0 bytes";
    assert_eq!(said.lines().collect::<Vec<_>>(), [welcome, welcome, "no such host"]);
}

#[test]
fn a_static_program_with_musl_resolves() {
    let Some(world) = world_of(&["musl-gcc"]) else { return };
    let site = Site::new();
    let source = site.write(
        "resolve.c",
        r#"
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    printf("%d\n", getaddrinfo("not.allowed.example", "80", &hints, &found) == EAI_NONAME);
    if (getaddrinfo("web.clients.example.net", "9680", &hints, &found)) return 1;
    for (; found; found = found->ai_next) {
        int server = socket(found->ai_family, SOCK_STREAM, 0);
        if (connect(server, found->ai_addr, found->ai_addrlen)) continue;
        const char *ask = "GET /open HTTP/1.1\r\nHost: web.clients.example.net:9680\r\nConnection: close\r\n\r\n";
        if (write(server, ask, strlen(ask)) < 0) return 2;
        char answer[4096];
        size_t length = 0;
        ssize_t got;
        while ((got = read(server, answer + length, sizeof answer - 1 - length)) > 0) length += got;
        answer[length] = 0;
        char *body = strstr(answer, "\r\n\r\n");
        printf("%s", body ? body + 4 : "no answer\n");
        return 0;
    }
    return 3;
}
"#,
    );
    let made = Command::new("musl-gcc")
        .args(["-static", "-O1", "-o"])
        .arg(site.workspace().join("resolve"))
        .arg(&source)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(script(world, &site, &[], "./resolve"), "1\nopen to everybody\n");
}
