//! Checks for daemons with separate tables of locks on this machine.

use std::path::Path;

use crate::sys::process::user::geteuid;

use super::finding::Finding;
use crate::cli::user_name;
use crate::cli::wording::separation::{ONE_TABLE, about};
use crate::daemon::{self, Separation};
use crate::protocol::place::{Place, Rule};
use crate::protocol::user_namespace::uid_of_machine;

/// Advice for cases in which only root can do something for all users.
const SHARE: &str = "to let several users share locks, ";

pub(super) fn look(place: &Place) -> Vec<Finding> {
    let sudo = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
    if place.is_users_own() {
        let found = daemon::separations(place);
        return found.iter().flat_map(|it| separation(it, sudo)).collect();
    }
    let own = uid_of_machine(geteuid().as_raw());
    let is_shared = Path::new("/run/canal").is_dir();
    let users = daemon::users_with_daemons().into_iter();
    let mut findings: Vec<Finding> = users
        .filter_map(|uid| match uid == own {
            _ if place.rule == Rule::Shared => Some(left_over(uid)),
            true => Some(own_elsewhere(uid)),
            // A leftover daemon of another user matters only to users who share the machine's
            // table.
            false if is_shared => None,
            false => Some(other_user(uid, sudo)),
        })
        .collect();
    if place.rule == Rule::Given && is_shared {
        findings.push(Finding::advice(
            "others",
            "users share the daemon of /run/canal, but you use another socket",
            "leave out --socket and CANAL_SOCKET to share it",
        ));
    }
    findings
}

fn separation(separation: &Separation, sudo: Option<u32>) -> Vec<Finding> {
    match separation {
        Separation::OtherUsers(uids) => uids.iter().map(|uid| other_user(*uid, sudo)).collect(),
        other => vec![Finding::advice("others", about(other), format!("{SHARE}{ONE_TABLE}"))],
    }
}

/// A daemon from before this machine had one for all users. The clients of its user end it, or
/// refuse to use the machine's daemon while it has holds, so that no lock is in two tables.
fn left_over(uid: u32) -> Finding {
    let (who, socket) = (user_name::name(uid), Place::of_user(uid).socket);
    let message = format!(
        "{who} still has a separate daemon at {}: {who}'s next command ends that daemon, or fails \
         while that daemon holds a lock",
        socket.display()
    );
    Finding::note("others", message)
}

fn own_elsewhere(uid: u32) -> Finding {
    let socket = Place::of_user(uid).socket;
    let message = format!(
        "you have another daemon at {}, which does not share locks with the daemon at your socket",
        socket.display()
    );
    Finding::problem("others", message, "use one of the two sockets everywhere")
}

fn other_user(uid: u32, sudo: Option<u32>) -> Finding {
    let (who, socket) = (user_name::name(uid), Place::of_user(uid).socket);
    let message = format!(
        "{who} has a daemon at {}, which does not share locks with yours",
        socket.display()
    );
    if Some(uid) == sudo {
        let hint = format!("run canal without sudo; or {ONE_TABLE}");
        return Finding::problem("others", message, hint);
    }
    Finding::advice("others", message, format!("{SHARE}{ONE_TABLE}"))
}
