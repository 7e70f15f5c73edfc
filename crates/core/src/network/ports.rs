//! Which ports a rule is about.

use core::fmt;

const MAX_LIST: usize = 64;

/// The ports of a rule. As text `22,443`, ranges `8000-8100`, or `*` for all; displayed in order, without overlaps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct PortSet(Vec<PortRange>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
struct PortRange {
    first: u16,
    last: u16,
}

/// Text that is no list of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PortsError {
    /// Nothing, or nothing between two commas.
    #[error("a port is missing")]
    Missing,
    /// Not a number from 1 to 65535.
    #[error("a port is a number from 1 to 65535")]
    NotAPort,
    /// The end of a range before its beginning.
    #[error("a range of ports goes from the lower to the higher")]
    Backwards,
    /// More entries than anybody writes.
    #[error("a rule has at most {MAX_LIST} ports or ranges")]
    TooMany,
}

impl PortSet {
    /// Every port.
    pub fn all() -> Self {
        Self(vec![PortRange {
            first: 1,
            last: u16::MAX,
        }])
    }

    /// 80 and 443.
    pub fn of_the_web() -> Self {
        Self(
            [80, 443]
                .map(|port| PortRange {
                    first: port,
                    last: port,
                })
                .to_vec(),
        )
    }

    /// Reads `22,443,8000-8100` or `*`.
    ///
    /// # Errors
    /// [`PortsError`] says what is wrong; port 0, which nothing listens on, is refused.
    pub fn parse(text: &str) -> Result<Self, PortsError> {
        if text == "*" {
            return Ok(Self::all());
        }
        let mut ranges = text.split(',').map(parse_range).collect::<Result<Vec<_>, _>>()?;
        if ranges.len() > MAX_LIST {
            return Err(PortsError::TooMany);
        }
        ranges.sort_unstable();
        ranges.dedup_by(|next, kept| kept.absorb(*next));
        Ok(Self(ranges))
    }

    /// Whether `port` is among them.
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| (range.first..=range.last).contains(&port))
    }

    /// These without `port`; `None` when there are no others.
    pub(crate) fn without(&self, port: u16) -> Option<Self> {
        let ranges = self.0.iter().flat_map(|range| {
            let before = port.checked_sub(1).map(|last| (range.first, last.min(range.last)));
            let after = port.checked_add(1).map(|first| (first.max(range.first), range.last));
            [before, after]
        });
        let ranges = ranges.flatten().filter(|(first, last)| first <= last);
        let mut ranges: Vec<PortRange> = ranges.map(|(first, last)| PortRange { first, last }).collect();
        ranges.dedup();
        (!ranges.is_empty()).then_some(Self(ranges))
    }

    /// The ports, if they are at most `most`.
    pub(crate) fn listed(&self, most: usize) -> Option<Vec<u16>> {
        let count: usize = self
            .0
            .iter()
            .map(|range| usize::from(range.last - range.first) + 1)
            .sum();
        let all = || self.0.iter().flat_map(|range| range.first..=range.last).collect();
        (count <= most).then(all)
    }

    /// Every port at which the answer of [`PortSet::contains`] differs from that for the port before.
    pub(crate) fn changes(&self) -> impl Iterator<Item = u16> {
        let first = self.0.iter().map(|range| Some(range.first));
        let after = self.0.iter().map(|range| range.last.checked_add(1));
        first.chain(after).flatten()
    }
}

impl PortRange {
    /// Takes in `next`, which does not begin earlier, when there is no gap between the two.
    fn absorb(&mut self, next: PortRange) -> bool {
        let touches = next.first <= self.last.saturating_add(1);
        if touches {
            self.last = self.last.max(next.last);
        }
        touches
    }
}

fn parse_range(text: &str) -> Result<PortRange, PortsError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (parse_port(first)?, parse_port(last)?);
    if first > last {
        return Err(PortsError::Backwards);
    }
    Ok(PortRange { first, last })
}

fn parse_port(text: &str) -> Result<u16, PortsError> {
    if text.is_empty() {
        return Err(PortsError::Missing);
    }
    // A sign or a leading zero is a slip, not a port.
    if !text.bytes().all(|byte| byte.is_ascii_digit()) || text.starts_with('0') {
        return Err(PortsError::NotAPort);
    }
    text.parse().map_err(|_| PortsError::NotAPort)
}

impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::all() {
            return f.write_str("*");
        }
        for (position, range) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            write!(f, "{}", range.first)?;
            if range.first != range.last {
                write!(f, "-{}", range.last)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_shown_in_order_and_without_overlaps() {
        for (text, shown) in [
            ("443", "443"),
            ("443,22", "22,443"),
            ("22,22", "22"),
            ("8000-8100,8050-8200,8201", "8000-8201"),
            ("1-65535", "*"),
            ("1-10,11-65535", "*"),
            ("65535,65534", "65534-65535"),
            ("*", "*"),
        ] {
            assert_eq!(PortSet::parse(text).unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_of_ports_is_refused() {
        for (text, error) in [
            ("", PortsError::Missing),
            ("22,", PortsError::Missing),
            ("-22", PortsError::Missing),
            ("22-", PortsError::Missing),
            ("0", PortsError::NotAPort),
            ("65536", PortsError::NotAPort),
            ("+22", PortsError::NotAPort),
            ("022", PortsError::NotAPort),
            (" 22", PortsError::NotAPort),
            ("https", PortsError::NotAPort),
            ("22,*", PortsError::NotAPort),
            ("1-2-3", PortsError::NotAPort),
            ("２２", PortsError::NotAPort),
            ("443-80", PortsError::Backwards),
        ] {
            assert_eq!(PortSet::parse(text), Err(error), "{text:?}");
        }
        let many = vec!["1"; MAX_LIST + 1].join(",");
        assert_eq!(PortSet::parse(&many), Err(PortsError::TooMany));
    }

    #[test]
    fn a_port_is_taken_out_of_ranges() {
        for (text, port, left) in [
            ("80,443", 443, Some("80")),
            ("443", 443, None),
            ("1-10", 1, Some("2-10")),
            ("1-10", 5, Some("1-4,6-10")),
            ("*", 65535, Some("1-65534")),
            ("*", 1, Some("2-65535")),
            ("22,80", 443, Some("22,80")),
        ] {
            let ports = PortSet::parse(text).unwrap().without(port);
            assert_eq!(
                ports.map(|ports| ports.to_string()).as_deref(),
                left,
                "{text} without {port}"
            );
        }
    }

    proptest! {
        #[test]
        fn without_a_port_all_others_are_left(first in 1_u16.., more in 0_u16..50, out: u16, port in 1_u16..) {
            let ports = PortSet(vec![PortRange { first, last: first.saturating_add(more) }, PortRange { first: 1, last: 5 }]);
            let left = ports.without(out).is_some_and(|left| left.contains(port));
            prop_assert_eq!(left, ports.contains(port) && port != out);
        }

        #[test]
        fn ranges_hold_the_ports_between_their_ends(list in prop::collection::vec((1_u16.., 0_u16..50), 1..6), port: u16) {
            let ranges: Vec<(u16, u16)> = list.iter().map(|(first, more)| (*first, first.saturating_add(*more))).collect();
            let text: Vec<String> = ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
            let ports = PortSet::parse(&text.join(",")).unwrap();
            prop_assert_eq!(ports.contains(port), ranges.iter().any(|(first, last)| (*first..=*last).contains(&port)));
            prop_assert_eq!(PortSet::parse(&ports.to_string()).unwrap(), ports);
        }
    }
}
