//! `offleash key`: the keys of a state directory, whether a daemon runs on it or not.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::text::{self, Text};
use offleash_daemon::{ApiKey, BadApiKey, KeyRow, KeyStore, Quota, Scope, Scopes};
use offleash_store::{HostIdentity, StateDirectory};
use rustix::fs::OFlags;
use serde_json::json;

use crate::args::{KeyCommand, KeyCreateArgs, KeyRemoveArgs};
use crate::failure::Failure;
use crate::terminal;

/// How long a server may take to end the sandboxes of a key, and how often it is looked whether it has.
const ENDED_WITHIN: Duration = Duration::from_secs(60);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn key(command: &KeyCommand, state: Option<&Path>) -> Result<ExitCode, Failure> {
    match command {
        KeyCommand::Create(arguments) => create(&KeyStore::open(state)?, arguments)?,
        KeyCommand::Ls(arguments) => {
            if let Some(keys) = existing(state)? {
                list(&keys, arguments.json)?;
            }
        }
        KeyCommand::Rm(arguments) => match existing(state)? {
            Some(keys) => remove(&keys, arguments)?,
            None => {
                let what = format!(
                    "there is no key `{}`: none was ever made here",
                    Text::from(&*arguments.key)
                );
                return Err(Failure::new(what).with_hint("`offleash key create` makes one"));
            }
        },
    }
    Ok(ExitCode::SUCCESS)
}

/// Looking makes no state directory, and refuses one that was named and is not there.
fn existing(state: Option<&Path>) -> Result<Option<KeyStore>, Failure> {
    StateDirectory::find(state, &HostIdentity::of_this_process())?;
    Ok(KeyStore::open_existing(state)?)
}

/// Most bytes of a file with a key: the key, and the end of its line.
const MAX_KEY_FILE: u64 = 1024;

/// Whoever may read a file besides its owner and its group.
const READ_BY_OTHERS: u32 = 0o004;

/// Reads a key from a file, which may end with a line break.
pub(crate) fn read_key(file: &Path) -> Result<ApiKey, Failure> {
    let opened = File::open(file).map_err(|error| unread(file, &error))?;
    read_opened(file, opened)
}

/// The same from a file that not everybody may read, for a process that holds the key as long as it runs.
pub(crate) fn read_private_key(file: &Path) -> Result<ApiKey, Failure> {
    let failed = |error: std::io::Error| unread(file, &error);
    let refused = |told: &str| Failure::new(format!("reading the key in `{}`: {told}", Text::from(file)));
    // Opening a pipe would wait for whoever writes to it.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = File::options();
    let options = options.read(true).custom_flags(flags.bits().cast_signed());
    let opened = options.open(file).map_err(failed)?;
    let is = opened.metadata().map_err(failed)?;
    if !is.is_file() {
        return Err(refused("it is no regular file").with_hint("write the key to a file that only its user may read"));
    }
    if is.mode() & READ_BY_OTHERS != 0 {
        let hint = format!(
            "every user of the machine may read it; `chmod 600 {}` ends that",
            Text::from(file)
        );
        return Err(refused("everybody may read it").with_hint(hint));
    }
    read_opened(file, opened)
}

fn unread(file: &Path, error: &std::io::Error) -> Failure {
    Failure::from_error(error).while_trying(format!("reading the key in `{}`", Text::from(file)))
}

fn read_opened(file: &Path, opened: File) -> Result<ApiKey, Failure> {
    let failed = |error: std::io::Error| unread(file, &error);
    let mut text = String::new();
    opened.take(MAX_KEY_FILE).read_to_string(&mut text).map_err(failed)?;
    text.trim().parse().map_err(|error: BadApiKey| {
        Failure::from_error(&error)
            .while_trying(format!("reading the key in `{}`", Text::from(file)))
            .with_hint("`offleash key create` makes one")
    })
}

/// Prints the key alone to standard output, so that it can be assigned; what is to be known of it, to the person.
fn create(keys: &KeyStore, arguments: &KeyCreateArgs) -> Result<(), Failure> {
    let scopes: Result<Vec<Scope>, _> = arguments.scope.iter().map(|word| word.parse()).collect();
    let scopes = scopes
        .map_err(|error| Failure::from_error(&error).with_hint("`--scope create` makes sandboxes and uses them"))?;
    let scopes = Scopes(scopes);
    let quota = Quota {
        sandboxes: arguments.max_sandboxes,
        cpus: arguments.max_cpus,
        memory_mib: arguments.max_memory,
        disk_mib: arguments.max_disk,
    };
    let (name, grants) = (&arguments.name, &arguments.tool_grant);
    if let Some(file) = &arguments.key_file {
        let given = read_key(file)?;
        let (row, is_new) = keys.take(
            &given,
            name,
            scopes,
            quota,
            Some(grants.as_slice()).filter(|grants| !grants.is_empty()),
        )?;
        let became = if is_new {
            "is valid from now on"
        } else {
            "was valid already"
        };
        terminal::complain(&format!("key {} {became}", row.id));
        return Ok(());
    }
    let (key, row) = match grants.is_empty() {
        true => keys.create(name, scopes, quota)?,
        false => keys.create_with_tools(name, scopes, quota, grants)?,
    };
    terminal::print(format!("{}\n", key.reveal()).as_bytes())?;
    terminal::complain(&format!("key {} was made; it is not shown again", row.id));
    Ok(())
}

/// Prints the id; to the person, what becomes of the key's sandboxes.
fn remove(keys: &KeyStore, arguments: &KeyRemoveArgs) -> Result<(), Failure> {
    let revoked = match arguments.stop_sandboxes {
        true => keys.revoke_with_sandboxes(&arguments.key),
        false => keys.revoke(&arguments.key),
    };
    let row = revoked.map_err(|error| match error.kind() {
        ErrorKind::Invalid => Failure::from(error)
            .with_hint("`offleash key ls` lists them with their ids, with `--json` removed ones, too"),
        _ => error.into(),
    })?;
    terminal::print(format!("{}\n", row.id).as_bytes())?;
    let deadline = Instant::now() + ENDED_WITHIN;
    let (left, is_served) = loop {
        let (left, is_served) = (keys.sandboxes_of(&row.id)?, keys.has_daemon()?);
        let is_awaited = arguments.stop_sandboxes && is_served && left > 0;
        if !is_awaited || Instant::now() >= deadline {
            break (left, is_served);
        }
        std::thread::sleep(LOOKED_AT_EVERY);
    };
    if left == 0 {
        return Ok(());
    }
    let (sandboxes, live) = match left {
        1 => ("1 sandbox".to_owned(), "lives"),
        many => (format!("{many} sandboxes"), "live"),
    };
    match (arguments.stop_sandboxes, is_served) {
        (false, _) => {
            terminal::complain(&format!(
                "{sandboxes} of the key {live} on, with access tokens that stay valid; `offleash key rm --stop-sandboxes {}` \
                 ends them",
                row.id
            ));
            Ok(())
        }
        (true, false) => {
            terminal::complain(&format!(
                "{sandboxes} of the key {live} until a server starts, which ends them: none runs on this state directory"
            ));
            Ok(())
        }
        (true, true) => Err(Failure::new(format!(
            "{sandboxes} of the key still {live}: the server has not ended all of them in {} s, and goes on",
            ENDED_WITHIN.as_secs()
        ))
        .with_hint("`offleash logs ID` says what keeps one")),
    }
}

fn list(keys: &KeyStore, as_json: bool) -> Result<(), Failure> {
    let mut out = Vec::new();
    for row in keys.list()? {
        if as_json {
            out.extend(terminal::json_line(&described(&row))?);
        } else if row.revoked_ms.is_none() {
            out.extend(line(&row).into_bytes());
        }
    }
    terminal::print(&out)
}

fn line(row: &KeyRow) -> String {
    let mut line = format!("{}  {}…  {}", row.id, row.prefix, words(&row.scopes).join(","));
    let quotas = [
        ("sandboxes", row.quota.sandboxes.map(u64::from)),
        ("cpus", row.quota.cpus.map(u64::from)),
        ("memory_mib", row.quota.memory_mib),
        ("disk_mib", row.quota.disk_mib),
    ];
    for (name, quota) in quotas {
        if let Some(quota) = quota {
            // Writing to a string cannot fail.
            let _written = write!(line, "  {name}={quota}");
        }
    }
    for grant in row.tools.iter().flatten() {
        let _written = write!(line, "  tool=({grant})");
    }
    format!("{line}  {}\n", text::one_line(row.name.as_bytes()))
}

fn described(row: &KeyRow) -> serde_json::Value {
    json!({
        "id": row.id,
        "name": row.name,
        "prefix": row.prefix,
        "scopes": words(&row.scopes),
        "quota": row.quota,
        "tools": row.tools,
        "created_ms": row.created_ms,
        "revoked_ms": row.revoked_ms,
    })
}

fn words(scopes: &Scopes) -> Vec<&'static str> {
    scopes.0.iter().map(|scope| scope.as_str()).collect()
}
