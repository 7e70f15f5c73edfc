//! Who reads what a refusal says can be done.

use offleash_core::network::{AddressClass, Host, classify};

/// Who can change what a sandbox may reach, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Audience {
    /// Whoever typed `offleash run`.
    #[default]
    Run,
    /// Whoever made the sandbox through a server's API.
    Server,
}

impl Audience {
    /// What makes `host` reachable; `None` where nothing that they can do does.
    pub(crate) fn allowing(self, host: &Host) -> Option<String> {
        match (self, host) {
            (Self::Run, host) => Some(format!("`offleash run --allow {host}` allows it")),
            (Self::Server, Host::Address(address)) if classify(*address) != AddressClass::Public => None,
            (Self::Server, host) => Some(format!(
                "whoever made this sandbox can allow it if it is public: `{host}` in `allowOut` of its network, or `offleash \
                 create --allow {host}`"
            )),
        }
    }
}
