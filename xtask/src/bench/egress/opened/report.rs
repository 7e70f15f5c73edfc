//! What requests over opened TLS took, for people and as JSON.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::bench::egress::contender::{DIRECT, OFFLEASH};
use crate::bench::sample::Series;

/// All that was found.
#[derive(Debug, Serialize)]
pub(in crate::bench::egress) struct Opened {
    /// Whether the client and the server were; if not, much of what is measured is theirs.
    optimized: bool,
    figures: Vec<Figure>,
    shares: Vec<Share>,
}

/// What one way did with so many connections at the same time.
#[derive(Debug, Serialize)]
struct Figure {
    contender: &'static str,
    connections: u32,
    /// On all connections together, in one round.
    requests: u32,
    /// What all of them took, ns.
    ns: Series,
    per_second: PerSecond,
}

/// Requests a second.
#[derive(Debug, Serialize)]
struct PerSecond {
    median: f64,
    /// So many or more in 95 % of the rounds.
    p95: f64,
}

/// How much of the direct way's rate the gateway leaves.
#[derive(Debug, Serialize)]
struct Share {
    connections: u32,
    offleash_to_direct: f64,
}

/// What `requests` on `connections` took in every round, ns.
#[derive(Debug)]
pub(super) struct Times {
    pub(super) contender: &'static str,
    pub(super) connections: u32,
    pub(super) requests: u32,
    pub(super) ns: Vec<u64>,
}

impl Opened {
    pub(super) fn of(times: Vec<Times>) -> Self {
        let figures: Vec<Figure> = times.into_iter().map(Figure::of).collect();
        let shares = figures.iter().filter(|figure| figure.contender == OFFLEASH);
        let shares = shares.filter_map(|ours| {
            let is_direct = |other: &&Figure| other.contender == DIRECT && other.connections == ours.connections;
            let direct = figures.iter().find(is_direct)?;
            Some(Share {
                connections: ours.connections,
                offleash_to_direct: ours.per_second.median / direct.per_second.median,
            })
        });
        Self {
            optimized: !cfg!(debug_assertions),
            shares: shares.collect(),
            figures,
        }
    }
}

impl Figure {
    fn of(times: Times) -> Self {
        let ns = Series::of(times.ns.into_iter());
        let rate = |ns| f64::from(times.requests) / Duration::from_nanos(ns).as_secs_f64();
        Self {
            contender: times.contender,
            connections: times.connections,
            requests: times.requests,
            per_second: PerSecond {
                median: rate(ns.median),
                p95: rate(ns.p95),
            },
            ns,
        }
    }
}

impl fmt::Display for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for share in &self.shares {
            let connections = share.connections;
            let what = format!("HTTPS, connections: {connections}");
            writeln!(f, "\n{what:<22}{:>10}{:>10}  requests/s", "median", "p95")?;
            for figure in self.figures.iter().filter(|figure| figure.connections == connections) {
                let (name, rate) = (figure.contender, &figure.per_second);
                writeln!(f, "  {name:<20}{:>10.0}{:>10.0}", rate.median, rate.p95)?;
            }
            writeln!(f, "  {:<20}{:>10.2}", "offleash to direct", share.offleash_to_direct)?;
        }
        if !self.optimized {
            writeln!(
                f,
                "  (client and server are not optimized; `cargo run --release --package xtask -- bench egress` has \
                 them so)"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_compared_for_as_many_connections() {
        let times = |contender, connections, ms: u64| Times {
            contender,
            connections,
            requests: 1000 * connections,
            ns: vec![ms * 1_000_000; 3],
        };
        let report = Opened::of(vec![
            times(DIRECT, 1, 100),
            times(OFFLEASH, 1, 400),
            times(DIRECT, 8, 250),
            times(OFFLEASH, 8, 500),
        ]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["figures"][0]["per_second"]["median"], 10_000.0);
        assert_eq!(json["figures"][3]["per_second"]["p95"], 16_000.0);
        assert_eq!(json["shares"][0]["offleash_to_direct"], 0.25);
        assert_eq!(json["shares"][1]["connections"], 8);
        assert_eq!(json["shares"][1]["offleash_to_direct"], 0.5);
        let text = report.to_string();
        for line in ["HTTPS, connections: 8", "32000     32000", "direct        0.25"] {
            assert!(text.contains(line), "{text}");
        }
    }
}
