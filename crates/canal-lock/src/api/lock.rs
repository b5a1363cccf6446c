//! Builds and sends a request for locks.

use std::time::Duration;

use super::client::Endpoint;
use super::error::{Error, ErrorKind};
use super::guard::Guard;
use super::loss::OnLost;
use super::status::Progress;
use crate::client::deadlock_search::WaitWithin;
use crate::client::nodes::lease::EnclosingLeases;
use crate::client::{self, command_environment};
use canal_core::Key;
use canal_protocol::{Acquire, Mode, NOTE_BYTES_MAX, Superseded, WireItem};
use canal_sys::process;
use canal_text::duration::milliseconds_up;

/// A request for a lock, or for several that are taken together. Nothing is locked until you call
/// [`acquire`](Self::acquire) or [`try_acquire`](Self::try_acquire). Each call takes the lock once
/// more.
///
/// ```
/// use std::time::Duration;
///
/// use canal_lock::{ErrorKind, Lock};
///
/// # fn main() -> Result<(), canal_lock::Error> {
/// # let daemon = canal::testing::Daemon::start()?;
/// # let endpoint = daemon.endpoint();
/// // One of the two GPUs, and at most a minute of waiting for it.
/// let lock = Lock::new("gpu").slots(2).wait(Duration::from_secs(60));
/// # let lock = lock.endpoint(&endpoint);
/// let guard = match lock.acquire() {
///     Ok(guard) => guard,
///     Err(error) if error.kind() == ErrorKind::Timeout => return Ok(()),
///     Err(error) => return Err(error),
/// };
/// println!("on GPU {:?}, token {}", guard.slot(), guard.token());
/// drop(guard);
/// # Ok(())
/// # }
/// ```
///
/// # Kinds of locks
///
/// - [`Lock::new`]: a counted lock. [`slots`](Self::slots) sets how many holders it can have at
///   once. [`per`](Self::per) and [`buckets`](Self::buckets) set how many each of the buckets can
///   have. Callers may pass different sizes, and each request counts by its own. A stored size
///   (`canal resize`) replaces them all. A request without a size uses the size of the latest
///   holder that passed one, or else 1.
/// - [`Lock::read`] and [`Lock::write`]: share a key and all keys below it, or hold them alone.
///
/// Add further keys with [`and`](Self::and), [`and_read`](Self::and_read) and
/// [`and_write`](Self::and_write). canal grants all of them together or none.
///
/// # Processes, not threads
///
/// A lock belongs to the process, and all locks of a process belong to one session. A session does
/// not block itself, so locks do not exclude the threads of one process from each other:
///
/// - With `slots`, a process that holds slots of a key and asks for the key again shares the slots
///   that it has. With `per` and `buckets`, each request takes its own slots. A request that cannot
///   fit next to those of its own process fails with [`ErrorKind::Deadlock`].
/// - A process that reads or writes a key does not wait for itself.
/// - While one thread waits, the search for deadlocks treats the whole process as waiting.
///
/// If threads must exclude each other too, add a [`std::sync::Mutex`].
#[derive(Clone, Debug)]
#[must_use = "nothing is locked until `acquire` is called"]
pub struct Lock {
    endpoint: Endpoint,
    /// The request, still without its tag and without what this process inherits.
    asked: Acquire,
    command: Option<String>,
    new_session: bool,
    /// The first error in the request that the builder has found so far.
    fault: Option<String>,
}

impl Lock {
    /// Asks for a counted lock of this key: a path such as `db` or `db/replica/3`, of at most 1,024
    /// bytes.
    pub fn new(key: impl Into<String>) -> Self {
        Self::of(key.into(), None)
    }

    /// Asks to read this key and all keys below it, shared with other readers and with counted
    /// locks.
    pub fn read(key: impl Into<String>) -> Self {
        Self::of(key.into(), Some(Mode::Read))
    }

    /// Asks to write this key and all keys below it, alone.
    pub fn write(key: impl Into<String>) -> Self {
        Self::of(key.into(), Some(Mode::Write))
    }

    fn of(key: String, mode: Option<Mode>) -> Self {
        let endpoint = Endpoint::new();
        let asked = Acquire { on_lost: OnLost::default().into(), ..Acquire::default() };
        let lock = Self { endpoint, asked, command: None, new_session: false, fault: None };
        lock.with(key, mode)
    }

    /// Adds a counted lock of another key. Sizes set after this call apply to that key.
    pub fn and(self, key: impl Into<String>) -> Self {
        self.with(key.into(), None)
    }

    /// Adds another key to read.
    pub fn and_read(self, key: impl Into<String>) -> Self {
        self.with(key.into(), Some(Mode::Read))
    }

    /// Adds another key to write.
    pub fn and_write(self, key: impl Into<String>) -> Self {
        self.with(key.into(), Some(Mode::Write))
    }

    fn with(mut self, key: String, mode: Option<Mode>) -> Self {
        if let Err(error) = Key::new(&key) {
            self.fault.get_or_insert(error.to_string());
        }
        self.asked.items.push(WireItem { key: key.into(), mode, ..WireItem::default() });
        self
    }

    /// Sets the size of the most recently named key to this many slots. The lock is re-entrant for
    /// its session.
    pub fn slots(self, slots: u64) -> Self {
        self.size(|item| item.slots = Some(slots))
    }

    /// Sets how many slots each bucket of the most recently named key has. The key has one bucket
    /// unless [`buckets`](Self::buckets) sets another number.
    pub fn per(self, per: u64) -> Self {
        self.size(|item| {
            item.per = Some(per);
            item.buckets.get_or_insert(1);
        })
    }

    /// Sets how many buckets the most recently named key has. Requires [`per`](Self::per).
    pub fn buckets(self, buckets: u64) -> Self {
        self.size(|item| item.buckets = Some(buckets))
    }

    /// Takes this many slots of the most recently named key at once; 1 by default.
    pub fn count(self, count: u64) -> Self {
        self.size(|item| item.count = Some(count))
    }

    /// Takes a slot of the bucket with the fewest holders instead of the lowest slot of the most
    /// recently named key.
    ///
    /// ```
    /// # fn main() -> Result<(), canal_lock::Error> {
    /// # let daemon = canal::testing::Daemon::start()?;
    /// # let endpoint = daemon.endpoint();
    /// // Three jobs fit on each of four GPUs.
    /// let lock = canal_lock::Lock::new("gpu").per(3).buckets(4).spread();
    /// # let lock = lock.endpoint(&endpoint);
    /// let (first, second) = (lock.acquire()?, lock.acquire()?);
    /// // Slots 0 to 2 are of the first GPU, 3 to 5 of the second.
    /// assert_eq!((first.slot(), second.slot()), (Some(0), Some(3)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn spread(self) -> Self {
        self.size(|item| item.spread = true)
    }

    fn size(mut self, set: impl FnOnce(&mut WireItem)) -> Self {
        if let Some(item) = self.asked.items.last_mut() {
            if item.mode.is_some() {
                let message = format!("`{}` is read or written, so it has no size", item.key);
                self.fault.get_or_insert(message);
            }
            set(item);
        }
        self
    }

    /// Waits at most this long; forever by default. With zero, the request does not wait.
    pub fn wait(mut self, time: Duration) -> Self {
        self.asked.wait_ms = Some(milliseconds_up(time));
        self
    }

    /// Overtakes waiters of a lower priority; 0 by default. A shared daemon may allow priorities
    /// above 0 only to some users.
    pub fn priority(mut self, priority: i32) -> Self {
        self.asked.priority = priority;
        self
    }

    /// Sets what `canal status` shows for this process; its command line by default.
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// Sets a note for other users, such as the address of a CI run. `canal status` and waiters
    /// show it. Everyone who can see the key can read the note, so do not put secrets in it. At
    /// most 512 bytes; canal replaces characters that could control a terminal.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.asked.note = Some(note.into());
        self
    }

    /// Does not wait if this many requests already wait for one of the keys: the call fails with
    /// [`ErrorKind::Busy`]. With 1, one process holds the lock, one waits, and the rest give up.
    pub fn max_waiting(mut self, most: u64) -> Self {
        self.asked.max_waiting = Some(most);
        self
    }

    /// Withdraws older requests of this user that still wait for exactly the same keys. They fail
    /// with [`ErrorKind::Superseded`]. A request never withdraws those of other users.
    ///
    /// ```
    /// # fn main() -> Result<(), canal_lock::Error> {
    /// # let daemon = canal::testing::Daemon::start()?;
    /// # let endpoint = daemon.endpoint();
    /// // Of several deployments that wait, only the newest is worth doing.
    /// let lock = canal_lock::Lock::new("deploy/web").supersede();
    /// # let lock = lock.endpoint(&endpoint);
    /// let guard = lock.acquire()?;
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn supersede(mut self) -> Self {
        self.asked.supersede = Some(Superseded::Waiting);
        self
    }

    /// Names the group of the request. [`supersede`](Self::supersede) then withdraws the requests
    /// of the group, whatever their keys are.
    pub fn group(mut self, name: impl Into<String>) -> Self {
        self.asked.group = Some(name.into());
        self
    }

    /// Does not join the session of the `canal run` under which this process runs. Locks of that
    /// session then block this request as those of any other session do. A process that already
    /// holds a lock stays in its session.
    pub fn new_session(mut self) -> Self {
        self.new_session = true;
        self
    }

    /// Sets what happens to this process if it loses the lock, which can only happen with an
    /// engine. By default, only the [`Guard`] reports the loss.
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.asked.on_lost = on_lost.into();
        self
    }

    /// Sets the daemon to ask; by default, the one that the `canal` command uses.
    pub fn endpoint(mut self, endpoint: &Endpoint) -> Self {
        self.endpoint = endpoint.clone();
        self
    }

    /// Takes the lock, and waits for it up to the time set with [`wait`](Self::wait). If the daemon
    /// is replaced in the meantime, the request keeps its place in the queue.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`], or [`ErrorKind::Busy`] with a wait of zero; [`ErrorKind::Deadlock`];
    /// and the other kinds of [`ErrorKind`].
    pub fn acquire(&self) -> Result<Guard, Error> {
        self.acquire_with(|_| {})
    }

    /// Like [`acquire`](Self::acquire), but calls back while the request waits: when it enters the
    /// queue, and when something changes, at most about once a second.
    ///
    /// # Errors
    /// The same as for [`acquire`](Self::acquire).
    pub fn acquire_with(&self, waiting: impl FnMut(&Progress)) -> Result<Guard, Error> {
        self.obtain(self.asked.wait_ms, waiting)
    }

    /// Takes the lock if it is free and no waiter is ahead in the queue; otherwise returns `None`.
    ///
    /// # Errors
    /// The same as for [`acquire`](Self::acquire), except [`ErrorKind::Busy`].
    pub fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        match self.obtain(Some(0), |_| {}) {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Paused) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn obtain(
        &self,
        wait_ms: Option<u64>,
        mut waiting: impl FnMut(&Progress),
    ) -> Result<Guard, Error> {
        let mut request = Acquire { wait_ms, ..self.request()? };
        let mut client = self.endpoint.connect_for(request.wait_ms)?;
        if !self.new_session {
            request.under = EnclosingLeases::of_environment().at_socket(&client.place.socket);
        }
        let mut within = WaitWithin::new(&client, &request);
        let acquired = client.acquire(&request, None, &mut |progress| {
            if let Some(progress) = progress {
                waiting(progress);
            }
            within.turn(None)
        })?;
        Guard::new(client, request.tag, acquired)
    }

    fn request(&self) -> Result<Acquire, Error> {
        if let Some(fault) = &self.fault {
            return Err(Error::invalid(fault));
        }
        let bytes = self.asked.note.as_ref().map_or(0, String::len);
        if bytes > NOTE_BYTES_MAX {
            let message =
                format!("a note can have at most {NOTE_BYTES_MAX} bytes; this one has {bytes}");
            return Err(Error::invalid(message));
        }
        let own = || process::command_line(std::process::id()).unwrap_or_default();
        let mut request = Acquire {
            tag: client::tag()?,
            command: self.command.clone().unwrap_or_else(own),
            ..self.asked.clone()
        };
        if !self.new_session {
            command_environment::join(&mut request);
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(lock: Lock) -> Acquire {
        lock.new_session().request().unwrap()
    }

    fn fault(lock: Lock) -> String {
        let error = lock.request().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.to_string()
    }

    #[test]
    fn sizes_are_of_the_key_that_was_named_last() {
        let lock = Lock::new("a").slots(2).and("b").per(3).count(2).and_read("c").and_write("d");
        let items = request(lock).items;
        let item = |key: &str| WireItem { key: key.into(), ..WireItem::default() };
        assert_eq!(
            items,
            [
                WireItem { slots: Some(2), ..item("a") },
                WireItem { per: Some(3), buckets: Some(1), count: Some(2), ..item("b") },
                WireItem { mode: Some(Mode::Read), ..item("c") },
                WireItem { mode: Some(Mode::Write), ..item("d") },
            ]
        );
        for lock in [Lock::new("a").per(3).buckets(0), Lock::new("a").buckets(0).per(3)] {
            assert_eq!(request(lock).items[0].buckets, Some(0));
        }
    }

    #[test]
    fn what_is_wrong_is_told_when_it_is_asked_for() {
        assert_eq!(fault(Lock::new("")), "a key cannot be empty");
        assert_eq!(fault(Lock::new("a").and("/b")), "a key cannot begin with `/`; use `b`");
        assert_eq!(fault(Lock::read("a").slots(2)), "`a` is read or written, so it has no size");
        assert_eq!(fault(Lock::new("a/").and("/b")), "a key cannot end with `/`; use `a`");
        let words = "a note can have at most 512 bytes; this one has 513";
        assert_eq!(fault(Lock::new("a").note("x".repeat(513))), words);
    }

    #[test]
    fn a_request_says_what_was_set() {
        let lock = Lock::new("a").priority(3).command("training").on_lost(OnLost::Kill);
        let lock = lock.note("run 7").per(3).spread().supersede().group("main");
        let acquire = request(lock.wait(Duration::from_micros(1)));
        assert_eq!(acquire.note.as_deref(), Some("run 7"));
        assert!(acquire.items[0].spread);
        assert_eq!(acquire.supersede, Some(Superseded::Waiting));
        assert_eq!(acquire.group.as_deref(), Some("main"));
        assert_eq!((acquire.priority, acquire.command.as_str()), (3, "training"));
        assert_eq!(acquire.wait_ms, Some(1));
        assert_eq!(acquire.on_lost, canal_protocol::OnLost::Kill);
        assert_eq!((acquire.session, acquire.frame), (None, None));
        let acquire = request(Lock::new("a"));
        assert_eq!((acquire.wait_ms, acquire.note), (None, None));
        assert_eq!((acquire.supersede, acquire.group), (None, None));
        assert_eq!(acquire.on_lost, canal_protocol::OnLost::Warn);
        assert!(!acquire.command.is_empty());
        assert_ne!(acquire.tag, request(Lock::new("a")).tag);
        assert_eq!(milliseconds_up(Duration::ZERO), 0);
        assert_eq!(milliseconds_up(Duration::MAX), u64::MAX);
    }
}
