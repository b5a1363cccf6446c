//! The watcher: a process that outlives a daemon with an engine.
//!
//! Only the daemon ends the owners of `canal acquire --pid`, and the commands of a killed `canal
//! run`, in time. So a member keeps one watcher process, which starts the next daemon when this one
//! has ended. If no daemon takes the holds over before the deadline, the watcher ends the recorded
//! processes itself.
//!
//! A watcher does not replace a daemon that is stopped: to notice one, it would have to wake at
//! each renewal.
//!
//! This file is the daemon's side; `watcher_process` is the process.
//!
//! Invariant: while the record contains the id of a watcher ([`WatchId`]) and a process, this
//! watcher runs, unless the watcher itself was killed.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::net::connections::{Conns, Source};
use crate::options::Options;
use crate::processes::holder_record::{HolderRecord, WatchId};
use crate::timers::is_due;
use canal_protocol::paths::Rule;
use canal_sys::clock;
use canal_sys::deadline::Writer;
use canal_sys::fds;

/// The descriptor of the watcher's end of the channel to the daemon.
pub(super) const CHANNEL: RawFd = 0;

/// Message: the deadline page of the daemon's membership. Its two descriptors come with the
/// message, and the eight bytes of the [`WatchId`]
/// follow.
pub(super) const PAGE: u8 = b'p';

/// Message: the daemon ends on purpose, so the watcher must not start another daemon.
pub(super) const TOLD_TO_END: u8 = b'e';

/// The minimum time between two starts of a watcher.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The watcher of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    /// The program of the watcher, and its arguments. `None` if this daemon has no watcher.
    program: Option<(PathBuf, Vec<OsString>)>,
    /// The holds that the watcher is responsible for at present.
    duty: WatchId,
    running: Option<Running>,
    /// Watchers that were killed, until they are reaped.
    ended: Vec<Child>,
    started: Option<Instant>,
    /// When to start another watcher.
    pub due: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    channel: OwnedFd,
}

impl Watcher {
    /// The watcher for a daemon with these options.
    pub(crate) fn of(options: &Options) -> Self {
        let Options { place, on_demand, verbose, .. } = options;
        let program = options.watcher.as_ref().map(|file| {
            let mut arguments: Vec<OsString> = vec!["daemon".into()];
            // This option comes first, so that a process that also serves other clients can
            // recognize the watcher by it.
            arguments.extend(on_demand.then(|| "--on-demand".into()));
            arguments.push("--watcher".into());
            if place.rule != Rule::Shared {
                arguments.extend(["--socket".into(), place.socket.clone().into()]);
            }
            arguments.extend((0..*verbose).map(|_| "-v".into()));
            (file.clone(), arguments)
        });
        Self { program, ..Self::default() }
    }

    /// Tells the watcher that the daemon ends on purpose.
    pub(crate) fn say_farewell(&self) {
        if let Some(running) = &self.running {
            let _ = fds::send(running.channel.as_fd(), &[TOLD_TO_END], &[], libc::MSG_DONTWAIT);
        }
    }

    /// Hands the holds of a new membership over to a watcher.
    pub(super) fn begin(&mut self, record: &mut HolderRecord, page: &Writer, conns: &Conns) {
        #[cfg(test)]
        if canal_sys::kernel::simulated::current().is_some() {
            // In the simulation, the simulator is the watcher of all daemons.
            let _ = record.hand_over_to(WatchId::default());
        }
        if self.program.is_none() {
            return;
        }
        let mut id = [0; 8];
        if let Err(error) = getrandom::fill(&mut id) {
            return tracing::error!(%error, "cannot create an id for the watcher");
        }
        self.duty = WatchId(u64::from_ne_bytes(id));
        self.keep(page, conns);
        // The watcher must run before this line: the watcher of the previous daemon ends as soon as
        // it reads the new id.
        if let Err(error) = record.hand_over_to(self.duty) {
            tracing::error!(%error, "cannot record the watcher");
        }
    }

    fn keep(&mut self, page: &Writer, conns: &Conns) {
        let before = self.running.is_some();
        let kept = self.answer_for(page);
        let kept = kept.and_then(|()| match &self.running {
            Some(running) if !before => conns.await_source(Source::WATCHER, &running.channel),
            _ => Ok(()),
        });
        if let Err(error) = kept {
            tracing::error!(%error, "cannot start a watcher; trying again");
            if let Some(running) = self.running.take() {
                self.dismiss(running);
            }
            self.due = Some(clock::now() + AGAIN_AFTER);
        }
    }

    /// Starts another watcher in place of one that has ended.
    pub(super) fn look_after(&mut self, page: Option<&Writer>, conns: &mut Conns, now: Instant) {
        if conns.reported.remove(&Source::WATCHER)
            && let Some(running) = self.running.take()
        {
            tracing::warn!(pid = running.child.id(), "the watcher has ended; starting another one");
            self.dismiss(running);
            let started = self.started.unwrap_or(now);
            self.due = Some(now.max(started + AGAIN_AFTER));
        }
        if is_due(&mut self.due, now) {
            self.reap();
            page.into_iter().for_each(|page| self.keep(page, conns));
        }
    }

    /// Makes a watcher responsible for the holds of this page. Starts a watcher if none runs.
    fn answer_for(&mut self, page: &Writer) -> io::Result<()> {
        let Some(program) = &self.program else { return Ok(()) };
        let running = match self.running.take() {
            Some(running) => running,
            None => {
                self.started = Some(clock::now());
                start(program)?
            }
        };
        let WatchId(duty) = self.duty;
        let [a, b, c, d, e, f, g, h] = duty.to_ne_bytes();
        let word = [PAGE, a, b, c, d, e, f, g, h];
        let descriptors = page.reader.descriptors();
        let sent = fds::send(running.channel.as_fd(), &word, &descriptors, libc::MSG_DONTWAIT);
        match sent {
            Ok(_) => self.running = Some(running),
            Err(_) => self.dismiss(running),
        }
        sent.map(drop)
    }

    /// Kills a watcher that has ended or does not read its channel.
    fn dismiss(&mut self, Running { mut child, channel }: Running) {
        drop(channel);
        let _ = child.kill();
        self.ended.push(child);
        self.reap();
    }

    fn reap(&mut self) {
        self.ended.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

fn start((file, arguments): &(PathBuf, Vec<OsString>)) -> io::Result<Running> {
    let (channel, its) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let mut command = Command::new(file);
    command.arg0("canal").args(arguments).stdin(its).stdout(Stdio::null());
    Ok(Running { child: command.spawn()?, channel })
}
