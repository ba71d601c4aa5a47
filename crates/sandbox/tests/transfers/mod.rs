//! File transfers into and out of a sandbox, on any backend.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use sandbox::conformance::Guest;

/// Uploads a program and runs it, and downloads what it writes.
pub(crate) async fn files_go_in_and_out(guest: &Guest) {
    let mut upload = guest.client.upload("deep/er/file".into(), Some(0o755)).await.unwrap();
    upload.write(b"#!/bin/sh\necho ran\n").await.unwrap();
    upload.finish().await.unwrap();
    assert_eq!(
        guest.expect("deep/er/file && stat -c %a deep/er/file && echo more >> deep/er/file").await,
        "ran\n755"
    );
    guest.expect("chmod 644 deep/er/file && echo from inside > out").await;
    let (_, mut download) = guest.client.download("out".into(), 0, None).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(part) = download.next().await.unwrap() {
        bytes.extend_from_slice(&part);
    }
    assert_eq!(bytes, b"from inside\n");
}
