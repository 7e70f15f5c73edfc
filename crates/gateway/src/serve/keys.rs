//! The key of a sandbox's authority, and rules as they are served.

use std::io;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use crate::current::NewRules;
use crate::opened::{Authority, GatewayTrust};
use crate::wire::ReachOrder;

/// The key of the sandbox's authority, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    authority: Option<Arc<Authority>>,
}

impl Keys {
    /// The certificate of the authority, which is made if there is none.
    pub(crate) fn certificate(&mut self) -> Result<Vec<u8>, String> {
        let authority = self.authority().map_err(|error| error.to_string())?;
        Ok(authority.der().to_vec())
    }

    fn authority(&mut self) -> io::Result<Arc<Authority>> {
        if let Some(made) = &self.authority {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(Authority::new().map_err(io::Error::other)?);
        Ok(Arc::clone(self.authority.insert(made)))
    }

    /// With what connections are opened whose servers are trusted by `roots`.
    pub(crate) fn trust(&mut self, roots: Vec<Vec<u8>>) -> io::Result<Arc<GatewayTrust>> {
        let roots = roots.into_iter().map(CertificateDer::from).collect();
        Ok(Arc::new(GatewayTrust::new(self.authority()?, roots)))
    }
}

/// Rules as they came, with whom opened connections trust.
pub(crate) fn new_rules(reach: ReachOrder, trust: Option<Arc<GatewayTrust>>) -> NewRules {
    NewRules {
        rules: reach.rules,
        internet: reach.internet,
        requests: reach.requests,
        trust,
        way_out: reach.way_out,
        system_names: reach.system_names,
        secrets: reach.secrets.into(),
    }
}
