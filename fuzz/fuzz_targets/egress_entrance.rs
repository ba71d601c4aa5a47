//! What a sandboxed program sends to the egress proxy: SOCKS5, CONNECT, plain HTTP, or garbage. Under a policy that
//! denies everything, no connection is made.
#![cfg_attr(fuzzing, no_main)]

use std::cell::RefCell;

use egress::{Mode, Policy, Proxy, ProxySettings, Ranges, Verdict};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

thread_local! {
    static RUNTIME: RefCell<tokio::runtime::Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"),
    );
}

fuzz_target!(|bytes: &[u8]| {
    RUNTIME.with_borrow(|runtime| {
        runtime.block_on(async {
            let (log, mut events) = mpsc::channel(1024);
            let policy = Policy::new(Mode::Off, Ranges::default()).expect("a policy");
            let proxy = Proxy::new(policy, log, ProxySettings::default());
            let (mut near, far) = tokio::io::duplex(64 * 1024);
            let served = proxy.serve(far);
            let speaking = async {
                let _ = near.write_all(bytes).await;
                let _ = near.shutdown().await;
                let mut answer = Vec::new();
                let _ = near.take(1 << 20).read_to_end(&mut answer).await;
            };
            tokio::join!(served, speaking);
            drop(proxy);
            while let Ok(event) = events.try_recv() {
                let passed =
                    event.connection().is_some_and(|connection| connection.verdict == Verdict::Allowed);
                assert!(!passed, "{event:?}");
            }
        });
    });
});
