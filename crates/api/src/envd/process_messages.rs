//! The messages of `process.Process`, in both forms.
//!
//! A choice between fields ("oneof") is a field for each here, of which one is set: that is the same on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::connect::json;

/// Nothing.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Pty {
    #[prost(message, optional, tag = "1")]
    pub(super) size: Option<PtySize>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PtySize {
    #[prost(uint32, optional, tag = "1")]
    #[serde(deserialize_with = "json::integer")]
    pub(super) cols: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    #[serde(deserialize_with = "json::integer")]
    pub(super) rows: Option<u32>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProcessConfig {
    #[prost(string, optional, tag = "1")]
    pub(super) cmd: Option<String>,
    #[prost(string, repeated, tag = "2")]
    #[serde(deserialize_with = "json::nullable")]
    pub(super) args: Vec<String>,
    #[prost(btree_map = "string, string", tag = "3")]
    #[serde(deserialize_with = "json::nullable")]
    pub(super) envs: BTreeMap<String, String>,
    #[prost(string, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProcessInfo {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<ProcessConfig>,
    #[prost(uint32, tag = "2")]
    pub(super) pid: u32,
    #[prost(string, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tag: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) processes: Vec<ProcessInfo>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StartRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) process: Option<ProcessConfig>,
    #[prost(message, optional, tag = "2")]
    pub(super) pty: Option<Pty>,
    #[prost(string, optional, tag = "3")]
    pub(super) tag: Option<String>,
    #[prost(bool, optional, tag = "4")]
    pub(super) stdin: Option<bool>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct UpdateRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) process: Option<ProcessSelector>,
    #[prost(message, optional, tag = "2")]
    pub(super) pty: Option<Pty>,
}

/// What `Start` and `Connect` answer, again and again.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct EventResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) event: Option<ProcessEvent>,
}

/// One of these.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProcessEvent {
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) start: Option<StartEvent>,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<DataEvent>,
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) end: Option<EndEvent>,
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keepalive: Option<Empty>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StartEvent {
    #[prost(uint32, tag = "1")]
    pub(super) pid: u32,
}

/// One of these.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct DataEvent {
    #[prost(bytes = "vec", optional, tag = "1")]
    #[serde(with = "json::bytes", skip_serializing_if = "Option::is_none")]
    pub(super) stdout: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    #[serde(with = "json::bytes", skip_serializing_if = "Option::is_none")]
    pub(super) stderr: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "3")]
    #[serde(with = "json::bytes", skip_serializing_if = "Option::is_none")]
    pub(super) pty: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EndEvent {
    /// -1 when a signal ended it.
    #[prost(sint32, tag = "1")]
    pub(super) exit_code: i32,
    /// Whether it returned by itself.
    #[prost(bool, tag = "2")]
    pub(super) exited: bool,
    #[prost(string, tag = "3")]
    pub(super) status: String,
    #[prost(string, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// One of these.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProcessInput {
    #[prost(bytes = "vec", optional, tag = "1")]
    #[serde(with = "json::bytes", skip_serializing_if = "Option::is_none")]
    pub(super) stdin: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    #[serde(with = "json::bytes", skip_serializing_if = "Option::is_none")]
    pub(super) pty: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SendInputRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) process: Option<ProcessSelector>,
    #[prost(message, optional, tag = "2")]
    pub(super) input: Option<ProcessInput>,
}

/// One of these.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StreamInputRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) start: Option<SelectRequest>,
    #[prost(message, optional, tag = "2")]
    pub(super) data: Option<InputEvent>,
    #[prost(message, optional, tag = "3")]
    pub(super) keepalive: Option<Empty>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct InputEvent {
    #[prost(message, optional, tag = "2")]
    pub(super) input: Option<ProcessInput>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SendSignalRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) process: Option<ProcessSelector>,
    #[prost(int32, optional, tag = "2")]
    #[serde(with = "signal")]
    pub(super) signal: Option<i32>,
}

/// What `Connect` and `CloseStdin` ask, and the start of `StreamInput`.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SelectRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) process: Option<ProcessSelector>,
}

/// One of these.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProcessSelector {
    #[prost(uint32, optional, tag = "1")]
    #[serde(deserialize_with = "json::integer", skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<u32>,
    #[prost(string, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tag: Option<String>,
}

mod signal {
    use serde::{Deserializer, Serializer};

    use crate::connect::json;

    const NAMES: &json::Names = &[(0, "SIGNAL_UNSPECIFIED"), (15, "SIGNAL_SIGTERM"), (9, "SIGNAL_SIGKILL")];

    pub(super) fn serialize<S: Serializer>(signal: &Option<i32>, serializer: S) -> Result<S::Ok, S::Error> {
        json::name(NAMES, signal.unwrap_or_default(), serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
        json::named(NAMES, deserializer)
    }
}
