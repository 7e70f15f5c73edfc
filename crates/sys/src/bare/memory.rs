//! The functions on memory that the compiler calls by name and a C library would bring.
//!
//! Each is one instruction that repeats where the processor has one; written as loops, the compiler would turn them
//! into calls of themselves. Under test they do not take the place of the C library's.

use core::ffi::c_int;

/// Copies `length` bytes between places that do not overlap.
///
/// # Safety
/// As for C's `memcpy`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: as the caller promises.
    unsafe { copy_forward(to, from, length) };
    to
}

/// Copies `length` bytes between places that may overlap.
///
/// # Safety
/// As for C's `memmove`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // Behind the source or before it: then forward never overwrites what is still to be read.
    if to.addr().wrapping_sub(from.addr()) >= length {
        // SAFETY: as the caller promises.
        unsafe { copy_forward(to, from, length) };
    } else {
        // SAFETY: as the caller promises.
        unsafe { copy_backward(to, from, length) };
    }
    to
}

/// Fills `length` bytes.
///
/// # Safety
/// As for C's `memset`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memset(to: *mut u8, value: c_int, length: usize) -> *mut u8 {
    // SAFETY: as the caller promises.
    unsafe { fill(to, value, length) };
    to
}

/// Compares `length` bytes.
///
/// # Safety
/// As for C's `memcmp`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, length: usize) -> c_int {
    let mut index = 0;
    while index < length {
        // SAFETY: below the length, as the caller promises; volatile, so that this does not become a call of itself.
        let a = unsafe { left.wrapping_add(index).read_volatile() };
        // SAFETY: as above.
        let b = unsafe { right.wrapping_add(index).read_volatile() };
        if a != b {
            return c_int::from(a) - c_int::from(b);
        }
        index += 1;
    }
    0
}

/// Whether `length` bytes differ.
///
/// # Safety
/// As for `memcmp`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, length: usize) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { memcmp(left, right, length) }
}

/// The number of bytes before the zero byte.
///
/// # Safety
/// As for C's `strlen`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: up to the zero byte, as the caller promises; volatile, so that this does not become a call of itself.
    while unsafe { text.wrapping_add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

/// # Safety
/// Both places are valid for `length` bytes, and `to` is not inside the source behind its start.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_forward(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: as the caller promises; the direction flag is clear in all Rust code.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") length => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// Both places are valid for `length` bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_backward(to: *mut u8, from: *const u8, length: usize) {
    let last = length.wrapping_sub(1);
    // SAFETY: as the caller promises; from the last byte down, and the direction flag is clear again afterwards.
    unsafe {
        core::arch::asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") length => _,
            inout("rdi") to.wrapping_add(last) => _, inout("rsi") from.wrapping_add(last) => _,
            options(nostack),
        );
    }
}

/// # Safety
/// The place is valid for `length` bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn fill(to: *mut u8, value: c_int, length: usize) {
    // SAFETY: as the caller promises; the direction flag is clear in all Rust code.
    unsafe {
        core::arch::asm!(
            "rep stosb",
            inout("rcx") length => _, inout("rdi") to => _, in("eax") value,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// Both places are valid for `length` bytes, and `to` is not inside the source behind its start.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_forward(to: *mut u8, from: *const u8, length: usize) {
    let mut index = 0;
    while index < length {
        // SAFETY: below the length, as the caller promises; volatile, so that this does not become a call of itself.
        let byte = unsafe { from.wrapping_add(index).read_volatile() };
        // SAFETY: as above.
        unsafe { to.wrapping_add(index).write_volatile(byte) };
        index += 1;
    }
}

/// # Safety
/// Both places are valid for `length` bytes.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_backward(to: *mut u8, from: *const u8, length: usize) {
    let mut index = length;
    while index > 0 {
        index -= 1;
        // SAFETY: below the length, as the caller promises; volatile, so that this does not become a call of itself.
        let byte = unsafe { from.wrapping_add(index).read_volatile() };
        // SAFETY: as above.
        unsafe { to.wrapping_add(index).write_volatile(byte) };
    }
}

/// # Safety
/// The place is valid for `length` bytes.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn fill(to: *mut u8, value: c_int, length: usize) {
    let byte = value.to_le_bytes()[0];
    let mut index = 0;
    while index < length {
        // SAFETY: below the length, as the caller promises; volatile, so that this does not become a call of itself.
        unsafe { to.wrapping_add(index).write_volatile(byte) };
        index += 1;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn numbered() -> Vec<u8> {
        (0..=u8::MAX).cycle().take(600).collect()
    }

    #[test]
    fn copies_within_a_buffer_are_as_those_of_slices() {
        for (to, from, length) in [
            (0, 0, 600),
            (0, 100, 500),
            (100, 0, 500),
            (7, 6, 590),
            (6, 7, 590),
            (3, 300, 0),
        ] {
            let (mut ours, mut expected) = (numbered(), numbered());
            expected.copy_within(from..from + length, to);
            let start = ours.as_mut_ptr();
            // SAFETY: both ranges are inside the buffer.
            unsafe { memmove(start.wrapping_add(to), start.wrapping_add(from), length) };
            assert_eq!(ours, expected, "{to} {from} {length}");
        }
    }

    #[test]
    fn the_others_do_as_their_names_say() {
        let (source, mut target) = (numbered(), [0; 600]);
        // SAFETY: both have 600 bytes.
        unsafe { memcpy(target.as_mut_ptr(), source.as_ptr(), 600) };
        assert_eq!(target, source[..]);
        // SAFETY: both have 600 bytes.
        assert_eq!(unsafe { bcmp(target.as_ptr(), source.as_ptr(), 600) }, 0);
        target[599] += 1;
        // SAFETY: both have 600 bytes.
        assert!(unsafe { memcmp(target.as_ptr(), source.as_ptr(), 600) } > 0);
        // SAFETY: both have 600 bytes.
        assert!(unsafe { memcmp(source.as_ptr(), target.as_ptr(), 600) } < 0);
        // SAFETY: the target has 600 bytes.
        unsafe { memset(target.as_mut_ptr(), 0x1ff, 599) };
        assert_eq!(target[..599], [0xff; 599]);
        assert_eq!(target[599], source[599] + 1);
        // SAFETY: a C string.
        assert_eq!(unsafe { strlen(c"four".as_ptr().cast()) }, 4);
    }
}
