//! Accepts connections with limits on their number, size and time, and shuts down within the grace period.

mod admission;
mod bounded_stream;

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;
use tower_http::timeout::TimeoutBody;

use crate::error::ServerError;
use crate::extract::Shutdown;
use crate::guard::ConnectionInfo;
use crate::settings::{Certificate, ServerSettings};

use self::admission::{Admission, HeldBody, Slot};
use self::bounded_stream::BoundedStream;

pub(crate) use self::admission::{SlotUse, keep_reserve};

/// How long to wait after `accept` fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

struct Serving {
    app: Router,
    http: http1::Builder,
    tls: Option<TlsAcceptor>,
    settings: ServerSettings,
    admission: Arc<Admission>,
    tasks: TaskTracker,
    /// Cancelled at shutdown: no new requests are accepted and event streams end.
    closing: CancellationToken,
    /// Cancelled after the grace period: remaining connections are dropped.
    cut_off: CancellationToken,
}

impl Serving {
    fn new(app: Router, settings: &ServerSettings) -> Result<Self, ServerError> {
        Ok(Self {
            app,
            http: http_builder(settings),
            tls: settings.certificate.as_ref().map(Certificate::acceptor).transpose()?,
            admission: Admission::new(settings),
            settings: settings.clone(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            cut_off: CancellationToken::new(),
        })
    }
}

/// Serves `app` on all `listeners` until `shutdown` completes, then lets running requests finish within the grace
/// period.
///
/// # Errors
/// There is no listener, TLS cannot be set up, or the accept loop ended.
pub async fn serve(
    listeners: Vec<TcpListener>,
    app: Router,
    settings: &ServerSettings,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServerError> {
    if listeners.is_empty() {
        return Err(ServerError::NoListener);
    }
    let serving = Arc::new(Serving::new(app, settings)?);
    let mut acceptors = JoinSet::new();
    for listener in listeners {
        acceptors.spawn(accept_all(Arc::clone(&serving), listener));
    }
    let ended = tokio::select! {
        () = shutdown => None,
        ended = acceptors.join_next() => ended,
    };
    serving.closing.cancel();
    while acceptors.join_next().await.is_some() {}
    serving.tasks.close();
    if tokio::time::timeout(settings.shutdown_grace, serving.tasks.wait()).await.is_err() {
        tracing::warn!(connections = serving.tasks.len(), "cutting off connections that did not end in time");
        serving.cut_off.cancel();
        serving.tasks.wait().await;
    }
    // Write pending access log counts. This waits for the disk, but only briefly.
    let log = settings.access_log.clone();
    let _ = tokio::task::spawn_blocking(move || log.flush()).await;
    match ended {
        Some(Err(error)) => Err(ServerError::AcceptStopped(error)),
        _ => Ok(()),
    }
}

fn http_builder(settings: &ServerSettings) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout)
        .max_header_size(settings.max_header_bytes)
        // Bounds the buffer of one connection.
        .max_buf_size(settings.max_header_bytes.max(64 * 1024));
    http
}

async fn accept_all(serving: Arc<Serving>, listener: TcpListener) {
    loop {
        let accept = async {
            serving.admission.has_room().await;
            listener.accept().await
        };
        let accepted = tokio::select! {
            () = serving.closing.cancelled() => return,
            accepted = accept => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Dropping the stream closes the connection.
                let Some(slot) = serving.admission.admit(peer.ip(), serving.tasks.token()) else { continue };
                let serving = Arc::clone(&serving);
                serving.tasks.clone().spawn(async move {
                    tokio::select! {
                        // Do not start a request on a connection that is about to be closed.
                        biased;
                        () = slot.evicted() => tracing::debug!(%peer, "an idle connection is closed to make room"),
                        () = receive(&serving, stream, peer.ip(), Arc::clone(&slot)) => {}
                    }
                });
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::Interrupted
    )
}

/// Serves requests on one byte stream until it ends, for a caller in the same process.
pub async fn serve_stream(app: Router, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
    let service = service_fn(move |request: Request<Incoming>| app.clone().call(request.map(Body::new)));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.with_upgrades().await {
        tracing::debug!(%error, "a stream inside this process has broken");
    }
}

/// Serves a connection, after the TLS handshake if TLS is configured.
async fn receive(serving: &Serving, stream: TcpStream, peer: IpAddr, slot: Arc<Slot>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection cannot be made quick");
    }
    let Some(tls) = &serving.tls else {
        let connected = ConnectionInfo { peer: Some(peer), is_tls: false };
        return serve_connection(serving, stream, connected, slot).await;
    };
    let connected = ConnectionInfo { peer: Some(peer), is_tls: true };
    let stream = tokio::select! {
        stream = tls_handshake(tls, stream, serving.settings.handshake_timeout) => stream,
        () = serving.closing.cancelled() => return,
    };
    if let Some(stream) = stream {
        serve_connection(serving, stream, connected, slot).await;
    }
}

/// Performs the TLS handshake. `None` if it fails or takes too long.
async fn tls_handshake<T>(tls: &TlsAcceptor, stream: T, longest: Duration) -> Option<TlsStream<T>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    match tokio::time::timeout(longest, tls.accept(stream)).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
    None
}

async fn serve_connection<T>(serving: &Serving, stream: T, connected: ConnectionInfo, slot: Arc<Slot>)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stall = serving.settings.idle_timeout;
    let bounded = BoundedStream::new(stream, stall, serving.closing.clone());
    let io = TokioIo::new(bounded.with_slot(Arc::clone(&slot)));
    let shutdown = Shutdown(serving.closing.clone());
    let app = serving.app.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(|body| bounded_body(body, stall));
        request.extensions_mut().insert(shutdown.clone());
        let used = slot.in_use();
        request.extensions_mut().insert(used.clone());
        request.extensions_mut().insert(connected);
        // No `poll_ready`: a router is always ready.
        let answer = app.clone().call(request);
        async move { answer.await.map(|answer| answer.map(|body| HeldBody::new(body, used))) }
    });
    let connection = serving.http.serve_connection(io, service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = serving.closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                outcome = connection.as_mut() => outcome,
                () = serving.cut_off.cancelled() => return,
            }
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(error = &error as &dyn std::error::Error, "a connection ended early");
    }
}

/// A request body that fails if nothing arrives for `stall`.
fn bounded_body(body: Incoming, stall: Duration) -> Body {
    if body.is_end_stream() { Body::empty() } else { Body::new(TimeoutBody::new(stall, body)) }
}

#[cfg(test)]
mod tests {
    use axum::extract::Request as AxumRequest;
    use axum::routing::{get, post};
    use futures::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    struct Running {
        address: std::net::SocketAddr,
        stop: oneshot::Sender<()>,
        task: JoinHandle<Result<(), ServerError>>,
    }

    async fn start(app: Router, settings: ServerSettings) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            serve(vec![listener], app, &settings, async {
                let _ = stopped.await;
            })
            .await
        });
        Running { address, stop, task }
    }

    async fn ask(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Sends a request on an in-process stream and reads the response to its end. For tests with a paused clock,
    /// which does not work with real sockets.
    async fn ask_without_network(app: Router, settings: &ServerSettings, request: &str) -> String {
        let serving = Serving::new(app, settings).unwrap();
        let slot = serving.admission.admit([127, 0, 0, 1].into(), serving.tasks.token()).unwrap();
        let connected = ConnectionInfo { peer: None, is_tls: false };
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let served = tokio::spawn(async move { serve_connection(&serving, ours, connected, slot).await });
        theirs.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        theirs.read_to_string(&mut answer).await.unwrap();
        drop(theirs);
        served.await.unwrap();
        answer
    }

    #[tokio::test]
    async fn server_responds_and_shuts_down() {
        let running =
            start(Router::new().route("/", get(|| async { "hello" })), ServerSettings::default()).await;
        let answer =
            ask(running.address, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
        running.stop.send(()).unwrap();
        running.task.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_request_head_times_out() {
        let request = "GET / HTTP/1.1\r\nHost: loc";
        let answer = ask_without_network(Router::new(), &ServerSettings::default(), request).await;
        assert!(!answer.contains(" 200 "), "{answer}");
    }

    #[tokio::test]
    async fn too_large_request_head_is_rejected() {
        let running = start(Router::new(), ServerSettings::default()).await;
        let request = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n", "x".repeat(40_000));
        let answer = ask(running.address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_upload_is_aborted() {
        let read = |request: AxumRequest| async move {
            let mut pieces = request.into_body().into_data_stream();
            let (first, second) = (pieces.next().await, pieces.next().await);
            format!(
                "{:?}",
                [first.is_some_and(|piece| piece.is_ok()), second.is_some_and(|piece| piece.is_ok())]
            )
        };
        let app = Router::new().route("/", post(read));
        let request = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc";
        let answer = ask_without_network(app, &ServerSettings::default(), request).await;
        assert!(answer.ends_with("[true, false]"), "{answer}");
    }

    #[tokio::test]
    async fn event_streams_end_at_shutdown() {
        let endless = |shutdown: Shutdown| async move {
            let until = shutdown.0.clone().cancelled_owned();
            let first =
                futures::stream::once(async { Ok::<_, std::io::Error>(bytes::Bytes::from_static(b"first")) });
            Body::from_stream(first.chain(futures::stream::pending()).take_until(until))
        };
        let settings =
            ServerSettings { shutdown_grace: Duration::from_secs(3600), ..ServerSettings::default() };
        let running = start(Router::new().route("/", get(endless)), settings).await;
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"first\r\n") {
            assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
        }
        running.stop.send(()).unwrap();
        stream.read_to_end(&mut seen).await.unwrap();
        running.task.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn connections_are_dropped_after_the_grace_period() {
        let (entered, waiting) = tokio::sync::watch::channel(());
        let never = move || {
            entered.send_replace(());
            std::future::pending::<()>()
        };
        let settings =
            ServerSettings { shutdown_grace: Duration::from_millis(20), ..ServerSettings::default() };
        let running = start(Router::new().route("/", get(never)), settings).await;
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        waiting.clone().changed().await.unwrap();
        running.stop.send(()).unwrap();
        running.task.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn connections_above_the_limit_wait() {
        let app = Router::new().route("/", get(|| async { "hello" }));
        let running = start(app, ServerSettings { max_connections: 1, ..ServerSettings::default() }).await;
        let first = TcpStream::connect(running.address).await.unwrap();
        let address = running.address;
        let second = tokio::spawn(async move {
            ask(address, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await
        });
        drop(first);
        assert!(second.await.unwrap().ends_with("hello"));
    }

    #[tokio::test]
    async fn half_open_connections_do_not_block_others() {
        let app = Router::new().route("/", get(|| async { "hello" }));
        // No timeout applies here.
        let never = Duration::from_secs(3600);
        let settings =
            ServerSettings { max_connections: 8, header_timeout: never, ..ServerSettings::default() };
        let running = start(app, settings).await;
        let mut flood = Vec::new();
        for number in 0..20 {
            let mut stream = TcpStream::connect(running.address).await.unwrap();
            let sent: &[u8] = if number % 2 == 0 { b"GET / HTTP/1.1\r\nHost: loc" } else { b"" };
            // The oldest ones may be closed by now.
            let _ = stream.write_all(sent).await;
            flood.push(stream);
            let request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            assert!(ask(running.address, request).await.ends_with("hello"), "{number}");
        }
        drop(flood);
        running.stop.send(()).unwrap();
        running.task.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_tls_handshake_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
        std::fs::write(&chain, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let tls = Certificate::load(&chain, &key).unwrap().acceptor().unwrap();
        // Announces a handshake record that never arrives.
        for sent in [&b""[..], b"\x16\x03\x01\x02\x00"] {
            let (ours, mut theirs) = tokio::io::duplex(4096);
            theirs.write_all(sent).await.unwrap();
            assert!(tls_handshake(&tls, ours, ServerSettings::default().handshake_timeout).await.is_none());
            assert_eq!(theirs.read(&mut [0; 64]).await.unwrap(), 0, "it is closed");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connection_is_closed() {
        let answer = ask_without_network(Router::new(), &ServerSettings::default(), "").await;
        assert_eq!(answer, "");
    }
}
