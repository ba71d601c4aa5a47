//! The default image in the engine of the tests: exported and imported as the manual says.

use std::process::{Command, Stdio};

use e2e::{Engine, binary, default_images};

/// The image, as long as this lives.
pub(crate) struct WholeImage<'a> {
    engine: &'a Engine,
    pub(crate) name: &'static str,
}

impl<'a> WholeImage<'a> {
    /// Brings it in. Tests that run at the same time give it names of their own.
    pub(crate) fn import(engine: &'a Engine, name: &'static str) -> Self {
        let mut exporting = Command::new(binary())
            .args(["image", "export", "default", "--tar", "-"])
            .env("CAISSON_IMAGES", default_images())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let archive = exporting.stdout.take().unwrap();
        let host = format!("unix://{}", engine.socket());
        let mut importing = Command::new("docker");
        importing.args(["--host", &host, "import", "-", name]).stdin(archive);
        let imported = importing.output().expect("docker, of the package docker-cli");
        assert!(exporting.wait().unwrap().success());
        assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
        Self { engine, name }
    }
}

impl Drop for WholeImage<'_> {
    fn drop(&mut self) {
        let _ = self.engine.ask("DELETE", &format!("/images/{}?force=true", self.name));
    }
}
