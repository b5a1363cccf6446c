//! Finds what separates the locks of one machine, so that commands that should exclude each other
//! do not: daemons of other users, and a /tmp or a pid namespace that others do not share.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use canal_protocol::paths::Place;
use canal_sys::abstract_socket;
use canal_sys::process::{FIRST_PID_NAMESPACE, Origin};

/// Why commands on this machine may not share the user's own daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Separation {
    /// These users have their own daemons.
    OtherUsers(BTreeSet<u32>),
    /// `/tmp` was created by systemd for a service (`PrivateTmp=`).
    PrivateTmp,
    /// `/tmp` is another directory than for process 1.
    AnotherTmp,
    /// The same user has a daemon in another /tmp.
    DaemonInAnotherTmp,
    /// Processes have different pids here, as in a container.
    PidNamespace,
}

/// The beginning of a daemon's note about other users' daemons.
const OTHER_USERS: &str = "other users have their own daemons: uid ";
const PRIVATE_TMP: &str =
    "its /tmp is private to a service, so the user's other commands do not reach it";
const ANOTHER_TMP: &str =
    "its /tmp is not the one that process 1 uses, so the user's other commands might not reach it";
const DAEMON_IN_ANOTHER_TMP: &str = "this user has another daemon, in another /tmp";

impl Separation {
    /// The note for operators, if no other note of the daemon covers it.
    pub fn note(&self) -> Option<String> {
        let note = match self {
            Self::OtherUsers(uids) => {
                let uids: Vec<_> = uids.iter().map(u32::to_string).collect();
                return Some(format!("{OTHER_USERS}{}", uids.join(", ")));
            }
            Self::PrivateTmp => PRIVATE_TMP,
            Self::AnotherTmp => ANOTHER_TMP,
            Self::DaemonInAnotherTmp => DAEMON_IN_ANOTHER_TMP,
            Self::PidNamespace => return None,
        };
        Some(note.to_owned())
    }

    /// Whether a note of a daemon is about a separation.
    pub fn is_told_by(note: &str) -> bool {
        note.starts_with(OTHER_USERS)
            || [PRIVATE_TMP, ANOTHER_TMP, DAEMON_IN_ANOTHER_TMP].contains(&note)
    }
}

/// The visible reasons why the locks of a user's own daemon are separate from others. Empty for any
/// other place: a user who chooses one knows that it is separate.
pub fn separations(place: &Place) -> Vec<Separation> {
    if !place.is_users_own() {
        return Vec::new();
    }
    let own = canal_sys::process::user::geteuid().as_raw();
    let above = place.dir.parent().unwrap_or(Path::new("/"));
    let found = daemons_of_users(above).inspect_err(|error| {
        tracing::debug!(%error, "cannot search for daemons of other users");
    });
    let found = found.unwrap_or_default();
    let others = found.iter().filter(|(uid, is_here)| *is_here && *uid != own);
    let others: BTreeSet<u32> = others.map(|(uid, _)| *uid).collect();
    let users = (!others.is_empty()).then_some(Separation::OtherUsers(others));
    let tmp = if is_private_tmp() {
        Some(Separation::PrivateTmp)
    } else if is_another_tmp() {
        Some(Separation::AnotherTmp)
    } else {
        found.contains(&(own, false)).then_some(Separation::DaemonInAnotherTmp)
    };
    let is_inner = Origin::read().is_ok_and(|origin| origin.pid_namespace != FIRST_PID_NAMESPACE);
    let namespace = is_inner.then_some(Separation::PidNamespace);
    [users, tmp, namespace].into_iter().flatten().collect()
}

/// The users whose own daemons run in this /tmp, as far as this process can see.
pub fn users_with_daemons() -> BTreeSet<u32> {
    let found = daemons_of_users(Path::new("/tmp")).unwrap_or_default();
    found.into_iter().filter(|(_, is_here)| *is_here).map(|(uid, _)| uid).collect()
}

/// The running daemons of users, in all mount namespaces that share our network namespace: the user
/// of each, and whether its directory is in our /tmp. They are identified by their abstract sockets
/// ([`InstanceGuard`](super::instance_lock::InstanceGuard)).
fn daemons_of_users(above: &Path) -> io::Result<Vec<(u32, bool)>> {
    let above = fs::metadata(above)?;
    let names = abstract_socket::all()?;
    let of_daemon = |(name, owner): (String, u32)| {
        let (uid, device, inode) = parts(&name)?;
        // Any user can take any name, but the kernel reports the real user of the socket.
        let is_here = (device, inode) == (above.dev(), above.ino());
        (uid == owner).then_some((uid, is_here))
    };
    Ok(names.into_iter().filter_map(of_daemon).collect())
}

/// The user, and the device and inode of the parent directory, from the name of the guard of a
/// user's own daemon.
fn parts(name: &str) -> Option<(u32, u64, u64)> {
    let mut parts = name.strip_prefix("canal-")?.split('-');
    let mut next = || parts.next();
    let uid = next()?.parse().ok()?;
    let device = u64::from_str_radix(next()?, 16).ok()?;
    let inode = u64::from_str_radix(next()?, 16).ok()?;
    let dir = u32::from_str_radix(next()?, 16).ok()?;
    let is_users_own = dir == crc32fast::hash(format!("canal-{uid}").as_bytes());
    (is_users_own && next().is_none()).then_some((uid, device, inode))
}

/// Whether /tmp was created by systemd for a service (`PrivateTmp=`).
fn is_private_tmp() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(3);
        let (root, mounted_at) = (words.next(), words.next());
        mounted_at == Some("/tmp") && root.is_some_and(|root| root.contains("/systemd-private-"))
    })
}

/// Whether /tmp is another directory than for process 1, as far as this process can see.
fn is_another_tmp() -> bool {
    let identity = |path: &str| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let of_first = identity("/proc/1/root/tmp");
    of_first.is_some() && of_first != identity("/tmp")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime_dir::instance_lock::InstanceGuard;

    #[test]
    fn the_guard_name_of_a_per_user_daemon_tells_its_uid_and_its_tmp() {
        let place = Place::of_user(canal_sys::process::user::geteuid().as_raw());
        let name = InstanceGuard::name(&place).unwrap();
        let tmp = fs::metadata("/tmp").unwrap();
        assert_eq!(parts(&name), Some((place.uid.get(), tmp.dev(), tmp.ino())));
        let given = Place::find(Some(Path::new("/tmp/x/canal.sock")), place.uid).unwrap();
        assert_eq!(parts(&InstanceGuard::name(&given).unwrap()), None);
        for name in ["canal-", "canal-0", "canal-0-1-2", "canal-x-1-2-0", "other-0-1-2-3"] {
            assert_eq!(parts(name), None, "{name}");
        }
        assert_eq!(parts(&format!("{name}-0")), None);
    }

    #[test]
    fn a_daemon_at_a_chosen_place_is_no_split() {
        let given = Place::find(Some(Path::new("/tmp/x/canal.sock")), 0).unwrap();
        assert_eq!(separations(&given), []);
    }
}
