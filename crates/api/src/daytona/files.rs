//! Files and directories: looked at, made, moved, searched, changed.

use http::{Response, StatusCode};
use offleash_protocol::files::FileEntry;
use serde::{Deserialize, Serialize};

use super::done;
use super::process::write;
use super::toolbox::{ToolCommand, Toolbox, failed};
use crate::commands::OutputBounds;
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::file_mode::{FileKind, permissions};
use crate::http::json::RequestBody;
use crate::http::path::{name, text};
use crate::http::time;

/// How deep a list may go.
const MAX_DEPTH: u32 = 64;
/// Entries in an answer; a list of more is refused.
const MAX_ENTRIES: usize = 50_000;
/// What the paths in it may have together, in bytes of JSON: what is inside may have given files names that take six for each.
const MAX_PATHS: usize = 8 * 1024 * 1024;
/// What a search may find, in bytes.
const MAX_FOUND: usize = 4 * 1024 * 1024;
/// The largest file in which something is replaced, and how many in one request.
const MAX_REPLACED: usize = 16 * 1024 * 1024;
const MAX_REPLACED_FILES: usize = 1000;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FileAnswer {
    name: String,
    path: String,
    is_dir: bool,
    size: u64,
    mode: String,
    permissions: String,
    owner: String,
    group: String,
    mod_time: String,
    modified_at: String,
}

impl FileAnswer {
    fn of(entry: &FileEntry) -> Self {
        let target = entry.target.as_ref().and_then(|target| target.mode);
        let seconds = u64::try_from(entry.modified_s).unwrap_or(0);
        let modified = time::text(time::of_unix_seconds(seconds));
        Self {
            name: name(&entry.path),
            path: text(&entry.path),
            is_dir: FileKind::of(target.unwrap_or(entry.mode)) == FileKind::Directory,
            size: entry.size,
            mode: permissions(entry.mode),
            permissions: format!("{:04o}", entry.mode & 0o7777),
            owner: text(&entry.owner),
            group: text(&entry.group),
            mod_time: modified.clone(),
            modified_at: modified,
        }
    }
}

#[derive(Debug, Serialize)]
struct MatchAnswer {
    file: String,
    line: u64,
    content: String,
}

#[derive(Debug, Serialize)]
struct FoundAnswer {
    files: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Replacement {
    files: Vec<String>,
    pattern: String,
    new_value: String,
}

#[derive(Debug, Serialize)]
struct ReplacedAnswer {
    file: String,
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(crate) async fn list(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let path = toolbox.resolve_or_here(&toolbox.given("path").unwrap_or_default())?;
    let depth = match toolbox.given("depth").filter(|depth| !depth.is_empty()) {
        None => 1,
        Some(depth) => {
            let depth = depth.parse().ok().filter(|depth| (1..=MAX_DEPTH).contains(depth));
            depth.ok_or_else(|| ApiRefusal::bad_request(format!("depth: expected 1 to {MAX_DEPTH}")))?
        }
    };
    let mut files = toolbox.files().await?;
    let refused = |error| toolbox.refused(&error);
    let mut listing = files.list(&path, depth).await.map_err(refused)?;
    let mut entries = Vec::new();
    let mut length = 0;
    while let Some(piece) = listing.next().await.map_err(refused)? {
        length += piece.iter().map(|entry| in_json(&entry.path)).sum::<usize>();
        if length > MAX_PATHS {
            let why = "the paths of all entries are longer than an answer may be";
            return Err(ApiRefusal::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        entries.extend(piece.iter().map(FileAnswer::of));
        if entries.len() > MAX_ENTRIES {
            let why = format!("there are more than {MAX_ENTRIES} entries");
            return Err(ApiRefusal::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
    }
    Ok(answer::json(StatusCode::OK, &entries))
}

/// How long a path is in JSON, at most.
fn in_json(path: &[u8]) -> usize {
    let bytes = path.iter().map(|byte| match byte {
        b' '..=b'~' => 1,
        _ => 6,
    });
    bytes.sum()
}

pub(crate) async fn info(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let path = toolbox.path_in_query("path")?;
    let entry = toolbox.files().await?.stat(&path).await;
    let entry = entry.map_err(|error| toolbox.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &FileAnswer::of(&entry)))
}

pub(crate) async fn make_directory(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let path = text_of(toolbox.path_in_query("path")?)?;
    let mode = toolbox.given("mode").filter(|mode| !mode.is_empty());
    let mode = octal(mode.as_deref().unwrap_or("755"))?;
    toolbox.succeed(program(["mkdir", "-p", "--"], [path.clone()])).await?;
    toolbox.succeed(program(["chmod", &mode, "--"], [path])).await?;
    Ok(done(StatusCode::CREATED))
}

pub(crate) async fn delete(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let path = toolbox.path_in_query("path")?;
    let recursive = toolbox.given("recursive").is_some_and(|word| word == "true");
    let mut files = toolbox.files().await?;
    let refused = |error| toolbox.refused(&error);
    let entry = files.stat(&path).await.map_err(refused)?;
    if FileKind::of(entry.mode) == FileKind::Directory && !recursive {
        return Err(ApiRefusal::bad_request(
            "it is a directory, which is removed with `recursive=true`",
        ));
    }
    files.remove(&path).await.map_err(refused)?;
    Ok(done(StatusCode::NO_CONTENT))
}

pub(crate) async fn rename(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let source = text_of(toolbox.path_in_query("source")?)?;
    let destination = text_of(toolbox.path_in_query("destination")?)?;
    // It may be on another file system: `/tmp` is one of its own.
    let entry = toolbox.files().await?.stat(source.as_bytes()).await;
    entry.map_err(|error| toolbox.refused(&error))?;
    toolbox
        .succeed(program(["mv", "-T", "--"], [source, destination]))
        .await?;
    Ok(done(StatusCode::OK))
}

pub(crate) async fn set_permissions(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let path = text_of(toolbox.path_in_query("path")?)?;
    let value = |name: &str| toolbox.given(name).filter(|value| !value.is_empty());
    let (mode, owner, group) = (value("mode"), value("owner"), value("group"));
    if owner.is_some() || group.is_some() {
        let word = |name: &Option<String>| name.clone().unwrap_or_default();
        let who = match &group {
            Some(group) => format!("{}:{group}", word(&owner)),
            None => word(&owner),
        };
        if who.starts_with('-') {
            return Err(ApiRefusal::bad_request("owner: it is no name"));
        }
        toolbox.succeed(program(["chown", &who, "--"], [path.clone()])).await?;
    }
    if let Some(mode) = mode {
        toolbox
            .succeed(program(["chmod", &octal(&mode)?, "--"], [path]))
            .await?;
    }
    Ok(done(StatusCode::OK))
}

/// Names of files below a directory that fit a pattern of the shell's.
pub(crate) async fn search(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let path = text_of(toolbox.path_in_query("path")?)?;
    let pattern = toolbox.required("pattern")?;
    let found = toolbox
        .succeed(bounded(program(
            ["find"],
            [path, "-name".to_owned(), pattern, "-print0".to_owned()],
        )))
        .await?;
    let files = found.split(|byte| *byte == 0).filter(|file| !file.is_empty());
    let files = files.map(text).collect();
    Ok(answer::json(StatusCode::OK, &FoundAnswer { files }))
}

/// Lines of files below a directory in which a text is.
pub(crate) async fn find(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let toolbox = Toolbox::open(asked, given).await?;
    let path = text_of(toolbox.path_in_query("path")?)?;
    let pattern = toolbox.required("pattern")?;
    let words = [
        "grep",
        "--recursive",
        "--line-number",
        "--null",
        "--with-filename",
        "-I",
        "--fixed-strings",
    ];
    let command = bounded(program(words, ["--regexp".to_owned(), pattern, "--".to_owned(), path]));
    let outcome = toolbox.run(command).await?;
    match outcome.exit_code {
        // A code of 1 is that there is none.
        Some(0 | 1) if !outcome.truncated => {}
        Some(0) => {
            let why = "there is more than an answer may have";
            return Err(ApiRefusal::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        _ => return Err(failed(&outcome)),
    }
    let lines = outcome.stdout.split(|byte| *byte == b'\n');
    let matches: Vec<MatchAnswer> = lines.filter_map(matched).collect();
    Ok(answer::json(StatusCode::OK, &matches))
}

/// A line such as `FILE\0NUMBER:TEXT`.
fn matched(line: &[u8]) -> Option<MatchAnswer> {
    let nul = line.iter().position(|byte| *byte == 0)?;
    let (file, rest) = (&line[..nul], &line[nul + 1..]);
    let colon = rest.iter().position(|byte| *byte == b':')?;
    Some(MatchAnswer {
        file: text(file),
        line: std::str::from_utf8(&rest[..colon]).ok()?.parse().ok()?,
        content: text(&rest[colon + 1..]),
    })
}

/// Replaces a text in files; what became of each is told.
pub(crate) async fn replace(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let Replacement {
        files,
        pattern,
        new_value,
    } = body.read().await?;
    if pattern.is_empty() || files.len() > MAX_REPLACED_FILES {
        let why = format!("there must be a `pattern`, and at most {MAX_REPLACED_FILES} files");
        return Err(ApiRefusal::bad_request(why));
    }
    let toolbox = Toolbox::open(asked, given).await?;
    let mut told = Vec::new();
    for file in files {
        let replaced = replaced_in(&toolbox, &file, &pattern, &new_value).await;
        told.push(ReplacedAnswer {
            file,
            success: replaced.is_ok(),
            error: replaced.err().map(|refusal| refusal.message),
        });
    }
    Ok(answer::json(StatusCode::OK, &told))
}

async fn replaced_in(toolbox: &Toolbox<'_>, file: &str, pattern: &str, new_value: &str) -> Result<(), ApiRefusal> {
    let path = text_of(toolbox.resolve(file)?)?;
    let contents = contents(toolbox, path.as_bytes(), MAX_REPLACED).await?;
    let contents = String::from_utf8(contents).map_err(|_| ApiRefusal::bad_request("the file is no text"))?;
    if !contents.contains(pattern) {
        return Ok(());
    }
    let grown = contents.matches(pattern).count().saturating_mul(new_value.len());
    if grown > MAX_REPLACED {
        return Err(ApiRefusal::bad_request(format!(
            "the file would have more than {MAX_REPLACED} bytes"
        )));
    }
    write(toolbox, &path, contents.replace(pattern, new_value).as_bytes()).await
}

/// A whole file that is not larger than that.
pub(super) async fn contents(toolbox: &Toolbox<'_>, path: &[u8], most: usize) -> Result<Vec<u8>, ApiRefusal> {
    let mut files = toolbox.files().await?;
    let refused = |error| toolbox.refused(&error);
    let mut reader = files.read(path, 0, None).await.map_err(refused)?;
    let mut contents = Vec::new();
    while let Some(piece) = reader.next().await.map_err(refused)? {
        contents.extend(piece);
        if contents.len() > most {
            let why = format!("the file has more than {most} bytes");
            return Err(ApiRefusal::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
    }
    Ok(contents)
}

fn program<const N: usize, const M: usize>(words: [&str; N], more: [String; M]) -> ToolCommand {
    ToolCommand {
        argv: words.map(str::to_owned).into_iter().chain(more).collect(),
        ..ToolCommand::default()
    }
}

fn bounded(command: ToolCommand) -> ToolCommand {
    ToolCommand {
        bounds: OutputBounds {
            of_stream: MAX_FOUND,
            ..OutputBounds::default()
        },
        ..command
    }
}

/// A path that programs are given is a text: what came in JSON or in a query was one.
fn text_of(path: Vec<u8>) -> Result<String, ApiRefusal> {
    String::from_utf8(path).map_err(|_| ApiRefusal::bad_request("path: expected a text"))
}

/// Permissions as numbers, as in `755`.
fn octal(mode: &str) -> Result<String, ApiRefusal> {
    let is_octal = (3..=4).contains(&mode.len()) && mode.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    match is_octal {
        true => Ok(mode.to_owned()),
        false => Err(ApiRefusal::bad_request(
            "mode: expected three or four octal digits, as in `755`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_were_found_are_read() {
        let found = matched(b"/a:b\x0012:c:d").unwrap();
        assert_eq!(
            (found.file.as_str(), found.line, found.content.as_str()),
            ("/a:b", 12, "c:d")
        );
        for line in [&b""[..], b"/a", b"/a\0", b"/a\0x:y", b"/a\x0099999999999999999999:y"] {
            assert!(matched(line).is_none(), "{line:?}");
        }
    }

    #[test]
    fn permissions_are_octal() {
        assert!(["755", "0644", "1777"].iter().all(|mode| octal(mode).is_ok()));
        for mode in ["", "7", "-77", "u+x", "888", "77777", "--reference=/a"] {
            assert!(octal(mode).is_err(), "{mode}");
        }
    }
}
