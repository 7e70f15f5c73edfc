//! The zygote of Python contexts: which program it is, how it is started, and where it listens.

use crate::language::Language;
use crate::protocol::{FrameError, HostFrame};

/// Where it listens, inside the sandbox in which it runs.
///
/// The name is that of one way to ask: whoever asks in another one finds nothing here, and starts the program itself.
pub const SOCKET: &str = "/tmp/.offleash-zygote-5";

/// What it writes when it listens.
pub const READY: &[u8] = b"ready\n";

const SOURCE: &[u8] = concat!(
    include_str!("../drivers/places.py"),
    "\n\n",
    include_str!("../drivers/zygote.py")
)
.as_bytes();

/// Program and arguments.
pub fn command() -> Vec<String> {
    Language::Python.command()
}

/// Its input, which stays open for as long as it is to serve: what it is, the driver that its copies are, and the modules
/// that it imports beside those that it always does.
///
/// # Errors
/// When a source does not fit into a frame.
pub fn input(modules: &[String]) -> Result<Vec<u8>, FrameError> {
    let zygote = HostFrame::Source(SOURCE).encode()?;
    let driver = HostFrame::Source(Language::Python.source()).encode()?;
    let modules = HostFrame::Import(modules.join("\n").as_bytes()).encode()?;
    Ok([zygote, driver, modules].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_listens_where_we_look() {
        let text = std::str::from_utf8(SOURCE).unwrap();
        assert!(text.contains(&format!("SOCKET = \"{SOCKET}\"\n")));
        assert!(text.contains("os.write(1, b\"ready\\n\")"));
        assert!(input(&[]).unwrap().len() > SOURCE.len());
    }
}
