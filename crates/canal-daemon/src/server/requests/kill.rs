//! Ends the process of a holder or waiter with a signal.
//!
//! Invariant: a signal reaches only the process of the exact hold or waiting request that the
//! client named, and only if that process belongs to the client's user, or the client is root.

use std::io;
use std::os::fd::OwnedFd;

use nix::sys::signal::Signal;

use crate::calls::call::Answer;
use crate::calls::items;
use crate::processes::identity::{NOBODY, find};
use crate::server::Server;
use crate::server::call_step::{Caller, Result, Step};
use crate::view::visible_table::Shown;
use crate::wording::{bad, denied, not_held, pid_of, time};
use canal_core::{FrameId, HoldState, Owner, Request, RequestId, Token, UnixMillis, WaiterState};
use canal_protocol::{Failure, Kill, KillTarget, KillTargets, Killed, WouldKill};
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
                    fds.extend(pidfd.try_clone().map(OwnedFd::from));
                }
            });
            told.push(target.told(&shown, killable.err()));
        }
        let process_fd = (!fds.is_empty()).then_some(0);
        let found = KillTargets { targets: told, left_out, process_fd };
        Ok(Step::Answer(Answer::with_fds(&found, fds)))
    }

    /// Sends the signal.
    pub(crate) fn kill(&self, caller: &Caller, kill: &Kill) -> Result {
        let Ok(signal) = Signal::try_from(kill.signal) else {
            return Err(bad(format!("{} is not a signal number", kill.signal)));
        };
        let target = self.target_named(kill.token, kill.request)?;
        let signalled = self.killable(caller.peer, &target, |pidfd| pidfd.signal(signal))?;
        let pid = target.pid();
        signalled.map_err(|error| match error.kind() {
            _ if is_gone(&error) => past(&format!("process {pid} has ended")),
            io::ErrorKind::PermissionDenied => {
                let daemon = self.about.uid;
                denied(format!("the daemon runs as uid {daemon} and may not signal process {pid}"))
                    .hint(format!("run `kill -{} {pid}` yourself", kill.signal))
            }
            _ => denied(format!("cannot signal process {pid}: {error}")),
        })?;
        let (uid, by, keys) = (caller.peer.uid, caller.peer.pid, target.keys.join(", "));
        tracing::info!(pid, uid, by, %keys, %signal, "signalled");
        Ok(Step::reply(&Killed { pid }))
    }

    fn targets(&self, asked: &WouldKill) -> Result<Vec<Target<'_>>> {
        let table = self.decide.table();
        let named = (asked.token, asked.request);
        Ok(match (&asked.key, asked.pid, &asked.session, named, asked.superseded_by) {
            (Some(key), None, None, (None, None), None) => {
                let key = items::key(&**key)?;
                let holds = table.holders(&key).filter_map(|token| table.hold(token));
                let mut targets: Vec<Target<'_>> = holds.map(Target::hold).collect();
                if asked.waiters {
                    let waiting = table.served(&key).into_iter().filter_map(|id| table.waiter(id));
                    targets.extend(waiting.map(Target::waiter));
                }
                targets
            }
            (None, Some(pid), None, (None, None), None) => {
                // A process in another pid namespace has no pid here.
                let frames =
                    || table.frames_of_number(self.decide.host(), pid).filter(|_| pid != 0);
                let holds = frames().flat_map(|frame| table.holds_in(frame)).map(Target::hold);
                let waits = frames().flat_map(|frame| table.waiters_in(frame));
                holds.chain(waits.map(Target::waiter)).collect()
            }
            (None, None, Some(session), (None, None), None) => {
                let session = items::session(session)?;
                let is_in = |frame| table.session(frame) == session;
                let holds = table.holds().filter(|hold| is_in(hold.frame)).map(Target::hold);
                let waits = table.waiters().filter(|waiter| is_in(waiter.frame));
                holds.chain(waits.map(Target::waiter)).collect()
            }
            (None, None, None, (None, None), Some(tag)) => {
                let request = table.tagged(tag).into_iter();
                let tokens = request.flat_map(|request| table.superseded_holds(request));
                tokens.filter_map(|token| table.hold(token)).map(Target::hold).collect()
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

    /// The failure for a request that supersedes a hold whose process it cannot end.
    pub(crate) fn cannot_supersede(&self, peer: Credentials, token: Token) -> Failure {
        let hold = self.decide.table().hold(token).map(Target::hold);
        match hold.map(|hold| self.killable(peer, &hold, |_| ())) {
            Some(Err(failure)) => failure,
            // It has changed since.
            Some(Ok(())) | None => past("the holder has changed").hint("run the command again"),
        }
    }

    /// The hold or request that a client names, if it still exists.
    fn target_named(&self, token: Option<u64>, request: Option<u64>) -> Result<Target<'_>> {
        let table = self.decide.table();
        match (token, request) {
            (Some(token), None) => {
                let hold = table.hold(Token(token)).map(Target::hold);
                hold.ok_or_else(|| past(&format!("the hold with token {token} has ended")))
            }
            (None, Some(request)) => {
                let waiter = table.waiter(RequestId(request)).map(Target::waiter);
                waiter.ok_or_else(|| match table.hold_of(RequestId(request)) {
                    Some(_) => past("the request has been granted"),
                    None => past("the request is no longer waiting"),
                })
            }
            _ => Err(bad("give exactly one of `token` and `request`")),
        }
    }

    /// Does something with the process of a hold or request, if this client may end it.
    fn killable<T>(
        &self,
        peer: Credentials,
        target: &Target<'_>,
        act: impl FnOnce(&Pidfd) -> T,
    ) -> Result<T> {
        let (asked, pid) = (target.asked, target.pid());
        let Owner::Process(id) = asked.owner else {
            let whose = match asked.owner {
                Owner::Jobserver(_) => "a job token of a build",
                _ => "a lease",
            };
            let failure = denied(format!("{whose} has no process to end"));
            return Err(match target.token {
                Some(token) => {
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
        if target.orphaned {
            let message = format!(
                "process {pid} has ended, but processes that it started keep the lock \
                 (--with-children)"
            );
            return Err(
                denied(message).hint("find them with `canal status KEY`, and end them with `kill`")
            );
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
                Found::Gone => return Err(past(&format!("process {pid} has ended"))),
                Found::Unknown(error) => {
                    return Err(denied(format!("cannot identify process {pid}: {error}")));
                }
            },
        };
        if pidfd.has_ended() {
            return Err(past(&format!("process {pid} has ended")));
        }
        // The process may run as another user since it asked for the lock.
        match uid_of(pidfd) {
            Some(uid) if peer.uid != 0 && uid != peer.uid => {
                Err(denied(format!("process {pid} now runs as uid {uid}"))
                    .hint("end it as that user or as root"))
            }
            None => Err(past(&format!("process {pid} has ended"))),
            Some(_) => Ok(act(pidfd)),
        }
    }
}

/// A hold or a waiting request.
#[derive(Debug)]
struct Target<'a> {
    /// The token of a hold.
    token: Option<Token>,
    /// The number of a waiting request.
    request: Option<RequestId>,
    asked: &'a Request,
    frame: FrameId,
    keys: Vec<String>,
    since: UnixMillis,
    orphaned: bool,
}

impl<'a> Target<'a> {
    fn hold(hold: &'a HoldState) -> Self {
        Self {
            token: Some(hold.token),
            request: None,
            asked: &hold.asked,
            frame: hold.frame,
            keys: hold.items.iter().map(|item| item.key.to_string()).collect(),
            since: hold.since,
            orphaned: hold.orphaned,
        }
    }

    fn waiter(waiter: &'a WaiterState) -> Self {
        Self {
            token: None,
            request: Some(waiter.id),
            asked: &waiter.request,
            frame: waiter.frame,
            keys: waiter.request.items.iter().map(|item| item.key.to_string()).collect(),
            since: waiter.since,
            orphaned: false,
        }
    }

    fn pid(&self) -> u32 {
        pid_of(&self.asked.owner)
    }

    /// Its description for a client. `refused`: why the client cannot end it.
    fn told(self, shown: &Shown<'_>, refused: Option<Failure>) -> KillTarget {
        let (refused, hint) = refused.map_or((None, None), |it| (Some(it.message), it.hint));
        KillTarget {
            token: self.token.map(|token| token.0),
            request: self.request.map(|request| request.0),
            keys: self.keys,
            party: shown.party(self.asked, shown.table.session(self.frame)),
            since: time(self.since),
            host: shown.label_of(self.frame),
            folder: shown.folder(self.asked, self.frame),
            note: self.asked.note.as_deref().map(str::to_owned),
            refused,
            hint: hint.map(String::from),
        }
    }
}

/// The failure for a client that named something that has since changed.
fn past(what: &str) -> Failure {
    not_held(format!("{what}, so canal signalled no process")).because("changed")
}

/// The failure for a client whose query matches no holder and no waiter.
fn not_found(asked: &WouldKill) -> Failure {
    let message = match (&asked.key, asked.pid) {
        (Some(key), _) if asked.waiters => format!("no one holds or waits for `{key}`"),
        (Some(key), _) => format!("no one holds `{key}`"),
        (None, None) => {
            let session = asked.session.as_deref().unwrap_or_default();
            format!("session {session} neither holds nor waits for a lock here")
        }
        (None, pid) => {
            format!("process {} neither holds nor waits for a lock here", pid.unwrap_or(0))
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
