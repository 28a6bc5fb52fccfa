//! The machine's read bandwidth, so that every figure can stand beside its limit.

use std::hint::black_box;
use std::time::Instant;

use crate::Cpu;
use crate::pool::Ranges;

/// Bytes that a worker takes at a time.
const PIECE: usize = 1 << 20;

/// Passes over the buffer; the fastest counts, for noise only ever slows a pass down.
const PASSES: usize = 9;

/// Bytes of a buffer that caches cannot hold: four times the last-level cache, where the system
/// (Linux) says how large that is, within 256 MiB and 2 GiB.
pub fn buffer_bytes() -> usize {
    let levels = (0..8).filter_map(|index| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        cache_bytes(&std::fs::read_to_string(path).ok()?)
    });
    levels.max().unwrap_or(0).saturating_mul(4).clamp(256 << 20, 2 << 30)
}

/// `32768K` in bytes.
fn cache_bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let units = [("K", 10), ("M", 20), ("G", 30), ("", 0)];
    let (number, shift) = units.into_iter().find_map(|(unit, shift)| {
        let number: usize = text.strip_suffix(unit)?.parse().ok()?;
        Some((number, shift))
    })?;
    number.checked_mul(1 << shift)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_caches_are_read() {
        assert_eq!(cache_bytes("32768K\n"), Some(32 << 20));
        assert_eq!(cache_bytes("480M"), Some(480 << 20));
        assert_eq!(cache_bytes("4096"), Some(4096));
        for wrong in ["", "K", "many", "-1K", "99999999999999999999G"] {
            assert_eq!(cache_bytes(wrong), None, "{wrong:?}");
        }
        assert!((256 << 20..=2 << 30).contains(&buffer_bytes()));
    }

    #[test]
    fn some_bandwidth_is_found() {
        let cpu = Cpu::new(None, Some(2)).unwrap();
        let found = measure(&cpu, 1 << 22);
        assert!(found.is_finite() && found > 0.0, "{found}");
    }
}
