//! AppArmor's restriction of user namespaces (Ubuntu 23.10 and later), and the profile that lifts it for one program.
//!
//! With `kernel.apparmor_restrict_unprivileged_userns` an unconfined program may make a user namespace but has no
//! capability in it
//! (<https://documentation.ubuntu.com/security/security-features/privilege-restriction/apparmor/>).

use std::path::Path;

use super::{FeatureRemedy, read_line, shown};

const PROFILE_PATH: &str = "/etc/apparmor.d/offleash";

/// Whether the restriction is switched on.
pub(super) fn restricts_user_namespaces() -> bool {
    read_line("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").is_some_and(|value| value != "0")
}

/// How to let `executable`, and nothing else, make user namespaces.
pub(super) fn mend(executable: &Path) -> FeatureRemedy {
    let Some(profile) = profile(executable) else {
        return FeatureRemedy::new(
            "AppArmor denies user namespaces to programs without a profile, and a profile cannot name a path with \
             quotation marks, control characters or bytes that are not UTF-8: move the program, then ask again",
            &[],
        );
    };
    let explanation = format!(
        "AppArmor denies user namespaces to programs without a profile; this profile allows them to {} and confines \
         nothing else. Whoever can replace that file gets the same right, so install it where only root can write",
        shown(executable)
    );
    let write = format!("sudo tee {PROFILE_PATH} >/dev/null <<'EOF'\n{profile}EOF");
    let load = format!("sudo apparmor_parser --replace {PROFILE_PATH}");
    FeatureRemedy::new(explanation, &[&write, &load])
}

/// A profile for `executable`; `None` if its path cannot be written in one.
fn profile(executable: &Path) -> Option<String> {
    let path = executable
        .to_str()
        .filter(|path| !path.contains(|character: char| character == '"' || character.is_control()))?;
    let path = escape_globs(path);
    Some(format!(
        "abi <abi/4.0>,\n\
         include <tunables/global>\n\
         \n\
         profile offleash \"{path}\" flags=(unconfined) {{\n\
         \x20 userns,\n\
         \n\
         \x20 include if exists <local/offleash>\n\
         }}\n"
    ))
}

/// Characters with a meaning in a profile's paths lose it (apparmor.d(5), "Globbing").
fn escape_globs(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for character in path.chars() {
        if r"\*?[]{}^@".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_names_the_program_and_allows_user_namespaces() {
        let expected = "abi <abi/4.0>,\ninclude <tunables/global>\n\nprofile offleash \"/usr/local/bin/offleash\" \
                        flags=(unconfined) {\n  userns,\n\n  include if exists <local/offleash>\n}\n";
        assert_eq!(profile(Path::new("/usr/local/bin/offleash")).unwrap(), expected);
    }

    #[test]
    fn packages_bring_the_same_profile() {
        let packaged = include_str!("../../../../packaging/apparmor");
        assert_eq!(profile(Path::new("/usr/bin/offleash")).unwrap(), packaged);
    }

    #[test]
    fn a_path_cannot_match_more_programs_than_itself_nor_end_the_profile() {
        let profile = profile(Path::new("/opt/a*b {c}/offleash")).unwrap();
        assert!(profile.contains(r#""/opt/a\*b \{c\}/offleash""#), "{profile}");
        for path in ["/opt/a\" {\n", "/opt/a\nb"] {
            assert_eq!(super::profile(Path::new(path)), None, "{path:?}");
            assert!(mend(Path::new(path)).commands.is_empty());
        }
    }
}
