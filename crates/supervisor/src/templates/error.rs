//! Why a template cannot be used or built.

use offleash_core::build::BuildTooLarge;
use offleash_core::error::{ErrorKind, Explained, with_causes};
use offleash_core::network::PatternError;
use offleash_core::template::TemplateName;
use offleash_core::units::Bytes;
use offleash_images::{ImageError, LayerError};
use offleash_store::{FileError, StateError};

use offleash_planner::base::BaseError;
use offleash_planner::instructions::InstructionError;
use offleash_planner::recipes::RecipeError;

use crate::lifecycle::LifecycleError;
use crate::service::order::OrderError;

/// Why a template cannot be used or built.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// There is none of this name.
    #[error("there is no template `{name}`")]
    Missing {
        /// What was asked for.
        name: TemplateName,
    },
    /// Sandboxes use it.
    #[error("template `{name}` is used by sandboxes")]
    InUse {
        /// The template.
        name: TemplateName,
    },
    /// Somebody else builds it.
    #[error("template `{name}` is being built already")]
    Building {
        /// The template.
        name: TemplateName,
    },
    /// There is nothing in the recipe.
    #[error("the recipe of template `{name}` installs, runs and sets nothing")]
    Empty {
        /// The template.
        name: TemplateName,
    },
    /// The recipe cannot be carried out on this machine.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// `apt-get` needs a superuser.
    #[error("`apt` packages need a superuser inside, and this user's sandboxes have none")]
    NoSuperuser,
    /// A rule of the recipe's network cannot be read.
    #[error("a rule of the recipe's network cannot be read")]
    Network(#[from] PatternError),
    /// A rule of a caller's network cannot be read.
    #[error("a rule of the network of the build cannot be read")]
    NetworkOrder {
        /// Which.
        source: OrderError,
    },
    /// A step failed.
    #[error("{step} failed: {how}")]
    Step {
        /// Which step.
        step: String,
        /// How it ended.
        how: String,
        /// The last lines that it printed.
        last_lines: Vec<String>,
        /// What may mend it.
        hint: Option<String>,
    },
    /// It takes more room than it may.
    #[error("{step} was ended: the template may take {limit} on disk")]
    TooLarge {
        /// During which step.
        step: String,
        /// The limit.
        limit: Bytes,
    },
    /// A step could not be carried out.
    #[error("{step} failed")]
    Build {
        /// Which step.
        step: String,
        /// Why.
        #[source]
        source: ImageError,
    },
    /// An image of a template or of a build cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A template that cannot be built upon.
    #[error("template `{name}` lies over this machine's own system, and nothing can be built from it")]
    OverHost {
        /// Which.
        name: TemplateName,
    },
    /// There is nothing to copy from.
    #[error("{step} copies from the context, and the build has none")]
    NoContext {
        /// Which step.
        step: String,
    },
    /// More stages or steps than a build may have.
    #[error(transparent)]
    Plan(#[from] BuildTooLarge),
    /// The archive that a step copies from was not uploaded, or is gone.
    #[error("{step} copies files that were not uploaded")]
    NotUploaded {
        /// Which step.
        step: String,
    },
    /// An archive that was uploaded is none that can be used.
    #[error("{step} failed: the archive that was uploaded is refused")]
    Upload {
        /// Which step.
        step: String,
        /// Why.
        source: LayerError,
    },
    /// An instruction that cannot be carried out.
    #[error(transparent)]
    Instruction(#[from] InstructionError),
    /// A plan without a stage, or that names one that is not before.
    #[error("the build names a stage that is not there")]
    NoStage,
    /// The user ended it.
    #[error("the build was interrupted")]
    Interrupted,
    /// The sandbox of a step cannot be made.
    #[error("the sandbox of {step} failed")]
    Sandbox {
        /// Which step.
        step: String,
        /// Why.
        #[source]
        source: Box<LifecycleError>,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// Something of a template cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A layer cannot be removed.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// The host refused something basic.
    #[error("cannot {action}")]
    Host {
        /// What.
        action: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

impl TemplateError {
    /// What whoever asked a server for a build is told; `None` where it says something of the machine, which is for its owner.
    pub fn shown(&self) -> Option<String> {
        match self {
            Self::Step { .. }
            | Self::TooLarge { .. }
            | Self::Missing { .. }
            | Self::OverHost { .. }
            | Self::NotUploaded { .. }
            | Self::Instruction(_)
            | Self::NoStage
            | Self::Interrupted => Some(self.to_string()),
            Self::Build { step, source } if is_shown(source) => Some(format!("{step} failed: {}", with_causes(source))),
            Self::Image(source) if is_shown(source) => Some(with_causes(source)),
            Self::Upload { .. } => Some(with_causes(self)),
            _ => None,
        }
    }
}

fn is_shown(error: &ImageError) -> bool {
    error.is_about_image()
        || matches!(
            error,
            ImageError::NothingToCopy { .. } | ImageError::Missing { .. } | ImageError::TooManyLayers { .. }
        )
}

impl Explained for TemplateError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } => ErrorKind::NotFound,
            Self::InUse { .. } | Self::Building { .. } => ErrorKind::Conflict,
            Self::Empty { .. }
            | Self::Network(_)
            | Self::NetworkOrder { .. }
            | Self::NoContext { .. }
            | Self::NoStage
            | Self::NotUploaded { .. }
            | Self::Upload { .. }
            | Self::Instruction(_) => ErrorKind::Invalid,
            Self::OverHost { .. } => ErrorKind::Unsupported,
            Self::Build { source, .. } | Self::Image(source) => source.kind(),
            Self::NoSuperuser => ErrorKind::Unsupported,
            Self::TooLarge { .. } | Self::Plan(_) => ErrorKind::Exhausted,
            Self::Step { .. } | Self::Interrupted => ErrorKind::Unavailable,
            Self::Host { .. } => ErrorKind::Internal,
            Self::Recipe(source) => source.kind(),
            Self::Sandbox { source, .. } => source.kind(),
            Self::State(source) => source.kind(),
            Self::File(source) => source.kind(),
            Self::Base(source) => source.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Missing { name } if name.is_code_interpreter() => {
                format!("build it: offleash template build --name {name}")
            }
            Self::Missing { name } => format!(
                "`offleash template ls` lists what there is; `offleash template build --name {name} --pip …` builds it"
            ),
            Self::InUse { .. } => {
                "end them first: `offleash ls` lists the daemon's, among which the warm pool's are not; `offleash warm stop` ends \
                 those that wait for runs"
                    .to_owned()
            }
            Self::Building { .. } => "wait until that is done".to_owned(),
            Self::Empty { .. } => {
                "add something with `--pip`, `--apt`, `--npm`, `--run`, `--env` or `--file`".to_owned()
            }
            Self::NoSuperuser => {
                "get subordinate ids (`offleash doctor` says how), build it as root, or install the packages \
                                  on the host"
                    .to_owned()
            }
            Self::TooLarge { .. } => "raise it with `--disk`, or leave something out".to_owned(),
            Self::Step { hint, .. } => return hint.clone(),
            Self::Plan(_) => "put some of it into a template of its own, and begin with that".to_owned(),
            Self::Interrupted | Self::NoStage => return None,
            Self::Build { source, .. } | Self::Image(source) => return source.hint(),
            Self::OverHost { .. } => "build it from an image: `offleash template build --name NAME --from IMAGE …`".to_owned(),
            Self::NotUploaded { .. } => "build it again, which uploads them".to_owned(),
            Self::Upload { .. } | Self::Instruction(_) => return None,
            Self::NoContext { .. } => "name a directory behind the flags".to_owned(),
            Self::Network(error) => return error.hint(),
            Self::NetworkOrder { source } => return source.hint(),
            Self::Host { .. } => return None,
            Self::Recipe(source) => return source.hint(),
            Self::Sandbox { source, .. } => return source.hint(),
            Self::State(source) => return source.hint(),
            Self::File(source) => return source.hint(),
            Self::Base(source) => return source.hint(),
        })
    }
}
