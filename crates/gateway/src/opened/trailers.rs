//! What comes behind the body of a request: fields as in its head for servers that put both together, so that nothing
//! gets there which could not stand in a head. The request is on its way by then; what may not stay is left out, which
//! anybody may do who passes a message on (RFC 9110, section 6.5.1).

use std::rc::Rc;

use http::HeaderMap;

use super::requests::{self, Destination};
use crate::http_body;
use crate::secrets::Recipient;
use crate::shared::Shared;

/// Which trailers of a request to `to` are sent on.
#[derive(Debug, Clone)]
pub(super) struct Trailers {
    shared: Rc<Shared>,
    to: Destination,
}

impl Trailers {
    pub(super) fn new(shared: Rc<Shared>, to: Destination) -> Self {
        Self { shared, to }
    }

    /// Leaves out what rules are about, what belongs in a head, and what tells a placeholder.
    pub(super) fn leave_out(&self, trailers: &mut HeaderMap) {
        let to = Recipient {
            host: &self.to.host,
            port: self.to.port,
        };
        let may_stay = |name: &http::HeaderName| {
            !http_body::belongs_in_head(name.as_str().as_bytes())
                && !requests::is_ruled(&self.shared.policy, &self.to.host, name)
                && !self.shared.secrets.misused_behind(to, name, trailers.get_all(name))
        };
        let left_out: Vec<_> = trailers.keys().filter(|name| !may_stay(name)).cloned().collect();
        for name in left_out {
            trailers.remove(name);
        }
    }
}
