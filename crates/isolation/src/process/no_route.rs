//! What a sandbox tried to send where no route leads: the kernel counts it for each network.

use std::fs;

use rustix::process::Pid;

/// How many connections and datagrams of the network that `process` is in found no route (RFC 4293, `ipOutNoRoutes`);
/// 0 when the kernel does not say.
///
/// What is sent to the loopback has one, so that servers inside do not count.
pub(super) fn count(process: Pid) -> u64 {
    let read =
        |name: &str| fs::read_to_string(format!("/proc/{}/net/{name}", process.as_raw_pid())).unwrap_or_default();
    of_version_4(&read("snmp")).saturating_add(of_version_6(&read("snmp6")))
}

/// Two lines that begin with `Ip:`, of names and of numbers (proc_pid_net(5)).
fn of_version_4(text: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with("Ip: "));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let mut columns = names.split_ascii_whitespace().zip(numbers.split_ascii_whitespace());
    let found = columns.find(|(name, _)| *name == "OutNoRoutes");
    found.and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

/// A line for each name.
fn of_version_6(text: &str) -> u64 {
    let found = text.lines().find_map(|line| line.strip_prefix("Ip6OutNoRoutes"));
    found.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read_by_name() {
        let four = "Ip: Forwarding OutDiscards OutNoRoutes ReasmTimeout\nIp: 2 7 3 9\nIcmp: InMsgs\nIcmp: 1\n";
        assert_eq!(of_version_4(four), 3);
        let six = "Ip6InReceives                   \t5\nIp6OutNoRoutes                  \t4\n";
        assert_eq!(of_version_6(six), 4);
        for text in ["", "Ip: OutNoRoutes\n", "Ip: OutNoRoutes\nIp: x\n", "Ip6OutNoRoutes\n"] {
            assert_eq!((of_version_4(text), of_version_6(text)), (0, 0), "{text:?}");
        }
    }
}
