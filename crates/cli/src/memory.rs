//! What the system says about the memory of this process.

use std::fs;

/// The most physical memory that this process has had so far, mapped files included; `None` where
/// the system has no `/proc/self/status` to say so.
pub(crate) fn peak_resident_bytes() -> Option<u64> {
    peak(&fs::read_to_string("/proc/self/status").ok()?)
}

fn peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_from_the_status() {
        let status = "Name:\tlarql\nVmPeak:\t  99 kB\nVmHWM:\t  1234 kB\nVmRSS:\t 17 kB\n";
        assert_eq!(peak(status), Some(1234 * 1024));
        assert_eq!(peak("Name:\tlarql\n"), None);
        assert_eq!(peak("VmHWM:\tmany kB\n"), None);
    }
}
