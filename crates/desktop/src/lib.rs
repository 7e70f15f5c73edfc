//! Desktops in sandboxes: how a screen is started, how it is looked at over the Remote Framebuffer Protocol, and how it
//! becomes a picture.
//!
//! `daemon` is its caller, and has the sandboxes; connections are given. The server of the screen is code in a sandbox like
//! any other: no byte of it is trusted, every message has a bound and a time. Deliberately not here: which desktops there
//! are, who may have them, and how clients get to one.

mod error;
mod launch;
mod picture;
mod screen;

pub use self::error::{DesktopError, DesktopOptionsError};
pub use self::launch::{DISPLAY, DesktopCommand, DesktopOptions, Dpi, RFB_PORT, Resolution, STREAM_PORT, TAG};
pub use self::picture::Picture;
pub use self::screen::ScreenObserver;
