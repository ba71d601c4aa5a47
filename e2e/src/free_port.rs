//! Ports for servers that are started later, and restarted on the same port.

use std::fs::{self, File};
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

/// Below the kernel's ephemeral range, so that no other process gets these ports by chance.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

/// Returns a port that nobody listens on and reserves it (by a file lock) until this test process ends.
#[must_use]
pub fn free_port() -> u16 {
    static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let folder = std::env::temp_dir().join("caisson-test-ports");
    fs::create_dir_all(&folder).expect("a folder for locks");
    let begin = std::process::id().wrapping_mul(97);
    for number in 0..COUNT {
        let port = u16::try_from(FIRST + (begin.wrapping_add(number)) % COUNT).expect("a port");
        let Ok(lock) = File::create(folder.join(port.to_string())) else { continue };
        if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
            return port;
        }
    }
    panic!("no port is free between {FIRST} and {}", FIRST + COUNT);
}
