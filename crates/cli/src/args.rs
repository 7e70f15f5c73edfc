//! The arguments, each beside its documentation. What they mean together is decided in `specify`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use offleash_core::spec::MAX_WARM;
use offleash_core::vm::Acceleration;

use crate::failure::Failure;

mod approvals;
mod browser;
mod controller;
mod desktop;
mod host;
mod image;
mod installed;
mod learn;
mod limits;
mod network;
mod permissions;
mod reading;
mod remote;
mod serve;
mod snapshot;
mod template;
mod tools;
mod vm;
mod volume;
mod words;

pub(crate) use approvals::{ApprovalListArgs, ApprovalsArgs, ApprovalsCommand};
pub(crate) use browser::{BrowserCommand, BrowserCreateArgs, BrowserListArgs};
pub(crate) use controller::ControllerArgs;
pub(crate) use desktop::{DesktopCommand, DesktopCreateArgs, DesktopListArgs, DesktopUrlArgs};
pub(crate) use host::{HostArgs, LoginArgs, LogoutArgs, PortForwardArgs, SshArgs, SyncArgs};
pub(crate) use image::{
    ImageCommand, ImageInspectArgs, ImageLoadArgs, ImageLsArgs, ImagePruneArgs, ImagePullArgs, ImageRmArgs,
    ImageSaveArgs, ImageTagArgs, PullArg, RegistryArgs,
};
pub(crate) use installed::{ManArgs, ReportFormat, SelfCheckArgs};
pub(crate) use learn::LearnArgs;
pub(crate) use limits::LimitArgs;
pub(crate) use network::NetworkArgs;
pub(crate) use permissions::PermissionArgs;
use reading::state_of_environment;
pub(crate) use reading::{STATE, as_written, parsed};
pub(crate) use remote::{
    CpArgs, CreateArgs, ExecArgs, ForkArgs, IdsArgs, LogsArgs, LsArgs, PauseArgs, PortArgs, ResumeArgs, RmArgs,
    StatsArgs, TopArgs,
};
pub(crate) use serve::{DrainArgs, FrontArgs, KeyCommand, KeyCreateArgs, KeyRemoveArgs, ListenAt, LogArg, ServeArgs};
pub(crate) use snapshot::{
    CheckpointArgs, CheckpointsArgs, RestoreArgs, SnapshotCommand, SnapshotCreateArgs, SnapshotExportArgs,
    SnapshotIdsArgs, SnapshotImportArgs, SnapshotLsArgs,
};
pub(crate) use template::{
    TemplateBuildArgs, TemplateCommand, TemplateInspectArgs, TemplateLsArgs, TemplatePruneArgs, TemplateRmArgs,
};
pub(crate) use tools::{ToolCallArgs, ToolSourceArgs, ToolsCommand};
pub(crate) use vm::{VmCommand, VmKernelArgs};
pub(crate) use volume::{
    VolumeCommand, VolumeCpArgs, VolumeCreateArgs, VolumeInspectArgs, VolumeLsArgs, VolumePruneArgs, VolumeResizeArgs,
    VolumeRmArgs, VolumeSyncArgs,
};
pub(crate) use words::{RUN_ELSEWHERE, explained, in_words_of};

/// Runs code that an AI wrote so that nothing outside is harmed, read or reached unless you allowed it.
#[derive(Debug, Parser)]
#[command(name = "offleash", version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// Directory that keeps runs and the audit log.
    #[arg(long, global = true, value_name = "DIR", env = STATE)]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command in a sandbox.
    Run(Box<RunArgs>),
    /// Show what a run changed in its workspace.
    Diff(DiffArgs),
    /// Write the changes of a run to its workspace.
    Apply(ApplyArgs),
    /// Throw the changes of a run away.
    Discard(DiscardArgs),
    /// List runs that go on or whose changes are kept.
    Runs(RunsArgs),
    /// Work with sandboxes that `run --warm` keeps ready.
    #[command(subcommand)]
    Warm(WarmCommand),
    /// Serve sandboxes to E2B's SDKs and to programs of your own.
    Serve(Box<ServeArgs>),
    /// Stand before the servers of several machines as one: sandboxes are made where there is room, and found where they are.
    Front(Box<FrontArgs>),
    /// Have the server take no new sandboxes until it is started anew, or take some again; those that are there live on.
    Drain(DrainArgs),
    /// Serve Sandbox, SandboxClaim and SandboxWarmPool of kubernetes-sigs/agent-sandbox by the daemons of a cluster's nodes.
    Controller(Box<ControllerArgs>),
    /// Give an agent host tools that run code in sandboxes: speaks the Model Context Protocol on standard input and output.
    Mcp(Box<McpArgs>),
    /// Work with the keys of `serve`.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Build templates of sandboxes, and look after them.
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Fetch images of containers, and look after them.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Make directories that outlive sandboxes, and look after them.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Prepare virtual machines for level `microvm`.
    #[command(subcommand)]
    Vm(VmCommand),
    /// Make a sandbox in the daemon, and print its id.
    Create(Box<CreateArgs>),
    /// List the sandboxes of the daemon.
    #[command(visible_alias = "ps")]
    Ls(LsArgs),
    /// Run a command in a sandbox of the daemon.
    Exec(ExecArgs),
    /// Copy files to a sandbox of the daemon, or from it.
    Cp(CpArgs),
    /// Show what the daemon noted about a sandbox.
    Logs(LogsArgs),
    /// End sandboxes of the daemon.
    #[command(visible_alias = "kill")]
    Stop(IdsArgs),
    /// Remove sandboxes of the daemon that are paused, or with `--force` any.
    Rm(RmArgs),
    /// Show all that the daemon knows of sandboxes, as JSON.
    Inspect(IdsArgs),
    /// Show what sandboxes of the daemon use.
    Stats(StatsArgs),
    /// Show what sandboxes of the daemon use, again and again, the busiest first.
    Top(TopArgs),
    /// Pause sandboxes of the daemon.
    Pause(PauseArgs),
    /// Continue sandboxes of the daemon.
    Resume(ResumeArgs),
    /// Make sandboxes in the daemon with the files of one that runs, and print their ids.
    Fork(ForkArgs),
    /// Make snapshots of sandboxes of the daemon, and look after them.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Make a checkpoint of a sandbox of the daemon, to which it can be put back, and print its id.
    Checkpoint(CheckpointArgs),
    /// List the checkpoints of a sandbox of the daemon, or remove one.
    Checkpoints(CheckpointsArgs),
    /// Put a sandbox of the daemon back to a checkpoint: its processes end, and its files are those of then.
    Restore(RestoreArgs),
    /// Work with browsers in sandboxes of the daemon, which Playwright, Puppeteer and others drive.
    #[command(subcommand)]
    Browser(BrowserCommand),
    /// Work with desktops in sandboxes of the daemon, whose screens are seen and driven in a browser.
    #[command(subcommand)]
    Desktop(DesktopCommand),
    /// Print the address at which a port of a sandbox is reached.
    Port(PortArgs),
    /// Have ports of a sandbox at ports of this machine's loopback, until Ctrl-C.
    PortForward(PortForwardArgs),
    /// Enter a sandbox by OpenSSH's client, for a shell, a command or `-L`.
    Ssh(SshArgs),
    /// Print what OpenSSH's configuration needs, so that `ssh`, `scp`, `sftp` and what starts them reach sandboxes as ID.offleash.
    SshConfig,
    /// Bring a directory here and one in a sandbox to the same, one way.
    Sync(SyncArgs),
    /// Try the key of a server, and keep it for `--host`.
    Login(LoginArgs),
    /// Forget the keys that `login` kept.
    Logout(LogoutArgs),
    /// Say what this machine offers, what is missing, and how to mend it.
    Doctor(DoctorArgs),
    /// Try each level that this machine offers with a real `true`, and say which work: what to do after an installation.
    SelfCheck(SelfCheckArgs),
    /// Say what would be decided about a path, variable, limit, system call or connection, and by which rule.
    Explain(ExplainArgs),
    /// Work with the tools that a policy offers to code in sandboxes.
    #[command(subcommand)]
    Tools(ToolsCommand),
    /// Answer questions about calls of tools in sandboxes.
    Approvals(ApprovalsArgs),
    /// Work with policy files.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Check or show the audit log, or set it aside.
    Audit(AuditArgs),
    /// Print completions for a shell.
    Completions(CompletionsArgs),
    /// Print the manual page of a command.
    Man(ManArgs),
}

/// Runs a command in a sandbox, and keeps what it changes aside.
///
/// The same as `offleash run` among [`Arguments`], by itself: a parser of every subcommand takes longer to be built
/// than the network namespace of a sandbox.
#[derive(Debug, Parser)]
#[command(name = "offleash run", bin_name = "offleash run", about = "Run a command in a sandbox", long_about = None, max_term_width = 100)]
pub(crate) struct RunInvocation {
    /// Directory that keeps runs and the audit log.
    #[arg(long, value_name = "DIR", env = STATE)]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

impl RunInvocation {
    /// Reads the arguments behind `run`, of a program that was called as `name`.
    ///
    /// # Errors
    /// What the parser says, help included.
    // In a frame of its own, which is not there while the command runs.
    #[inline(never)]
    pub(crate) fn read(name: OsString, arguments: Vec<OsString>) -> Result<Self, clap::Error> {
        // Everything behind `--` is the command. No parser has to be built to know that, nor for a variable.
        match arguments.split_first() {
            Some((first, command)) if first == "--" && !command.is_empty() => Ok(Self {
                state: state_of_environment().map(PathBuf::from),
                run: RunArgs {
                    command: command.to_vec(),
                    ..RunArgs::default()
                },
            }),
            _ => parsed(std::iter::once(name).chain(arguments)),
        }
    }
}

#[derive(Debug, Default, Args)]
pub(crate) struct RunArgs {
    /// Run STRING with `sh -c`; further arguments become its positional parameters.
    #[arg(short = 'c', value_name = "STRING")]
    pub(crate) shell: Option<OsString>,
    /// Run Python: `-c` is Python's then, and so are words. It is that of template `code-interpreter` where that is built
    /// and nothing else was asked for. Levels `wasm` and `simulated` have one of their own.
    #[arg(long)]
    pub(crate) python: bool,
    /// Run JavaScript with the `node` inside: `-c` is code of it then, and words are its script and arguments. Levels `wasm` and
    /// `simulated` have a small one of their own.
    #[arg(long, conflicts_with = "python")]
    pub(crate) js: bool,
    /// Give the command a terminal. All keys are then the command's, Ctrl-C too. Close the window to end a command that
    /// does not end, or use `kill` with the process id of offleash.
    #[arg(short = 't', long)]
    pub(crate) tty: bool,
    /// Changes nothing: standard input is always passed on.
    #[arg(short = 'i', long)]
    pub(crate) interactive: bool,
    /// Run the command as this user of the base template. [default: user]
    #[arg(short = 'u', long, value_name = "root|user")]
    pub(crate) user: Option<String>,
    /// Print one JSON record of the run instead of the command's output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the JSON record of the run to FILE, beside the normal output; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Keep N sandboxes ready for later runs of the same kind, which then start sooner. N is 8 at most, and 16 for all
    /// kinds together; 0 is none. The sandboxes end after five minutes without such a run. They serve runs of
    /// `-- COMMAND` or `-c STRING`, its parameters behind a `--`. Such a run asks for no network, secrets or terminal,
    /// and its standard input is no terminal. Its caller has no no_new_privs and no system call filter. Other runs start
    /// as ever. With `--python` and a template, Python waits in them with the template's libraries imported. [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=i64::from(MAX_WARM)))]
    pub(crate) warm: Option<u8>,
    /// Do not say on standard error what became of the run, unless the exit code is not the command's.
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
    /// Image of containers that the root directory is of, such as `python:3.12-slim`; its layers lie below one that the
    /// sandbox writes to. Without a command its own one is run.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["root", "template"])]
    pub(crate) image: Option<String>,
    /// When the image is pulled. [default: missing]
    #[arg(long, value_enum, value_name = "missing|always|never", requires = "image")]
    pub(crate) pull: Option<PullArg>,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    /// Command and arguments; `--` before it is needed only if it begins with a dash.
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) learn: LearnArgs,
    // Last, because its heading for limits holds for all that follows.
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// Work in sandboxes of the `offleash serve` that runs with this state directory, which can also be forked, instead of ones
    /// of this program; none of the other options is then allowed.
    #[arg(long)]
    pub(crate) server: bool,
    /// Changes nothing: standard input is what it is spoken to by.
    #[arg(short = 'i', long)]
    pub(crate) interactive: bool,
    /// Image of containers that sandboxes are of, such as `python:3.12-slim`; it is pulled when it is not here, before the first call.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["root", "template"])]
    pub(crate) image: Option<String>,
    /// When the image is pulled. [default: missing]
    #[arg(
        long,
        value_enum,
        value_name = "missing|always|never",
        hide_possible_values = true,
        requires = "image"
    )]
    pub(crate) pull: Option<PullArg>,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

/// What a sandbox is to be; the same for every subcommand that needs one.
#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct SandboxArgs {
    /// Directory the code works in, and what becomes of changes: kept aside (overlay), written back when the run
    /// ends, except protected names (rw), or impossible (ro). [default: the current directory, overlay]
    #[arg(
        long,
        short = 'w',
        value_name = "DIR[:overlay|:rw|:ro]",
        conflicts_with = "no_workspace"
    )]
    pub(crate) workspace: Option<OsString>,
    /// Run without a workspace.
    #[arg(long)]
    pub(crate) no_workspace: bool,
    /// Working directory inside. [default: the current directory if it is in the workspace]
    #[arg(long, visible_aliases = ["workdir", "chdir"], value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Make a host path visible inside, read-only unless `:rw` stands behind it.
    #[arg(long, value_name = "SRC:DST[:ro|:rw]")]
    pub(crate) mount: Vec<OsString>,
    /// Mount a volume that `offleash volume create` made, to be written to unless `:ro` stands behind it. What has a slash in
    /// it, or begins with `.` or `~`, is a host path: then the same as `--mount`.
    #[arg(long, short = 'v', value_name = "NAME:DST[:ro|:rw]")]
    pub(crate) volume: Vec<OsString>,
    /// The same as `--mount SRC:DST:rw`, as bubblewrap has it.
    #[arg(long, num_args = 2, value_names = ["SRC", "DST"])]
    pub(crate) bind: Vec<OsString>,
    /// The same as `--mount SRC:DST:ro`, as bubblewrap has it.
    #[arg(long, num_args = 2, value_names = ["SRC", "DST"])]
    pub(crate) ro_bind: Vec<OsString>,
    /// Add an empty directory in memory.
    #[arg(long, value_name = "DST[:SIZE]")]
    pub(crate) tmpfs: Vec<OsString>,
    /// Grant a toolchain that lives in a home directory, read-only: pyenv, nvm, uv, cargo, conda …, or a path.
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) toolchain: Vec<OsString>,
    /// Grant no more of the policy's tools than this: `NAMES [where CONDITION] [calls N] [ask]`. Each grant has to be
    /// provably within what the tool's own entry says.
    #[arg(long, value_name = "GRANT")]
    pub(crate) tool_grant: Vec<OsString>,
    /// Grant reading of a host path.
    #[arg(long, value_name = "PATH")]
    pub(crate) read: Vec<OsString>,
    /// Hide a path, even inside the workspace.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) deny: Vec<OsString>,
    /// Do not apply changes to these names unless named.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) protect: Vec<OsString>,
    /// Allow only these commands (names or paths).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) allow_command: Vec<OsString>,
    /// Forbid these commands (names or paths).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) deny_command: Vec<OsString>,
    /// Pass a variable of this name, or set it.
    #[arg(long, short = 'e', value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<OsString>,
    /// Isolation level; `auto:simulated` begins simulated and runs programs at level `process`.
    #[arg(long, value_name = "LEVEL")]
    pub(crate) level: Option<String>,
    /// Refuse to run at a weaker level.
    #[arg(long, value_name = "LEVEL")]
    pub(crate) min_level: Option<String>,
    /// The OCI runtime of level `container`: `runsc` (gVisor), `crun`, `runc`, `youki` or `kata-runtime`, by its name or its
    /// path. [default: the first of `runsc`, `crun` and `runc` in PATH]
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) runtime: Option<OsString>,
    /// The hypervisor of level `microvm`, by its name or its path. [default: qemu-system-x86_64 in PATH]
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) hypervisor: Option<OsString>,
    /// How a machine of level `microvm` executes instructions: by the processor (KVM; refused where a machine that is tried
    /// does not boot by it), or by a program, several times slower. [default: tcg]
    #[arg(long, value_enum, value_name = "kvm|tcg")]
    pub(crate) acceleration: Option<AccelerationArg>,
    /// The guest's kernel of level `microvm`: a file, or a directory with `boot` and `lib/modules`. [default: what
    /// `offleash vm kernel` finds]
    #[arg(long, value_name = "PATH")]
    pub(crate) vm_kernel: Option<PathBuf>,
    /// What to do when something cannot be enforced here: refuse to run, or allow it and report it.
    #[arg(long, value_enum, value_name = "refuse|allow")]
    pub(crate) degrade: Option<DegradeArg>,
    /// User ids inside: one, or a range of 65536 (needs subordinate ids or root).
    #[arg(long, value_enum, value_name = "single|range")]
    pub(crate) ids: Option<IdsArg>,
    /// What the root directory is: a read-only view of the host's system, or the base template, in which files can be
    /// written anywhere and packages installed, gone when the run ends. [default: system]
    #[arg(long, value_enum, value_name = "system|base")]
    pub(crate) root: Option<RootArg>,
    /// Template that the root directory is of, which `offleash template build` made; as with `--root base`.
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// Give the sandbox graphics cards, with what of their driver programs take: all, or those with these numbers. Code then
    /// reaches the host's driver.
    #[arg(long, value_name = "all|N[,M]")]
    pub(crate) gpu: Option<OsString>,
    /// Let processes inside trace each other (debuggers, strace).
    #[arg(long)]
    pub(crate) allow_ptrace: bool,
    /// Changes nothing: a sandbox is always removed when it ends.
    #[arg(long)]
    pub(crate) rm: bool,
    /// Policy file. [default: offleash.toml in the workspace, which may only restrict]
    #[arg(long, value_name = "FILE", conflicts_with = "srt_settings")]
    pub(crate) policy: Option<PathBuf>,
    /// Ignore an offleash.toml in the workspace.
    #[arg(long, conflicts_with = "policy")]
    pub(crate) no_policy: bool,
    /// Use the settings file of Anthropic's sandbox-runtime as the policy.
    #[arg(long, value_name = "FILE")]
    pub(crate) srt_settings: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) permissions: PermissionArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// How instructions of a virtual machine are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccelerationArg {
    /// By the processor.
    Kvm,
    /// By a program.
    Tcg,
}

impl From<AccelerationArg> for Acceleration {
    fn from(argument: AccelerationArg) -> Self {
        match argument {
            AccelerationArg::Kvm => Acceleration::Kvm,
            AccelerationArg::Tcg => Acceleration::Tcg,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DegradeArg {
    Refuse,
    Allow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RootArg {
    System,
    Base,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdsArg {
    Single,
    Range,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Only these paths.
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// One line for each change instead of the text.
    #[arg(long, short = 's')]
    pub(crate) summary: bool,
    /// One line for all changes: how many there are of each kind.
    #[arg(long, conflicts_with_all = ["summary", "json"])]
    pub(crate) stat: bool,
    /// Print the changes as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Only these paths; a protected name is applied only when it is named here.
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// One line for all that was applied, instead of one for each change.
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) stat: bool,
    /// Say nothing but what was refused.
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiscardArgs {
    /// The runs.
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// List applied and discarded runs, too, the last 200 of them, and sandboxes of the daemon.
    #[arg(long, short = 'a')]
    pub(crate) all: bool,
    /// Print the list as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WarmCommand {
    /// List the sandboxes that wait.
    Ls {
        /// Print the list as JSON.
        #[arg(long)]
        json: bool,
    },
    /// End sandboxes that wait.
    Stop {
        /// Those of these ids. [default: all]
        #[arg(value_name = "ID")]
        ids: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    pub(crate) question: Question,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Question {
    /// What may be done with a path.
    Path {
        /// The path, as inside.
        #[arg(value_name = "PATH")]
        path: PathBuf,
        #[command(flatten)]
        sandbox: Box<SandboxArgs>,
    },
    /// Whether a variable is passed.
    Env {
        /// The variable.
        #[arg(value_name = "NAME")]
        name: OsString,
        #[command(flatten)]
        sandbox: Box<SandboxArgs>,
    },
    /// What a limit bounds, and to how much.
    Limit {
        /// The limit.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        sandbox: Box<SandboxArgs>,
    },
    /// Whether a system call is allowed, and why.
    Syscall {
        /// The system call.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Whether a host may be reached.
    Connect {
        /// The host and the port, such as `example.com:443`.
        #[arg(value_name = "HOST:PORT")]
        target: String,
        #[command(flatten)]
        sandbox: Box<SandboxArgs>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Check a policy file.
    Check(PolicyCheckArgs),
    /// List every key of a policy: what it takes, what holds without it, what it does, and an example.
    Keys,
}

#[derive(Debug, Args)]
pub(crate) struct PolicyCheckArgs {
    /// The file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    pub(crate) action: AuditAction,
}

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum AuditAction {
    /// Check that no line was changed, removed or added.
    Verify,
    /// Print the log.
    Show,
    /// Set the log aside as another file, and begin the next one, in which the chain goes on.
    Rotate,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// Prints completions.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "offleash", &mut script);
    crate::terminal::print(&script)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_behind_dashes_is_read_as_the_parser_reads_it() {
        for command in [
            &["true"][..],
            &["a", "b"],
            &["-c", "x"],
            &["--help"],
            &["--"],
            &["--", "a", "--", "-q"],
            &["a", "--", "--json"],
            &[""],
        ] {
            let words = || std::iter::once("--").chain(command.iter().copied()).map(OsString::from);
            let read = RunInvocation::read("offleash".into(), words().collect()).unwrap();
            let parsed = RunInvocation::try_parse_from(std::iter::once("offleash".into()).chain(words())).unwrap();
            assert_eq!(format!("{:?}", read.run), format!("{:?}", parsed.run), "{command:?}");
        }
        assert!(RunInvocation::read("offleash".into(), vec!["--none".into()]).is_err());
    }
}
