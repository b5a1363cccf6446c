//! Checks the socket and its directory; the daemon there with its configuration, its engine and its
//! hooks; and other daemons on this machine, which have separate tables of locks.

use std::fs::File;
use std::path::Path;

use itertools::Itertools as _;

use super::finding::Finding;
use crate::cli::commands::config::changed_setting;
use crate::cli::wording::separate_daemons::{ONE_TABLE, about, caller_of_sudo};
use crate::cli::{Failed, connect, user_name};
use crate::client::{Client, ClientError, Start, last_line_of_log};
use crate::daemon::{self, SeenHook, Separation};
use crate::protocol::paths::{Place, Rule, uid_of_machine};
use crate::protocol::{Configuration, DaemonInfo, EngineInfo, NoParameters, Status, StatusQuery};
use crate::sys::private_dir::{DirError, IfMissing, open_private};
use crate::sys::process::user::{geteuid, lstat};

/// Returns the findings, and whether the daemon there can be asked. A client that connects repairs
/// the user's own directory.
pub(super) fn socket(place: &Place, by_environment: bool) -> (Vec<Finding>, bool) {
    let why = match place.rule {
        Rule::Given if by_environment => "given by CANAL_SOCKET",
        Rule::Given => "given by --socket",
        Rule::Shared => "/run/canal exists, so users share one daemon",
        Rule::PerUser => "no other socket is given, and /run/canal does not exist",
    };
    let socket = format!("{}: {why}", place.socket.display());
    let (directory, can_ask) = match place.rule {
        Rule::Shared => shared(place),
        Rule::Given | Rule::PerUser => private(place),
    };
    (vec![Finding::fine("socket", socket), directory], can_ask)
}

fn private(place: &Place) -> (Finding, bool) {
    let (about, dir) = ("directory", place.dir.display());
    let opened = open_private(&place.dir, geteuid().as_raw(), IfMissing::Fail);
    let can_ask = matches!(opened, Ok(_) | Err(DirError::Missing(_)));
    let finding = match opened {
        // Without locks, no daemon starts there.
        Ok(opened) => match fs2::FileExt::try_lock_shared(&File::from(opened)) {
            Ok(()) => Finding::fine(about, format!("{dir} is yours, and only you can write to it")),
            Err(error) => {
                let hint =
                    "choose a directory on another file system with --socket or CANAL_SOCKET";
                Finding::problem(about, format!("{dir}: flock(2): {error}"), hint)
            }
        },
        Err(DirError::Missing(_)) => {
            Finding::note(about, format!("{dir} does not exist yet; the first daemon creates it"))
        }
        Err(error @ DirError::Open(..)) if place.is_users_own() => {
            Finding::note(about, format!("{error}: the next command makes it private"))
        }
        Err(error) => {
            let hint = "remove it, or choose another directory with --socket or CANAL_SOCKET";
            Finding::problem(about, error.to_string(), hint)
        }
    };
    (finding, can_ask)
}

fn shared(place: &Place) -> (Finding, bool) {
    let dir = place.dir.display();
    match lstat(&place.dir) {
        Ok(found) if found.st_mode & 0o002 == 0 => {
            let (mode, owner) = (found.st_mode & 0o7777, user_name::name(found.st_uid));
            (Finding::fine("directory", format!("{dir} (mode {mode:04o}, owned by {owner})")), true)
        }
        Ok(_) => {
            let problem = format!("{dir} is writable by other users");
            (Finding::problem("directory", problem, format!("chmod o-w {dir}")), false)
        }
        Err(error) => {
            let start = connect::started_by_root();
            let hint = format!("start this machine's daemon, which creates it: {start}");
            (Finding::problem("directory", format!("{dir}: {error}"), hint), false)
        }
    }
}

/// Returns the findings, and the daemon's description of itself if one answers.
pub(super) fn look(place: &Place) -> (Vec<Finding>, Option<DaemonInfo>) {
    let query = StatusQuery { names_max: Some(0), ..StatusQuery::default() };
    let asked = Client::connect(place, Start::Never).and_then(|mut client| {
        Ok((client.status(&query)?, client.configuration(&NoParameters {})?))
    });
    match asked {
        Ok((status, configuration)) => {
            let mut findings = running(&status, place);
            findings.extend(in_force(&configuration));
            findings.extend(status.engine.as_ref().map(engine));
            (findings, Some(status.daemon))
        }
        Err(ClientError::NoDaemon(_)) => (vec![none(place), file(place)], None),
        Err(error) => {
            let failed = Failed::from(error);
            let hint = failed.hint.unwrap_or_else(|| "run `canal daemon --replace`".to_owned());
            (vec![Finding::problem("daemon", failed.message, hint), file(place)], None)
        }
    }
}

fn none(place: &Place) -> Finding {
    if place.rule == Rule::Shared {
        let hint = connect::not_on_demand(place);
        return Finding::problem("daemon", "no daemon is running", hint);
    }
    let unclean = last_line_of_log(place).filter(|line| !line.ends_with(daemon::LAST_LINE));
    let Some(line) = unclean else {
        return Finding::note("daemon", "no daemon is running; the next command starts one");
    };
    let message = format!("no daemon is running, and the last one did not end cleanly: {line}");
    let hint =
        "run any canal command to start one, or `canal daemon -v` to run it in the foreground";
    Finding::advice("daemon", message, hint)
}

/// Checks the configuration that the next daemon would read.
pub(super) fn file(place: &Place) -> Finding {
    match daemon::check_configuration(place) {
        Ok(Some(file)) => Finding::fine("configuration", format!("{} is valid", file.display())),
        Ok(None) => unconfigured(),
        Err(error) => {
            let hint = "fix it; no daemon can start with it";
            Finding::problem("configuration", format!("{error:#}"), hint)
        }
    }
}

fn unconfigured() -> Finding {
    Finding::fine("configuration", "no configuration file is in force; all settings are defaults")
}

fn running(status: &Status, place: &Place) -> Vec<Finding> {
    let daemon = &status.daemon;
    let (pid, version, ours) = (daemon.pid, &daemon.version, env!("CARGO_PKG_VERSION"));
    let first = if version == ours {
        Finding::fine("daemon", format!("pid {pid}, version {version}"))
    } else {
        let message = format!("pid {pid} is version {version}, but this program is {ours}");
        let hint = "replace it with `canal daemon --replace`; all locks stay held";
        Finding::problem("daemon", message, hint)
    };
    // A separate check covers whatever separates the locks of this machine.
    let is_told_elsewhere = |note: &str| place.is_users_own() && Separation::is_told_by(note);
    let notes = daemon.notes.iter().filter(|note| !is_told_elsewhere(note));
    let notes = notes.map(|note| Finding::note("daemon", note));
    std::iter::once(first).chain(notes).collect()
}

fn in_force(found: &Configuration) -> Vec<Finding> {
    let mut findings = vec![match &found.file {
        Some(file) => Finding::fine("configuration", format!("{file}, read at {}", found.read)),
        None => unconfigured(),
    }];
    if let Some(broken) = &found.broken {
        let message = format!("not in force, because it has an error: {broken}");
        let hint = "fix it, then run `canal daemon --reload`; no daemon can start with it";
        findings.push(Finding::problem("configuration", message, hint));
    }
    let (restart, now): (Vec<_>, Vec<_>) = found.pending.iter().partition(|it| it.restart);
    for (changes, hint) in
        [(now, "run `canal daemon --reload`"), (restart, "run `canal daemon --replace`")]
    {
        if !changes.is_empty() {
            let changes = changes.into_iter().map(changed_setting).join("; ");
            let message = format!("not in force yet: {changes}");
            findings.push(Finding::problem("configuration", message, hint));
        }
    }
    findings
}

fn engine(engine: &EngineInfo) -> Finding {
    let EngineInfo { name, state, host, why, hint, .. } = engine;
    let why = why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    let message = match state.as_str() {
        "member" => return Finding::fine("engine", format!("{host} is a member of {name}")),
        "away" => format!("{name} is unreachable{why}"),
        "unable" => format!("host {host} cannot join {name}{why}"),
        _ => format!("host {host} is not a member of {name} yet{why}"),
    };
    Finding::problem("engine", message, hint.as_deref().unwrap_or("see `canal status`"))
}

/// Checks whether the programs of the configured hooks can run.
pub(super) fn hooks(place: &Place, daemon: Option<&DaemonInfo>) -> Vec<Finding> {
    let uid = daemon.map_or_else(|| geteuid().as_raw(), |daemon| daemon.uid);
    // Another check reports errors in the configuration as a whole.
    let seen = daemon::look_at_hooks(place, uid).unwrap_or_default();
    seen.iter().map(hook).collect()
}

fn hook(SeenHook { name, program, problem }: &SeenHook) -> Finding {
    let Some(why) = problem else {
        return Finding::fine("hook", format!("{name}: {program} is executable"));
    };
    let hint = format!("fix {program}, or [[hooks]] in the configuration; see canal.toml(5)");
    Finding::problem("hook", format!("{name}: {program}: {why}"), hint)
}

/// Advice for cases in which only root can do something for all users.
const SHARE: &str = "to let several users share locks, ";

pub(super) fn other_daemons(place: &Place) -> Vec<Finding> {
    let sudo = caller_of_sudo();
    if place.is_users_own() {
        let found = daemon::separations(place);
        let of = |separation: &Separation| match separation {
            Separation::OtherUsers(uids) => uids.iter().map(|uid| other_user(*uid, sudo)).collect(),
            other => vec![Finding::advice("others", about(other), format!("{SHARE}{ONE_TABLE}"))],
        };
        return found.iter().flat_map(of).collect();
    }
    let own = uid_of_machine(geteuid().as_raw());
    let is_shared = Path::new("/run/canal").is_dir();
    let other = |uid| {
        let (who, socket) = (user_name::name(uid), Place::of_user(uid).socket);
        let socket = socket.display();
        if place.rule == Rule::Shared {
            // A daemon from before this machine had one for all users. The clients of its user end
            // it, or refuse to use the machine's daemon while it has holds, so that no lock is in
            // two tables.
            let message = format!(
                "{who} still has a separate daemon at {socket}: {who}'s next command ends that \
                 daemon, or fails while that daemon holds a lock"
            );
            return Some(Finding::note("others", message));
        }
        if uid == own {
            let message = format!(
                "you have another daemon at {socket}, which does not share locks with the daemon \
                 at your socket"
            );
            let hint = "use one of the two sockets everywhere";
            return Some(Finding::problem("others", message, hint));
        }
        // A leftover daemon of another user matters only to users who share the machine's table.
        (!is_shared).then(|| other_user(uid, sudo))
    };
    let ignored = (place.rule == Rule::Given && is_shared).then(|| {
        let message = "users share the daemon of /run/canal, but you use another socket";
        Finding::advice("others", message, "leave out --socket and CANAL_SOCKET to share it")
    });
    daemon::users_with_daemons().into_iter().filter_map(other).chain(ignored).collect()
}

fn other_user(uid: u32, sudo: Option<u32>) -> Finding {
    let (who, socket) = (user_name::name(uid), Place::of_user(uid).socket);
    let socket = socket.display();
    let message = format!("{who} has a daemon at {socket}, which does not share locks with yours");
    if Some(uid) == sudo {
        let hint = format!("run canal without sudo; or {ONE_TABLE}");
        return Finding::problem("others", message, hint);
    }
    Finding::advice("others", message, format!("{SHARE}{ONE_TABLE}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands::doctor::finding::Level;

    #[test]
    fn a_hook_that_cannot_run_is_a_problem() {
        let seen = |problem: Option<&str>| SeenHook {
            name: "hooks[0]".to_owned(),
            program: "/x".to_owned(),
            problem: problem.map(str::to_owned),
        };
        assert_eq!(hook(&seen(None)).level, Level::Fine);
        let found = hook(&seen(Some("it is not a regular file")));
        assert_eq!(found.level, Level::Problem);
        assert_eq!(found.message, "hooks[0]: /x: it is not a regular file");
    }
}
