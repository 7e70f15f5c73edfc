//! What a recipe lists: each is an argument of a package manager, and none of its options.

use std::fmt;
use std::str::FromStr;

/// Longest item, bytes.
const MAX_LENGTH: usize = 512;

/// Something that a recipe cannot list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not {what}: {why}", .given.escape_debug())]
pub struct ItemError {
    /// What was given.
    pub given: String,
    /// What was expected, as in `a requirement of pip`.
    pub what: &'static str,
    /// What is wrong with it.
    pub why: &'static str,
}

macro_rules! items {
    ($($(#[doc = $doc:literal])+ $name:ident, $what:literal, $check:expr;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// As it was written.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = ItemError;

            fn from_str(text: &str) -> Result<Self, ItemError> {
                let check: fn(&str) -> Result<(), &'static str> = $check;
                match common(text).and_then(|()| check(text)) {
                    Ok(()) => Ok(Self(text.to_owned())),
                    Err(why) => Err(ItemError { given: text.to_owned(), what: $what, why }),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = ItemError;

            fn try_from(text: String) -> Result<Self, ItemError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(item: $name) -> Self {
                item.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+};
}

impl PipRequirement {
    /// The name of the package, as indexes write it (PEP 503), but for separators.
    pub fn name(&self) -> String {
        let ends = |byte: char| !byte.is_ascii_alphanumeric() && !"._-".contains(byte);
        let name = self.0.split(ends).next().unwrap_or_default();
        name.to_ascii_lowercase()
    }
}

items! {
    /// A requirement as pip takes it: a name with extras, versions and markers, or `NAME @ URL`.
    PipRequirement, "a requirement of pip", |text| {
        starts_with_name(text)
    };
    /// A module of Python by its full name, as in `matplotlib.pyplot`.
    PythonModule, "a module of Python", |text| {
        let is_word = |word: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            word.bytes().all(plain) && !word.starts_with(|first: char| first.is_ascii_digit()) && !word.is_empty()
        };
        if text.split('.').all(is_word) { Ok(()) } else { Err("it is no name with dots between its parts") }
    };
    /// A package of the distribution: `NAME`, `NAME=VERSION` or `NAME/RELEASE`.
    AptPackage, "a package of apt", |text| {
        starts_with_name(text)?;
        no_space(text)?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.:=/~_".contains(&byte);
        // A minus at the end would remove the package.
        if text.bytes().all(is_plain) && !text.ends_with(['-', '+']) { Ok(()) } else { Err("it has other characters than names and versions") }
    };
    /// A package as npm takes it: `NAME`, `@SCOPE/NAME`, either with `@VERSION`.
    NpmPackage, "a package of npm", |text| {
        no_space(text)?;
        starts_with_name(text.strip_prefix('@').unwrap_or(text))
    };
    /// The address of a package index, `http` or `https`, without a user in it: recipes are shown to whoever lists templates.
    PipIndex, "an index of packages", |text| {
        no_space(text)?;
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).ok_or("it begins with neither https:// nor http://")?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') {
            return Err("it has a user in it, and recipes are shown; set PIP_INDEX_URL for the build alone with `--build-env`");
        }
        if authority.is_empty() { Err("it names no host") } else { Ok(()) }
    };
}

impl PipIndex {
    /// The host and port that it leads to, as a rule of the network has it.
    pub fn host_and_port(&self) -> String {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("https", &self.0));
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let after_brackets = authority.rsplit(']').next().unwrap_or(authority);
        if after_brackets.contains(':') {
            return authority.to_owned();
        }
        format!("{authority}:{}", if scheme == "http" { 80 } else { 443 })
    }
}

fn common(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.len() > MAX_LENGTH {
        return Err("it is longer than 512 bytes");
    }
    if text.chars().any(char::is_control) {
        return Err("it has a control character");
    }
    Ok(())
}

/// Nothing that begins otherwise can be taken for an option.
fn starts_with_name(text: &str) -> Result<(), &'static str> {
    if text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric()) {
        Ok(())
    } else {
        Err("it begins with neither a letter nor a digit")
    }
}

fn no_space(text: &str) -> Result<(), &'static str> {
    if text.contains(char::is_whitespace) {
        Err("it has a space")
    } else {
        Ok(())
    }
}

/// The requirements of a list with commas, in which versions and extras have commas of their own:
/// `pandas>=2,<3,httpx[http2,cli]` is two.
pub fn split_requirements(list: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut depth = 0_usize;
    let mut current = String::new();
    for character in list.chars() {
        match character {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if character == ',' && depth == 0 {
            parts.push(std::mem::take(&mut current));
        } else {
            current.push(character);
        }
    }
    parts.push(current);
    let mut requirements: Vec<String> = Vec::new();
    for part in parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()) {
        match requirements.last_mut() {
            Some(last) if part.starts_with(['<', '>', '=', '!', '~']) => {
                last.push(',');
                last.push_str(part);
            }
            _ => requirements.push(part.to_owned()),
        }
    }
    requirements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_of_versions_and_extras_do_not_divide() {
        for (list, expected) in [
            ("numpy,pandas", vec!["numpy", "pandas"]),
            (
                "pandas>=2,<3, httpx[http2,cli]",
                vec!["pandas>=2,<3", "httpx[http2,cli]"],
            ),
            ("a!=1,~=2,,b", vec!["a!=1,~=2", "b"]),
            ("", vec![]),
        ] {
            assert_eq!(split_requirements(list), expected, "{list}");
        }
    }

    #[test]
    fn nothing_is_an_option_of_a_package_manager() {
        for bad in ["", "-r", "--index-url=x", " -e", "a\nb", "/etc/passwd", ".", "@x"] {
            assert!(bad.parse::<PipRequirement>().is_err(), "{bad:?}");
            assert!(bad.parse::<AptPackage>().is_err(), "{bad:?}");
        }
        for bad in ["-g", "@-g", "a b", "../x", "", "git+ssh://\u{7}"] {
            assert!(bad.parse::<NpmPackage>().is_err(), "{bad:?}");
        }
        for bad in ["bash-", "bash+", "a b", "a;b", "a$(b)"] {
            assert!(bad.parse::<AptPackage>().is_err(), "{bad:?}");
        }
        for good in [
            "numpy",
            "pandas>=2,<3; python_version > '3.8'",
            "x @ https://h/x.whl",
            "a[b]==1",
        ] {
            assert!(good.parse::<PipRequirement>().is_ok(), "{good:?}");
        }
        for good in ["r-base", "libc6:amd64=2.36-9", "g++-12"] {
            assert!(good.parse::<AptPackage>().is_ok(), "{good:?}");
        }
        for good in ["typescript", "@types/node@20", "ijavascript"] {
            assert!(good.parse::<NpmPackage>().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn an_index_names_where_it_is_and_nobody() {
        for (text, expected) in [
            ("https://pypi.org/simple", "pypi.org:443"),
            ("http://index.test:8080/simple/", "index.test:8080"),
            ("http://[::1]/simple", "[::1]:80"),
            ("http://[::1]:81", "[::1]:81"),
        ] {
            assert_eq!(text.parse::<PipIndex>().unwrap().host_and_port(), expected);
        }
        for bad in [
            "pypi.org",
            "ftp://x",
            "https://",
            "https://user:pw@index.test/simple",
            "https:///x",
        ] {
            assert!(bad.parse::<PipIndex>().is_err(), "{bad:?}");
        }
    }
}
