//! Where the program starts, and what it finds there.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::hand_over::{Outcome, Run};
use crate::kernel;
use crate::strings::{self, Strings};

/// The word for which anything is done here.
const RUN: &[u8] = b"run";

/// The [`Outcome`] so far, for those that leave something to do.
static SO_FAR: AtomicU8 = AtomicU8::new(NOT_TRIED);
const NOT_TRIED: u8 = 0;
const NOT_FOUND: u8 = 1;
const NOT_TAKEN: u8 = 2;
const LOST: u8 = 3;

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
unsafe extern "C" fn begin(stack: *const usize) {
    // SAFETY: as the caller promises.
    let (arguments, env) = unsafe { started_with(stack) };
    let is_run = arguments.get(1).is_some_and(|word| strings::same(word, RUN));
    let run = match is_run {
        true => Run::of(&arguments, 2, &env),
        false => None,
    };
    let so_far = match run.map_or(Outcome::NotTaken, |run| run.hand_over(None)) {
        Outcome::Ended(code) => kernel::exit(code),
        Outcome::NotTried => NOT_TRIED,
        Outcome::NotFound => NOT_FOUND,
        Outcome::NotTaken => NOT_TAKEN,
        Outcome::Lost => LOST,
    };
    SO_FAR.store(so_far, Ordering::Relaxed);
}

/// What became, before there was a C library, of the run that this process was started for.
pub fn so_far() -> Outcome {
    match SO_FAR.load(Ordering::Relaxed) {
        NOT_TRIED => Outcome::NotTried,
        NOT_FOUND => Outcome::NotFound,
        LOST => Outcome::Lost,
        _ => Outcome::NotTaken,
    }
}

/// Arguments and environment as the stack has them: their number, pointers to them, a null pointer, and pointers to the
/// variables of the environment and a null pointer (the System V ABI's "initial process stack").
///
/// # Safety
/// `stack` is the stack pointer that the kernel started the program with.
unsafe fn started_with(stack: *const usize) -> (Array, Array) {
    // SAFETY: as the caller promises.
    let count = unsafe { *stack };
    let first = stack.wrapping_add(count + 2);
    // SAFETY: they end with a null pointer, at which this stops.
    let is_one = |place: &usize| unsafe { *first.wrapping_add(*place) } != 0;
    let arguments = Array {
        first: stack.wrapping_add(1).cast(),
        count,
    };
    let env = Array {
        first: first.cast(),
        count: (0..).take_while(is_one).count(),
    };
    (arguments, env)
}

/// Pointers to strings that end with a zero byte. Only [`started_with`] makes one, of what is there as long as the program runs.
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
    use core::ffi::CStr;

    use super::*;
    use crate::words::Words;

    #[test]
    fn words_and_variables_are_found_on_the_stack() {
        let pointer = |text: &'static CStr| text.as_ptr().expose_provenance();
        let words = [c"offleash", c"run", c"--warm", c"", c"--", c"true"].map(pointer);
        let env = [c"A=1", c"AB=2"].map(pointer);
        let stack = [&[words.len()][..], &words, &[0], &env, &[0]].concat();
        // SAFETY: it is laid out as the kernel does it, and stays.
        let (arguments, env) = unsafe { started_with(stack.leak().as_ptr()) };
        let Words {
            first, end, command, ..
        } = Words::split(&arguments, 2).unwrap();
        assert_eq!((first, end, command), (2, 4, 5));
        assert_eq!(arguments.get(3), Some(&b""[..]));
        assert_eq!(arguments.get(6), None);
        assert_eq!(strings::variable(&env, b"AB"), Some(&b"2"[..]));
        assert_eq!(strings::variable(&env, b"B"), None);
    }
}
