//! `offleash explain` and `offleash policy check`.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use offleash_core::env::check_variable;
use offleash_core::limits::{LimitName, LimitNameError};
use offleash_core::network::Host;
use offleash_core::policy::reference;
use offleash_core::text::Text;
use offleash_store::HostIdentity;
use offleash_supervisor::lifecycle::{self, LifecycleError};
use offleash_sys::seccomp::{self, TableVerdict};

use crate::args::{ExplainArgs, PolicyCheckArgs, Question, SandboxArgs};
use crate::failure::Failure;
use crate::{specify, terminal};

pub(crate) fn explain(arguments: &ExplainArgs) -> Result<ExitCode, Failure> {
    let answer = match &arguments.question {
        Question::Path { path, sandbox } => path_answer(path, sandbox)?,
        Question::Env { name, sandbox } => env_answer(name, sandbox)?,
        Question::Limit { name, sandbox } => limit_answer(name, sandbox)?,
        Question::Syscall { name } => syscall_answer(name)?,
        Question::Connect { target, sandbox } => connect_answer(target, sandbox)?,
    };
    terminal::print(answer.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn path_answer(path: &Path, sandbox: &SandboxArgs) -> Result<String, Failure> {
    let spec = specify::specify(sandbox)?;
    let state = HostIdentity::of_this_process().default_state();
    let host = lifecycle::this_host(&state)?;
    // As policies have it; a shell has put the directory itself in its place.
    let whole = offleash_planner::from_home(path, host.home.as_deref());
    let answer = offleash_planner::explain_path(&spec, &host, &whole).map_err(LifecycleError::from)?;
    Ok(format!(
        "{}: {}\nrule: {}\n",
        Text::from(path),
        answer.access,
        answer.rule
    ))
}

fn env_answer(name: &OsStr, sandbox: &SandboxArgs) -> Result<String, Failure> {
    let spec = specify::specify(sandbox)?;
    check_variable(name, OsStr::new("")).map_err(|error| {
        Failure::from_error(&error).with_hint("give a name alone, such as `CI`; `-e NAME=VALUE` sets one")
    })?;
    if let Some(secret) = spec.network.secrets.iter().find(|secret| name == secret.name.as_str()) {
        return Ok(format!(
            "{}: set to a placeholder; the gateway puts the value of `{}` into requests to {}\nrule: {secret}\n",
            secret.name,
            secret.source,
            secret.hosts_text()
        ));
    }
    let verdict = spec.env.decide(name);
    if !verdict.passed {
        let host = lifecycle::this_host(&HostIdentity::of_this_process().default_state())?;
        if offleash_planner::has_variable_of_its_own(&spec, &host, name).map_err(LifecycleError::from)? {
            return Ok(format!(
                "{}: set, not to the host's value\nrule: system: every sandbox has its own\n",
                Text::from(name)
            ));
        }
    }
    let word = if verdict.passed { "passed" } else { "not passed" };
    Ok(format!("{}: {word}\nrule: {}\n", Text::from(name), verdict.rule))
}

fn limit_answer(name: &str, sandbox: &SandboxArgs) -> Result<String, Failure> {
    let limit: LimitName = name.parse().map_err(|error: LimitNameError| {
        Failure::from_error(&error).with_hint("`offleash help run` says what each of them bounds")
    })?;
    let spec = specify::specify(sandbox)?;
    let row = limit.row();
    let mut answer = format!("{}: {}\n", limit.name(), spec.limits.text(limit));
    // Writing to a string cannot fail.
    let _written = writeln!(answer, "{}", row.doc);
    let _written = writeln!(
        answer,
        "default: {}; flag: {}; policy: limits.{}",
        limit.default_text(),
        row.flag,
        row.word
    );
    if row.least > 0 {
        let _written = writeln!(answer, "at least {}: {}", row.show(row.least), row.why_least);
    }
    Ok(answer)
}

fn syscall_answer(name: &str) -> Result<String, Failure> {
    let Some(explanation) = seccomp::explain(name) else {
        return Err(
            Failure::new(format!("`{name}` is not a system call that the filter knows")).with_hint(
                "whatever the filter does not know is answered with ENOSYS, as by a kernel that does not have it",
            ),
        );
    };
    let word = match explanation.verdict {
        TableVerdict::Allowed => "allowed".to_owned(),
        TableVerdict::Conditional => "allowed with certain arguments".to_owned(),
        TableVerdict::Refused { errno } => format!("refused: {}", std::io::Error::from_raw_os_error(errno)),
    };
    Ok(format!(
        "{name}: {word}\nreason: {}\nnumber: {}\n",
        explanation.reason, explanation.number
    ))
}

fn connect_answer(target: &str, sandbox: &SandboxArgs) -> Result<String, Failure> {
    let spec = specify::specify(sandbox)?;
    let (host, port) = target
        .rsplit_once(':')
        .and_then(|(host, port)| Some((host, port.parse().ok().filter(|port: &u16| *port > 0)?)))
        .ok_or_else(|| {
            Failure::new(format!("`{}` is not a host and a port", Text::from(target)))
                .with_hint("write them as in `example.com:443`, an IPv6 address in brackets")
        })?;
    let host = Host::parse(host).map_err(|error| {
        Failure::from_error(&error).with_hint("a host is a name such as `example.com`, or an address")
    })?;
    spec.network
        .check(spec.asks_about_tools())
        .map_err(|error| Failure::explained(&error))?;
    let answer = lifecycle::explain_connect(&spec.network, &host, port);
    let mut text = format!("{host}:{port}: {}\nrule: {}\n", answer.word, answer.rule);
    if !answer.requests.is_empty() {
        text.push_str("TLS is opened by the gateway, and each request is judged:\n");
        for rule in &answer.requests {
            let _written = writeln!(text, "rule: {rule}");
        }
    }
    for secret in spec.network.secrets.iter().filter(|secret| secret.is_for(&host)) {
        // Writing to a string cannot fail.
        let _written = writeln!(text, "secret: {}, over TLS that is opened", secret.name);
    }
    Ok(text)
}

pub(crate) fn list_policy_keys() -> Result<ExitCode, Failure> {
    let mut out = String::new();
    for key in reference() {
        let name = key.key.rsplit('.').next().unwrap_or(&key.key);
        // Writing to a string cannot fail.
        let _written = writeln!(
            out,
            "{} ({}; default: {})\n    {}\n    {name} = {}",
            key.key, key.kind, key.default, key.doc, key.example
        );
    }
    terminal::print(out.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn check_policy(arguments: &PolicyCheckArgs) -> Result<ExitCode, Failure> {
    let policy = specify::read_policy(&arguments.file)?;
    let asks = policy.asks_about_tools();
    let lacking = policy.network.as_ref().and_then(|network| network.check(asks).err());
    if let Some(error) = lacking.as_ref().filter(|error| error.is_contradiction()) {
        return Err(Failure::explained(error));
    }
    let mut answer = format!("{}: valid\n", Text::from(&arguments.file));
    if let Some(error) = lacking {
        let _written = writeln!(answer, "a run with it and without further flags is refused: {error}");
    }
    let widened = offleash_core::trust::widened(&policy);
    if !widened.is_empty() {
        let _written = writeln!(
            answer,
            "it gives more than the defaults ({}), and so counts only when named with `--policy`",
            widened.join(", ")
        );
    }
    terminal::print(answer.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
