//! The tools for files. Paths are only joined here; what they lead to is found out inside the sandbox.

use std::path::Path;

use data_encoding::{BASE64, BASE64_MIME_PERMISSIVE};
use offleash_protocol::files::FileEntry;
use offleash_supervisor::service::error::SupervisorError;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

use super::arguments::{ContentEncoding, ListFilesArguments, ReadFileArguments, WriteFileArguments};
use super::backing::OpenedSandbox;
use super::failure::ToolError;
use super::kept::without_broken_end;
use super::resources;

/// How much of a text is returned at once, unless more is asked for, and the most that may be, in bytes.
pub(super) const USUAL_TEXT: u64 = 64 * 1024;
pub(super) const MAX_TEXT: u64 = 1024 * 1024;
/// The largest file that is returned whole because it is no text, in bytes.
pub(super) const MAX_BYTES: u64 = 3 * 1024 * 1024;
/// How many levels of directories are listed at most.
pub(super) const MAX_DEPTH: u32 = 10;
/// The most entries that are listed.
const MAX_ENTRIES: usize = 1000;

/// `S_IFMT` and what it may hold (inode(7)).
const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

/// The whole path of what a model calls `path`.
pub(super) fn path(sandbox: &OpenedSandbox, path: &str) -> Vec<u8> {
    Path::new(&sandbox.cwd).join(path).into_os_string().into_encoded_bytes()
}

fn failed(tried: &str, path: &str) -> impl FnOnce(SupervisorError) -> ToolError {
    let shown: String = path.chars().take(200).collect();
    let tried = format!("{tried} `{}`", shown.escape_debug());
    move |error| {
        let is_gone = matches!(error, SupervisorError::Gone);
        let error = ToolError::from(error);
        if is_gone { error } else { error.while_trying(tried) }
    }
}

/// The beginning of a file from `offset` on, at most `most` bytes, and how large all of it is.
pub(super) async fn bytes(
    sandbox: &OpenedSandbox,
    path: &[u8],
    offset: u64,
    most: u64,
) -> Result<(Vec<u8>, u64), SupervisorError> {
    let mut channel = sandbox.supervisor.files(None).await?;
    let mut reader = channel.read(path, offset, Some(most)).await?;
    let size = reader.entry().size;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok((bytes, size))
}

/// Reads a file.
pub(super) async fn read(sandbox: &OpenedSandbox, asked: &ReadFileArguments) -> Result<CallToolResult, ToolError> {
    let whole = path(sandbox, &asked.path);
    let length = asked.length.unwrap_or(USUAL_TEXT).clamp(1, MAX_TEXT);
    let offset = asked.offset.unwrap_or(0);
    let tried = || failed("read", &asked.path);
    let (bytes, size) = self::bytes(sandbox, &whole, offset, length).await.map_err(tried())?;
    let is_part = offset + u64::try_from(bytes.len()).unwrap_or(u64::MAX) < size;
    let text = if is_part { without_broken_end(&bytes) } else { &bytes };
    if let Ok(text) = std::str::from_utf8(text)
        && !text.contains('\0')
    {
        let mut content = vec![ContentBlock::text(text)];
        if is_part {
            let next = offset + u64::try_from(text.len()).unwrap_or(u64::MAX);
            content.push(ContentBlock::text(format!(
                "[bytes {offset} to {next} of {size}; `offset`: {next} reads on]"
            )));
        }
        return Ok(CallToolResult::success(content));
    }
    if size > MAX_BYTES {
        return Err(ToolError::new(format!(
            "`{}` is no text and has {size} bytes; {MAX_BYTES} are returned at most",
            asked.path
        ))
        .with_hint("look at it with run_command or run_code inside the sandbox"));
    }
    let (bytes, _) = self::bytes(sandbox, &whole, 0, MAX_BYTES).await.map_err(tried())?;
    let data = BASE64.encode(&bytes);
    let block = match resources::image_type(&bytes) {
        Some(mime) => ContentBlock::image(data, mime),
        None => ContentBlock::resource(
            ResourceContents::blob(data, resources::uri(&sandbox.id, &whole))
                .with_mime_type("application/octet-stream"),
        ),
    };
    Ok(CallToolResult::success(vec![block]))
}

/// Writes a file.
pub(super) async fn write(sandbox: &OpenedSandbox, asked: &WriteFileArguments) -> Result<CallToolResult, ToolError> {
    let decoded;
    let contents = match asked.encoding.unwrap_or(ContentEncoding::Utf8) {
        ContentEncoding::Utf8 => asked.content.as_bytes(),
        ContentEncoding::Base64 => {
            decoded = BASE64_MIME_PERMISSIVE
                .decode(asked.content.as_bytes())
                .map_err(|error| ToolError::new(format!("`content` is not base64: {error}")))?;
            &decoded
        }
    };
    let whole = path(sandbox, &asked.path);
    let written = async {
        let mut channel = sandbox.supervisor.files(None).await?;
        let mut writer = channel.write(&whole, Vec::new()).await?;
        writer.send(contents).await?;
        writer.finish().await
    };
    let entry = written.await.map_err(failed("write", &asked.path))?;
    Ok(CallToolResult::success(vec![ContentBlock::text(format!(
        "{} bytes written to {}",
        entry.size,
        String::from_utf8_lossy(&entry.path)
    ))]))
}

/// Lists a directory.
pub(super) async fn list(sandbox: &OpenedSandbox, asked: &ListFilesArguments) -> Result<CallToolResult, ToolError> {
    let given = asked.path.as_deref().unwrap_or(".");
    let depth = asked.depth.unwrap_or(1).clamp(1, MAX_DEPTH);
    let whole = path(sandbox, given);
    let (entries, more) = entries(sandbox, &whole, depth, MAX_ENTRIES)
        .await
        .map_err(failed("list", given))?;
    let mut text: String = entries.iter().map(|entry| line(entry) + "\n").collect();
    if entries.is_empty() {
        text.push_str("(empty)\n");
    }
    if more {
        text.push_str(&format!("[there are more; {MAX_ENTRIES} are listed at most]\n"));
    }
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]))
}

/// The entries of a directory, at most `most`, and whether there are more.
pub(super) async fn entries(
    sandbox: &OpenedSandbox,
    path: &[u8],
    depth: u32,
    most: usize,
) -> Result<(Vec<FileEntry>, bool), SupervisorError> {
    let mut channel = sandbox.supervisor.files(None).await?;
    let mut listing = channel.list(path, depth).await?;
    let mut entries: Vec<FileEntry> = Vec::new();
    while let Some(mut next) = listing.next().await? {
        entries.append(&mut next);
        if entries.len() > most {
            entries.truncate(most);
            // The rest is on its way, and the channel goes with this call.
            return Ok((entries, true));
        }
    }
    Ok((entries, false))
}

fn line(entry: &FileEntry) -> String {
    let kind = match entry.mode & TYPE {
        DIRECTORY => 'd',
        LINK => 'l',
        _ => '-',
    };
    let path = String::from_utf8_lossy(&entry.path);
    let size = entry.size;
    match &entry.target {
        Some(target) => format!("{kind} {size:>10} {path} -> {}", String::from_utf8_lossy(&target.path)),
        None => format!("{kind} {size:>10} {path}"),
    }
}

pub(super) fn is_regular(entry: &FileEntry) -> bool {
    entry.mode & TYPE == 0o100_000
}
