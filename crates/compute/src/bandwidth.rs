//! The machine's read bandwidth, so that every figure can stand beside its limit.

use std::hint::black_box;
use std::time::Instant;

use crate::Cpu;
use crate::pool::Ranges;

/// Bytes that a worker takes at a time.
const PIECE: usize = 1 << 20;

/// Passes over the buffer; the fastest counts, for noise only ever slows a pass down.
const PASSES: usize = 9;

/// Read bandwidth in GB/s (10^9 bytes a second) of all the CPU's threads streaming once through
/// `bytes` bytes, of which there should be several times more than the caches hold.
pub fn measure(cpu: &Cpu, bytes: usize) -> f64 {
    let words = vec![1_u64; bytes.div_ceil(8)];
    let pieces: Vec<&[u64]> = words.chunks(PIECE / 8).collect();
    let seconds = (0..PASSES).map(|_| {
        let ranges = Ranges::new(pieces.len(), 1);
        let start = Instant::now();
        cpu.pool().run(|_, _| {
            while let Some(range) = ranges.next() {
                black_box(cpu.kernels().sum(pieces[range.start]));
            }
        });
        start.elapsed().as_secs_f64()
    });
    let fastest = seconds.fold(f64::INFINITY, f64::min);
    (words.len() * 8) as f64 / fastest / 1e9
}

/// Reads every word once; enough independent sums that only loads limit it. Each instruction set
/// compiles it for its own registers.
#[inline(always)]
pub(crate) fn sum(words: &[u64]) -> u64 {
    let mut sums = [0_u64; 32];
    for chunk in words.as_chunks::<32>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}
