//! Ends the stream of a request with a reply.

use protocol::{MessageStream, ProtocolError, Reply};

/// Sends the last reply of a stream and closes the stream.
pub(crate) async fn send_reply(stream: &mut MessageStream, reply: &Reply) -> Result<(), ProtocolError> {
    stream.send(reply).await?;
    stream.close().await
}
