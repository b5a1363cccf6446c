//! The guard of a hook: a process between the daemon and the program of the hook.
//!
//! It starts the program for one event. It ends the program and everything that it started when the
//! program exits, at its timeout, or when the daemon has ended in any way. If the program runs as
//! another user than the daemon, the guard stays root, so that the program can neither end nor stop
//! it.
//!
//! PR_SET_PDEATHSIG alone would end neither the children of the program nor a program that changed
//! its user.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::poll::{PollFd, PollFlags};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::stat::{Mode, umask};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::hooks::event::Facts;
use crate::hooks::program_environment;
use canal_sys::pidfd::Pidfd;
use canal_sys::process::child::{Reap, become_subreaper, children_of, ended, leave_parent};
use canal_sys::process::user::SignalRefused;
use canal_sys::{fds, signals};
use canal_text::duration::stated;

/// The descriptor of the guard's end of the channel to the daemon.
const CHANNEL: i32 = 0;

/// The limit on the program's descriptors. The daemon's limit may be higher, and a program that
/// closes all descriptors one by one would take long.
const DESCRIPTORS: u64 = 1024;

/// How long the guard waits for the end of the processes that it has killed. A process that waits
/// for a disk ends later.
const END_MAX: Duration = Duration::from_secs(5);

const STARTED_BY: &str = "only a daemon can start the guard of a hook";

/// The job of a guard.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The program and its arguments.
    pub run: Vec<String>,
    pub user: Option<String>,
    pub timeout_ms: u64,
    pub facts: Facts,
}

/// The result of a job: what went wrong with the program, as text for people; `None` if it did its
/// work or the daemon has ended.
pub(crate) type Outcome = Option<String>;

/// Does the job that the daemon sends, and reports the result.
///
/// # Errors
/// The caller is not a child of a daemon.
pub fn guard() -> anyhow::Result<()> {
    let mut channel = stand_alone().context(STARTED_BY)?;
    let mut job = Vec::new();
    channel.read_to_end(&mut job).context(STARTED_BY)?;
    let job: Job = serde_json::from_slice(&job).context(STARTED_BY)?;
    let timeout = Duration::from_millis(job.timeout_ms);
    let until = Instant::now() + timeout;
    let outcome = match program_environment::start(&job.run, job.user.as_deref(), job.facts) {
        Ok(child) => watch(child, &channel, until, timeout),
        Err(why) => Some(format!("could not be started: {why}")),
    };
    let outcome = serde_json::to_vec(&outcome)?;
    // The daemon may have ended.
    let _ = fds::send(channel.as_fd(), &outcome, &[], 0);
    Ok(())
}

/// Drops everything inherited from the daemon, except for the channel to it.
fn stand_alone() -> io::Result<UnixStream> {
    let channel = leave_parent(CHANNEL)?;
    umask(Mode::from_bits_truncate(0o022));
    // The daemon ignores SIGXFSZ.
    signals::set_default(Signal::SIGXFSZ)?;
    signals::set_default(Signal::SIGCHLD)?;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(DESCRIPTORS), hard)?;
    become_subreaper()?;
    Ok(channel.into())
}

/// Why a program must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CutShort {
    TimedOut,
    DaemonEnded,
}

/// Waits until the program has ended or must end, and ends everything that it started.
fn watch(mut child: Child, channel: &UnixStream, until: Instant, timeout: Duration) -> Outcome {
    // Without a pidfd, the process has no descriptor left.
    let pidfd = Pidfd::open(child.id()).ok();
    let cut_short = pidfd.as_ref().map_or(Some(CutShort::TimedOut), |it| wait(it, channel, until));
    let (status, refused) = end_all(&mut child, pidfd.as_ref());
    outcome(status, cut_short, refused, timeout)
}

/// Waits until the program ends by itself. Otherwise returns why it must end.
fn wait(pidfd: &Pidfd, channel: &UnixStream, until: Instant) -> Option<CutShort> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // poll(2) always reports that the other side has closed.
        let mut found = [
            PollFd::new(pidfd.as_fd(), PollFlags::POLLIN),
            PollFd::new(channel.as_fd(), PollFlags::empty()),
        ];
        if fds::poll_within(&mut found, Some(left)).is_err() {
            return Some(CutShort::TimedOut);
        }
        let is_gone = found[1].revents().is_some_and(|events| !events.is_empty());
        if pidfd.has_ended() {
            return None;
        }
        if is_gone {
            return Some(CutShort::DaemonEnded);
        }
        if left.is_zero() {
            return Some(CutShort::TimedOut);
        }
    }
}

/// The outcome for a program that ended with a status or had to end, and for a process that it
/// started and that cannot be killed.
fn outcome(
    status: Option<ExitStatus>,
    cut_short: Option<CutShort>,
    refused: Option<SignalRefused>,
    timeout: Duration,
) -> Outcome {
    let timeout = stated(timeout);
    Some(match (cut_short, status.map(|status| (status.code(), status.signal())), refused) {
        (Some(CutShort::DaemonEnded), ..) | (None, Some((Some(0), _)), _) => return None,
        (None, Some((Some(code), _)), _) => format!("ended with exit code {code}"),
        (None, Some((_, Some(signal))), _) => format!("was killed by signal {signal}"),
        (.., Some(why)) => format!("has been running for longer than {timeout}: {why}"),
        (.., None) => format!("was killed: it ran longer than {timeout}"),
    })
}

/// Kills the process group of the program, then the processes that have left the group, which by
/// then are children of this process. Returns how the program ended, if it has, and a process that
/// cannot be killed, if there is one.
fn end_all(
    child: &mut Child,
    pidfd: Option<&Pidfd>,
) -> (Option<ExitStatus>, Option<SignalRefused>) {
    // The program is not reaped yet, so its group id cannot belong to another group.
    let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
    let until = Instant::now() + END_MAX;
    if let Some(pidfd) = pidfd {
        pidfd.wait_end(END_MAX);
    }
    let status = child.try_wait().ok().flatten();
    let mut refused = None;
    while Instant::now() < until {
        let left = children_of(Pid::this()).unwrap_or_default();
        refused = None;
        if left.is_empty() {
            break;
        }
        for pid in &left {
            let killed = kill(*pid, Signal::SIGKILL).map_err(io::Error::from);
            refused = SignalRefused::by(&killed, *pid).or(refused);
            let _ = ended(*pid, Reap::Now);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    (status, refused)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn why_a_program_had_to_end_says_more_than_its_status() {
        let found = |status: Option<i32>, cut_short, refused| {
            let status = status.map(ExitStatus::from_raw);
            outcome(status, cut_short, refused, Duration::from_secs(3))
        };
        let (late, gone) = (Some(CutShort::TimedOut), Some(CutShort::DaemonEnded));
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(found(Some(9), late, None), text("was killed: it ran longer than 3s"));
        let refused = SignalRefused { pid: Pid::from_raw(12), uid: Some(0) };
        let why = "has been running for longer than 3s: cannot signal pid 12: it runs as root";
        assert_eq!(found(None, late, Some(refused)), text(why));
        assert_eq!(found(Some(9), None, None), text("was killed by signal 9"));
        assert_eq!(found(Some(3 << 8), None, None), text("ended with exit code 3"));
        assert_eq!((found(Some(0), None, None), found(Some(9), gone, None)), (None, None));
    }

    #[test]
    fn a_daemon_that_is_gone_and_a_time_that_is_over_end_the_wait() {
        let (ours, its) = UnixStream::pair().unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pidfd = Pidfd::open(child.id()).unwrap();
        let soon = || Instant::now() + Duration::from_millis(20);
        // The daemon has only finished sending, so the program must not end.
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(wait(&pidfd, &its, soon()), Some(CutShort::TimedOut));
        drop(ours);
        let late = Instant::now() + Duration::from_secs(600);
        assert_eq!(wait(&pidfd, &its, late), Some(CutShort::DaemonEnded));
        child.kill().unwrap();
        assert!(pidfd.wait_end(Duration::from_millis(10_000)));
        assert_eq!(wait(&pidfd, &its, late), None);
        child.wait().unwrap();
    }
}
