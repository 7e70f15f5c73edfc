//! What bounds a module's memory and tables. Time is the supervisor's, which ends the worker.

use wasmtime::ResourceLimiter;

/// The stack of compiled code, in bytes.
pub(super) const MAX_STACK: usize = 8 * 1024 * 1024;
/// Elements of one table.
const MAX_TABLE_ELEMENTS: usize = 1_000_000;
/// Instances, memories and tables of a command, a component's together.
const MAX_INSTANCES: usize = 1_000;
const MAX_MEMORIES: usize = 100;
const MAX_TABLES: usize = 100;

/// The limits of one command.
#[derive(Debug)]
pub(super) struct ModuleLimits {
    /// Bytes of all memories together.
    memory: Option<usize>,
    taken: usize,
    has_hit_memory: bool,
    has_hit_table: bool,
}

impl ModuleLimits {
    pub(super) fn new(memory: Option<u64>) -> Self {
        Self {
            memory: memory.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            taken: 0,
            has_hit_memory: false,
            has_hit_table: false,
        }
    }

    /// What was refused.
    pub(super) fn hit(&self) -> Vec<String> {
        let memory = self.has_hit_memory.then(|| {
            let bytes = self.memory.unwrap_or(usize::MAX);
            format!("memory of more than {bytes} bytes")
        });
        let table = self
            .has_hit_table
            .then(|| format!("a table of more than {MAX_TABLE_ELEMENTS} elements"));
        memory.into_iter().chain(table).collect()
    }
}

impl ResourceLimiter for ModuleLimits {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let after = self.taken.saturating_add(desired.saturating_sub(current));
        // Beyond what it says of itself it is refused anyway.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let fits = self.memory.is_none_or(|memory| after <= memory);
        match fits {
            true => self.taken = after,
            false => self.has_hit_memory = true,
        }
        Ok(fits)
    }

    fn table_growing(&mut self, _: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let fits = desired <= MAX_TABLE_ELEMENTS;
        self.has_hit_table |= !fits;
        Ok(fits)
    }

    fn instances(&self) -> usize {
        MAX_INSTANCES
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_together_are_bounded_and_so_is_each_table() {
        let mut limits = ModuleLimits::new(Some(100));
        assert!(limits.memory_growing(0, 60, None).expect("it answers"));
        assert!(!limits.memory_growing(0, 60, None).expect("it answers"));
        assert!(limits.memory_growing(60, 100, None).expect("it answers"));
        assert!(limits.table_growing(0, MAX_TABLE_ELEMENTS, None).expect("it answers"));
        assert_eq!(limits.hit().len(), 1);
        assert!(
            !limits
                .table_growing(0, MAX_TABLE_ELEMENTS + 1, None)
                .expect("it answers")
        );
        assert_eq!(limits.hit().len(), 2);
    }
}
