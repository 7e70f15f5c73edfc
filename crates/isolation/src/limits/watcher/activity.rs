//! What a sandbox does, for rules of monitoring: a few small files, and none where nothing has run since.

use super::LimitWatcher;
use crate::sandbox::ActivityMeasure;
use offleash_sys::cgroup::ControlGroup;

impl LimitWatcher {
    /// What was done so far and is used now. Starts are only looked for where `counts_forks`.
    pub(crate) fn activity(&mut self, counts_forks: bool) -> ActivityMeasure {
        let group_cpu = self.group.as_ref().and_then(|group| group.cpu_us().ok().flatten());
        if let (Some(cpu_us), Some(last)) = (group_cpu, self.activity)
            && last.cpu_us == cpu_us
        {
            return last;
        }
        let memory = self.group.as_ref().and_then(ControlGroup::memory_bytes);
        let pids = self.group.as_ref().and_then(ControlGroup::pids);
        let needs_tree = group_cpu.is_none() || memory.is_none() || pids.is_none();
        let listed = match (needs_tree, counts_forks, &self.group) {
            (false, true, Some(group)) => group
                .processes()
                .ok()
                .map(|all| all.into_iter().filter_map(|pid| u32::try_from(pid).ok()).collect()),
            (false, false, _) => Some(Vec::new()),
            _ => None,
        };
        let processes: Vec<u32> = listed.unwrap_or_else(|| self.tree.processes());
        let usage = if needs_tree {
            self.tree.usage(&processes)
        } else {
            Default::default()
        };
        let of_tree = usage.user_us.saturating_add(usage.system_us);
        let seen_us = self.seen.user_us.saturating_add(self.seen.system_us);
        let init = self.init.as_raw_pid().cast_unsigned();
        let measured = ActivityMeasure {
            // Of processes that nobody waited for, the time is not known any more: it never goes back all the same.
            cpu_us: group_cpu
                .unwrap_or(of_tree.max(seen_us))
                .max(self.activity.map_or(0, |last| last.cpu_us)),
            memory_bytes: memory.unwrap_or_else(|| usage.anonymous_bytes.saturating_add(self.guest_memory_bytes)),
            pids: pids.unwrap_or(usage.pids),
            forks: counts_forks.then(|| self.forks.look(init, &processes)).flatten(),
            ..ActivityMeasure::default()
        };
        self.activity = Some(measured);
        measured
    }

    /// Bounds the processors that the sandbox has from now on, in thousandths of one.
    pub(crate) fn throttle(&mut self, cpus_millis: u64) -> std::io::Result<()> {
        let Some(group) = &self.group else {
            return Err(std::io::Error::other("no control group holds the sandbox"));
        };
        group.set_cpus(cpus_millis).map_err(std::io::Error::other)
    }
}
