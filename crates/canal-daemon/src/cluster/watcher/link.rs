//! The daemon's side of the watcher: one watcher process while the daemon is a member.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::cluster::watcher::{PAGE, TOLD_TO_END};
use crate::options::Options;
use crate::processes::holder_record::WatchId;
use canal_protocol::place::Rule;
use canal_sys::deadline::Writer;
use canal_sys::{clock, fds};

/// The minimum time between two starts of a watcher.
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The watcher of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    /// How the watcher is started. `None` if this daemon has no watcher.
    pub(super) program: Option<Program>,
    /// The holds that the watcher is responsible for at present.
    pub(super) duty: WatchId,
    pub(super) running: Option<Running>,
    /// Watchers that were killed, until they are reaped.
    ended: Vec<Child>,
    pub(super) started: Option<Instant>,
    /// When to start another watcher.
    pub due: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Program {
    file: PathBuf,
    arguments: Vec<OsString>,
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) child: Child,
    pub(super) channel: OwnedFd,
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
            Program { file: file.clone(), arguments }
        });
        Self { program, ..Self::default() }
    }

    /// Tells the watcher that the daemon ends on purpose.
    pub(crate) fn say_farewell(&self) {
        if let Some(running) = &self.running {
            let _ = fds::send(running.channel.as_fd(), &[TOLD_TO_END], &[], libc::MSG_DONTWAIT);
        }
    }

    /// Makes a watcher responsible for the holds of this page. Starts a watcher if none runs.
    pub(super) fn answer_for(&mut self, page: &Writer) -> io::Result<()> {
        let Some(program) = &self.program else { return Ok(()) };
        let running = match self.running.take() {
            Some(running) => running,
            None => {
                self.started = Some(clock::now());
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

    /// Kills a watcher that has ended or does not read its channel.
    pub(super) fn dismiss(&mut self, Running { mut child, channel }: Running) {
        drop(channel);
        let _ = child.kill();
        self.ended.push(child);
        self.reap();
    }

    pub(super) fn reap(&mut self) {
        self.ended.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
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
