//! Which ports programs in a sandbox listen at, and where its directories are.

use std::collections::BTreeSet;

use http::{Response, StatusCode};
use offleash_supervisor::service::error::SupervisorError;
use serde::Serialize;

use super::files::contents;
use super::toolbox::Toolbox;
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::PathSegments;

/// The kernel's tables of sockets, and the most of them that is read.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
const MAX_TABLE: usize = 1024 * 1024;
/// The ports that are told of, as Daytona has it: those of programs that serve something, and none of the sandbox's own.
const SHOWN: std::ops::RangeInclusive<u16> = 3000..=9999;
/// The state of a socket that listens (include/net/tcp_states.h).
const LISTENING: &str = "0A";

#[derive(Debug, Serialize)]
struct PortsAnswer {
    ports: BTreeSet<u16>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PortAnswer {
    is_in_use: bool,
}

#[derive(Debug, Serialize)]
struct DirectoryAnswer {
    dir: String,
}

#[derive(Debug, Serialize)]
struct ToolboxVersion {
    version: &'static str,
}

pub(crate) async fn list(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let mut ports = BTreeSet::new();
    for table in TABLES {
        // A level without a network of its own has none.
        if let Ok(table) = contents(&toolbox, table.as_bytes(), MAX_TABLE).await {
            let table = String::from_utf8_lossy(&table);
            ports.extend(listening(&table).filter(|port| SHOWN.contains(port)));
        }
    }
    Ok(answer::json(StatusCode::OK, &PortsAnswer { ports }))
}

pub(crate) async fn is_in_use(
    asked: &ApiRequest<'_>,
    [given, port, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let number: Option<u16> = port.parse().ok().filter(|port| *port > 0);
    let port = number.ok_or_else(|| ApiRefusal::bad_request("port: expected a number from 1 to 65535"))?;
    let toolbox = Toolbox::open(asked, given).await?;
    let is_in_use = match toolbox.supervisor.port(port).await {
        Ok(_) => true,
        Err(SupervisorError::PortClosed) => false,
        Err(error) => return Err(toolbox.refused(&error)),
    };
    Ok(answer::json(StatusCode::OK, &PortAnswer { is_in_use }))
}

pub(crate) async fn home(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let hello = toolbox.supervisor.hello().await;
    let users = hello.map_err(|error| toolbox.refused(&error))?.users;
    let dir = users
        .into_iter()
        .next()
        .map_or_else(|| "/".to_owned(), |user| user.home);
    Ok(answer::json(StatusCode::OK, &DirectoryAnswer { dir }))
}

pub(crate) async fn work_directory(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let dir = Toolbox::open(asked, given).await?.view.cwd;
    Ok(answer::json(StatusCode::OK, &DirectoryAnswer { dir }))
}

pub(crate) async fn version(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    Toolbox::open(asked, given).await?;
    let version = env!("CARGO_PKG_VERSION");
    Ok(answer::json(StatusCode::OK, &ToolboxVersion { version }))
}

/// The ports of a table at which somebody listens (proc_net_tcp.txt): `SL: ADDRESS:PORT REMOTE STATE …`.
fn listening(table: &str) -> impl Iterator<Item = u16> {
    table.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, _, state) = (words.next()?, words.next()?, words.next()?);
        let port = local.rsplit_once(':')?.1;
        (state == LISTENING).then(|| u16::from_str_radix(port, 16).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_somebody_listens_at_are_told() {
        let table = "  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 0\n\
            1: 0100007F:0050 0100007F:9999 01 0\n 2: 00000000000000000000000000000000:0BB8 0:0 0A\n garbage\n 3: x 0 0A\n";
        assert_eq!(listening(table).collect::<Vec<_>>(), [8080, 3000]);
    }
}
