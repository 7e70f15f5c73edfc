//! Tags of templates: which build each means.

use std::sync::Arc;

use offleash_supervisor::clock::now_ms;

use super::{BuildService, MAX_TAGS, MAX_TAGS_OF_REQUEST, TemplateTagView};
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::{Change, TemplateTagRow};
use crate::template_names::{DEFAULT_TAG, TaggedName, tag_of};

impl BuildService {
    /// Has tags mean the build that `target` means, `NAME` or `NAME:TAG`; answers the build.
    ///
    /// # Errors
    /// `UnknownTemplate`, `Invalid`, `Store`.
    pub(crate) async fn assign_tags(
        &self,
        caller: &Caller,
        target: &str,
        tags: &[String],
    ) -> Result<(String, Vec<String>), DaemonError> {
        let row = self.templates.own(caller, target)?;
        let tag = TaggedName::parse(target)?.tag;
        let tag = tag.as_deref().unwrap_or(DEFAULT_TAG);
        let build = self.templates.build_of_tag(&row.id, tag)?;
        let build = build.ok_or_else(|| DaemonError::UnknownTemplate {
            name: target.to_owned(),
        })?;
        let tags = all_of(tags)?;
        let known = self.templates.look_up(|registry| registry.tags_of(&row.id))?;
        let new = tags.iter().filter(|tag| known.iter().all(|row| row.tag != **tag));
        let used = known.len();
        if used + new.count() > MAX_TAGS {
            return Err(DaemonError::QuotaExceeded {
                what: "tags of this template",
                quota: MAX_TAGS as u64,
                used: used as u64,
                asked: tags.len() as u64,
            });
        }
        let assign = |tag: &String| {
            Change::AssignTag(TemplateTagRow {
                template: row.id.clone(),
                tag: tag.clone(),
                build: build.clone(),
                assigned_ms: now_ms(),
            })
        };
        self.core.registry.apply(tags.iter().map(assign).collect()).await?;
        self.collect().await;
        Ok((build, tags))
    }

    /// Has tags of a template mean nothing any more. What a build that no tag means took on disk goes.
    ///
    /// # Errors
    /// `UnknownTemplate`, `Invalid`, `Store`.
    pub(crate) async fn remove_tags(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        tags: &[String],
    ) -> Result<(), DaemonError> {
        let row = self.templates.own(caller, name)?;
        let remove = |tag: String| Change::RemoveTag {
            template: row.id.clone(),
            tag,
        };
        let tags = all_of(tags)?;
        self.core.registry.apply(tags.into_iter().map(remove).collect()).await?;
        self.collect().await;
        Ok(())
    }

    /// The tags of a template.
    ///
    /// # Errors
    /// `UnknownTemplate`, `Store`.
    pub(crate) fn tags(&self, caller: &Caller, which: &str) -> Result<Vec<TemplateTagView>, DaemonError> {
        let row = self.templates.own(caller, which)?;
        let tags = self.templates.look_up(|registry| registry.tags_of(&row.id))?;
        Ok(tags.into_iter().map(TemplateTagView::from).collect())
    }
}

fn all_of(tags: &[String]) -> Result<Vec<String>, DaemonError> {
    if tags.is_empty() || tags.len() > MAX_TAGS_OF_REQUEST {
        let why = format!("there must be 1 to {MAX_TAGS_OF_REQUEST}");
        return Err(DaemonError::invalid("tags", why));
    }
    tags.iter().map(|tag| tag_of(tag)).collect()
}
