use std::path::{Path, PathBuf};

use super::*;
use crate::tests::host_with_home;

fn make(root: &Path, files: &[&str]) {
    for file in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
}

fn add_to_empty(names: &[&str], host: &PlanningHost) -> Result<(EntryTree, ToolchainAdditions), PlanError> {
    let mut tree = EntryTree::default();
    let names: Vec<OsString> = names.iter().map(OsString::from).collect();
    let added = add(&names, host, None, &mut tree)?;
    Ok((tree, added))
}

#[test]
fn each_is_found_where_it_usually_is() {
    for (name, files, program) in [
        (
            "pyenv",
            &["versions/3.9.1/bin/python3", "versions/3.11.7/bin/python3", "bin/pyenv"][..],
            "versions/3.11.7/bin",
        ),
        (
            "nvm",
            &["versions/node/v9.0.0/bin/node", "versions/node/v20.1.0/bin/node"],
            "versions/node/v20.1.0/bin",
        ),
        ("cargo", &["bin/cargo", "credentials.toml"], "bin"),
        ("asdf", &["shims/node"], "shims"),
        (
            "volta",
            &["tools/image/node/18.0.0/bin/node"],
            "tools/image/node/18.0.0/bin",
        ),
        ("deno", &["bin/deno"], "bin"),
        ("bun", &["bin/bun"], "bin"),
    ] {
        let (directory, host) = host_with_home();
        let root = host.home.clone().unwrap().join(format!(".{name}"));
        make(&root, files);
        if name == "pyenv" {
            fs::write(root.join("version"), "3.11\n").unwrap();
        }
        let (tree, added) = add_to_empty(&[name], &host).unwrap();
        assert_eq!(added.path.first(), Some(&root.join(program)), "{name}");
        assert!(tree.view().resolve(&root.join(files[0])).is_some(), "{name}");
        drop(directory);
    }
}

#[test]
fn credentials_are_hidden() {
    let (_directory, host) = host_with_home();
    let root = host.home.clone().unwrap().join(".cargo");
    make(&root, &["bin/cargo", "credentials.toml"]);
    let (tree, _) = add_to_empty(&["cargo"], &host).unwrap();
    let hidden = tree.view().entry_at(&root.join("credentials.toml")).unwrap();
    assert_eq!(hidden.node, PlanNode::Hidden { directory: false });
}

#[test]
fn a_link_in_the_home_directory_is_kept() {
    let (directory, host) = host_with_home();
    let real = fs::canonicalize(directory.path()).unwrap().join("elsewhere");
    make(&real, &["bin/deno"]);
    let known_as = host.home.clone().unwrap().join(".deno");
    std::os::unix::fs::symlink(&real, &known_as).unwrap();
    let (tree, added) = add_to_empty(&["deno"], &host).unwrap();
    assert_eq!(added.path, [known_as.join("bin")]);
    assert_eq!(
        tree.view()
            .resolve(&known_as.join("bin/deno"))
            .map(|found| found.inside),
        Some(real.join("bin/deno"))
    );
}

#[test]
fn what_is_missing_or_unknown_is_an_error() {
    let (_directory, host) = host_with_home();
    for name in TOOLCHAIN_NAMES {
        let expected_elsewhere = name == "conda" && Path::new("/opt/conda").is_dir();
        let missing = matches!(add_to_empty(&[name], &host), Err(PlanError::ToolchainMissing { .. }));
        assert!(missing || expected_elsewhere, "{name}");
    }
    assert!(matches!(
        add_to_empty(&["fortran"], &host),
        Err(PlanError::UnknownToolchain { .. })
    ));
}

#[test]
fn the_home_directory_is_no_toolchain() {
    let (_directory, host) = host_with_home();
    let home = host.home.clone().unwrap();
    for path in [
        home.clone(),
        home.parent().unwrap().to_path_buf(),
        PathBuf::from("/"),
        PathBuf::from("/usr"),
    ] {
        let result = add_to_empty(&[path.to_str().unwrap().trim_end_matches('/'), "/"][..1], &host);
        assert!(result.is_err(), "{path:?}");
    }
    assert!(matches!(add_to_empty(&["~/"], &host), Err(PlanError::Reserved { .. })));
}
