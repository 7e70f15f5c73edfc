//! What Deno's words for permissions ask for.

use std::ffi::OsString;

use offleash_core::network::RuleVerdict;
use offleash_core::spec::{MountAccess, MountSpec, SandboxSpec, WorkspaceMode};

use super::{absolute, bad_flag, network_rule, parse, path_pattern};
use crate::args::PermissionArgs;
use crate::failure::Failure;

/// Adds what they grant and deny to what the policy and the other flags say.
pub(super) fn apply_flags(arguments: &PermissionArgs, spec: &mut SandboxSpec) -> Result<(), Failure> {
    for text in named("--allow-read", "PATH", arguments.allow_read.as_deref())? {
        spec.paths.read.push(path_pattern("--allow-read", text)?);
    }
    for text in &arguments.deny_read {
        spec.paths.deny.push(path_pattern("--deny-read", text)?);
    }
    if let Some(texts) = &arguments.allow_write {
        allow_write(texts, spec)?;
    }
    for text in arguments.allow_net.iter().flatten() {
        spec.network
            .policy
            .rules
            .push(network_rule("--allow-net", RuleVerdict::Allow, text)?);
    }
    spec.network.internet |= arguments.allow_net.as_ref().is_some_and(Vec::is_empty);
    for text in &arguments.deny_net {
        spec.network
            .policy
            .rules
            .push(network_rule("--deny-net", RuleVerdict::Deny, text)?);
    }
    for text in arguments.allow_run.iter().flatten() {
        let command = parse("--allow-run", text)?;
        spec.commands.allow.get_or_insert_default().push(command);
    }
    for text in &arguments.deny_run {
        spec.commands.deny.push(parse("--deny-run", text)?);
    }
    for text in named("--allow-env", "NAME", arguments.allow_env.as_deref())? {
        spec.env
            .add(text)
            .map_err(|error| bad_flag("--allow-env", text, &error))?;
    }
    spec.network.asks.about_the_unknown |= arguments.prompt;
    Ok(())
}

/// What a flag names that grants nothing without a name: everything would be the whole machine's.
fn named<'a>(flag: &str, what: &str, texts: Option<&'a [OsString]>) -> Result<&'a [OsString], Failure> {
    match texts {
        Some([]) => Err(Failure::new(format!("`{flag}` does not say what"))
            .with_hint(format!("write `{flag}={what}`: nothing grants all that this user has"))),
        Some(texts) => Ok(texts),
        None => Ok(&[]),
    }
}

fn allow_write(texts: &[OsString], spec: &mut SandboxSpec) -> Result<(), Failure> {
    let workspace = spec.workspace.as_ref().map(|workspace| workspace.path.clone());
    let mut writes_back = texts.is_empty();
    for text in texts {
        let directory: std::path::PathBuf = absolute(text).components().collect();
        // By whichever way it is named.
        let place = |path: &std::path::Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if workspace
            .as_ref()
            .is_some_and(|workspace| place(workspace) == place(&directory))
        {
            writes_back = true;
        } else {
            spec.mounts.push(MountSpec {
                source: directory.clone(),
                target: directory,
                access: MountAccess::Rw,
            });
        }
    }
    if !writes_back {
        return Ok(());
    }
    match &mut spec.workspace {
        Some(workspace) => workspace.mode = WorkspaceMode::Rw,
        None => {
            return Err(
                Failure::new("`--allow-write` without a directory means the workspace, and there is none")
                    .with_hint("write `--allow-write=DIR`"),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::RunInvocation;
    use crate::specify::specify;

    fn spec(words: &str) -> Result<SandboxSpec, Failure> {
        let words = words.split_whitespace();
        let parsed =
            RunInvocation::try_parse_from([&["offleash", "--no-policy"], &*words.collect::<Vec<_>>()].concat());
        specify(&parsed.unwrap().run.sandbox)
    }

    #[test]
    fn each_word_asks_for_what_ours_ask_for() {
        for (theirs, ours) in [
            ("--allow-read=/etc,/opt -- x", "--read /etc --read /opt -- x"),
            ("--deny-read=*.key -- x", "--deny *.key -- x"),
            ("--allow-write=/tmp/a -- x", "--mount /tmp/a:/tmp/a:rw -- x"),
            ("--allow-write=/tmp -w /tmp -- x", "-w /tmp:rw -- x"),
            ("--allow-write=/tmp/ -w /tmp -- x", "-w /tmp:rw -- x"),
            ("--allow-write -w /tmp -- x", "-w /tmp:rw -- x"),
            ("--allow-net -- x", "--internet -- x"),
            (
                "--allow-net=a.example,b.example:8000 -- x",
                "--allow a.example --allow b.example:8000 -- x",
            ),
            (
                "--allow-net --deny-net=a.example -- x",
                "--internet --deny-host a.example -- x",
            ),
            (
                "--allow-run=git,/bin/ls -- x",
                "--allow-command git --allow-command /bin/ls -- x",
            ),
            ("--allow-run -- x", "-- x"),
            ("--deny-run=git -- x", "--deny-command git -- x"),
            ("--allow-env=A,B=c -- x", "--env A --env B=c -- x"),
        ] {
            assert_eq!(spec(theirs).unwrap(), spec(ours).unwrap(), "{theirs}");
        }
        assert!(spec("--prompt -- x").unwrap().network.asks.about_the_unknown);
    }

    #[test]
    fn what_would_grant_all_that_the_user_has_is_refused() {
        for words in [
            "--allow-read -- x",
            "--allow-env -- x",
            "--allow-write --no-workspace -- x",
            "--allow-read=/no/such/path -- x",
            "--allow-net=a:b:c -- x",
            "--allow-env== -- x",
        ] {
            assert!(spec(words).is_err(), "{words}");
        }
        // A word behind it is the command, and not its value.
        assert!(spec("--allow-net a.example").unwrap().network.internet);
        for words in [
            "--allow-net --network none -- x",
            "--prompt --internet -- x",
            "--deny-net -- x",
        ] {
            let words = words.split_whitespace();
            let parsed = RunInvocation::try_parse_from(std::iter::once("offleash").chain(words));
            assert!(parsed.is_err());
        }
    }
}
