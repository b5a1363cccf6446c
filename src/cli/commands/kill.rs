//! `canal kill`: shows the processes of holders and waiters, and ends them, with the processes that
//! they started.
//!
//! Invariant: canal signals only what it has shown, and the processes started by that.

use nix::sys::signal::Signal;
use serde::Serialize;

use crate::cli::find_job::look_up;
use crate::cli::kill_and_supersede::{Ending, Left, endings, ends, name, refusal, sent, wait_for};
use crate::cli::output::stderr::confirm;
use crate::cli::wording::holders_and_waiters::{clause, party};
use crate::cli::{
    Failed, Global, KillArgs, Now, Result, Target, plural, sanitize, stderr, stdout, wrong,
};
use crate::protocol::{KillTarget, KillTargets, WouldKill};
use crate::run::{OwnCode, SUCCESS};

/// The `--json` output.
#[derive(Debug, Serialize)]
struct Report<'a> {
    signal: &'a str,
    signalled: Vec<&'a KillTarget>,
    refused: Vec<Refused<'a>>,
    /// The processes that still run after the wait.
    left: &'a [Left],
}

/// A target that was not signalled.
#[derive(Debug, Serialize)]
struct Refused<'a> {
    message: String,
    target: &'a KillTarget,
}

pub(crate) fn run(args: &KillArgs, global: &Global) -> Result<u8> {
    let mut asked = what(args)?;
    let signal = args.signal.unwrap_or(Signal::SIGTERM);
    if args.kill_after.is_some() && !ends(signal) {
        let name = name(signal);
        let message =
            format!("--kill-after needs a signal that ends processes, and {name} does not");
        return Err(wrong("kill", message));
    }
    let target = Target::of(global)?;
    let (mut client, _, session) = look_up(args.key.as_ref(), &target)?;
    if let (Some(session), Some(key)) = (session, &args.key) {
        let number = key.as_str().trim_start_matches('%');
        // A script that ends the holder of key 17 must not end job 17.
        if args.yes && number == key.as_str() {
            let message = format!("no key `{number}` is in use, but there is a job {number}");
            let hint = format!("end the job with `canal kill --yes %{number}`");
            return Err(Failed::new(message).hint(hint));
        }
        asked = WouldKill { session: Some(session), ..WouldKill::default() };
    }
    let found = client.would_kill(&asked)?;
    let mut endings = endings(&mut client, &found)?;
    // The order is from the end of the queue to the holders. Otherwise, ending a process would
    // grant its lock to the next waiter.
    endings.reverse();
    show(&found, &endings, signal);
    if found.targets.iter().all(|target| target.refused.is_some()) {
        found.targets.iter().try_for_each(refusal)?;
    }
    if !args.yes {
        let count = plural(endings.len() as u64, "process", "processes");
        let (question, again) = (format!("end {count}?"), again(args));
        confirm(&question, "signalled no process", &again)?;
    }
    let targets = found.targets.iter();
    let mut refused: Vec<_> = targets
        .filter_map(|target| Some(Refused { message: target.refused.clone()?, target }))
        .collect();
    let (mut signalled, mut all) = (Vec::new(), true);
    for mut ending in endings {
        match ending.signal(&mut client, signal) {
            Ok(not_signalled) => {
                stderr::detail(&sent(ending.target, signal));
                all &= not_signalled.is_empty();
                not_signalled.iter().for_each(|line| stderr::message(line));
                signalled.push(ending);
            }
            Err(failed) => {
                stderr::failure(&failed);
                refused.push(Refused { message: failed.message, target: ending.target });
            }
        }
    }
    let left = match ends(signal) {
        true => wait_for(&mut signalled, signal, args.kill_after),
        false => Vec::new(),
    };
    let done = all && refused.is_empty() && left.is_empty();
    let signalled = signalled.iter().map(|ending| ending.target).collect();
    let report = Report { signal: name(signal), signalled, refused, left: &left };
    stdout::json_if(args.json, &report)?;
    Ok(if done { SUCCESS } else { OwnCode::Failed.number() })
}

/// The command that skips the question.
fn again(args: &KillArgs) -> String {
    match (&args.key, args.pid) {
        (Some(key), _) if args.waiters => format!("canal kill --yes --waiters {key}"),
        (Some(key), _) => format!("canal kill --yes {key}"),
        (None, pid) => format!("canal kill --yes --pid {}", pid.unwrap_or(0)),
    }
}

fn what(args: &KillArgs) -> Result<WouldKill> {
    let (key, error) = (args.key.as_ref().map(ToString::to_string), |why| Err(wrong("kill", why)));
    match (&key, args.pid) {
        (None, None) => error("no process given; give the KEY that it holds, or --pid"),
        (None, Some(_)) if args.waiters => {
            error("--waiters needs KEY; --pid already covers waiters and holders")
        }
        (_, pid) => Ok(WouldKill { key, pid, waiters: args.waiters, ..WouldKill::default() }),
    }
}

/// Prints which processes canal is about to end, and which it is not.
fn show(found: &KillTargets, endings: &[Ending<'_>], signal: Signal) {
    let now = Now::here();
    for target in &found.targets {
        let line = line(target, &now);
        let ending = endings.iter().find(|ending| std::ptr::eq(ending.target, target));
        let started = ending.map_or(0, Ending::started) as u64;
        let and_more = match started > 0 && ends(signal) {
            true => format!(", and to {} that it started", plural(started, "process", "processes")),
            false => String::new(),
        };
        stderr::note(&match &target.refused {
            None => format!("about to send {} to {line}{and_more}", name(signal)),
            Some(_) => format!("cannot end {line}"),
        });
    }
    if found.left_out > 0 {
        let more = plural(found.left_out, "more holder or waiter", "more holders or waiters");
        stderr::note(&format!("{more}; canal does not signal them"));
    }
    if found.targets.len() > 1 {
        let refused = found.targets.iter().filter_map(|target| target.refused.as_ref());
        refused.for_each(|refused| stderr::message(refused));
    }
}

/// `pid 812 `make test` (alice, s17), which has held db since 14:02:11 (3m12s), in /srv/app`.
pub(super) fn line(target: &KillTarget, now: &Now) -> String {
    let does = if target.token.is_some() { "has held" } else { "has been waiting for" };
    let (keys, since) = (sanitize(&target.keys.join(", ")), now.since(&target.since));
    let host = clause(" on ", target.host.as_deref());
    let folder = clause(", in ", target.folder.as_deref());
    let note = clause(", note: ", target.note.as_deref());
    format!("{}{host}, which {does} {keys} {since}{folder}{note}", party(&target.party))
}
