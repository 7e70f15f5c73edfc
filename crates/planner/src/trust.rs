//! Where programs inside look for certificate authorities, with that of the sandbox's own among them.
//!
//! Only where the gateway opens connections: the sandbox's programs then meet certificates that this authority made.
//! What a store held on the host, it holds inside, too.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use offleash_core::plan::{PlanEntry, PlanNode};
use serde_json::json;

use super::etc;
use super::system::system;

/// The certificate authorities of a sandbox in every form in which they are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustStores {
    /// All in PEM.
    pub bundle: String,
    /// The sandbox's own in PEM.
    pub own: String,
    /// All as a key store of Java.
    pub java: Vec<u8>,
    /// The name under which OpenSSL looks for the sandbox's own in a directory.
    pub hashed_name: String,
}

const DIRECTORY: &str = "/etc/ssl/certs";
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
const OWN: &str = "/etc/ssl/certs/offleash.pem";
const JAVA: &str = "/etc/ssl/certs/java/cacerts";

/// Where Chromium and Chrome look for policies, which name authorities to be trusted.
const POLICIES: [&str; 2] = [
    "/etc/chromium/policies/managed/offleash.json",
    "/etc/opt/chrome/policies/managed/offleash.json",
];

/// Other names that distributions have for the bundle (Fedora, openSUSE, Alpine) and for the key store of Java.
const ELSEWHERE: [(&str, &str); 7] = [
    ("/etc/pki/tls/certs/ca-bundle.crt", BUNDLE),
    ("/etc/pki/tls/certs/ca-certificates.crt", BUNDLE),
    ("/etc/pki/tls/cert.pem", BUNDLE),
    ("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", BUNDLE),
    ("/etc/pki/ca-trust/extracted/java/cacerts", JAVA),
    ("/etc/ssl/ca-bundle.pem", BUNDLE),
    ("/etc/ssl/cert.pem", BUNDLE),
];

/// Variables that name a file with all authorities.
const BUNDLE_VARIABLES: [&str; 11] = [
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "NIX_SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];
/// Variables that name a file with authorities besides those that a program knows.
const OWN_VARIABLES: [&str; 1] = ["NODE_EXTRA_CA_CERTS"];

/// Parts of `/etc` that [`entries`] stand in for.
pub(super) fn replaces(name: &str) -> bool {
    matches!(name, "ssl/certs" | "pki/ca-trust/extracted" | "pki/tls/certs")
}

/// Variables by which programs find the authorities.
pub fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    let all = BUNDLE_VARIABLES.iter().map(|name| (name, BUNDLE));
    let own = OWN_VARIABLES.iter().map(|name| (name, OWN));
    all.chain(own).map(|(name, file)| (name.into(), file.into()))
}

/// The stores, and what else the host has beside them.
pub(super) fn entries(stores: &TrustStores) -> Vec<PlanEntry> {
    let mut entries = own_entries(stores);
    let taken: Vec<PathBuf> = entries.iter().map(|entry| entry.target.clone()).collect();
    let is_taken = |path: &Path| taken.iter().any(|taken| taken.starts_with(path));
    entries.extend(
        from_host(Path::new(DIRECTORY))
            .into_iter()
            .filter(|entry| !is_taken(&entry.target)),
    );
    entries
}

/// The stores.
pub(super) fn own_entries(stores: &TrustStores) -> Vec<PlanEntry> {
    let file = |path: &Path, contents: &[u8]| {
        system(
            path,
            PlanNode::File {
                contents: contents.to_vec(),
            },
        )
    };
    let link = |path: &Path, to: &str| system(path, PlanNode::Symlink { to: to.into() });
    let directory = Path::new(DIRECTORY);
    let mut entries = vec![
        file(Path::new(BUNDLE), stores.bundle.as_bytes()),
        file(Path::new(OWN), stores.own.as_bytes()),
        file(Path::new(JAVA), &stores.java),
        link(&directory.join(&stores.hashed_name), OWN),
    ];
    let policy = json!({ "CACertificates": [base64_of(&stores.own)] }).to_string();
    entries.extend(POLICIES.map(|path| file(Path::new(path), policy.as_bytes())));
    let elsewhere = ELSEWHERE.iter().filter(|(path, _)| fs::symlink_metadata(path).is_ok());
    entries.extend(elsewhere.map(|(path, to)| link(Path::new(path), to)));
    entries
}

/// Where those are: what a sandbox has of them is none of what is written in it.
pub fn own_paths() -> Vec<PathBuf> {
    let fixed = [BUNDLE, OWN, JAVA].into_iter().chain(POLICIES);
    fixed
        .chain(ELSEWHERE.iter().map(|(path, _)| *path))
        .map(PathBuf::from)
        .collect()
}

/// The same as files alone, by path: what is put into a sandbox that is there already.
pub fn files(stores: &TrustStores) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = own_entries(stores);
    let contents = |path: &Path| {
        let mut found = entries.iter().filter(|entry| entry.target == path);
        match &found.next()?.node {
            PlanNode::File { contents } => Some(contents.clone()),
            _ => None,
        }
    };
    let file = |entry: &PlanEntry| match &entry.node {
        PlanNode::Symlink { to } => Some((entry.target.clone(), contents(to)?)),
        _ => Some((entry.target.clone(), contents(&entry.target)?)),
    };
    entries.iter().filter_map(file).collect()
}

/// The body of a certificate in PEM.
fn base64_of(certificate: &str) -> String {
    certificate.lines().filter(|line| !line.starts_with("-----")).collect()
}

/// What the host has in its directory of certificates: links to files of a package, mostly, and to each other.
fn from_host(directory: &Path) -> Vec<PlanEntry> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<OsString> = found.map(|found| found.file_name()).collect();
    names.sort();
    names
        .iter()
        .filter_map(|name| one_from_host(&directory.join(name)))
        .collect()
}

fn one_from_host(path: &Path) -> Option<PlanEntry> {
    match fs::read_link(path) {
        // A neighbour, or a place that the link names whoever follows it.
        Ok(to) if to.components().count() == 1 || to.starts_with("/usr") => {
            Some(system(path, PlanNode::Symlink { to }))
        }
        Ok(_) => {
            let to = fs::canonicalize(path).ok()?;
            if to.starts_with("/usr") {
                return Some(system(path, PlanNode::Symlink { to }));
            }
            etc::shown(path, &to, &fs::metadata(&to).ok()?, None)
        }
        Err(_) => etc::shown(path, path, &fs::symlink_metadata(path).ok()?, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stores() -> TrustStores {
        TrustStores {
            bundle: "all".to_owned(),
            own: "-----BEGIN CERTIFICATE-----\nAAEC\nAwQ=\n-----END CERTIFICATE-----\n".to_owned(),
            java: b"java".to_vec(),
            hashed_name: "01234567.0".to_owned(),
        }
    }

    #[test]
    fn every_store_has_the_sandbox_s_authority() {
        let entries = entries(&stores());
        let node = |path: &str| {
            let entry = entries.iter().find(|entry| entry.target == Path::new(path));
            entry.unwrap_or_else(|| panic!("{path}")).node.clone()
        };
        let file = |contents: &str| PlanNode::File {
            contents: contents.as_bytes().to_vec(),
        };
        assert_eq!(node("/etc/ssl/certs/ca-certificates.crt"), file("all"));
        assert_eq!(node("/etc/ssl/certs/java/cacerts"), file("java"));
        let to = PathBuf::from("/etc/ssl/certs/offleash.pem");
        assert_eq!(node("/etc/ssl/certs/01234567.0"), PlanNode::Symlink { to });
        assert_eq!(
            node("/etc/chromium/policies/managed/offleash.json"),
            file("{\"CACertificates\":[\"AAECAwQ=\"]}")
        );
    }

    #[test]
    fn what_is_put_into_a_sandbox_later_is_the_same_without_links() {
        let stores = stores();
        let files = files(&stores);
        let of = |path: &str| {
            files
                .iter()
                .find(|(found, _)| found == Path::new(path))
                .map(|(_, contents)| contents)
        };
        assert_eq!(of(BUNDLE).unwrap(), stores.bundle.as_bytes());
        assert_eq!(of("/etc/ssl/certs/01234567.0").unwrap(), stores.own.as_bytes());
        assert_eq!(files.len(), own_entries(&stores).len());
    }

    #[test]
    fn no_target_occurs_twice_and_variables_name_what_is_there() {
        let entries = entries(&stores());
        let mut targets: Vec<&Path> = entries.iter().map(|entry| entry.target.as_path()).collect();
        let count = targets.len();
        targets.sort();
        targets.dedup();
        assert_eq!(targets.len(), count);
        for (name, file) in variables() {
            assert!(targets.contains(&Path::new(&file)), "{name:?}");
        }
    }
}
