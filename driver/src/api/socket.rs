//! Connections: how many, how slow they may be, and how they end.
//!
//! Invariants: nobody holds a connection without making progress (a head has its time, a body has its, and so has
//! taking an answer); after the wish to stop new connections are taken for `unready` still, so that whoever balances
//! load can turn away first, and then requests under way have `grace`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::config;

/// The pause after a connection could not be accepted, for want of file handles mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How connections are served.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    connections: usize,
    header_timeout: Duration,
    write_timeout: Duration,
    header_bytes: usize,
    unready: Duration,
    grace: Duration,
}

impl Limits {
    /// As configured; `grace_ms` is how long requests under way may take at the end.
    pub const fn new(api: &config::Api, grace_ms: u64) -> Self {
        Self {
            connections: api.max_connections,
            header_timeout: Duration::from_millis(api.header_timeout_ms),
            write_timeout: Duration::from_millis(api.request_timeout_ms),
            header_bytes: api.max_header_bytes,
            unready: Duration::from_millis(api.unready_ms),
            grace: Duration::from_millis(grace_ms),
        }
    }
}

/// Serves `router` until some time after `shutdown`; returns once the last request has been answered or given up, and
/// says when the grace ends.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, shutdown: CancellationToken) -> Instant {
    let seats = Arc::new(Semaphore::new(limits.connections));
    let connections = TaskTracker::new();
    let (closing, abort) = (CancellationToken::new(), CancellationToken::new());
    let accept = async {
        loop {
            let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let serving = connection(stream, router.clone(), limits, closing.clone(), abort.clone());
                    connections.spawn(async move {
                        serving.await;
                        drop(seat);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = async { shutdown.cancelled().await; tokio::time::sleep(limits.unready).await } => {}
    }
    drop(listener);
    let deadline = clock::instant() + limits.grace;
    closing.cancel();
    connections.close();
    if tokio::time::timeout(limits.grace, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), "the grace is over: requests under way are given up");
        abort.cancel();
        connections.wait().await;
    }
    deadline
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    closing: CancellationToken,
    abort: CancellationToken,
) {
    // Answers are small and whole: waiting for more to send only costs time.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(Patient::new(stream, limits.write_timeout));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).max_buf_size(limits.header_bytes);
    let served = http.serve_connection(io, TowerToHyperService::new(router));
    tokio::pin!(served);
    // How a client leaves is its own affair; what it asked for goes on where it must.
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = closing.cancelled() => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                ended = served => ended,
                () = abort.cancelled() => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// A stream that gives up on a peer which takes nothing of what is written to it.
struct Patient<S> {
    stream: S,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    const fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, waiting: None }
    }

    /// What a write came to, unless nothing has moved for too long.
    fn watched<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watched(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watched(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut ours = Patient::new(ours, Duration::from_secs(5));
        ours.write_all(b"abcd").await.unwrap();
        assert_eq!(ours.write_all(b"e").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        // One that reads is served on.
        let mut four = [0; 4];
        theirs.read_exact(&mut four).await.unwrap();
        ours.write_all(b"efgh").await.unwrap();
    }
}
