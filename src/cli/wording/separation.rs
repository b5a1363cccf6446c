//! Says without being asked where locks may be kept apart: commands that should exclude each other
//! talk to different daemons.
//!
//! Each of these lines is printed once for a daemon, by the client that started it: a script in a
//! loop does not repeat it. `-v` prints it each time, and `CANAL_SEPARATE` never.
//!
//! Root does not connect to another user's daemon, because the user could lead root to another
//! socket.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::unistd::geteuid;

use super::user_name;
use crate::cli::output::stderr::Verbosity;
use crate::daemon::{self, Separation};
use crate::protocol::place::{Place, Rule};

/// Set to anything: the daemon of this socket is meant to be apart from others.
const SEPARATE: &str = "CANAL_SEPARATE";

/// How all of it can be mended.
const ONE_TABLE: &str = "`canal setup`, as root, makes one table for all users";

/// How many users are named.
const USERS_NAMED: usize = 3;

/// A client that has connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connected<'a> {
    pub(crate) place: &'a Place,
    /// Whether the variable `CANAL_SOCKET` named the socket.
    pub(crate) by_environment: bool,
    /// Whether it started the daemon.
    pub(crate) has_started_daemon: bool,
}

/// Prints what keeps the locks of the daemon apart from others, if nobody was told yet.
pub(crate) fn note(client: Connected<'_>, verbosity: Verbosity) {
    let always = verbosity >= Verbosity::Verbose;
    let is_new = client.has_started_daemon || always;
    if !(is_new || is_under_sudo(client.place)) || verbosity < Verbosity::Normal {
        return;
    }
    if std::env::var_os(SEPARATE).is_some_and(|value| !value.is_empty()) {
        return;
    }
    let by_sudo = under_sudo(client.place, always);
    let mut lines: Vec<String> = by_sudo.iter().cloned().collect();
    if is_new {
        let all = daemon::separations(client.place);
        let others = all.iter().filter(|it| !(by_sudo.is_some() && is_about_users(it)));
        lines.extend(others.map(|it| format!("{}; {ONE_TABLE}", about(it))));
    }
    if is_new && client.by_environment {
        lines.extend(by_environment(client.place));
    }
    for line in lines {
        verbosity.note(&format!("note: {line}"));
    }
}

fn is_about_users(separation: &Separation) -> bool {
    matches!(separation, Separation::OtherUsers(_))
}

fn about(separation: &Separation) -> String {
    match separation {
        Separation::OtherUsers(uids) => {
            let mut names: Vec<String> = uids.iter().copied().map(user_name::name).collect();
            let more = names.len().saturating_sub(USERS_NAMED);
            names.truncate(USERS_NAMED);
            if more > 0 {
                names.push(format!("{more} more"));
            }
            let have = match names.len() {
                1 => "has a daemon of its own",
                _ => "have daemons of their own",
            };
            let last = names.pop().unwrap_or_default();
            let names = match names.len() {
                0 => last,
                _ => format!("{} and {last}", names.join(", ")),
            };
            format!("{names} {have} on this machine: their locks and yours do not exclude each other")
        }
        Separation::PrivateTmp => {
            "/tmp is private to this service (PrivateTmp=): its locks and those of your other \
             commands do not exclude each other"
                .to_owned()
        }
        Separation::AnotherTmp => {
            "/tmp is not that of process 1: the locks here and those of your other commands may \
             not exclude each other"
                .to_owned()
        }
        Separation::DaemonInAnotherTmp => {
            "another daemon of yours runs with another /tmp: its locks and these do not exclude \
             each other"
                .to_owned()
        }
        Separation::PidNamespace => {
            "this is a container or the like (a pid namespace of its own): the locks here and those \
             outside do not exclude each other"
                .to_owned()
        }
    }
}

/// Of a socket that the environment names: the daemon that other commands of this user talk to, if
/// that runs too.
fn by_environment(place: &Place) -> Option<String> {
    let usual = Place::find(None, place.uid).ok()?;
    let is_in_use = match usual.rule {
        Rule::Shared => usual.socket.symlink_metadata().is_ok(),
        _ => daemon::runs(&usual, geteuid().as_raw()),
    };
    (is_in_use && usual.socket != place.socket).then(|| {
        let usual = usual.socket.display();
        format!(
            "CANAL_SOCKET names another daemon than that of commands without it ({usual}): their \
             locks and these do not exclude each other"
        )
    })
}

fn is_under_sudo(place: &Place) -> bool {
    caller().is_some() && place.rule == Rule::PerUser && geteuid().is_root()
}

/// The user who became root by sudo(8), run0 or pkexec.
fn caller() -> Option<u32> {
    let uid = ["SUDO_UID", "PKEXEC_UID"].into_iter().find_map(|name| std::env::var(name).ok())?;
    uid.parse().ok().filter(|uid| *uid != 0)
}

/// Of root under sudo: the user who called sudo, if that has a daemon. Root's daemon runs longer than
/// one command, so that a file beside its socket notes that it was said.
fn under_sudo(place: &Place, always: bool) -> Option<String> {
    let uid = caller().filter(|_| is_under_sudo(place))?;
    let noted = place.dir.join(format!("told-sudo-{uid}"));
    if !always && noted.symlink_metadata().is_ok() {
        return None;
    }
    let theirs = Place::of_user(uid);
    if !daemon::runs(&theirs, uid) || !(mark(&noted) || always) {
        return None;
    }
    let (who, socket) = (user_name::name(uid), theirs.socket.display());
    Some(format!(
        "under sudo root's own locks are used, not those of {who} ({socket}); {ONE_TABLE}"
    ))
}

/// Makes a file, and returns whether it was not there.
fn mark(path: &Path) -> bool {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn users_are_named_and_many_are_counted() {
        let users = |uids: &[u32]| {
            let said = about(&Separation::OtherUsers(BTreeSet::from_iter(uids.iter().copied())));
            said.split(" on this machine").next().unwrap().to_owned()
        };
        let many = 3_999_999_990;
        assert_eq!(users(&[0]), "root has a daemon of its own");
        assert_eq!(users(&[0, many]), "root and 3999999990 have daemons of their own");
        assert_eq!(
            users(&[0, many, many + 1, many + 2, many + 3]),
            "root, 3999999990, 3999999991 and 2 more have daemons of their own"
        );
    }
}
