//! Indexes that the host's own configuration names: they are used without a flag, and what they are asked with stays outside.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::support::{Site, skip, stderr, stdout};

/// `me:confidential`, as it is sent.
const SENT: &str = "bWU6Y29uZmlkZW50aWFs";

/// What asks, in the end: paths and who says to ask.
type Asked = Arc<Mutex<Vec<(String, bool)>>>;

/// An address of this machine that is not its loopback, if it has one.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent: the kernel only chooses the address.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// A package without anything to build, or `None` where there is no Python with pip.
fn wheel(site: &Site) -> Option<Vec<u8>> {
    const MAKE: &str = "import sys, zipfile\n\
                        w = zipfile.ZipFile(sys.argv[1], 'w')\n\
                        d = 'offleash_tiny-1.0.dist-info/'\n\
                        w.writestr('offleash_tiny.py', 'x = 7\\n')\n\
                        w.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: offleash-tiny\\nVersion: 1.0\\n')\n\
                        w.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
                        w.writestr(d + 'RECORD', '')\n\
                        w.close()\n";
    #[expect(clippy::disallowed_methods, reason = "a test starts programs itself")]
    let python = |arguments: &[&str]| {
        let mut python = Command::new("/usr/bin/python3");
        let ran = python
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        ran.is_ok_and(|status| status.success())
    };
    let file = site.root().join("tiny.whl");
    let has_pip = python(&["-m", "pip", "--version"]);
    let is_made = has_pip && python(&["-c", MAKE, file.to_str()?]);
    is_made.then(|| std::fs::read(file).unwrap())
}

/// Serves the package to whoever says who they are, until the test ends.
fn serve(address: IpAddr, wheel: Vec<u8>) -> Option<(SocketAddr, Asked)> {
    let listener = TcpListener::bind((address, 0)).ok()?;
    let address = listener.local_addr().ok()?;
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let _answered = answer(connection, &wheel, &seen);
        }
    });
    Some((address, asked))
}

fn answer(mut connection: TcpStream, wheel: &[u8], seen: &Asked) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        connection.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let is_known = head.contains(SENT);
    seen.lock().unwrap().push((path.clone(), is_known));
    let link = b"<!DOCTYPE html><html><body><a href='offleash_tiny-1.0-py3-none-any.whl'>offleash_tiny-1.0-py3-none-any.whl</a></body></html>";
    let (status, kind, body): (&str, &str, &[u8]) = match path.as_str() {
        _ if !is_known => ("401 Unauthorized", "text/plain", b"who?"),
        "/simple/offleash-tiny/" => ("200 OK", "text/html", link),
        path if path.ends_with(".whl") => ("200 OK", "application/octet-stream", wheel),
        _ => ("404 Not Found", "text/plain", b"no"),
    };
    let length = body.len();
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    connection.write_all(body)
}

/// Whether a text is in any file below.
fn is_in(directory: &Path, text: &str) -> bool {
    let mut found = std::fs::read_dir(directory).into_iter().flatten().flatten();
    found.any(|entry| {
        let kind = entry.file_type().unwrap();
        let is_in_file = || {
            std::fs::read(entry.path()).is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
        };
        kind.is_dir() && is_in(&entry.path(), text) || kind.is_file() && is_in_file()
    })
}

#[test]
fn an_index_of_the_host_s_configuration_is_used_and_its_credentials_stay_outside() {
    let site = Site::sharing_templates();
    let Some(wheel) = wheel(&site) else {
        return skip("the host has no Python with pip");
    };
    let Some((address, asked)) = own_address().and_then(|address| serve(address, wheel)) else {
        return skip("this machine has no address but its loopback");
    };
    let configuration = site.root().join(".config/pip/pip.conf");
    std::fs::create_dir_all(configuration.parent().unwrap()).unwrap();
    let ip = address.ip();
    let text = format!("[global]\nindex-url = http://me:confidential@{address}/simple\ntrusted-host = {ip}\n");
    std::fs::write(&configuration, text).unwrap();
    let output = site
        .offleash(["template", "build", "--name", "tiny", "--pip", "offleash-tiny"])
        .output()
        .unwrap();
    let said = stderr(&output);
    assert!(output.status.success(), "{said} {:?}", asked.lock().unwrap());
    assert!(said.contains(&format!("pip looks at `{address}`")), "{said}");
    assert!(said.contains(configuration.to_str().unwrap()), "{said}");
    let asked = asked.lock().unwrap();
    assert!(
        asked.iter().all(|(_, is_known)| *is_known) && asked.len() >= 2,
        "{asked:?}"
    );
    let ran = site.run_shell(
        &["--template", "tiny", "--no-workspace"],
        "python3 -c 'import offleash_tiny; print(offleash_tiny.x)'",
    );
    assert_eq!(stdout(&ran), "7\n", "{}", stderr(&ran));
    for confidential in ["confidential", SENT] {
        assert!(!said.contains(confidential), "{said}");
        assert!(!is_in(&site.state(), confidential), "{confidential}");
    }
}
