//! Round trips over the socket: acquire and release in turn, journal on, against Redis `SET` over
//! its Unix socket, with the same load generator, alternating in one run.
//!
//! `cargo bench --bench roundtrip`. Needs `redis-server` for the comparison; without it only canal
//! is measured. `CANAL=PATH` measures another build of canal, `SECONDS=N` takes longer.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

mod common;

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memchr::memmem::Finder;

use common::{Daemon, connects, installed, row, wait_until};

/// How requests look, and where one reply ends.
trait Dialect {
    /// Appends request number `n` of connection `connection`.
    fn request(&self, connection: usize, n: usize, to: &mut Vec<u8>);
    /// The byte that ends a reply.
    fn end(&self) -> u8;
    /// What no reply may contain.
    fn failure(&self) -> &'static [u8];
}

struct Canal;

impl Dialect for Canal {
    fn request(&self, connection: usize, n: usize, to: &mut Vec<u8>) {
        let text = if n.is_multiple_of(2) {
            format!(
                r#"{{"method":"io.canal.Lock.Acquire","parameters":{{"tag":"{connection:016x}{n:016x}","items":[{{"key":"bench/{connection}","per":1,"buckets":1}}],"wait_ms":0,"command":"bench"}}}}"#
            )
        } else {
            format!(
                r#"{{"method":"io.canal.Lock.Release","parameters":{{"key":"bench/{connection}"}}}}"#
            )
        };
        to.extend_from_slice(text.as_bytes());
        to.push(0);
    }

    fn end(&self) -> u8 {
        0
    }

    fn failure(&self) -> &'static [u8] {
        b"\"error\""
    }
}

struct Redis;

impl Dialect for Redis {
    fn request(&self, connection: usize, n: usize, to: &mut Vec<u8>) {
        let key = format!("bench/{connection}");
        let value = format!("{n:016x}");
        let text = format!(
            "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}\r\n",
            key.len(),
            value.len()
        );
        to.extend_from_slice(text.as_bytes());
    }

    fn end(&self) -> u8 {
        b'\n'
    }

    fn failure(&self) -> &'static [u8] {
        b"-"
    }
}

/// Some connections, each with the number of its next request.
struct Load<'d> {
    dialect: &'d dyn Dialect,
    streams: Vec<UnixStream>,
    next: usize,
    depth: usize,
}

impl<'d> Load<'d> {
    fn new(
        dialect: &'d dyn Dialect,
        socket: &Path,
        connections: usize,
        depth: usize,
    ) -> io::Result<Self> {
        let connect = |_| UnixStream::connect(socket);
        let streams = (0..connections).map(connect).collect::<io::Result<_>>()?;
        Ok(Self { dialect, streams, next: 0, depth })
    }

    /// Sends `depth` requests on every connection, then takes all replies; how many requests.
    fn round(&mut self) -> io::Result<usize> {
        let mut request = Vec::new();
        for (connection, stream) in self.streams.iter_mut().enumerate() {
            request.clear();
            for n in self.next..self.next + self.depth {
                self.dialect.request(connection, n, &mut request);
            }
            stream.write_all(&request)?;
        }
        self.next += self.depth;
        let failure = Finder::new(self.dialect.failure());
        for stream in &mut self.streams {
            let mut left = self.depth;
            let mut reply = [0; 16 * 1024];
            while left > 0 {
                let read = stream.read(&mut reply)?;
                assert!(read > 0, "the connection was closed");
                let piece = &reply[..read];
                // A reply of canal's is a hundred times as long as one of Redis': looking through it must
                // not be what is measured.
                let failed = failure.find(piece).is_some();
                assert!(!failed, "{}", String::from_utf8_lossy(piece));
                left -= memchr::memchr_iter(self.dialect.end(), piece).count();
            }
        }
        Ok(self.streams.len() * self.depth)
    }

    /// Requests per second over a slice of time.
    fn rate(&mut self, slice: Duration) -> io::Result<f64> {
        let begun = Instant::now();
        let mut requests = 0;
        while begun.elapsed() < slice {
            requests += self.round()?;
        }
        Ok(requests as f64 / begun.elapsed().as_secs_f64())
    }
}

/// A Redis server in a folder, without persistence.
struct RedisServer(Child);

impl RedisServer {
    fn start(socket: &Path) -> io::Result<Self> {
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        wait_until("redis listens", || connects(socket));
        Ok(Self(child))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() -> io::Result<()> {
    let seconds = std::env::var("SECONDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2.0);
    let daemon = Daemon::start()?;
    let socket = daemon.folder.path().join("redis.sock");
    let redis = if installed("redis-server") { Some(RedisServer::start(&socket)?) } else { None };
    if redis.is_none() {
        println!("(redis-server is not installed)");
    }
    println!("requests per second, acquire and release in turn");
    for (connections, depth) in [(1, 1), (50, 1), (50, 32)] {
        let mut canal = Load::new(&Canal, &daemon.socket(), connections, depth)?;
        let mut peer = match &redis {
            Some(_) => Some(Load::new(&Redis, &socket, connections, depth)?),
            None => None,
        };
        let slice = Duration::from_secs_f64(seconds / 10.0);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            ours.push(canal.rate(slice)?);
            if let Some(peer) = &mut peer {
                theirs.push(peer.rate(slice)?);
            }
        }
        // Every acquire has its release, for the next load.
        if canal.next % 2 == 1 {
            canal.depth = 1;
            canal.round()?;
        }
        let ours = median(ours);
        let what = format!("requests per second, {connections} connections x {depth} in flight");
        let (theirs, ratio) = if theirs.is_empty() {
            ("redis-server is NOT INSTALLED".to_owned(), "-".to_owned())
        } else {
            let theirs = median(theirs);
            (format!("{theirs:.0} (Redis SET)"), format!("{:.2}", ours / theirs))
        };
        row(&what, &format!("{ours:.0}"), &theirs, &ratio, "≥ 1.0");
    }
    Ok(())
}
