//! Ends the process of a holder or waiter with a signal.
//!
//! Invariant: a signal reaches only the process of the exact hold or waiting request that the
//! client named, and only if that process belongs to the client's user, or the client is root.

use std::io;
use std::os::fd::AsFd;

use nix::sys::signal::Signal;

use crate::calls::call::Answer;
use crate::calls::parameters;
use crate::history::recorder::Cause;
use crate::processes::identify_owner::{NOBODY, find};
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::waiters::Open;
use crate::wording::{bad, denied, not_held, pid_of, time};
use canal_core::{HoldState, Owner, RequestId, Table, Token};
use canal_protocol::{Failure, HistoryClient, Kill, KillTarget, KillTargets, Killed, WouldKill};
use canal_sys::peer::Credentials;
use canal_sys::pidfd::{Pidfd, is_gone};
use canal_sys::process::{Found, uid_of};

/// The most holds and waiting requests that are listed for a client that wants to end their
/// processes.
const KILL_TARGETS_MAX: usize = 200;

impl Server {
    /// Lists the processes that a client may end.
    pub(crate) fn would_kill(&self, caller: &Caller, asked: &WouldKill) -> Result {
        let targets = self.targets(asked)?;
        if targets.is_empty() && asked.superseded_by.is_none() {
            return Err(not_found(asked));
        }
        let shown = self.shown(caller.peer.uid);
        let is_named = asked.token.is_some() || asked.request.is_some();
        let (mut told, mut fds) = (Vec::new(), Vec::new());
        let left_out = targets.len().saturating_sub(KILL_TARGETS_MAX) as u64;
        for target in targets.into_iter().take(KILL_TARGETS_MAX) {
            let killable = self.killable(caller.peer, &target, |pidfd| {
                // Without the pidfd, the client can only ask for a signal, and cannot see the
                // process end.
                if is_named {
                    fds.extend(pidfd.as_fd().try_clone_to_owned());
                }
            });
            let (refused, hint) =
                killable.err().map_or((None, None), |it| (Some(it.message), it.hint));
            told.push(KillTarget {
                token: target.hold.as_ref().map(|hold| hold.token.0),
                request: waiting(shown.table, &target).map(|request| request.0),
                keys: target.keys(),
                party: shown.party(&target),
                since: time(target.begun_at()),
                host: shown.label_of(target.frame),
                folder: shown.folder(&target.asked, target.frame),
                note: target.asked.note.as_deref().map(str::to_owned),
                refused,
                hint: hint.map(String::from),
            });
        }
        let process_fd = (!fds.is_empty()).then_some(0);
        let found = KillTargets { targets: told, left_out, process_fd };
        Ok(Step::Answer(Answer { fds, ..Answer::reply(&found) }))
    }

    /// Sends the signal.
    pub(crate) fn kill(&mut self, caller: &Caller, kill: &Kill) -> Result {
        let Ok(signal) = Signal::try_from(kill.signal) else {
            return Err(bad(format!("{} is not a signal number", kill.signal)));
        };
        let target = self.target_named(kill.token, kill.request)?;
        let signalled = self.killable(caller.peer, &target, |pidfd| pidfd.signal(signal))?;
        let pid = pid_of(&target.asked.owner);
        signalled.map_err(|error| match error.kind() {
            _ if is_gone(&error) => past(&format!("process {pid} has ended")),
            io::ErrorKind::PermissionDenied => {
                let daemon = self.about.uid;
                denied(format!("the daemon runs as uid {daemon} and may not signal process {pid}"))
                    .hint(format!("run `kill -{} {pid}` yourself", kill.signal))
            }
            _ => denied(format!("cannot signal process {pid}: {error}")),
        })?;
        let (uid, by, keys) = (caller.peer.uid, caller.peer.pid, target.keys().join(", "));
        tracing::info!(pid, uid, by, %keys, %signal, "signalled");
        if let Some(request) = waiting(self.decide.table(), &target).filter(|_| ends(signal)) {
            let signal = u8::try_from(signal as i32).unwrap_or_default();
            let by = HistoryClient { uid, pid: by };
            self.observe.history.expect_end(request, Cause::Killed { signal, by });
        }
        Ok(Step::reply(&Killed { pid }))
    }

    fn targets(&self, asked: &WouldKill) -> Result<Vec<Open>> {
        let table = self.decide.table();
        let hold = |hold| Open::of_hold(table, hold);
        let waiter = |waiter| Open::of_waiter(table, waiter);
        let named = (asked.token, asked.request);
        Ok(match (&asked.key, asked.pid, &asked.session, named, asked.superseded_by) {
            (Some(key), None, None, (None, None), None) => {
                let key = parameters::key(&**key)?;
                let holds = table.holders(&key).filter_map(|token| table.hold(token));
                let queue = if asked.waiters { table.served(&key) } else { Vec::new() };
                let waits = queue.into_iter().filter_map(|id| table.waiter(id));
                holds.map(hold).chain(waits.map(waiter)).collect()
            }
            (None, Some(pid), None, (None, None), None) => {
                // A process in another pid namespace has no pid here.
                let frames =
                    || table.frames_of_number(self.decide.host(), pid).filter(|_| pid != 0);
                let holds = frames().flat_map(|frame| table.holds_in(frame)).map(hold);
                let waits = frames().flat_map(|frame| table.waiters_in(frame)).map(waiter);
                holds.chain(waits).collect()
            }
            (None, None, Some(session), (None, None), None) => {
                let session = parameters::session(session)?;
                let all = table.holds().map(hold).chain(table.waiters().map(waiter));
                all.filter(|open| open.session == session).collect()
            }
            (None, None, None, (None, None), Some(tag)) => {
                let request = table.tagged(tag).into_iter();
                let tokens = request.flat_map(|request| table.superseded_holds(request));
                tokens.filter_map(|token| table.hold(token)).map(hold).collect()
            }
            (None, None, None, (token, request), None) if named != (None, None) => {
                vec![self.target_named(token, request)?]
            }
            _ => {
                let message = "give exactly one of `key`, `pid`, `session`, `token`, `request` \
                               and `superseded_by`";
                return Err(bad(message));
            }
        })
    }

    /// The hold or request that a client names, if it still exists.
    pub(super) fn target_named(&self, token: Option<u64>, request: Option<u64>) -> Result<Open> {
        let table = self.decide.table();
        match (token, request) {
            (Some(token), None) => {
                let hold = table.hold(Token(token)).map(|hold| Open::of_hold(table, hold));
                hold.ok_or_else(|| past(&format!("the hold with token {token} has ended")))
            }
            (None, Some(request)) => match Open::of(table, RequestId(request)) {
                Some(Open { hold: Some(_), .. }) => Err(past("the request has been granted")),
                Some(waiter) => Ok(waiter),
                None => Err(past("the request is no longer waiting")),
            },
            _ => Err(bad("give exactly one of `token` and `request`")),
        }
    }

    /// Does something with the process of a hold or request, if this client may end it.
    pub(super) fn killable<T>(
        &self,
        peer: Credentials,
        target: &Open,
        act: impl FnOnce(&Pidfd) -> T,
    ) -> Result<T> {
        let (asked, hold) = (&target.asked, target.hold.as_deref());
        let pid = pid_of(&asked.owner);
        let ended = || past(&format!("process {pid} has ended"));
        let Owner::Process(id) = asked.owner else {
            let is_lease = matches!(asked.owner, Owner::Lease(_));
            let whose = if is_lease { "a lease" } else { "a job token of a build" };
            let failure = denied(format!("{whose} has no process to end"));
            return Err(match hold {
                Some(HoldState { token, .. }) => {
                    failure.hint(format!("break it with `canal release --force --token {token}`"))
                }
                None => failure,
            });
        };
        if asked.host != self.decide.host() {
            let host = self.decide.table().host(asked.host).map_or("?", |it| it.label.as_str());
            return Err(denied(format!("process {pid} is running on host {host}"))
                .hint("run `canal kill` there"));
        }
        if hold.is_some_and(|hold| hold.orphaned) {
            let message = format!(
                "process {pid} has ended, but processes that it started keep the lock \
                 (--with-children)"
            );
            let hint = "find them with `canal status KEY`, and end them with `kill`";
            return Err(denied(message).hint(hint));
        }
        if self.owners.unverified.contains(&target.frame) {
            let message = format!("the daemon could not identify process {pid} after a restart");
            return Err(denied(message).hint("check the process, and end it with `kill`"));
        }
        // `force` allows a user to break a lock, not to end the processes of others.
        if peer.uid != 0 && (peer.uid != asked.uid || peer.uid == NOBODY) {
            let message = format!("process {pid} belongs to uid {}", asked.uid);
            return Err(denied(message).hint("end it as that user or as root"));
        }
        let found;
        let pidfd = match self.owners.of(target.frame) {
            Some(pidfd) => pidfd,
            None => match find(id) {
                Found::Same(pidfd) => {
                    found = pidfd;
                    &found
                }
                Found::Gone => return Err(ended()),
                Found::Unknown(error) => {
                    return Err(denied(format!("cannot identify process {pid}: {error}")));
                }
            },
        };
        // The process may run as another user since it asked for the lock.
        match uid_of(pidfd).filter(|_| !pidfd.has_ended()) {
            Some(uid) if peer.uid != 0 && uid != peer.uid => {
                Err(denied(format!("process {pid} now runs as uid {uid}"))
                    .hint("end it as that user or as root"))
            }
            None => Err(ended()),
            Some(_) => Ok(act(pidfd)),
        }
    }
}

/// The number of a request, if it waits.
fn waiting(table: &Table, target: &Open) -> Option<RequestId> {
    if target.hold.is_none() { table.tagged(target.asked.tag) } else { None }
}

/// Whether the default action of a signal ends the process.
fn ends(signal: Signal) -> bool {
    use Signal::{SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};
    !matches!(signal, SIGCHLD | SIGCONT | SIGSTOP | SIGTSTP | SIGTTIN | SIGTTOU | SIGURG | SIGWINCH)
}

/// The failure for a client that named something that has since changed.
pub(super) fn past(what: &str) -> Failure {
    not_held(format!("{what}, so canal signalled no process")).because("changed")
}

/// The failure for a client whose query matches no holder and no waiter.
fn not_found(asked: &WouldKill) -> Failure {
    let message = match (&asked.key, asked.pid) {
        (Some(key), _) if asked.waiters => format!("no one holds or waits for `{key}`"),
        (Some(key), _) => format!("no one holds `{key}`"),
        (None, pid) => {
            let session = asked.session.as_deref().unwrap_or_default();
            let of =
                pid.map_or_else(|| format!("session {session}"), |pid| format!("process {pid}"));
            format!("{of} neither holds nor waits for a lock here")
        }
    };
    let failure = not_held(message);
    match &asked.key {
        Some(key) if !asked.waiters => {
            failure.hint(format!("to include its waiters, run `canal kill --waiters {key}`"))
        }
        _ => failure.hint("run `canal status` to see the holders and waiters"),
    }
}
