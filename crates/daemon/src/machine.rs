//! What the machine offers, as `offleash doctor` finds it out, for whoever looks at it from elsewhere.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use offleash_supervisor::probe::{self, ProbeReport};
use tokio::sync::Mutex;

use crate::error::DaemonError;
use crate::jobs::blocking;

/// How long what was found out holds: runtimes are asked for their version by starting them.
const HOLDS_FOR: Duration = Duration::from_secs(30);

/// Finds out what the machine offers, one at a time and not again and again.
#[derive(Debug)]
pub(crate) struct MachineProbe {
    state: PathBuf,
    latest: Mutex<Option<(Instant, Arc<ProbeReport>)>>,
}

impl MachineProbe {
    pub(crate) fn new(state: PathBuf) -> Self {
        Self {
            state,
            latest: Mutex::default(),
        }
    }

    /// What the machine offers, not older than [`HOLDS_FOR`].
    ///
    /// # Errors
    /// `Host`.
    pub(crate) async fn report(&self) -> Result<Arc<ProbeReport>, DaemonError> {
        let mut latest = self.latest.lock().await;
        if let Some((when, report)) = &*latest
            && when.elapsed() < HOLDS_FOR
        {
            return Ok(Arc::clone(report));
        }
        let state = self.state.clone();
        let report = blocking("probe the machine", move || probe::machine(state)).await?;
        let report = Arc::new(report.map_err(DaemonError::host("probe the machine"))?);
        *latest = Some((Instant::now(), Arc::clone(&report)));
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_machine_is_not_probed_again_and_again() {
        let probe = MachineProbe::new(std::env::temp_dir());
        let (first, second) = tokio::join!(probe.report(), probe.report());
        let first = first.unwrap();
        assert!(Arc::ptr_eq(&first, &second.unwrap()));
        assert!(first.levels.len() >= 4 && first.check("cgroups").is_some(), "{first:?}");
    }
}
