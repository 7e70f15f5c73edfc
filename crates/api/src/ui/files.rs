//! The files of the dashboard, which are in the program itself: what is in `crates/api/ui`.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

/// What stands in the page where its number is to be.
pub(super) const NONCE: &str = "@NONCE@";

/// A file.
#[derive(Debug)]
pub(super) struct UiFile {
    /// Its path below `/ui/`.
    pub(super) name: &'static str,
    pub(super) bytes: &'static [u8],
}

impl UiFile {
    /// What it is, by the end of its name.
    pub(super) fn content_type(&self) -> &'static str {
        match self.name.rsplit_once('.').map(|(_, end)| end) {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js" | "mjs") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/plain; charset=utf-8",
        }
    }

    /// It, packed with gzip.
    pub(super) fn packed(&self) -> Bytes {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        // Memory takes what is written to it.
        let _written = packer.write_all(self.bytes);
        packer.finish().unwrap_or_default().into()
    }
}

macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        /// All files.
        pub(super) static FILES: &[UiFile] = &[
            $(UiFile { name: $name, bytes: include_bytes!(concat!("../../ui/", $name)) }),+
        ];
    };
}

files![
    "api.js",
    "app.js",
    "changes.js",
    "desktop.html",
    "desktop.js",
    "dom.js",
    "icon.svg",
    "index.html",
    "inside.js",
    "live.js",
    "plot.js",
    "questions.js",
    "rfb.js",
    "screen.js",
    "style.css",
    "vendor/xterm-addon-fit/LICENSE",
    "vendor/xterm-addon-fit/addon-fit.mjs",
    "vendor/xterm/LICENSE",
    "vendor/xterm/xterm.css",
    "vendor/xterm/xterm.mjs",
    "views/approvals.js",
    "views/audit.js",
    "views/browsers.js",
    "views/changes.js",
    "views/checkpoints.js",
    "views/commands.js",
    "views/create.js",
    "views/desktops.js",
    "views/files.js",
    "views/keys.js",
    "views/log.js",
    "views/machine.js",
    "views/network.js",
    "views/ports.js",
    "views/processes.js",
    "views/recording.js",
    "views/runs.js",
    "views/sandbox.js",
    "views/sandboxes.js",
    "views/snapshots.js",
    "views/templates.js",
    "views/terminal.js",
    "views/volumes.js",
];
