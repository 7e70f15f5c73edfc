//! What a sandbox is made from: a build of a template, the base, or an image.

use offleash_images::HeldImage;
use offleash_store::HeldTemplate;

/// The template that is always there.
pub const BASE_TEMPLATE: &str = "base";

/// What is before the name of an image where a template is named. No template has a colon in its name.
pub use offleash_supervisor::snapshot_archives::IMAGE_PREFIX;

/// What a sandbox is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TemplateOrigin {
    /// The template's name, or the image's behind [`IMAGE_PREFIX`].
    pub(crate) template: String,
    /// Which build of it, or the digest of the image's manifest; the base has none.
    pub(crate) build: Option<String>,
}

/// What a sandbox is to be made from; it stays as long as this is held.
#[derive(Debug)]
pub(crate) enum HeldOrigin {
    Base,
    Template(Box<HeldTemplate>),
    Image(HeldImage),
}

impl HeldOrigin {
    /// The template, if it is one that was built.
    pub(crate) fn template(&self) -> Option<&HeldTemplate> {
        match self {
            Self::Template(template) => Some(template),
            Self::Base | Self::Image(_) => None,
        }
    }

    /// Whether sandboxes of it are made ahead.
    pub(crate) fn can_wait(&self) -> bool {
        matches!(self, Self::Base | Self::Template(_))
    }

    pub(crate) fn origin(&self) -> TemplateOrigin {
        match self {
            Self::Image(image) => TemplateOrigin {
                template: format!("{IMAGE_PREFIX}{}", image.shown()),
                build: Some(image.digest.to_string()),
            },
            other => TemplateOrigin::of(other.template()),
        }
    }
}

impl From<HeldTemplate> for HeldOrigin {
    fn from(template: HeldTemplate) -> Self {
        Self::Template(Box::new(template))
    }
}

impl From<Option<HeldTemplate>> for HeldOrigin {
    fn from(template: Option<HeldTemplate>) -> Self {
        template.map_or(Self::Base, Self::from)
    }
}

impl TemplateOrigin {
    /// The origin of sandboxes of `template`, or of the base.
    pub(crate) fn of(template: Option<&HeldTemplate>) -> Self {
        let record = template.map(HeldTemplate::record);
        Self {
            template: record.map_or_else(|| BASE_TEMPLATE.to_owned(), |record| record.name.to_string()),
            build: record.map(|record| record.build.clone()),
        }
    }

    pub(crate) fn base() -> Self {
        Self::of(None)
    }
}

/// The image that is named where a template is; `None` for a template.
pub(crate) fn image_name(template: &str) -> Option<&str> {
    template.strip_prefix(IMAGE_PREFIX)
}
