//! A heap for one thread: a list of free blocks for each power of two, and mappings of their own for large blocks.
//!
//! Small on purpose. Blocks are not merged, so the heap stays as large as it once was in each size; the guest's few
//! kinds of objects make that little.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;

use crate::spawn::raw;

/// Smallest block: room for the link of the free list, and the alignment that most things have.
const SMALLEST: usize = 16;

/// Largest block that is kept in a list, as 16 shifted by the number of lists less one: 512 KiB.
const LISTS: usize = 16;

/// How much is asked of the kernel at once for small blocks.
const CHUNK: usize = 64 * 1024;

const PAGE: usize = 4096;

/// The heap of a program that has one thread.
#[derive(Debug)]
pub struct BareHeap {
    state: UnsafeCell<HeapState>,
}

#[derive(Debug)]
struct HeapState {
    /// The first free block of each size; each holds the address of the next.
    free: [*mut u8; LISTS],
    /// What is left of the last chunk.
    next: *mut u8,
    left: usize,
}

// SAFETY: a program that uses this has one thread (see the module's description), so no two calls overlap. The child
// of `spawn` shares the memory but allocates nothing.
unsafe impl Sync for BareHeap {}

impl BareHeap {
    /// An empty heap.
    #[expect(clippy::new_without_default, reason = "only for a static")]
    pub const fn new() -> Self {
        Self {
            state: UnsafeCell::new(HeapState {
                free: [ptr::null_mut(); LISTS],
                next: ptr::null_mut(),
                left: 0,
            }),
        }
    }
}

/// Which list has blocks for the layout; `None` if it gets a mapping of its own.
fn list_for(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SMALLEST);
    let list = usize::try_from(size.next_power_of_two().trailing_zeros() - SMALLEST.trailing_zeros()).ok()?;
    // Blocks are aligned to their size as long as chunks are aligned to pages, and to pages beyond.
    (list < LISTS && layout.align() <= PAGE).then_some(list)
}

/// The length of a mapping for the layout; zero if there can be none.
fn mapped_length(size: usize) -> usize {
    size.checked_next_multiple_of(PAGE).unwrap_or(0)
}

// SAFETY: blocks come from private mappings, are handed out once until they are freed, are large enough, and are
// aligned as `list_for` says.
unsafe impl GlobalAlloc for BareHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: one thread, and no reference to the state outlives a call.
        let state = unsafe { &mut *self.state.get() };
        match list_for(layout) {
            Some(list) => state.take(list),
            None if layout.align() <= PAGE => map(mapped_length(layout.size())),
            None => ptr::null_mut(),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // What was not freed before comes as the kernel gives it, all zeroes; not a page of it needs to be touched.
        let used_before = list_for(layout).is_some_and(|list| {
            // SAFETY: one thread, and no reference to the state outlives a call.
            let state = unsafe { &*self.state.get() };
            !state.free[list].is_null()
        });
        // SAFETY: as the caller promises.
        let block = unsafe { self.alloc(layout) };
        if used_before && !block.is_null() {
            // SAFETY: the block is this large and nobody else's.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: one thread, and no reference to the state outlives a call.
        let state = unsafe { &mut *self.state.get() };
        match list_for(layout) {
            Some(list) => {
                // SAFETY: the block is ours again, has room for a pointer and is aligned for it.
                unsafe { block.cast::<*mut u8>().write(state.free[list]) };
                state.free[list] = block;
            }
            None => unmap(block, mapped_length(layout.size())),
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(size, layout.align()) else {
            return ptr::null_mut();
        };
        match (list_for(layout), list_for(new)) {
            (Some(old), Some(new)) if old == new => block,
            (None, None) => remap(block, mapped_length(layout.size()), mapped_length(size)),
            _ => {
                // SAFETY: the layout is a valid one with a size above zero, as the caller promises.
                let moved = unsafe { self.alloc(new) };
                if !moved.is_null() {
                    // SAFETY: both blocks are at least this large, and they are different ones.
                    unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(size)) };
                    // SAFETY: the block came from here with this layout, as the caller promises.
                    unsafe { self.dealloc(block, layout) };
                }
                moved
            }
        }
    }
}

impl HeapState {
    /// A block of the list's size; null if there is no memory.
    fn take(&mut self, list: usize) -> *mut u8 {
        let first = self.free[list];
        if !first.is_null() {
            // SAFETY: a free block holds the address of the next one, written by `dealloc`.
            self.free[list] = unsafe { first.cast::<*mut u8>().read() };
            return first;
        }
        let size = SMALLEST << list;
        if size >= CHUNK {
            return map(size);
        }
        // What lies between is given up: at most as much as the block that is aligned.
        let gap = self.next.align_offset(size.min(PAGE));
        if gap.checked_add(size).is_none_or(|needed| needed > self.left) {
            let chunk = map(CHUNK);
            if chunk.is_null() {
                return chunk;
            }
            (self.next, self.left) = (chunk, CHUNK);
            return self.carve(0, size);
        }
        self.carve(gap, size)
    }

    /// Cuts a block off the chunk, which has room for both.
    fn carve(&mut self, gap: usize, size: usize) -> *mut u8 {
        let block = self.next.wrapping_add(gap);
        self.next = block.wrapping_add(size);
        self.left -= gap + size;
        block
    }
}

#[expect(clippy::cast_sign_loss, reason = "flags, which are not negative")]
const fn flags(flags: i32) -> usize {
    flags as usize
}

/// New memory; null if there is none.
fn map(length: usize) -> *mut u8 {
    let (access, kind) = (
        flags(libc::PROT_READ | libc::PROT_WRITE),
        flags(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
    );
    // SAFETY: a mapping where nothing was; the kernel refuses a length of zero.
    let answer = unsafe { raw::call(libc::SYS_mmap, [0, length, access, kind, usize::MAX, 0]) };
    address(answer)
}

fn unmap(block: *mut u8, length: usize) {
    // SAFETY: the whole of a mapping that `map` or `remap` made and that its owner gives back.
    unsafe { raw::call(libc::SYS_munmap, [block.expose_provenance(), length, 0, 0, 0, 0]) };
}

fn remap(block: *mut u8, old: usize, new: usize) -> *mut u8 {
    let arguments = [block.expose_provenance(), old, new, flags(libc::MREMAP_MAYMOVE), 0, 0];
    // SAFETY: the whole of a mapping that `map` or `remap` made, whose owner goes on with the answer.
    address(unsafe { raw::call(libc::SYS_mremap, arguments) })
}

fn address(answer: isize) -> *mut u8 {
    raw::checked(answer).map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Numbers without a visible pattern.
    fn next(state: &mut u64) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        usize::try_from(*state >> 16).unwrap()
    }

    struct FreeBlock {
        start: *mut u8,
        layout: Layout,
        mark: u8,
    }

    impl FreeBlock {
        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: the block is live and this large.
            unsafe { core::slice::from_raw_parts_mut(self.start, self.layout.size()) }
        }

        fn check(&mut self) {
            let mark = self.mark;
            assert!(self.start.addr().is_multiple_of(self.layout.align()));
            assert!(
                self.bytes().iter().all(|byte| *byte == mark),
                "another block overlaps {:?}",
                self.layout
            );
        }
    }

    #[test]
    fn blocks_of_all_sizes_keep_what_was_written_to_them() {
        let heap = BareHeap::new();
        let (mut state, mut blocks) = (0x2545_f491_4f6c_dd1d_u64, Vec::<FreeBlock>::new());
        for round in 0..4_000_u32 {
            let mark = u8::try_from(round % 251).unwrap();
            let size = 1 + next(&mut state) % (1 << (1 + next(&mut state) % 21));
            let layout = Layout::from_size_align(size, 1 << (next(&mut state) % 13)).unwrap();
            match next(&mut state) % 5 {
                0 | 1 if blocks.len() < 64 => {
                    // SAFETY: the size is not zero.
                    let start = unsafe { heap.alloc(layout) };
                    let mut block = FreeBlock { start, layout, mark };
                    block.bytes().fill(mark);
                    blocks.push(block);
                }
                2 if !blocks.is_empty() => {
                    let index = next(&mut state) % blocks.len();
                    let block = &mut blocks[index];
                    block.check();
                    let kept = block.layout.size().min(size);
                    // SAFETY: the block is live, with this layout, and the new size is not zero.
                    block.start = unsafe { heap.realloc(block.start, block.layout, size) };
                    block.layout = Layout::from_size_align(size, block.layout.align()).unwrap();
                    let mark = block.mark;
                    assert!(block.bytes()[..kept].iter().all(|byte| *byte == mark));
                    block.bytes().fill(mark);
                }
                _ if !blocks.is_empty() => {
                    let mut block = blocks.swap_remove(next(&mut state) % blocks.len());
                    block.check();
                    // SAFETY: the block is live, with this layout, and not used afterwards.
                    unsafe { heap.dealloc(block.start, block.layout) };
                }
                _ => {}
            }
        }
        blocks.iter_mut().for_each(FreeBlock::check);
    }

    #[test]
    fn zeroed_blocks_are_zero_whatever_was_in_them() {
        let heap = BareHeap::new();
        for size in [1, 100, 5_000, CHUNK, 1 << 20] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            for _ in 0..3 {
                // SAFETY: the size is not zero.
                let start = unsafe { heap.alloc_zeroed(layout) };
                let mut block = FreeBlock { start, layout, mark: 0 };
                block.check();
                block.bytes().fill(7);
                // SAFETY: the block is live, with this layout, and not used afterwards.
                unsafe { heap.dealloc(start, layout) };
            }
        }
    }

    #[test]
    fn freed_blocks_are_used_again() {
        let heap = BareHeap::new();
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: the size is not zero.
        let first = unsafe { heap.alloc(layout) };
        // SAFETY: live, with this layout, and not used afterwards.
        unsafe { heap.dealloc(first, layout) };
        // SAFETY: the size is not zero.
        assert_eq!(unsafe { heap.alloc(layout) }, first);
    }
}
