//! Which ids of the host stand behind the ids of a sandbox.
//!
//! Code in a sandbox never has uid 0 of the host, whoever starts it: files such as those in `/proc/sys` ask for that
//! number and not for a capability. For root a number is taken that nobody has; for others it is their own.

use std::io;

use offleash_core::spec::{IdChoice, ZygoteRole};
use offleash_sys::namespaces::{self, IdMap};
use offleash_sys::process::{self, is_root};
use rustix::process::Pid;

use crate::sandbox::SandboxIds;

/// The maps of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IdMaps {
    pub(super) uid_map: Vec<IdMap>,
    pub(super) gid_map: Vec<IdMap>,
    /// The host's uid and gid of the user that the first process is.
    pub(super) outside: (u32, u32),
    /// The host's uid and gid of the user who works in the sandbox.
    pub(super) worker: (u32, u32),
    /// Who writes the maps.
    pub(super) writer: MapWriter,
    /// Further ids, which sandboxes below it get; nobody in it has one.
    pub(super) passed_on: Vec<IdMap>,
}

/// Who writes the maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MapWriter {
    /// We, with privilege over the ids.
    Privileged,
    /// We, for our own ids only.
    Own,
    /// `newuidmap` and `newgidmap`, for our subordinate ids.
    Helper,
}

/// Ids from here to 2³¹ belong to nobody: system users, people, subordinate ids and systemd's containers are all
/// below (<https://systemd.io/UIDS-GIDS/>).
const UNUSED_FROM: u32 = 0x7000_0000;
const UNUSED_COUNT: u32 = 0x0fff_0000;

/// Ids from here to 2³¹ are those of files in volumes, and of no sandbox.
pub(super) const VOLUMES_FROM: u32 = UNUSED_FROM + UNUSED_COUNT;

/// How many ids a range has.
pub(super) const RANGE: u32 = 65_536;

/// Chooses the ids for a sandbox.
///
/// # Errors
/// `NotFound` when a range is asked for and the caller has no subordinate ids.
pub(super) fn choose(ids: &SandboxIds) -> io::Result<IdMaps> {
    if !is_root() {
        return for_user(ids);
    }
    match for_root(ids) {
        // In a user namespace that has this one id (`unshare -r`, rootless containers) root is an ordinary user outside.
        Err(error) if error.kind() == io::ErrorKind::NotFound && ids.choice.is_one() => for_user(ids),
        chosen => chosen,
    }
}

impl IdMaps {
    /// Writes the maps of the process's user namespace.
    pub(super) fn write_maps(&self, pid: Pid) -> io::Result<()> {
        let (uid_map, gid_map) = (&self.uid_map, &self.gid_map);
        match self.writer {
            MapWriter::Privileged => {
                let with_others = |own: &[IdMap]| [own, &self.passed_on].concat();
                namespaces::write_id_maps(pid, &with_others(uid_map), &with_others(gid_map), false)
            }
            MapWriter::Own => namespaces::write_id_maps(pid, uid_map, gid_map, true),
            MapWriter::Helper => {
                run_map_helper("newuidmap", pid, uid_map)?;
                run_map_helper("newgidmap", pid, gid_map)
            }
        }
    }

    /// The first of the host's ids, if all of the sandbox's are a range of them.
    pub(super) fn range_start(&self) -> Option<u32> {
        match self.uid_map.as_slice() {
            [line] if line.count == RANGE => Some(line.outside),
            _ => None,
        }
    }
}

fn run_map_helper(program: &str, pid: Pid, map: &[IdMap]) -> io::Result<()> {
    let mut arguments = vec![pid.as_raw_pid().to_string()];
    for line in map {
        arguments.extend([line.inside, line.outside, line.count].map(|number| number.to_string()));
    }
    match process::run_helper(program, &arguments) {
        Ok((true, _)) => Ok(()),
        Ok((false, said)) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{program}: {said}"),
        )),
        Err(error) => Err(io::Error::new(error.kind(), format!("{program}: {error}"))),
    }
}

fn for_root(ids: &SandboxIds) -> io::Result<IdMaps> {
    let count = if ids.choice == IdChoice::Range { RANGE } else { 1 };
    let start = unused_ids(
        &std::fs::read_to_string("/proc/self/uid_map")?,
        ids.sandbox.as_str(),
        count,
    )?;
    let inside = if count == 1 { (ids.uid, ids.gid) } else { (0, 0) };
    let outside = if count == 1 {
        (start, start)
    } else {
        (start + ids.uid, start + ids.gid)
    };
    Ok(IdMaps {
        uid_map: vec![IdMap {
            inside: inside.0,
            outside: start,
            count,
        }],
        gid_map: vec![IdMap {
            inside: inside.1,
            outside: start,
            count,
        }],
        outside,
        worker: if count == 1 {
            outside
        } else {
            (start + ids.worker.uid, start + ids.worker.gid)
        },
        writer: MapWriter::Privileged,
        passed_on: match ids.descent {
            ZygoteRole::Zygote => others(start, count),
            ZygoteRole::Alone | ZygoteRole::Below(_) => Vec::new(),
        },
    })
}

/// All ids that sandboxes of root's may get, but these, as themselves.
fn others(start: u32, count: u32) -> Vec<IdMap> {
    let end = UNUSED_FROM + UNUSED_COUNT;
    if start < UNUSED_FROM || start + count > end {
        // In a small user namespace there are no more.
        return Vec::new();
    }
    let line = |from: u32, to: u32| IdMap {
        inside: from,
        outside: from,
        count: to - from,
    };
    let mut lines = vec![line(UNUSED_FROM, start), line(start + count, end)];
    // The kernel takes no empty line.
    lines.retain(|line| line.count > 0);
    lines
}

/// The first of `count` ids that no user of the machine has; another for each sandbox, so that no two share one.
fn unused_ids(own_map: &str, sandbox: &str, count: u32) -> io::Result<u32> {
    let spread = hash(sandbox);
    let available = own_map.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().map(str::parse::<u32>);
        Some((fields.next()?.ok()?, fields.next()?.ok()?, fields.next()?.ok()?))
    });
    let mut last_resort = None;
    for (first, _, length) in available {
        let end = first.saturating_add(length);
        if first <= UNUSED_FROM && end >= UNUSED_FROM + UNUSED_COUNT {
            return Ok(UNUSED_FROM + spread % ((UNUSED_COUNT - count) / count) * count);
        }
        // In a user namespace that has few ids (rootless containers) the last ones are the least likely to be in use.
        if length > count.saturating_add(2) {
            last_resort = Some(end - 2 - count);
        }
    }
    last_resort.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no user ids besides 0 are mapped here"))
}

/// FNV-1a; spreads, and need not resist anybody.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

fn for_user(ids: &SandboxIds) -> io::Result<IdMaps> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let single = |inside, outside| {
        vec![IdMap {
            inside,
            outside,
            count: 1,
        }]
    };
    if ids.choice.is_one() {
        return Ok(IdMaps {
            uid_map: single(ids.uid, own.0),
            gid_map: single(ids.gid, own.1),
            outside: own,
            worker: own,
            writer: MapWriter::Own,
            passed_on: Vec::new(),
        });
    }
    let names = user_names(&std::fs::read_to_string("/etc/passwd").unwrap_or_default(), own.0);
    let subordinate = |file: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        subordinate_ids(&text, &names).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("no subordinate ids for uid {} in {file}", own.0),
            )
        })
    };
    Ok(IdMaps {
        uid_map: around(ids.uid, own.0, subordinate("/etc/subuid")?),
        gid_map: around(ids.gid, own.1, subordinate("/etc/subgid")?),
        outside: own,
        worker: own,
        writer: MapWriter::Helper,
        passed_on: Vec::new(),
    })
}

/// The names that stand for `uid` in `/etc/subuid`: login names and the number itself.
fn user_names(passwd: &str, uid: u32) -> Vec<String> {
    let mut names = vec![uid.to_string()];
    for line in passwd.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(_), Some(number)) = (fields.next(), fields.next(), fields.next())
            && number.parse() == Ok(uid)
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// The first range of at least [`RANGE`] ids (subuid(5)).
fn subordinate_ids(file: &str, names: &[String]) -> Option<u32> {
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let first: u32 = fields.next()?.trim().parse().ok()?;
        let count: u32 = fields.next()?.trim().parse().ok()?;
        (names.iter().any(|own| own == name) && count >= RANGE).then_some(first)
    })
}

/// All ids of a range inside, with `inside` standing for `own` and the others for subordinate ones.
fn around(inside: u32, own: u32, subordinate: u32) -> Vec<IdMap> {
    let mut map = vec![
        IdMap {
            inside: 0,
            outside: subordinate,
            count: inside,
        },
        IdMap {
            inside,
            outside: own,
            count: 1,
        },
        IdMap {
            inside: inside + 1,
            outside: subordinate + inside,
            count: RANGE - inside - 1,
        },
    ];
    // The kernel takes no empty line.
    map.retain(|line| line.count > 0);
    map
}

/// How files of a volume are shown in a sandbox whose ids begin at `start`, where `worker` is the number of whoever works in
/// it: all ids as the same numbers, but that `owner`, which is the volume's worker, is this one's; `None` where the owner
/// has no range of ids.
pub(super) fn volume_ids(owner: u32, start: u32, worker: u32) -> Option<Vec<IdMap>> {
    /// The number that whoever works in a sandbox has in volumes.
    const WORKER: u32 = 1000;
    let first = owner.checked_sub(WORKER).filter(|first| *first >= VOLUMES_FROM)?;
    // Two numbers change places.
    let number = |inside: u32| match inside {
        WORKER => worker,
        inside if inside == worker => WORKER,
        inside => inside,
    };
    let mut bounds = vec![0, WORKER, WORKER + 1, worker, worker.saturating_add(1), RANGE];
    bounds.sort_unstable();
    bounds.dedup();
    let lines = bounds.array_windows().map(|[from, to]| IdMap {
        inside: first + from,
        outside: start + number(*from),
        count: to - from,
    });
    Some(lines.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_gets_ids_that_nobody_has() {
        let whole = "         0          0 4294967295\n";
        for sandbox in ["ra", "rb", "r0mxyz"] {
            let id = unused_ids(whole, sandbox, 1).unwrap();
            assert!((UNUSED_FROM..UNUSED_FROM + UNUSED_COUNT).contains(&id), "{id}");
            let first = unused_ids(whole, sandbox, RANGE).unwrap();
            assert!(
                first >= UNUSED_FROM && first + RANGE <= UNUSED_FROM + UNUSED_COUNT,
                "{first}"
            );
            assert_eq!((first - UNUSED_FROM) % RANGE, 0);
        }
        assert_ne!(unused_ids(whole, "ra", 1).unwrap(), unused_ids(whole, "rb", 1).unwrap());
    }

    #[test]
    fn a_zygote_of_root_has_every_id_that_sandboxes_below_it_may_get() {
        let id = UNUSED_FROM + 77;
        let lines = others(id, 1);
        let counts: u32 = lines.iter().map(|line| line.count).sum();
        assert_eq!(counts, UNUSED_COUNT - 1);
        assert!(
            lines
                .iter()
                .all(|line| !(line.outside..line.outside + line.count).contains(&id))
        );
        assert_eq!(others(UNUSED_FROM, RANGE).len(), 1);
        assert!(others(65_533, 1).is_empty());
    }

    #[test]
    fn root_of_a_small_namespace_gets_its_last_ids() {
        assert_eq!(unused_ids("0 100000 65536\n", "ra", 1).unwrap(), 65_533);
        assert!(unused_ids("0 1000 1\n", "ra", 1).is_err());
    }

    #[test]
    fn whoever_works_in_a_sandbox_is_the_same_in_volumes_and_nobody_has_two_ids() {
        const START: u32 = UNUSED_FROM + RANGE;
        for worker in [0, 1, 33, 999, 1000, 1001, 65_535] {
            let lines = volume_ids(VOLUMES_FROM + 1000, START, worker).unwrap();
            let outside = |id: u32| {
                let line = lines
                    .iter()
                    .find(|line| (line.inside..line.inside + line.count).contains(&id));
                line.map(|line| line.outside + (id - line.inside))
            };
            assert_eq!(outside(VOLUMES_FROM + 1000), Some(START + worker), "{worker}");
            let mut all: Vec<u32> = (0..RANGE).map(|id| outside(VOLUMES_FROM + id).unwrap()).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(START..START + RANGE), "{worker}");
            assert_eq!(outside(0), None, "the host's root is nobody");
        }
        assert_eq!(volume_ids(0, START, 1000), None);
        assert_eq!(volume_ids(4242, START, 1000), None);
    }

    #[test]
    fn subordinate_ids_are_found_by_name_and_by_number() {
        let names = user_names(
            "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n",
            1000,
        );
        assert_eq!(
            subordinate_ids("bob:100000:65536\nalice:165536:65536\n", &names),
            Some(165_536)
        );
        assert_eq!(subordinate_ids("1000:300000:65536\n", &names), Some(300_000));
        assert_eq!(subordinate_ids("alice:165536:100\n", &names), None);
    }

    #[test]
    fn the_caller_can_be_the_superuser_of_a_range() {
        let line = |inside, outside, count| IdMap { inside, outside, count };
        assert_eq!(
            around(0, 4242, 100_000),
            [line(0, 4242, 1), line(1, 100_000, RANGE - 1)]
        );
    }

    #[test]
    fn a_range_maps_every_id_once() {
        let map = around(1000, 4242, 100_000);
        assert_eq!(map.iter().map(|line| line.count).sum::<u32>(), RANGE);
        assert_eq!(
            map[2],
            IdMap {
                inside: 1001,
                outside: 101_000,
                count: 64_535
            }
        );
    }
}
