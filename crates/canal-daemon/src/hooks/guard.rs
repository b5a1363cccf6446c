//! The guard of a hook: a process between the daemon and the program of the hook.
//!
//! It starts the program for one event. It ends the program and everything that it started when the
//! program exits, at its timeout, or when the daemon has ended in any way. If the program runs as
//! another user than the daemon, the guard stays root, so that the program can neither end nor stop
//! it.
//!
//! PR_SET_PDEATHSIG alone would end neither the children of the program nor a program that changed
//! its user.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use canal_sys::process::user::geteuid;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, setsid};
use serde::{Deserialize, Serialize};

use crate::hooks::account::Account;
use crate::hooks::facts::Facts;
use crate::hooks::program;
use canal_sys::pidfd::Pidfd;
use canal_sys::process::become_subreaper;
use canal_sys::process::child::{Reap, children, ended, spawn_apart};
use canal_sys::signals::SignalRefused;
use canal_sys::{fds, signals};

/// The descriptor of the guard's end of the channel to the daemon.
const CHANNEL: i32 = 0;

/// The PATH of the program.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The LANG of the program.
const LANG: &str = "C.UTF-8";

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

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// The program ended with this exit code.
    Exited(i32),
    /// A signal killed the program.
    Killed(i32),
    /// The program was killed because it ran too long.
    TimedOut,
    /// The program ran too long, and a process that it started cannot be killed. The reason is text
    /// for people.
    NotEnded(String),
    /// The program was killed because the daemon ended.
    DaemonEnded,
    /// The program was not started. The reason is text for people.
    NotStarted(String),
}

/// Does the job that the daemon sends, and reports the result.
///
/// # Errors
/// The caller is not a child of a daemon.
pub fn guard() -> anyhow::Result<()> {
    let mut channel = stand_alone().context(STARTED_BY)?;
    let mut job = Vec::new();
    channel.read_to_end(&mut job).context(STARTED_BY)?;
    let job: Job = serde_json::from_slice(&job).context(STARTED_BY)?;
    let outcome = job.carry_out(&channel);
    let outcome = serde_json::to_vec(&outcome)?;
    // The daemon may have ended.
    let _ = fds::send(channel.as_fd(), &outcome, &[], 0);
    Ok(())
}

/// Drops everything inherited from the daemon, except for the channel to it.
fn stand_alone() -> io::Result<UnixStream> {
    let channel = fds::adopt(CHANNEL)?;
    fds::close_from(3);
    // A signal to the job of a daemon in the foreground must not end the guard.
    setsid()?;
    std::env::set_current_dir("/")?;
    umask(Mode::from_bits_truncate(0o022));
    // The daemon ignores SIGXFSZ.
    signals::set_default(Signal::SIGXFSZ)?;
    signals::set_default(Signal::SIGCHLD)?;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(DESCRIPTORS), hard)?;
    become_subreaper()?;
    // The kernel took the process name from the file that was executed, which has another name.
    let _ = prctl::set_name(c"canal");
    Ok(channel.into())
}

impl Job {
    fn carry_out(self, channel: &UnixStream) -> Outcome {
        let until = Instant::now() + Duration::from_millis(self.timeout_ms);
        match self.start() {
            Ok(child) => watch(child, channel, until),
            Err(why) => Outcome::NotStarted(why),
        }
    }

    /// Starts the program. Its standard input is a file with the facts, so that it does not matter
    /// whether the program reads them.
    fn start(self) -> Result<Child, String> {
        let account = Account::find(self.user.as_deref())?;
        let (file, arguments) = self.run.split_first().ok_or("it does not name a program")?;
        program::check(Path::new(file), geteuid().as_raw(), account.uid)?;
        let line = self.facts.for_viewer(account.uid).line();
        let input = file_of(&line).map_err(|error| format!("cannot open its input: {error}"))?;
        let mut command = Command::new(file);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", &account.home)
            .env("USER", &account.name)
            .env("LANG", LANG)
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        spawn_apart(&mut command, account.ids).map_err(|error| error.to_string())
    }
}

/// A file in memory with this content, positioned at its beginning.
fn file_of(content: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("canal-hook", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

/// Waits until the program has ended or must end, and ends everything that it started.
fn watch(mut child: Child, channel: &UnixStream, until: Instant) -> Outcome {
    let Ok(pidfd) = Pidfd::open(child.id()) else {
        // The process has no descriptor left.
        let (status, refused) = end_all(&mut child, None);
        return outcome(status, Some(timed_out(refused)));
    };
    let cut_short = wait(&pidfd, channel, until);
    let (status, refused) = end_all(&mut child, Some(&pidfd));
    outcome(
        status,
        cut_short.map(|it| if it == Outcome::TimedOut { timed_out(refused) } else { it }),
    )
}

/// Waits until the program ends by itself. Otherwise returns why it must end.
fn wait(pidfd: &Pidfd, channel: &UnixStream, until: Instant) -> Option<Outcome> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        // poll(2) always reports that the other side has closed.
        let mut found = [
            PollFd::new(pidfd.as_fd(), PollFlags::POLLIN),
            PollFd::new(channel.as_fd(), PollFlags::empty()),
        ];
        match poll(&mut found, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return Some(Outcome::TimedOut),
        }
        let is_gone = found[1].revents().is_some_and(|events| !events.is_empty());
        if pidfd.has_ended() {
            return None;
        }
        if is_gone {
            return Some(Outcome::DaemonEnded);
        }
        if left.is_zero() {
            return Some(Outcome::TimedOut);
        }
    }
}

/// The outcome for a program that ran too long.
fn timed_out(refused: Option<SignalRefused>) -> Outcome {
    refused.map_or(Outcome::TimedOut, |refused| Outcome::NotEnded(refused.to_string()))
}

fn outcome(status: Option<ExitStatus>, cut_short: Option<Outcome>) -> Outcome {
    if let Some(cut_short) = cut_short {
        return cut_short;
    }
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => Outcome::Exited(code),
        Some((None, Some(signal))) => Outcome::Killed(signal),
        _ => Outcome::TimedOut,
    }
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
        pidfd.wait_end(u16::try_from(END_MAX.as_millis()).unwrap_or(u16::MAX));
    }
    let status = child.try_wait().ok().flatten();
    let mut refused = None;
    while Instant::now() < until {
        let left = children().unwrap_or_default();
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
    use super::*;

    #[test]
    fn input_is_read_from_its_beginning() {
        let mut text = String::new();
        file_of(b"{}\n").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "{}\n");
    }

    #[test]
    fn why_a_program_had_to_end_says_more_than_its_status() {
        let killed = Some(ExitStatus::from_raw(9));
        assert_eq!(outcome(killed, Some(Outcome::TimedOut)), Outcome::TimedOut);
        let refused = SignalRefused { pid: Pid::from_raw(12), uid: Some(0) };
        let why = "cannot signal pid 12: it runs as root".to_owned();
        assert_eq!(outcome(None, Some(timed_out(Some(refused)))), Outcome::NotEnded(why));
        assert_eq!(outcome(killed, None), Outcome::Killed(9));
        assert_eq!(outcome(Some(ExitStatus::from_raw(3 << 8)), None), Outcome::Exited(3));
        let text = serde_json::to_string(&Outcome::NotStarted("x".to_owned())).unwrap();
        assert_eq!(text, "{\"not-started\":\"x\"}");
        assert_eq!(serde_json::from_str::<Outcome>("\"timed-out\"").unwrap(), Outcome::TimedOut);
    }

    #[test]
    fn a_daemon_that_is_gone_and_a_time_that_is_over_end_the_wait() {
        let (ours, its) = UnixStream::pair().unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pidfd = Pidfd::open(child.id()).unwrap();
        let soon = || Instant::now() + Duration::from_millis(20);
        // The daemon has only finished sending, so the program must not end.
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(wait(&pidfd, &its, soon()), Some(Outcome::TimedOut));
        drop(ours);
        let late = Instant::now() + Duration::from_secs(600);
        assert_eq!(wait(&pidfd, &its, late), Some(Outcome::DaemonEnded));
        child.kill().unwrap();
        assert!(pidfd.wait_end(10_000));
        assert_eq!(wait(&pidfd, &its, late), None);
        child.wait().unwrap();
    }
}
