//! Connections that can be cut from inside.
//!
//! A handler that calls [`Cut::now`] and then returns has its answer replaced by a reset: the first write of a cut
//! connection fails before a byte has left, and the server drops the socket. So the client sees a connection that
//! ended without a status, which is what a lost answer looks like.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// Cuts one connection.
#[derive(Debug, Clone, Default)]
pub struct Cut(Arc<AtomicBool>);

impl Cut {
    /// From now on nothing is written to the connection any more.
    pub fn now(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_made(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A listener whose connections can be cut.
#[derive(Debug)]
pub struct CuttableListener(pub TcpListener);

/// One accepted connection.
#[derive(Debug)]
pub struct CuttableStream {
    tcp: TcpStream,
    cut: Cut,
}

impl Listener for CuttableListener {
    type Io = CuttableStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (tcp, peer) = Listener::accept(&mut self.0).await;
        // Answers are small; held back by Nagle they would cost 40 ms each. Without it they are slow but right.
        let _ = tcp.set_nodelay(true);
        (CuttableStream { tcp, cut: Cut::default() }, peer)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

impl Connected<IncomingStream<'_, CuttableListener>> for Cut {
    fn connect_info(stream: IncomingStream<'_, CuttableListener>) -> Self {
        stream.io().cut.clone()
    }
}

impl CuttableStream {
    fn check(&self) -> io::Result<()> {
        if !self.cut.is_made() {
            return Ok(());
        }
        // A reset instead of an orderly end; where that cannot be had, an end without an answer says the same.
        let _ = self.tcp.set_zero_linger();
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl AsyncRead for CuttableStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for CuttableStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
