//! What E2B's SDKs speak to: the control plane, and the services that they expect in every sandbox.

pub(crate) mod code;
pub(crate) mod connect;
pub(crate) mod control;
pub(crate) mod envd;
pub(crate) mod volume_content;
