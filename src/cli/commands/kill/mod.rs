//! `canal kill`: shows the processes of holders and waiters, and ends them.
//!
//! Invariant: canal signals only what it has shown, and the processes started by that. It names the
//! hold or the request to the daemon, not the process, and the daemon sends no signal if that has
//! changed.

mod ending;
mod superseded;

use std::time::Duration;

use nix::sys::signal::Signal;
use serde::Serialize;

use crate::cli::arguments::definition::KillArgs;
use crate::cli::find_job::look_up;
use crate::cli::output::stderr::confirm;
use crate::cli::wording::participant::{clause, party};
use crate::cli::{
    Failed, Global, Length, Now, Result, Target, Verbosity, plural, sanitize, stated, stdout, wrong,
};
use crate::protocol::{KillTarget, KillTargets, WouldKill};
use crate::run::{OwnCode, SUCCESS};
pub(super) use ending::Ending;
use ending::{Left, ends, wait};
pub(super) use superseded::EndSuperseded;

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
    message: &'a str,
    target: &'a KillTarget,
}

/// How long canal waits for the processes to end.
const WAIT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &KillArgs, global: &Global) -> Result<u8> {
    let mut asked = what(args)?;
    let signal = args.signal.unwrap_or(Signal::SIGTERM);
    if args.kill_after.is_some() && !ends(signal) {
        let message = format!(
            "--kill-after needs a signal that ends processes, and {} does not",
            name(signal)
        );
        return Err(wrong("kill", message));
    }
    let target = Target::of(global)?;
    let verbosity = target.verbosity;
    let (mut client, _, session) = look_up(args.key.as_ref(), &target)?;
    if let (Some(session), Some(key)) = (session, &args.key) {
        let number = key.as_str().trim_start_matches('%');
        // A script that ends the holder of key 17 must not end job 17.
        if args.yes && number == key.as_str() {
            let message = format!("no key `{number}` is in use, but there is a job {number}");
            return Err(
                Failed::new(message).hint(format!("end the job with `canal kill --yes %{number}`"))
            );
        }
        asked = WouldKill { session: Some(session), ..WouldKill::default() };
    }
    let found = client.would_kill(&asked)?;
    // The order is from the end of the queue to the holders. Otherwise, ending a process would
    // grant its lock to the next waiter.
    let endings = processes(&found.targets).into_iter().rev();
    let endings = endings.map(|target| Ending::find(&mut client, target));
    let endings = endings.collect::<Result<Vec<_>>>()?;
    show(&found, &endings, signal, verbosity);
    check(&found)?;
    if !args.yes {
        let count = plural(endings.len() as u64, "process", "processes");
        let (question, again) = (format!("end {count}?"), again(args));
        confirm(&question, "signalled no process", &again, verbosity)?;
    }
    let (mut signalled, mut refused, mut all) = (Vec::new(), Vec::new(), true);
    for mut ending in endings {
        match ending.signal(&mut client, signal) {
            Ok(not_signalled) => {
                verbosity.detail(&sent(ending.target, signal));
                all &= not_signalled.is_empty();
                not_signalled.iter().for_each(|line| verbosity.message(line));
                signalled.push(ending);
            }
            Err(failed) => {
                verbosity.failure(&failed);
                refused.push((ending.target, failed));
            }
        }
    }
    let left = match ends(signal) {
        true => wait_for(&mut signalled, signal, args.kill_after, verbosity),
        false => Vec::new(),
    };
    stdout::json_if(args.json, &report(&found.targets, &signalled, &refused, &left, signal))?;
    let none_refused = found.targets.iter().all(|target| target.refused.is_none());
    let done = all && refused.is_empty() && left.is_empty() && none_refused;
    Ok(if done { SUCCESS } else { OwnCode::Failed.number() })
}

/// Waits for the end of the signalled processes, and kills them after `kill_after`. Reports those
/// that remain.
fn wait_for(
    endings: &mut [Ending<'_>],
    signal: Signal,
    kill_after: Option<Length>,
    verbosity: Verbosity,
) -> Vec<Left> {
    let time = kill_after.map_or(Some(WAIT), Length::finite);
    if wait(endings, time) {
        return Vec::new();
    }
    let time = stated(time.unwrap_or_default());
    let mut since = format!("{time} after {}", name(signal));
    if kill_after.is_some() {
        let mut is_any_killed = false;
        for ending in endings.iter_mut() {
            let (killed, refused) = ending.kill_left();
            for one in &killed {
                verbosity.note(&format!("killed {}, {since}", one.shown()));
            }
            refused.iter().for_each(|line| verbosity.message(line));
            is_any_killed |= !killed.is_empty();
        }
        if is_any_killed && wait(endings, Some(WAIT)) {
            return Vec::new();
        }
        since = format!("{} after KILL", stated(WAIT));
    }
    let mut all_left = Vec::new();
    let mut is_deaf = false;
    for ending in endings.iter() {
        for left in ending.left() {
            let shown = left.shown();
            // canal has already reported why it cannot end this process.
            if ending.is_refused(&left) {
                verbosity.message(&format!("{shown} is still running"));
            } else {
                verbosity.message(&format!("{shown} is still running, {since}"));
                is_deaf = true;
            }
            all_left.push(left);
        }
    }
    if is_deaf && kill_after.is_none() && signal != Signal::SIGKILL {
        let hint = "kill the remaining processes with `--kill-after 10s`, or kill immediately with \
                    `--signal KILL`";
        verbosity.hint(hint);
    }
    all_left
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
    let key = args.key.as_ref().map(ToString::to_string);
    match (&key, args.pid) {
        (None, None) => {
            Err(wrong("kill", "no process given; give the KEY that it holds, or --pid"))
        }
        (None, Some(_)) if args.waiters => {
            Err(wrong("kill", "--waiters needs KEY; --pid already covers waiters and holders"))
        }
        (_, pid) => Ok(WouldKill { key, pid, waiters: args.waiters, ..WouldKill::default() }),
    }
}

/// Prints which processes canal is about to end, and which it is not.
fn show(found: &KillTargets, endings: &[Ending<'_>], signal: Signal, verbosity: Verbosity) {
    let now = Now::here();
    for target in &found.targets {
        let line = line(target, &now);
        let ending = endings.iter().find(|ending| std::ptr::eq(ending.target, target));
        let started = ending.map_or(0, Ending::started) as u64;
        match &target.refused {
            None if started > 0 && ends(signal) => {
                let started = plural(started, "process", "processes");
                let signal = name(signal);
                verbosity.note(&format!(
                    "about to send {signal} to {line}, and to {started} that it started"
                ));
            }
            None => verbosity.note(&format!("about to send {} to {line}", name(signal))),
            Some(_) => verbosity.note(&format!("cannot end {line}")),
        }
    }
    if found.left_out > 0 {
        let more = plural(found.left_out, "more holder or waiter", "more holders or waiters");
        verbosity.note(&format!("{more}; canal does not signal them"));
    }
    for target in &found.targets {
        let Some(refused) = &target.refused else { continue };
        if found.targets.len() > 1 {
            verbosity.message(refused);
        }
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

/// Fails if none of the targets can be ended.
fn check(found: &KillTargets) -> Result {
    if found.targets.iter().any(|target| target.refused.is_none()) {
        return Ok(());
    }
    let Some(first) = found.targets.first() else { return Err(Failed::new("no process to end")) };
    refusal(first)
}

/// Fails if the caller cannot end this target.
pub(super) fn refusal(target: &KillTarget) -> Result {
    match &target.refused {
        None => Ok(()),
        Some(refused) => Err(Failed::new(refused.as_str()).hint_if(target.hint.as_deref())),
    }
}

/// The first target of each process that can be ended, because each process is signalled once.
fn processes(targets: &[KillTarget]) -> Vec<&KillTarget> {
    let mut processes: Vec<&KillTarget> = Vec::new();
    for target in targets.iter().filter(|target| target.refused.is_none()) {
        let (pid, host) = (target.party.pid, &target.host);
        // A process of another pid namespace has no pid here.
        if pid == 0 || !processes.iter().any(|it| it.party.pid == pid && it.host == *host) {
            processes.push(target);
        }
    }
    processes
}

/// The message about a process that was signalled.
pub(super) fn sent(target: &KillTarget, signal: Signal) -> String {
    format!("sent {} to {}", name(signal), party(&target.party))
}

fn report<'a>(
    targets: &'a [KillTarget],
    signalled: &[Ending<'a>],
    late: &'a [(&'a KillTarget, Failed)],
    left: &'a [Left],
    signal: Signal,
) -> Report<'a> {
    let before = targets
        .iter()
        .filter_map(|target| target.refused.as_deref().map(|message| Refused { message, target }));
    let late = late.iter().map(|(target, failed)| Refused { message: &failed.message, target });
    Report {
        signal: name(signal),
        signalled: signalled.iter().map(|ending| ending.target).collect(),
        refused: before.chain(late).collect(),
        left,
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
            note: None,
            refused: None,
            hint: None,
        }
    }

    #[test]
    fn what_is_about_to_be_ended_is_one_line() {
        let now = at("2026-11-20T14:05:23Z");
        assert_eq!(
            line(&target(812, 7), &now),
            "pid 812 `make test` (root, s17), which has held db, gpu since 14:02:11 (3m12s), in \
             /srv/app"
        );
        let waiter = KillTarget {
            token: None,
            request: Some(3),
            folder: None,
            note: Some("nightly \u{7}".to_owned()),
            host: Some("beta".to_owned()),
            ..target(812, 7)
        };
        assert_eq!(
            line(&waiter, &now),
            "pid 812 `make test` (root, s17) on beta, which has been waiting for db, gpu since \
             14:02:11 (3m12s), note: nightly ?"
        );
    }

    #[test]
    fn a_process_with_several_holds_is_signalled_once_and_a_refused_one_never() {
        let refused = KillTarget { refused: Some("no".to_owned()), ..target(9, 3) };
        let targets = [target(812, 7), target(812, 8), refused.clone(), target(813, 9)];
        let tokens: Vec<_> = processes(&targets).iter().map(|it| it.token).collect();
        assert_eq!(tokens, [Some(7), Some(9)]);
        let nothing = KillTargets { targets: vec![refused], left_out: 0, process_fd: None };
        assert_eq!(check(&nothing).unwrap_err().message, "no");
    }
}
