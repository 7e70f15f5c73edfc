//! Control groups, version 1, version 2 and both at once: limits on, and accounts of, a whole tree of processes.
//!
//! [`ControlHierarchies::discover`] finds where this process may make groups; [`ControlGroup::create`] makes one for a sandbox with
//! the limits asked for; [`ControlGroup::join`] puts the first process in, and everything it starts follows. Deliberately
//! not here: which limits a sandbox gets and what happens when one is hit (`isolation::limits`).
//!
//! A group that exists already is never changed: new groups are made below our own group, in only those controllers
//! that a limit needs, and are removed by [`ControlGroup::remove`]. The one exception is our own group in version 2, see below.
//!
//! # Version 2 and delegation
//!
//! A version 2 group that hands controllers to its children may not hold processes itself
//! (<https://docs.kernel.org/admin-guide/cgroup-v2.html>, "No Internal Process Constraint"), so this process moves
//! into the leaf `offleash-supervisor` of its own group first. That happens only when the group is ours to arrange:
//! it is writable for us and holds no other process. The root group is exempt from the rule and needs no move.
//!
//! In a login session neither holds: the session's scope belongs to root and holds the shell, and a process in it
//! cannot move into `user@UID.service`, which is delegated to the user, because their common ancestor is root's.
//! The way in is to be started there: `systemd-run --user --scope -p Delegate=yes offleash …` asks the user's
//! systemd to start the command in a scope of its own, delegated to it. [`systemd_scope_available`] tells whether
//! that can work. For root in a login session groups are made at the top of the tree instead, in the controllers
//! that are enabled there, as container engines without systemd do.

mod adoption;
mod delegation;
mod directory;
mod error;
mod group;
mod hierarchy;
mod kill;
mod limits;
mod mounts;
mod usage;

pub use delegation::systemd_scope_available;
pub use error::{CgroupError, ControllerProblem};
pub use group::{ControlGroup, enter};
pub use hierarchy::{ControlHierarchies, Controller, HierarchyMode, HierarchyVersion};
pub use limits::GroupLimits;
pub use usage::{GroupEvents, GroupNow, GroupUsage};

/// What the name of every group of ours begins with; nothing else is ever removed.
pub const NAME_PREFIX: &str = "offleash-";
