//! How a desktop is started in a sandbox.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::DesktopOptionsError;

/// By this name the X server is found among a sandbox's commands.
pub const TAG: &str = "offleash.desktop";
/// The display, as programs in the sandbox name it: that of E2B's desktops.
pub const DISPLAY: &str = ":0";
/// The port on the sandbox's loopback at which the Remote Framebuffer Protocol is spoken.
pub const RFB_PORT: u16 = 5900;
/// The port at which the same is spoken over WebSocket, and noVNC is served where it is installed.
pub const STREAM_PORT: u16 = 6080;

/// The shortest and the longest side of a screen, and the most that it may have, pixels.
const SIDES: std::ops::RangeInclusive<u16> = 64..=3840;
pub(crate) const MAX_PIXELS: usize = 3840 * 2160;
const DPI: std::ops::RangeInclusive<u16> = 24..=480;

/// Becomes the X server, so that its end is the end of the command. What needs it waits for it, beside it: the first manager
/// of windows or desktop that is there, what shows the screen, and what carries that over WebSocket. The latter two are
/// started again when they end. `$1` is the size of the screen, `$2` its density.
const START: &str = r#"for name in Xvfb xdpyinfo x11vnc websockify; do
command -v "$name" >/dev/null 2>&1 || { echo "$name is missing" >&2; exit 127; }
done
(
until xdpyinfo >/dev/null 2>&1; do sleep 0.05; done
for name in startxfce4 fluxbox openbox icewm matchbox-window-manager twm; do
command -v "$name" >/dev/null 2>&1 && { "$name" & break; }
done
(while :; do
x11vnc -display "$DISPLAY" -rfbport 5900 -localhost -no6 -forever -shared -nosel -nopw -quiet -wait 30
sleep 0.2
done) &
if test -e /usr/share/novnc/vnc.html; then set -- --web /usr/share/novnc; else set --; fi
while :; do websockify "$@" 127.0.0.1:6080 127.0.0.1:5900; sleep 0.2; done
) >/tmp/.offleash-desktop.log 2>&1 </dev/null &
exec Xvfb "$DISPLAY" -ac -noreset -screen 0 "$1"x24 -dpi "$2" -nolisten tcp -nolisten unix
"#;

/// The size of a screen, pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolution {
    width: u16,
    height: u16,
}

impl Resolution {
    const EXPECTED: &'static str = "a resolution: `WIDTHxHEIGHT`, 64 to 3840 each, 3840x2160 pixels at most";

    /// One of that size.
    ///
    /// # Errors
    /// When a side is shorter than 64 or longer than 3840 pixels, or there are more than of 3840x2160.
    pub fn new(width: u16, height: u16) -> Result<Self, DesktopOptionsError> {
        let pixels = usize::from(width) * usize::from(height);
        match SIDES.contains(&width) && SIDES.contains(&height) && pixels <= MAX_PIXELS {
            true => Ok(Self { width, height }),
            false => Err(DesktopOptionsError {
                given: format!("{width}x{height}"),
                expected: Self::EXPECTED,
            }),
        }
    }

    /// Its width.
    pub fn width(self) -> u16 {
        self.width
    }

    /// Its height.
    pub fn height(self) -> u16 {
        self.height
    }
}

impl Default for Resolution {
    /// That of E2B's desktops.
    fn default() -> Self {
        Self {
            width: 1024,
            height: 768,
        }
    }
}

impl FromStr for Resolution {
    type Err = DesktopOptionsError;

    fn from_str(text: &str) -> Result<Self, DesktopOptionsError> {
        let sides = text
            .split_once('x')
            .and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
        let (width, height) = sides.unwrap_or((0, 0));
        Self::new(width, height).map_err(|error| DesktopOptionsError {
            given: text.chars().take(80).collect(),
            ..error
        })
    }
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// Pixels an inch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dpi(u16);

impl Dpi {
    /// So many.
    ///
    /// # Errors
    /// When it is less than 24 or more than 480.
    pub fn new(dpi: u16) -> Result<Self, DesktopOptionsError> {
        match DPI.contains(&dpi) {
            true => Ok(Self(dpi)),
            false => Err(DesktopOptionsError {
                given: dpi.to_string(),
                expected: "a density: 24 to 480 pixels an inch",
            }),
        }
    }

    /// How many.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl Default for Dpi {
    /// That of E2B's desktops.
    fn default() -> Self {
        Self(96)
    }
}

/// What a desktop is like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DesktopOptions {
    /// The size of its screen.
    pub resolution: Resolution,
    /// The density of its screen.
    pub dpi: Dpi,
}

/// A command that is a desktop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesktopCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables.
    pub env: Vec<(String, String)>,
}

impl DesktopCommand {
    /// One that ends with its X server, and with 127 where a program is missing.
    pub fn new(options: DesktopOptions) -> Self {
        let (resolution, dpi) = (options.resolution.to_string(), options.dpi.get().to_string());
        let argv = ["/bin/sh", "-c", START, "desktop", &resolution, &dpi];
        Self {
            argv: argv.map(str::to_owned).to_vec(),
            env: vec![("DISPLAY".to_owned(), DISPLAY.to_owned())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_has_a_size_that_it_can_have() {
        for good in ["64x64", "1024x768", "3840x2160", "2160x3840"] {
            assert_eq!(good.parse::<Resolution>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "1024",
            "63x64",
            "64x63",
            "3841x64",
            "3840x2161",
            "-1x64",
            "1x1x1",
            "64x65600",
        ] {
            assert!(bad.parse::<Resolution>().is_err(), "{bad}");
        }
        assert!(Dpi::new(96).is_ok() && Dpi::new(23).is_err() && Dpi::new(481).is_err());
    }

    #[test]
    fn what_was_asked_for_is_told_to_the_script_as_arguments() {
        let options = DesktopOptions {
            resolution: "800x600".parse().unwrap(),
            dpi: Dpi::new(120).unwrap(),
        };
        let command = DesktopCommand::new(options);
        assert_eq!(command.argv[4..], ["800x600", "120"]);
        // The script and what is outside of it mean the same ports.
        for port in [RFB_PORT, STREAM_PORT] {
            assert!(START.contains(&port.to_string()), "{port}");
        }
    }

    #[test]
    fn what_is_kept_of_options_is_read_again_and_checked_where_it_is_asked_for() {
        assert_eq!(DesktopOptions::default().resolution.to_string(), "1024x768");
        assert_eq!(DesktopOptions::default().dpi.get(), 96);
    }
}
