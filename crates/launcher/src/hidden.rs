//! Parts of `/proc` that a sandbox cannot see or cannot write to, as paths below its root.

/// Hidden files of `/proc`: they reveal information about the host and its other jobs, or give access to the kernel.
/// Those in `proc/sys` count what all processes of the host have open.
pub const HIDDEN_FILES: [&str; 36] = [
    "proc/bootconfig",
    "proc/buddyinfo",
    "proc/cgroups",
    "proc/cmdline",
    "proc/consoles",
    "proc/crypto",
    "proc/devices",
    "proc/diskstats",
    "proc/fb",
    "proc/interrupts",
    "proc/iomem",
    "proc/ioports",
    "proc/kallsyms",
    "proc/kcore",
    "proc/key-users",
    "proc/keys",
    "proc/kmsg",
    "proc/latency_stats",
    "proc/locks",
    "proc/mdstat",
    "proc/misc",
    "proc/modules",
    "proc/mtrr",
    "proc/partitions",
    "proc/sched_debug",
    "proc/schedstat",
    "proc/softirqs",
    "proc/swaps",
    "proc/sys/fs/aio-nr",
    "proc/sys/fs/dentry-state",
    "proc/sys/fs/file-nr",
    "proc/sys/fs/inode-nr",
    "proc/sys/fs/inode-state",
    "proc/sys/kernel/pty/nr",
    "proc/timer_list",
    "proc/zoneinfo",
];
/// Directories of `/proc` that are hidden for the same reasons.
pub const HIDDEN_DIRECTORIES: [&str; 8] = [
    "proc/acpi",
    "proc/asound",
    "proc/bus",
    "proc/driver",
    "proc/fs",
    "proc/irq",
    "proc/pressure",
    "proc/scsi",
];
/// Parts of `/proc` that change the kernel when written to.
pub const READ_ONLY: [&str; 2] = ["proc/sys", "proc/sysrq-trigger"];
