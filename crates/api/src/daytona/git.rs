//! Repositories in a sandbox, worked with by the `git` that it has.
//!
//! What callers give is never an option: it stands behind `--`, or is refused if it begins with a dash.

use std::collections::BTreeMap;

use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};

use super::done;
use super::git_output::{CommitInfo, commit_of, status_of};
use super::toolbox::{ToolCommand, Toolbox, failed};
use crate::commands::{CommandOutcome, OutputBounds, output_text};
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;

/// What git may say.
const MAX_SAID: usize = 4 * 1024 * 1024;
/// Commits of a history, the latest.
const MAX_COMMITS: &str = "--max-count=1000";
/// How long it may take to speak with another machine.
const REMOTE_MS: u64 = 600_000;
const LOCAL_MS: u64 = 120_000;
/// What stands between fields of a commit and between commits: what no text of git's has.
const FORMAT: &str = "--format=%H%x1f%an%x1f%ae%x1f%aI%x1f%B%x1e";

/// A path, and what else most requests have.
#[derive(Debug, Default, Deserialize)]
struct Asked {
    path: Option<String>,
    files: Option<Vec<String>>,
    name: Option<String>,
    branch: Option<String>,
    url: Option<String>,
    remote: Option<String>,
    message: Option<String>,
    author: Option<String>,
    email: Option<String>,
    username: Option<String>,
    password: Option<String>,
    commit_id: Option<String>,
    depth: Option<u32>,
    allow_empty: Option<bool>,
    insecure_skip_tls: Option<bool>,
    set_upstream: Option<bool>,
    fetch: Option<bool>,
    overwrite: Option<bool>,
    bare: Option<bool>,
    initial_branch: Option<String>,
    mode: Option<String>,
    target: Option<String>,
    source: Option<String>,
    staged: Option<bool>,
    worktree: Option<bool>,
    key: Option<String>,
    value: Option<String>,
    scope: Option<String>,
}

#[derive(Debug, Serialize)]
struct CommitAnswer {
    hash: String,
}

#[derive(Debug, Serialize)]
struct BranchesAnswer {
    branches: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
}

#[derive(Debug, Serialize)]
struct RemoteAnswer {
    name: String,
    url: String,
}

#[derive(Debug, Serialize)]
struct RemotesAnswer {
    remotes: Vec<RemoteAnswer>,
}

#[derive(Debug, Serialize)]
struct ConfigAnswer {
    value: Option<String>,
}

/// A repository of a sandbox.
struct Repository<'a> {
    toolbox: Toolbox<'a>,
    path: String,
    asked: Asked,
}

impl<'a> Repository<'a> {
    /// That of a request with a body.
    async fn of(asked: &'a ApiRequest<'a>, given: &str, body: RequestBody) -> Result<Self, ApiRefusal> {
        let body: Asked = body.read().await?;
        let toolbox = Toolbox::open(asked, given).await?;
        Self::at(toolbox, body)
    }

    /// That of a request which names it in the query.
    async fn in_query(asked: &'a ApiRequest<'a>, given: &str) -> Result<Self, ApiRefusal> {
        let toolbox = Toolbox::open(asked, given).await?;
        let asked = Asked {
            path: toolbox.given("path"),
            ..Asked::default()
        };
        Self::at(toolbox, asked)
    }

    fn at(toolbox: Toolbox<'a>, asked: Asked) -> Result<Self, ApiRefusal> {
        let path = toolbox.resolve_or_here(asked.path.as_deref().unwrap_or_default())?;
        Ok(Self {
            toolbox,
            path: output_text(path),
            asked,
        })
    }

    /// Runs git in it.
    async fn run(&self, words: &[&str]) -> Result<CommandOutcome, ApiRefusal> {
        let place = ["git", "-C", &self.path];
        let argv = place.iter().chain(words).map(|word| (*word).to_owned());
        self.run_with(argv.collect(), BTreeMap::new(), LOCAL_MS).await
    }

    async fn run_with(
        &self,
        argv: Vec<String>,
        env: BTreeMap<String, String>,
        timeout_ms: u64,
    ) -> Result<CommandOutcome, ApiRefusal> {
        let mut all = env;
        // Nobody is there to be asked, and messages are read by programs.
        all.insert("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned());
        all.insert("LC_ALL".to_owned(), "C".to_owned());
        let command = ToolCommand {
            argv,
            env: all,
            timeout_ms: Some(timeout_ms),
            bounds: OutputBounds {
                of_stream: MAX_SAID,
                ..OutputBounds::default()
            },
            ..ToolCommand::default()
        };
        self.toolbox.run(command).await
    }

    /// Runs git, which must succeed; answers what it wrote.
    async fn git(&self, words: &[&str]) -> Result<String, ApiRefusal> {
        said(self.run(words).await?)
    }

    /// The same with another machine, with the name and password that were given, for the host of `url` alone.
    async fn git_remote(&self, words: Vec<String>, url: &str) -> Result<(), ApiRefusal> {
        let env = credentials(&self.asked, url)?;
        let argv = std::iter::once("git".to_owned()).chain(words).collect();
        said(self.run_with(argv, env, REMOTE_MS).await?)?;
        Ok(())
    }
}

/// What git wrote, if it succeeded.
fn said(outcome: CommandOutcome) -> Result<String, ApiRefusal> {
    match outcome.exit_code {
        Some(0) if outcome.truncated => Err(ApiRefusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "there is more than an answer may have",
        )),
        Some(0) => Ok(output_text(outcome.stdout)),
        Some(127) => Err(ApiRefusal::unsupported("repositories in a sandbox without `git` are")),
        _ if outcome.timed_out => Err(ApiRefusal::new(StatusCode::REQUEST_TIMEOUT, "git took too long")),
        _ => Err(failed(&outcome)),
    }
}

/// What git runs when a server asks who is there: it writes what git reads.
const HELPER: &str = "!f() { [ \"$1\" = get ] && printf 'username=%s\\npassword=%s\\n' \"$OFFLEASH_GIT_NAME\" \
                      \"$OFFLEASH_GIT_PASSWORD\"; }; f";

/// Variables by which git signs in at the server of `url`: they are no arguments, which other programs can read. Where that server
/// sends git elsewhere, nobody is told.
fn credentials(asked: &Asked, url: &str) -> Result<BTreeMap<String, String>, ApiRefusal> {
    let mut set = Vec::new();
    let mut env = BTreeMap::new();
    if let (Some(name), Some(password)) = (&asked.username, &asked.password) {
        if [name, password].iter().any(|text| text.contains(['\n', '\r', '\0'])) {
            return Err(ApiRefusal::bad_request("username, password: they are one line each"));
        }
        // Git asks for no other kind.
        if let Some(origin) = origin_of(url) {
            // What the sandbox's own configuration says of helpers is not asked.
            set.push((format!("credential.{origin}.helper"), String::new()));
            set.push((format!("credential.{origin}.helper"), HELPER.to_owned()));
            env.insert("OFFLEASH_GIT_NAME".to_owned(), name.clone());
            env.insert("OFFLEASH_GIT_PASSWORD".to_owned(), password.clone());
        }
    }
    if asked.insecure_skip_tls == Some(true) {
        set.push(("http.sslVerify".to_owned(), "false".to_owned()));
    }
    env.insert("GIT_CONFIG_COUNT".to_owned(), set.len().to_string());
    for (number, (key, value)) in set.into_iter().enumerate() {
        env.insert(format!("GIT_CONFIG_KEY_{number}"), key);
        env.insert(format!("GIT_CONFIG_VALUE_{number}"), value);
    }
    Ok(env)
}

/// Scheme, host and port of a URL of HTTP.
fn origin_of(url: &str) -> Option<String> {
    let url: http::Uri = url.parse().ok()?;
    let scheme = url.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"))?;
    let authority = url.authority()?;
    let port = authority.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    Some(format!("{scheme}://{}{port}", authority.host()))
}

/// A word that must be there and is no option.
fn word<'w>(field: &str, given: &'w Option<String>) -> Result<&'w str, ApiRefusal> {
    let given = given.as_deref().filter(|word| !word.is_empty());
    let given = given.ok_or_else(|| ApiRefusal::bad_request(format!("{field}: there must be one")))?;
    match given.starts_with('-') || given.contains('\0') {
        true => Err(ApiRefusal::bad_request(format!("{field}: it must not begin with `-`"))),
        false => Ok(given),
    }
}

/// The same, if it is there.
fn word_if<'w>(field: &str, given: &'w Option<String>) -> Result<Option<&'w str>, ApiRefusal> {
    match given.as_deref() {
        None | Some("") => Ok(None),
        Some(_) => word(field, given).map(Some),
    }
}

pub(crate) async fn clone(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let wanted = &repository.asked;
    let mut words = vec!["clone".to_owned(), "--quiet".to_owned()];
    if let Some(branch) = word_if("branch", &wanted.branch)? {
        words.extend(["--branch".to_owned(), branch.to_owned()]);
    }
    let commit = word_if("commit_id", &wanted.commit_id)?;
    if let Some(depth) = wanted.depth.filter(|depth| *depth > 0) {
        words.push(format!("--depth={depth}"));
    }
    words.extend([
        "--".to_owned(),
        word("url", &wanted.url)?.to_owned(),
        repository.path.clone(),
    ]);
    repository.git_remote(words, word("url", &wanted.url)?).await?;
    if let Some(commit) = commit {
        repository.git(&["checkout", "--quiet", commit]).await?;
    }
    Ok(done(StatusCode::OK))
}

pub(crate) async fn init(asked: &ApiRequest<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let branch = word_if("initial_branch", &repository.asked.initial_branch)?;
    let mut words = vec!["git".to_owned(), "init".to_owned(), "--quiet".to_owned()];
    words.extend(branch.map(|branch| format!("--initial-branch={branch}")));
    if repository.asked.bare == Some(true) {
        words.push("--bare".to_owned());
    }
    words.extend(["--".to_owned(), repository.path.clone()]);
    said(repository.run_with(words, BTreeMap::new(), LOCAL_MS).await?)?;
    Ok(done(StatusCode::CREATED))
}

pub(crate) async fn add(asked: &ApiRequest<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let files = repository.asked.files.as_deref().unwrap_or_default();
    if files.is_empty() {
        return Err(ApiRefusal::bad_request("files: there must be at least one"));
    }
    let files = files.iter().map(String::as_str);
    let words: Vec<&str> = ["add", "--"].into_iter().chain(files).collect();
    repository.git(&words).await?;
    Ok(done(StatusCode::OK))
}

pub(crate) async fn commit(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let wanted = &repository.asked;
    let (author, email) = (word("author", &wanted.author)?, word("email", &wanted.email)?);
    let message = wanted.message.as_deref().unwrap_or_default();
    let (name, address) = (format!("user.name={author}"), format!("user.email={email}"));
    let message = format!("--message={message}");
    let mut words = vec!["-c", &name, "-c", &address, "commit", "--quiet", &message];
    if wanted.allow_empty == Some(true) {
        words.push("--allow-empty");
    }
    repository.git(&words).await?;
    let hash = repository.git(&["rev-parse", "HEAD"]).await?.trim().to_owned();
    Ok(answer::json(StatusCode::OK, &CommitAnswer { hash }))
}

pub(crate) async fn status(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::in_query(asked, given).await?;
    let words = ["status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all"];
    let said = repository.git(&words).await?;
    Ok(answer::json(StatusCode::OK, &status_of(&said)))
}

pub(crate) async fn history(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::in_query(asked, given).await?;
    let said = repository.git(&["log", MAX_COMMITS, FORMAT]).await?;
    let commits: Vec<CommitInfo> = said.split('\x1e').filter_map(commit_of).collect();
    Ok(answer::json(StatusCode::OK, &commits))
}

pub(crate) async fn branches(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::in_query(asked, given).await?;
    let said = repository
        .git(&["for-each-ref", "--format=%(refname:short)", "refs/heads"])
        .await?;
    let current = repository.run(&["symbolic-ref", "--quiet", "--short", "HEAD"]).await?;
    let current = (current.exit_code == Some(0)).then(|| output_text(current.stdout).trim().to_owned());
    let mut branches: Vec<String> = said.lines().map(str::to_owned).collect();
    if branches.is_empty() {
        // Before the first commit there is the one that will be.
        branches.extend(current.clone());
    }
    Ok(answer::json(StatusCode::OK, &BranchesAnswer { branches, current }))
}

pub(crate) async fn create_branch(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let name = word("name", &repository.asked.name)?;
    repository.git(&["checkout", "--quiet", "-b", name, "--"]).await?;
    Ok(done(StatusCode::CREATED))
}

pub(crate) async fn delete_branch(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let name = word("name", &repository.asked.name)?;
    repository.git(&["branch", "--quiet", "-D", "--", name]).await?;
    Ok(done(StatusCode::NO_CONTENT))
}

pub(crate) async fn checkout(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let branch = word("branch", &repository.asked.branch)?;
    repository.git(&["checkout", "--quiet", branch, "--"]).await?;
    Ok(done(StatusCode::OK))
}

pub(crate) async fn push(asked: &ApiRequest<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let options = match repository.asked.set_upstream {
        Some(true) => &["--quiet", "--set-upstream"][..],
        _ => &["--quiet"],
    };
    with_remote(&repository, "push", options).await
}

pub(crate) async fn pull(asked: &ApiRequest<'_>, given: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    with_remote(&repository, "pull", &["--quiet"]).await
}

async fn with_remote(repository: &Repository<'_>, verb: &str, options: &[&str]) -> Result<Response<Body>, ApiRefusal> {
    let wanted = &repository.asked;
    let branch = word_if("branch", &wanted.branch)?;
    let remote = word_if("remote", &wanted.remote)?;
    let mut words = vec!["-C".to_owned(), repository.path.clone(), verb.to_owned()];
    words.extend(options.iter().map(|option| (*option).to_owned()));
    if branch.is_some() || remote.is_some() || wanted.set_upstream == Some(true) {
        words.push(remote.unwrap_or("origin").to_owned());
        words.push(branch.unwrap_or("HEAD").to_owned());
    }
    let mut place = vec!["remote", "get-url"];
    if verb == "push" {
        place.push("--push");
    }
    place.extend(["--", remote.unwrap_or("origin")]);
    // A branch may come from elsewhere: git then asks for a name, and nobody answers.
    let url = output_text(repository.run(&place).await?.stdout);
    repository.git_remote(words, url.trim()).await?;
    Ok(done(StatusCode::OK))
}

pub(crate) async fn reset(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let wanted = &repository.asked;
    let target = word_if("target", &wanted.target)?.unwrap_or("HEAD");
    let files = wanted.files.as_deref().unwrap_or_default().iter().map(String::as_str);
    let mode = match wanted.mode.as_deref() {
        None | Some("" | "mixed") => "--mixed",
        Some("soft") => "--soft",
        Some("hard") => "--hard",
        Some("merge") => "--merge",
        Some("keep") => "--keep",
        Some(_) => {
            return Err(ApiRefusal::bad_request(
                "mode: expected soft, mixed, hard, merge or keep",
            ));
        }
    };
    let has_files = files.clone().next().is_some();
    let options = if has_files {
        vec!["reset", "--quiet"]
    } else {
        vec!["reset", "--quiet", mode]
    };
    let words: Vec<&str> = options.into_iter().chain([target, "--"]).chain(files).collect();
    repository.git(&words).await?;
    Ok(done(StatusCode::OK))
}

pub(crate) async fn restore(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let wanted = &repository.asked;
    let source = word_if("source", &wanted.source)?.map(|source| format!("--source={source}"));
    let mut words = vec!["restore", "--quiet"];
    words.extend(source.as_deref());
    if wanted.staged == Some(true) {
        words.push("--staged");
    }
    if wanted.worktree == Some(true) {
        words.push("--worktree");
    }
    words.push("--");
    words.extend(wanted.files.as_deref().unwrap_or_default().iter().map(String::as_str));
    repository.git(&words).await?;
    Ok(done(StatusCode::OK))
}

pub(crate) async fn remotes(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::in_query(asked, given).await?;
    let said = repository.git(&["remote", "--verbose"]).await?;
    let fetched = said.lines().filter_map(|line| {
        let (name, rest) = line.split_once('\t')?;
        let url = rest.strip_suffix(" (fetch)")?;
        Some(RemoteAnswer {
            name: name.to_owned(),
            url: url.to_owned(),
        })
    });
    let remotes = fetched.collect();
    Ok(answer::json(StatusCode::OK, &RemotesAnswer { remotes }))
}

pub(crate) async fn add_remote(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let wanted = &repository.asked;
    let (name, url) = (word("name", &wanted.name)?, word("url", &wanted.url)?);
    if wanted.overwrite == Some(true) {
        // There may be none.
        let _removed = repository.run(&["remote", "remove", name]).await?;
    }
    repository.git(&["remote", "add", "--", name, url]).await?;
    if wanted.fetch == Some(true) {
        let words = ["-C", &repository.path, "fetch", "--quiet", name].map(str::to_owned);
        repository.git_remote(words.to_vec(), url).await?;
    }
    Ok(done(StatusCode::CREATED))
}

pub(crate) async fn get_config(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::in_query(asked, given).await?;
    let key = Some(repository.toolbox.required("key")?);
    let scope = scope(repository.toolbox.given("scope").as_deref())?;
    let outcome = repository.run(&["config", scope, "--get", word("key", &key)?]).await?;
    let value = match outcome.exit_code {
        // A code of 1 is that there is none.
        Some(1) => None,
        _ => Some(said(outcome)?.trim_end_matches('\n').to_owned()),
    };
    Ok(answer::json(StatusCode::OK, &ConfigAnswer { value }))
}

pub(crate) async fn set_config(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let wanted = &repository.asked;
    let value = wanted.value.as_deref().unwrap_or_default();
    let scope = scope(wanted.scope.as_deref())?;
    repository
        .git(&["config", scope, "--replace-all", word("key", &wanted.key)?, value])
        .await?;
    Ok(done(StatusCode::OK))
}

pub(crate) async fn set_user(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let repository = Repository::of(asked, given, body).await?;
    let wanted = &repository.asked;
    let scope = scope(wanted.scope.as_deref())?;
    repository
        .git(&["config", scope, "user.name", word("name", &wanted.name)?])
        .await?;
    repository
        .git(&["config", scope, "user.email", word("email", &wanted.email)?])
        .await?;
    Ok(done(StatusCode::OK))
}

fn scope(given: Option<&str>) -> Result<&'static str, ApiRefusal> {
    match given {
        None | Some("" | "global") => Ok("--global"),
        Some("local") => Ok("--local"),
        Some("system") => Ok("--system"),
        Some(_) => Err(ApiRefusal::bad_request("scope: expected global, local or system")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_no_options() {
        let given = |text: &str| Some(text.to_owned());
        assert!(word("url", &given("https://x")).is_ok());
        for bad in ["", "--upload-pack=x", "-x", "a\0"] {
            assert!(word("url", &given(bad)).is_err(), "{bad:?}");
        }
        assert_eq!(word_if("branch", &given("")), Ok(None));
        assert!(word_if("branch", &given("-x")).is_err());
    }

    #[test]
    fn passwords_are_no_arguments() {
        let asked = Asked {
            username: Some("u".to_owned()),
            password: Some("p4ss".to_owned()),
            ..Asked::default()
        };
        let env = credentials(&asked, "https://git.example:8443/a/b.git").unwrap();
        assert_eq!(env["GIT_CONFIG_KEY_1"], "credential.https://git.example:8443.helper");
        assert!(
            env.iter()
                .all(|(name, value)| name == "OFFLEASH_GIT_PASSWORD" || !value.contains("p4ss"))
        );
        for nobody in ["ssh://git.example/a", "/srv/a.git", "git@git.example:a/b"] {
            let env = credentials(&asked, nobody).unwrap();
            assert_eq!(env["GIT_CONFIG_COUNT"], "0", "{nobody}");
            assert!(env.values().all(|value| !value.contains("p4ss")), "{nobody}");
        }
        assert_eq!(
            credentials(&Asked::default(), "https://x/").unwrap()["GIT_CONFIG_COUNT"],
            "0"
        );
        let two_lines = Asked {
            password: Some("p\nhost=x".to_owned()),
            ..asked
        };
        assert!(credentials(&two_lines, "https://x/").is_err());
    }
}
