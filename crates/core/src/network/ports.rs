//! Which ports a rule is about.

use core::fmt;

const LONGEST_LIST: usize = 64;

/// The ports of a rule. As text `22,443`, ranges `8000-8100`, or `*` for all; displayed in order, without overlaps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports(Vec<PortRange>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    #[error("a rule has at most {LONGEST_LIST} ports or ranges")]
    TooMany,
}

impl Ports {
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
        if ranges.len() > LONGEST_LIST {
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

    /// Every port at which the answer of [`Ports::contains`] differs from that for the port before.
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

impl fmt::Display for Ports {
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
            assert_eq!(Ports::parse(text).unwrap().to_string(), shown, "{text}");
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
            assert_eq!(Ports::parse(text), Err(error), "{text:?}");
        }
        let many = vec!["1"; LONGEST_LIST + 1].join(",");
        assert_eq!(Ports::parse(&many), Err(PortsError::TooMany));
    }

    proptest! {
        #[test]
        fn ranges_hold_the_ports_between_their_ends(list in prop::collection::vec((1_u16.., 0_u16..50), 1..6), port: u16) {
            let ranges: Vec<(u16, u16)> = list.iter().map(|(first, more)| (*first, first.saturating_add(*more))).collect();
            let text: Vec<String> = ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
            let ports = Ports::parse(&text.join(",")).unwrap();
            prop_assert_eq!(ports.contains(port), ranges.iter().any(|(first, last)| (*first..=*last).contains(&port)));
            prop_assert_eq!(Ports::parse(&ports.to_string()).unwrap(), ports);
        }
    }
}
