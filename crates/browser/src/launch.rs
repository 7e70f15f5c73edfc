//! How a browser is started in a sandbox.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The port on the sandbox's loopback at which the browser is spoken to.
pub const PORT: u16 = 9222;
/// By this name the browser is found among a sandbox's commands.
pub const TAG: &str = "offleash.browser";
/// Where the browser keeps its profile in a sandbox.
pub const PROFILE: &str = "/home/user/.offleash-browser";
/// Where it puts what it downloads.
pub const DOWNLOADS: &str = "/home/user/Downloads";

/// Unpacks a profile from standard input.
pub const PROFILE_IN: &str = "mkdir -p /home/user/.offleash-browser && exec tar -xf - -C /home/user/.offleash-browser";
/// Packs a profile to standard output, without what the browser can get again.
pub const PROFILE_OUT: &str = "cd /home/user/.offleash-browser && exec tar -cf - --exclude=Cache --exclude='Code Cache' \
    --exclude=GPUCache --exclude='Dawn*Cache' --exclude=GrShaderCache --exclude=ShaderCache --exclude=GraphiteDawnCache \
    --exclude=component_crx_cache --exclude=extensions_crx_cache --exclude='BrowserMetrics*' --exclude=Crashpad \
    --exclude='Singleton*' --exclude='Safe Browsing' --exclude='optimization_guide*' .";

/// The longest words, bytes, and the largest window, pixels a side.
const MAX_USER_AGENT: usize = 512;
const MAX_LOCALE: usize = 35;
const MAX_TIME_ZONE: usize = 64;
const MAX_SIDE: u16 = 4096;

/// The first of the browsers that distributions have. What Debian's script reads of the machine is not there.
const FIRST_FOUND: &str =
    "for name in chromium chromium-browser google-chrome-stable google-chrome chrome-headless-shell; do
command -v \"$name\" >/dev/null 2>&1 && exec \"$name\" \"$@\"
done
exit 127";

/// What every browser is told: nobody is at a screen, and nothing is asked of its maker that no page asked for.
const ALWAYS: [&str; 17] = [
    "--headless",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-component-update",
    "--disable-background-networking",
    "--disable-client-side-phishing-detection",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--metrics-recording-only",
    "--password-store=basic",
    "--disable-features=Translate,MediaRouter,OptimizationHints,DnsOverHttpsUpgrade",
];

/// What a browser says that cannot make the namespaces of its own sandbox.
const NO_NAMESPACES: [&str; 3] = [
    "No usable sandbox",
    "Failed to move to new namespace",
    "Operation not permitted (1) - clone",
];

/// A value that no browser can be started with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not {expected}", .given.escape_debug())]
pub struct BrowserOptionsError {
    given: String,
    expected: &'static str,
}

/// The size of a window, pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Viewport {
    width: u16,
    height: u16,
}

macro_rules! words {
    ($($(#[doc = $doc:literal])+ $name:ident: $expected:literal, $fits:expr;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// It as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = BrowserOptionsError;

            fn from_str(text: &str) -> Result<Self, BrowserOptionsError> {
                let fits: fn(&str) -> bool = $fits;
                match fits(text) {
                    true => Ok(Self(text.to_owned())),
                    false => Err(BrowserOptionsError { given: text.chars().take(80).collect(), expected: $expected }),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = BrowserOptionsError;

            fn try_from(text: String) -> Result<Self, BrowserOptionsError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(word: $name) -> Self {
                word.0
            }
        }
    )+};
}

words! {
    /// What a browser calls itself: printable ASCII.
    UserAgent: "a user agent: up to 512 printable characters of ASCII", |text| {
        (1..=MAX_USER_AGENT).contains(&text.len()) && text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
    };
    /// A language, as in `de-DE`.
    LocaleTag: "a locale, as in `de-DE`", |text| {
        let is_part = |part: &str| (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
        text.len() <= MAX_LOCALE && text.split('-').all(is_part)
    };
    /// A time zone, as in `Europe/Berlin`.
    TimeZoneName: "a time zone, as in `Europe/Berlin`", |text| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-".contains(&byte);
        let is_part = |part: &str| !part.is_empty() && part.bytes().all(is_plain);
        text.len() <= MAX_TIME_ZONE && text.split('/').all(is_part)
    };
}

impl Viewport {
    /// One of that size.
    ///
    /// # Errors
    /// When a side is none, or longer than 4096.
    pub fn new(width: u16, height: u16) -> Result<Self, BrowserOptionsError> {
        let is_side = |side: u16| (1..=MAX_SIDE).contains(&side);
        match is_side(width) && is_side(height) {
            true => Ok(Self { width, height }),
            false => Err(BrowserOptionsError {
                given: format!("{width}x{height}"),
                expected: "a viewport: `WIDTHxHEIGHT`, 1 to 4096 each",
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

impl FromStr for Viewport {
    type Err = BrowserOptionsError;

    fn from_str(text: &str) -> Result<Self, BrowserOptionsError> {
        let sides = text
            .split_once('x')
            .and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
        let (width, height) = sides.unwrap_or((0, 0));
        Self::new(width, height).map_err(|error| BrowserOptionsError {
            given: text.chars().take(80).collect(),
            ..error
        })
    }
}

impl fmt::Display for Viewport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// What a browser is to look like to pages; each is the browser's own if absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrowserOptions {
    /// The size of its windows.
    pub viewport: Option<Viewport>,
    /// What it calls itself.
    pub user_agent: Option<UserAgent>,
    /// Its language.
    pub locale: Option<LocaleTag>,
    /// Where it is, by the clock.
    pub time_zone: Option<TimeZoneName>,
}

/// Whether the browser keeps its own sandbox, within ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnSandbox {
    /// Its renderers are in namespaces of its own.
    Kept,
    /// They are not: namespaces do not nest here, and ours alone holds them.
    Left,
}

/// A command that is a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrowserCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables.
    pub env: Vec<(String, String)>,
}

impl BrowserCommand {
    /// The browser that `command` names, or else the first that is there.
    pub fn new(command: &[String], options: &BrowserOptions, own_sandbox: OwnSandbox) -> Self {
        let first_found = || ["/bin/sh", "-c", FIRST_FOUND, "browser"].map(str::to_owned).to_vec();
        let mut argv = if command.is_empty() {
            first_found()
        } else {
            command.to_vec()
        };
        argv.extend(ALWAYS.map(str::to_owned));
        argv.push(format!("--remote-debugging-port={PORT}"));
        argv.push(format!("--user-data-dir={PROFILE}"));
        if let Some(viewport) = options.viewport {
            argv.push(format!("--window-size={},{}", viewport.width, viewport.height));
        }
        if let Some(user_agent) = &options.user_agent {
            argv.push(format!("--user-agent={}", user_agent.as_str()));
        }
        if let Some(locale) = &options.locale {
            argv.push(format!("--lang={}", locale.as_str()));
            argv.push(format!("--accept-lang={}", locale.as_str()));
        }
        if own_sandbox == OwnSandbox::Left {
            argv.push(NO_SANDBOX.to_owned());
        }
        argv.push("about:blank".to_owned());
        let time_zone = options
            .time_zone
            .as_ref()
            .map(|zone| ("TZ".to_owned(), zone.as_str().to_owned()));
        let language = options
            .locale
            .as_ref()
            .map(|locale| ("LANGUAGE".to_owned(), locale.as_str().replace('-', "_")));
        Self {
            argv,
            env: time_zone.into_iter().chain(language).collect(),
        }
    }
}

const NO_SANDBOX: &str = "--no-sandbox";

impl OwnSandbox {
    /// Whether a browser that was started with these arguments keeps it.
    pub fn of_arguments<'a>(mut argv: impl Iterator<Item = &'a [u8]>) -> Self {
        match argv.any(|word| word == NO_SANDBOX.as_bytes()) {
            true => Self::Left,
            false => Self::Kept,
        }
    }
}

/// Whether a browser that ended said that it cannot make namespaces of its own.
pub fn lacks_namespaces(said: &str) -> bool {
    NO_NAMESPACES.iter().any(|line| said.contains(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_before_a_browser_sees_them() {
        assert_eq!("1280x720".parse::<Viewport>().unwrap().to_string(), "1280x720");
        for bad in ["", "1280", "0x1", "1x4097", "1x1x1", "-1x1", "1x65537"] {
            assert!(bad.parse::<Viewport>().is_err(), "{bad}");
        }
        assert!("4096x4096".parse::<Viewport>().is_ok());
        assert!(UserAgent::from_str(&"a".repeat(512)).is_ok());
        for bad in ["", "a\nb", "é", &"a".repeat(513)] {
            assert!(UserAgent::from_str(bad).is_err(), "{bad}");
        }
        assert!(LocaleTag::from_str("zh-Hant-TW").is_ok());
        for bad in ["", "de_DE", "de-", "abcdefghi", "de DE", "../x"] {
            assert!(LocaleTag::from_str(bad).is_err(), "{bad}");
        }
        for good in ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+1"] {
            assert!(TimeZoneName::from_str(good).is_ok(), "{good}");
        }
        for bad in ["", "/etc/passwd", "../x", "a//b", ":x", "a b"] {
            assert!(TimeZoneName::from_str(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_browser_is_told_what_was_asked_for() {
        let options = BrowserOptions {
            viewport: "800x600".parse().ok(),
            user_agent: "mine/1 (x)".parse().ok(),
            locale: "de-DE".parse().ok(),
            time_zone: "Asia/Tokyo".parse().ok(),
        };
        let kept = BrowserCommand::new(&["/opt/b".to_owned()], &options, OwnSandbox::Kept);
        assert_eq!(kept.argv[0], "/opt/b");
        for word in [
            "--window-size=800,600",
            "--user-agent=mine/1 (x)",
            "--lang=de-DE",
            "--disable-extensions",
        ] {
            assert!(kept.argv.iter().any(|given| given == word), "{word}");
        }
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(kept.env, [pair("TZ", "Asia/Tokyo"), pair("LANGUAGE", "de_DE")]);
        let of = |command: &BrowserCommand| OwnSandbox::of_arguments(command.argv.iter().map(|word| word.as_bytes()));
        assert_eq!(of(&kept), OwnSandbox::Kept);
        let left = BrowserCommand::new(&[], &BrowserOptions::default(), OwnSandbox::Left);
        assert_eq!(of(&left), OwnSandbox::Left);
        assert_eq!(left.argv[0], "/bin/sh");
    }

    #[test]
    fn what_is_kept_of_options_is_read_again() {
        let options = BrowserOptions {
            locale: "de-DE".parse().ok(),
            ..BrowserOptions::default()
        };
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(serde_json::from_str::<BrowserOptions>(&text).unwrap(), options);
        assert!(serde_json::from_str::<BrowserOptions>(r#"{"locale": "a b"}"#).is_err());
    }
}
