//! Removes what nobody needs any more: builds that no tag means, and archives.

use std::collections::BTreeSet;

use offleash_core::template::TemplateName;
use offleash_supervisor::templates::TemplateError;

use super::BuildService;
use crate::jobs::blocking;
use crate::registry::Registry;
use crate::template_names::{in_store, of_store};

impl BuildService {
    /// Removes builds from the store that no tag means, and archives that nobody needs.
    pub(crate) async fn collect_all(&self) {
        self.uploads.collect().await;
        self.collect().await;
    }

    /// Removes builds from the store that no tag means. What sandboxes use goes another time.
    pub(super) async fn collect(&self) {
        let state = self.core.host.state().clone();
        let listed = blocking("list templates", move || {
            Ok::<_, TemplateError>(state.templates()?.names()?)
        });
        let Ok(Ok(listed)) = listed.await else { return };
        // In this order: one that ends meanwhile has its tags before it goes on no more.
        let mut wanted: BTreeSet<TemplateName> = self
            .going_on()
            .builds
            .values()
            .map(|build| build.in_store.clone())
            .collect();
        let Ok(tags) = self.templates.look_up(Registry::all_tags) else {
            return;
        };
        // A snapshot is of no use without what it lies over.
        let Ok(snapshots) = self.templates.look_up(Registry::all_snapshots) else {
            return;
        };
        wanted.extend(snapshots.iter().filter_map(|snapshot| snapshot.template.parse().ok()));
        wanted.extend(tags.iter().filter_map(|tag| in_store(&tag.template, &tag.build).ok()));
        for name in listed {
            if of_store(name.as_str()).is_some() && !wanted.contains(&name) {
                // Whoever has a sandbox of it keeps it.
                let _later = self.remover.remove(name.as_str()).await;
            }
        }
    }
}
