//! A sandboxed browser's answer to the request for its list of pages. The path used for the next request must be one
//! of a page.
#![cfg_attr(fuzzing, no_main)]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use tokio::io::AsyncWriteExt;

#[allow(dead_code)]
#[path = "../../crates/orchestrator/src/driver/browser/devtools.rs"]
mod devtools;

const PORT: u16 = 9222;

/// Replaces the orchestrator's own type.
#[allow(dead_code)]
#[derive(Debug)]
enum BrowserError {
    Refused(String),
    Timeout(String),
}

thread_local! {
    static RUNTIME: RefCell<tokio::runtime::Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime"),
    );
}

fuzz_target!(|bytes: &[u8]| {
    RUNTIME.with_borrow(|runtime| {
        runtime.block_on(async {
            let (mut near, far) = tokio::io::duplex(64 * 1024);
            near.write_all(bytes).await.expect("it fits");
            let _ = near.shutdown().await;
            if let Ok(page) = devtools::find_page(Box::new(far)).await {
                let path = page.path();
                let id = path.strip_prefix("/devtools/page/").expect("a path of a page");
                assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
            }
        });
    });
});
