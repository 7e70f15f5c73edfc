//! What the built program is to the kernel that loads it, read from its file (elf(5)).

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;

/// `ET_DYN`: may be loaded anywhere. `ET_EXEC` would be for a fixed address.
const ANYWHERE: u16 = 3;
/// Kinds of segments: what is mapped, where the loader finds what it needs, which other program is to load this one, how the
/// stack is to be, and what is read-only once it is relocated.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
const STACK: u32 = 0x6474_e551;
const READ_ONLY_LATER: u32 = 0x6474_e552;
/// What a segment may be.
const EXECUTABLE: u32 = 1;
const WRITABLE: u32 = 2;
/// Entries of the dynamic section: a library that is needed, relocations in code (and the same as a flag), and flags.
const NEEDED: u64 = 1;
const TEXT_RELOCATIONS: u64 = 22;
const FLAGS: u64 = 30;
const FLAGS_1: u64 = 0x6fff_fffb;
const TEXT_RELOCATIONS_FLAG: u64 = 4;
const BIND_NOW_FLAG: u64 = 8;
const NOW_FLAG: u64 = 1;
const PIE_FLAG: u64 = 0x0800_0000;

/// The section that has the names of all functions, unless the program was stripped of it.
const SYMBOLS: u32 = 2;
/// Functions of the C library that load modules for the machine's databases of users and hosts (nsswitch.conf(5)): a static
/// program crashes in those, or finds none. What is asked of them is read from the files, or asked of the name server.
const LOADS_MODULES: [&str; 9] = [
    "getaddrinfo",
    "getnameinfo",
    "gethostbyname",
    "gethostbyname_r",
    "getgrgid_r",
    "getgrnam_r",
    "getgrouplist",
    "getpwnam_r",
    "getpwuid_r",
];

/// The program of this build.
struct Program {
    bytes: Vec<u8>,
}

struct Segment {
    kind: u32,
    flags: u32,
    file: Range<usize>,
}

impl Program {
    fn built() -> Self {
        let other = std::env::var_os("OFFLEASH_BINARY").map(PathBuf::from);
        let path = other.unwrap_or_else(|| env!("CARGO_BIN_EXE_offleash").into());
        let bytes = fs::read(path).unwrap();
        // Its magic, and numbers of 64 bits, least byte first.
        assert_eq!(bytes[..6], *b"\x7fELF\x02\x01");
        Self { bytes }
    }

    fn half(&self, place: usize) -> u16 {
        u16::from_le_bytes(self.bytes[place..place + 2].try_into().unwrap())
    }

    fn word(&self, place: usize) -> u32 {
        u32::from_le_bytes(self.bytes[place..place + 4].try_into().unwrap())
    }

    fn long(&self, place: usize) -> u64 {
        u64::from_le_bytes(self.bytes[place..place + 8].try_into().unwrap())
    }

    fn place(&self, place: usize) -> usize {
        self.long(place).try_into().unwrap()
    }

    fn segments(&self) -> Vec<Segment> {
        let (start, size, count) = (self.place(0x20), self.half(0x36), self.half(0x38));
        let one = |number: u16| {
            let place = start + usize::from(number) * usize::from(size);
            let file = self.place(place + 8);
            Segment {
                kind: self.word(place),
                flags: self.word(place + 4),
                file: file..file + self.place(place + 32),
            }
        };
        (0..count).map(one).collect()
    }

    /// Tags and values of the dynamic section.
    fn dynamic(&self) -> Vec<(u64, u64)> {
        let segments = self.segments();
        let found = segments.iter().find(|segment| segment.kind == DYNAMIC).unwrap();
        let entry = |place| (self.long(place), self.long(place + 8));
        found.file.clone().step_by(16).map(entry).collect()
    }

    /// The names of its functions, and of what else has one; `None` if it was stripped.
    fn symbols(&self) -> Option<BTreeSet<&str>> {
        let (start, size) = (self.place(0x28), usize::from(self.half(0x3a)));
        let section = |number: usize| start + number * size;
        let mut all = (0..usize::from(self.half(0x3c))).map(section);
        let found = all.find(|place| self.word(place + 4) == SYMBOLS)?;
        let names = section(self.word(found + 40).try_into().unwrap());
        let (names, file) = (self.place(names + 24), self.place(found + 24));
        let entries = (file..file + self.place(found + 32)).step_by(24);
        let name = |entry| {
            let rest = &self.bytes[names + usize::try_from(self.word(entry)).unwrap()..];
            std::str::from_utf8(rest.split(|byte| *byte == 0).next()?).ok()
        };
        Some(entries.filter_map(name).collect())
    }

    fn value(&self, wanted: u64) -> u64 {
        let found = self.dynamic().into_iter().find(|(tag, _)| *tag == wanted);
        found.map_or(0, |(_, value)| value)
    }
}

#[test]
fn the_program_is_loaded_at_any_address() {
    let program = Program::built();
    assert_eq!(program.half(0x10), ANYWHERE);
    assert_eq!(program.value(FLAGS_1) & PIE_FLAG, PIE_FLAG);
    let tags: Vec<u64> = program.dynamic().into_iter().map(|(tag, _)| tag).collect();
    assert!(!tags.contains(&TEXT_RELOCATIONS));
    assert_eq!(program.value(FLAGS) & TEXT_RELOCATIONS_FLAG, 0);
}

#[test]
fn the_program_needs_no_other() {
    let program = Program::built();
    assert!(program.segments().iter().all(|segment| segment.kind != INTERPRETER));
    assert!(program.dynamic().iter().all(|(tag, _)| *tag != NEEDED));
}

#[test]
fn what_is_relocated_is_read_only_from_the_start() {
    let program = Program::built();
    let segments = program.segments();
    let later = segments.iter().find(|segment| segment.kind == READ_ONLY_LATER).unwrap();
    assert!(!later.file.is_empty());
    let is_now = program.value(FLAGS) & BIND_NOW_FLAG != 0 || program.value(FLAGS_1) & NOW_FLAG != 0;
    assert!(is_now, "functions would be looked up when they are called first");
}

#[test]
fn no_memory_of_the_program_is_writable_and_executable() {
    let program = Program::built();
    let segments = program.segments();
    let stack = segments.iter().find(|segment| segment.kind == STACK).unwrap();
    assert_eq!(stack.flags & EXECUTABLE, 0);
    let mapped: Vec<&Segment> = segments.iter().filter(|segment| segment.kind == LOAD).collect();
    assert!(mapped.len() > 1);
    for segment in mapped {
        assert_ne!(segment.flags & (WRITABLE | EXECUTABLE), WRITABLE | EXECUTABLE);
    }
}

#[test]
fn the_c_library_is_asked_for_no_user_and_no_host() {
    let program = Program::built();
    let Some(symbols) = program.symbols() else {
        return println!("SKIP: the program has no symbols");
    };
    assert!(symbols.contains("main"));
    let found: Vec<&str> = LOADS_MODULES
        .into_iter()
        .filter(|name| symbols.contains(name))
        .collect();
    assert!(found.is_empty(), "{found:?}");
}
