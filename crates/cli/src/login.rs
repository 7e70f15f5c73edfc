//! `offleash login` and `logout`.

use std::io::{self, Read as _};
use std::path::Path;
use std::process::ExitCode;

use offleash_api::client::{Client, HostUrl};
use offleash_daemon::{ApiKey, BadApiKey};

use crate::args::{HostArgs, LoginArgs, LogoutArgs};
use crate::failure::Failure;
use crate::logins::Logins;
use crate::server_at::ServerAt;
use crate::terminal;

/// The most that is read of a key.
const MAX_KEY: u64 = 1024;

/// Tries a key and keeps it.
pub(crate) fn login(arguments: &LoginArgs, flags: &HostArgs) -> Result<ExitCode, Failure> {
    let flags = HostArgs {
        host: Some(arguments.url.clone()),
        ca: flags.ca.clone(),
        insecure: flags.insecure,
    };
    let ServerAt::There(server) = ServerAt::of(&flags, None)? else {
        return Err(Failure::new("no server is named"));
    };
    // Refused before a key is asked for.
    server.endpoint(None)?;
    let key = read_key(arguments)?;
    let client = Client::of(server.endpoint(Some(key.clone()))?)?;
    let usage = client.get("/v1/usage")?;
    if !usage.is_object() {
        return Err(Failure::new(format!(
            "what answers at `{}` is no server of offleash",
            server.url
        )));
    }
    Logins::of_this_user()?.keep(&server.url, &key)?;
    terminal::complain(&format!(
        "the key {}… of {} is kept; `offleash --host {} ls` uses it",
        key.prefix(),
        server.url,
        server.url
    ));
    Ok(ExitCode::SUCCESS)
}

/// Forgets keys; they stay valid.
pub(crate) fn logout(arguments: &LogoutArgs) -> Result<ExitCode, Failure> {
    let url: Option<HostUrl> = match &arguments.url {
        Some(given) => Some(given.parse().map_err(|error| Failure::explained(&error))?),
        None => None,
    };
    let forgotten = Logins::of_this_user()?.forget(url.as_ref())?;
    if forgotten.is_empty() {
        return Err(Failure::new(match url {
            Some(url) => format!("no key of `{url}` is kept"),
            None => "no key is kept".to_owned(),
        }));
    }
    let lines: String = forgotten.iter().map(|url| format!("{url}\n")).collect();
    terminal::print(lines.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn read_key(arguments: &LoginArgs) -> Result<ApiKey, Failure> {
    if let Some(path) = arguments.key_file.as_deref().filter(|path| *path != Path::new("-")) {
        return crate::key::read_key(path);
    }
    let input = terminal::input().and_then(|input| {
        let quiet = terminal::without_echo(&input)?;
        if quiet.is_some() {
            terminal::ask("key: ");
        }
        let mut text = String::new();
        let read = match quiet.is_some() {
            // A line of the terminal's; the end of a file is the end of it, too.
            true => io::BufRead::read_line(&mut io::BufReader::new(input.take(MAX_KEY)), &mut text),
            false => input.take(MAX_KEY).read_to_string(&mut text),
        };
        drop(quiet);
        read.map(|_| text)
    });
    let text = input.map_err(|error| Failure::from_error(&error).while_trying("reading the key"))?;
    text.trim().parse().map_err(|error: BadApiKey| {
        Failure::from_error(&error)
            .while_trying("reading the key")
            .with_hint("`offleash key create` makes one, on the server's machine")
    })
}
