//! What a sandbox is made from: a build of a template, or the base.

use offleash_store::HeldTemplate;

/// The template that is always there.
pub const BASE_TEMPLATE: &str = "base";

/// What a sandbox is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TemplateOrigin {
    /// The template's name.
    pub(crate) template: String,
    /// Which build of it; the base has none.
    pub(crate) build: Option<String>,
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
