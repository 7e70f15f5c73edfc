//! The arguments that say which server is asked, and those of what reaches into its sandboxes from here.

use std::path::PathBuf;

use clap::Args;
use offleash_core::units::Bytes;

/// Which server is asked.
#[derive(Debug, Default, Args)]
pub(crate) struct HostArgs {
    /// Ask the server at URL, `https://HOST[:PORT]`, instead of this machine's. Its key is `OFFLEASH_API_KEY`, or what `offleash
    /// login` kept. Variable `OFFLEASH_HOST` says it, too.
    #[arg(long, value_name = "URL")]
    pub(crate) host: Option<String>,
    /// With `--host`: trust the certificate authorities in FILE (PEM) beside the system's. Variable `OFFLEASH_CA` says it, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// With `--host`: send the key without TLS also to others than this machine. Certificates are verified all the same.
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// File with the key; `-` is standard input. [default: asked for at the terminal, or standard input]
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// The server, `https://HOST[:PORT]`.
    #[arg(value_name = "URL")]
    pub(crate) url: String,
}

#[derive(Debug, Args)]
pub(crate) struct LogoutArgs {
    /// The server. [default: all of them]
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PortForwardArgs {
    /// The sandbox, by its id or its name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// A port of this machine's loopback, 0 for any that is free, and the port inside that it leads to; one number is both.
    #[arg(value_name = "[LOCAL:]REMOTE", required = true)]
    pub(crate) ports: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SshArgs {
    /// Speak the SSH protocol on standard input and output, for `ProxyCommand` of OpenSSH, instead of starting `ssh`.
    #[arg(long)]
    pub(crate) stdio: bool,
    /// As whom: `user` or `root`. [default: user]
    #[arg(long, short = 'u', value_name = "USER", conflicts_with = "stdio")]
    pub(crate) user: Option<String>,
    /// The sandbox, by its id or its name; `.offleash` may stand behind it.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Further arguments of `ssh`, such as `-L 8080:localhost:80`, and a command.
    #[arg(
        value_name = "ARG",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        conflicts_with = "stdio"
    )]
    pub(crate) arguments: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// Go on: bring over what changes here, until Ctrl-C. Only to a sandbox.
    #[arg(long)]
    pub(crate) watch: bool,
    /// Leave out what FILE names, in the language of `.gitignore`. `.gitignore` and `.offleashignore` in DIR, and in directories
    /// below it, are heeded unless `--no-ignore` is said.
    #[arg(long, value_name = "FILE")]
    pub(crate) ignore_file: Vec<PathBuf>,
    /// Heed no `.gitignore` and no `.offleashignore`, only `--ignore-file`. `.git` is brought over, too.
    #[arg(long)]
    pub(crate) no_ignore: bool,
    /// From a sandbox: take `.gitignore`, `.offleashignore` and what `--ignore-file` names, too, and with `--delete` remove them.
    /// What they say is left out the next time is the sandbox's word then.
    #[arg(long)]
    pub(crate) replace_ignore_files: bool,
    /// Remove at the destination what is not at the source, except what is left out.
    #[arg(long)]
    pub(crate) delete: bool,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// As whom: `user` or `root`. [default: user]
    #[arg(long, short = 'u', value_name = "USER")]
    pub(crate) user: Option<String>,
    /// The most that is brought from a sandbox in all; a file or directory counts 4 KiB more.
    #[arg(long, value_name = "SIZE", default_value = "10GiB")]
    pub(crate) max_bytes: Bytes,
    /// From where: a directory here, or ID:PATH.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: PathBuf,
    /// To where: a directory here, or ID:PATH.
    #[arg(value_name = "DESTINATION")]
    pub(crate) destination: PathBuf,
}
