//! What planning needs to know of the caller and the machine, and what executions start from.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use offleash_core::plan::{Environment, SandboxUser};
use offleash_core::spec::IdChoice;
use offleash_core::volume::{VolumeKey, VolumeName, VolumeQuota, VolumeUsage};

use super::base_entries::BaseTemplate;
use super::known::KnownEtc;
use super::trust::TrustStores;

/// What planning needs to know of the caller and the machine.
#[derive(Debug, Clone)]
pub struct PlanningHost {
    /// Effective user id of the caller.
    pub euid: u32,
    /// Effective group id of the caller.
    pub egid: u32,
    /// The caller's home directory.
    pub home: Option<PathBuf>,
    /// The caller's current directory, absolute.
    pub cwd: PathBuf,
    /// The caller's environment.
    pub env: Environment,
    /// Where offleash keeps its state, absolute; never visible inside.
    pub state_directory: PathBuf,
    /// How many ids the sandbox has where the spec leaves that open.
    pub ids: IdChoice,
    /// What a root of the sandbox's own is made of; needed where the spec asks for one.
    pub base: Option<BaseTemplate>,
    /// The certificate authorities of the sandbox where the gateway opens connections.
    pub trust: Option<TrustStores>,
    /// The volumes that the spec asks for.
    pub volumes: Vec<FoundVolume>,
    /// What was read of the machine before.
    pub known: Option<Arc<KnownEtc>>,
}

/// A volume that was looked for, and found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundVolume {
    /// As it was asked for.
    pub key: VolumeKey,
    /// What its owner calls it.
    pub name: VolumeName,
    /// The directory with its files.
    pub data: PathBuf,
    /// How much it may hold.
    pub quota: VolumeQuota,
    /// What is in it, if it is to be written to.
    pub used: VolumeUsage,
}

impl PlanningHost {
    /// The value of a variable of the caller.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.env
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_os_str())
    }
}

/// The home directory of whoever calls, which `~` stands for.
pub fn this_home() -> Option<PathBuf> {
    std::env::var_os("HOME")
        .filter(|home| !home.is_empty())
        .map(PathBuf::from)
}

/// What every execution in the sandbox starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecBasis {
    /// The whole environment.
    pub env: Environment,
    /// Working directory inside.
    pub cwd: PathBuf,
    /// The usual user inside.
    pub user: SandboxUser,
    /// Every user inside, the usual one first.
    pub users: Vec<SandboxUser>,
    /// Where programs are looked for inside, for the environment of another user ([`SandboxUser::environment`]).
    pub search_path: Vec<PathBuf>,
}

impl ExecBasis {
    /// The environment for a command of `user`, who is one of the sandbox's.
    pub fn environment_of(&self, user: &SandboxUser) -> Environment {
        let own = user.environment(&self.search_path);
        let is_usual = *user == self.user;
        let replaced = |name: &OsString| !is_usual && own.iter().any(|(own, _)| own == name);
        let kept = self.env.iter().filter(|(name, _)| !replaced(name)).cloned();
        kept.chain(own.iter().filter(|_| !is_usual).cloned()).collect()
    }
}
