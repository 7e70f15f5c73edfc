//! Where the program starts, and what it finds there.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

pub use crate::hand_over::Outcome;
use crate::hand_over::Run;
use crate::kernel;
use crate::strings::{self, Strings};
use crate::words::Words;

/// The word for which anything is done here.
const RUN: &[u8] = b"run";

/// What the kernel has put on the stack; null if the program started elsewhere.
static STACK: AtomicPtr<usize> = AtomicPtr::new(core::ptr::null_mut());
/// The [`Outcome`] so far, for those that leave something to do.
static SO_FAR: AtomicU8 = AtomicU8::new(NOT_FOUND);
const NOT_FOUND: u8 = 0;
const NOT_TAKEN: u8 = 1;
const LOST: u8 = 2;

/// Where the kernel starts the program: hands a run over if it can, and goes on at the C library's entry point if not, with
/// the registers and the stack as they were.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn offleash_entry() -> ! {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "mov rbx, rsp",
        "mov r12, rdx",
        "xor ebp, ebp",
        "mov rdi, rsp",
        "and rsp, -16",
        "call {begin}",
        "mov rsp, rbx",
        "mov rdx, r12",
        "jmp _start",
        begin = sym begin,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "mov x19, x0",
        "mov x29, xzr",
        "mov x30, xzr",
        "mov x0, sp",
        "bl {begin}",
        "mov x0, x19",
        "mov x29, xzr",
        "mov x30, xzr",
        "b _start",
        begin = sym begin,
    );
}

/// # Safety
/// `stack` is the stack pointer that the kernel started the program with.
unsafe extern "C" fn begin(stack: *mut usize) {
    STACK.store(stack, Ordering::Relaxed);
    // SAFETY: as the caller promises.
    let outcome = match unsafe { Started::of(stack) } {
        Some(started) => started.hand_over(None),
        None => Outcome::NotTaken,
    };
    let so_far = match outcome {
        Outcome::Ended(code) => kernel::exit(code),
        Outcome::NotFound => NOT_FOUND,
        Outcome::NotTaken => NOT_TAKEN,
        Outcome::Lost => LOST,
    };
    SO_FAR.store(so_far, Ordering::Relaxed);
}

/// What became, before there was a C library, of the run that this process was started for.
pub fn so_far() -> Outcome {
    match SO_FAR.load(Ordering::Relaxed) {
        NOT_FOUND => Outcome::NotFound,
        LOST => Outcome::Lost,
        _ => Outcome::NotTaken,
    }
}

/// Hands the run that this process was started for to a sandbox that waits for it in the state directory `state`.
pub fn hand_over(state: &CStr) -> Outcome {
    let stack = STACK.load(Ordering::Relaxed);
    if stack.is_null() {
        return Outcome::NotTaken;
    }
    // SAFETY: this is what the program was started with. Nobody writes there.
    match unsafe { Started::of(stack) } {
        Some(started) => started.hand_over(Some(state)),
        None => Outcome::NotTaken,
    }
}

/// `offleash run` with these words.
#[derive(Debug)]
struct Started {
    arguments: Array,
    words: Words,
    env: Array,
    at: u64,
}

impl Started {
    /// What the words on the stack say: their number, pointers to them, a null pointer, and pointers to the variables of the
    /// environment and a null pointer (the System V ABI's "initial process stack"). `None` if they are no run's.
    ///
    /// # Safety
    /// `stack` is the stack pointer that the kernel started the program with.
    unsafe fn of(stack: *const usize) -> Option<Self> {
        // SAFETY: as the caller promises.
        let count = unsafe { *stack };
        let arguments = Array {
            first: stack.wrapping_add(1).cast(),
            count,
        };
        if !strings::same(arguments.get(1)?, RUN) {
            return None;
        }
        let words = Words::split(&arguments, 2)?;
        let first = stack.wrapping_add(count + 2);
        // SAFETY: they end with a null pointer, at which this stops.
        let is_one = |place: &usize| unsafe { *first.wrapping_add(*place) } != 0;
        let env = Array {
            first: first.cast(),
            count: (0..).take_while(is_one).count(),
        };
        Some(Self {
            arguments,
            words,
            env,
            at: kernel::now(),
        })
    }

    fn hand_over(&self, state: Option<&CStr>) -> Outcome {
        let run = Run {
            list: &self.arguments,
            words: self.words,
            env: &self.env,
            started: self.at,
        };
        run.hand_over(state)
    }
}

/// Pointers to strings that end with a zero byte. Only [`Started::of`] makes one, of what is there as long as the program runs.
#[derive(Debug)]
struct Array {
    first: *const *const u8,
    count: usize,
}

impl Array {
    fn start(&self, place: usize) -> Option<*const u8> {
        // SAFETY: there are as many as that.
        (place < self.count).then(|| unsafe { *self.first.wrapping_add(place) })
    }

    /// The bytes of the string at `place`.
    fn bytes(&self, place: usize) -> Option<impl Iterator<Item = u8>> {
        let mut next = self.start(place)?;
        Some(core::iter::from_fn(move || {
            // SAFETY: at most the zero byte at the end, at which this stays.
            let byte = unsafe { *next };
            (byte != 0).then(|| {
                next = next.wrapping_add(1);
                byte
            })
        }))
    }
}

impl Strings for Array {
    fn get(&self, place: usize) -> Option<&[u8]> {
        let (start, length) = (self.start(place)?, self.bytes(place)?.count());
        // SAFETY: it has this many bytes, which nobody changes.
        Some(unsafe { core::slice::from_raw_parts(start, length) })
    }

    fn begins(&self, place: usize, start: &[u8]) -> Option<bool> {
        let mut bytes = self.bytes(place)?;
        Some(start.iter().all(|byte| bytes.next() == Some(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_variables_are_found_on_the_stack() {
        let pointer = |text: &'static CStr| text.as_ptr().expose_provenance();
        let words = [c"offleash", c"run", c"--warm", c"", c"--", c"true"].map(pointer);
        let env = [c"A=1", c"AB=2"].map(pointer);
        let stack = [&[words.len()][..], &words, &[0], &env, &[0]].concat();
        // SAFETY: it is laid out as the kernel does it, and stays.
        let started = unsafe { Started::of(stack.leak().as_ptr()) }.unwrap();
        let Words {
            first, end, command, ..
        } = started.words;
        assert_eq!((first, end, command), (2, 4, 5));
        assert_eq!(started.arguments.get(3), Some(&b""[..]));
        assert_eq!(started.arguments.get(6), None);
        assert_eq!(strings::variable(&started.env, b"AB"), Some(&b"2"[..]));
        assert_eq!(strings::variable(&started.env, b"B"), None);
    }
}
