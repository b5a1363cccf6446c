//! The daemon's side: one watcher as long as the daemon is a member.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::{PAGE, TOLD_TO_END};
use crate::daemon::Options;
use crate::daemon::due::is_due;
use crate::daemon::events::Source;
use crate::daemon::roll::WatchId;
use crate::daemon::server::Server;
use crate::protocol::place::Rule;
use crate::sys::deadline::Writer;
use crate::sys::fds;

/// How long after one was started the next one is, if that ends.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The watcher of a daemon.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Watcher {
    /// How it is started; `None` where there is none.
    program: Option<Program>,
    /// What it answers for at present.
    duty: WatchId,
    running: Option<Running>,
    /// Those that were killed, until they are reaped.
    ended: Vec<Child>,
    started: Option<Instant>,
    /// When another one is to be started.
    due: Option<Instant>,
}

#[derive(Debug)]
struct Program {
    file: PathBuf,
    arguments: Vec<OsString>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    channel: OwnedFd,
}

impl Watcher {
    /// The one of a daemon with these options.
    pub(in crate::daemon) fn of(options: &Options) -> Self {
        let Options { place, on_demand, verbose, .. } = options;
        let program = options.watcher.as_ref().map(|file| {
            let mut arguments: Vec<OsString> = vec!["daemon".into()];
            // First, so that it is known for a process that serves other clients as well.
            arguments.extend(on_demand.then(|| "--on-demand".into()));
            arguments.push("--watcher".into());
            if place.rule == Rule::Given {
                arguments.extend(["--socket".into(), place.socket.clone().into()]);
            }
            arguments.extend((0..*verbose).map(|_| "-v".into()));
            Program { file: file.clone(), arguments }
        });
        Self { program, ..Self::default() }
    }

    /// Says that the daemon ends because it was told to.
    pub(in crate::daemon) fn say_farewell(&self) {
        if let Some(running) = &self.running {
            let _ = fds::send(running.channel.as_fd(), &[TOLD_TO_END], &[], libc::MSG_DONTWAIT);
        }
    }

    /// Has a watcher answer for the holds of this page, starting one if none runs.
    fn answer_for(&mut self, page: &Writer) -> io::Result<()> {
        let Some(program) = &self.program else { return Ok(()) };
        let running = match self.running.take() {
            Some(running) => running,
            None => {
                self.started = Some(Instant::now());
                program.start()?
            }
        };
        let WatchId(duty) = self.duty;
        let [a, b, c, d, e, f, g, h] = duty.to_ne_bytes();
        let word = [PAGE, a, b, c, d, e, f, g, h];
        let descriptors = [page.page(), page.line()];
        let sent = fds::send(running.channel.as_fd(), &word, &descriptors, libc::MSG_DONTWAIT);
        match sent {
            Ok(_) => self.running = Some(running),
            Err(_) => self.dismiss(running),
        }
        sent.map(drop)
    }

    /// Gives up one that has ended, or does not listen.
    fn dismiss(&mut self, Running { mut child, channel }: Running) {
        drop(channel);
        let _ = child.kill();
        self.ended.push(child);
        self.reap();
    }

    fn reap(&mut self) {
        self.ended.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    /// When another one is to be started.
    pub(in crate::daemon) fn due(&self) -> Option<Instant> {
        self.due
    }
}

impl Program {
    fn start(&self) -> io::Result<Running> {
        let (channel, its) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let mut command = Command::new(&self.file);
        command.arg0("canal").args(&self.arguments).stdin(its).stdout(Stdio::null());
        Ok(Running { child: command.spawn()?, channel })
    }
}

impl Server {
    /// Hands the holds of a new membership over to a watcher.
    pub(in crate::daemon) fn begin_watch(&mut self) {
        if self.link.watcher.program.is_none() {
            return;
        }
        let mut id = [0; 8];
        if let Err(error) = getrandom::fill(&mut id) {
            return tracing::error!(%error, "no watcher can be told apart");
        }
        self.link.watcher.duty = WatchId(u64::from_ne_bytes(id));
        self.keep_watcher();
        // Not before: that of the daemon before this one ends as soon as it reads this.
        if let Err(error) = self.roll.hand_over_to(self.link.watcher.duty) {
            tracing::error!(%error, "the watcher cannot be recorded");
        }
    }

    fn keep_watcher(&mut self) {
        let Some(page) = &self.deadline else { return };
        let before = self.link.watcher.running.is_some();
        let kept = self.link.watcher.answer_for(page);
        let kept = kept.and_then(|()| match &self.link.watcher.running {
            Some(running) if !before => self.conns.await_source(Source::Watcher, &running.channel),
            _ => Ok(()),
        });
        if let Err(error) = kept {
            tracing::error!(%error, "no watcher can be started; tried again");
            if let Some(running) = self.link.watcher.running.take() {
                self.link.watcher.dismiss(running);
            }
            self.link.watcher.due = Some(Instant::now() + AGAIN_AFTER);
        }
    }

    /// Starts another watcher in the place of one that has ended.
    pub(in crate::daemon) fn look_after_watcher(&mut self, now: Instant) {
        if self.conns.reported.take(Source::Watcher)
            && let Some(running) = self.link.watcher.running.take()
        {
            tracing::warn!(
                pid = running.child.id(),
                "the watcher has ended; another one is started"
            );
            self.link.watcher.dismiss(running);
            let started = self.link.watcher.started.unwrap_or(now);
            self.link.watcher.due = Some(now.max(started + AGAIN_AFTER));
        }
        if is_due(&mut self.link.watcher.due, now) {
            self.link.watcher.reap();
            self.keep_watcher();
        }
    }
}
