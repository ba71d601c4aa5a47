//! How links end, and what becomes of those who wait.

use std::time::Duration;

use protocol::{Incoming, Link, Side};

/// Generous: without the mend this would wait for ever.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn who_reads_from_a_stream_is_told_when_its_own_side_closes_the_link() {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (host, _host_streams) = Link::start(ours, Side::Host);
    let (guest, mut guest_streams) = Link::start(theirs, Side::Guest);
    let mut asking = host.open().await.unwrap();
    asking.send_data(b"the beginning").await.unwrap();
    let mut serving = guest_streams.next().await.unwrap();
    assert!(matches!(serving.receive().await, Ok(Incoming::Data(bytes)) if bytes == "the beginning"));
    let reading = tokio::spawn(async move { serving.receive().await });
    // Until it waits for more.
    tokio::task::yield_now().await;
    guest.close();
    let told = tokio::time::timeout(PATIENCE, reading).await.expect("it waits for ever").unwrap();
    assert!(matches!(told, Ok(Incoming::Closed) | Err(_)), "{told:?}");
    let other =
        tokio::time::timeout(PATIENCE, asking.receive()).await.expect("the other side waits for ever");
    assert!(matches!(other, Ok(Incoming::Closed) | Err(_)), "{other:?}");
    host.closed().await;
}

#[tokio::test]
async fn what_was_said_before_the_end_arrives() {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (host, _host_streams) = Link::start(ours, Side::Host);
    let (_guest, mut guest_streams) = Link::start(theirs, Side::Guest);
    let mut asking = host.open().await.unwrap();
    asking.send_data(b"the last words").await.unwrap();
    host.close();
    let mut serving = guest_streams.next().await.unwrap();
    assert!(matches!(serving.receive().await, Ok(Incoming::Data(bytes)) if bytes == "the last words"));
}
