//! How a pull goes on: one bar over all bytes on a terminal, a line for each step elsewhere.

use std::cell::RefCell;
use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use offleash_core::units::Bytes;
use offleash_images::{ImageDigest, ImageProgress, ProgressStep};

use super::short;
use crate::terminal;
use crate::terminal::rounded;

/// What is shown of a pull or a load.
pub(crate) struct ShownProgress {
    form: ProgressForm,
    /// How many bytes of each blob are to come, and came.
    blobs: RefCell<BTreeMap<ImageDigest, (u64, u64)>>,
}

enum ProgressForm {
    Nothing,
    Lines,
    /// It is drawn only when something happens: threads of its own a process that unpacks for other ids cannot have.
    Bar(ProgressBar),
}

impl ShownProgress {
    pub(crate) fn new(is_quiet: bool, name: &str) -> Self {
        let form = match is_quiet {
            true => ProgressForm::Nothing,
            false => bar(name).map_or(ProgressForm::Lines, ProgressForm::Bar),
        };
        Self {
            form,
            blobs: RefCell::default(),
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let ProgressForm::Bar(bar) = &self.form {
            bar.finish_and_clear();
        }
    }

    /// The numbers of all blobs together.
    fn count(&self, step: ProgressStep) -> (u64, u64) {
        let mut blobs = self.blobs.borrow_mut();
        match step {
            ProgressStep::Fetching { digest, bytes, had } => drop(blobs.insert(digest, (bytes, had))),
            ProgressStep::Fetched { digest, bytes } => {
                if let Some((whole, came)) = blobs.get_mut(&digest) {
                    *came = came.saturating_add(bytes).min(*whole);
                }
            }
            ProgressStep::Complete { digest } => {
                if let Some((whole, came)) = blobs.get_mut(&digest) {
                    *came = *whole;
                }
            }
            _ => {}
        }
        let sum = |(whole, came): (u64, u64), (one, other): &(u64, u64)| (whole + one, came + other);
        blobs.values().fold((0, 0), sum)
    }
}

fn bar(name: &str) -> Option<ProgressBar> {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    // What is in braces would be a part of the template.
    let name = name.replace('{', "{{").replace('}', "}}");
    let form =
        format!("{{spinner}} [{{bar:20}}] {name} {{bytes}} of {{total_bytes}} {{bytes_per_sec}} {{wide_msg:.dim}}");
    let style = ProgressStyle::with_template(&form).map(|style| style.progress_chars("=> "));
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    (!bar.is_hidden()).then_some(bar)
}

/// What a step is called.
fn words(step: ProgressStep) -> Option<String> {
    Some(match step {
        ProgressStep::Resolving => "asking for the manifest".to_owned(),
        ProgressStep::Fetching { digest, bytes, had } => {
            let bytes = Bytes(rounded(bytes));
            match had {
                0 => format!("fetching {} of {bytes}", short(&digest)),
                had => format!(
                    "fetching {} of {bytes}, of which {} are here",
                    short(&digest),
                    Bytes(rounded(had))
                ),
            }
        }
        ProgressStep::Resuming { digest } => format!("{} broke off, and is asked for again", short(&digest)),
        ProgressStep::Waiting { digest } => format!("waiting for another process that fetches {}", short(&digest)),
        ProgressStep::Unpacking { number, of } => format!("unpacking layer {number} of {of}"),
        ProgressStep::Fetched { .. } | ProgressStep::Complete { .. } => return None,
    })
}

impl ImageProgress for ShownProgress {
    fn step(&self, step: ProgressStep) {
        match (&self.form, words(step)) {
            (ProgressForm::Nothing, _) | (ProgressForm::Lines, None) => {}
            (ProgressForm::Lines, Some(words)) => terminal::complain(&words),
            (ProgressForm::Bar(bar), words) => {
                let (whole, came) = self.count(step);
                bar.set_length(whole);
                bar.set_position(came);
                if let Some(words) = words {
                    bar.set_message(words);
                }
                bar.tick();
            }
        }
    }
}
