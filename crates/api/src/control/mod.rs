//! What every API over the daemon shares: who calls, the daemon that is asked, and what a client is told when it says no.
//!
//! E2B's control plane, the native REST and the tools of agent hosts are built on it; it knows none of them.

mod authentication;
mod keys;
mod lasting;
pub(crate) mod listing;
mod snapshots;
pub(crate) mod tools;
pub(crate) mod volumes;
mod work;

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, Response};
use offleash_daemon::{Caller, Daemon, DaemonError, Scope};

pub(crate) use self::authentication::{API_KEY, bearer, key};
use self::keys::KeyService;
pub(crate) use self::lasting::LastingRequest;
pub(crate) use self::snapshots::snapshot_filter;
use crate::http::answer::ApiRefusal;
use crate::http::body::Body;
use crate::http::failure;
use crate::http::large::LargeAnswers;
use crate::http::peer::ClientConnection;
use crate::journal::Journal;
use crate::languages::{CatalogReader, RuntimeCatalog};
use crate::submissions::SubmissionStore;

/// The daemon, as the APIs reach it.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    daemon: Daemon,
    journal: Arc<dyn Journal>,
    address: ServerAddress,
    large: LargeAnswers,
    keys: KeyService,
    languages: RuntimeCatalog,
    submissions: SubmissionStore,
}

/// What a server is called.
#[derive(Debug)]
pub(crate) struct ServerAddress {
    /// By clients on this machine, as in `http://127.0.0.1:3000`.
    pub(crate) url: String,
    /// Below which SDKs are to build host names, with the port unless that is the usual one.
    pub(crate) domain: Option<String>,
}

impl ControlPlane {
    pub(crate) fn new(
        daemon: Daemon,
        journal: Arc<dyn Journal>,
        address: ServerAddress,
        languages: RuntimeCatalog,
    ) -> Self {
        Self {
            keys: KeyService::new(daemon.config().state.clone()),
            daemon,
            journal,
            address,
            large: LargeAnswers::default(),
            languages,
            submissions: SubmissionStore::default(),
        }
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    pub(crate) fn journal(&self) -> &dyn Journal {
        &*self.journal
    }

    pub(crate) fn keys(&self) -> &KeyService {
        &self.keys
    }

    /// Which languages programs can be written in.
    pub(crate) fn languages(&self) -> &RuntimeCatalog {
        &self.languages
    }

    /// Programs whose outcome is asked for later.
    pub(crate) fn submissions(&self) -> &SubmissionStore {
        &self.submissions
    }

    pub(crate) fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Who a request is from.
    ///
    /// # Errors
    /// 401 for whoever shows no key, two that differ, or one that is not valid.
    pub(crate) fn caller(&self, client: &ClientConnection, headers: &HeaderMap) -> Result<Caller, ApiRefusal> {
        let caller = authentication::caller(&self.daemon, client, headers);
        caller.map_err(|error| failure::refusal(&*self.journal, &error, false))
    }
}

/// A request whose caller is known.
#[derive(Debug)]
pub(crate) struct ApiRequest<'a> {
    pub(crate) control: &'a Arc<ControlPlane>,
    pub(crate) client: &'a ClientConnection,
    pub(crate) caller: Caller,
    pub(crate) parts: &'a Parts,
}

impl ApiRequest<'_> {
    /// Fails unless the caller has `scope`.
    pub(crate) fn require(&self, scope: Scope) -> Result<(), ApiRefusal> {
        self.caller.require(scope).map_err(|error| self.refused(&error))
    }

    /// What the caller is told of an error of the daemon.
    pub(crate) fn refused(&self, error: &DaemonError) -> ApiRefusal {
        let is_owner = self.caller.scopes.allow(Scope::Admin);
        failure::refusal(self.journal(), error, is_owner)
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        &self.control.daemon
    }

    pub(crate) fn journal(&self) -> &dyn Journal {
        &*self.control.journal
    }

    /// Who asks which languages there are.
    pub(crate) fn catalog_reader(&self) -> CatalogReader<'_> {
        CatalogReader {
            daemon: self.daemon(),
            journal: self.journal(),
        }
    }

    /// The domain that SDKs are to build host names with.
    pub(crate) fn domain(&self) -> Option<&str> {
        self.control.address.domain.as_deref()
    }

    pub(crate) fn query(&self) -> Option<&str> {
        self.parts.uri.query()
    }

    /// `response`, within the bounds of what may wait for the caller's clients.
    ///
    /// # Errors
    /// As [`LargeAnswers::bounded`].
    pub(crate) async fn bounded(&self, response: Response<Body>) -> Result<Response<Body>, ApiRefusal> {
        self.control.large.bounded(&self.caller.key_id, response).await
    }
}
