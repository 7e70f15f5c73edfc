//! Snapshots in files: fetched from a server, and sent to one.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use offleash_api::client::{Client, encoded};
use offleash_core::text::Text;

use super::snapshots::path_of;
use super::{line, text};
use crate::args::{SnapshotExportArgs, SnapshotImportArgs};
use crate::failure::Failure;

/// What an archive of a snapshot is sent as.
const TAR: &str = "application/x-tar";

fn failed(tried: &str, path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("cannot {tried} `{}`: {error}", Text::from(path)))
}

/// Writes a snapshot to a file.
pub(super) fn export(client: &Client, arguments: &SnapshotExportArgs) -> Result<ExitCode, Failure> {
    let path = &arguments.file;
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = made.map_err(|error| failed("write", path, error))?;
    let written = write_out(client, &arguments.id, &file);
    if written.is_err() {
        // Half of one is none.
        let _removed = fs::remove_file(path);
    }
    written.map(|()| ExitCode::SUCCESS)
}

fn write_out(client: &Client, id: &str, file: &File) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    client.download_from(&format!("{}/export", path_of(id)), &mut out)?;
    let written = out.flush().and_then(|()| file.sync_all());
    written.map_err(|error| Failure::new(format!("cannot write the snapshot: {error}")))
}

/// Has a server make a snapshot of a file.
pub(super) fn import(client: &Client, arguments: &SnapshotImportArgs) -> Result<ExitCode, Failure> {
    let path = &arguments.file;
    let file = File::open(path).map_err(|error| failed("read", path, error))?;
    let name = arguments
        .name
        .as_ref()
        .map(|name| format!("?name={}", encoded(name.as_str())));
    let to = format!("/v1/snapshots/import{}", name.unwrap_or_default());
    let made = client.upload_to(&to, TAR, file)?;
    line(text(&made, "id"))
}
