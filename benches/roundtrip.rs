//! Round trips over the socket: acquire and release in turn with the journal on, against Redis
//! `SET` over its Unix socket, with the same load generator, alternating in one run. Also against a
//! lock in Redis, on a server that writes its log, like canal.
//!
//! `cargo bench --bench roundtrip`. Needs `redis-server` for the comparison; without it only canal
//! is measured. `CANAL=PATH` measures another build of canal, and `SECONDS=N` takes longer.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

mod common;

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::load::{Canal, Dialect, Load};
use common::{Daemon, connects, installed, median, row, wait_until};

/// Appends a command in the format of Redis.
fn redis_command(words: &[&str], to: &mut Vec<u8>) {
    to.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        to.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}

struct Redis;

impl Dialect for Redis {
    fn request(&self, connection: usize, n: usize, to: &mut Vec<u8>) {
        redis_command(&["SET", &format!("bench/{connection}"), &format!("{n:016x}")], to);
    }

    fn end(&self) -> u8 {
        b'\n'
    }

    fn failure(&self) -> &'static [u8] {
        b"-"
    }
}

/// A lock as the Redis manual describes it: `SET NX PX`, and a script, here its digest, that
/// deletes the key if it is still ours.
struct RedisLock(String);

impl RedisLock {
    const RELEASE: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then \
                           return redis.call('del',KEYS[1]) else return redis.error_reply('NOT OURS') end";

    fn load(socket: &Path) -> io::Result<Self> {
        let mut command = Vec::new();
        redis_command(&["SCRIPT", "LOAD", Self::RELEASE], &mut command);
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(&command)?;
        let mut reply = [0; 128];
        let read = stream.read(&mut reply)?;
        let reply = String::from_utf8_lossy(&reply[..read]);
        let digest = reply.split("\r\n").nth(1).filter(|digest| digest.len() == 40);
        Ok(Self(digest.unwrap_or_else(|| panic!("no digest: {reply}")).to_owned()))
    }
}

impl Dialect for RedisLock {
    fn request(&self, connection: usize, n: usize, to: &mut Vec<u8>) {
        let key = format!("lock/{connection}");
        // The release passes the value of the preceding acquire.
        let value = format!("{:016x}", n - n % 2);
        if n.is_multiple_of(2) {
            redis_command(&["SET", &key, &value, "NX", "PX", "30000"], to);
        } else {
            redis_command(&["EVALSHA", &self.0, "1", &key, &value], to);
        }
    }

    fn end(&self) -> u8 {
        b'\n'
    }

    fn failure(&self) -> &'static [u8] {
        // This also matches the reply for a lock that was not granted: `$-1`.
        b"-"
    }
}

/// A Redis server in a folder.
struct RedisServer(Child);

impl RedisServer {
    /// `log`: whether it appends changes to a file, without waiting for the disk.
    fn start(socket: &Path, log: bool) -> io::Result<Self> {
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", if log { "yes" } else { "no" }])
            .args(["--appendfsync", "no", "--unixsocket"])
            .arg(socket)
            .current_dir(socket.parent().unwrap_or(Path::new(".")))
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

/// The two Redis servers that canal is compared with.
struct Peers {
    _servers: [RedisServer; 2],
    plain: PathBuf,
    logging: PathBuf,
    lock: RedisLock,
}

impl Peers {
    fn start(folder: &Path) -> io::Result<Self> {
        let (plain, logging) = (folder.join("redis.sock"), folder.join("redis-log.sock"));
        let servers = [RedisServer::start(&plain, false)?, RedisServer::start(&logging, true)?];
        let lock = RedisLock::load(&logging)?;
        Ok(Self { _servers: servers, plain, logging, lock })
    }

    fn loads(&self, connections: usize) -> io::Result<[Load<'_>; 2]> {
        let plain = Load::new(&Redis, &self.plain, connections)?;
        Ok([plain, Load::new(&self.lock, &self.logging, connections)?])
    }
}

fn main() -> io::Result<()> {
    let seconds = std::env::var("SECONDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2.0);
    let daemon = Daemon::start()?;
    let redis =
        installed("redis-server").then(|| Peers::start(daemon.folder.path())).transpose()?;
    if redis.is_none() {
        println!("(redis-server is not installed)");
    }
    println!("requests per second, acquire and release in turn");
    for (connections, goal) in [(1, "≥ 1.0"), (50, "")] {
        let mut loads = vec![Load::new(&Canal, &daemon.socket(), connections)?];
        if let Some(redis) = &redis {
            loads.extend(redis.loads(connections)?);
        }
        let slice = Duration::from_secs_f64(seconds / 10.0);
        let mut rates = vec![Vec::new(); loads.len()];
        for _ in 0..10 {
            for (load, rates) in loads.iter_mut().zip(&mut rates) {
                rates.push(load.rate(slice)?);
            }
        }
        // Every acquire needs its release before the next load.
        for load in loads.iter_mut().filter(|load| load.next % 2 == 1) {
            load.round()?;
        }
        let rates: Vec<f64> = rates.into_iter().map(median).collect();
        tell(&format!("{connections} connections"), &rates, goal);
    }
    Ok(())
}

/// Prints the rows of one load: canal's rate, and the rates to compare.
fn tell(load: &str, rates: &[f64], goal: &str) {
    let what = format!("requests per second, {load}");
    let [ours, peers @ ..] = rates else { return };
    let ours_shown = format!("{ours:.0}");
    if peers.is_empty() {
        row(&what, &ours_shown, "redis-server is NOT INSTALLED", "-", goal);
    }
    for (theirs, (name, goal)) in peers.iter().zip([("SET", goal), ("lock, log on", "")]) {
        let theirs_shown = format!("{theirs:.0} (Redis {name})");
        row(&what, &ours_shown, &theirs_shown, &format!("{:.2}", ours / theirs), goal);
    }
}
