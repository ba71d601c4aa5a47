//! A command on its own terminal, provided by `script`.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::server::wait_until;

/// A terminal with 31 rows of 97 columns, and the command on it.
pub struct Terminal {
    child: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Runs a shell command line. `complete` sets the environment and the working directory.
    #[must_use]
    #[track_caller]
    pub fn open(line: &str, complete: impl FnOnce(&mut Command)) -> Self {
        // Without `exec` the shell would also receive Ctrl-C and might report its own end.
        let line = format!("stty rows 31 cols 97; exec {line}");
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]);
        complete(&mut script);
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().expect("script is missing: apt-get install bsdutils");
        let (keys, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let shown = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&shown);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                kept.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self { child, keys, shown, reader: Some(reader) }
    }

    /// Everything that was shown so far.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until the text so far meets a condition.
    #[track_caller]
    pub fn until(&self, what: &str, holds: impl Fn(&str) -> bool) {
        wait_until(what, || holds(&self.text()));
    }

    #[track_caller]
    pub fn type_keys(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits for the command to end. Returns its exit code and everything that was shown.
    #[track_caller]
    pub fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        (status.code(), self.text())
    }
}
