//! OCI and Docker images: pulled from registries or loaded from files, kept by content, unpacked for sandboxes.

mod compose;
mod digest;
mod error;
mod load;
mod manifest;
mod pack;
mod pattern;
mod progress;
mod pull;
mod reference;
mod registry;
mod save;
mod store;
mod tar;
mod unpack;

pub use compose::{
    CaptureOrder, CapturedOwner, ComposeOrder, CopyOrder, CopySelection, CopyTarget, ExcludedFile, LayerArchive,
    LayerTree,
};
pub use digest::{DigestError, ImageDigest};
pub use error::ImageError;
pub use load::{LoadOrder, LoadSource, stem_of};
pub use manifest::ImageConfig;
pub use pack::{PackedPart, pack_layer};
pub use pattern::{ImagePattern, PatternError};
pub use progress::{ImageProgress, NoProgress, ProgressStep};
pub use pull::{PullOrder, PulledImage};
pub use reference::{DEFAULT_REGISTRY, ImageReference, ReferenceError};
pub use registry::{Connector, MirrorSetting, RegistryAddress, RegistryLogin, RegistrySettings, client_tls};
pub use store::{
    HeldImage, IdNamespace, ImageLease, ImageListing, ImageRecord, ImageRoot, ImageStore, KeptName, PruneReport,
    RemovedImage,
};
pub use unpack::{LayerError, LayerOwnership, LayerRefusal, LayerReport, UnpackLimits, unpack_archive, unpack_stream};
