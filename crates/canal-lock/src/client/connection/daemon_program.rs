//! Decides which program is the daemon, which processes are daemons that a client started, and who
//! starts the daemon that all users share: a client, or the service manager of this machine.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::client::error::{ClientError, Result};
use canal_protocol::paths::{Place, Rule};
use canal_sys::process::find_command::lookup;
use canal_sys::process::user::geteuid;
use canal_sys::process::{self, file_of, path_of, startup};

/// This program itself, for [`Options::program`](crate::client::Options::program). A program that
/// is canal uses it, whatever the name of its file.
pub const OWN: &str = "/proc/self/exe";

/// The first arguments of a daemon that a client started.
pub(super) const ARGV: [&str; 3] = ["canal", "daemon", "--on-demand"];

/// The program to start as the daemon: the given one, or the `canal` in PATH.
pub(in crate::client) fn find(said: Option<&Path>) -> Result<PathBuf> {
    match said {
        // A newer file may have replaced the file of this program.
        Some(said) if said == Path::new(OWN) => {
            Ok(own_paths().find(|path| path.exists()).unwrap_or_else(own_program))
        }
        Some(said) => Ok(said.to_owned()),
        None => lookup(OsStr::new("canal")).map_err(|not_run| {
            ClientError::Start(match not_run.is_not_found() {
                true => "cannot start a daemon: there is no `canal` in PATH".to_owned(),
                false => format!("cannot start {}: {}", not_run.command.display(), not_run.error),
            })
        }),
    }
}

/// This program, by a path that can be executed: [`OWN`], or, without /proc, the path by which the
/// program itself was executed.
pub fn own_program() -> PathBuf {
    let own = PathBuf::from(OWN);
    if own.exists() { own } else { startup::executed_as().unwrap_or(own) }
}

/// The path of this program's file when the program started. It may end as the kernel would mark a
/// file that a newer one has replaced.
fn own_paths() -> impl Iterator<Item = PathBuf> {
    fs::read_link(OWN).ok().into_iter().chain(path_of(Path::new(OWN)))
}

/// Whether a process is a daemon that a client started with `said` as
/// [`Options::program`](crate::client::Options::program). Such a daemon serves other clients too,
/// whatever process it descends from.
///
/// A command cannot imitate such a daemon by name: it would have to be the same program, started in
/// the same way.
pub fn is_on_demand_daemon(pid: u32, said: Option<&Path>) -> bool {
    let words = process::first_words(pid, ARGV.len());
    let is_daemon = words.len() == ARGV.len() && words[1..] == ARGV[1..];
    let executed = file_of(format!("/proc/{pid}/exe").as_ref()).filter(|_| is_daemon);
    // This program's file may have been replaced since the program started, and the daemon may have
    // started before or after that.
    let own = said == Some(Path::new(OWN));
    let newest = own.then(own_paths).into_iter().flatten();
    let mut programs =
        find(said).ok().into_iter().chain(own.then(|| PathBuf::from(OWN))).chain(newest);
    executed.is_some() && programs.any(|path| file_of(&path) == executed)
}

/// The service manager of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceManager {
    /// systemd (sd_booted(3)).
    Systemd,
    /// OpenRC.
    OpenRc,
    /// An init that runs the scripts in `/etc/init.d`, and the program that adds one.
    SysV(&'static str),
    /// None that canal knows.
    Unknown,
}

/// The programs that add a script to the runlevels. Each distribution has one of them.
const ADDS_SCRIPT: [&str; 3] = ["update-rc.d", "insserv", "chkconfig"];

impl ServiceManager {
    /// What runs services on this machine. Process 1 and the installed programs show it.
    pub fn of_machine() -> Self {
        let has = |program: &&str| lookup(OsStr::new(*program)).is_ok();
        if Path::new("/run/systemd/system").is_dir() {
            return Self::Systemd;
        }
        if Path::new("/run/openrc").is_dir() && has(&"rc-service") {
            return Self::OpenRc;
        }
        let first = fs::read_to_string("/proc/1/comm").unwrap_or_default();
        let adds_script = ADDS_SCRIPT.into_iter().find(has);
        adds_script.filter(|_| first.trim() == "init").map_or(Self::Unknown, Self::SysV)
    }
}

/// Whether this client may start the daemon of a place. Only root may start the daemon that users
/// share, and not if systemd does or if the directory belongs to another system.
pub(in crate::client) fn may_start(place: &Place) -> bool {
    place.rule != Rule::Shared
        || geteuid().is_root()
            && place.dir.is_dir()
            && ServiceManager::of_machine() != ServiceManager::Systemd
            && !is_from_outside(place)
}

/// Whether the directory of a place is a mount, as in a container that uses the daemon of the
/// machine. A daemon in the container would not see the processes of that machine.
pub fn is_from_outside(place: &Place) -> bool {
    let device = |path: &Path| file_of(path).map(|(device, _)| device);
    let devices = (place.dir.parent().and_then(device), device(&place.dir));
    matches!(devices, (Some(above), Some(here)) if above != here)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use canal_sys::rerun::wait_until;

    /// Starts a shell with this argv, and waits for its end.
    fn called(words: &[&str], dir: &Path) -> Child {
        fs::write(dir.join("daemon"), "read x").unwrap();
        let mut shell = Command::new("/bin/sh");
        shell.arg0(words[0]).args(&words[1..]).current_dir(dir).stdin(Stdio::piped());
        let child = shell.spawn().unwrap();
        wait_until("it is what it is called", || {
            process::first_words(child.id(), words.len()) == words
        });
        child
    }

    #[test]
    fn a_daemon_is_recognized_by_its_program_and_not_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = called(&["canal", "daemon", "--on-demand"], dir.path());
        let is = |program: &str| is_on_demand_daemon(child.id(), Some(Path::new(program)));
        assert!(is("/bin/sh"), "that is its program");
        assert!(!is(OWN) && !is("/bin/cat"));
        assert!(!is_on_demand_daemon(child.id(), None), "there may be none along PATH");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_on_demand_daemon(child.id(), Some(Path::new("/bin/sh"))), "it is gone");
    }

    #[test]
    fn a_daemon_started_by_hand_is_no_daemon_on_demand() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = called(&["canal", "daemon", "-v"], dir.path());
        assert!(!is_on_demand_daemon(child.id(), Some(Path::new("/bin/sh"))));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn this_program_is_found_under_any_name() {
        let found = find(Some(Path::new(OWN))).unwrap();
        assert_eq!(found, std::env::current_exe().unwrap());
        let executed = startup::executed_as().unwrap();
        assert_eq!(file_of(&executed), file_of(found.as_ref()), "{executed:?}");
        let said = Path::new("/some/canal-of-tests");
        assert_eq!(find(Some(said)).unwrap(), said);
    }
}
