//! Serves metrics on a socket: a thread that accepts collectors, one for each collector, and their
//! exchange with the daemon.
//!
//! Each side holds the mutex only to move data in or out. The thread of a collector asks for
//! figures, at most once a second, and the daemon supplies them in its next turn.
//!
//! Invariant: there are at most [`COLLECTORS_MAX`], and none stays for longer than
//! [`COLLECTOR_TIME`].

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::Socket;

use crate::config::sections_and_defaults::Listen;
use crate::metrics::counters::Snapshot;
use crate::metrics::http::{Listener, Peer, Status};
use crate::metrics::open_metrics::text;

/// The most collectors connected at once. A further one replaces the one that has been sending its
/// request for longest.
const COLLECTORS_MAX: usize = 8;

/// The longest time for which a collector may be connected.
const COLLECTOR_TIME: Duration = Duration::from_secs(10);

/// The descriptors that serving metrics needs: for the collectors, the socket, and one further
/// collector until the thread knows whether there is room for it.
pub(crate) const DESCRIPTORS: u64 = COLLECTORS_MAX as u64 + 2;

/// If there are no figures after this time, collectors receive the answer that the daemon is busy.
const FIGURES_TIME: Duration = Duration::from_secs(2);

/// All collectors that ask within this time receive the same figures.
const FRESH_TIME: Duration = Duration::from_secs(1);

/// How long to wait before trying an address in use again.
const BIND_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How long the daemon stops accepting collectors if it has no descriptor or no thread left for
/// one.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The stack size of the threads.
const STACK_BYTES: usize = 256 * 1024;

/// The nice value of the threads.
const LOWEST_PRIORITY: i32 = 19;

/// The daemon's side of the threads that serve collectors.
#[derive(Debug)]
pub(crate) struct Exporter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The state shared by the threads and the daemon.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// The last figures, and the time until which they are fresh. A collector that asks for figures
    /// holds the mutex until it has them, and the others wait for the same figures.
    fresh: Mutex<Option<(Instant, Arc<str>)>>,
}

#[derive(Debug, Default)]
struct State {
    /// Takes the figures to the thread of a collector, if one waits for them.
    wanted: Option<Sender<Snapshot>>,
    closing: bool,
    /// The socket, once it listens.
    listener: Option<Arc<Listener>>,
    /// A note for operators.
    note: Option<String>,
    /// Wakes the daemon.
    waker: Option<Waker>,
}

impl Exporter {
    /// Begins to serve metrics. If the address is in use, the thread tries again from time to time.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(listen: Listen) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let its = Arc::clone(&shared);
        let thread = start_thread(move || {
            // This applies to this thread, and to those that it starts.
            let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
            its.work(&listen);
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sets the waker that wakes the daemon when a collector wants figures.
    pub(crate) fn wake_by(&self, waker: Waker) {
        let mut state = self.shared.lock();
        if state.wanted.is_some() {
            waker.wake_by_ref();
        }
        state.waker = Some(waker);
    }

    /// Whether a collector wants figures.
    pub(crate) fn is_asked(&self) -> bool {
        self.shared.lock().wanted.is_some()
    }

    /// Hands figures over.
    pub(crate) fn give(&self, figures: Snapshot) {
        if let Some(wanted) = self.shared.lock().wanted.take() {
            // The collector no longer waits if the daemon was busy for long.
            let _ = wanted.send(figures);
        }
    }

    /// The note for operators.
    pub(crate) fn note(&self) -> Option<String> {
        self.shared.lock().note.clone()
    }
}

/// Ends the thread, and removes the socket. A daemon that fails does not leave it behind, either.
impl Drop for Exporter {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        (state.closing, state.wanted) = (true, None);
        if let Some(listener) = state.listener.take() {
            // The thread may be waiting for a collector.
            let _ = listener.socket.shutdown(Shutdown::Both);
        }
        drop(state);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        if thread.join().is_err() {
            tracing::error!("the thread that serves metrics has failed");
        }
    }
}

fn start_thread(work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("metrics".to_owned()).stack_size(STACK_BYTES).spawn(work)
}

/// Locks a mutex. A thread that panicked left its content consistent: each change is a single move.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connected collector. The list of the thread that accepts them does not keep it open.
struct Collector {
    stream: Socket,
    /// Whether it connected to a port.
    is_port: bool,
    /// Whether it waits for its answer. It then gives way to no other.
    is_answered: AtomicBool,
}

type Collectors = Vec<(Weak<Collector>, JoinHandle<()>)>;

/// The side of the threads.
impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn work(self: &Arc<Self>, listen: &Listen) {
        let mut failed = false;
        while !self.lock().closing {
            match Listener::bind(listen) {
                Ok(listener) => {
                    tracing::info!("serving metrics on {listen}");
                    let listener = Arc::new(listener);
                    let mut state = self.lock();
                    (state.note, state.listener) = (None, Some(Arc::clone(&listener)));
                    drop(state);
                    return self.serve(&listener);
                }
                Err(error) => {
                    let note = format!("cannot serve metrics on {listen}: {error}");
                    if !std::mem::replace(&mut failed, true) {
                        tracing::warn!("{note}");
                    }
                    self.lock().note = Some(note);
                }
            }
            // The end of the daemon wakes the thread.
            std::thread::park_timeout(BIND_AGAIN_AFTER);
        }
    }

    /// Serves collectors until the daemon ends.
    fn serve(self: &Arc<Self>, listener: &Listener) {
        let mut open = Collectors::new();
        while !self.lock().closing {
            let added = listener.socket.accept().and_then(|(stream, _)| {
                let (is_port, is_answered) = (listener.path.is_none(), AtomicBool::new(false));
                self.add(&mut open, Collector { stream, is_port, is_answered })
            });
            let closing = self.lock().closing;
            if let Err(error) = added
                && error.kind() != ErrorKind::ConnectionAborted
                && !closing
            {
                tracing::warn!(%error, "cannot accept a collector of metrics");
                std::thread::park_timeout(ACCEPT_AGAIN_AFTER);
            }
        }
    }

    /// Starts a thread for a collector, if there is room for it.
    fn add(self: &Arc<Self>, open: &mut Collectors, collector: Collector) -> io::Result<()> {
        open.retain(|(_, thread)| !thread.is_finished());
        if open.len() >= COLLECTORS_MAX {
            let gives_way = |(it, _): &(Weak<Collector>, _)| {
                it.upgrade().is_none_or(|it| !it.is_answered.load(Ordering::Relaxed))
            };
            let Some(at) = open.iter().position(gives_way) else { return Ok(()) };
            let (gone, thread) = open.remove(at);
            if let Some(gone) = gone.upgrade() {
                let _ = gone.stream.shutdown(Shutdown::Both);
            }
            let _ = thread.join();
        }
        let collector = Arc::new(collector);
        let (weak, shared) = (Arc::downgrade(&collector), Arc::clone(self));
        open.push((weak, start_thread(move || shared.answer(&collector))?));
        Ok(())
    }

    /// Answers one request.
    fn answer(&self, collector: &Collector) {
        let Collector { stream, is_port, is_answered } = collector;
        let mut peer = Peer { stream, until: Instant::now() + COLLECTOR_TIME };
        let Some(mut status) = peer.request(*is_port) else { return };
        let mut figures = None;
        if status == Status::OK {
            is_answered.store(true, Ordering::Relaxed);
            figures = self.figures();
            status = if figures.is_some() { Status::OK } else { Status::UNAVAILABLE };
        }
        let answered = peer.answer(status, figures.as_deref().unwrap_or_default());
        is_answered.store(false, Ordering::Relaxed);
        if answered.is_ok() {
            let _ = peer.discard_rest();
        }
    }

    /// Fresh figures; `None` if the daemon does not give any in time.
    fn figures(&self) -> Option<Arc<str>> {
        let until = Instant::now() + FIGURES_TIME;
        let mut fresh = lock(&self.fresh);
        if let Some((until, text)) = &*fresh
            && Instant::now() < *until
        {
            return Some(Arc::clone(text));
        }
        let (wanted, figures) = mpsc::channel();
        let mut state = self.lock();
        state.wanted = Some(wanted).filter(|_| !state.closing);
        state.waker.iter().for_each(Waker::wake_by_ref);
        drop(state);
        let left = until.saturating_duration_since(Instant::now());
        let text = Arc::from(text(&figures.recv_timeout(left).ok()?));
        *fresh = Some((Instant::now() + FRESH_TIME, Arc::clone(&text)));
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    const REQUEST: &[u8] = b"GET /metrics HTTP/1.0\r\n\r\n";

    fn get(path: &Path) -> UnixStream {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(REQUEST).unwrap();
        stream
    }

    fn read_all(mut stream: UnixStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[track_caller]
    fn wait_until(what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn all_who_ask_within_a_second_get_the_same_figures() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        let exporter = Exporter::start(Listen::Unix(path.clone())).unwrap();
        exporter.wake_by(Waker::noop().clone());
        wait_until("it listens", || UnixStream::connect(&path).is_ok());
        assert!(!exporter.is_asked(), "nobody has asked for anything");
        let first = get(&path);
        wait_until("figures are wanted", || exporter.is_asked());
        exporter.give(Snapshot { connections: 77, ..Snapshot::default() });
        let text = read_all(first);
        assert!(text.contains("canal_connections 77\n") && text.ends_with("# EOF\n"), "{text}");
        // Either the thread answers from the figures that it has, or a second has passed and it
        // asks the daemon.
        let second = get(&path);
        wait_until("an answer or a question", || exporter.is_asked() || peek(&second));
        exporter.give(Snapshot { connections: 77, ..Snapshot::default() });
        assert!(read_all(second).contains("canal_connections 77\n"));
        drop(exporter);
        assert!(!path.exists());
    }

    /// Whether the stream is readable.
    fn peek(stream: &UnixStream) -> bool {
        let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
    }

    #[test]
    fn an_address_in_use_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        std::fs::write(&path, "in the way").unwrap();
        let exporter = Exporter::start(Listen::Unix(path.clone())).unwrap();
        wait_until("it is noted", || exporter.note().is_some());
        let note = exporter.note().unwrap();
        assert!(note.starts_with("cannot serve metrics on ") && note.contains("in use"), "{note}");
        drop(exporter);
        assert!(path.exists(), "it is not ours");
    }

    fn connect(shared: &Arc<Shared>, open: &mut Collectors) -> UnixStream {
        let (peer, stream) = UnixStream::pair().unwrap();
        let stream = Socket::from(OwnedFd::from(stream));
        let is_answered = AtomicBool::new(false);
        shared.add(open, Collector { stream, is_port: false, is_answered }).unwrap();
        peer
    }

    fn count_answered(open: &Collectors) -> usize {
        let open = open.iter().filter_map(|(collector, _)| collector.upgrade());
        open.filter(|it| it.is_answered.load(Ordering::Relaxed)).count()
    }

    #[test]
    fn one_who_asks_takes_the_place_of_the_one_who_says_nothing_for_longest() {
        let (shared, mut open) = (Arc::<Shared>::default(), Collectors::new());
        let silent: Vec<_> = (0..COLLECTORS_MAX + 3).map(|_| connect(&shared, &mut open)).collect();
        assert_eq!(open.len(), COLLECTORS_MAX);
        assert!(silent[..3].iter().all(peek) && !silent[3..].iter().any(peek));
        let mut asking = Vec::new();
        for count in 1..=COLLECTORS_MAX {
            asking.push(connect(&shared, &mut open));
            asking.last_mut().unwrap().write_all(REQUEST).unwrap();
            wait_until("it waits for its answer", || count_answered(&open) == count);
            assert_eq!(open.len(), COLLECTORS_MAX);
        }
        assert!(silent.iter().all(peek));
        // A new collector does not replace one that waits for its answer.
        assert_eq!(read_all(connect(&shared, &mut open)), "");
        assert_eq!(count_answered(&open), COLLECTORS_MAX);
        let exporter = Exporter { shared, thread: None };
        exporter.give(Snapshot::default());
        assert!(asking.into_iter().all(|peer| read_all(peer).ends_with("# EOF\n")));
    }

    #[test]
    fn a_collector_does_not_wait_for_a_daemon_that_is_busy_for_long() {
        let (shared, mut open) = (Arc::<Shared>::default(), Collectors::new());
        let mut peers = [connect(&shared, &mut open), connect(&shared, &mut open)];
        peers.iter_mut().for_each(|peer| peer.write_all(REQUEST).unwrap());
        let begun = Instant::now();
        for peer in peers {
            let text = read_all(peer);
            assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
        }
        assert!(begun.elapsed() < COLLECTOR_TIME);
    }
}
