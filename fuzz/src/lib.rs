//! What every fuzz target asserts beside its own checks: readers hold no more heap than their input
//! justifies.

use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Heap for messages, paths and whatever else does not grow with the input.
const SPARE: usize = 64 << 10;

/// Runs `read` over an input of `len` bytes.
///
/// # Panics
/// Where it held more than 64 KiB and `factor` bytes for each byte of input at any time, even
/// if it asked for memory that it never touched.
pub fn within<T>(len: usize, factor: usize, read: impl FnOnce() -> T) -> T {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let result = read();
    let held = HEAP.peak_usage().saturating_sub(before);
    assert!(held <= SPARE + factor * len, "{held} bytes of heap for {len} bytes of input");
    result
}
