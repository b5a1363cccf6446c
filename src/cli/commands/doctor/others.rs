//! Other daemons on this machine, whose locks are not those of ours.

use std::path::Path;

use nix::unistd::geteuid;

use super::finding::Finding;
use crate::cli::wording::user_name;
use crate::daemon;
use crate::protocol::place::{Place, Rule};
use crate::protocol::user_namespace::uid_of_machine;

/// Where the directories of users' own daemons are, and how their names begin.
const USERS: (&str, &str) = ("/tmp", "canal-");

pub(super) fn look(place: &Place) -> Vec<Finding> {
    let own = uid_of_machine(geteuid().as_raw());
    let running = users().into_iter().filter(|uid| daemon::runs(&Place::of_user(*uid), *uid));
    let elsewhere = running.filter(|uid| place.rule != Rule::PerUser || *uid != own);
    let sudo = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
    let mut findings: Vec<_> = elsewhere.map(|uid| other(uid, own, sudo)).collect();
    if place.rule == Rule::Given && Path::new("/run/canal").is_dir() {
        findings.push(Finding::note(
            "others",
            "users share the daemon of /run/canal; your socket is another one",
        ));
    }
    findings
}

fn other(uid: u32, own: u32, sudo: Option<u32>) -> Finding {
    let (who, socket) = (user_name::name(uid), Place::of_user(uid).socket);
    let socket = socket.display();
    if uid == own {
        return Finding::problem(
            "others",
            format!(
                "another daemon of yours runs at {socket}: its locks are not those of your socket"
            ),
            "use one of the two sockets everywhere",
        );
    }
    let message = format!("{who} has a daemon at {socket}: its locks are not yours");
    if Some(uid) == sudo {
        let hint = "run canal without sudo, or share one daemon in /run/canal; see canal(1)";
        return Finding::problem("others", message, hint);
    }
    Finding::note("others", message)
}

/// The users whose own daemon has, or had, a directory.
fn users() -> Vec<u32> {
    let (dir, lead) = USERS;
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut users: Vec<u32> =
        names.filter_map(|name| name.strip_prefix(lead)?.parse().ok()).collect();
    users.sort_unstable();
    users
}
