//! A proxy before a server of somebody else's, where the faults happen that such a server does not commit.
//!
//! It forwards each request on a connection of its own. What it changes is one thing: localstripe refuses the filter
//! `created[gte]` of Stripe's lists, so that is taken off; in a test nothing is older anyway.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paylatchd::simulate::{Fault, Op};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How long [`Fault::Slow`] waits.
pub const SLOW: Duration = Duration::from_secs(4);

/// The next request of this kind meets this fault.
type Rule = (Op, Fault, Option<u64>);

/// The running proxy; it ends with this value.
pub struct FaultProxy {
    address: SocketAddr,
    rules: Arc<Mutex<Vec<Rule>>>,
    heard: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FaultProxy {
    /// Starts one before `upstream`.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind to loopback");
        let address = listener.local_addr().expect("its address");
        let (rules, heard) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (their_rules, their_heard) = (Arc::clone(&rules), Arc::clone(&heard));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, upstream, Arc::clone(&their_rules), Arc::clone(&their_heard)));
            }
        });
        Self { address, rules, heard, task }
    }

    /// Where it listens.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next request of kind `op` meets `fault`.
    pub fn provoke(&self, op: Op, fault: Fault, arg: Option<u64>) {
        self.rules.lock().expect("nobody panics here").push((op, fault, arg));
    }

    /// The requests so far, as they came.
    pub fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("nobody panics here").clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    upstream: SocketAddr,
    rules: Arc<Mutex<Vec<Rule>>>,
    heard: Arc<Mutex<Vec<String>>>,
) {
    let Some(request) = read_request(&mut stream).await else { return };
    let op = op_of(&request);
    heard.lock().expect("nobody panics here").push(request.clone());
    let rule = {
        let mut rules = rules.lock().expect("nobody panics here");
        let place = rules.iter().position(|(wanted, ..)| Some(*wanted) == op);
        place.map(|place| rules.remove(place))
    };
    let (fault, arg) = rule.map_or((Fault::None, None), |(_, fault, arg)| (fault, arg));
    // The client may have given up; the effect takes place all the same.
    drop(answer(&mut stream, upstream, &request, fault, arg).await);
}

async fn answer(
    stream: &mut TcpStream,
    upstream: SocketAddr,
    request: &str,
    fault: Fault,
    arg: Option<u64>,
) -> std::io::Result<()> {
    match fault {
        Fault::DropBefore => return Ok(()),
        Fault::ErrorBefore => return stream.write_all(status(500).as_bytes()).await,
        Fault::TooMany => return stream.write_all(status(429).as_bytes()).await,
        Fault::Conflict => return stream.write_all(status(409).as_bytes()).await,
        Fault::Status => return stream.write_all(status(arg.unwrap_or(418)).as_bytes()).await,
        Fault::Slow => tokio::time::sleep(SLOW).await,
        _ => {}
    }
    let whole = forward(upstream, request).await?;
    let (head, body) = whole.split_once("\r\n\r\n").unwrap_or((&whole, ""));
    match fault {
        Fault::None | Fault::Slow => stream.write_all(whole.as_bytes()).await,
        Fault::DropAfter => Ok(()),
        Fault::ErrorAfter => stream.write_all(status(500).as_bytes()).await,
        Fault::Truncate => stream.write_all(format!("{head}\r\n\r\n{}", &body[..body.len() / 2]).as_bytes()).await,
        Fault::Garbage => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\ngarbage").await,
        Fault::Oversized => {
            let padded = format!("{body}{}", " ".repeat(4 * 1024 * 1024));
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{padded}", padded.len());
            stream.write_all(answer.as_bytes()).await
        }
        Fault::Trickle => {
            stream.write_all(format!("{head}\r\n\r\n").as_bytes()).await?;
            for byte in body.bytes() {
                tokio::time::sleep(Duration::from_millis(arg.unwrap_or(50))).await;
                stream.write_all(&[byte]).await?;
            }
            Ok(())
        }
        other => panic!("the proxy cannot commit {other:?}"),
    }
}

fn status(status: u64) -> String {
    format!("HTTP/1.1 {status} Said\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

/// The answer of the real server, as text.
async fn forward(upstream: SocketAddr, request: &str) -> std::io::Result<String> {
    let (line, rest) = request.split_once("\r\n").unwrap_or((request, ""));
    let line = without_created(line);
    let mut stream = TcpStream::connect(upstream).await?;
    stream.write_all(format!("{line}\r\nconnection: close\r\n{rest}").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn without_created(line: &str) -> String {
    let Some((before, query)) = line.split_once('?') else { return line.to_owned() };
    let (query, after) = query.split_once(' ').unwrap_or((query, ""));
    let kept: Vec<_> = query.split('&').filter(|field| !field.starts_with("created")).collect();
    format!("{before}?{} {after}", kept.join("&"))
}

/// What a request to Stripe is for; none of these is the intent that only uses up a key.
fn op_of(request: &str) -> Option<Op> {
    let (method, rest) = request.split_once(' ')?;
    let (target, body) = (rest.split_once(' ')?.0, request.split_once("\r\n\r\n")?.1);
    let path = target.split('?').next()?;
    match method {
        "POST" if path.ends_with("/cancel") => Some(Op::CloseCharge),
        "POST" if path == "/v1/payment_intents" && body.contains("confirm=true") => Some(Op::Charge),
        "POST" if path == "/v1/refunds" => Some(Op::Refund),
        "GET" if path.starts_with("/v1/payment_intents") => Some(Op::QueryCharge),
        "GET" if path.starts_with("/v1/refunds") => Some(Op::QueryRefund),
        _ => None,
    }
}

/// One request, as text; none once the client has closed.
pub async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut text = String::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(text);
            }
        }
        match stream.read(&mut chunk).await {
            Ok(read @ 1..) => text.push_str(&String::from_utf8_lossy(&chunk[..read])),
            _ => return None,
        }
    }
}
