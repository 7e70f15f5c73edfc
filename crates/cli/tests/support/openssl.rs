//! Certificates of the tests' own.

use std::path::Path;
use std::process::Command;

/// A key on a curve, without a password.
const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// Runs `openssl` in `directory`, with words that have no spaces in them.
///
/// # Errors
/// With the command line and what it said.
pub fn openssl(directory: &Path, words: &str) -> Result<(), String> {
    let mut command = Command::new("openssl");
    command.args(words.split_ascii_whitespace()).current_dir(directory);
    let made = command.output().map_err(|error| error.to_string())?;
    if made.status.success() {
        Ok(())
    } else {
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&made.stderr)))
    }
}

/// Makes an authority (`ca.pem`) and a certificate of its for this machine (`server.pem`, `server.key`) in `directory`.
///
/// # Errors
/// As [`openssl`].
pub fn certify_loopback(directory: &Path) -> Result<(), String> {
    let names = "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n";
    std::fs::write(directory.join("server.ext"), names).unwrap();
    let authority = "-addext keyUsage=critical,keyCertSign,cRLSign";
    for words in [
        format!("req -x509 {KEY} -days 2 -subj /CN=authority {authority} -keyout ca.key -out ca.pem"),
        format!("req -new {KEY} -subj /CN=server -keyout server.key -out server.csr"),
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile server.ext -out server.pem"
            .to_owned(),
    ] {
        openssl(directory, &words)?;
    }
    Ok(())
}
