//! Fixed ports that show the newest job: the desktop page, JupyterLab, and plain VNC for native viewers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use e2e::{Browser, Server, free_port, wait_until};
use reqwest::Method;
use reqwest::blocking::RequestBuilder;
use serde_json::json;

use crate::server_with;

#[test]
fn exposed_port_shows_the_newest_jobs_desktop_page() {
    let novnc = free_port();
    let server = server_with(&format!("[expose]\nlisten = \"127.0.0.2\"\nnovnc = {novnc}\n"));
    let browser = Browser::start();
    let mut page = browser.open(&format!("http://127.0.0.2:{novnc}/vnc.html"));
    page.wait_for("it says that nothing runs", "document.body.innerText.includes('No job is running')");
    assert!(TcpStream::connect(("127.0.0.1", novnc)).is_err(), "it listens on another address, too");
    let _sandbox = server.create_sandbox(&json!({"image": "default"}));
    let mut page = browser.open(&format!("http://127.0.0.2:{novnc}/vnc.html"));
    page.wait_for(
        "the desktop is shown",
        "document.getElementById('state')?.dataset.state === 'connected' && \
         document.querySelector('#screen canvas')?.width === 1280",
    );
}

#[test]
fn exposed_port_shows_the_newest_jobs_jupyterlab() {
    let jupyter = free_port();
    let server =
        server_with(&format!("[expose]\nlisten = [\"127.0.0.1\", \"127.0.0.2\"]\njupyter = {jupyter}\n"));
    let _sandbox = server.create_sandbox(&json!({"image": "default"}));
    let browser = Browser::start();
    let mut page = browser.open(&format!("http://127.0.0.2:{jupyter}/lab"));
    page.wait_for("JupyterLab is shown", "!!document.querySelector('.jp-Launcher .jp-LauncherCard')");
    assert_keys_decide_who_uses_jupyterlab(&server, jupyter);
}

/// From its first key on, the server requires one. A key that may only read sees the notebooks and changes nothing.
#[track_caller]
fn assert_keys_decide_who_uses_jupyterlab(server: &Server, jupyter: u16) {
    let made = server.post("/v1/keys", &json!({"name": "root", "role": "admin"})).expect(201).json();
    let admin = made["secret"].as_str().unwrap().to_owned();
    let viewer = json!({"name": "eve", "role": "viewer"});
    let viewer = server.send(server.request(Method::POST, "/v1/keys").bearer_auth(&admin).json(&viewer));
    let viewer = viewer.expect(201).json()["secret"].as_str().unwrap().to_owned();
    let client = e2e::http_client().build().unwrap();
    let ask = |method: Method, path: &str, key: Option<&str>| {
        let request = client.request(method, format!("http://127.0.0.1:{jupyter}{path}"));
        // Jupyter wants the same token twice with whatever changes something, as its own pages send it.
        let request = request.header("X-XSRFToken", "0123abcd").header("Cookie", "_xsrf=0123abcd");
        server.send(key.into_iter().fold(request, RequestBuilder::bearer_auth))
    };
    ask(Method::GET, "/api/contents", None).expect_problem(401, "key_missing");
    for key in [&admin, &viewer] {
        let listed = ask(Method::GET, "/api/contents", Some(key)).expect(200).json();
        assert_eq!(listed["type"], "directory", "{listed}");
    }
    ask(Method::POST, "/api/kernels", Some(&viewer)).expect_problem(403, "view_only");
    ask(Method::POST, "/api/kernels", Some(&admin)).expect(201);
}

/// A minimal VNC client that can read one screen image.
struct Viewer(TcpStream);

impl Viewer {
    fn open(port: u16) -> Option<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut viewer = Self(stream);
        (viewer.take(12)? == b"RFB 003.008\n").then_some(viewer)
    }

    /// Reads this many bytes; `None` if the connection is closed.
    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).ok().map(|()| bytes)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn number(&mut self) -> usize {
        let bytes = self.take(2).unwrap();
        usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Shakes hands and requests the whole screen as raw pixels: returns its size, and all pixels in some order.
    fn read_screen(mut self) -> ((usize, usize), Vec<u8>) {
        self.send(b"RFB 003.008\n");
        assert_eq!(self.take(2).unwrap(), [1, 1], "one way in: without a password");
        self.send(&[1]);
        assert_eq!(self.take(4).unwrap(), [0; 4], "let in");
        self.send(&[1]);
        let size = (self.number(), self.number());
        let format = self.take(20).unwrap();
        assert_eq!(format[0], 32, "bits of a pixel");
        let name = u32::from_be_bytes([format[16], format[17], format[18], format[19]]) as usize;
        assert_eq!(String::from_utf8(self.take(name).unwrap()).unwrap(), "Caisson");
        // Announces raw encoding only.
        self.send(&[2, 0, 0, 1, 0, 0, 0, 0]);
        self.send(&[3, 0, 0, 0, 0, 0, 5, 0, 3, 32]);
        assert_eq!(self.take(2).unwrap()[0], 0, "an update of the screen");
        let mut pixels = Vec::new();
        for _ in 0..self.number() {
            let (_x, _y, width, height) = (self.number(), self.number(), self.number(), self.number());
            assert_eq!(self.take(4).unwrap(), [0; 4], "plain pixels");
            pixels.extend(self.take(width * height * 4).unwrap());
        }
        (size, pixels)
    }
}

#[test]
fn a_native_viewer_sees_the_desktop_of_the_newest_job() {
    let port = free_port();
    let server = server_with(&format!("[expose]\nvnc = {port}\n"));
    assert!(Viewer::open(port).is_none(), "no job runs, so nobody greets");
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    let mut viewer = None;
    wait_until("the desktop greets", || {
        viewer = Viewer::open(port);
        viewer.is_some()
    });
    let (size, pixels) = viewer.take().unwrap().read_screen();
    assert_eq!((size, pixels.len()), ((1280, 800), 1280 * 800 * 4));
    let mut colours: Vec<&[u8]> = pixels.chunks_exact(4).collect();
    colours.sort_unstable();
    colours.dedup();
    assert!(colours.len() > 20, "a screen of {} colours shows nothing", colours.len());
    // A client that sends garbage is disconnected and affects no other client.
    let mut garbage = Viewer::open(port).unwrap();
    garbage.send(&[0xff; 4096]);
    assert!(garbage.0.read_to_end(&mut Vec::new()).is_ok() || garbage.take(1).is_none());
    assert_eq!(Viewer::open(port).unwrap().read_screen().0, (1280, 800));
    sandbox.end().expect(204);
}
