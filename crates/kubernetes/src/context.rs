//! What every reconciliation has at hand.

use std::fmt::Debug;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::config::ControllerConfig;
use crate::daemons::DaemonDirectory;
use crate::kinds::words;
use crate::placeholder::PlaceholderSettings;

/// Why a reconciliation is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    /// The API server.
    #[error("cannot {tried}: {source}")]
    Api {
        /// What was tried.
        tried: String,
        /// What came of it.
        source: Box<kube::Error>,
    },
    /// An object without what every object has.
    #[error("the API server sent an object without {0}")]
    NoObject(&'static str),
}

impl ReconcileError {
    /// Whether somebody else was faster, so that it is to be looked at again.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == 409))
    }
}

/// Says what was tried when it fails.
pub(crate) fn trying<T>(tried: impl Into<String>, result: Result<T, kube::Error>) -> Result<T, ReconcileError> {
    result.map_err(|source| ReconcileError::Api {
        tried: tried.into(),
        source: Box::new(source),
    })
}

/// What every reconciliation has at hand.
#[derive(Debug)]
pub(crate) struct Context {
    /// The API server.
    pub(crate) client: ApiClient,
    /// What was said at the start.
    pub(crate) config: ControllerConfig,
    /// What placeholders have in common.
    pub(crate) placeholders: PlaceholderSettings,
    /// The daemons of the nodes.
    pub(crate) daemons: DaemonDirectory,
}

/// A client that can be shown.
#[derive(Clone)]
pub(crate) struct ApiClient(pub(crate) Client);

impl Debug for ApiClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Context {
    /// The objects of one kind in a namespace.
    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.0.clone(), namespace)
    }

    /// Whether an object is this controller's.
    pub(crate) fn is_ours(&self, object: &impl Resource) -> bool {
        let labels = object.meta().labels.as_ref();
        labels.and_then(|labels| labels.get(words::CONTROLLER)) == Some(&self.config.name)
    }

    /// Changes what is said of an object beside its status, if it is still as it was read.
    pub(crate) async fn patch<K>(&self, object: &K, metadata: Value) -> Result<K, ReconcileError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let mut metadata = metadata;
        metadata["resourceVersion"] = json!(object.resource_version());
        let api: Api<K> = self.api(&object.namespace().unwrap_or_default());
        let change = Patch::Merge(json!({ "metadata": metadata }));
        let patched = api.patch(&object.name_any(), &PatchParams::default(), &change).await;
        trying(format!("change {} `{}`", K::kind(&()), object.name_any()), patched)
    }

    /// Writes a status, unless it is there already.
    pub(crate) async fn patch_status<K, S>(&self, object: &K, there: &S, wanted: &S) -> Result<(), ReconcileError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
        S: PartialEq + Serialize,
    {
        if there == wanted {
            return Ok(());
        }
        let told = |status: &S| serde_json::to_value(status).unwrap_or_default();
        let mut status = told(wanted);
        // What is no longer said goes by being said to be nothing.
        if let (Value::Object(there), Value::Object(status)) = (told(there), &mut status) {
            for (name, _) in there {
                status.entry(name).or_insert(Value::Null);
            }
        }
        let api: Api<K> = self.api(&object.namespace().unwrap_or_default());
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = api
            .patch_status(&object.name_any(), &PatchParams::default(), &patch)
            .await;
        trying(
            format!("write the status of {} `{}`", K::kind(&()), object.name_any()),
            patched,
        )
        .map(drop)
    }

    /// Deletes the very object that was read; that it is gone is fine.
    pub(crate) async fn delete<K>(&self, object: &K, params: DeleteParams) -> Result<(), ReconcileError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api: Api<K> = self.api(&object.namespace().unwrap_or_default());
        let params = params.preconditions(Preconditions {
            uid: object.uid(),
            resource_version: None,
        });
        match api.delete(&object.name_any(), &params).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            other => trying(format!("delete {} `{}`", K::kind(&()), object.name_any()), other).map(drop),
        }
    }

    /// How long until a time, in whole seconds; `None` if it has come.
    pub(crate) fn until(&self, time: Timestamp) -> Option<std::time::Duration> {
        let left = time.as_second() - Timestamp::now().as_second();
        u64::try_from(left)
            .ok()
            .filter(|left| *left > 0)
            .map(std::time::Duration::from_secs)
    }
}

/// A context that reconciliations share.
pub(crate) type SharedContext = Arc<Context>;

/// What names an object in messages: its namespace and its name.
pub(crate) fn shown(object: &impl Resource) -> String {
    let meta = object.meta();
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", part(&meta.namespace), part(&meta.name))
}
