//! A malicious guest: the multiplexer, the greeting, a call and a file over one real link. The host gets answers or
//! errors, never waits for a guest that is gone, and buffers no more than was sent.
#![cfg_attr(fuzzing, no_main)]

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::{io, mem};

use libfuzzer_sys::fuzz_target;
use protocol::{CallKey, Follow, GuestClient, LinkCredentials};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads the fuzzer's input, then EOF. Discards what is written to it.
struct Guest {
    said: Vec<u8>,
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.said.len().min(buf.remaining());
        let rest = self.said.split_off(count);
        buf.put_slice(&mem::replace(&mut self.said, rest));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guest {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

thread_local! {
    static RUNTIME: RefCell<tokio::runtime::Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime"),
    );
}

fuzz_target!(|bytes: &[u8]| {
    RUNTIME.with_borrow(|runtime| {
        runtime.block_on(async {
            let Ok((client, _, mut incoming)) =
                GuestClient::connect(Guest { said: bytes.to_vec() }, LinkCredentials::new("fuzz", 1)).await
            else {
                return;
            };
            let key = CallKey::new("call", 1);
            if let Ok(mut follower) = client.follow(key.clone(), 0, Follow::Capped).await {
                while follower.next().await.is_ok() {}
            }
            let _ = client.call_status(key).await;
            while let Some(mut stream) = incoming.next().await {
                let _ = stream.receive_message::<protocol::GuestRequest>().await;
            }
            client.link().closed().await;
        });
    });
});
