//! `canal kill`: end the processes of holders and waiters, after they were shown.
//!
//! Invariant: only what was shown is signalled. The daemon is told the hold or the request, not the
//! process, and signals nothing if that has changed.

use std::io::{self, IsTerminal};

use nix::sys::signal::Signal;
use serde::Serialize;

use crate::cli::arguments::definition::{Global, KillArgs};
use crate::cli::connect;
use crate::cli::failed::Failed;
use crate::cli::output::sanitize::sanitize;
use crate::cli::output::stderr::Verbosity;
use crate::cli::output::stdout;
use crate::cli::wording::participant::{party, plural};
use crate::cli::wording::time::Now;
use crate::cli::wording::usage_error::wrong;
use crate::client::{Client, ClientError};
use crate::protocol::{Kill, KillTarget, KillTargets, WouldKill};
use crate::run::{OwnCode, SUCCESS};

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    signal: &'a str,
    signalled: Vec<&'a KillTarget>,
    refused: Vec<Refused<'a>>,
}

/// A target that was not signalled.
#[derive(Debug, Serialize)]
struct Refused<'a> {
    message: &'a str,
    target: &'a KillTarget,
}

pub(crate) fn run(args: &KillArgs, global: &Global, verbosity: Verbosity) -> Result<u8, Failed> {
    let asked = what(args)?;
    let signal = args.signal.unwrap_or(Signal::SIGTERM);
    let mut client = connect::client(global)?;
    let found = client.would_kill(&asked).map_err(connect::failed)?;
    show(&found, signal, verbosity);
    check(&found)?;
    if !args.yes {
        ask(&found, args, verbosity)?;
    }
    // The last in the queue comes first and the holders last: else a waiter would be granted the lock
    // of the process that was ended before it.
    let results = processes(&found.targets).into_iter().rev().map(|target| {
        let result = end(&mut client, target, signal);
        if let Err(failed) = &result {
            verbosity.failure(failed);
        } else {
            verbosity.detail(&sent(target, signal));
        }
        (target, result)
    });
    let results: Vec<_> = results.collect();
    if args.json {
        stdout::print(&stdout::json(&report(&found.targets, &results, signal))?)?;
    }
    let all = results.iter().all(|(_, result)| result.is_ok());
    let none_refused = found.targets.iter().all(|target| target.refused.is_none());
    Ok(if all && none_refused { SUCCESS } else { OwnCode::Failed.number() })
}

fn what(args: &KillArgs) -> Result<WouldKill, Failed> {
    let key = args.key.as_ref().map(|key| key.as_str().to_owned());
    match (&key, args.pid) {
        (None, None) => Err(wrong("kill", "which process? give the KEY that it holds, or --pid")),
        (None, Some(_)) if args.waiters => {
            Err(wrong("kill", "--waiters goes with KEY: --pid names a waiter as well as a holder"))
        }
        (_, pid) => Ok(WouldKill { key, pid, waiters: args.waiters }),
    }
}

/// Names what is about to be ended, and what is not.
fn show(found: &KillTargets, signal: Signal, verbosity: Verbosity) {
    let now = Now::here();
    for target in &found.targets {
        let line = line(target, &now);
        match &target.refused {
            None => verbosity.note(&format!("about to send {} to {line}", name(signal))),
            Some(_) => verbosity.note(&format!("not to be ended: {line}")),
        }
    }
    if found.left_out > 0 {
        let more = plural(found.left_out, "more holds or waits", "more hold or wait");
        verbosity.note(&format!("{more}; they are not signalled"));
    }
    for target in &found.targets {
        let Some(refused) = &target.refused else { continue };
        if found.targets.len() > 1 {
            verbosity.message(refused);
        }
    }
}

/// `pid 812 `make test` (alice, s17), which holds db since 14:02:11 (3m12s), in /srv/app`.
pub(super) fn line(target: &KillTarget, now: &Now) -> String {
    let does = if target.token.is_some() { "holds" } else { "waits for" };
    let (keys, since) = (sanitize(&target.keys.join(", ")), &target.since);
    let host = target.host.as_ref().map(|host| format!(" on {}", sanitize(host)));
    let folder = target.folder.as_ref().map(|folder| format!(", in {}", sanitize(folder)));
    let since = format!("since {} ({})", now.clock(since), now.age(since));
    let (host, folder) = (host.unwrap_or_default(), folder.unwrap_or_default());
    format!("{}{host}, which {does} {keys} {since}{folder}", party(&target.party))
}

/// Fails if nothing of it can be ended.
fn check(found: &KillTargets) -> Result<(), Failed> {
    if found.targets.iter().any(|target| target.refused.is_none()) {
        return Ok(());
    }
    let Some(first) = found.targets.first() else { return Err(Failed::new("nothing to end")) };
    refusal(first)
}

/// Fails if the caller cannot end this one.
pub(super) fn refusal(target: &KillTarget) -> Result<(), Failed> {
    let Some(refused) = &target.refused else { return Ok(()) };
    let failed = Failed::new(refused.as_str());
    Err(match &target.hint {
        Some(hint) => failed.hint(hint.as_str()),
        None => failed,
    })
}

/// Asks on the terminal. Without one, `--yes` has to say it.
fn ask(found: &KillTargets, args: &KillArgs, verbosity: Verbosity) -> Result<(), Failed> {
    let again = match (&args.key, args.pid) {
        (Some(key), _) if args.waiters => format!("canal kill --yes --waiters {key}"),
        (Some(key), _) => format!("canal kill --yes {key}"),
        (None, pid) => format!("canal kill --yes --pid {}", pid.unwrap_or(0)),
    };
    let hint = format!("`{again}` ends them without a question");
    if verbosity < Verbosity::Normal {
        return Err(
            Failed::new("with -q nothing is shown that could be agreed to: give --yes").hint(hint)
        );
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failed::new("nothing was signalled: there is no terminal to ask on").hint(hint));
    }
    let count = processes(&found.targets).len() as u64;
    let them = plural(count, "process", "processes");
    verbosity.question(&format!("end {them}? [y/N]"));
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    if read.is_err() || !matches!(answer.trim(), "y" | "Y" | "yes") {
        return Err(Failed::new("nothing was signalled"));
    }
    Ok(())
}

/// Of each process that can be ended, the first target: it is signalled once.
fn processes(targets: &[KillTarget]) -> Vec<&KillTarget> {
    let mut processes: Vec<&KillTarget> = Vec::new();
    for target in targets.iter().filter(|target| target.refused.is_none()) {
        let (pid, host) = (target.party.pid, &target.host);
        // A process of another pid namespace has no number here.
        if pid == 0 || !processes.iter().any(|it| it.party.pid == pid && it.host == *host) {
            processes.push(target);
        }
    }
    processes
}

/// What is said of a process that was signalled.
pub(super) fn sent(target: &KillTarget, signal: Signal) -> String {
    format!("sent {} to {}", name(signal), party(&target.party))
}

/// Signals the process of a hold or of a waiting request.
pub(super) fn end(client: &mut Client, target: &KillTarget, signal: Signal) -> Result<(), Failed> {
    let kill = Kill { token: target.token, request: target.request, signal: signal as i32 };
    match client.kill(&kill) {
        Ok(_) => Ok(()),
        Err(ClientError::Gone) => {
            Err(Failed::new("the daemon went away before it answered; it may have sent the signal"))
        }
        Err(error) => Err(connect::failed(error)),
    }
}

fn report<'a>(
    targets: &'a [KillTarget],
    results: &'a [(&'a KillTarget, Result<(), Failed>)],
    signal: Signal,
) -> Report<'a> {
    let before = targets
        .iter()
        .filter_map(|target| target.refused.as_deref().map(|message| Refused { message, target }));
    let late = results.iter().filter_map(|(target, result)| {
        result.as_ref().err().map(|failed| Refused { message: &failed.message, target })
    });
    Report {
        signal: name(signal),
        signalled: results.iter().filter(|it| it.1.is_ok()).map(|(target, _)| *target).collect(),
        refused: before.chain(late).collect(),
    }
}

/// `TERM`.
pub(super) fn name(signal: Signal) -> &'static str {
    signal.as_str().trim_start_matches("SIG")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wording::participant::tests::someone;
    use crate::cli::wording::time::tests::at;

    fn target(pid: u32, token: u64) -> KillTarget {
        KillTarget {
            token: Some(token),
            request: None,
            keys: vec!["db".to_owned(), "gpu".to_owned()],
            party: someone(pid, "make test", "s17"),
            since: "2026-11-20T14:02:11Z".to_owned(),
            host: None,
            folder: Some("/srv/app".to_owned()),
            refused: None,
            hint: None,
        }
    }

    #[test]
    fn what_is_about_to_be_ended_is_one_line() {
        let now = at("2026-11-20T14:05:23Z");
        assert_eq!(
            line(&target(812, 7), &now),
            "pid 812 `make test` (root, s17), which holds db, gpu since 14:02:11 (3m12s), in \
             /srv/app"
        );
        let waiter = KillTarget {
            token: None,
            request: Some(3),
            folder: None,
            host: Some("beta".to_owned()),
            ..target(812, 7)
        };
        assert_eq!(
            line(&waiter, &now),
            "pid 812 `make test` (root, s17) on beta, which waits for db, gpu since 14:02:11 \
             (3m12s)"
        );
    }

    #[test]
    fn a_process_with_several_holds_is_signalled_once_and_a_refused_one_never() {
        let refused = KillTarget { refused: Some("no".to_owned()), ..target(9, 3) };
        let targets = [target(812, 7), target(812, 8), refused.clone(), target(813, 9)];
        let tokens: Vec<_> = processes(&targets).iter().map(|it| it.token).collect();
        assert_eq!(tokens, [Some(7), Some(9)]);
        let nothing = KillTargets { targets: vec![refused], left_out: 0 };
        assert_eq!(check(&nothing).unwrap_err().message, "no");
    }
}
