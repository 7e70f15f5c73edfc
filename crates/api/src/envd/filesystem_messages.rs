//! The messages of `filesystem.Filesystem`, in both forms.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::connect::json;

pub(super) use super::process_messages::Empty;

/// What `Stat`, `MakeDir`, `Remove` ask.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PathRequest {
    #[prost(string, optional, tag = "1")]
    pub(super) path: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct MoveRequest {
    #[prost(string, optional, tag = "1")]
    pub(super) source: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) destination: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ListDirRequest {
    #[prost(string, optional, tag = "1")]
    pub(super) path: Option<String>,
    #[prost(uint32, optional, tag = "2")]
    #[serde(deserialize_with = "json::integer")]
    pub(super) depth: Option<u32>,
}

/// What `Stat`, `MakeDir` and `Move` answer.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct EntryResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) entry: Option<EntryInfo>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ListDirResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<EntryInfo>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EntryInfo {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(int32, tag = "2")]
    #[serde(rename = "type", with = "file_type")]
    pub(super) kind: i32,
    #[prost(string, tag = "3")]
    pub(super) path: String,
    #[prost(int64, tag = "4")]
    #[serde(with = "json::wide")]
    pub(super) size: i64,
    /// The nine bits of permissions.
    #[prost(uint32, tag = "5")]
    pub(super) mode: u32,
    #[prost(string, tag = "6")]
    pub(super) permissions: String,
    #[prost(string, tag = "7")]
    pub(super) owner: String,
    #[prost(string, tag = "8")]
    pub(super) group: String,
    #[prost(message, optional, tag = "9")]
    #[serde(with = "time", skip_serializing_if = "Option::is_none")]
    pub(super) modified_time: Option<Timestamp>,
    #[prost(string, optional, tag = "10")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) symlink_target: Option<String>,
    #[prost(btree_map = "string, string", tag = "11")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "json::nullable")]
    pub(super) metadata: BTreeMap<String, String>,
    #[prost(bool, tag = "12")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_symlink: bool,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

/// What `WatchDir` and `CreateWatcher` ask.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WatchRequest {
    #[prost(string, optional, tag = "1")]
    pub(super) path: Option<String>,
    #[prost(bool, optional, tag = "2")]
    pub(super) recursive: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    #[serde(alias = "include_entry")]
    pub(super) include_entry: Option<bool>,
    /// There are none in a sandbox.
    #[prost(bool, optional, tag = "4")]
    #[serde(alias = "allow_network_mounts")]
    pub(super) allow_network_mounts: Option<bool>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct FilesystemEvent {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(int32, tag = "2")]
    #[serde(rename = "type", with = "event_type")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) entry: Option<EntryInfo>,
}

/// One of these.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct WatchDirResponse {
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) start: Option<Empty>,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) filesystem: Option<FilesystemEvent>,
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keepalive: Option<Empty>,
}

/// What names a watcher: in the answer of `CreateWatcher`, in what `GetWatcherEvents` and `RemoveWatcher` ask.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WatcherId {
    #[prost(string, optional, tag = "1")]
    #[serde(alias = "watcher_id")]
    pub(super) watcher_id: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct GetWatcherEventsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) events: Vec<FilesystemEvent>,
}

/// Values of `FileType`.
pub(super) const UNSPECIFIED: i32 = 0;
pub(super) const FILE: i32 = 1;
pub(super) const DIRECTORY: i32 = 2;
pub(super) const SYMLINK: i32 = 3;

mod file_type {
    use serde::{Deserializer, Serializer};

    use super::{DIRECTORY, FILE, SYMLINK, UNSPECIFIED};
    use crate::connect::json;

    const NAMES: &json::Names = &[
        (UNSPECIFIED, "FILE_TYPE_UNSPECIFIED"),
        (FILE, "FILE_TYPE_FILE"),
        (DIRECTORY, "FILE_TYPE_DIRECTORY"),
        (SYMLINK, "FILE_TYPE_SYMLINK"),
    ];

    pub(super) fn serialize<S: Serializer>(kind: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        json::name(NAMES, *kind, serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        Ok(json::named(NAMES, deserializer)?.unwrap_or_default())
    }
}

/// Values of `EventType`.
pub(super) const CREATE: i32 = 1;
pub(super) const WRITE: i32 = 2;
pub(super) const REMOVE: i32 = 3;
pub(super) const RENAME: i32 = 4;
pub(super) const CHMOD: i32 = 5;

mod event_type {
    use serde::{Deserializer, Serializer};

    use super::{CHMOD, CREATE, REMOVE, RENAME, WRITE};
    use crate::connect::json;

    const NAMES: &json::Names = &[
        (0, "EVENT_TYPE_UNSPECIFIED"),
        (CREATE, "EVENT_TYPE_CREATE"),
        (WRITE, "EVENT_TYPE_WRITE"),
        (REMOVE, "EVENT_TYPE_REMOVE"),
        (RENAME, "EVENT_TYPE_RENAME"),
        (CHMOD, "EVENT_TYPE_CHMOD"),
    ];

    pub(super) fn serialize<S: Serializer>(kind: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        json::name(NAMES, *kind, serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        Ok(json::named(NAMES, deserializer)?.unwrap_or_default())
    }
}

/// Times as RFC 3339.
mod time {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    use super::Timestamp;

    /// The year 1, before which there is no time in this form.
    const FIRST: i64 = -62_135_596_800;

    pub(super) fn serialize<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(Timestamp { seconds, nanos }) = time else {
            return serializer.serialize_none();
        };
        // And nearly the end of the year 9999.
        let clamped = (*seconds).clamp(FIRST, jiff::Timestamp::MAX.as_second());
        let nanos = if clamped == *seconds {
            (*nanos).clamp(0, 999_999_999)
        } else {
            0
        };
        match jiff::Timestamp::from_second(clamped)
            .and_then(|second| second.checked_add(jiff::SignedDuration::from_nanos(i64::from(nanos))))
        {
            Ok(time) => serializer.collect_str(&time),
            Err(_) => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let time: jiff::Timestamp = text.parse().map_err(|_| D::Error::custom("a time must be RFC 3339"))?;
        Ok(Some(Timestamp {
            seconds: time.as_second(),
            nanos: time.subsec_nanosecond(),
        }))
    }
}
