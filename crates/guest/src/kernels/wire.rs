//! Messages of the Jupyter protocol: signed when sent, parsed leniently when received.
//!
//! The guest does not verify a kernel's signatures. Any process that can connect to the kernel's sockets can also
//! read its key, because both belong to the agent. The guest trusts a kernel's messages no more than the output of
//! any process.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::kernels::zmtp::{self, Frame};

const DELIMITER: &[u8] = b"<IDS|MSG>";
const PROTOCOL_VERSION: &str = "5.3";
const BLOCK_BYTES: usize = 64;

/// Creates the messages of one session.
pub(crate) struct Signer {
    key: Vec<u8>,
    session: String,
}

impl Signer {
    /// Uses the key of a connection file.
    pub(crate) fn new(key: &str, session: &str) -> Self {
        Self { key: key.as_bytes().to_vec(), session: session.to_owned() }
    }

    /// Encodes a request for the wire.
    pub(crate) fn request(&self, id: &str, kind: &str, content: &Value) -> Vec<u8> {
        let header = json!({
            "msg_id": id,
            "msg_type": kind,
            "session": self.session,
            "username": "agent",
            "date": "1970-01-01T00:00:00Z",
            "version": PROTOCOL_VERSION,
        });
        let parts = [header.to_string(), "{}".to_owned(), "{}".to_owned(), content.to_string()];
        let signature = hex(&hmac(&self.key, &parts));
        let [header, parent, metadata, content] = &parts;
        zmtp::encode_message(&[
            DELIMITER,
            signature.as_bytes(),
            header.as_bytes(),
            parent.as_bytes(),
            metadata.as_bytes(),
            content.as_bytes(),
        ])
    }
}

/// A message from a kernel.
#[derive(Debug)]
pub(crate) struct Message {
    /// The message type, such as `stream` or `execute_reply`.
    pub(crate) kind: String,
    /// The ID of the request that caused this message.
    pub(crate) parent: String,
    /// JSON text.
    pub(crate) content: Frame,
}

impl Message {
    /// Parses a message. Returns `None` if the frames are not a valid message.
    pub(crate) fn parse(frames: Vec<Frame>) -> Option<Self> {
        let mut rest = frames.into_iter().skip_while(|frame| frame.bytes() != DELIMITER).skip(2);
        let header: Value = serde_json::from_slice(rest.next()?.bytes()).ok()?;
        let parent: Value = serde_json::from_slice(rest.next()?.bytes()).ok()?;
        let _metadata = rest.next()?;
        let content = rest.next()?;
        Some(Self {
            kind: header.get("msg_type")?.as_str()?.to_owned(),
            parent: parent.get("msg_id").and_then(Value::as_str).unwrap_or_default().to_owned(),
            content,
        })
    }

    /// The parsed content, or `Null` if it was too large to be kept.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(self.content.bytes()).unwrap_or_default()
    }
}

/// HMAC-SHA256 of the concatenated parts, as specified in RFC 2104.
fn hmac(key: &[u8], parts: &[String]) -> [u8; 32] {
    let mut block = [0u8; BLOCK_BYTES];
    if key.len() > BLOCK_BYTES {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let mut inner = Sha256::new();
    inner.update(block.map(|byte| byte ^ 0x36));
    for part in parts {
        inner.update(part.as_bytes());
    }
    let mut outer = Sha256::new();
    outer.update(block.map(|byte| byte ^ 0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hmac_matches_the_rfc_test_vectors() {
        let signed = hmac(b"Jefe", &["what do ya want ".to_owned(), "for nothing?".to_owned()]);
        assert_eq!(hex(&signed), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        let long = hmac(&[0xaa; 131], &["Test Using Larger Than Block-Size Key - Hash Key First".to_owned()]);
        assert_eq!(hex(&long), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    }

    #[test]
    fn encoded_request_can_be_parsed() {
        let wire = Signer::new("key", "me").request("id-1", "execute_request", &json!({"code": "1"}));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let frames = runtime.block_on(zmtp::read_message(&mut wire.as_slice())).unwrap();
        let message = Message::parse(frames).unwrap();
        assert_eq!((message.kind.as_str(), message.parent.as_str()), ("execute_request", ""));
        assert_eq!(message.value(), json!({"code": "1"}));
    }

    #[test]
    fn invalid_messages_are_ignored() {
        for frames in [vec![], vec![DELIMITER.to_vec()], vec![DELIMITER.to_vec(); 7], vec![b"{}".to_vec(); 6]]
        {
            assert!(Message::parse(frames.into_iter().map(Frame::Whole).collect()).is_none());
        }
    }
}
