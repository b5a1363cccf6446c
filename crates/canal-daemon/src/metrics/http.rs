//! The connections of collectors over HTTP, served by one thread, and the socket to which they
//! connect. Only `GET /metrics` is served.
//!
//! Invariants: there are at most [`CONNECTIONS_MAX`], none stays open for longer than
//! [`CONNECTION_TIME`], and no peer blocks the thread, which never waits for a single connection.
//! canal removes a socket in the file system only if no process listens on it, and never removes
//! anything else at its path.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::sections::Listen;
use crate::metrics::open_metrics::CONTENT_TYPE;

/// How long the daemon stops accepting connections if it has no descriptor left to refuse one with.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The most collectors connected at once. A further one replaces the one that has been sending its
/// request for longest.
pub(crate) const CONNECTIONS_MAX: usize = 8;

/// The longest time for which a connection may be open.
pub(crate) const CONNECTION_TIME: Duration = Duration::from_secs(10);

/// If there are no figures after this time, collectors receive the answer that the daemon is busy.
const FIGURES_TIME: Duration = Duration::from_secs(2);

/// The most bytes that are read and discarded from a peer that sends more than its request. If the
/// thread closed the connection immediately, the kernel would discard the answer.
const LEFT_BYTES_MAX: usize = 256 * 1024;

/// The number of descriptors that [`Connections::wait`] polls before those of connections.
const OTHER_FDS: usize = 2;

/// The most connections accepted before the open ones are served.
const ACCEPTS_AT_ONCE: usize = 16;

/// A connection of a collector.
#[derive(Debug)]
struct Connection {
    stream: Socket,
    via: Via,
    state: State,
    until: Instant,
}

#[derive(Debug)]
enum State {
    /// The collector sends its request; this much has arrived.
    Reading(Vec<u8>),
    /// The collector waits for figures, until this time.
    Waiting(Instant),
    Writing {
        answer: Vec<u8>,
        sent: usize,
    },
    /// The answer is sent. The number counts the bytes received since.
    Ending(usize),
    Closed,
}

/// The connections of collectors, and the socket to which they connect.
#[derive(Debug)]
pub(super) struct Connections {
    listener: Listener,
    /// Oldest first.
    each: Vec<Connection>,
    /// The thread accepts no connection before this time.
    rests_until: Option<Instant>,
}

impl Connections {
    pub(super) fn new(listener: Listener) -> Self {
        Self { listener, each: Vec::new(), rests_until: None }
    }

    /// Whether a collector waits for figures.
    pub(super) fn want_figures(&self) -> bool {
        self.each.iter().any(|it| matches!(it.state, State::Waiting(_)))
    }

    /// Sleeps until something happens, but not beyond `latest`.
    ///
    /// # Errors
    /// The same as for poll(2).
    pub(super) fn wait(&mut self, bell: &impl AsFd, latest: Option<Instant>) -> io::Result<()> {
        let accepts =
            if self.rests_until.is_none() { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut fds = vec![
            PollFd::new(bell.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.socket.as_fd(), accepts),
        ];
        fds.extend(self.each.iter().map(|it| PollFd::new(it.stream.as_fd(), it.awaits())));
        let ends = self.each.iter().map(Connection::next_end);
        let next = ends.chain(self.rests_until).chain(latest).min();
        match poll(&mut fds, timeout(next)) {
            Err(Errno::EINTR) => return Ok(()),
            polled => polled?,
        };
        let is_gone = |fd: &PollFd<'_>| {
            fd.revents().is_some_and(|it| it.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
        };
        let gone: Vec<bool> = fds.iter().skip(OTHER_FDS).map(is_gone).collect();
        drop(fds);
        for (connection, is_gone) in self.each.iter_mut().zip(gone) {
            // Other connections notice it when they read or write.
            if is_gone && matches!(connection.state, State::Waiting(_)) {
                connection.state = State::Closed;
            }
        }
        Ok(())
    }

    /// Accepts new connections, and serves each connection as far as possible without waiting.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.each.iter_mut().for_each(|connection| connection.go_on(now));
        self.each.retain(|connection| !matches!(connection.state, State::Closed));
        if self.rests_until.is_some_and(|until| now < until) {
            return;
        }
        self.rests_until = None;
        for _ in 0..ACCEPTS_AT_ONCE {
            match self.listener.accept() {
                Ok(Some(stream)) => self.add(stream, now),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a collector of metrics");
                    self.rests_until = Some(now + ACCEPT_AGAIN_AFTER);
                    return;
                }
            }
        }
    }

    fn add(&mut self, stream: Socket, now: Instant) {
        let state = State::Reading(Vec::new());
        let until = now + CONNECTION_TIME;
        let mut connection = Connection { stream, via: self.listener.via(), state, until };
        // Most requests have already arrived.
        connection.go_on(now);
        if matches!(connection.state, State::Closed) {
            return;
        }
        if self.each.len() >= CONNECTIONS_MAX {
            let gives_way =
                |it: &Connection| matches!(it.state, State::Reading(_) | State::Ending(_));
            let Some(at) = self.each.iter().position(gives_way) else { return };
            self.each.remove(at);
        }
        self.each.push(connection);
    }

    /// Answers all collectors that wait for figures.
    pub(super) fn answer(&mut self, body: &str, now: Instant) {
        for connection in &mut self.each {
            if matches!(connection.state, State::Waiting(_)) {
                connection.answer(Status::Ok, body);
                connection.go_on(now);
            }
        }
        self.each.retain(|connection| !matches!(connection.state, State::Closed));
    }
}

/// Whether to try again when poll(2) reports that the socket is ready.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The time until an instant, in the form that poll(2) takes.
fn timeout(until: Option<Instant>) -> PollTimeout {
    let Some(until) = until else { return PollTimeout::NONE };
    // Rounded up, so that the instant has passed when poll(2) returns.
    let left = until.saturating_duration_since(Instant::now()).as_millis() + 1;
    PollTimeout::from(u16::try_from(left).unwrap_or(u16::MAX))
}

impl Connection {
    fn awaits(&self) -> PollFlags {
        match self.state {
            State::Reading(_) | State::Ending(_) => PollFlags::POLLIN,
            State::Writing { .. } => PollFlags::POLLOUT,
            State::Waiting(_) | State::Closed => PollFlags::empty(),
        }
    }

    fn next_end(&self) -> Instant {
        match self.state {
            State::Waiting(until) => until.min(self.until),
            _ => self.until,
        }
    }

    fn answer(&mut self, status: Status, body: &str) {
        let line = status.texts().0;
        let kind = if status == Status::Ok { CONTENT_TYPE } else { "text/plain; charset=utf-8" };
        let allow = if status == Status::MethodNotAllowed { "Allow: GET\r\n" } else { "" };
        let answer = format!(
            "HTTP/1.1 {line}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}\
             Connection: close\r\n\r\n{body}",
            body.len()
        );
        self.state = State::Writing { answer: answer.into_bytes(), sent: 0 };
    }

    fn refuse(&mut self, status: Status) {
        self.answer(status, status.texts().1);
    }

    fn go_on(&mut self, now: Instant) {
        if now >= self.until {
            self.state = State::Closed;
        }
        if let State::Reading(_) = self.state {
            self.read_request(now);
        }
        if let State::Waiting(until) = self.state
            && now >= until
        {
            self.refuse(Status::Unavailable);
        }
        if let State::Writing { .. } = self.state {
            self.write();
        }
        if let State::Ending(_) = self.state {
            self.read_rest();
        }
    }

    fn read_request(&mut self, now: Instant) {
        let State::Reading(bytes) = &mut self.state else { return };
        let mut piece = [0; 1024];
        let mut is_over = false;
        // A request that is too long is detected before the rest of it arrives.
        while bytes.len() <= HEAD_BYTES_MAX && !is_over {
            match self.stream.read(&mut piece) {
                // The peer may still read an answer.
                Ok(0) => is_over = true,
                Ok(length) => bytes.extend(&piece[..length]),
                Err(error) if is_transient(&error) => break,
                Err(_) => return self.state = State::Closed,
            }
        }
        match parse(bytes, self.via) {
            None if is_over => self.state = State::Closed,
            None => {}
            Some(Status::Ok) => self.state = State::Waiting(now + FIGURES_TIME),
            Some(other) => self.refuse(other),
        }
    }

    fn write(&mut self) {
        let State::Writing { answer, sent } = &mut self.state else { return };
        while let Some(left @ [_, ..]) = answer.get(*sent..) {
            match self.stream.write(left) {
                Ok(0) => return self.state = State::Closed,
                Ok(length) => *sent += length,
                Err(error) if is_transient(&error) => return,
                Err(_) => return self.state = State::Closed,
            }
        }
        let _ = self.stream.shutdown(Shutdown::Write);
        self.state = State::Ending(0);
    }

    fn read_rest(&mut self) {
        let State::Ending(left) = &mut self.state else { return };
        let mut piece = [0; 4096];
        while *left < LEFT_BYTES_MAX {
            match self.stream.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => *left += length,
                Err(error) if is_transient(&error) => return,
                Err(_) => break,
            }
        }
        self.state = State::Closed;
    }
}

/// All users can read a loopback port, so all may read this socket. Its directory can restrict
/// that.
const MODE: u32 = 0o666;

/// The socket that serves metrics.
#[derive(Debug)]
pub(crate) struct Listener {
    pub socket: Socket,
    /// The path of a socket in the file system.
    path: Option<PathBuf>,
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
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path })
    }

    /// The next connection; `None` if there is none now.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn accept(&self) -> io::Result<Option<Socket>> {
        match self.socket.accept() {
            Ok((stream, _)) => stream.set_nonblocking(true).map(|()| Some(stream)),
            Err(error) if is_transient(&error) => Ok(None),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn via(&self) -> Via {
        if self.path.is_some() { Via::Unix } else { Via::Tcp }
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

/// The status of the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    HeadTooLarge,
    Unavailable,
    VersionNotSupported,
}

impl Status {
    /// The status line, and the explanation for a person who sent a wrong request.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Ok => ("200 OK", ""),
            Self::BadRequest => ("400 Bad Request", "this is not an HTTP 1.1 request\n"),
            Self::Forbidden => {
                ("403 Forbidden", "the Host of the request is not a loopback address\n")
            }
            Self::NotFound => ("404 Not Found", "the metrics are at /metrics\n"),
            Self::MethodNotAllowed => ("405 Method Not Allowed", "read the metrics with GET\n"),
            Self::HeadTooLarge => {
                ("431 Request Header Fields Too Large", "the request is longer than 8 KiB\n")
            }
            Self::Unavailable => ("503 Service Unavailable", "the daemon is busy\n"),
            Self::VersionNotSupported => ("505 HTTP Version Not Supported", "this is HTTP 1.1\n"),
        }
    }
}

/// The kind of socket on which a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// A page in a browser can make the browser connect to a loopback port under a name that the
    /// page controls, so the name is checked.
    Tcp,
    Unix,
}

/// The most headers of a request. Collectors send about ten.
const HEADERS_MAX: usize = 64;

/// Parses the part of a request that has arrived; `None` if more has to arrive.
pub(crate) fn parse(bytes: &[u8], via: Via) -> Option<Status> {
    // The parser would skip empty lines before a request.
    if matches!(bytes, [b'\r' | b'\n', ..]) {
        return Some(Status::BadRequest);
    }
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() <= HEAD_BYTES_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => usize::MAX,
        Err(httparse::Error::Version) => return Some(Status::VersionNotSupported),
        Err(_) => return Some(Status::BadRequest),
    };
    if length > HEAD_BYTES_MAX {
        return Some(Status::HeadTooLarge);
    }
    if request.method != Some("GET") {
        return Some(Status::MethodNotAllowed);
    }
    if request.path.and_then(|target| target.split('?').next()) != Some("/metrics") {
        return Some(Status::NotFound);
    }
    let mut hosts = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case("host"));
    Some(match (via, hosts.next(), hosts.next()) {
        (_, _, Some(_)) | (Via::Tcp, None, None) => Status::BadRequest,
        (Via::Tcp, Some(host), None) if !is_loopback(host.value) => Status::Forbidden,
        _ => Status::Ok,
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
    use crate::config::sections::Listen;

    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

    fn connections() -> (Connections, std::net::SocketAddr) {
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(&Listen::Tcp(any)).unwrap();
        let address = listener.socket.local_addr().unwrap().as_socket().unwrap();
        (Connections::new(listener), address)
    }

    /// Serves the connections until a condition holds.
    #[track_caller]
    fn until(connections: &mut Connections, holds: impl Fn(&Connections) -> bool) {
        let begun = Instant::now();
        while !holds(connections) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{connections:?}");
            connections.go_on(begun);
            std::thread::yield_now();
        }
    }

    fn count_waiting(connections: &Connections) -> usize {
        connections.each.iter().filter(|it| matches!(it.state, State::Waiting(_))).count()
    }

    fn read_all(stream: &mut TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn each_byte_may_come_alone() {
        let (mut connections, address) = connections();
        let mut peer = TcpStream::connect(address).unwrap();
        for byte in REQUEST {
            assert!(!connections.want_figures());
            peer.write_all(&[*byte]).unwrap();
            connections.go_on(Instant::now());
        }
        until(&mut connections, Connections::want_figures);
        connections.answer("figures\n", Instant::now());
        let text = read_all(&mut peer);
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nfigures\n"),
            "{text}"
        );
        drop(peer);
        until(&mut connections, |it| it.each.is_empty());
    }

    #[test]
    fn a_peer_that_has_said_all_is_answered_and_one_that_is_gone_is_forgotten() {
        let (mut connections, address) = connections();
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(REQUEST).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        until(&mut connections, Connections::want_figures);
        connections.answer("figures\n", Instant::now());
        assert!(read_all(&mut peer).ends_with("figures\n"));
        let silent = TcpStream::connect(address).unwrap();
        until(&mut connections, |it| {
            it.each.iter().any(|it| matches!(it.state, State::Reading(_)))
        });
        drop(silent);
        until(&mut connections, |it| it.each.is_empty());
    }

    #[test]
    fn one_who_asks_takes_the_place_of_the_one_who_says_nothing_for_longest() {
        let (mut connections, address) = connections();
        let silent: Vec<TcpStream> =
            (0..CONNECTIONS_MAX + 3).map(|_| TcpStream::connect(address).unwrap()).collect();
        until(&mut connections, |it| it.each.len() == CONNECTIONS_MAX);
        let mut asking: Vec<TcpStream> = Vec::new();
        for count in 1..=CONNECTIONS_MAX {
            asking.push(TcpStream::connect(address).unwrap());
            asking.last_mut().unwrap().write_all(REQUEST).unwrap();
            until(&mut connections, |it| count_waiting(it) == count);
            assert!(connections.each.len() <= CONNECTIONS_MAX);
        }
        // A new collector does not replace one that waits for its answer.
        let mut late = TcpStream::connect(address).unwrap();
        late.write_all(REQUEST).unwrap();
        connections.go_on(Instant::now());
        assert_eq!(connections.each.len(), CONNECTIONS_MAX);
        assert_eq!(count_waiting(&connections), CONNECTIONS_MAX);
        connections.answer("x", Instant::now());
        assert!(asking.iter_mut().all(|peer| read_all(peer).ends_with("\r\n\r\nx")));
        drop(silent);
    }

    #[test]
    fn a_slow_peer_is_closed_when_its_time_is_over() {
        let (mut connections, address) = connections();
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(b"GET /met").unwrap();
        until(&mut connections, |it| it.each.len() == 1);
        let begun = connections.each[0].until - CONNECTION_TIME;
        connections.go_on(begun + CONNECTION_TIME - Duration::from_millis(1));
        assert_eq!(connections.each.len(), 1);
        connections.go_on(begun + CONNECTION_TIME);
        assert!(connections.each.is_empty());
        assert_eq!(read_all(&mut peer), "");
    }

    #[test]
    fn a_collector_does_not_wait_for_a_daemon_that_is_busy_for_long() {
        let (mut connections, address) = connections();
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(REQUEST).unwrap();
        until(&mut connections, Connections::want_figures);
        connections.go_on(Instant::now() + FIGURES_TIME);
        assert!(read_all(&mut peer).starts_with("HTTP/1.1 503 "));
    }

    #[test]
    fn a_request_that_is_too_long_is_answered_and_the_rest_thrown_away() {
        let (mut connections, address) = connections();
        let mut peer = TcpStream::connect(address).unwrap();
        peer.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut writer = peer.try_clone().unwrap();
        let sends = std::thread::spawn(move || {
            // The peer may close the connection before everything is sent.
            let _ = writer.write_all(&vec![b'x'; 100 * 1024]);
            let _ = writer.shutdown(Shutdown::Write);
        });
        until(&mut connections, |_| peer.peek(&mut [0]).is_ok());
        until(&mut connections, |it| it.each.is_empty());
        sends.join().unwrap();
        peer.set_read_timeout(None).unwrap();
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
        assert!(first.accept().unwrap().is_some());
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
        parse(text.as_bytes(), Via::Tcp)
    }

    #[test]
    fn a_whole_request_is_served_and_a_part_of_it_is_not() {
        let whole = "GET /metrics HTTP/1.1\r\nHost: localhost:9632\r\nAccept: */*\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(tcp(&whole[..end]), None, "{end}");
        }
        assert_eq!(tcp(whole), Some(Status::Ok));
        assert_eq!(tcp(&whole.replace("\r\n", "\n")), Some(Status::Ok));
        assert_eq!(tcp(&format!("{whole}GET /metrics")), Some(Status::Ok), "one per connection");
        let query = "GET /metrics?name=x HTTP/1.0\r\nhost:[::1]\r\n\r\n";
        assert_eq!(tcp(query), Some(Status::Ok));
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (first, status) in [
            ("POST /metrics HTTP/1.1", Status::MethodNotAllowed),
            ("HEAD /metrics HTTP/1.1", Status::MethodNotAllowed),
            ("get /metrics HTTP/1.1", Status::MethodNotAllowed),
            ("GET / HTTP/1.1", Status::NotFound),
            ("GET /metrics/ HTTP/1.1", Status::NotFound),
            ("GET /metrics/../metrics HTTP/1.1", Status::NotFound),
            ("GET http://localhost/metrics HTTP/1.1", Status::NotFound),
            ("GET /metrics HTTP/2", Status::VersionNotSupported),
            ("GET /metrics", Status::BadRequest),
            ("GET  /metrics HTTP/1.1", Status::BadRequest),
            ("", Status::BadRequest),
            ("\u{16}\u{3}\u{1}", Status::BadRequest),
        ] {
            let request = format!("{first}\r\nHost: localhost\r\n\r\n");
            assert_eq!(tcp(&request), Some(status), "{first:?}");
        }
        for (header, status) in [
            ("Host: evil.example", Status::Forbidden),
            ("Host: localhost.evil.example", Status::Forbidden),
            ("Host: 127.0.0.1.evil.example", Status::Forbidden),
            ("Host: 192.168.0.1", Status::Forbidden),
            ("Host: ", Status::Forbidden),
            ("Host: localhost:x", Status::Forbidden),
            ("Host: localhost:", Status::Forbidden),
            ("Accept: */*", Status::BadRequest),
            ("Host: localhost\r\nHost: localhost", Status::BadRequest),
            ("Host: localhost\r\n folded", Status::BadRequest),
            ("Host : localhost", Status::BadRequest),
            ("localhost", Status::BadRequest),
            ("Host: 127.0.0.1", Status::Ok),
            ("Host: 127.1.2.3:80", Status::Ok),
            ("HOST:\tLocalhost", Status::Ok),
            ("Host: [::1]:9632", Status::Ok),
        ] {
            let request = format!("GET /metrics HTTP/1.1\r\n{header}\r\n\r\n");
            assert_eq!(tcp(&request), Some(status), "{header:?}");
        }
        assert_eq!(
            parse(b"GET /metrics HTTP/1.1\r\nA: \xff\r\n\r\n", Via::Tcp),
            Some(Status::BadRequest)
        );
        let nameless = b"GET /metrics HTTP/1.0\r\n\r\n";
        assert_eq!(parse(nameless, Via::Unix), Some(Status::Ok));
    }

    #[test]
    fn a_request_is_bounded() {
        let line = format!("A: {}\r\n", "x".repeat(1_000));
        let request = format!("GET /metrics HTTP/1.1\r\n{}", line.repeat(20));
        assert_eq!(tcp(&request[..HEAD_BYTES_MAX]), None);
        assert_eq!(tcp(&request), Some(Status::HeadTooLarge));
        assert_eq!(tcp(&"x".repeat(HEAD_BYTES_MAX + 1)), Some(Status::HeadTooLarge));
    }

    proptest! {
        /// Any complete input gets an answer, however it was split.
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let whole = [&bytes[..], b"\r\n\r\n"].concat();
            prop_assert!(parse(&whole, Via::Tcp).is_some_and(|status| status != Status::Ok));
            for end in 0..bytes.len() {
                let _ = parse(&bytes[..end], Via::Unix);
            }
        }
    }
}
