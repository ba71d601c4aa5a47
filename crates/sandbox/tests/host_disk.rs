//! Sandboxes whose disks are on a small file system of the host that fills up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod namespace_host;

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use namespace_host::{Host, program};
use sandbox::conformance::{Guest, Subject as _, make, remove, spec};
use sandbox::namespace::NamespaceBackend;
use sandbox::{Backend as _, DiskState, SandboxError, SandboxId};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// Drops a file from the page cache, so that the next read comes from the disk.
const FORGET: &str = "dd if=lost iflag=nocache count=0 status=none";

/// A separate file system of this size.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    fn new(mebibytes: u32) -> Self {
        let folder = tempfile::Builder::new().prefix("cd").tempdir().unwrap();
        let options = format!("size={mebibytes}m");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path()).status();
        assert!(mounted.unwrap().success(), "mounting a small disk needs root");
        Self { folder }
    }

    fn filler(&self) -> std::path::PathBuf {
        self.folder.path().join("filler")
    }

    fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        for size in [1 << 20, 4096, 1] {
            let block = vec![7; size];
            while file.write_all(&block).is_ok() {}
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}

fn host_on(disk: &Path) -> Host {
    let mut host = Host::with(&program("caisson-launcher"), &program("caisson-guest"), disk);
    // Nothing else may use space on the disk.
    host.config.ready_disks = 0;
    host.backend = NamespaceBackend::new(host.config.clone()).unwrap();
    host
}

#[tokio::test]
async fn data_loss_is_reported_permanently_to_every_server() {
    let disk = SmallDisk::new(96);
    let host = host_on(disk.folder.path());
    let id = make(&host, &spec()).await;
    let guest = Guest::of(&host.backend, id).await;
    guest.expect("head -c 5000000 /dev/urandom > kept").await;
    assert_eq!(host.backend.disk_monitor().unwrap().sync(id).await.unwrap(), DiskState::Whole);
    assert_eq!(host.backend.disk_monitor().unwrap().state(id).await.unwrap(), DiskState::Whole);

    disk.fill();
    // The write succeeds from the program's point of view.
    guest.expect("head -c 20000000 /dev/zero | tr '\\0' x > lost").await;
    let restarted = host.restarted();
    let damaged = restarted.disk_monitor().unwrap().sync(id).await.unwrap();
    assert!(matches!(&damaged, DiskState::Damaged(_)), "{damaged:?}");

    std::fs::remove_file(disk.filler()).unwrap();
    let found = guest.expect(&format!("{FORGET}; tr -d '\\0' < lost | wc -c")).await;
    assert!(found.parse::<u64>().unwrap() < 20_000_000, "nothing was lost: the test shows nothing");
    // Even if there is room again: lost data stays lost.
    for backend in [&host.backend as &dyn sandbox::Backend, &*restarted] {
        assert!(matches!(backend.disk_monitor().unwrap().sync(id).await.unwrap(), DiskState::Damaged(_)));
        assert!(matches!(backend.disk_monitor().unwrap().state(id).await.unwrap(), DiskState::Damaged(_)));
    }
    remove(&host, id).await;
}

#[tokio::test]
async fn written_and_unallocated_disk_space_is_reported() {
    let disk = SmallDisk::new(256);
    let host = host_on(disk.folder.path());
    let id = make(&host, &spec()).await;
    let look = || async { host.backend.disk_monitor().unwrap().host_disk().await.unwrap() };
    let before = look().await;
    let of =
        |looked: &sandbox::HostDisk| looked.disks.iter().find(|disk| disk.sandbox == id).unwrap().clone();
    assert!((60 * MIB..=72 * MIB).contains(&of(&before).unallocated_bytes), "{before:?}");
    let guest = Guest::of(&host.backend, id).await;
    guest.expect("head -c 20000000 /dev/urandom > written").await;
    host.backend.disk_monitor().unwrap().sync(id).await.unwrap();
    let after = look().await;
    let taken = of(&before).unallocated_bytes - of(&after).unallocated_bytes;
    assert!((20_000_000..30_000_000).contains(&taken), "{before:?} {after:?}");
    assert!(after.free_bytes + taken <= before.free_bytes + MIB, "{before:?} {after:?}");
    remove(&host, id).await;
}

#[tokio::test]
async fn without_overcommit_an_oversized_disk_is_refused() {
    let disk = SmallDisk::new(128);
    let mut host = host_on(disk.folder.path());
    host.config.disk_reserve_unless_overcommitted = Some(16 * MIB);
    host.backend = NamespaceBackend::new(host.config.clone()).unwrap();
    let first = make(&host, &spec()).await;
    let refused = host.backend.create(SandboxId::generate(), &spec()).await.unwrap_err();
    assert!(matches!(refused, SandboxError::Overcommitted { .. }) && refused.is_disk_full(), "{refused:?}");
    remove(&host, first).await;
    let second = make(&host, &spec()).await;
    remove(&host, second).await;
}
