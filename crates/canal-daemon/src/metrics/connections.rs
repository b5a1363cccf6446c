//! The connections of collectors, served by one thread.
//!
//! Invariants: there are at most [`CONNECTIONS_MAX`], none stays open for longer than
//! [`CONNECTION_TIME`], and no peer blocks the thread, which never waits for a single connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;

use crate::limits::ACCEPT_AGAIN_AFTER;
use crate::metrics::listener::Listener;
use crate::metrics::request::{self, HEAD_BYTES_MAX, Status, Via};

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
        head: String,
        body: Arc<str>,
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
    pub(super) fn answer(&mut self, body: &Arc<str>, now: Instant) {
        for connection in &mut self.each {
            if matches!(connection.state, State::Waiting(_)) {
                connection.answer(Status::Ok, Arc::clone(body));
                connection.go_on(now);
            }
        }
        self.each.retain(|connection| !matches!(connection.state, State::Closed));
    }
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

    fn answer(&mut self, status: Status, body: Arc<str>) {
        let head = request::answer_head(status, body.len());
        self.state = State::Writing { head, body, sent: 0 };
    }

    fn refuse(&mut self, status: Status) {
        self.answer(status, status.explanation().into());
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
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.state = State::Closed,
            }
        }
        match request::read(bytes, self.via) {
            None if is_over => self.state = State::Closed,
            None => {}
            Some(Status::Ok) => self.state = State::Waiting(now + FIGURES_TIME),
            Some(other) => self.refuse(other),
        }
    }

    fn write(&mut self) {
        let State::Writing { head, body, sent } = &mut self.state else { return };
        loop {
            let left = match head.as_bytes().get(*sent..) {
                Some(left) if !left.is_empty() => left,
                _ => &body.as_bytes()[*sent - head.len()..],
            };
            if left.is_empty() {
                break;
            }
            match self.stream.write(left) {
                Ok(0) => return self.state = State::Closed,
                Ok(length) => *sent += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
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
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.state = State::Closed;
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::config::metrics_section::Listen;

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
        connections.answer(&"figures\n".into(), Instant::now());
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
        connections.answer(&"figures\n".into(), Instant::now());
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
        connections.answer(&"x".into(), Instant::now());
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
}
