//! The rules that are watched unless an owner says otherwise. None of them ends, pauses or slows anything.

use super::{MonitorAction, MonitorFigure, MonitorRule};
use crate::units::Millis;

/// A rule that needs no policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltinRule {
    /// What it is called.
    pub name: &'static str,
    /// What it watches.
    pub watch: MonitorFigure,
    /// From which value on it fires.
    pub threshold: u64,
    /// Over which time.
    pub window: Millis,
    /// What is done.
    pub action: MonitorAction,
    /// What it is a sign of, as one sentence without a full stop.
    pub why: &'static str,
}

impl BuiltinRule {
    /// The same as an owner's rule.
    pub fn rule(&self) -> MonitorRule {
        MonitorRule {
            name: self.name.to_owned(),
            watch: self.watch,
            threshold: self.threshold,
            window: self.window,
            action: self.action,
        }
    }
}

const fn rule(
    name: &'static str,
    (watch, threshold, seconds): (MonitorFigure, u64, u64),
    action: MonitorAction,
    why: &'static str,
) -> BuiltinRule {
    BuiltinRule {
        name,
        watch,
        threshold,
        window: Millis(seconds * 1000),
        action,
        why,
    }
}

/// The built-in rules.
pub const BUILTIN_RULES: &[BuiltinRule] = &[
    rule(
        "fork-storm",
        (MonitorFigure::Forks, 1500, 2),
        MonitorAction::Alert,
        "processes that start processes without end; builds start some hundred a second",
    ),
    rule(
        "port-scan",
        (MonitorFigure::RefusedConnections, 50, 5),
        MonitorAction::Alert,
        "many connections to where nothing may be reached",
    ),
    rule(
        "host-sweep",
        (MonitorFigure::Hosts, 60, 5),
        MonitorAction::Alert,
        "one host after the other",
    ),
    rule(
        "request-flood",
        (MonitorFigure::Connections, 150, 5),
        MonitorAction::Alert,
        "many small requests, as data leaves piece by piece, or as a server is flooded",
    ),
    rule(
        "upload",
        (MonitorFigure::Sent, 256 * 1024, 60),
        MonitorAction::Alert,
        "much that leaves",
    ),
    rule(
        "dns-exfiltration",
        (MonitorFigure::GeneratedNames, 20, 10),
        MonitorAction::Alert,
        "data in the names that are asked for; it does not leave, since no question does",
    ),
    rule(
        "name-sweep",
        (MonitorFigure::RefusedNames, 100, 10),
        MonitorAction::Alert,
        "a search for names that can be reached",
    ),
    rule(
        "mass-overwrite",
        (MonitorFigure::Overwrites, 60, 10),
        MonitorAction::Alert,
        "files that are encrypted one after the other, as ransomware does",
    ),
    rule(
        "mass-removal",
        (MonitorFigure::Removals, 200, 10),
        MonitorAction::Log,
        "files that are removed one after the other; some tools clean up like that",
    ),
    rule(
        "protected-names",
        (MonitorFigure::ProtectedNames, 1, 10),
        MonitorAction::Log,
        "a name that runs code later, outside of the sandbox; it is not applied unless named",
    ),
    rule(
        "miner",
        (MonitorFigure::Miners, 1, 60),
        MonitorAction::Alert,
        "a connection to a pool of miners",
    ),
    rule(
        "credential-hunt",
        (MonitorFigure::Credentials, 8, 10),
        MonitorAction::Alert,
        "a search for credentials in more than one place; libraries of clouds ask a metadata service two or three times",
    ),
    rule(
        "busy-cpu",
        (MonitorFigure::Cpu, 90, 600),
        MonitorAction::Log,
        "a CPU that is busy without a pause, as miners' are, and training's",
    ),
    rule(
        "refused-calls",
        (MonitorFigure::RefusedCalls, 500, 5),
        MonitorAction::Alert,
        "a program that tries what it may not do again and again",
    ),
];
