//! The parts of the references that people write, as they stand in `docs/`.

/// What `docs/cli.md` says before its tables.
pub(crate) const CLI_BEGINNING: &str = r"`offleash run` makes a sandbox, runs one command in it and ends when the command does. What the command changed in the
workspace is kept until `apply` or `discard`. [policy.md](policy.md) is the reference of policy files.
[record.md](record.md) is that of the record that `--json` and `--report` write.

Runs and the audit log are kept in one directory, which `--state` or `OFFLEASH_STATE` names. Its default is
`/var/lib/offleash` for root. For others it is `offleash` in `XDG_STATE_HOME` or `~/.local/state`, or
`/var/tmp/offleash-UID` without a home directory. `offleash doctor` says which it is.

## What a command has of its caller

- **Streams**: its standard input, output and error are pipes that `run` passes on as they come, or with `-t` a
  terminal.
- **Input**: a run takes everything on standard input, also what the command never reads. In a loop that reads lines,
  give it `</dev/null`.
- **Output**: each of the two outputs is in order. Between the two the order is only about right. For one order join
  them inside, `-c '… 2>&1'`.
- **Variables** are passed by a short list (`--env`).
- **Umask** is 022.
- **Limits** are those below, or lower ones of the caller.
- **Directory**: a relative `--cwd` is taken from where `run` is called.

## What git compares

Files have other owners inside. Once they were written to, they also have other numbers and change times. git would
therefore read every file of a repository again. So `/etc/gitconfig` is the sandbox's own, and the host's file is not
shown. It tells git to compare only size, time and mode (`core.checkStat`, `core.trustctime`). Configuration of a user
or a repository goes over it. git does not see a file that was changed to the same size and has its old time again.
make, cargo, rsync and Python's compiled files compare size and time by themselves.

## Words of other tools

Some flags of Docker, E2B and bubblewrap have a flag of ours for the same thing. They are that flag:

| flag | is |
|---|---|
| `--timeout` | `--wall-time` |
| `--disk` | `--workspace-size` |
| `-v`, `--volume` with a path | `--mount`; read-only unless `:rw` stands behind it, other than Docker's |
| `-v`, `--volume` with a name | a volume ([volumes.md](volumes.md)); read-write, as Docker's |
| `--net none`, `-m`, `-p`, `-u`, `--workdir`, `--bind`, `--ro-bind` | what they say |
| `--allow-read=…`, `--allow-write=…`, `--allow-net=…`, `--allow-run=…`, `--allow-env=…`, as Deno's | `--read`, `--mount DIR:DIR:rw`, `--allow`, `--allow-command`, `--env`; several with commas between |
| `--deny-read=…`, `--deny-net=…`, `--deny-run=…` | `--deny`, `--deny-host`, `--deny-command` |
| `--rm`, `-i` | no flag; they change nothing |
| `-w` | for `run` the workspace, which is where a command starts; for `exec` the directory inside |

Messages name the flag that was typed. A flag of theirs that we have nothing for is refused, and the error says what
there is instead.

## What the overlay shows

The workspace, a root of the sandbox's own and its templates are overlays over what was there before (not at level
`process-landlock`). Programs see it in these places:

- **A directory that was there before is renamed by copying.** The new name appears as a whole, then the old one goes.
  Until then both are there, and beside the new one `.offleash-rename-…` or `.offleash-renamed-…`. A process that
  works in the directory meanwhile is left in one that is gone. Watches of it end, and its inode is another one. Files
  stay the same files. The kernel keeps some from being linked, such as files of other owners. These are copied and
  become the caller's.
- **Some renames are refused** as between file systems (`EXDEV`):
  - two directories exchanged (`RENAME_EXCHANGE`)
  - a directory that holds directories of other owners, unreadable ones, or ones with a setgid bit that their owner
    may not write to
  - a directory that holds more than 1024 levels
  - a rename by a process in a root of its own (`chroot`), or with other ids or fewer capabilities than its user has
- **A mount in the directory** answers `EBUSY`.
- **The first write to a file that was there before** gives it an inode of its own. Hard links of it show what it was.
  A program that had it open for reading reads what it was.
- **A unix socket or a pipe that was there before** leads to nobody.

";

/// What it says after the table of exit codes.
pub(crate) const AFTER_EXIT_CODES: &str = r"Arguments that cannot be understood end every command with 125, as `docker run`, `env` and `timeout` have it. 2 is
what many a command ends with by itself.

`run` in mode `rw` and `apply` tell alike what they hold back, `not applied: PATH: WHY` for each change. Both answer 1
then, `run` unless the command's own code is another. `diff` marks such changes beforehand: `protected`, or a link
that leads out of the workspace. Links to what the sandbox saw read-only of the host (`/usr`, toolchains, `--read`)
are applied.

These are further causes of 1:

| command | answers 1 when |
|---|---|
| `apply` | the host changed meanwhile |
| `audit verify` | the log was changed |
| `doctor` | no level is available |
| `self-check` | nothing works at level `process` or above, or not each level that was named |
| `cp` | it left something out: links to nowhere; on the way in all links; what is neither file nor directory |

`cp` copies contents and names. Modes and times are those of new files.

";

/// What it says before the table of limits.
pub(crate) const LIMITS_BEGINNING: &str = r"## Limits

Every limit may be `unlimited`. A size is a number of bytes or has a unit (`K`, `M`, `G`, `T`, by 1024). A time is a
number of seconds or has a unit (`ms`, `s`, `m`, `h`). A number with a unit may have a fraction, and so may a number
of CPUs.

";

/// What `docs/policy.md` says before its tables.
pub(crate) const MONITORING_BEGINNING: &str = r#"Rules watch each sandbox from outside while it runs. Code inside can neither see nor change them. A rule has a figure, a
threshold and a window. It fires when the figure reaches the threshold within the window. Built-in rules watch without
being asked. They only tell: none of them slows, pauses or ends anything.

An owner changes built-in rules, and adds others, in a [policy](policy.md):

```toml
[[monitor]]                      # a built-in rule with another action
name = "mass-overwrite"
action = "kill"

[[monitor]]                      # a rule of your own
name = "too-much-leaves"
watch = "sent"
threshold = 10240                # KiB
window = "1m"
action = "throttle"
```

`offleash run` and `offleash mcp` read it with `--policy`. For all sandboxes of `offleash serve` it is
`monitoring.policy` of the [configuration](serve.md). A policy that is found in a workspace adds rules. It changes no
built-in one.

| action | what is done |
|---|---|
| `off` | the rule is not watched |
| `log` | it goes on record |
| `alert` | the same; a run says so on standard error, and a server has an event |
| `throttle` | the same, and the sandbox has a quarter of a CPU from then on |
| `pause` | the same as `alert`, and every process stops until somebody resumes the sandbox |
| `snapshot-and-pause` | the same as `pause`, and a checkpoint of the files is made |
| `kill` | the same as `alert`, and the sandbox is ended; in mode `rw` nothing is written back |

A command that ends before it was looked at is looked at then. A `kill` of that moment ends it all the same, and nothing is written back; every other
action says that it had ended already. Of a run that is younger than a tenth of a second, only files are looked at.

Nobody resumes a run, so rules that pause are for sandboxes of a server; `run` and `mcp` refuse them.

Each firing is in the [record](record.md#alertrecord) with its evidence: the rule, the figure, the threshold, the window, and a
few hosts, names or paths. It is one line of the audit log (`alert`). In a served sandbox it is a line of the log, an event
(`GET /v1/events`) and a count in `/metrics` (`offleash_alerts_total`).

A rule that fired is quiet for 30 seconds or its window, whichever is longer. What only tells is quiet twice as long each time.
A rule fires 50 times at most in the life of a sandbox.
"#;

pub(crate) const MONITORING_FIGURES_END: &str = r"
- Nothing is sampled more often than twice a second. Files of a workspace are compared once a second at most.
- `forks` is known where the sandbox has a pid namespace that the host sees: not at levels `process-landlock` and `microvm`.
- `overwrites`, `removals` and `protected-names` are known of a workspace with an overlay: of its first 4,000 changed
  entries, 32 directories deep.
- `sent` of a connection is known when that ends. Requests that share a connection count once.
- Programs that are started (`exec`), and reads of files, are known to no one outside who is not root: an overlay reads its lower
  files without a notification, and what Landlock or a missing file refuses is told to nobody. No rule can watch it. So a search for
  credentials that only reads files is not noticed. The sandbox does not have them: see [policy.md](policy.md#protected-names).
- `credentials` is what of such a search does show. Of connections and questions to metadata services (169.254.169.254, its like at other
  clouds, `metadata.google.internal` …) those that are refused count; whoever allows such a service means it. Calls are `keyctl`, `add_key`, `request_key`,
  `ptrace`, `process_vm_readv`, `process_vm_writev`, `pidfd_getfd` and `open_by_handle_at`, where the filter refuses them.
- `overwrites` looks at the beginning of files whose size or time changed. Who encrypts what lies behind the first 4,096 bytes, sets the
  time back, or writes what looks like text is not noticed.
- A supervisor tells its server of an alert when the server samples (`sample_seconds`). It acts by itself before that.
";

pub(crate) const MONITORING_END: &str = r"
## Measured

`crates/cli/tests/monitoring.rs` has the corpus. Each attack goes on until a rule with the action `kill` ends it; each honest run has
the built-in rules alone.

| attack | rule | from the request to the end of the run |
|---|---|---|
| processes that fork without end | `fork-storm` | 1.8 s |
| a scan of ports, with a network and without | `port-scan` | 0.8 s, 1.2 s |
| data in names that are asked for | `dns-exfiltration` | 0.7 s |
| data in many small requests to a host that is allowed | `request-flood` | 1.8 s |
| 200 files that are encrypted in their places | `mass-overwrite` | 0.7 s |
| a miner that signs in to a pool; one whose pool is refused | `miner` | 0.8 s, 0.8 s |
| system calls that are refused again and again | `refused-calls` | 0.6 s |
| a search for credentials in files, keyrings, processes and at metadata services, with a network and without | `credential-hunt` | 3.3 s, 4.3 s (at a load average of 25, where miners took 1.1 s and 1.3 s) |
| a search for credentials in files alone | none: reads are not known outside | – |

Honest work was told of nothing: archives, copies, edits and removals of 200 files; a tree of packages, written as npm does and
then updated; a compiler; loops in a shell and in Python; training in four processes; a library that asks a metadata service three times.
November 2026, two CPUs under load, unoptimized build:
`OFFLEASH_SHOW_MONITORING=1 cargo test --workspace --test monitoring -- --nocapture`.

## Cost

Two servers had 100 sandboxes each at the same time, one with the built-in rules, one with none. CPU time of the servers and of the
processes that hold the sandboxes, medians of 12 rounds, released build (`cargo xtask bench monitoring --binary PATH`):

| in each sandbox | with rules | without | more |
|---|---|---|---|
| nothing runs | 26 ms a second | 22 | 3.6 (0.36 % of a CPU) |
| something is done every second | 168 | 138 | 29 (2.9 %) |
";

pub(crate) const POLICY_BEGINNING: &str = r"A policy is a TOML file. `offleash run --policy FILE` uses it, and `offleash policy check FILE` checks it.
`offleash policy keys` prints the tables below. Unknown keys and values that make no sense are errors with line and
column.

- Flags win over the policy, and the policy over defaults.
- Lists of paths, variables, mounts and denied commands add up.
- Of rules for paths the most specific wins.

An `offleash.toml` in the workspace is used without being named. It may have come with the code, so it may only
restrict. Whatever gives more than the defaults counts only in a file that is named with `--policy`.

`--srt-settings FILE` reads settings of Anthropic's sandbox-runtime: its file rules, and its domains at every port
that they do not limit. What cannot be honoured is an error that names the key.
";

/// What it says before the table of protected names.
pub(crate) const PROTECTED_BEGINNING: &str = r"
## Protected names

Changes to these names in a workspace are not applied unless you name them. Something runs or trusts them later,
outside the sandbox. That holds at any depth, in capital or small letters, and for everything beneath.

";

/// What it says after that table.
pub(crate) const PROTECTED_END: &str = r"
Other names of the same things are protected, too, whatever they are called. `diff` shows them with what leads there:

- where links lead, over any number of links; such a link has a protected name, is in a directory with one, or stands
  in place of a directory above one
- where links lead that `protect` covers
- repositories that lie elsewhere: where a `.git` that is no directory points, and what `commondir` says
- what git configuration names: `core.hooksPath`, `include`, `init.templateDir`, and files in command lines. These are
  command lines of filters, drivers, editors, pagers, helpers, `core.fsmonitor`, `core.sshCommand`, aliases with `!`
  and their like. Included files count, and so does the configuration of the user (`~/.gitconfig`,
  `~/.config/git/config`) and of the machine.
- programs and plugins that `.npmrc`, `.yarnrc`, `.yarnrc.yml`, `.cargo/config.toml`, `bunfig.toml`, `.hg/hgrc`,
  `.pre-commit-config.yaml`, `lefthook.yml`, `.mcp.json` and `.claude/settings.json` name
- where a protected name of the home directory leads that is a link into the workspace

Each is looked at as the host has it and as the run left it, whenever changes are shown or applied. A configuration of
git that cannot be read, or is longer than 4 MiB, holds back everything in its repository.
";
