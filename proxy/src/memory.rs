//! How much memory this process may take: a configured index that cannot fit is refused at the start, not killed later.

use std::fs::read_to_string;

/// Bytes: the least of the machine's memory and the limits of the container's group. `None` where the system
/// tells neither.
///
/// Sources: Linux `/proc/meminfo` (kibibytes), control groups version 2 `memory.max` and version 1
/// `memory.limit_in_bytes` (bytes; `max` for none).
pub(crate) fn bytes_max() -> Option<usize> {
    let group = |path| read_to_string(path).ok()?.trim().parse().ok();
    let limits = [
        read_to_string("/proc/meminfo").ok().and_then(|text| total(&text)),
        group("/sys/fs/cgroup/memory.max"),
        group("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ];
    limits.into_iter().flatten().min()
}

fn total(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_in_kibibytes() {
        assert_eq!(total("MemTotal:       16384 kB\nMemFree:  1 kB\n"), Some(16 << 20));
        for text in ["", "MemTotal:", "MemTotal: 5 MB", "MemTotal: x kB", "MemFree: 5 kB"] {
            assert_eq!(total(text), None, "{text}");
        }
    }
}
