//! A load of requests over sockets: each connection sends its next request when all have their
//! reply.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use memchr::memmem::Finder;

/// The format of requests, and the end of a reply.
pub(crate) trait Dialect {
    /// Appends request number `n` of connection `connection`.
    fn request(&self, connection: usize, n: usize, to: &mut Vec<u8>);
    /// The byte that ends a reply.
    fn end(&self) -> u8;
    /// The text that no reply may contain.
    fn failure(&self) -> &'static [u8];
}

/// canal: acquire and release in turn, each connection with its own key.
pub(crate) struct Canal;

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

/// Several connections, each with the number of its next request.
pub(crate) struct Load<'d> {
    dialect: &'d dyn Dialect,
    streams: Vec<UnixStream>,
    pub(crate) next: usize,
}

impl<'d> Load<'d> {
    pub(crate) fn new(
        dialect: &'d dyn Dialect,
        socket: &Path,
        connections: usize,
    ) -> io::Result<Self> {
        let connect = |_| UnixStream::connect(socket);
        let streams = (0..connections).map(connect).collect::<io::Result<_>>()?;
        Ok(Self { dialect, streams, next: 0 })
    }

    /// Sends a request on every connection, then reads all replies. Returns the number of requests.
    pub(crate) fn round(&mut self) -> io::Result<usize> {
        let mut request = Vec::new();
        for (connection, stream) in self.streams.iter_mut().enumerate() {
            request.clear();
            self.dialect.request(connection, self.next, &mut request);
            stream.write_all(&request)?;
        }
        self.next += 1;
        let failure = Finder::new(self.dialect.failure());
        for stream in &mut self.streams {
            let mut left = 1;
            let mut reply = [0; 16 * 1024];
            while left > 0 {
                let read = stream.read(&mut reply)?;
                assert!(read > 0, "the connection was closed");
                let piece = &reply[..read];
                // A reply of canal is a hundred times longer than one of Redis. Searching it must
                // not affect the measurement.
                let failed = failure.find(piece).is_some();
                assert!(!failed, "{}", String::from_utf8_lossy(piece));
                left -= memchr::memchr_iter(self.dialect.end(), piece).count();
            }
        }
        Ok(self.streams.len())
    }

    /// The rate over a slice of time, in requests per second.
    pub(crate) fn rate(&mut self, slice: Duration) -> io::Result<f64> {
        let begun = Instant::now();
        let mut requests = 0;
        while begun.elapsed() < slice {
            requests += self.round()?;
        }
        Ok(requests as f64 / begun.elapsed().as_secs_f64())
    }
}
