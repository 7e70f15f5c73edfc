//! Files of sandboxes as resources, `offleash://SANDBOX/PATH`.

use data_encoding::BASE64;
use offleash_core::error::{ErrorKind, Explained as _};
use offleash_supervisor::service::error::SupervisorError;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use rmcp::model::{ErrorData, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};

use super::backing::SandboxBacking;
use super::failure::{ToolError, ToolErrorKind};
use super::files;
use super::session::ToolSession;

const SCHEME: &str = "offleash://";
/// The largest file that is read.
const MAX_BYTES: u64 = 8 * 1024 * 1024;
/// The most files that are listed.
const MAX_LISTED: usize = 500;
/// What a path has encoded in an address (RFC 3986, `pchar` and `/`).
const ENCODED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b']')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// The address of a file of a sandbox.
pub(super) fn uri(sandbox: &str, path: &[u8]) -> String {
    let absolute = path.strip_prefix(b"/").unwrap_or(path);
    format!("{SCHEME}{sandbox}/{}", percent_encode(absolute, ENCODED))
}

/// The sandbox and the path of an address.
fn parse(uri: &str) -> Option<(&str, Vec<u8>)> {
    let (sandbox, path) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    let mut whole = b"/".to_vec();
    whole.extend(percent_decode_str(path));
    (crate::http::destination::is_id(sandbox) && !whole.contains(&0)).then_some((sandbox, whole))
}

pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new("offleash://{sandbox}/{+path}", "file of a sandbox")
        .with_title("A file of a sandbox")
        .with_description(
            "The file at the absolute path `/PATH` of the sandbox of that id, as create_sandbox returned it or \
             resources/list shows it.",
        )
}

/// The files in the working directory of the session's own sandbox; none before there is one.
pub(super) async fn list<B: SandboxBacking>(session: &ToolSession<B>) -> Vec<Resource> {
    let Some(sandbox) = session.own().await else {
        return Vec::new();
    };
    let Ok((entries, _)) = files::entries(&sandbox, sandbox.cwd.as_bytes(), 1, MAX_LISTED).await else {
        return Vec::new();
    };
    let files = entries.iter().filter(|entry| files::is_regular(entry));
    let resource = |entry: &offleash_protocol::files::FileEntry| {
        let name = entry.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        Resource::new(uri(&sandbox.id, &entry.path), String::from_utf8_lossy(name)).with_size(entry.size)
    };
    files.map(resource).collect()
}

/// The contents of a file.
pub(super) async fn read<B: SandboxBacking>(
    session: &ToolSession<B>,
    uri: &str,
) -> Result<ReadResourceResult, ErrorData> {
    let shown: String = uri.chars().take(200).collect();
    let not_found = |why: &str| ErrorData::resource_not_found(format!("`{}`: {why}", shown.escape_debug()), None);
    let Some((id, path)) = parse(uri) else {
        return Err(not_found("not the address of a file, offleash://SANDBOX/PATH"));
    };
    let told = |error: ToolError| match &error.what {
        ToolErrorKind::Internal(cause) => {
            ErrorData::internal_error(session.backing().internal(&error.message, &**cause), None)
        }
        ToolErrorKind::NotFound | ToolErrorKind::Gone(_) => not_found(&error.message),
        ToolErrorKind::Usual => ErrorData::invalid_params(error.message, None),
    };
    let sandbox = session.open(id).await.map_err(told)?;
    // One byte more tells whether there is more.
    let read = files::bytes(&sandbox, &path, 0, MAX_BYTES + 1).await;
    let (bytes, size) = read.map_err(|error: SupervisorError| match error.kind() {
        ErrorKind::NotFound => not_found(&error.to_string()),
        _ => told(error.into()),
    })?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_BYTES {
        return Err(ErrorData::invalid_params(
            format!("the file has {size} bytes; {MAX_BYTES} are read at most"),
            None,
        ));
    }
    let contents = match std::str::from_utf8(&bytes) {
        Ok(text) if !text.contains('\0') => ResourceContents::text(text, uri),
        _ => {
            let mime = image_type(&bytes).unwrap_or("application/octet-stream");
            ResourceContents::blob(BASE64.encode(&bytes), uri).with_mime_type(mime)
        }
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

/// The type of an image that hosts show, by how it begins.
pub(super) fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for path in ["/home/user/a b.txt", "/ä/%41?#[x]", "/", "/a//b"] {
            let uri = uri("i1", path.as_bytes());
            assert!(uri.is_ascii(), "{uri}");
            assert_eq!(parse(&uri), Some(("i1", path.as_bytes().to_vec())), "{uri}");
        }
        let invalid = uri("i1", b"/\xff");
        assert_eq!(parse(&invalid), Some(("i1", b"/\xff".to_vec())));
    }

    #[test]
    fn other_addresses_are_none() {
        for uri in [
            "",
            "file:///etc/passwd",
            "offleash://",
            "offleash://i1",
            "offleash:///etc/passwd",
            "offleash://../x",
            "offleash://I1/x",
            "offleash://i1/a%00b",
        ] {
            assert_eq!(parse(uri), None, "{uri}");
        }
    }
}
