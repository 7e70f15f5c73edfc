//! What callers ask of the templates that they build.

use super::Daemon;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::Scope;
use crate::template_builds::{
    BuildInstructions, BuildLogLine, BuildRequest, BuiltTemplateView, RequestedBuild, TemplateBuildView,
    TemplateTagView, UploadState, UploadWriter,
};

impl Daemon {
    /// Notes a build of a template of the caller's, which is made if there is none of that name.
    ///
    /// # Errors
    /// `Forbidden`, `Invalid`, `QuotaExceeded`, `Store`.
    pub async fn request_build(&self, caller: &Caller, request: BuildRequest) -> Result<RequestedBuild, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.builds.request(caller, request).await
    }

    /// Starts a build that was asked for.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`, `UnknownBuild`, `BuildConflict`, `Invalid`, `Unsupported`, `ImageNotAllowed`,
    /// `QuotaExceeded`, `Overloaded`, `Draining`.
    pub async fn start_build(
        &self,
        caller: &Caller,
        template: &str,
        build: &str,
        asked: BuildInstructions,
    ) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.builds.start(caller, template, build, asked).await
    }

    /// Whether an archive is here that a build of the caller's copies from, or how it is uploaded.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`, `Invalid`, `QuotaExceeded`.
    pub async fn build_upload(&self, caller: &Caller, template: &str, hash: &str) -> Result<UploadState, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.builds.upload_of(caller, template, hash).await
    }

    /// Takes an archive of `announced` bytes of whoever shows a token for it.
    ///
    /// # Errors
    /// `Unauthorized`, `Invalid`, `TooLarge`, `QuotaExceeded`, `Overloaded`.
    pub async fn receive_upload(&self, token: &str, hash: &str, announced: u64) -> Result<UploadWriter, DaemonError> {
        self.services.builds.receive(token, hash, announced).await
    }

    /// How a build goes on.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`, `UnknownBuild`.
    pub fn build_status(&self, caller: &Caller, template: &str, build: &str) -> Result<TemplateBuildView, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.builds.status(caller, template, build)
    }

    /// What a build said, from a line on.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`, `UnknownBuild`.
    pub async fn build_log(
        &self,
        caller: &Caller,
        template: &str,
        build: &str,
        from: u64,
        limit: u32,
    ) -> Result<Vec<BuildLogLine>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.builds.log(caller, template, build, from, limit).await
    }

    /// The templates that the caller built, by name.
    ///
    /// # Errors
    /// `Forbidden`, `Store`.
    pub fn built_templates(&self, caller: &Caller) -> Result<Vec<BuiltTemplateView>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.builds.list(caller)
    }

    /// Templates that keys built, of which the caller may know.
    ///
    /// # Errors
    /// `Forbidden`, `Store`.
    pub fn visible_templates(&self, caller: &Caller) -> Result<Vec<BuiltTemplateView>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.builds.list_visible(caller)
    }

    /// One of them, by name or id.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`.
    pub fn built_template(&self, caller: &Caller, which: &str) -> Result<BuiltTemplateView, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.builds.get(caller, which)
    }

    /// Says whether other keys may make sandboxes of one; answers its name.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`.
    pub async fn set_template_public(&self, caller: &Caller, which: &str, public: bool) -> Result<String, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.builds.set_public(caller, which, public).await
    }

    /// Removes one that no sandbox uses; builds of it that go on are ended.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`, `TemplateInUse`.
    pub async fn remove_built_template(&self, caller: &Caller, which: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.builds.remove(caller, which).await
    }

    /// Has tags mean the build that `target` means; answers that build, and the tags as they are kept.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`, `Invalid`, `QuotaExceeded`.
    pub async fn assign_template_tags(
        &self,
        caller: &Caller,
        target: &str,
        tags: &[String],
    ) -> Result<(String, Vec<String>), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.builds.assign_tags(caller, target, tags).await
    }

    /// Has tags of a template mean nothing any more.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`, `Invalid`.
    pub async fn remove_template_tags(&self, caller: &Caller, name: &str, tags: &[String]) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.builds.remove_tags(caller, name, tags).await
    }

    /// The tags of a template.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`.
    pub fn template_tags(&self, caller: &Caller, which: &str) -> Result<Vec<TemplateTagView>, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.builds.tags(caller, which)
    }
}
