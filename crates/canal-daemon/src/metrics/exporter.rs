//! Serves metrics on a socket: the thread for collectors, and its exchange with the daemon.
//!
//! Each side holds the mutex only to move data in or out. The thread asks for figures when a
//! collector does, at most once a second, and the daemon supplies them in its next turn.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::config::sections::Listen;
use crate::metrics::counters::Snapshot;
use crate::metrics::http::{CONNECTIONS_MAX, Connections, Listener};
use crate::metrics::open_metrics::text;

/// The descriptors that serving metrics needs: for the collectors, the socket, the bell, and one
/// further collector until the thread knows whether there is room for it.
pub(crate) const DESCRIPTORS: u64 = CONNECTIONS_MAX as u64 + 3;

/// All collectors that ask within this time receive the same figures.
const FRESH_TIME: Duration = Duration::from_secs(1);

/// How long to wait before trying an address in use again, in milliseconds.
const RETRY_MS: u16 = 5_000;

/// The stack size of the thread.
const STACK_BYTES: usize = 256 * 1024;

/// The nice value of the thread.
const LOWEST_PRIORITY: i32 = 19;

/// The daemon's side of the thread that serves collectors.
#[derive(Debug)]
pub(crate) struct Exporter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The state shared by the thread and the daemon.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    bell: EventFd,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the thread wants figures.
    asked: bool,
    figures: Option<Box<Snapshot>>,
    closing: bool,
    /// A note for operators.
    note: Option<String>,
    /// Wakes the daemon.
    waker: Option<Waker>,
}

impl Exporter {
    /// Begins to serve metrics. If the address is in use, the thread tries again from time to time.
    ///
    /// # Errors
    /// The system has no descriptor or no thread left.
    pub(crate) fn start(listen: Listen) -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let bell = EventFd::from_value_and_flags(0, flags)?;
        let shared = Arc::new(Shared { state: Mutex::default(), bell });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("metrics".to_owned());
        let thread = thread.stack_size(STACK_BYTES).spawn(move || {
            // This applies to this thread only.
            let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
            of_thread.work(&listen);
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sets the waker that wakes the daemon when the thread wants figures.
    pub(crate) fn wake_by(&self, waker: Waker) {
        let mut state = self.shared.lock();
        if state.asked {
            waker.wake_by_ref();
        }
        state.waker = Some(waker);
    }

    /// Whether the thread wants figures.
    pub(crate) fn is_asked(&self) -> bool {
        self.shared.lock().asked
    }

    /// Hands figures over.
    pub(crate) fn give(&self, figures: Snapshot) {
        let mut state = self.shared.lock();
        (state.asked, state.figures) = (false, Some(Box::new(figures)));
        drop(state);
        self.shared.ring();
    }

    /// The note for operators.
    pub(crate) fn note(&self) -> Option<String> {
        self.shared.lock().note.clone()
    }
}

/// Ends the thread, and removes the socket. A daemon that fails does not leave it behind, either.
impl Drop for Exporter {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that serves metrics has failed");
        }
    }
}

impl Shared {
    /// Locks the state. A thread that panicked left it consistent: each change is a single move.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        let _ = self.bell.write(1);
    }
}

/// The thread's side.
impl Shared {
    fn work(&self, listen: &Listen) {
        let mut failed = false;
        while !self.lock().closing {
            match Listener::bind(listen) {
                Ok(listener) => {
                    tracing::info!("serving metrics on {listen}");
                    self.lock().note = None;
                    if let Err(error) = self.serve(listener) {
                        tracing::error!(%error, "no longer serving metrics");
                        self.lock().note = Some(format!("not serving metrics: {error}"));
                    }
                    return;
                }
                Err(error) => {
                    let note = format!("cannot serve metrics on {listen}: {error}");
                    if !std::mem::replace(&mut failed, true) {
                        tracing::warn!("{note}");
                    }
                    self.lock().note = Some(note);
                }
            }
            let mut fds = [PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, PollTimeout::from(RETRY_MS));
        }
    }

    /// Serves collectors until the daemon ends.
    fn serve(&self, listener: Listener) -> io::Result<()> {
        let mut connections = Connections::new(listener);
        let mut fresh: Option<(Instant, String)> = None;
        loop {
            connections.wait(self, fresh.as_ref().map(|(until, _)| *until))?;
            // The thread checks all state that a wake-up can concern after this read.
            let _ = self.bell.read();
            let figures = {
                let mut state = self.lock();
                if state.closing {
                    return Ok(());
                }
                state.figures.take()
            };
            let now = Instant::now();
            fresh = fresh.filter(|(until, _)| now < *until);
            if let Some(figures) = figures {
                fresh = Some((now + FRESH_TIME, text(&figures)));
            }
            connections.go_on(now);
            match &fresh {
                Some((_, text)) => connections.answer(text, now),
                None if connections.want_figures() => self.ask(),
                None => {}
            }
        }
    }

    /// Asks the daemon for figures, unless this is already done.
    fn ask(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.asked, true)
            && let Some(waker) = &state.waker
        {
            waker.wake_by_ref();
        }
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use super::*;

    fn get(path: &Path) -> UnixStream {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
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
}
