//! The guard of a hook: a process between the daemon and the program of the hook.
//!
//! It starts the program for one event. It ends the program and everything that it started when the
//! program exits, at its timeout, or when the daemon has ended in any way. If the program runs as
//! another user than the daemon, the guard stays root, so that the program can neither end nor stop
//! it.
//!
//! PR_SET_PDEATHSIG alone would end neither the children of the program nor a program that changed
//! its user.
//!
//! Before it starts the program, it checks that no other user can have written it. A user who could
//! write the program could act as the user of the hook. As with the configuration, canal does not
//! check the directories above the file.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, Uid, User};
use serde::{Deserialize, Serialize};

use crate::config::file::{Config, check_writers};
use crate::hooks::event::Facts;
use canal_protocol::paths::Place;
use canal_sys::pidfd::Pidfd;
use canal_sys::process::child::{
    Reap, UserIds, become_subreaper, children_of, ended, leave_parent, spawn_apart,
};
use canal_sys::process::user::{self, SignalRefused, found, geteuid};
use canal_sys::{fds, signals};
use canal_text::duration::stated;

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
    let outcome = job.carry_out(&channel);
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

impl Job {
    fn carry_out(self, channel: &UnixStream) -> Outcome {
        let timeout = Duration::from_millis(self.timeout_ms);
        let until = Instant::now() + timeout;
        match self.start() {
            Ok(child) => watch(child, channel, until, timeout),
            Err(why) => Some(format!("could not be started: {why}")),
        }
    }

    /// Starts the program. Its standard input is a file with the facts, so that it does not matter
    /// whether the program reads them.
    fn start(self) -> Result<Child, String> {
        let (file, arguments) = self.run.split_first().ok_or("it does not name a program")?;
        let account = find_program(file, self.user.as_deref(), geteuid().as_raw())?;
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
    let cut_short =
        pidfd.as_ref().map_or(Some(CutShort::TimedOut), |pidfd| wait(pidfd, channel, until));
    let (status, refused) = end_all(&mut child, pidfd.as_ref());
    outcome(status, cut_short, refused, timeout)
}

/// Waits until the program ends by itself. Otherwise returns why it must end.
fn wait(pidfd: &Pidfd, channel: &UnixStream, until: Instant) -> Option<CutShort> {
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
            Err(_) => return Some(CutShort::TimedOut),
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

/// The user that runs the program of a hook.
#[derive(Debug)]
pub(crate) struct Account {
    pub uid: u32,
    pub name: String,
    pub home: PathBuf,
    /// The ids to change to; `None` if this process already has them.
    pub ids: Option<UserIds>,
}

impl Account {
    /// Looks up a user by name or number; without one, the user of the daemon. The lookup may wait
    /// for a directory service.
    ///
    /// # Errors
    /// Nothing can run as that user. The reason is text for people.
    pub(crate) fn find(user: Option<&str>, daemon: u32) -> Result<Self, String> {
        let own = Uid::from_raw(daemon);
        let Some(wanted) = user else {
            // A container may run the daemon under a number that no password database contains.
            let known = User::from_uid(own).ok().flatten();
            let (name, home) = known.map_or_else(
                || (own.to_string(), PathBuf::from("/")),
                |user| (user.name, user.dir),
            );
            return Ok(Self { uid: own.as_raw(), name, home, ids: None });
        };
        let found = known(wanted)?;
        let ids = if found.uid == own {
            None
        } else if own.is_root() {
            let failed = |error| format!("cannot look up the groups of `{wanted}`: {error}");
            Some(UserIds::of(&found).map_err(failed)?)
        } else {
            return Err(format!("only root's daemon can run it as another user (`{wanted}`)"));
        };
        Ok(Self { uid: found.uid.as_raw(), name: found.name, home: found.dir, ids })
    }
}

/// Looks up a user by name or number.
fn known(user: &str) -> Result<User, String> {
    let failed = |error| format!("cannot look up the user `{user}`: {error}");
    let mut account = found(User::from_name(user)).map_err(failed)?;
    if account.is_none()
        && let Ok(number) = user.parse::<u32>()
    {
        account = found(User::from_uid(Uid::from_raw(number))).map_err(failed)?;
    }
    account.ok_or_else(|| format!("there is no user `{user}`"))
}

/// Looks up the user that runs a program of a daemon of the user `daemon`, and checks the program.
fn find_program(path: &str, user: Option<&str>, daemon: u32) -> Result<Account, String> {
    let account = Account::find(user, daemon)?;
    check_program(Path::new(path), daemon, account.uid)?;
    Ok(account)
}

/// Checks the program of a hook that a daemon of the user `daemon` runs as `user`. Links are
/// followed; the checks apply to their target.
///
/// # Errors
/// It must not or cannot be run. The reason is text for people.
pub(crate) fn check_program(path: &Path, daemon: u32, user: u32) -> Result<(), String> {
    let found = std::fs::metadata(path).map_err(|error| format!("cannot read it: {error}"))?;
    if !found.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let owned = user::stat(path).map_err(|error| format!("cannot read it: {error}"))?;
    check_writers(path, &owned, &[daemon, user]).map_err(|why| format!("it {why}"))?;
    let mode = owned.st_mode & 0o7777;
    if mode & 0o111 == 0 {
        return Err(format!("it is not executable (mode {mode:04o})"));
    }
    Ok(())
}

/// A hook of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenHook {
    /// Its name in `canal config`: `hooks[0]`.
    pub name: String,
    /// The program.
    pub program: String,
    /// Why it could not run, as text for people; `None` if it could.
    pub problem: Option<String>,
}

/// Checks whether the programs of the hooks that a daemon of the user `daemon` would have at a
/// place could run, without running them.
///
/// # Errors
/// The configuration cannot be read or used. The error names the file and the line.
pub fn look_at(place: &Place, daemon: u32) -> anyhow::Result<Vec<SeenHook>> {
    let config = Config::read(&place.stores().config)?;
    let seen = config.hooks.iter().enumerate().map(|(number, hook)| {
        let problem = match &hook.user {
            None if daemon == 0 => Some("root's daemon needs `user` for it".to_owned()),
            user => find_program(hook.program(), user.as_deref(), daemon).err(),
        };
        SeenHook { name: format!("hooks[{number}]"), program: hook.program().to_owned(), problem }
    });
    Ok(seen.collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn input_is_read_from_its_beginning() {
        let mut text = String::new();
        file_of(b"{}\n").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "{}\n");
    }

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

    #[test]
    fn a_user_is_found_by_name_and_number() {
        let root = Account::find(Some("root"), geteuid().as_raw());
        let by_number = Account::find(Some("0"), geteuid().as_raw());
        if geteuid().is_root() {
            let (root, by_number) = (root.unwrap(), by_number.unwrap());
            assert_eq!((root.uid, root.name.as_str(), root.ids.is_none()), (0, "root", true));
            assert_eq!((by_number.uid, by_number.home), (0, root.home));
        } else {
            assert!(root.unwrap_err().starts_with("only root's daemon can run it"));
        }
        let own = Account::find(None, geteuid().as_raw()).unwrap();
        assert_eq!((own.uid, own.ids.is_none()), (geteuid().as_raw(), true));
        let nobody = Account::find(Some("no such user"), geteuid().as_raw()).unwrap_err();
        assert_eq!(nobody, "there is no user `no such user`");
    }

    #[test]
    fn a_program_that_others_can_write_or_own_is_refused() {
        let own = geteuid().as_raw();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tell");
        let why = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            check_program(&path, own, own).err()
        };
        assert!(
            check_program(&path, own, own).unwrap_err().contains("cannot read it: No such file")
        );
        fs::write(&path, "").unwrap();
        for mode in [0o755, 0o700, 0o500, 0o711] {
            assert_eq!(why(mode), None, "{mode:o}");
        }
        for mode in [0o777, 0o775, 0o722] {
            assert!(why(mode).unwrap().contains("`chmod go-w "), "{mode:o}");
        }
        assert_eq!(why(0o644).unwrap(), "it is not executable (mode 0644)");
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(check_program(&link, own, own).unwrap_err().contains("not executable"));
        assert_eq!(check_program(dir.path(), own, own).unwrap_err(), "it is not a regular file");
    }

    #[test]
    fn a_program_belongs_to_root_the_daemon_or_the_hooks_user() {
        if !geteuid().is_root() {
            return; // Nobody else can give a file away.
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tell");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(check_program(&path, 12345, 12346), Ok(()), "root's");
        chown(&path, Some(12345), None).unwrap();
        assert_eq!(check_program(&path, 12345, 12345), Ok(()));
        assert_eq!(
            check_program(&path, 0, 12345),
            Ok(()),
            "it can do as that user what that user can"
        );
        let refused = check_program(&path, 0, 12346).unwrap_err();
        assert_eq!(refused, "it belongs to uid 12345 and must belong to root or uid 12346");
    }
}
