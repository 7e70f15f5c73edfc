//! The Service of a Sandbox that asks for one: a name that leads to the daemon that has it.
//!
//! It selects no pod, because the placeholder listens to nothing; its one EndpointSlice has the daemon's addresses.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::Resource as _;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams};

use crate::context::{Context, ReconcileError, trying};
use crate::kinds::{Sandbox, words};

/// Who applies.
const MANAGER: &str = "offleash-controller";

/// Sees to it that a Service leads to these addresses, or that there is none; answers its name and its whole name.
pub(crate) async fn serve(
    context: &Context,
    sandbox: &Sandbox,
    addresses: &[String],
    node: &str,
) -> Result<Option<(String, String)>, ReconcileError> {
    let (name, namespace) = (sandbox.name_any(), sandbox.namespace().unwrap_or_default());
    let services: Api<Service> = context.api(&namespace);
    if sandbox.spec.blueprint.service != Some(true) {
        return remove(context, sandbox).await.map(|()| None);
    }
    let there = trying("look for the Service", services.get_opt(&name).await)?;
    if there
        .as_ref()
        .is_some_and(|service| !is_of(service.owner_references(), sandbox))
    {
        // Somebody else's; it is neither changed nor named.
        return Ok(None);
    }
    let params = PatchParams::apply(MANAGER).force();
    if there.is_none() {
        let applied = services
            .patch(&name, &params, &Patch::Apply(service_of(context, sandbox)))
            .await;
        trying("make the Service", applied)?;
    }
    let slices: Api<EndpointSlice> = context.api(&namespace);
    let wanted = slice_of(context, sandbox, addresses, node);
    let there = trying("look for the EndpointSlice", slices.get_opt(&name).await)?;
    if there.is_none_or(|slice| slice.endpoints != wanted.endpoints) {
        trying(
            "make the EndpointSlice",
            slices.patch(&name, &params, &Patch::Apply(wanted)).await,
        )?;
    }
    let fqdn = format!("{name}.{namespace}.svc.{}", context.config.cluster_domain);
    Ok(Some((name, fqdn)))
}

/// Removes Service and EndpointSlice, if they are this Sandbox's.
pub(crate) async fn remove(context: &Context, sandbox: &Sandbox) -> Result<(), ReconcileError> {
    if sandbox.status.service.is_empty() {
        return Ok(());
    }
    let (name, namespace) = (sandbox.name_any(), sandbox.namespace().unwrap_or_default());
    let slices: Api<EndpointSlice> = context.api(&namespace);
    let services: Api<Service> = context.api(&namespace);
    let slice = trying("look for the EndpointSlice", slices.get_opt(&name).await)?;
    if let Some(slice) = slice.filter(|slice| is_of(slice.owner_references(), sandbox)) {
        context.delete(&slice, DeleteParams::default()).await?;
    }
    let service = trying("look for the Service", services.get_opt(&name).await)?;
    if let Some(service) = service.filter(|service| is_of(service.owner_references(), sandbox)) {
        context.delete(&service, DeleteParams::default()).await?;
    }
    Ok(())
}

fn is_of(owners: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference], sandbox: &Sandbox) -> bool {
    owners
        .iter()
        .any(|owner| owner.controller == Some(true) && Some(&owner.uid) == sandbox.metadata.uid.as_ref())
}

fn meta(context: &Context, sandbox: &Sandbox) -> ObjectMeta {
    ObjectMeta {
        name: Some(sandbox.name_any()),
        namespace: sandbox.namespace(),
        labels: Some([(words::CONTROLLER.to_owned(), context.config.name.clone())].into()),
        owner_references: Some(sandbox.controller_owner_ref(&()).into_iter().collect()),
        ..ObjectMeta::default()
    }
}

fn service_of(context: &Context, sandbox: &Sandbox) -> Service {
    Service {
        metadata: meta(context, sandbox),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            ports: Some(vec![ServicePort {
                name: Some("http".to_owned()),
                port: context.config.daemon_port.into(),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn slice_of(context: &Context, sandbox: &Sandbox, addresses: &[String], node: &str) -> EndpointSlice {
    let mut metadata = meta(context, sandbox);
    let labels = metadata.labels.get_or_insert_default();
    labels.insert("kubernetes.io/service-name".to_owned(), sandbox.name_any());
    labels.insert("endpointslice.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned());
    // All addresses of a slice are of one family.
    let is_v6 = |address: &&String| address.contains(':');
    let family = addresses.first().is_some_and(|first| is_v6(&first));
    let addresses = addresses
        .iter()
        .filter(|address| is_v6(address) == family)
        .cloned()
        .collect();
    EndpointSlice {
        address_type: if family { "IPv6" } else { "IPv4" }.to_owned(),
        endpoints: vec![Endpoint {
            addresses,
            conditions: Some(EndpointConditions {
                ready: Some(true),
                ..EndpointConditions::default()
            }),
            node_name: Some(node.to_owned()),
            ..Endpoint::default()
        }],
        metadata,
        ports: Some(vec![EndpointPort {
            name: Some("http".to_owned()),
            port: Some(context.config.daemon_port.into()),
            ..EndpointPort::default()
        }]),
    }
}
