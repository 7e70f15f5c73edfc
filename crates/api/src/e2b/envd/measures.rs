//! `/metrics`: what a sandbox uses, as E2B's agent measures it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Response, StatusCode};
use offleash_supervisor::service::message::SupervisorUsage;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::SandboxAccess;
use super::failure::{ServiceFailure, gone};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;

/// Over how long the use of CPUs is measured.
const SPAN: Duration = Duration::from_millis(100);
const MIB: u64 = 1024 * 1024;

#[derive(Debug, Serialize)]
struct SandboxMeasures {
    ts: u64,
    cpu_count: u64,
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_used: u64,
    disk_total: u64,
}

/// Answers with what is used now; the CPUs, in the next moment.
pub(super) async fn answer(sandbox: &SandboxAccess) -> Response<Body> {
    match measure(sandbox).await {
        Ok(measures) => answer::json(StatusCode::OK, &measures),
        Err(ServiceFailure::Gone) => gone(&sandbox.id),
        Err(ServiceFailure::Told(error)) => ApiRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.message).answer(),
    }
}

async fn measure(sandbox: &SandboxAccess) -> Result<SandboxMeasures, ServiceFailure> {
    let begun = Instant::now();
    let before = sandbox.supervisor.usage().await?;
    sleep(SPAN).await;
    let after = sandbox.supervisor.usage().await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(measures(&before, &after, begun.elapsed(), now.as_secs()))
}

fn measures(before: &SupervisorUsage, after: &SupervisorUsage, span: Duration, ts: u64) -> SandboxMeasures {
    let used_us = u32::try_from(after.cpu_us.saturating_sub(before.cpu_us)).unwrap_or(u32::MAX);
    let cpus = f64::from(u32::try_from(after.cpus_millis).unwrap_or(u32::MAX)) / 1000.0;
    let possible = Duration::from_micros(1).as_secs_f64() * f64::from(used_us) / span.as_secs_f64().max(1e-6);
    let percent = if cpus > 0.0 { 100.0 * possible / cpus } else { 0.0 };
    SandboxMeasures {
        ts,
        cpu_count: after.cpus_millis.div_ceil(1000),
        cpu_used_pct: (percent.min(100.0) * 100.0).round() / 100.0,
        mem_total: after.memory_limit_bytes,
        mem_used: after.memory_bytes.saturating_sub(after.memory_cache_bytes),
        mem_cache: after.memory_cache_bytes,
        mem_total_mib: after.memory_limit_bytes / MIB,
        mem_used_mib: after.memory_bytes.saturating_sub(after.memory_cache_bytes) / MIB,
        disk_used: after.disk_bytes,
        disk_total: after.disk_limit_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_measured_between_two_looks() {
        let before = SupervisorUsage {
            cpu_us: 1_000_000,
            cpus_millis: 1500,
            ..SupervisorUsage::default()
        };
        let after = SupervisorUsage {
            cpu_us: 1_150_000,
            memory_bytes: 3 * MIB,
            memory_cache_bytes: MIB,
            memory_limit_bytes: 512 * MIB,
            ..before
        };
        let found = measures(&before, &after, Duration::from_millis(200), 7);
        assert_eq!((found.cpu_count, found.cpu_used_pct, found.ts), (2, 50.0, 7));
        assert_eq!((found.mem_used, found.mem_used_mib, found.mem_cache), (2 * MIB, 2, MIB));
        // A clock that did not move, or a counter that went back, is no reason to fail.
        assert_eq!(measures(&after, &before, Duration::ZERO, 0).cpu_used_pct, 0.0);
    }
}
