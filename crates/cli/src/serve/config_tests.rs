//! Tests of the configuration file.

use std::fmt::Write as _;

use super::keys::KEYS;
use super::*;

fn parse(text: &str) -> Result<Tables, Failure> {
    Written::parse(Path::new("serve.toml"), text.to_owned()).map(|(_, tables)| tables)
}

/// What is told of a file that is refused.
fn refused(text: &str) -> String {
    let told = Written::parse(Path::new("serve.toml"), text.to_owned()).and_then(|(written, tables)| {
        let server = server(&ServeArgs::default(), &tables.server).map(drop);
        let daemon = server.and_then(|()| daemon(&tables, None).map(drop));
        daemon.map_err(|wrong| written.wrong(&wrong))
    });
    told.unwrap_err().into_words().0
}

/// The table of keys in the reference.
fn reference() -> String {
    let mut text = String::new();
    let mut last = None;
    for (table, key, default, doc) in KEYS {
        if last != Some(table) {
            let title = if table.is_empty() {
                "At the top".to_owned()
            } else {
                format!("`[{table}]`")
            };
            let separator = if last.is_some() { "\n" } else { "" };
            write!(
                text,
                "{separator}### {title}\n\n| key | default | meaning |\n|---|---|---|\n"
            )
            .unwrap();
            last = Some(table);
        }
        writeln!(text, "| `{key}` | {default} | {} |", doc.trim()).unwrap();
    }
    text
}

#[test]
fn every_key_is_in_the_reference() {
    const BEGIN: &str = "<!-- keys: made by crates/cli/src/serve/config_tests.rs -->\n";
    const END: &str = "<!-- end of keys -->";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serve.md");
    let committed = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = committed.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let text = format!("{before}{BEGIN}\n{}\n{END}{after}", reference());
    if std::env::var_os("OFFLEASH_UPDATE_DOCS").is_some() {
        return std::fs::write(&path, text).unwrap();
    }
    assert!(
        text == committed,
        "docs/serve.md is not what the program says; write it anew with OFFLEASH_UPDATE_DOCS=1"
    );
}

#[test]
fn sleep_and_checkpoints_are_set_for_all_sandboxes() {
    let keys = [
        "idle_seconds = 600",
        "idle_mode = \"full\"",
        "idle_seconds_of = { tool = 0 }",
        "checkpoint_before = [\"rm -rf\"]",
        "ask_before = [\"git push\"]",
        "ask_before_restore = true",
    ];
    let tables = parse(&format!("[lifecycle]\n{}", keys.join("\n"))).unwrap();
    let config = daemon(&tables, None).unwrap().lifecycle;
    assert_eq!(config.idle, Some(Duration::from_secs(600)));
    assert_eq!(config.idle_mode, offleash_daemon::PauseMode::Full);
    assert_eq!(config.idle_of_templates["tool"], Duration::ZERO);
    assert_eq!(config.checkpoint_before, ["rm -rf".parse().unwrap()]);
    assert_eq!(config.ask_before, ["git push".parse().unwrap()]);
    assert!(config.ask_before_restore);
    for wrong in [
        "idle_mode = \"memory\"",
        "checkpoint_before = [\"-rf\"]",
        "checkpoint_keep = 0",
        "ask_before = [\"./push\"]",
    ] {
        let key = wrong.split_once(' ').unwrap().0;
        let told = refused(&format!("[lifecycle]\n{wrong}"));
        assert!(told.contains(key), "{told}");
    }
}

#[test]
fn defaults_are_those_of_the_reference() {
    let daemon = daemon(&Tables::default(), None).unwrap();
    let usual = DaemonConfig::default();
    assert_eq!(format!("{daemon:?}"), format!("{usual:?}"));
    let told = |table: &str, key: &str| {
        let found = KEYS.iter().find(|row| (row.0, row.1) == (table, key)).unwrap();
        found.2.trim_matches('`').parse::<u64>().unwrap()
    };
    let server = ServerConfig::new(Listen::Address(SocketAddr::from(([127, 0, 0, 1], 0))));
    let number = |count: usize| u64::try_from(count).unwrap();
    for (table, key, value) in [
        ("", "max_connections", number(server.max_connections)),
        (
            "",
            "max_connections_per_address",
            number(server.max_connections_per_address),
        ),
        (
            "",
            "max_connections_per_sandbox",
            number(server.max_connections_per_sandbox),
        ),
        ("", "drain_seconds", server.drain.as_secs()),
        ("sandboxes", "default_timeout_seconds", usual.default_timeout.as_secs()),
        ("sandboxes", "max_timeout_seconds", usual.max_timeout.as_secs()),
        ("sandboxes", "max", number(usual.max_sandboxes)),
        ("sandboxes", "max_creating", number(usual.max_creating)),
        ("sandboxes", "create_timeout_seconds", usual.create_timeout.as_secs()),
        ("sandboxes", "sample_seconds", usual.sample_every.as_secs()),
        ("sandboxes", "keep_logs_seconds", usual.keep_logs.as_secs()),
        ("limits", "cpus", usual.default_limits.cpus.into()),
        ("limits", "memory_mib", usual.default_limits.memory_mib),
        ("limits", "disk_mib", usual.default_limits.disk_mib),
        ("limits", "pids", usual.default_limits.pids.into()),
        ("max_limits", "cpus", usual.max_limits.cpus.into()),
        ("max_limits", "memory_mib", usual.max_limits.memory_mib),
        ("max_limits", "disk_mib", usual.max_limits.disk_mib),
        ("max_limits", "pids", usual.max_limits.pids.into()),
        ("admission", "min_memory_mib", usual.admission.min_memory_mib),
        ("admission", "min_pids", usual.admission.min_pids),
        ("admission", "min_disk_mib", usual.admission.min_disk_mib),
        ("pool", "min", number(usual.pool.min)),
        ("pool", "max", number(usual.pool.max)),
        ("pool", "max_creating", number(usual.pool.max_creating)),
        ("pool", "max_age_seconds", usual.pool.max_age.as_secs()),
        ("zygotes", "max", number(usual.zygotes.max)),
        ("zygotes", "idle_seconds", usual.zygotes.idle.as_secs()),
    ] {
        assert_eq!(told(table, key), value, "{table} {key}");
    }
}

#[test]
fn images_are_pulled_for_keys_where_a_list_says_which() {
    let images = |text: &str| daemon(&parse(text).unwrap(), None).map(|config| config.images);
    let python = |tag: &str| {
        format!("python:{tag}")
            .parse::<offleash_images::ImageReference>()
            .unwrap()
    };
    let config = images(
        "[images]\nallow = [\"python:3.*\"]\npull = \"missing\"\nwait_seconds = 3\nregistry_ca = [\"ca.pem\"]\n\
         [images.mirrors]\n\"docker.io\" = \"https://mirror.test\"\n[images.keys.k1]\npull = \"never\"\n[images.keys.k2]\nallow = [\"*\"]",
    )
    .unwrap();
    let allows = |rule: &offleash_daemon::ImageRule, tag| rule.allow.iter().any(|one| one.matches(Some(&python(tag))));
    assert!(allows(&config.rule, "3.12") && !allows(&config.rule, "2.7"));
    assert_eq!(config.rule.pull, offleash_daemon::PullMode::Missing);
    let (first, second) = (&config.keys["k1"], &config.keys["k2"]);
    assert!(!allows(first, "2.7") && allows(second, "2.7"));
    assert_eq!(first.pull, offleash_daemon::PullMode::Never);
    assert_eq!(second.pull, offleash_daemon::PullMode::Missing);
    assert_eq!(config.wait, Duration::from_secs(3));
    assert_eq!(config.registries.mirrors[0].registry, "docker.io");
    // Whoever pulls is in another directory.
    assert!(config.registries.authorities[0].is_absolute());
    for (text, said) in [
        (
            "[images]\npull = \"missing\"",
            "images.pull: images are pulled for keys, and no list says which",
        ),
        (
            "[images.keys.k]\npull = \"missing\"",
            "images.keys.k.pull: images are pulled",
        ),
        ("[images]\npull = \"always\"", "images.pull: `always` means nothing"),
        (
            "[images]\nallow = [\"a\", \"Upper\"]",
            "images.allow: `Upper` is no pattern",
        ),
        (
            "[images.mirrors]\n\"docker.io\" = \"mirror\"",
            "images.mirrors.docker.io: it is no address",
        ),
    ] {
        let told = refused(text);
        assert!(told.contains(said), "{text}: {told}");
    }
}

#[test]
fn keys_find_their_place() {
    let tables = parse("listen = \"127.0.0.1:1\"\nlog = \"requests\"\n[limits]\ncpus = 3\n[pool]\nmax = 0\n[sandboxes]\nlevel = \"process\"").unwrap();
    assert_eq!(tables.server.log, Some(LogArg::Requests));
    let daemon = daemon(&tables, None).unwrap();
    assert_eq!((daemon.default_limits.cpus, daemon.pool.max), (3, 0));
    assert_eq!(daemon.level, Some(offleash_core::level::Level::Process));
}

#[test]
fn templates_have_bounds_of_their_own_in_the_pool() {
    let text = "[pool]\nmax = 9\nmax_total = 12\n[pool.templates.code-interpreter-v1]\nmin = 3\n[pool.templates.base]\nmax = 1";
    let pool = daemon(&parse(text).unwrap(), None).unwrap().pool;
    assert_eq!((pool.max, pool.max_total(), pool.least_total()), (9, 12, 4));
    assert_eq!(pool.templates["code-interpreter"].min, Some(3));
    let usual = DaemonConfig::default().pool;
    assert_eq!((usual.max_total(), usual.least_total()), (usual.max, usual.min));
}

#[test]
fn what_is_not_known_is_refused() {
    for text in [
        "lisen = \"127.0.0.1:1\"",
        "listen = \"nowhere\"",
        "[sandboxes]\nmaximum = 1",
        "[limits]\ncpus = -1",
        "[limits]\ncpus = \"many\"",
        "limits = 3",
        "[unknown]\na = 1",
        "[pool.templates.a]\nmost = 1",
        "[pool]\ntemplates = 3",
        "a = ",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
    for text in [
        "[sandboxes]\nlevel = \"best\"",
        "[sandboxes]\nhypervisor = \"/no/such/qemu\"",
        "[sandboxes]\nruntime = \"/no/such/runsc\"",
        "[sandboxes]\nlevel = \"process-landlock\"",
        "[sandboxes]\nmin_level = \"best\"",
        "[sandboxes]\ndegrade = \"maybe\"",
        "[limits]\ncpus = 33",
        "[limits]\ncpus = 0",
        "[limits]\nmemory_mib = 1",
        "[limits]\npids = 4",
        "[pool]\nmin = 50\nmax = 2",
        "[pool]\nmin = 33",
        "[pool.templates.a]\nmin = 33",
        "[pool.templates.\"A b\"]\nmin = 1",
        "[pool.templates.a]\nimports = [\"os; x\"]",
        "[pool.templates.a]\nmin = 2\nmax = 1",
        "[pool]\nmax_total = 3\n[pool.templates.a]\nmin = 2",
    ] {
        assert!(daemon(&parse(text).unwrap(), None).is_err(), "{text}");
    }
}

#[test]
fn domains_and_origins_are_checked() {
    for domain in ["box.test", "localhost:3000", "a-b.c"] {
        assert!(check_domain(domain, "domain").is_ok(), "{domain}");
    }
    for domain in ["", ".", "a..b", "http://a", "a b", "a:0", "a:x", "é.test"] {
        assert!(check_domain(domain, "domain").is_err(), "{domain}");
    }
    assert!(is_origin("https://app.example") && is_origin("http://localhost:8080"));
    for origin in ["", "*", "null", "app.example", "https://", "https://a/"] {
        assert!(!is_origin(origin), "{origin}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_file_its_place_and_its_key() {
    for (text, told) in [
        ("lisen = 3", "serve.toml:1:1: lisen: unknown field `lisen`"),
        (
            "domain = \"a.b\"\nlisten = \"nowhere\"",
            "serve.toml:2:10: listen: it is no address",
        ),
        ("domain = \"a.b\"\ndomain = \"c\"", "serve.toml:2:1: duplicate key"),
        ("log = \"all\"", "serve.toml:1:7: log: unknown variant `all`"),
        (
            "[sandboxes]\nmax = 2\nmaximum = 1",
            "serve.toml:3:1: sandboxes.maximum: unknown field `maximum`",
        ),
        (
            "[limits]\n\n  cpus = \"many\"",
            "serve.toml:3:10: limits.cpus: invalid type",
        ),
        ("[limits]\npids = 4", "serve.toml:2:1: limits.pids: it is 4"),
        ("[max_limits]\ncpus = 1", "serve.toml:1:1: limits.cpus: it is 2"),
        ("limits = 3", "serve.toml:1:10: limits: invalid type"),
        (
            "[snapshot]\nmax = 1",
            "serve.toml:1:2: snapshot: unknown field `snapshot`, expected one of the tables `[sandboxes]`, `[limits]`",
        ),
        (
            "[pool.templates.a]\nmost = 1",
            "serve.toml:2:1: pool.templates.a.most: unknown field",
        ),
        ("[pool]\nmax = 1\nmin = 2", "serve.toml:3:1: pool.min: it is 2"),
        (
            "[pool.templates.a]\nimports = [\"os\",\n  \"os; x\"]",
            "serve.toml:3:3: pool.templates.a.imports: ",
        ),
        (
            "[pool.templates.\"A b\"]\nmin = 1",
            "serve.toml:1:17: pool.templates.A b: ",
        ),
        (
            "[templates]\nallow = [\"pypi.org\", \"*\"]",
            "serve.toml:2:22: templates.allow: ",
        ),
        ("[templates]\npip = [\"-r x\"]", "serve.toml:2:8: templates.pip: "),
        (
            "[templates]\nbuild_env = [\"A=1\", \"=2\"]",
            "serve.toml:2:21: templates.build_env: ",
        ),
        (
            "[sandboxes]\nlevel = \"best\"",
            "serve.toml:2:1: sandboxes.level: `best` is not a level",
        ),
        (
            "[sandboxes]\nlevel = \"process-landlock\"",
            "serve.toml:2:1: sandboxes.level: it is `process-landlock`, and sandboxes of the server are of level `simulated`, `process`, `container` or `microvm`",
        ),
        (
            "[sandboxes]\ndegrade = \"maybe\"",
            "serve.toml:2:1: sandboxes.degrade: `maybe` means nothing",
        ),
        (
            "\ntls_key = \"a\"",
            "serve.toml:2:1: tls_key: `tls_cert` and `tls_key` go together",
        ),
        ("domain = \"a b\"", "serve.toml:1:1: domain: `a b` is no domain"),
        (
            "allow_origins = [\"https://a.b\", \"null\"]",
            "serve.toml:1:33: allow_origins: `null` is no origin",
        ),
    ] {
        let found = refused(text);
        assert!(found.starts_with(told), "{text:?}\n told: {found}\nwants: {told}");
    }
    // Where the text is no TOML there is no key to name.
    assert!(
        refused("a = 1\nb = [").starts_with("serve.toml:2:"),
        "{}",
        refused("a = 1\nb = [")
    );
}
