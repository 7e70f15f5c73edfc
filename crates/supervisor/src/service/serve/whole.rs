//! What concerns the sandbox as a whole: paused or not, its network, what it uses.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use offleash_core::approval::ApprovalAnswer;
use offleash_core::log_level::LogLevel;
use offleash_core::network::upstream_proxy::ProxySource;
use offleash_gateway::{Gateway, Reach};
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::UsageMeasure;
use offleash_sys::socket;

use super::SocketClients;
use super::carry_out::{Outcome, failed, invalid};
use crate::lifecycle::way_out;
use crate::sandbox_loop::LoopSandbox;
use crate::service::connection::frame;
use crate::service::executions::Client;
use crate::service::message::{FiredAlerts, SupervisorFailure, SupervisorReply, SupervisorUsage};
use crate::service::order::NetworkOrder;
use crate::tools::OpenApproval;
use offleash_core::error::with_causes;

impl SocketClients {
    pub(super) fn pause(&mut self, held: &mut LoopSandbox<'_>, client: Client) -> Outcome {
        self.stop(held).map_err(failed)?;
        // Whoever asks knows of it from now on.
        self.paused_by_rule = false;
        self.answer(client, &SupervisorReply::Done);
        Ok(())
    }

    /// Stops everything in it, unless that is so.
    pub(super) fn stop(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        if self.paused_since.is_some() {
            return Ok(());
        }
        if let Some(gateway) = held.gateway {
            gateway.close();
        }
        if let Err(error) = held.sandbox.pause() {
            held.gateway.iter().for_each(|gateway| gateway.open());
            return Err(error);
        }
        self.paused_since = Some(Instant::now());
        Ok(())
    }

    /// The question about a connection that waits.
    pub(super) fn approvals(&mut self, client: Client) {
        let open = self.asked.iter();
        let open = open
            .map(|(question, until)| OpenApproval::of(question, *until))
            .collect();
        self.answer(client, &SupervisorReply::Approvals(open));
    }

    /// Answers it; in the audit log, too.
    pub(super) fn decide(
        &mut self,
        held: &mut LoopSandbox<'_>,
        client: Client,
        number: u64,
        answer: ApprovalAnswer,
    ) -> Outcome {
        if self.asked.take_if(|(question, _)| question.id == number).is_none() {
            return Err(SupervisorFailure::NoProcess);
        }
        held.answer(number, answer);
        let line = format!("approval n{number}: {answer}");
        self.service.log.note(LogLevel::Info, &line);
        self.answer(client, &SupervisorReply::Done);
        Ok(())
    }

    /// Rules of monitoring that fired; those before `after` were told, and what they ask for was done.
    pub(super) fn alerts(&mut self, held: &LoopSandbox<'_>, client: Client, after: Option<u64>) {
        let all = held.monitor.alerts();
        let count = u64::try_from(all.len()).unwrap_or(u64::MAX);
        self.told_alerts = after.unwrap_or(self.told_alerts).clamp(self.told_alerts, count);
        let told = usize::try_from(self.told_alerts).unwrap_or(usize::MAX);
        let alerts = FiredAlerts {
            count,
            alerts: all.get(told..).unwrap_or_default().to_vec(),
            paused: self.paused_by_rule,
        };
        self.answer(client, &SupervisorReply::Alerts(alerts));
    }

    pub(super) fn resume(&mut self, held: &mut LoopSandbox<'_>, client: Client) -> Outcome {
        if let Some(since) = self.paused_since {
            held.sandbox.resume().map_err(failed)?;
            self.paused_since = None;
            self.paused_by_rule = false;
            self.executions.postpone(since.elapsed());
            held.gateway.iter().for_each(|gateway| gateway.open());
        }
        self.answer(client, &SupervisorReply::Done);
        Ok(())
    }

    /// Answered by the gateway, on its thread: it takes as long as a program inside takes to accept.
    pub(super) fn port(&mut self, held: &mut LoopSandbox<'_>, client: Client, port: u16) -> Outcome {
        self.check_running()?;
        if port == 0 {
            return Err(invalid("no program listens on port 0"));
        }
        let gateway = serving_gateway(held)?;
        let Some(connection) = self.connections.get(&client) else {
            return Ok(());
        };
        let socket = connection.duplicate().map_err(|error| SupervisorFailure::Failed {
            reason: format!("duplicate a descriptor: {error}"),
        })?;
        gateway.connect(port, move |connected| tell(&socket, connected));
        Ok(())
    }

    pub(super) fn set_network(
        &mut self,
        held: &mut LoopSandbox<'_>,
        client: Client,
        network: &NetworkOrder,
    ) -> Outcome {
        let spec = network.spec().map_err(|error| invalid(&with_causes(&error)))?;
        let gateway = serving_gateway(held)?;
        let trust = self.service.authority.trust();
        if spec.opens() && trust.is_none() {
            return Err(invalid("headers are to be set, and the sandbox has no authority yet"));
        }
        let proxy = match &spec.upstream_proxy {
            Some(ProxySource::Url(proxy)) => Some(proxy.clone()),
            _ => None,
        };
        let way_out = way_out(&spec, proxy);
        let secrets = network.secrets().map_err(|error| invalid(&with_causes(&error)))?;
        gateway.set_rules(Reach {
            rules: spec.policy,
            internet: spec.internet,
            way_out,
            requests: spec.requests,
            trust,
            secrets,
        });
        self.answer(client, &SupervisorReply::Done);
        Ok(())
    }

    /// The sandbox's authority, which is made if it has none, and what its programs must find to trust it.
    pub(super) fn authority(&mut self, held: &mut LoopSandbox<'_>, client: Client) -> Outcome {
        let gateway = serving_gateway(held)?;
        let files = self
            .service
            .authority
            .files(gateway)
            .map_err(|error| SupervisorFailure::Unsupported {
                operation: format!("open TLS: {}", with_causes(&error)),
            })?;
        self.service.users.name_authority();
        self.answer(client, &SupervisorReply::Authority(files));
        Ok(())
    }

    pub(super) fn usage(&mut self, held: &mut LoopSandbox<'_>, client: Client) {
        let UsageMeasure {
            cpu_us,
            memory_bytes,
            memory_cache_bytes,
            memory_peak_bytes,
            pids,
            disk_bytes,
        } = held.sandbox.measure();
        let bounds = self.service.bounds;
        let usage = SupervisorUsage {
            cpu_us,
            cpus_millis: bounds.cpus_millis,
            memory_bytes,
            memory_cache_bytes,
            memory_peak_bytes,
            memory_limit_bytes: bounds.memory_bytes,
            pids,
            disk_bytes,
            disk_limit_bytes: bounds.disk_bytes,
            untold_alerts: u64::try_from(held.monitor.alerts().len())
                .unwrap_or(u64::MAX)
                .saturating_sub(self.told_alerts),
        };
        self.answer(client, &SupervisorReply::Usage(usage));
    }
}

/// The gateway, if there is one that serves.
fn serving_gateway<'a>(held: &LoopSandbox<'a>) -> Result<&'a Gateway, SupervisorFailure> {
    let gateway = held.gateway.ok_or_else(no_network)?;
    match gateway.has_ended() {
        true => Err(SupervisorFailure::Failed {
            reason: "the gateway of its network has ended".to_owned(),
        }),
        false => Ok(gateway),
    }
}

fn no_network() -> SupervisorFailure {
    SupervisorFailure::Unsupported {
        operation: "have a network at this level".to_owned(),
    }
}

/// Passes a connection into the sandbox on to who asked for it, who then hangs up.
fn tell(socket: &OwnedFd, connected: io::Result<OwnedFd>) {
    let (reply, connection) = match connected {
        Ok(connection) => (SupervisorReply::Port, Some(connection)),
        Err(error) => (SupervisorReply::Failed(failure_to_connect(&error)), None),
    };
    let with: Vec<_> = connection.iter().map(|connection| connection.as_fd()).collect();
    // The socket is empty, so there is room; who has hung up needs no answer.
    let _told = socket::send_now(socket.as_fd(), &frame(&reply), &with);
}

fn failure_to_connect(error: &io::Error) -> SupervisorFailure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => SupervisorFailure::PortClosed,
        io::ErrorKind::Unsupported => no_network(),
        _ => SupervisorFailure::Failed {
            reason: format!("connect to the port: {error}"),
        },
    }
}
