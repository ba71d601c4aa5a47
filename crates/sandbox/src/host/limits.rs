//! Limits of the whole host that sandboxes share.

/// From this value on, `fs.file-max` counts as unlimited: a machine runs out of memory earlier.
const NO_FILE_MAX: u64 = 1 << 40;

/// Half of the host's limit on open files of all processes. systemd lifts that limit; then memory limits open files.
pub(crate) fn host_open_files_share() -> Option<u64> {
    let most: u64 = std::fs::read_to_string("/proc/sys/fs/file-max").ok()?.trim().parse().ok()?;
    (most < NO_FILE_MAX).then_some(most / 2)
}
