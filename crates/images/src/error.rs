//! Why something about an image could not be done.

use std::io;
use std::path::{Path, PathBuf};

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::processor::ImagePlatform;
use offleash_core::text::Text;
use offleash_store::FileError;

use crate::digest::ImageDigest;
use crate::reference::ReferenceError;
use crate::unpack::{LayerError, kind_of};

/// Why something about an image could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A name that is none.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// No such image here.
    #[error("there is no image `{}` here", name.escape_debug())]
    Missing {
        /// As it was asked for.
        name: String,
    },
    /// Several images have an id that begins like that.
    #[error("several images have an id that begins with `{prefix}`")]
    Ambiguous {
        /// The beginning.
        prefix: String,
    },
    /// A run uses it.
    #[error("image `{name}` is in use")]
    InUse {
        /// Its name.
        name: String,
    },
    /// Another process does something that excludes this.
    #[error("another process {doing}")]
    Busy {
        /// What it does.
        doing: &'static str,
    },
    /// The registry knows no such image.
    #[error("registry `{registry}` has no image `{name}`")]
    Unknown {
        /// The registry.
        registry: String,
        /// The image.
        name: String,
    },
    /// The registry wants other credentials.
    #[error("registry `{registry}` refuses access: {said}")]
    Denied {
        /// The registry.
        registry: String,
        /// What it said.
        said: String,
    },
    /// The registry cannot be reached.
    #[error("registry `{registry}` cannot be reached: {reason}")]
    Unreachable {
        /// The registry, or another host that it names.
        registry: String,
        /// Why.
        reason: String,
    },
    /// Nothing came for a while.
    #[error("registry `{registry}` has sent nothing for {seconds} seconds")]
    Stalled {
        /// The registry, or another host that it names.
        registry: String,
        /// How long.
        seconds: u64,
    },
    /// All of it took too long, although something came.
    #[error("registry `{registry}` has not sent the whole image in {seconds} seconds")]
    Late {
        /// The registry.
        registry: String,
        /// How long.
        seconds: u64,
    },
    /// An answer that is none.
    #[error("registry `{registry}` answered what it may not: {reason}")]
    BadAnswer {
        /// The registry, or another host that it names.
        registry: String,
        /// What is wrong.
        reason: String,
    },
    /// Another status than one that helps.
    #[error("registry `{registry}` answered with status {status}{}", said_by(.said))]
    Status {
        /// The registry, or another host that it names.
        registry: String,
        /// The status of HTTP.
        status: u16,
        /// What it said.
        said: String,
    },
    /// What answers speaks no TLS.
    #[error("registry `{registry}` does not speak TLS")]
    NoTls {
        /// The registry, or another host that it names.
        registry: String,
        /// Whether it is on this machine.
        is_here: bool,
    },
    /// It was asked without encryption, and is not this machine.
    #[error("registry `{registry}` is not on this machine, and would be asked without encryption")]
    PlainHttp {
        /// The registry.
        registry: String,
    },
    /// What came is not what was named.
    #[error("{what} has another digest than {expected}: {found}")]
    OtherDigest {
        /// A manifest, configuration or layer.
        what: &'static str,
        /// What was named.
        expected: ImageDigest,
        /// What came.
        found: ImageDigest,
    },
    /// What came is not as long as was said.
    #[error("{what} {digest} has {found} bytes and should have {expected}")]
    OtherSize {
        /// A manifest, configuration or layer.
        what: &'static str,
        /// Which.
        digest: ImageDigest,
        /// What was said.
        expected: u64,
        /// What came, as far as it was read.
        found: u64,
    },
    /// Something is larger than it may be.
    #[error("{what} has {found} bytes, {limit} at most are taken")]
    TooLarge {
        /// A manifest, configuration or layer.
        what: &'static str,
        /// How large it is.
        found: u64,
        /// How large it may be.
        limit: u64,
    },
    /// More layers than an overlay takes.
    #[error("the image has {found} layers, {limit} at most are taken")]
    TooManyLayers {
        /// How many there are.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The oldest form of images.
    #[error("the image is of Docker's schema 1, which has no digests of what it unpacks to")]
    SchemaOne,
    /// A kind of document that is no image for us.
    #[error("{what} is of a kind that is not known: `{}`", media_type.escape_debug())]
    UnknownMediaType {
        /// A manifest, configuration or layer.
        what: &'static str,
        /// The kind.
        media_type: String,
    },
    /// A document that does not hold what it must.
    #[error("{what} is malformed: {reason}")]
    Malformed {
        /// A manifest, configuration or file.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A user or group that the image's lists do not have.
    #[error("the image has no {what}, as whom its programs are to be started")]
    UnknownAccount {
        /// As in ``user `app` ``.
        what: String,
    },
    /// There is none for this machine.
    #[error("the image is for {}, not for {}", found.join(", "), ours.name)]
    OtherPlatform {
        /// What it is for.
        found: Vec<String>,
        /// What sandboxes here can run.
        ours: ImagePlatform,
    },
    /// A part that should be here is not.
    #[error("{what} {digest} is missing")]
    MissingBlob {
        /// A manifest, configuration or layer.
        what: &'static str,
        /// Which.
        digest: ImageDigest,
    },
    /// A layer that was refused.
    #[error("layer {digest} cannot be unpacked")]
    Layer {
        /// The digest of the layer without compression.
        digest: ImageDigest,
        /// Why.
        source: LayerError,
    },
    /// A file with images that was refused.
    #[error("the file cannot be loaded")]
    Unloadable {
        /// Why.
        source: LayerError,
    },
    /// The user's own ids could not be used.
    #[error("unpacking for the caller's subordinate ids")]
    Ids {
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What Docker's configuration says of credentials cannot be used.
    #[error("the credentials for `{registry}` cannot be read: {reason}")]
    Credentials {
        /// The registry.
        registry: String,
        /// Why.
        reason: String,
    },
    /// A setting that is wrong.
    #[error("{what}: {reason}")]
    Setting {
        /// Which.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Nothing is there that could be copied.
    #[error("there is no `{}` in {place}", source_path.escape_debug())]
    NothingToCopy {
        /// As it was written.
        source_path: String,
        /// Where it was looked for.
        place: String,
    },
    /// An archive that is to be unpacked and cannot be.
    #[error("`{}` is an archive that cannot be unpacked: {reason}", source_path.escape_debug())]
    Archive {
        /// Which.
        source_path: String,
        /// Why.
        reason: String,
    },
    /// A file or directory that cannot be used.
    #[error("{tried} `{}`", Text::from(.path))]
    File {
        /// What was tried.
        tried: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something that cannot be removed.
    #[error(transparent)]
    Removing(#[from] FileError),
}

fn said_by(said: &str) -> String {
    match said {
        "" => String::new(),
        said => format!(": {said}"),
    }
}

impl ImageError {
    pub(crate) fn file<E: Into<io::Error>>(tried: &'static str, path: impl AsRef<Path>) -> impl FnOnce(E) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::File {
            tried,
            path,
            source: source.into(),
        }
    }

    /// An archive that cannot be written.
    pub fn writing_archive(error: io::Error) -> Self {
        Self::file("writing", "the archive")(error)
    }

    /// Whether it is about an image and its registry alone, and says nothing of this machine.
    pub fn is_about_image(&self) -> bool {
        match self {
            Self::Layer { source, .. } => source.kind() == ErrorKind::Denied,
            Self::InUse { .. }
            | Self::Busy { .. }
            | Self::Ids { .. }
            | Self::Credentials { .. }
            | Self::Setting { .. }
            | Self::File { .. }
            | Self::Removing(_) => false,
            _ => true,
        }
    }

    pub(crate) fn malformed(what: &'static str, reason: impl ToString) -> Self {
        Self::Malformed {
            what,
            reason: reason.to_string(),
        }
    }
}

impl Explained for ImageError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Reference(error) => error.kind(),
            Self::Missing { .. } | Self::Unknown { .. } | Self::MissingBlob { .. } | Self::NothingToCopy { .. } => {
                ErrorKind::NotFound
            }
            Self::Ambiguous { .. }
            | Self::Setting { .. }
            | Self::Credentials { .. }
            | Self::UnknownAccount { .. }
            | Self::Malformed { .. } => ErrorKind::Invalid,
            Self::InUse { .. } => ErrorKind::Conflict,
            Self::Busy { .. } | Self::Unreachable { .. } | Self::NoTls { .. } | Self::Status { .. } => {
                ErrorKind::Unavailable
            }
            Self::Denied { .. } | Self::PlainHttp { .. } | Self::OtherDigest { .. } | Self::OtherSize { .. } => {
                ErrorKind::Denied
            }
            Self::Stalled { .. } | Self::Late { .. } => ErrorKind::Timeout,
            Self::BadAnswer { .. } => ErrorKind::Internal,
            Self::TooLarge { .. } | Self::TooManyLayers { .. } => ErrorKind::Exhausted,
            Self::Archive { .. }
            | Self::SchemaOne
            | Self::UnknownMediaType { .. }
            | Self::OtherPlatform { .. }
            | Self::Ids { .. } => ErrorKind::Unsupported,
            Self::Layer { source, .. } | Self::Unloadable { source } => source.kind(),
            Self::File { source, .. } => source.raw_os_error().map_or(ErrorKind::Internal, kind_of),
            Self::Removing(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Reference(error) => return error.hint(),
            Self::Removing(error) => return error.hint(),
            Self::Missing { .. } => "`offleash image ls` lists the images, `offleash image pull NAME` fetches one",
            Self::Ambiguous { .. } => "write more of the id, or the image's name",
            Self::InUse { .. } => {
                "end the runs and sandboxes that use it first; `offleash runs`, `offleash ls` and `offleash warm ls` list them"
            }
            Self::Busy { .. } => "try again when it is done",
            Self::Unknown { .. } => {
                "check name and tag; a registry says the same of what may not be seen without credentials, which \
                 `docker login` writes down"
            }
            Self::Denied { .. } => {
                "give credentials with `docker login REGISTRY`, or write them into Docker's `config.json`"
            }
            Self::Unreachable { .. } | Self::Stalled { .. } | Self::Late { .. } | Self::Status { .. } => {
                "check the network and try again; what came so far is kept and not fetched again"
            }
            Self::NoTls { is_here: true, .. } => {
                "`--plain-http`, or `plain_http = true` below `[images]` of a server, asks a registry on this machine without \
                 encryption"
            }
            Self::NoTls { .. } => {
                "nothing but a registry on this machine is asked without encryption; give this one a certificate, and name its \
                 authority with `--registry-ca FILE`"
            }
            Self::PlainHttp { .. } => {
                "`--plain-http` is for `localhost`; for another registry name its authority with `--registry-ca FILE`"
            }
            Self::OtherDigest { .. } | Self::OtherSize { .. } => {
                "nothing of it was kept; if it happens again the registry, or what is between, is not to be trusted"
            }
            Self::BadAnswer { .. } => "make sure that the name is that of a registry",
            Self::TooManyLayers { .. } => "build the image with fewer layers, such as with `--squash`",
            Self::SchemaOne => "push the image again with a current Docker, Podman or skopeo",
            Self::UnknownMediaType { .. } => {
                "only images of OCI and Docker with layers that are tar archives can be used"
            }
            Self::OtherPlatform { .. } => {
                "name an image for this machine; a build for several is made with `docker buildx build --platform`"
            }
            Self::MissingBlob { .. } => "pull or load the image again",
            Self::Ids { .. } => "`offleash doctor` says what is missing; `--ids single` does without subordinate ids",
            Self::Credentials { .. } => "correct Docker's `config.json`, or name another with `DOCKER_CONFIG`",
            Self::Malformed { .. } => "make sure that it is an image of OCI or Docker, and that all of it is there",
            Self::UnknownAccount { .. } => "add it before, as in `RUN useradd app`, or name an id from 0 to 65535",
            Self::NothingToCopy { .. } => "paths are relative to the context, and `.dockerignore` leaves some out",
            Self::Archive { .. } => "unpack it with a `RUN`, or compress it with gzip or zstd",
            Self::Setting { .. } => "correct it, or leave it out",
            Self::TooLarge { .. } => "use a smaller image, or make sure that it is one",
            Self::Unloadable { source } if source.kind() == ErrorKind::Exhausted => {
                "load its images one by one, from files of their own"
            }
            Self::Unloadable { .. } => "write the file anew with `docker save`, `podman save` or `skopeo copy`",
            Self::Layer { source, .. } if source.kind() == ErrorKind::Denied => {
                "the layer was not made by a usual tool, or somebody means harm; nothing was unpacked"
            }
            Self::Layer { source, .. } if source.kind() == ErrorKind::Exhausted => {
                "free some space in the state directory, or use a smaller image"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}
