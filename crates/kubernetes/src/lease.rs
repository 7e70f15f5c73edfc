//! Who of several controllers of one name leads: whoever holds the Lease.
//!
//! Clocks of machines are not compared. A Lease is over when it has not changed for as long as it says, by this process's own clock,
//! since this process saw it change; a holder that cannot renew it stops before that.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::sleep;

use crate::error::ControllerError;

/// The Lease of a controller.
#[derive(Debug)]
pub(crate) struct Leadership {
    api: Api<Lease>,
    name: String,
    identity: String,
    duration: Duration,
    /// What was seen last, and since when.
    seen: Option<(LeaseSpec, Instant)>,
}

/// What came of trying to hold the Lease.
#[derive(Debug, PartialEq, Eq)]
enum Attempt {
    Held,
    HeldBy(String),
    Contended,
}

impl Leadership {
    /// The Lease `name`, for `identity`.
    pub(crate) fn new(api: Api<Lease>, name: String, identity: String, duration: Duration) -> Self {
        Self {
            api,
            name,
            identity,
            duration,
            seen: None,
        }
    }

    /// Waits until this process leads.
    ///
    /// # Errors
    /// `ApiServer` where it is refused.
    pub(crate) async fn acquire(&mut self, told: impl Fn(&str)) -> Result<(), ControllerError> {
        let mut last = String::new();
        loop {
            match self.attempt().await {
                Ok(Attempt::Held) => return Ok(()),
                Ok(Attempt::HeldBy(holder)) if holder != last => {
                    told(&format!(
                        "`{holder}` leads; this controller waits for the Lease `{}`",
                        self.name
                    ));
                    last = holder;
                }
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403 | 404) => {
                    return Err(ControllerError::ApiServer {
                        tried: "hold the Lease",
                        reason: status.message.clone(),
                        is_refusal: true,
                    });
                }
                Err(error) => told(&format!("holding the Lease: {error}")),
            }
            sleep(self.duration / 7).await;
        }
    }

    /// Renews the Lease until that fails for good; answers who has it.
    pub(crate) async fn keep(&mut self) -> ControllerError {
        let mut renewed = Instant::now();
        let lost = |lease: &str, holder: String| ControllerError::LeadershipLost {
            lease: lease.to_owned(),
            holder,
        };
        loop {
            sleep(self.duration / 7).await;
            let left = (self.duration * 2 / 3).saturating_sub(renewed.elapsed());
            match tokio::time::timeout(left, self.attempt()).await {
                Ok(Ok(Attempt::Held)) => renewed = Instant::now(),
                Ok(Ok(Attempt::HeldBy(holder))) => return lost(&self.name, format!("held by `{holder}`")),
                Ok(Ok(Attempt::Contended) | Err(_)) => {}
                Err(_) => return lost(&self.name, "out of reach".to_owned()),
            }
            if renewed.elapsed() >= self.duration * 2 / 3 {
                return lost(&self.name, "out of reach".to_owned());
            }
        }
    }

    /// Gives the Lease up, so that nobody waits for its end.
    pub(crate) async fn release(&mut self) -> Result<(), kube::Error> {
        if let Some(mut lease) = self.api.get_opt(&self.name).await?
            && let Some(spec) = lease
                .spec
                .as_mut()
                .filter(|spec| spec.holder_identity.as_ref() == Some(&self.identity))
        {
            spec.holder_identity = Some(String::new());
            self.api.replace(&self.name, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }

    async fn attempt(&mut self) -> Result<Attempt, kube::Error> {
        let now = MicroTime(Timestamp::now());
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(&LeaseSpec::default(), now)),
            };
            return contended(self.api.create(&PostParams::default(), &lease).await);
        };
        let there = lease.spec.clone().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if *seen == there => *since,
            _ => Instant::now(),
        };
        self.seen = Some((there.clone(), since));
        let holder = there.holder_identity.clone().unwrap_or_default();
        let lasts = there
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        let lasts = lasts.map_or(self.duration, Duration::from_secs);
        if !holder.is_empty() && holder != self.identity && since.elapsed() < lasts {
            return Ok(Attempt::HeldBy(holder));
        }
        lease.spec = Some(self.spec(&there, now));
        contended(self.api.replace(&self.name, &PostParams::default(), &lease).await)
    }

    fn spec(&self, there: &LeaseSpec, now: MicroTime) -> LeaseSpec {
        let is_ours = there.holder_identity.as_ref() == Some(&self.identity);
        LeaseSpec {
            acquire_time: Some(
                there
                    .acquire_time
                    .clone()
                    .filter(|_| is_ours)
                    .unwrap_or_else(|| now.clone()),
            ),
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.duration.as_secs().max(1)).unwrap_or(i32::MAX)),
            lease_transitions: Some(there.lease_transitions.unwrap_or_default() + i32::from(!is_ours)),
            renew_time: Some(now),
            ..there.clone()
        }
    }
}

/// Somebody else was faster where the object has changed, or is there already.
fn contended(result: Result<Lease, kube::Error>) -> Result<Attempt, kube::Error> {
    match result {
        Ok(_) => Ok(Attempt::Held),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Attempt::Contended),
        Err(error) => Err(error),
    }
}
