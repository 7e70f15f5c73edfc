//! Names of users and groups, as the files inside have them.

use alloc::vec::Vec;

use crate::accounts::{self, GROUP, PASSWD};

/// The names for one request.
#[derive(Debug, Default)]
pub(super) struct AccountNames {
    users: AccountTable,
    groups: AccountTable,
}

impl AccountNames {
    pub(super) fn user(&mut self, id: u32) -> Vec<u8> {
        self.users.name(PASSWD, id)
    }

    pub(super) fn group(&mut self, id: u32) -> Vec<u8> {
        self.groups.name(GROUP, id)
    }
}

/// One of the two files, read when it is needed first, and what was looked for last.
#[derive(Debug, Default)]
struct AccountTable {
    text: Option<Vec<u8>>,
    last: Option<(u32, Vec<u8>)>,
}

impl AccountTable {
    fn name(&mut self, path: &[u8], id: u32) -> Vec<u8> {
        match &self.last {
            Some((known, name)) if *known == id => name.clone(),
            _ => {
                let text = self
                    .text
                    .get_or_insert_with(|| accounts::read(path).unwrap_or_default());
                let name = accounts::name_of(text, id);
                self.last = Some((id, name.clone()));
                name
            }
        }
    }
}
