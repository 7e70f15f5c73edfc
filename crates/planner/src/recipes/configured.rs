//! Where the host's own package managers look for packages: what their configuration says, which the owner of the machine wrote.
//!
//! Pure but for files below [`IndexConfiguration::root`], the home directory and what variables name. Addresses lose their credentials here, which
//! stay outside of the sandbox: the gateway puts them into requests.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use offleash_core::network::{HeaderRule, Host};

/// Most bytes of a file of configuration, and most such files of one kind.
const MAX_LENGTH: u64 = 256 * 1024;
const MAX_FILES: usize = 256;

/// The machine whose configuration is read.
#[derive(Debug, Clone)]
pub struct IndexConfiguration {
    /// Its root directory.
    pub root: PathBuf,
    /// The home directory of the user, if there is one.
    pub home: Option<PathBuf>,
    /// The variables of the user.
    pub variables: Vec<(OsString, OsString)>,
}

/// An address of packages.
#[derive(Clone, PartialEq, Eq)]
pub struct PackageIndex {
    /// The address without a user.
    pub url: String,
    pub(super) host: Host,
    pub(super) port: u16,
    pub(super) is_tls: bool,
    /// The value of a header that says who asks.
    credentials: Option<String>,
    /// The file, or the variable, that says so.
    pub said_by: String,
}

/// Without the credentials.
impl std::fmt::Debug for PackageIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.url, self.said_by)
    }
}

impl PackageIndex {
    /// An address with `http` or `https`; `None` for anything else, such as a directory.
    fn parse(text: &str, said_by: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let (is_tls, usual) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (false, 80),
            "https" => (true, 443),
            _ => return None,
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, authority),
        };
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            _ => (place, usual),
        };
        let credentials = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let pair = [decoded(name), b":".to_vec(), decoded(password)].concat();
            format!("Basic {}", BASE64.encode(&pair))
        });
        Some(Self {
            url: format!("{}://{place}{path}", scheme.to_ascii_lowercase()),
            host: Host::parse(host.trim_matches(['[', ']'])).ok()?,
            port,
            is_tls,
            credentials,
            said_by: said_by.to_owned(),
        })
    }

    /// The same for an address that a build is passed as it is, credentials included.
    pub fn without_credentials(text: &str, said_by: &str) -> Option<Self> {
        let index = Self::parse(text, said_by)?;
        Some(Self {
            credentials: None,
            ..index
        })
    }

    /// The rule that lets it be reached. What has credentials is sent without TLS only where the owner's own address has none.
    pub fn rule(&self) -> String {
        let host = match &self.host {
            Host::Address(address) if address.is_ipv6() => format!("[{address}]"),
            host => host.to_string(),
        };
        let protocol = if self.credentials.is_some() && !self.is_tls {
            "/http"
        } else {
            ""
        };
        format!("{host}:{}{protocol}", self.port)
    }

    /// The rule that puts the credentials into requests; `None` where there are none, or none that can be sent.
    pub fn header(&self) -> Option<HeaderRule> {
        let value = self.credentials.as_ref()?;
        HeaderRule::parse_set(&format!("{} authorization: {value}", self.host)).ok()
    }
}

/// Bytes of an address that were written in percent form.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..2).and_then(|digits| str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

/// What pip's configuration says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PipConfig {
    /// In place of PyPI.
    pub index: Option<PackageIndex>,
    pub extra: Vec<PackageIndex>,
    /// Hosts that are asked without TLS, or with a certificate that nobody vouches for.
    pub trusted_hosts: Vec<String>,
}

/// What npm's configuration says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NpmConfig {
    /// In place of npm's own.
    pub registry: Option<PackageIndex>,
    /// Registries of scopes, by the key that names one.
    pub scopes: Vec<(String, PackageIndex)>,
}

impl IndexConfiguration {
    /// This one, as this process knows it.
    pub fn this() -> Self {
        Self {
            root: PathBuf::from("/"),
            home: crate::this_home(),
            variables: std::env::vars_os().collect(),
        }
    }

    fn variable(&self, name: &str) -> Option<&OsStr> {
        let found = self.variables.iter().find(|(known, _)| known == name);
        found
            .map(|(_, value)| value.as_os_str())
            .filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.variable(name)?.to_str()
    }

    /// What a user's file of configuration holds; nothing where it cannot be read, as for the package manager itself.
    fn read(&self, path: &Path) -> Option<String> {
        let path = match path.strip_prefix("/") {
            Ok(rest) => self.root.join(rest),
            Err(_) => return None,
        };
        // One that somebody put in the way of an owner is not waited for.
        let found = std::fs::metadata(&path).ok()?;
        if !found.is_file() || found.len() > MAX_LENGTH {
            return None;
        }
        let mut text = String::new();
        File::open(path).ok()?.take(MAX_LENGTH).read_to_string(&mut text).ok()?;
        Some(text)
    }

    fn in_home(&self, name: &str) -> Option<PathBuf> {
        Some(self.home.as_ref()?.join(name))
    }

    /// The files of pip in the order in which later ones win.
    fn pip_files(&self) -> Vec<PathBuf> {
        const OFF: &str = "/dev/null";
        let named = self.variable("PIP_CONFIG_FILE").map(PathBuf::from);
        if named.as_deref() == Some(Path::new(OFF)) {
            return Vec::new();
        }
        let everywhere = self.text("XDG_CONFIG_DIRS").unwrap_or("/etc/xdg");
        let everywhere = everywhere
            .split(':')
            .map(|directory| Path::new(directory).join("pip/pip.conf"));
        let own = match self.variable("XDG_CONFIG_HOME") {
            Some(directory) => Some(Path::new(directory).join("pip/pip.conf")),
            None => self.in_home(".config/pip/pip.conf"),
        };
        let files = everywhere.chain([PathBuf::from("/etc/pip.conf")]);
        files
            .chain(self.in_home(".pip/pip.conf"))
            .chain(own)
            .chain(named)
            .collect()
    }

    /// Where pip looks.
    pub fn pip(&self) -> PipConfig {
        let mut pip = PipConfig::default();
        // Those of the command win over those of all commands, and files over files before them.
        for section in ["global", "install"] {
            for file in self.pip_files() {
                let Some(text) = self.read(&file) else { continue };
                let said_by = file.display().to_string();
                for (key, value) in ini(&text, section) {
                    pip.set(&key, &value, &said_by);
                }
            }
        }
        for (name, key) in [
            ("PIP_INDEX_URL", "index-url"),
            ("PIP_EXTRA_INDEX_URL", "extra-index-url"),
            ("PIP_TRUSTED_HOST", "trusted-host"),
        ] {
            if let Some(value) = self.text(name) {
                pip.set(key, value, name);
            }
        }
        pip
    }

    /// Where npm looks.
    pub fn npm(&self) -> NpmConfig {
        let own = match self.named(&["NPM_CONFIG_USERCONFIG", "npm_config_userconfig"]) {
            Some((_, file)) => Some(PathBuf::from(file)),
            None => self.in_home(".npmrc"),
        };
        let everywhere = ["/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"].map(PathBuf::from);
        let mut settings: Vec<(String, String, String)> = Vec::new();
        for file in everywhere.into_iter().chain(own) {
            let text = self.read(&file).unwrap_or_default();
            let said_by = file.display().to_string();
            let of_file = ini(&text, "").map(|(key, value)| (key, self.expanded(&value), said_by.clone()));
            settings.extend(of_file);
        }
        if let Some((name, value)) = self.named(&["NPM_CONFIG_REGISTRY", "npm_config_registry"]) {
            settings.push(("registry".to_owned(), value.to_owned(), name.to_owned()));
        }
        let mut npm = NpmConfig::default();
        for (key, value, said_by) in &settings {
            let index = || PackageIndex::parse(value, said_by).map(|index| with_npm_credentials(index, &settings));
            if key == "registry" {
                npm.registry = index().or(npm.registry);
            } else if let (Some(_), Some(index)) =
                (key.strip_suffix(":registry").filter(|of| of.starts_with('@')), index())
            {
                npm.scopes.retain(|(known, _)| known != key);
                npm.scopes.push((key.clone(), index));
            }
        }
        npm
    }

    fn named<'n>(&self, names: &[&'n str]) -> Option<(&'n str, &str)> {
        names.iter().find_map(|name| Some((*name, self.text(name)?)))
    }

    /// A value with `${NAME}` replaced by that variable, as npm does it.
    fn expanded(&self, value: &str) -> String {
        let mut expanded = String::new();
        let mut rest = value;
        while let Some((before, behind)) = rest.split_once("${") {
            let Some((name, after)) = behind.split_once('}') else {
                break;
            };
            expanded.push_str(before);
            expanded.push_str(self.text(name.trim_end_matches('?')).unwrap_or_default());
            rest = after;
        }
        expanded + rest
    }

    /// Where the distribution's packages come from: the addresses in `sources.list` and the files of `sources.list.d`, of either form
    /// (sources.list(5)).
    pub fn apt(&self) -> Vec<PackageIndex> {
        let directory = self.root.join("etc/apt/sources.list.d");
        let more = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names: Vec<OsString> = more
            .map(|found| found.file_name())
            .filter(|name| is_read_by_apt(name))
            .collect();
        names.sort();
        let more = names.iter().map(|name| Path::new("/etc/apt/sources.list.d").join(name));
        let files = std::iter::once(PathBuf::from("/etc/apt/sources.list")).chain(more);
        let mut found = Vec::new();
        for file in files.take(MAX_FILES) {
            let text = self.read(&file).unwrap_or_default();
            let said_by = file.display().to_string();
            found.extend(
                enabled_lines(&text)
                    .flat_map(str::split_whitespace)
                    .filter_map(|word| PackageIndex::parse(word, &said_by)),
            );
        }
        found
    }
}

/// Whether apt reads a file of this name in `sources.list.d`: it passes over those that were set aside.
fn is_read_by_apt(name: &OsStr) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
    let name = name.as_encoded_bytes();
    name.iter().all(is_plain) && [&b".list"[..], b".sources"].iter().any(|end| name.ends_with(end))
}

/// The lines of a list of sources that count: no comments, and no stanzas that say `Enabled: no`.
fn enabled_lines(text: &str) -> impl Iterator<Item = &str> {
    let is_off = |line: &str| {
        let field = line.split_once(':');
        field.is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("Enabled")
                && ["no", "false", "without", "off", "disable"].contains(&value.trim().to_ascii_lowercase().as_str())
        })
    };
    let stanzas = text.split("\n\n").filter(move |stanza| !stanza.lines().any(is_off));
    let lines = stanzas.flat_map(str::lines);
    lines.filter(|line| !line.trim_start().starts_with('#'))
}

impl PipConfig {
    fn set(&mut self, key: &str, value: &str, said_by: &str) {
        let words = || value.split_whitespace();
        match key.replace('_', "-").as_str() {
            "index-url" => self.index = PackageIndex::parse(value.trim(), said_by).or(self.index.take()),
            "extra-index-url" => self.extra = words().filter_map(|word| PackageIndex::parse(word, said_by)).collect(),
            "trusted-host" => self.trusted_hosts = words().map(str::to_owned).collect(),
            _ => {}
        }
    }
}

/// The registry with what `//HOST/PATH/:_authToken` and its kin say of it.
fn with_npm_credentials(mut index: PackageIndex, settings: &[(String, String, String)]) -> PackageIndex {
    let place = index.url.split_once(':').map_or("", |(_, place)| place);
    let of = |name: &str| {
        let is_it = |key: &str| {
            let about = key.strip_suffix(name).and_then(|key| key.strip_suffix(':'));
            about.is_some_and(|about| {
                let about = about.trim_end_matches('/');
                place
                    .strip_prefix(about)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        let last = settings.iter().rev().find(|(key, ..)| is_it(key));
        last.map(|(_, value, _)| value.as_str())
            .filter(|value| !value.is_empty())
    };
    let pair = || {
        let password = BASE64.decode(of("_password")?.as_bytes()).ok()?;
        let pair = [of("username")?.as_bytes(), b":", &password].concat();
        Some(format!("Basic {}", BASE64.encode(&pair)))
    };
    let token = of("_authToken").map(|token| format!("Bearer {token}"));
    let basic = of("_auth").map(|both| format!("Basic {both}"));
    index.credentials = token.or(basic).or_else(pair).or(index.credentials);
    index
}

/// The keys and values of a section, of a file as pip and npm have them; a line that is further in goes on with the value before.
/// Without a section, those that stand before the first.
fn ini(text: &str, section: &str) -> impl Iterator<Item = (String, String)> + use<> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut current = String::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.trim().clone_into(&mut current);
            continue;
        }
        if current != section {
            continue;
        }
        let goes_on = !section.is_empty() && line.starts_with([' ', '\t']);
        if let (true, Some((_, value))) = (goes_on, pairs.last_mut()) {
            value.push(' ');
            value.push_str(trimmed);
            continue;
        }
        let separator = if section.is_empty() { &['='][..] } else { &['=', ':'] };
        if let Some((key, value)) = trimmed.split_once(separator) {
            let value = value.trim();
            let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            pairs.push((key.trim().to_owned(), quoted.unwrap_or(value).to_owned()));
        }
    }
    pairs.into_iter()
}

#[cfg(test)]
pub(super) mod tests;
