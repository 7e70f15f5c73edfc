//! What is in a sandbox's file system, in the words of E2B.

use offleash_protocol::files::{ChangeKind, FileEntry, WatchedChange};

use super::messages::filesystem::{EntryInfo, EventType, FileType, FilesystemEvent};
use crate::e2b::connect::Timestamp;
use crate::http::file_mode::{FileKind, permissions};
use crate::http::path::{name, text};

/// An entry as the SDKs read it.
///
/// For a link, type and mode are those of where it leads; name, size and permissions are its own. A link that leads
/// nowhere is a `SYMLINK`: an entry of unknown type is one that the SDKs leave out of lists.
pub(super) fn entry_info(entry: &FileEntry) -> EntryInfo {
    let is_symlink = FileKind::of(entry.mode) == FileKind::Link;
    let target_mode = entry.target.as_ref().and_then(|target| target.mode);
    let (kind, mode) = match (is_symlink, target_mode) {
        (false, _) => (file_type(entry.mode), entry.mode),
        (true, Some(mode)) => (file_type(mode), mode),
        (true, None) => (FileType::Symlink, entry.mode),
    };
    EntryInfo {
        name: name(&entry.path),
        r#type: kind.into(),
        path: text(&entry.path),
        size: i64::try_from(entry.size).unwrap_or(i64::MAX),
        mode: mode & 0o777,
        permissions: permissions(entry.mode),
        owner: text(&entry.owner),
        group: text(&entry.group),
        modified_time: Some(Timestamp {
            seconds: entry.modified_s,
            nanos: i32::try_from(entry.modified_ns).unwrap_or(0).min(999_999_999),
        }),
        symlink_target: entry.target.as_ref().map(|target| text(&target.path)),
        metadata: entry
            .metadata
            .iter()
            .map(|(key, value)| (text(key), text(value)))
            .collect(),
        is_symlink,
    }
}

/// The memory that an entry takes, about.
pub(super) fn bytes_of(entry: &EntryInfo) -> usize {
    let annotations = entry.metadata.iter();
    let annotations: usize = annotations
        .map(|(name, value)| name.len() + value.len() + 2 * size_of::<String>())
        .sum();
    let target = entry.symlink_target.as_ref().map_or(0, String::len);
    let texts = [&entry.name, &entry.path, &entry.permissions, &entry.owner, &entry.group];
    size_of::<EntryInfo>() + texts.map(String::len).iter().sum::<usize>() + target + annotations
}

/// A change as the SDKs read it; `None` for one that has no word among theirs.
pub(super) fn event(change: &WatchedChange) -> Option<FilesystemEvent> {
    let kind = match change.kind {
        ChangeKind::Create => EventType::Create,
        ChangeKind::Write => EventType::Write,
        ChangeKind::Remove => EventType::Remove,
        ChangeKind::Rename => EventType::Rename,
        ChangeKind::Chmod => EventType::Chmod,
        ChangeKind::Overflow => return None,
    };
    Some(FilesystemEvent {
        name: text(&change.name),
        r#type: kind.into(),
        entry: change.entry.as_ref().map(entry_info),
    })
}

fn file_type(mode: u32) -> FileType {
    match FileKind::of(mode) {
        FileKind::Regular => FileType::File,
        FileKind::Directory => FileType::Directory,
        FileKind::Link => FileType::Symlink,
        FileKind::Other => FileType::Unspecified,
    }
}

#[cfg(test)]
mod tests {
    use offleash_protocol::files::LinkTarget;

    use super::*;

    #[test]
    fn a_link_has_the_type_of_its_target_and_its_own_permissions() {
        let entry = FileEntry {
            path: b"/home/user/link".to_vec(),
            mode: 0o120_777,
            size: 7,
            target: Some(LinkTarget {
                path: b"/etc/hosts".to_vec(),
                mode: Some(0o100_644),
            }),
            ..FileEntry::default()
        };
        let info = entry_info(&entry);
        assert_eq!(
            (info.r#type, info.mode, info.is_symlink),
            (FileType::File.into(), 0o644, true)
        );
        assert_eq!((info.permissions.as_str(), info.size), ("Lrwxrwxrwx", 7));
        assert_eq!(info.symlink_target.as_deref(), Some("/etc/hosts"));
    }

    #[test]
    fn a_link_to_nowhere_is_listed_as_a_link() {
        let entry = FileEntry {
            path: b"/x".to_vec(),
            mode: 0o120_777,
            target: Some(LinkTarget {
                path: b"gone".to_vec(),
                mode: None,
            }),
            ..FileEntry::default()
        };
        assert_eq!(entry_info(&entry).r#type(), FileType::Symlink);
    }

    #[test]
    fn hostile_numbers_and_names_are_taken() {
        let entry = FileEntry {
            path: b"/\xff\n\x1b[2J".to_vec(),
            mode: u32::MAX,
            size: u64::MAX,
            modified_s: i64::MAX,
            modified_ns: u32::MAX,
            ..FileEntry::default()
        };
        let info = entry_info(&entry);
        assert_eq!(info.size, i64::MAX);
        assert_eq!(info.mode, 0o777);
        let text = serde_json::to_string(&info).unwrap();
        assert!(text.contains(r#""modifiedTime":"9999-12-30T22:00:00Z""#), "{text}");
    }

    #[test]
    fn an_overflow_has_no_word() {
        let change = |kind| WatchedChange {
            name: b"a".to_vec(),
            kind,
            entry: None,
        };
        assert_eq!(event(&change(ChangeKind::Overflow)), None);
        assert_eq!(
            event(&change(ChangeKind::Chmod)).map(|event| event.r#type()),
            Some(EventType::Chmod)
        );
    }
}
