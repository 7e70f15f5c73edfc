//! WASI preview 2, which components import as `wasi:…@0.2`. Sockets and HTTP are absent: a component that only imports
//! sockets is run, and ends when it calls one.

mod cli;
mod filesystem;
mod streams;

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, ComponentExportIndex, Linker, ResourceType};
use wasmtime::{Engine, Result};

use super::Lacks;
use super::command::CommandState;

pub(super) use filesystem::ErrorCode;

/// The version that is defined; others of 0.2 are taken for it, as they are compatible.
const VERSION: &str = "0.2.6";
const SOCKETS: &str = "wasi:sockets/";
/// The resources of its interfaces.
const SOCKET_RESOURCES: [(&str, &str); 6] = [
    ("network", "network"),
    ("tcp", "tcp-socket"),
    ("udp", "udp-socket"),
    ("udp", "incoming-datagram-stream"),
    ("udp", "outgoing-datagram-stream"),
    ("ip-name-lookup", "resolve-address-stream"),
];
const RUN: &str = "wasi:cli/run@0.2.";
/// The newest of those that a component may export.
const MAX_PATCH: u32 = 99;

/// A socket, of which there is none.
enum NoSocket {}

/// An interface's name with its version.
fn interface(name: &str) -> String {
    format!("{name}@{VERSION}")
}

/// Defines the interfaces.
pub(super) fn add_to(linker: &mut Linker<CommandState>) -> Result<()> {
    streams::add_to(linker)?;
    cli::add_to(linker)?;
    filesystem::add_to(linker)
}

/// Has calls of sockets end the component. Whatever else is not here keeps it from beginning.
pub(super) fn refuse_sockets(linker: &mut Linker<CommandState>, engine: &Engine, component: &Component) -> Result<()> {
    let ty = component.component_type();
    for (name, import) in ty.imports(engine) {
        let (Some(interface), ComponentItem::ComponentInstance(instance)) = (name.strip_prefix(SOCKETS), import.ty)
        else {
            continue;
        };
        let interface = interface.split('@').next().unwrap_or_default();
        let mut here = linker.instance(name)?;
        for (item, export) in instance.exports(engine) {
            match export.ty {
                ComponentItem::ComponentFunc(_) => {
                    let lacks = format!("`{item}` of `{name}`");
                    here.func_new(item, move |_, _, _, _| Err(wasmtime::Error::new(Lacks(lacks.clone()))))?;
                }
                // Others are those of another interface.
                ComponentItem::Resource(_) if SOCKET_RESOURCES.contains(&(interface, item)) => {
                    here.resource(item, ResourceType::host::<NoSocket>(), |_, _| Ok(()))?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Where the component is entered.
pub(super) fn find_run(component: &Component) -> Option<ComponentExportIndex> {
    let versions = (0..=MAX_PATCH).map(|patch| format!("{RUN}{patch}"));
    let mut found = versions.filter_map(|name| component.get_export_index(None, &name));
    let interface = found.next()?;
    component.get_export_index(Some(&interface), "run")
}
