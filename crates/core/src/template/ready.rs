//! Recipes that are there without being written.

use std::str::FromStr;

use super::Recipe;

/// What pages are shown with: Chromium, and characters that most of them have.
const BROWSER_APT: [&str; 4] = ["chromium", "fonts-liberation", "fonts-wqy-zenhei", "fonts-symbola"];

/// A screen that nobody sits at, XFCE on it, and what shows and drives it: all that E2B's SDKs for desktops call.
const DESKTOP_APT: [&str; 18] = [
    "xvfb",
    "xfce4-session",
    "xfwm4",
    "xfdesktop4",
    "xfce4-panel",
    "xfce4-terminal",
    "dbus-x11",
    "x11-utils",
    "x11-xserver-utils",
    "x11vnc",
    "novnc",
    "websockify",
    "net-tools",
    "procps",
    "xdotool",
    "scrot",
    "xdg-utils",
    "libgtk-3-bin",
];

/// Where those SDKs look for noVNC.
const DESKTOP_RUN: &str = "mkdir -p /opt && ln -sfn /usr/share/novnc /opt/noVNC";

/// A recipe that is there without being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadyRecipe {
    /// Chromium, for `offleash browser`.
    Browser,
    /// A screen without a person.
    Desktop,
    /// What code in contexts imports.
    CodeInterpreter,
}

/// No such recipe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no ready recipe `{}`: there are {}", .0.escape_debug(), ReadyRecipe::WORDS.join(", "))]
pub struct UnknownRecipe(String);

impl ReadyRecipe {
    /// What they are called.
    pub const WORDS: [&str; 3] = ["browser", "desktop", "code-interpreter"];

    /// What it installs.
    pub fn recipe(self) -> Recipe {
        let of_apt = |names: &[&str]| Recipe {
            apt: names.iter().filter_map(|name| name.parse().ok()).collect(),
            ..Recipe::default()
        };
        match self {
            Self::Browser => of_apt(&BROWSER_APT),
            Self::Desktop => Recipe {
                run: vec![DESKTOP_RUN.to_owned()],
                ..of_apt(&DESKTOP_APT)
            },
            Self::CodeInterpreter => Recipe::code_interpreter(),
        }
    }
}

impl FromStr for ReadyRecipe {
    type Err = UnknownRecipe;

    fn from_str(text: &str) -> Result<Self, UnknownRecipe> {
        match text {
            "browser" => Ok(Self::Browser),
            "desktop" => Ok(Self::Desktop),
            "code-interpreter" => Ok(Self::CodeInterpreter),
            _ => Err(UnknownRecipe(text.to_owned())),
        }
    }
}

impl Recipe {
    /// This one, over what is ready: lists are put together, and what this one says alone wins.
    #[must_use]
    pub fn over(self, ready: Self) -> Self {
        fn both<T>(first: Vec<T>, then: Vec<T>) -> Vec<T> {
            first.into_iter().chain(then).collect()
        }
        Self {
            apt: both(ready.apt, self.apt),
            pip: both(ready.pip, self.pip),
            npm: both(ready.npm, self.npm),
            run: both(ready.run, self.run),
            env: ready.env.into_iter().chain(self.env).collect(),
            index_url: self.index_url.or(ready.index_url),
            allow: both(ready.allow, self.allow),
            optional: both(ready.optional, self.optional),
            imports: self.imports.or(ready.imports),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_a_recipe_with_something_in_it() {
        for word in ReadyRecipe::WORDS {
            assert!(!word.parse::<ReadyRecipe>().unwrap().recipe().is_empty(), "{word}");
        }
        assert_eq!(ReadyRecipe::Browser.recipe().apt.len(), BROWSER_APT.len());
        assert_eq!(ReadyRecipe::Desktop.recipe().apt.len(), DESKTOP_APT.len());
        assert!("Browser".parse::<ReadyRecipe>().is_err());
    }

    #[test]
    fn flags_add_to_what_is_ready_and_win() {
        let own = Recipe {
            apt: vec!["git".parse().unwrap()],
            imports: Some(Vec::new()),
            ..Recipe::default()
        };
        let both = own.over(ReadyRecipe::Browser.recipe());
        let names: Vec<&str> = both.apt.iter().map(|name| name.as_str()).collect();
        assert_eq!((names[0], names[names.len() - 1]), ("chromium", "git"));
        assert_eq!(both.imports, Some(Vec::new()));
    }
}
