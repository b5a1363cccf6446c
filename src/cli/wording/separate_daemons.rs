//! Warns if commands that should exclude each other may talk to different daemons.
//!
//! The client that started a daemon prints each warning once. A file next to the socket records
//! which users' daemons were reported, because such a daemon may start later. `-v` prints the
//! warnings each time, and `CANAL_SEPARATE` turns them off.
//!
//! Invariant: root never connects to another user's daemon, because the user could redirect root.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, SystemTime};

use crate::sys::private_dir::open_lock;
use crate::sys::process::user::geteuid;

use crate::cli::{Verbosity, stderr, user_name};
use crate::daemon::{self, Separation};
use crate::protocol::paths::{Place, Rule};

/// If set, the daemon of this socket is meant to be separate from others.
const SEPARATE: &str = "CANAL_SEPARATE";

/// How to end all separations.
pub(crate) const ONE_TABLE: &str = "run `canal setup` as root to create one table for all users";

/// The file that records which users' daemons were reported. Its modification time is the time of
/// the last check.
const TOLD: &str = "told-users";

/// How often clients look for other users' daemons.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// How many users a warning names.
const USERS_NAMED: usize = 3;

/// Prints what separates the daemon's locks from others, unless it was already reported.
/// `by_socket_variable` means that `CANAL_SOCKET` named the socket, and `has_started` that this
/// client has started the daemon.
pub(crate) fn note(place: &Place, by_socket_variable: bool, has_started: bool) {
    let always = stderr::shows(Verbosity::Verbose);
    let is_new = has_started || always;
    let is_due = is_new || place.is_users_own() && looked_long_ago(place);
    // Only root's own daemon is meant.
    let is_roots = place.rule == Rule::PerUser && geteuid().is_root();
    let caller = caller_of_sudo().filter(|_| is_roots);
    if !(is_due || caller.is_some())
        || !stderr::shows(Verbosity::Normal)
        || std::env::var_os(SEPARATE).is_some_and(|value| !value.is_empty())
    {
        return;
    }
    let by_sudo = caller.and_then(|uid| under_sudo(place, uid, always));
    let mut told = Vec::new();
    if is_new {
        told = daemon::separations(place);
        if place.is_users_own() {
            let _ = record(place, &users_in(&told), has_started);
        }
        told.retain(|it| by_sudo.is_none() || !matches!(it, Separation::OtherUsers(_)));
    } else if is_due {
        let users = users_in(&daemon::separations(place));
        // No warning is better than the same one from each command.
        let mut newcomers = record(place, &users, has_started).unwrap_or_default();
        if let Some(uid) = caller.filter(|_| by_sudo.is_some()) {
            newcomers.remove(&uid);
        }
        told.extend((!newcomers.is_empty()).then_some(Separation::OtherUsers(newcomers)));
    }
    let told = told.iter().map(|it| format!("{}; {ONE_TABLE}", about(it)));
    let usual = if is_new && by_socket_variable { by_environment(place) } else { None };
    for line in by_sudo.into_iter().chain(told).chain(usual) {
        stderr::note(&format!("note: {line}"));
    }
}

/// Whether no client of the daemon has recently looked for other users' daemons.
fn looked_long_ago(place: &Place) -> bool {
    let looked = place.dir.join(TOLD).symlink_metadata().and_then(|found| found.modified());
    // A time in the future means that the clock was set back.
    let ago = looked.ok().and_then(|looked| SystemTime::now().duration_since(looked).ok());
    ago.is_none_or(|ago| ago >= LOOK_EVERY)
}

/// The users in the findings that have their own daemons.
fn users_in(found: &[Separation]) -> BTreeSet<u32> {
    let uids = |it: &Separation| match it {
        Separation::OtherUsers(uids) => Some(uids.clone()),
        _ => None,
    };
    found.iter().find_map(uids).unwrap_or_default()
}

/// Records these users as reported, and returns those that no command has reported since the start
/// of the daemon. The time of the file is the time of the check.
///
/// # Errors
/// Another client is using the record, or it cannot be written.
fn record(place: &Place, users: &BTreeSet<u32>, has_started: bool) -> io::Result<BTreeSet<u32>> {
    let mut file = open_lock(&place.dir.join(TOLD))?;
    fs2::FileExt::try_lock_exclusive(&file)?;
    let mut text = String::new();
    let _ = file.read_to_string(&mut text);
    let told = text.split_whitespace().filter_map(|uid| uid.parse().ok()).filter(|_| !has_started);
    let told: BTreeSet<u32> = told.collect();
    let text: String = (&told | users).iter().map(|uid| format!("{uid} ")).collect();
    file.rewind()?;
    file.set_len(0)?;
    file.write_all((text + "\n").as_bytes())?;
    Ok(users - &told)
}

/// Explains a separation to the user.
pub(crate) fn about(separation: &Separation) -> String {
    match separation {
        Separation::OtherUsers(uids) => {
            let mut names: Vec<String> = uids.iter().copied().map(user_name::name).collect();
            let more = names.len().saturating_sub(USERS_NAMED);
            names.truncate(USERS_NAMED);
            if more > 0 {
                names.push(format!("{more} more"));
            }
            let last = names.pop().unwrap_or_default();
            let (names, have) = match names.len() {
                0 => (last, "has their own daemon"),
                _ => (format!("{} and {last}", names.join(", ")), "have their own daemons"),
            };
            let apart = "so their locks do not block yours, nor yours theirs";
            return format!("{names} {have} on this machine, {apart}");
        }
        Separation::PrivateTmp => {
            "/tmp is private to this service (PrivateTmp=), so the service does not share locks \
             with your other commands"
        }
        Separation::AnotherTmp => {
            "this process has a different /tmp from process 1, so it might not share locks with \
             your other commands"
        }
        Separation::DaemonInAnotherTmp => {
            "you have another daemon in another /tmp; it does not share locks with this one"
        }
        Separation::PidNamespace => {
            "this is a container or similar (it has its own pid namespace), so it does not share \
             locks with processes outside it"
        }
    }
    .to_owned()
}

/// For a socket from the environment: the daemon that this user's other commands use, if it also
/// runs.
fn by_environment(place: &Place) -> Option<String> {
    let usual = Place::find(None, place.uid.clone()).ok()?;
    let is_in_use = match usual.rule {
        Rule::Shared => usual.socket.symlink_metadata().is_ok(),
        _ => daemon::runs(&usual, geteuid().as_raw()),
    };
    (is_in_use && usual.socket != place.socket).then(|| {
        let usual = usual.socket.display();
        format!(
            "CANAL_SOCKET names a daemon other than the usual one ({usual}); the two do not share \
             locks"
        )
    })
}

/// The user who became another user by sudo(8), run0 or pkexec.
pub(crate) fn caller_of_sudo() -> Option<u32> {
    let uid = ["SUDO_UID", "PKEXEC_UID"].into_iter().find_map(|name| std::env::var(name).ok())?;
    uid.parse().ok().filter(|uid| *uid != 0)
}

/// The warning for root under sudo, if the user who called sudo has a daemon. Root's daemon
/// outlives the command, so a file next to its socket records the warning.
fn under_sudo(place: &Place, uid: u32, always: bool) -> Option<String> {
    let noted = place.dir.join(format!("told-sudo-{uid}"));
    if !always && noted.symlink_metadata().is_ok() {
        return None;
    }
    let theirs = Place::of_user(uid);
    let mut create = OpenOptions::new();
    create.write(true).create_new(true).mode(0o600);
    if !daemon::runs(&theirs, uid) || create.open(&noted).is_err() && !always {
        return None;
    }
    let (who, socket) = (user_name::name(uid), theirs.socket.display());
    Some(format!("under sudo, canal uses root's locks, not those of {who} ({socket}); {ONE_TABLE}"))
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
        assert_eq!(users(&[0]), "root has their own daemon");
        assert_eq!(users(&[0, many]), "root and 3999999990 have their own daemons");
        assert_eq!(
            users(&[0, many, many + 1, many + 2, many + 3]),
            "root, 3999999990, 3999999991 and 2 more have their own daemons"
        );
    }
}
