use std::fs;

use super::*;

/// A machine with these files and variables, whose user's home is `/home/me`.
pub(in crate::recipes) fn machine(
    files: &[(&str, &str)],
    variables: &[(&str, &str)],
) -> (tempfile::TempDir, IndexConfiguration) {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let machine = IndexConfiguration {
        root: root.path().to_owned(),
        home: Some("/home/me".into()),
        variables: variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
    };
    (root, machine)
}

fn urls(indexes: &[PackageIndex]) -> Vec<&str> {
    indexes.iter().map(|index| index.url.as_str()).collect()
}

#[test]
fn an_address_is_taken_apart_and_loses_its_credentials() {
    for (text, url, rule, header) in [
        ("https://a.test/simple", "https://a.test/simple", "a.test:443", None),
        ("HTTP://a.test:81", "http://a.test:81", "a.test:81", None),
        ("http://[::1]:81/x", "http://[::1]:81/x", "[::1]:81", None),
        (
            "https://u:p%40q@a.test/x",
            "https://a.test/x",
            "a.test:443",
            Some("Basic dTpwQHE="),
        ),
        (
            "http://token@a.test/x",
            "http://a.test/x",
            "a.test:80/http",
            Some("Basic dG9rZW46"),
        ),
        (
            "https://u@v:p@a.test?x",
            "https://a.test?x",
            "a.test:443",
            Some("Basic dUB2OnA="),
        ),
    ] {
        let index = PackageIndex::parse(text, "x").unwrap();
        assert_eq!((index.url.as_str(), index.rule().as_str()), (url, rule));
        assert_eq!(index.header().as_ref().and_then(HeaderRule::value), header, "{text}");
    }
    for text in [
        "",
        "/srv/wheels",
        "file:///srv",
        "https://",
        "https://a.test:x/",
        "https://a b/",
        "ftp://a.test",
    ] {
        assert_eq!(PackageIndex::parse(text, "x"), None, "{text}");
    }
    let shown = format!(
        "{:?}",
        PackageIndex::parse("https://u:confidential@a.test/", "x")
            .unwrap()
            .header()
    );
    assert!(!shown.contains("confidential") && !shown.contains("dTpj"), "{shown}");
}

#[test]
fn later_files_of_pip_win_and_variables_over_all() {
    let files = [
        ("/etc/xdg/pip/pip.conf", "[global]\nindex-url = https://xdg.test/\n"),
        (
            "/etc/pip.conf",
            "[global]\nindex_url: https://global.test/simple\ntrusted-host = a.test\n  b.test\n",
        ),
        (
            "/home/me/.config/pip/pip.conf",
            "# x\n[global]\nextra-index-url =\n    https://one.test/\n    https://u:p@two.test/\n[list]\nindex-url = https://no.test/\n",
        ),
    ];
    let (_root, known) = machine(&files, &[]);
    let pip = known.pip();
    assert_eq!(pip.index.as_ref().unwrap().url, "https://global.test/simple");
    assert_eq!(pip.index.unwrap().said_by, "/etc/pip.conf");
    assert_eq!(urls(&pip.extra), ["https://one.test/", "https://two.test/"]);
    assert_eq!(pip.trusted_hosts, ["a.test", "b.test"]);

    let more = [
        &files[..],
        &[("/home/me/.pip/pip.conf", "[install]\nindex-url=https://install.test\n")],
    ]
    .concat();
    let (_root, known) = machine(&more, &[]);
    assert_eq!(known.pip().index.unwrap().url, "https://install.test");
    let (_root, known) = machine(
        &more,
        &[("PIP_INDEX_URL", "https://variable.test/"), ("PIP_EXTRA_INDEX_URL", "")],
    );
    let pip = known.pip();
    assert_eq!(
        (pip.index.as_ref().unwrap().url.as_str(), pip.extra.len()),
        ("https://variable.test/", 2)
    );
    assert_eq!(pip.index.unwrap().said_by, "PIP_INDEX_URL");
    let (_root, off) = machine(&more, &[("PIP_CONFIG_FILE", "/dev/null")]);
    assert_eq!(off.pip(), PipConfig::default());
}

#[test]
fn npm_has_registries_of_scopes_and_credentials_by_place() {
    let text = "registry=https://npm.test/repo/\n@me:registry = \"https://scope.test:8443/\"\n//npm.test/repo/:_authToken=${TOKEN}\n\
                //scope.test:8443/:username=u\n//scope.test:8443/:_password=cHc=\n//npm.test/repository/:_auth=eA==\n;x=y\n";
    let (_root, known) = machine(&[("/home/me/.npmrc", text)], &[("TOKEN", "secret-1")]);
    let npm = known.npm();
    let registry = npm.registry.unwrap();
    assert_eq!(registry.url, "https://npm.test/repo/");
    assert_eq!(registry.header().unwrap().value(), Some("Bearer secret-1"));
    let (key, scope) = &npm.scopes[0];
    assert_eq!(
        (key.as_str(), scope.url.as_str()),
        ("@me:registry", "https://scope.test:8443/")
    );
    assert_eq!(scope.header().unwrap().value(), Some("Basic dTpwdw=="));
    let variables = [("npm_config_registry", "http://other.test:4873/"), ("TOKEN", "x")];
    let (_root, known) = machine(&[("/home/me/.npmrc", text)], &variables);
    let registry = known.npm().registry.unwrap();
    assert_eq!((registry.rule().as_str(), registry.header()), ("other.test:4873", None));
    let (_root, known) = machine(
        &[("/elsewhere", "registry=https://e.test/")],
        &[("NPM_CONFIG_USERCONFIG", "/elsewhere")],
    );
    assert_eq!(known.npm().registry.unwrap().url, "https://e.test/");
}

#[test]
fn the_distribution_s_packages_come_from_where_its_files_say() {
    let old = "# http://no.test x\ndeb [signed-by=/x] http://deb.test/debian bookworm main\ndeb cdrom:[x]/ y z\n";
    let new = "Types: deb\nURIs: https://sec.test:8443/debian http://u@deb.test/x\nSuites: bookworm\n\n\
               Types: deb\nURIs: http://off.test/\nEnabled: no\n";
    let (_root, known) = machine(
        &[
            ("/etc/apt/sources.list", old),
            ("/etc/apt/sources.list.d/debian.sources", new),
            (
                "/etc/apt/sources.list.d/aside.sources.disabled",
                "URIs: http://aside.test/\n",
            ),
            (
                "/etc/apt/sources.list.d/saved.list.save",
                "deb http://saved.test/ x main\n",
            ),
        ],
        &[],
    );
    let rules: Vec<String> = known.apt().iter().map(PackageIndex::rule).collect();
    assert_eq!(rules, ["deb.test:80", "sec.test:8443", "deb.test:80/http"]);
}

#[test]
fn what_cannot_be_read_says_nothing_and_is_not_waited_for() {
    let (root, mut known) = machine(
        &[
            ("/etc/pip.conf/x", ""),
            ("/home/me/.npmrc", "registry=${X\n@s:registry=/srv\n"),
        ],
        &[],
    );
    std::os::unix::fs::symlink("/dev/zero", root.path().join("etc/npmrc")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.path().join("usr-fifo"), rustix::fs::Mode::RUSR).unwrap();
    fs::create_dir_all(root.path().join("home/me/.pip")).unwrap();
    fs::rename(root.path().join("usr-fifo"), root.path().join("home/me/.pip/pip.conf")).unwrap();
    fs::create_dir_all(root.path().join("etc/xdg/pip")).unwrap();
    fs::write(root.path().join("etc/xdg/pip/pip.conf"), b"[global]\nindex-url=\xff\n").unwrap();
    assert_eq!(
        (known.pip(), known.npm(), known.apt()),
        (PipConfig::default(), NpmConfig::default(), Vec::new())
    );
    known.home = None;
    assert_eq!(known.pip(), PipConfig::default());
}
