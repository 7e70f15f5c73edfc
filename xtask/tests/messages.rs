//! The messages of a sandbox's services, made of `crates/api/proto`: in both of their forms.
//!
//! A compiler of Protocol Buffers reads the files, `prost-build` writes types from them, and what JSON asks for is added by
//! type of field. The result is committed, so that no build needs a compiler; this compares it.
//! `OFFLEASH_UPDATE_MESSAGES=1 cargo test -p xtask --test messages` writes it anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use prost_build::{Config, Method, Service, ServiceGenerator};
use protox::prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use protox::prost_reflect::prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

const PACKAGES: [&str; 2] = ["process", "filesystem"];
/// The one message of Google's own that is used.
const TIMESTAMP: &str = ".google.protobuf.Timestamp";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/api")
}

/// What the files say, in the form in which compilers hand it on.
fn descriptors() -> FileDescriptorSet {
    let proto = root().join("proto");
    let files = PACKAGES.map(|package| proto.join(package).with_extension("proto"));
    let mut compiler = protox::Compiler::new([proto]).unwrap();
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(files).unwrap();
    compiler.file_descriptor_set()
}

/// Makes each choice between fields ("oneof") a field for each, of which one is set: that is the same on the wire, and a
/// request that sets two does not silently mean the last.
fn without_choices(message: &mut DescriptorProto) {
    for field in &mut message.field {
        if field.oneof_index.is_some() {
            field.proto3_optional = Some(true);
        }
    }
}

/// How `serde` writes and reads a field, so that it is what Protocol Buffers have in JSON.
fn json_of(message: &DescriptorProto, field: &FieldDescriptorProto) -> Vec<String> {
    let mut rules = Vec::new();
    let name = field.name();
    if name.contains('_') {
        rules.push(format!("alias = \"{name}\""));
    }
    let has_presence = field.proto3_optional() || field.r#type() == Type::Message;
    let is_list = field.label() == Label::Repeated;
    if has_presence && !is_list {
        rules.push("skip_serializing_if = \"Option::is_none\"".to_owned());
    }
    let json = |name: &str| format!("crate::e2b::connect::json::{name}");
    let reads = |name: &str| format!("deserialize_with = \"{}\"", json(name));
    match field.r#type() {
        _ if is_list => rules.push(reads("nullable")),
        Type::Bytes => rules.push(format!("with = \"{}\"", json("bytes"))),
        Type::Int64 => rules.push(format!("with = \"{}\"", json("wide"))),
        Type::Uint32 | Type::Sint32 if has_presence => rules.push(reads("integer")),
        Type::Uint32 | Type::Sint32 => rules.push(reads("integer_or_zero")),
        Type::Enum => {
            let kind = field.type_name().rsplit('.').next().unwrap();
            rules.push(format!("serialize_with = \"{}::<_, {kind}>\"", json("name")));
            rules.push(format!("deserialize_with = \"{}::<_, {kind}>\"", json("named")));
        }
        Type::String | Type::Bool if !has_presence => rules.push(reads("nullable")),
        Type::String | Type::Bool | Type::Message => {}
        other => panic!("{}.{name}: how is {other:?} written?", message.name()),
    }
    // What E2B leaves out of its answers where it says nothing.
    match (message.name(), name) {
        ("EntryInfo", "metadata") => {
            rules.push("skip_serializing_if = \"std::collections::BTreeMap::is_empty\"".into())
        }
        ("EntryInfo", "is_symlink") => rules.push("skip_serializing_if = \"std::ops::Not::not\"".into()),
        _ => {}
    }
    rules
}

/// Writes which methods a service has, and how each is called.
struct MethodTable;

impl ServiceGenerator for MethodTable {
    fn generate(&mut self, service: Service, text: &mut String) {
        let kind = |method: &Method| match method.client_streaming || method.server_streaming {
            true => "Stream",
            false => "Unary",
        };
        let row = |method: &Method| {
            format!(
                "    (\"{}\", crate::e2b::connect::CallKind::{}),\n",
                method.proto_name,
                kind(method)
            )
        };
        let rows: String = service.methods.iter().map(row).collect();
        text.push_str(&format!(
            "/// The methods of `{}.{}`, and how each is called.\npub const METHODS: [(&str, crate::e2b::connect::CallKind); {}] = [\n{rows}];\n",
            service.package,
            service.proto_name,
            service.methods.len()
        ));
    }
}

/// The text of each package's module.
fn generated() -> Vec<(&'static str, String)> {
    let mut set = descriptors();
    let mut config = Config::new();
    config
        .btree_map(["."])
        .extern_path(TIMESTAMP, "crate::e2b::connect::Timestamp")
        .service_generator(Box::new(MethodTable))
        .message_attribute(".", "#[derive(::serde::Serialize, ::serde::Deserialize)]")
        .message_attribute(".", "#[serde(rename_all = \"camelCase\", default)]");
    let mut enumerations = Vec::new();
    for file in &mut set.file {
        let package = file.package().to_owned();
        if !PACKAGES.contains(&package.as_str()) {
            continue;
        }
        enumerations.extend(
            file.enum_type
                .iter()
                .map(|kind| (package.clone(), kind.name().to_owned())),
        );
        for message in &mut file.message_type {
            without_choices(message);
            for field in &message.field {
                let rules = json_of(message, field).join(", ");
                if !rules.is_empty() {
                    let path = format!(".{package}.{}.{}", message.name(), field.name());
                    config.field_attribute(path, format!("#[serde({rules})]"));
                }
            }
        }
    }
    let out = tempfile::tempdir().unwrap();
    config.out_dir(out.path());
    config.compile_fds(set).unwrap();
    PACKAGES
        .iter()
        .map(|package| {
            let text = fs::read_to_string(out.path().join(package).with_extension("rs")).unwrap();
            let mut text = text.replace("pub ", "pub(crate) ");
            for (_, kind) in enumerations.iter().filter(|(of, _)| of == package) {
                text.push_str(&format!("crate::e2b::connect::json::enumeration!({kind});\n"));
            }
            let header = format!(
                "//! The messages of `proto/{package}.proto`. Made of it by xtask/tests/messages.rs; change those.\n\n"
            );
            (*package, header + &text)
        })
        .collect()
}

#[test]
fn the_committed_messages_are_those_of_the_protocol() {
    for (package, text) in generated() {
        let path = root().join("src/e2b/envd/messages").join(package).with_extension("rs");
        if std::env::var_os("OFFLEASH_UPDATE_MESSAGES").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == text,
            "{} is not what proto/{package}.proto says; write it anew with OFFLEASH_UPDATE_MESSAGES=1",
            path.display()
        );
    }
}
