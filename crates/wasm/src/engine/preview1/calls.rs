//! The calls by their names and types, as `wasi_snapshot_preview1.witx` has them.

use offleash_simulated::engine::FileOperation;
use rustix::io::Errno;
use wasmtime::{Caller, Linker};

use super::super::ExitCode;
use super::super::command::{CommandState, fill_randomly};
use super::super::descriptors::Descriptor;
use super::{Answer, FDFLAG_APPEND, LOOKUP_FOLLOW, RIGHT_READ, RIGHT_WRITE, SET_ACCESS_NOW, answer, fault};

const MODULE: &str = "wasi_snapshot_preview1";

type Called<'a> = Caller<'a, CommandState>;

fn unsupported() -> Answer {
    Err(Errno::OPNOTSUPP.raw_os_error())
}

/// Defines the calls.
pub(in crate::engine) fn add_to(linker: &mut Linker<CommandState>) -> wasmtime::Result<()> {
    add_process(linker)?;
    add_descriptors(linker)?;
    add_paths(linker)?;
    linker.func_wrap(MODULE, "sock_accept", |mut c: Called<'_>, _: u32, _: u32, _: u32| {
        answer(&mut c, |_| unsupported())
    })?;
    linker.func_wrap(
        MODULE,
        "sock_recv",
        |mut c: Called<'_>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| answer(&mut c, |_| unsupported()),
    )?;
    linker.func_wrap(
        MODULE,
        "sock_send",
        |mut c: Called<'_>, _: u32, _: u32, _: u32, _: u32, _: u32| answer(&mut c, |_| unsupported()),
    )?;
    linker.func_wrap(MODULE, "sock_shutdown", |mut c: Called<'_>, _: u32, _: u32| {
        answer(&mut c, |_| unsupported())
    })?;
    Ok(())
}

fn add_process(linker: &mut Linker<CommandState>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "args_get", |mut c: Called<'_>, argv: u32, buffer: u32| {
        answer(&mut c, |guest| guest.put_words(&guest.arguments(), argv, buffer))
    })?;
    linker.func_wrap(MODULE, "args_sizes_get", |mut c: Called<'_>, count: u32, size: u32| {
        answer(&mut c, |guest| guest.put_sizes(&guest.arguments(), count, size))
    })?;
    linker.func_wrap(MODULE, "environ_get", |mut c: Called<'_>, environ: u32, buffer: u32| {
        answer(&mut c, |guest| guest.put_words(&guest.environment(), environ, buffer))
    })?;
    linker.func_wrap(
        MODULE,
        "environ_sizes_get",
        |mut c: Called<'_>, count: u32, size: u32| {
            answer(&mut c, |guest| guest.put_sizes(&guest.environment(), count, size))
        },
    )?;
    linker.func_wrap(MODULE, "clock_res_get", |mut c: Called<'_>, clock: u32, at: u32| {
        answer(&mut c, |guest| {
            guest.clock(clock)?;
            guest.put_u64(at, 1)
        })
    })?;
    linker.func_wrap(
        MODULE,
        "clock_time_get",
        |mut c: Called<'_>, clock: u32, _: u64, at: u32| {
            answer(&mut c, |guest| {
                let now = guest.clock(clock)?;
                guest.put_u64(at, now)
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "poll_oneoff",
        |mut c: Called<'_>, subscriptions: u32, events: u32, count: u32, happened: u32| {
            answer(&mut c, |guest| guest.poll(subscriptions, events, count, happened))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "proc_exit",
        |_: Called<'_>, code: u32| -> wasmtime::Result<()> { Err(wasmtime::Error::new(ExitCode(code))) },
    )?;
    linker.func_wrap(MODULE, "proc_raise", |mut c: Called<'_>, _: u32| {
        answer(&mut c, |_| unsupported())
    })?;
    linker.func_wrap(MODULE, "sched_yield", |mut c: Called<'_>| answer(&mut c, |_| Ok(())))?;
    linker.func_wrap(MODULE, "random_get", |mut c: Called<'_>, at: u32, length: u32| {
        answer(&mut c, |guest| fill_randomly(guest.slice(at, length)?))
    })?;
    Ok(())
}

fn add_descriptors(linker: &mut Linker<CommandState>) -> wasmtime::Result<()> {
    linker.func_wrap(
        MODULE,
        "fd_advise",
        |mut c: Called<'_>, fd: u32, _: u64, _: u64, _: u32| {
            answer(&mut c, |guest| guest.state.descriptors.file(fd).map(drop))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "fd_allocate",
        |mut c: Called<'_>, fd: u32, offset: u64, length: u64| {
            answer(&mut c, |guest| {
                let end = offset.checked_add(length).ok_or(Errno::FBIG.raw_os_error())?;
                guest.resize(fd, |size| (size < end).then_some(end))
            })
        },
    )?;
    linker.func_wrap(MODULE, "fd_close", |mut c: Called<'_>, fd: u32| {
        answer(&mut c, |guest| guest.state.descriptors.close(fd).map(drop))
    })?;
    for name in ["fd_datasync", "fd_sync"] {
        // What was written is the supervisor's already.
        linker.func_wrap(MODULE, name, |mut c: Called<'_>, fd: u32| {
            answer(&mut c, |guest| guest.state.descriptors.get(fd).map(drop))
        })?;
    }
    linker.func_wrap(MODULE, "fd_fdstat_get", |mut c: Called<'_>, fd: u32, at: u32| {
        answer(&mut c, |guest| guest.put_status(fd, at))
    })?;
    linker.func_wrap(
        MODULE,
        "fd_fdstat_set_flags",
        |mut c: Called<'_>, fd: u32, flags: u32| {
            answer(&mut c, |guest| {
                guest.state.descriptors.file(fd)?.appends = flags & FDFLAG_APPEND != 0;
                Ok(())
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "fd_fdstat_set_rights",
        |mut c: Called<'_>, fd: u32, rights: u64, _: u64| {
            answer(&mut c, |guest| {
                if let Descriptor::File(file) = guest.state.descriptors.get(fd)? {
                    file.reads &= rights & RIGHT_READ != 0;
                    file.writes &= rights & RIGHT_WRITE != 0;
                }
                Ok(())
            })
        },
    )?;
    linker.func_wrap(MODULE, "fd_filestat_get", |mut c: Called<'_>, fd: u32, at: u32| {
        answer(&mut c, |guest| guest.stat(fd, at))
    })?;
    linker.func_wrap(
        MODULE,
        "fd_filestat_set_size",
        |mut c: Called<'_>, fd: u32, size: u64| answer(&mut c, |guest| guest.resize(fd, |_| Some(size))),
    )?;
    linker.func_wrap(
        MODULE,
        "fd_filestat_set_times",
        |mut c: Called<'_>, fd: u32, _: u64, modified: u64, flags: u32| {
            answer(&mut c, |guest| {
                let path = guest.state.descriptors.file(fd)?.path.clone();
                guest.touch(&path, modified, flags & !SET_ACCESS_NOW)
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "fd_pread",
        |mut c: Called<'_>, fd: u32, vectors: u32, count: u32, offset: u64, at: u32| {
            answer(&mut c, |guest| guest.read(fd, Some(offset), vectors, count, at))
        },
    )?;
    linker.func_wrap(MODULE, "fd_prestat_get", |mut c: Called<'_>, fd: u32, at: u32| {
        answer(&mut c, |guest| {
            let name = guest.prestat(fd)?;
            guest.put_u32(at, 0)?;
            guest.put_u32(
                at.checked_add(4).ok_or_else(fault)?,
                u32::try_from(name.len()).map_err(|_| fault())?,
            )
        })
    })?;
    linker.func_wrap(
        MODULE,
        "fd_prestat_dir_name",
        |mut c: Called<'_>, fd: u32, at: u32, length: u32| {
            answer(&mut c, |guest| {
                let name = guest.prestat(fd)?;
                match u32::try_from(name.len()) {
                    Ok(needed) if needed <= length => guest.put(at, name.as_bytes()),
                    _ => Err(Errno::NAMETOOLONG.raw_os_error()),
                }
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "fd_pwrite",
        |mut c: Called<'_>, fd: u32, vectors: u32, count: u32, offset: u64, at: u32| {
            answer(&mut c, |guest| guest.write(fd, Some(offset), vectors, count, at))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "fd_read",
        |mut c: Called<'_>, fd: u32, vectors: u32, count: u32, at: u32| {
            answer(&mut c, |guest| guest.read(fd, None, vectors, count, at))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "fd_readdir",
        |mut c: Called<'_>, fd: u32, buffer: u32, length: u32, cookie: u64, used: u32| {
            answer(&mut c, |guest| guest.read_directory(fd, buffer, length, cookie, used))
        },
    )?;
    linker.func_wrap(MODULE, "fd_renumber", |mut c: Called<'_>, from: u32, to: u32| {
        answer(&mut c, |guest| guest.state.descriptors.renumber(from, to))
    })?;
    linker.func_wrap(
        MODULE,
        "fd_seek",
        |mut c: Called<'_>, fd: u32, offset: i64, whence: u32, at: u32| {
            answer(&mut c, |guest| guest.seek(fd, offset, whence, at))
        },
    )?;
    linker.func_wrap(MODULE, "fd_tell", |mut c: Called<'_>, fd: u32, at: u32| {
        answer(&mut c, |guest| guest.seek(fd, 0, 1, at))
    })?;
    linker.func_wrap(
        MODULE,
        "fd_write",
        |mut c: Called<'_>, fd: u32, vectors: u32, count: u32, at: u32| {
            answer(&mut c, |guest| guest.write(fd, None, vectors, count, at))
        },
    )?;
    Ok(())
}

fn add_paths(linker: &mut Linker<CommandState>) -> wasmtime::Result<()> {
    linker.func_wrap(
        MODULE,
        "path_create_directory",
        |mut c: Called<'_>, fd: u32, path: u32, length: u32| {
            answer(&mut c, |guest| {
                guest.change_at(fd, (path, length), FileOperation::MakeDirectory)
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "path_filestat_get",
        |mut c: Called<'_>, fd: u32, flags: u32, path: u32, length: u32, at: u32| {
            answer(&mut c, |guest| guest.stat_path(fd, flags, (path, length), at))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "path_filestat_set_times",
        |mut c: Called<'_>, fd: u32, lookup: u32, path: u32, length: u32, _: u64, modified: u64, flags: u32| {
            answer(&mut c, |guest| {
                let (directory, path) = (guest.directory(fd)?, guest.path(path, length)?);
                let follow = lookup & LOOKUP_FOLLOW != 0;
                let found = guest.state.files.resolve(&directory, &path, follow)?;
                guest.touch(&found.path, modified, flags)
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "path_link",
        |mut c: Called<'_>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| answer(&mut c, |_| unsupported()),
    )?;
    linker.func_wrap(
        MODULE,
        "path_open",
        |mut c: Called<'_>,
         fd: u32,
         lookup: u32,
         path: u32,
         length: u32,
         open: u32,
         rights: u64,
         _: u64,
         flags: u32,
         at: u32| {
            answer(&mut c, |guest| {
                guest.open(fd, lookup, (path, length), open, rights, flags, at)
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "path_readlink",
        |mut c: Called<'_>, fd: u32, path: u32, length: u32, buffer: u32, most: u32, used: u32| {
            answer(&mut c, |guest| guest.read_link(fd, (path, length), buffer, most, used))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "path_remove_directory",
        |mut c: Called<'_>, fd: u32, path: u32, length: u32| {
            answer(&mut c, |guest| guest.remove(fd, (path, length), true))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "path_rename",
        |mut c: Called<'_>, fd: u32, path: u32, length: u32, new_fd: u32, new_path: u32, new_length: u32| {
            answer(&mut c, |guest| {
                guest.rename((fd, path, length), (new_fd, new_path, new_length))
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "path_symlink",
        |mut c: Called<'_>, target: u32, target_length: u32, fd: u32, path: u32, length: u32| {
            answer(&mut c, |guest| {
                let target = guest.path(target, target_length)?;
                guest.change_at(fd, (path, length), FileOperation::Symlink { target })
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "path_unlink_file",
        |mut c: Called<'_>, fd: u32, path: u32, length: u32| {
            answer(&mut c, |guest| guest.remove(fd, (path, length), false))
        },
    )?;
    Ok(())
}
