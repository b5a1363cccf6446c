//! HTTP for collectors: the socket to which they connect, and the one request and answer of a
//! connection. Only `GET /metrics` is served.
//!
//! Invariants: a connection ends at its time, whatever its peer does. canal removes a socket in the
//! file system only if no process listens on it, and never removes anything else at its path.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::sections_and_defaults::Listen;
use crate::metrics::open_metrics::CONTENT_TYPE;

/// The most bytes that are read and discarded from a peer that sends more than its request. If the
/// connection closed immediately, the kernel would discard the answer.
const LEFT_BYTES_MAX: u64 = 256 * 1024;

/// The connection of a collector.
pub(super) struct Peer<'a> {
    pub stream: &'a Socket,
    /// From this time on, nothing more is read or written.
    pub until: Instant,
}

impl Peer<'_> {
    fn time_left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        // The kernel would take a time-out below a microsecond for none.
        if left < Duration::from_millis(1) {
            Err(ErrorKind::TimedOut.into())
        } else {
            Ok(Some(left))
        }
    }

    /// Reads a request. `None` if the peer goes away or sends only a part of it.
    pub(super) fn request(&mut self, is_port: bool) -> Option<Status> {
        let mut bytes = Vec::new();
        let mut piece = [0; 1024];
        loop {
            let length = self.read(&mut piece).ok().filter(|length| *length > 0)?;
            bytes.extend(&piece[..length]);
            let status = parse(&bytes, is_port);
            if status.is_some() {
                return status;
            }
        }
    }

    /// Sends the figures, or what is wrong with the request.
    pub(super) fn answer(&mut self, status: Status, figures: &str) -> io::Result<()> {
        let Status(line, mistake) = status;
        let (kind, body) = match status {
            Status::OK => (CONTENT_TYPE, figures),
            _ => ("text/plain; charset=utf-8", mistake),
        };
        let allow = if status == Status::WRONG_METHOD { "Allow: GET\r\n" } else { "" };
        let answer = format!(
            "HTTP/1.1 {line}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}\
             Connection: close\r\n\r\n{body}",
            body.len()
        );
        self.write_all(answer.as_bytes())?;
        self.stream.shutdown(Shutdown::Write)
    }

    /// Discards what the peer sends after its request.
    pub(super) fn discard_rest(&mut self) -> io::Result<()> {
        io::copy(&mut Read::take(self, LEFT_BYTES_MAX), &mut io::sink()).map(drop)
    }
}

impl Read for Peer<'_> {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.time_left()?)?;
        self.stream.read(piece)
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.time_left()?)?;
        self.stream.write(piece)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// All users can read a loopback port, so all may read this socket. Its directory can restrict
/// that.
const MODE: u32 = 0o666;

/// The socket that serves metrics.
#[derive(Debug)]
pub(crate) struct Listener {
    pub socket: Socket,
    /// The path of a socket in the file system; `None` for a port.
    pub path: Option<PathBuf>,
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// The address is in use, or this daemon may not use it.
    pub(crate) fn bind(listen: &Listen) -> io::Result<Self> {
        let (socket, path) = match listen {
            Listen::Tcp(address) => (Socket::from(TcpListener::bind(address)?), None),
            Listen::Unix(path) => {
                let listener = match UnixListener::bind(path) {
                    Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(path)? => {
                        fs::remove_file(path)?;
                        UnixListener::bind(path)?
                    }
                    bound => bound?,
                };
                fs::set_permissions(path, Permissions::from_mode(MODE))?;
                (Socket::from(OwnedFd::from(listener)), Some(path.clone()))
            }
        };
        Ok(Self { socket, path })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether there is a socket at a path on which no process listens any longer.
fn is_left(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    // A full backlog must not block the thread.
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    let connected = probe.connect(&SockAddr::unix(path)?);
    Ok(connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused))
}

/// The maximum length of a request in bytes: its first line and its headers.
pub(crate) const HEAD_BYTES_MAX: usize = 8 * 1024;

/// The answer to a request: its status line, and a text that explains a mistake to a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(&'static str, &'static str);

impl Status {
    pub(super) const OK: Self = Self("200 OK", "");
    const BAD_REQUEST: Self = Self("400 Bad Request", "this is not an HTTP 1.1 request\n");
    const FORBIDDEN: Self =
        Self("403 Forbidden", "the Host of the request is not a loopback address\n");
    const NOT_FOUND: Self = Self("404 Not Found", "the metrics are at /metrics\n");
    const WRONG_METHOD: Self = Self("405 Method Not Allowed", "read the metrics with GET\n");
    const HEAD_TOO_LARGE: Self =
        Self("431 Request Header Fields Too Large", "the request is longer than 8 KiB\n");
    pub(super) const UNAVAILABLE: Self = Self("503 Service Unavailable", "the daemon is busy\n");
    const WRONG_VERSION: Self = Self("505 HTTP Version Not Supported", "this is HTTP 1.1\n");
}

/// The most headers of a request. Collectors send about ten.
const HEADERS_MAX: usize = 64;

/// Parses the part of a request that has arrived; `None` if more has to arrive.
///
/// A page in a browser can make the browser connect to a loopback port under a name that the page
/// controls. So the name is checked if the request arrived on a port.
pub(crate) fn parse(bytes: &[u8], is_port: bool) -> Option<Status> {
    // The parser would skip empty lines before a request.
    if matches!(bytes, [b'\r' | b'\n', ..]) {
        return Some(Status::BAD_REQUEST);
    }
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() <= HEAD_BYTES_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => usize::MAX,
        Err(httparse::Error::Version) => return Some(Status::WRONG_VERSION),
        Err(_) => return Some(Status::BAD_REQUEST),
    };
    if length > HEAD_BYTES_MAX {
        return Some(Status::HEAD_TOO_LARGE);
    }
    if request.method != Some("GET") {
        return Some(Status::WRONG_METHOD);
    }
    if request.path.and_then(|target| target.split('?').next()) != Some("/metrics") {
        return Some(Status::NOT_FOUND);
    }
    let mut hosts = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case("host"));
    Some(match (is_port, hosts.next(), hosts.next()) {
        (_, _, Some(_)) | (true, None, None) => Status::BAD_REQUEST,
        (true, Some(host), None) if !is_loopback(host.value) => Status::FORBIDDEN,
        _ => Status::OK,
    })
}

/// Whether a `Host` names this machine, with any port: a tunnel may have another port.
fn is_loopback(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host).map(str::trim) else { return false };
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, rest)) => (name, rest),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let has_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    let is_local = name.eq_ignore_ascii_case("localhost")
        || name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    has_port && is_local
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;
    use crate::config::sections_and_defaults::Listen;

    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// A connection, and the daemon's side of it.
    fn connected() -> (TcpStream, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (peer, Socket::from(listener.accept().unwrap().0))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn read_all(stream: &mut TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn each_byte_may_come_alone() {
        let (mut peer, stream) = connected();
        peer.set_nodelay(true).unwrap();
        let served = std::thread::spawn(move || {
            let mut served = Peer { stream: &stream, until: later() };
            let status = served.request(true).unwrap();
            served.answer(status, "figures\n").unwrap();
            served.discard_rest().unwrap();
        });
        for byte in REQUEST {
            assert!(!served.is_finished());
            peer.write_all(&[*byte]).unwrap();
        }
        let text = read_all(&mut peer);
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nfigures\n"),
            "{text}"
        );
        drop(peer);
        served.join().unwrap();
    }

    #[test]
    fn a_peer_that_has_said_all_is_answered_and_one_that_is_gone_is_forgotten() {
        let (mut peer, stream) = connected();
        peer.write_all(REQUEST).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let mut served = Peer { stream: &stream, until: later() };
        assert_eq!(served.request(true), Some(Status::OK));
        served.answer(Status::OK, "figures\n").unwrap();
        assert!(read_all(&mut peer).ends_with("figures\n"));
        let (silent, stream) = connected();
        drop(silent);
        assert_eq!(Peer { stream: &stream, until: later() }.request(true), None);
    }

    #[test]
    fn a_slow_peer_is_closed_when_its_time_is_over() {
        let (mut peer, stream) = connected();
        peer.write_all(b"GET /met").unwrap();
        let until = Instant::now() + Duration::from_millis(20);
        let mut served = Peer { stream: &stream, until };
        assert_eq!(served.request(true), None);
        assert!(Instant::now() + Duration::from_millis(1) >= until);
        // A peer that reads nothing does not keep its connection either.
        let much = "x".repeat(64 << 20);
        served.until = Instant::now() + Duration::from_millis(20);
        assert!(served.answer(Status::OK, &much).is_err());
        drop(stream);
        let _ = peer.read_to_end(&mut Vec::new());
    }

    #[test]
    fn a_daemon_that_is_busy_is_an_answer_too() {
        let (mut peer, stream) = connected();
        Peer { stream: &stream, until: later() }.answer(Status::UNAVAILABLE, "").unwrap();
        assert!(read_all(&mut peer).starts_with("HTTP/1.1 503 "));
    }

    #[test]
    fn a_request_that_is_too_long_is_answered_and_the_rest_thrown_away() {
        let (mut peer, stream) = connected();
        let mut writer = peer.try_clone().unwrap();
        let sends = std::thread::spawn(move || {
            writer.write_all(&vec![b'x'; 100 * 1024]).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut served = Peer { stream: &stream, until: later() };
        assert_eq!(served.request(true), Some(Status::HEAD_TOO_LARGE));
        served.answer(Status::HEAD_TOO_LARGE, "").unwrap();
        served.discard_rest().unwrap();
        sends.join().unwrap();
        drop(stream);
        assert!(read_all(&mut peer).starts_with("HTTP/1.1 431 "));
    }

    #[test]
    fn a_socket_that_was_left_is_taken_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        // A killed daemon leaves its socket behind.
        drop(UnixListener::bind(&path).unwrap());
        // A process that another test starts has a copy of the socket until it executes its
        // program.
        canal_sys::rerun::wait_until("nobody listens", || UnixStream::connect(&path).is_err());
        let listen = Listen::Unix(path.clone());
        let first = Listener::bind(&listen).unwrap();
        assert_eq!(Listener::bind(&listen).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        UnixStream::connect(&path).unwrap();
        assert!(first.socket.accept().is_ok());
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_or_a_link_in_the_way_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "kept").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let error = Listener::bind(&Listen::Unix(path.clone())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        assert!(link.is_symlink());
    }

    #[test]
    fn a_port_in_use_is_an_error() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = Listen::Tcp(taken.local_addr().unwrap());
        assert_eq!(Listener::bind(&listen).unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    fn tcp(text: &str) -> Option<Status> {
        parse(text.as_bytes(), true)
    }

    #[test]
    fn a_whole_request_is_served_and_a_part_of_it_is_not() {
        let whole = "GET /metrics HTTP/1.1\r\nHost: localhost:9632\r\nAccept: */*\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(tcp(&whole[..end]), None, "{end}");
        }
        assert_eq!(tcp(whole), Some(Status::OK));
        assert_eq!(tcp(&whole.replace("\r\n", "\n")), Some(Status::OK));
        assert_eq!(tcp(&format!("{whole}GET /metrics")), Some(Status::OK), "one per connection");
        let query = "GET /metrics?name=x HTTP/1.0\r\nhost:[::1]\r\n\r\n";
        assert_eq!(tcp(query), Some(Status::OK));
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (first, status) in [
            ("POST /metrics HTTP/1.1", Status::WRONG_METHOD),
            ("HEAD /metrics HTTP/1.1", Status::WRONG_METHOD),
            ("get /metrics HTTP/1.1", Status::WRONG_METHOD),
            ("GET / HTTP/1.1", Status::NOT_FOUND),
            ("GET /metrics/ HTTP/1.1", Status::NOT_FOUND),
            ("GET /metrics/../metrics HTTP/1.1", Status::NOT_FOUND),
            ("GET http://localhost/metrics HTTP/1.1", Status::NOT_FOUND),
            ("GET /metrics HTTP/2", Status::WRONG_VERSION),
            ("GET /metrics", Status::BAD_REQUEST),
            ("GET  /metrics HTTP/1.1", Status::BAD_REQUEST),
            ("", Status::BAD_REQUEST),
            ("\u{16}\u{3}\u{1}", Status::BAD_REQUEST),
        ] {
            let request = format!("{first}\r\nHost: localhost\r\n\r\n");
            assert_eq!(tcp(&request), Some(status), "{first:?}");
        }
        for (header, status) in [
            ("Host: evil.example", Status::FORBIDDEN),
            ("Host: localhost.evil.example", Status::FORBIDDEN),
            ("Host: 127.0.0.1.evil.example", Status::FORBIDDEN),
            ("Host: 192.168.0.1", Status::FORBIDDEN),
            ("Host: ", Status::FORBIDDEN),
            ("Host: localhost:x", Status::FORBIDDEN),
            ("Host: localhost:", Status::FORBIDDEN),
            ("Accept: */*", Status::BAD_REQUEST),
            ("Host: localhost\r\nHost: localhost", Status::BAD_REQUEST),
            ("Host: localhost\r\n folded", Status::BAD_REQUEST),
            ("Host : localhost", Status::BAD_REQUEST),
            ("localhost", Status::BAD_REQUEST),
            ("Host: 127.0.0.1", Status::OK),
            ("Host: 127.1.2.3:80", Status::OK),
            ("HOST:\tLocalhost", Status::OK),
            ("Host: [::1]:9632", Status::OK),
        ] {
            let request = format!("GET /metrics HTTP/1.1\r\n{header}\r\n\r\n");
            assert_eq!(tcp(&request), Some(status), "{header:?}");
        }
        assert_eq!(
            parse(b"GET /metrics HTTP/1.1\r\nA: \xff\r\n\r\n", true),
            Some(Status::BAD_REQUEST)
        );
        let nameless = b"GET /metrics HTTP/1.0\r\n\r\n";
        assert_eq!(parse(nameless, false), Some(Status::OK));
    }

    #[test]
    fn a_request_is_bounded() {
        let line = format!("A: {}\r\n", "x".repeat(1_000));
        let request = format!("GET /metrics HTTP/1.1\r\n{}", line.repeat(20));
        assert_eq!(tcp(&request[..HEAD_BYTES_MAX]), None);
        assert_eq!(tcp(&request), Some(Status::HEAD_TOO_LARGE));
        assert_eq!(tcp(&"x".repeat(HEAD_BYTES_MAX + 1)), Some(Status::HEAD_TOO_LARGE));
    }

    proptest! {
        /// Any complete input gets an answer, however it was split.
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let whole = [&bytes[..], b"\r\n\r\n"].concat();
            prop_assert!(parse(&whole, true).is_some_and(|status| status != Status::OK));
            for end in 0..bytes.len() {
                let _ = parse(&bytes[..end], false);
            }
        }
    }
}
