//! Limits by their names: read, set from text, and written as text.

use super::{LimitError, LimitName, Limits, UNLIMITED};
use crate::units::{Bytes, CpuCount, Millis};

impl Limits {
    /// The value of a limit in its smallest unit (thousandths of a CPU, milliseconds, bytes, count).
    pub fn get(&self, name: LimitName) -> Option<u64> {
        match name {
            LimitName::Cpus => self.cpus.map(|cpus| cpus.millis),
            LimitName::CpuTime => self.cpu_time.map(|time| time.0),
            LimitName::WallTime => self.wall_time.map(|time| time.0),
            LimitName::Memory => self.memory.map(|size| size.0),
            LimitName::Swap => self.swap.map(|size| size.0),
            LimitName::Pids => self.pids,
            LimitName::Workspace => self.workspace.map(|size| size.0),
            LimitName::Inodes => self.inodes,
            LimitName::Depth => self.depth,
            LimitName::FileSize => self.file_size.map(|size| size.0),
            LimitName::Tmp => self.tmp.map(|size| size.0),
            LimitName::OpenFiles => self.open_files,
            LimitName::Output => self.output.map(|size| size.0),
            LimitName::NetBytes => self.net_bytes.map(|size| size.0),
            LimitName::NetRate => self.net_rate.map(|size| size.0),
            LimitName::NetConnections => self.net_connections,
            LimitName::NetAtOnce => self.net_at_once,
            LimitName::Volume | LimitName::VolumeInodes => None,
        }
    }

    /// Sets a limit from text: a value in its unit, or `unlimited`.
    ///
    /// # Errors
    /// When the text is no such value, or one that the kernel or no program can live with; for the limits of volumes.
    pub fn set(&mut self, name: LimitName, text: &str) -> Result<(), LimitError> {
        if matches!(name, LimitName::Volume | LimitName::VolumeInodes) {
            return Err(LimitError::OfVolume { limit: name });
        }
        let value = if text == UNLIMITED {
            None
        } else {
            Some(name.row().parse(text)?)
        };
        match name {
            LimitName::Cpus => self.cpus = value.map(|millis| CpuCount { millis }),
            LimitName::CpuTime => self.cpu_time = value.map(Millis),
            LimitName::WallTime => self.wall_time = value.map(Millis),
            LimitName::Memory => self.memory = value.map(Bytes),
            LimitName::Swap => self.swap = value.map(Bytes),
            LimitName::Pids => self.pids = value,
            LimitName::Workspace => self.workspace = value.map(Bytes),
            LimitName::Inodes => self.inodes = value,
            LimitName::Depth => self.depth = value,
            LimitName::FileSize => self.file_size = value.map(Bytes),
            LimitName::Tmp => self.tmp = value.map(Bytes),
            LimitName::OpenFiles => self.open_files = value,
            LimitName::Output => self.output = value.map(Bytes),
            LimitName::NetBytes => self.net_bytes = value.map(Bytes),
            LimitName::NetRate => self.net_rate = value.map(Bytes),
            LimitName::NetConnections => self.net_connections = value,
            LimitName::NetAtOnce => self.net_at_once = value,
            LimitName::Volume | LimitName::VolumeInodes => {}
        }
        Ok(())
    }

    /// The value of a limit as text that parses back.
    pub fn text(&self, name: LimitName) -> String {
        self.get(name)
            .map_or_else(|| UNLIMITED.to_owned(), |value| name.row().show(value))
    }
}
