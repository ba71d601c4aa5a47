//! Ports for servers that are started a while later, and again.

use std::fs::{self, File};
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

/// Below those that the kernel gives to who asks for any: nobody else gets them by accident.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

/// A port on which nobody listens, and which no other test gets before this one has ended.
///
/// # Panics
/// There is none.
#[must_use]
pub fn free_port() -> u16 {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let folder = std::env::temp_dir().join("caisson-test-ports");
    fs::create_dir_all(&folder).expect("a folder for locks");
    let begin = std::process::id().wrapping_mul(97);
    for number in 0..COUNT {
        let port = u16::try_from(FIRST + (begin.wrapping_add(number)) % COUNT).expect("a port");
        let Ok(lock) = File::create(folder.join(port.to_string())) else { continue };
        if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            HELD.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
            return port;
        }
    }
    panic!("no port is free between {FIRST} and {}", FIRST + COUNT);
}
