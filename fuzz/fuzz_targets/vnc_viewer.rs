//! A VNC viewer's messages, split anywhere. In view-only mode, no message that acts on the desktop passes, however it
//! is split. Otherwise everything passes unchanged, except for the offer of extended pointer events. The output is
//! parsed again by independent rules, like the desktop's server does: it must consist of whole messages, with none
//! that acts after the switch to view-only mode.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/server/src/streams/vnc_filter.rs"]
mod view_only;
#[path = "parts/vnc_server.rs"]
mod vnc_server;

use view_only::{InputMode, ViewerFilter};
use vnc_server::Server;

fuzz_target!(|bytes: &[u8]| {
    let Some((cut, said)) = bytes.split_first() else { return };
    let cut = usize::from(*cut).min(said.len());
    let (first, second) = said.split_at(cut);
    for input_mode in [InputMode::Full, InputMode::ViewOnly] {
        let mut viewer = ViewerFilter::new();
        let mut passed = Vec::new();
        let in_pieces = viewer.take(first, input_mode).and_then(|piece| {
            passed.extend_from_slice(&piece);
            viewer.take(second, input_mode)
        });
        let at_once = ViewerFilter::new().take(said, input_mode);
        match (in_pieces, at_once) {
            (Ok(piece), Ok(whole)) => {
                passed.extend_from_slice(&piece);
                assert_eq!(passed, whole, "cut at {cut}");
                let acted = Server::default().read(&whole);
                assert!(input_mode == InputMode::Full || acted == 0, "{acted} messages act");
                let offers = said.windows(4).any(|word| word == (-316_i32).to_be_bytes());
                assert!(input_mode == InputMode::ViewOnly || offers || said.starts_with(&whole));
            }
            (Err(_), Err(_)) => {}
            (cut, whole) => panic!("{cut:?} and {whole:?}"),
        }
    }
    // Switching to view-only mode mid-message leaves nothing behind that acts later.
    let (mut viewer, mut server) = (ViewerFilter::new(), Server::default());
    let Ok(free) = viewer.take(first, InputMode::Full) else { return };
    server.read(&free);
    let Ok(tied) = viewer.take(second, InputMode::ViewOnly) else { return };
    assert_eq!(server.read(&tied), 0, "it acts although it is tied");
});
