//! `canal release`: releases a hold or a lease.
//!
//! canal asks for the token first and names it, so that the call can be sent again if the daemon
//! ends.

use serde::Serialize;

use crate::cli::arguments::request::GivenHandle;
use crate::cli::lock_source::on_lease;
use crate::cli::output::stderr::confirm;
use crate::cli::owner::Owner;
use crate::cli::wording::holders_and_waiters::holder;
use crate::cli::wording::lost::{self, PartReport, Parts};
use crate::cli::{Failed, Global, Now, ReleaseArgs, Result, Target, stderr, stdout, wrong};
use crate::client::nodes::lease::LeaseHandle;
use crate::client::{Client, ClientError};
use crate::core::Key;
use crate::nodes::Task;
use crate::protocol::{ErrorName, HolderInfo, Release, Released, ReleasedHold, StatusQuery};
use crate::run::nodes::{Host, News, PartAnswer, PartSaid};

pub(crate) fn run(args: &ReleaseArgs, global: &Global) -> Result {
    let names_hold = args.key.is_some() || args.all || args.force || args.token.is_some();
    let given = if names_hold || args.pid.is_some() { None } else { args.which.read()? };
    let mut release = match given {
        None => what(args)?,
        Some(GivenHandle::OfDaemon(it)) => Release { handle: Some(it), ..Release::default() },
        Some(GivenHandle::OverNodes(handle)) => {
            return at_nodes(&handle, args.json, &Target::of(global)?);
        }
    };
    let by_name = args.force || release.handle.is_some();
    let owner = if by_name { None } else { Some(Owner::find(args.pid)?) };
    let mut client = Target::of(global)?.connect()?;
    if args.force {
        let key = release.key.take();
        if let Some(key) = &key {
            release.token = Some(only_holder(&mut client, key)?);
        }
        let held = client.would_release(&release)?;
        lines(&held, "about to break the hold on", "by").iter().for_each(|line| stderr::note(line));
        // A token on the command line identifies the hold. A key does not, because another process
        // may have it by now.
        if let Some(key) = key.filter(|_| !args.yes) {
            let again = format!("canal release --force --yes {key}");
            confirm("break the hold?", "released nothing", &again)?;
        }
    }
    let released = match client.release_once(&release, owner.as_ref().map(|owner| &owner.pidfd)) {
        Ok(released) => released,
        Err(ClientError::Failure(failure)) if failure.name == ErrorName::LeaseLost => {
            return Err(lost::explain(&failure, args.json)?);
        }
        Err(error) => return Err(explained(error, args, owner.as_ref())),
    };
    stdout::json_if(args.json, &released)?;
    // canal always reports a hold that was broken by force.
    let (say, done, whose): (fn(&str), _, _) = match args.force {
        true => (stderr::note, "broke the hold on", "by"),
        false => (stderr::detail, "released", "held by"),
    };
    lines(&released, done, whose).iter().for_each(|line| say(line));
    Ok(())
}

/// Releases a lease at all its nodes.
fn at_nodes(handle: &LeaseHandle, json: bool, target: &Target) -> Result {
    let ending = on_lease(Task::GiveBack, handle, (None, None), target, &mut ReleaseHost)?;
    let Some(ending) = ending else { return Ok(()) };
    let answers = &ending.answers;
    let parts = Parts { handle, answers };
    let count = |which: fn(&PartAnswer) -> bool| answers.iter().filter(|it| which(it)).count();
    let lost = count(|answer| matches!(answer.said, Some(PartSaid::Lost(_))));
    if answers.len() - lost < handle.need {
        return Err(parts.lost(&[], json)?);
    }
    if count(|answer| answer.said.is_some()) == 0 {
        return Err(parts.unreached(ending.outcome.hint()));
    }
    let released = parts.released().map(|(_, released)| released).collect();
    stdout::json_if(json, &ReleasedOverNodes { released, nodes: parts.reports() })?;
    for (name, one) in parts.released() {
        stderr::detail(&format!("released {} on {name}", one.keys.join(", ")));
    }
    parts.missing().iter().for_each(|line| stderr::note(line));
    if count(|answer| answer.said.is_none()) > 0 {
        let hint = "wait for the unreachable nodes: the lease ends on them when its TTL expires";
        stderr::advice(hint);
    }
    Ok(())
}

/// The output of `--json` for a lease over nodes.
#[derive(Debug, Serialize)]
struct ReleasedOverNodes<'a> {
    released: Vec<&'a ReleasedHold>,
    nodes: Vec<PartReport<'a>>,
}

/// The host of a driver that releases a lease.
struct ReleaseHost;

impl Host for ReleaseHost {
    fn say(&mut self, news: News) {
        // The result names the nodes that are away.
        let note = if matches!(news, News::Away(_)) { None } else { news.note() };
        note.iter().for_each(|note| stderr::note(note));
    }
}

/// The token of the only hold of exactly this key.
fn only_holder(client: &mut Client, key: &str) -> Result<u64> {
    let query = StatusQuery { key: Some(key.to_owned()), ..StatusQuery::default() };
    let status = client.status(&query)?;
    let holders = status.keys.iter().filter(|it| it.key == key).flat_map(|it| &it.holders);
    // For a hold above or below the key, the daemon includes its key.
    let holders: Vec<&HolderInfo> = holders.filter(|holder| holder.key.is_none()).collect();
    match *holders {
        [holder] => Ok(holder.token),
        [] => Err(Failed::new(format!("no one holds `{key}`"))
            .hint("run `canal status` to see the holders and waiters")),
        [..] => {
            let count = holders.len();
            let message = format!("`{key}` has {count} holders; choose one with --force --token");
            let hint = format!("run `canal status -v {key}` to see the tokens");
            Err(Failed::new(message).hint(hint))
        }
    }
}

/// Adds a hint about what is easy to overlook: KEY has no size here, and the owner is the parent
/// process, which is not obvious in a pipe or a subshell.
fn explained(error: ClientError, args: &ReleaseArgs, owner: Option<&Owner>) -> Failed {
    let failed = Failed::from(error);
    let not_held = failed.failure.as_ref().is_some_and(|it| it.name == ErrorName::NotHeld);
    let is_sized = |key: &Key| key.as_str().contains(['=', ':']) && !key.as_str().contains('/');
    match owner {
        // The daemon's own hint may be better.
        _ if !not_held || failed.hint.is_some() => failed,
        _ if args.key.as_ref().is_some_and(is_sized) => {
            failed.hint("give KEY alone, without the =SIZE and :COUNT of `--key`")
        }
        Some(owner) if owner.by_default => {
            let hint = "name another process with --pid; without it, canal releases for its parent \
                        process";
            failed.hint(format!("{hint}, {}", owner.shown()))
        }
        _ => failed,
    }
}

/// The holds at the daemon of this place that the command line names with exactly one of KEY,
/// --all, --force KEY and --force --token. With `--force KEY`, it is the only hold of the key.
fn what(args: &ReleaseArgs) -> Result<Release> {
    let error = |message: &str| Err(wrong("release", message));
    if args.which.handle.is_some() {
        return error("--handle names a whole lease: leave out KEY, --all, --token and --pid");
    }
    if args.yes && !args.force {
        return error("--yes needs --force KEY, the only form that asks for confirmation");
    }
    match (&args.key, args.all, args.force, args.token) {
        (None, false, true, Some(_)) if args.pid.is_some() => {
            error("--force --token releases a hold of any process: leave out --pid")
        }
        (Some(_), false, true, None) if args.pid.is_some() => {
            error("--force KEY breaks the hold of any process: leave out --pid")
        }
        (None, false, true, token @ Some(_)) => Ok(Release { token, ..Release::default() }),
        (Some(key), false, _, None) => {
            Ok(Release { key: Some(key.text().clone()), ..Release::default() })
        }
        (_, _, true, None) => Err(wrong("release", "--force needs KEY or --token")
            .hint("run `canal status -v` to see the tokens")),
        (_, _, true, Some(_)) => error("--force --token names a hold; leave out KEY and --all"),
        (_, _, false, Some(_)) => error("--token needs --force"),
        (Some(_), true, false, None) => error("KEY and --all cannot be given together"),
        (None, true, false, None) => Ok(Release { all: true, ..Release::default() }),
        (None, false, false, None) => error("no lock given; give its KEY, --all, or --handle"),
    }
}

/// `released db held by pid 812 `make test` (alice, for 3m12s)`.
pub(super) fn lines(released: &Released, done: &str, whose: &str) -> Vec<String> {
    let now = Now::here();
    let line = |ReleasedHold { keys, holder: who, .. }: &ReleasedHold| {
        format!("{done} {} {whose} {}", keys.join(", "), holder(who, &now))
    };
    released.released.iter().map(line).collect()
}
