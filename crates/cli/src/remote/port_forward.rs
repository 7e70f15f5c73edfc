//! `offleash port-forward`: ports of a sandbox at ports of this machine's loopback.

use std::process::ExitCode;

use offleash_api::client::{Client, ForwardNews, listen};
use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::text::Text;

use crate::end_signal::end_signal;
use crate::failure::Failure;
use crate::terminal;

/// A port here, and the one inside that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PortPair {
    local: u16,
    remote: u16,
}

pub(super) fn forward(client: &Client, id: &str, ports: &[String]) -> Result<ExitCode, Failure> {
    let pairs: Vec<PortPair> = ports.iter().map(|text| pair(text)).collect::<Result<_, _>>()?;
    // Before anything listens: what is not there is told at once.
    client.running(id)?;
    let mut listeners = Vec::new();
    let mut lines = String::new();
    for PortPair { local, remote } in pairs {
        let (listener, address) = listen(local).map_err(|error| {
            let failure =
                Failure::from_error(&error).while_trying(format!("listening at port {local} of this machine"));
            match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    failure.with_hint(format!("`0:{remote}` takes any port that is free, and prints it"))
                }
                _ => failure,
            }
        })?;
        lines.push_str(&format!("{address} -> {id}:{remote}\n"));
        listeners.push((listener, remote));
    }
    terminal::print(lines.as_bytes())?;
    let end = client.within(end_signal)?;
    client.forward(id, listeners, async { _ = end.await }, |news| {
        let ForwardNews::Failed { port, error } = news;
        if error.kind() != ErrorKind::NotFound {
            terminal::complain(&format!("offleash: a connection to port {port}: {error}"));
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `LOCAL:REMOTE`, or one number that is both.
fn pair(text: &str) -> Result<PortPair, Failure> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|_| digits)
    };
    match (number(local), number(remote)) {
        (Some(local), Some(remote)) if remote > 0 && (local > 0 || text.contains(':')) => {
            Ok(PortPair { local, remote })
        }
        _ => Err(
            Failure::new(format!("`{}` is not LOCAL:REMOTE", Text::from(text))).with_hint(
                "write it as `8080:80`, as `80` for the same port on both sides, or as `0:80` for any that is free",
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_a_pair_or_one_for_both() {
        let ports = |text: &str| pair(text).ok().map(|pair| (pair.local, pair.remote));
        for (text, expected) in [
            ("8080:80", Some((8080, 80))),
            ("80", Some((80, 80))),
            ("0:80", Some((0, 80))),
            ("0", None),
            ("80:0", None),
            ("", None),
            (":80", None),
            ("80:", None),
            ("+80:80", None),
            ("1:2:3", None),
            ("65536:1", None),
            ("a:b", None),
        ] {
            assert_eq!(ports(text), expected, "{text}");
        }
    }
}
