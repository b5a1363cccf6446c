//! Stopping commands in time: before what they hold can be granted to others.
//!
//! Whoever runs a command has the same numbers, on the deadline page, and ends it with all that it
//! started. This is the first line, and the only one for processes that nobody runs.
//!
//! Invariant: this host asks for no grant as long as a process lives that was to be killed for what
//! an earlier incarnation of it has lost.

use nix::sys::signal::Signal;

use super::ledger::NO_HOST;
use super::owners::find;
use super::roll::Told;
use super::server::Server;
use crate::core::{HostId, OnLost, ProcessId, Token};
use crate::host::LostWhy;
use crate::sys::clock;
use crate::sys::deadline::{Deadline, Why, Writer};
use crate::sys::pidfd::Pidfd;
use crate::sys::process::Found;

use std::collections::BTreeMap;

/// How often it is looked whether those who were killed are dead.
const LOOK_EVERY_MS: u64 = 10;

/// So long after the KILL nobody is waited for any more: what the kernel does not let go of cannot
/// run on in its program either, but for what fencing tokens are for.
const UNKILLABLE_MS: u64 = 5_000;

/// Commands that are being stopped.
#[derive(Debug, Default)]
pub(super) struct Stops {
    /// Who was signalled, as this host cannot renew.
    signalled: BTreeMap<ProcessId, Stage>,
    /// Those whose holds are lost, until they are dead.
    doomed: Vec<Doomed>,
    /// When they are killed, in milliseconds of CLOCK_BOOTTIME.
    kill_at: u64,
    /// Whether the member waits until none is left.
    awaited: bool,
    /// What those read who run their commands, and what to write there when they are killed.
    page: Option<(Writer, Why)>,
}

/// One who lost what it holds.
#[derive(Debug)]
struct Doomed {
    token: Token,
    told: Told,
    pidfd: Pidfd,
    stage: Option<Stage>,
}

/// What was done to end a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Asked,
    Killed,
}

impl Stage {
    fn signal(self) -> Signal {
        match self {
            Self::Asked => Signal::SIGTERM,
            Self::Killed => Signal::SIGKILL,
        }
    }

    /// What is done to a command of which the asker said what becomes of it.
    fn allowed(self, on_lost: OnLost) -> Option<Self> {
        match on_lost {
            OnLost::Kill => Some(self),
            OnLost::Term => Some(Self::Asked),
            OnLost::Warn => None,
        }
    }
}

impl Stops {
    /// When there is something to do, in milliseconds of CLOCK_BOOTTIME.
    pub(super) fn next_due(&self, now: u64) -> Option<u64> {
        let busy = !self.doomed.is_empty() || self.page.is_some();
        busy.then_some(now + LOOK_EVERY_MS)
    }
}

impl Server {
    /// Stops the commands whose time is over. Before anything else in a turn: this process may have
    /// been stopped itself for any time.
    pub(super) fn stop_in_time(&mut self) {
        let Some(shared) = self.ledger.engine() else { return };
        let (deadlines, now) = (shared.deadlines(), clock::boottime_ms());
        if self.ledger.is_member() {
            if now < deadlines.term_at {
                self.stops.signalled.clear();
            } else {
                let stage = if now < deadlines.kill_at { Stage::Asked } else { Stage::Killed };
                self.stop_all(stage);
            }
        }
        self.end_doomed(now);
    }

    /// When there is something to stop, in milliseconds of CLOCK_BOOTTIME.
    pub(super) fn next_stop(&self, now: u64) -> Option<u64> {
        let shared = self.ledger.engine()?;
        let deadlines = shared.deadlines();
        let times = [deadlines.term_at, deadlines.kill_at].into_iter().filter(|at| *at > now);
        times.filter(|_| self.ledger.is_member()).chain(self.stops.next_due(now)).min()
    }

    fn stop_all(&mut self, stage: Stage) {
        for (token, Told { process, on_lost }) in self.roll.iter() {
            let Some(stage) = stage.allowed(on_lost) else { continue };
            if self.stops.signalled.get(&process) >= Some(&stage) {
                continue;
            }
            self.stops.signalled.insert(process, stage);
            if let Found::Same(pidfd) = find(process) {
                let (pid, signal) = (process.pid, stage.signal());
                tracing::warn!(pid, token = token.0, "the engine is away for too long: {signal}");
                send(&pidfd, signal);
            }
        }
    }

    /// Our incarnation is lost, and with it all that its processes hold.
    pub(super) fn lost(&mut self, host: HostId, why: &LostWhy) {
        if host == NO_HOST || host != self.ledger.host {
            return;
        }
        tracing::error!(host = host.0, "everything that was held here is lost: {why}");
        let now = clock::boottime_ms();
        let deadlines = self.ledger.engine().map(|shared| shared.deadlines()).unwrap_or_default();
        // As long as nobody can have declared us gone, nobody else has what is held here.
        let kill_at = match why {
            LostWhy::NotRenewed { .. } => deadlines.kill_at,
            _ => now,
        };
        self.stops.page = self.deadline.take().map(|page| (page, reason(why)));
        self.doom_all(kill_at);
        self.lose_membership();
        self.end_doomed(now);
        self.changed = true;
    }

    /// Every command must be dead that this host had locks for before it joins.
    pub(super) fn clear(&mut self) {
        let now = clock::boottime_ms();
        // Those who are known already have their time; whom a daemon before us left has had it.
        if self.stops.doomed.is_empty() {
            self.doom_all(now);
        }
        self.stops.awaited = true;
        self.end_doomed(now);
    }

    fn doom_all(&mut self, kill_at: u64) {
        self.stops.kill_at = kill_at;
        for (token, told) in self.roll.iter().collect::<Vec<_>>() {
            self.doom(token, told);
        }
    }

    /// Ends a process that holds something no more and was not told.
    pub(super) fn doom(&mut self, token: Token, told: Told) {
        match find(told.process) {
            Found::Same(pidfd) => {
                let stage = self.stops.signalled.get(&told.process).copied();
                self.stops.doomed.push(Doomed { token, told, pidfd, stage });
            }
            Found::Gone => self.roll.end(token),
            Found::Unknown(error) => {
                let pid = told.process.pid;
                tracing::warn!(pid, %error, "it lost its lock, and whether it lives is not known");
                self.roll.end(token);
            }
        }
    }

    fn end_doomed(&mut self, now: u64) {
        let kill_at = self.stops.kill_at;
        let stage = if now < kill_at { Stage::Asked } else { Stage::Killed };
        let unkillable = now > kill_at.saturating_add(UNKILLABLE_MS);
        if now >= kill_at
            && let Some((mut page, why)) = self.stops.page.take()
        {
            page.lost(why);
        }
        let mut ended = Vec::new();
        self.stops.doomed.retain_mut(|doomed| {
            let stage = stage.allowed(doomed.told.on_lost);
            if doomed.pidfd.has_ended() || unkillable || stage.is_none() {
                if unkillable {
                    tracing::error!(
                        pid = doomed.told.process.pid,
                        "it was killed and does not end"
                    );
                }
                ended.push(doomed.token);
                return false;
            }
            if stage > doomed.stage {
                doomed.stage = stage;
                let signal = stage.map_or(Signal::SIGTERM, Stage::signal);
                let (pid, token) = (doomed.told.process.pid, doomed.token.0);
                tracing::warn!(pid, token, "its lock is lost: {signal}");
                send(&doomed.pidfd, signal);
            }
            let is_awaited = doomed.told.on_lost == OnLost::Kill;
            if !is_awaited {
                ended.push(doomed.token);
            }
            is_awaited
        });
        for token in ended {
            self.roll.end(token);
        }
        if self.stops.awaited && self.stops.doomed.is_empty() {
            self.stops.awaited = false;
            if let Some(shared) = self.ledger.engine_mut() {
                shared.cleared();
            }
        }
    }

    /// Publishes until when holds are sure.
    pub(super) fn keep_deadline(&mut self) {
        let Some((shared, writer)) = self.ledger.engine().zip(self.deadline.as_ref()) else {
            return;
        };
        let deadlines = shared.deadlines();
        if self.link.published != deadlines {
            writer.publish(self.published_deadline());
            self.link.published = deadlines;
        }
    }

    pub(super) fn published_deadline(&self) -> Deadline {
        let Some(shared) = self.ledger.engine() else { return Deadline::default() };
        let deadlines = shared.deadlines();
        Deadline {
            reached_at: shared.health().renewed_ms.unwrap_or(0),
            term_at: deadlines.term_at,
            kill_at: deadlines.kill_at,
        }
    }

    /// Whether a grant may be told now: whoever starts a command by it has time left.
    pub(super) fn is_sure(&self) -> bool {
        let Some(shared) = self.ledger.engine() else { return true };
        self.ledger.is_member() && clock::boottime_ms() < shared.deadlines().term_at
    }
}

fn send(pidfd: &Pidfd, signal: Signal) {
    if let Err(error) = pidfd.signal(signal)
        && !crate::sys::pidfd::is_gone(&error)
    {
        tracing::error!(%error, "a process that lost its lock cannot be signalled");
    }
}

/// The reason as those who run commands are told it.
fn reason(why: &LostWhy) -> Why {
    match why {
        LostWhy::NotRenewed { .. } => Why::Away,
        LostWhy::Fenced { .. } | LostWhy::Gone { .. } => Why::Gone,
        LostWhy::Rewritten => Why::Rewritten,
        LostWhy::Unable => Why::Other,
    }
}
