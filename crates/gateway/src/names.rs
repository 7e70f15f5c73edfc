//! The addresses that stand for names inside a sandbox.
//!
//! Every name that may be reached gets an address of its own, so that the name of a connection is known whatever its
//! protocol. The addresses are those for measurements between networks (RFC 2544, RFC 6890), which lead nowhere.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use offleash_core::network::{DomainName, Host};

use crate::link::Link;
use crate::wire::Report;

/// 198.18.0.0/15. The first 256 are kept for the gateway itself.
const FIRST: u32 = 0xc612_0100;
/// How many names there may be. A rule with a wildcard lets a sandbox think of any number of them, and what is kept of
/// each, up to half a kilobyte, is the memory of the gateway.
pub(crate) const MAX_COUNT: u32 = 16_384;

/// Which address stands for which name; it never changes while the sandbox lives.
#[derive(Debug, Default)]
pub(crate) struct Names {
    by_name: HashMap<Arc<DomainName>, Ipv4Addr>,
    in_order: Vec<Arc<DomainName>>,
    /// Who is told which name has the next address.
    link: Option<Link>,
}

impl Names {
    /// None yet, of which each is told.
    pub(crate) fn told_to(link: Link) -> Self {
        Self {
            link: Some(link),
            ..Self::default()
        }
    }

    /// The address of `name`, given to it now if it has none; `None` when all are given out.
    pub(crate) fn address_of(&mut self, name: &DomainName) -> Option<Ipv4Addr> {
        if let Some(known) = self.by_name.get(name) {
            return Some(*known);
        }
        let address = self.give(name)?;
        // Before anybody inside can use it.
        if let Some(link) = &self.link {
            link.send(&Report::Named(name.clone()));
        }
        Some(address)
    }

    fn give(&mut self, name: &DomainName) -> Option<Ipv4Addr> {
        let number = u32::try_from(self.in_order.len())
            .ok()
            .filter(|number| *number < MAX_COUNT)?;
        let address = Ipv4Addr::from_bits(FIRST.checked_add(number)?);
        let name = Arc::new(name.clone());
        self.in_order.push(Arc::clone(&name));
        self.by_name.insert(name, address);
        Some(address)
    }

    /// The name that `address` stands for.
    pub(crate) fn name_at(&self, address: Ipv4Addr) -> Option<&DomainName> {
        let number = address.to_bits().checked_sub(FIRST)?;
        self.in_order.get(usize::try_from(number).ok()?).map(Arc::as_ref)
    }

    /// What is meant by an address inside; `None` where it stands for names, and for none yet.
    pub(crate) fn host_at(&self, address: IpAddr) -> Option<Host> {
        match address.to_canonical() {
            IpAddr::V4(address) if Self::is_synthetic(address) => self.name_at(address).cloned().map(Host::Name),
            address => Some(Host::Address(address)),
        }
    }

    /// Whether `address` is one of those that stand for names, given out or not.
    pub(crate) fn is_synthetic(address: Ipv4Addr) -> bool {
        (0xc612_0000..=0xc613_ffff).contains(&address.to_bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DomainName {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_keeps_its_address_and_an_address_its_name() {
        let mut names = Names::default();
        let first = names.address_of(&name("a.example")).unwrap();
        let second = names.address_of(&name("b.example")).unwrap();
        assert_ne!(first, second);
        assert_eq!(names.address_of(&name("a.example")), Some(first));
        assert_eq!(names.name_at(first), Some(&name("a.example")));
        assert_eq!(names.name_at(second), Some(&name("b.example")));
        assert!(Names::is_synthetic(first) && !Names::is_synthetic(Ipv4Addr::new(198, 20, 0, 1)));
    }

    #[test]
    fn addresses_that_were_not_given_out_have_no_name() {
        let mut names = Names::default();
        names.address_of(&name("a.example")).unwrap();
        for address in [[198, 18, 0, 1], [198, 18, 1, 1], [198, 19, 255, 255], [10, 0, 0, 1]] {
            assert_eq!(names.name_at(address.into()), None);
        }
    }

    #[test]
    fn there_is_an_end_to_the_addresses() {
        let mut names = Names::default();
        let given = (0..2 * MAX_COUNT)
            .map_while(|number| names.address_of(&name(&format!("n{number}.example"))))
            .count();
        assert_eq!(given, usize::try_from(MAX_COUNT).unwrap());
        assert!(names.address_of(&name("n0.example")).is_some());
    }
}
