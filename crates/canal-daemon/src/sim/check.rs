//! Properties that the daemons and their tables must always have.
//!
//! Two commands that overlap are rare: a thousand seeds missed a renewal that counted from its
//! answer. So each step compares every running command with all tables.

use super::host::Host;
use super::programs::received_grants::{ReceivedGrant, Until};
use super::world::{STEP_MS, World};
use crate::membership::Mark;
use canal_core::{Owner, Snapshot, Table, WaiterState, WaiterStatus};

/// How long it may take until all hosts have read the whole log.
const READ_MS: u64 = 6_000;

/// Parts of the messages of a daemon that cannot use what it or another daemon has written.
const CANNOT_READ: [&str; 6] = [
    "at revision",
    "cannot be read",
    "cannot read",
    "cannot be used",
    "cannot use",
    "inconsistent",
];

impl World {
    /// Checks that no daemon is blocked by something that it or another daemon has written.
    pub(super) fn check_obstacles(&self) -> Result<(), String> {
        let is_written = |why: &String| CANNOT_READ.iter().any(|what| why.contains(what));
        match self.hosts.iter().filter_map(Host::obstacle).find(is_written) {
            Some(why) => Err(format!("a host cannot take part: {why}")),
            None => Ok(()),
        }
    }

    /// Checks that the locks which commands hold at the same time fit, and that every table that
    /// has read their grants shows them as held.
    pub(super) fn check_claims(&mut self) -> Result<(), String> {
        // Over an engine, a process that is stopped for too long loses its lock. It is killed
        // before it continues.
        let runs = |received: &ReceivedGrant| {
            let Until::Processes(serials) = &received.until else { return true };
            let host = &self.hosts[received.host];
            let runs = |serial: &u64| host.machine.runs(*serial);
            // No process ends a command while its `canal run` and its daemon are both stopped.
            let is_supervised =
                received.unwatched_until <= self.now_ms && serials.first().is_some_and(runs);
            let ends = is_supervised || host.stopped_until <= self.now_ms;
            self.network.is_none()
                || ends && host.frozen_until <= self.now_ms && serials.iter().any(runs)
        };
        self.received_grants.check(runs)?;
        // With a wrong time of day, hosts assign the tokens of a lost log again. Then tokens no
        // longer distinguish two holds.
        let is_lost = self.network.as_ref().is_some_and(|network| network.counts().losses > 0);
        if is_lost && self.profile.is_wrong_time {
            return Ok(());
        }
        let daemons = self.hosts.iter().filter_map(|host| host.daemon.as_ref());
        let tables: Vec<&Table> = daemons.map(|server| server.decide.table()).collect();
        self.received_grants.check_held(self.now_ms, &tables, runs)
    }

    /// Checks that after a daemon's turn all its holds and active waiters belong to live processes.
    pub(super) fn check_owners(&self, at: usize) -> Result<(), String> {
        let host = &self.hosts[at];
        let Some(server) = &host.daemon else { return Ok(()) };
        if self.now_ms < host.stopped_until {
            return Ok(());
        }
        let had_a_turn = |since| since + STEP_MS < self.now_ms;
        if !host.daemon_since.is_some_and(had_a_turn) {
            return Ok(());
        }
        for hold in server.decide.table().holds().filter(|hold| !hold.orphaned) {
            let Owner::Process(process) = hold.asked.owner else { continue };
            let serial = process.inode - 1_000;
            if !host.machine.lived_lately(serial, self.now_ms) {
                let unverified = server.owners.unverified.contains(&hold.frame);
                let since = host.daemon_since;
                return Err(format!(
                    "{hold:?} has no owner any more ({unverified}, daemon since {since:?}, {})",
                    host.machine.story(serial)
                ));
            }
        }
        let active = |waiter: &&WaiterState| waiter.status == WaiterStatus::Active;
        for waiter in server.decide.table().waiters().filter(active) {
            let Owner::Process(process) = waiter.request.owner else { continue };
            let serial = process.inode - 1_000;
            if !host.machine.lived_lately(serial, self.now_ms) {
                let story = host.machine.story(serial);
                return Err(format!("{waiter:?} waits for nobody ({story})"));
            }
        }
        Ok(())
    }

    /// Checks that a host that rested has read everything that was in the log when a client called,
    /// before it serves that client.
    pub(super) fn check_reads(&mut self, at: usize) -> Result<(), String> {
        let (Some(network), host) = (&self.network, &mut self.hosts[at]) else { return Ok(()) };
        let Some(cluster) = host.daemon.as_ref().and_then(|server| server.decide.cluster()) else {
            return Ok(());
        };
        let (ended, is_pending) = cluster.reads();
        let (checked, reached) = host.reads;
        // A host that has lost its membership has read nothing, and serves no client from a table.
        if let Some(read) = cluster.read_to().map(|mark| mark.position).filter(|_| ended != checked)
        {
            let reached = reached.unwrap_or(network.head());
            if read < reached {
                return Err(format!("a client was served at {read:?} of {reached:?}"));
            }
        }
        let begins = ended != checked || reached.is_none();
        let reached = if begins { Some(network.head()) } else { reached };
        host.reads = (ended, reached.filter(|_| is_pending));
        Ok(())
    }

    /// Checks that hosts which have read the same log up to the same place have the same table.
    pub(super) fn check_agreement(&self) -> Result<(), String> {
        let mut tables: Vec<(Mark, Snapshot)> = Vec::new();
        for server in self.hosts.iter().filter_map(|host| host.daemon.as_ref()) {
            let Some(mark) = server.decide.cluster().and_then(|cluster| cluster.read_to()) else {
                continue;
            };
            let table = server.decide.table().snapshot();
            match tables.iter().find(|(other, _)| *other == mark) {
                Some((_, other)) if *other != table => {
                    return Err(format!("hosts differ at {mark:?}: {other:?} and {table:?}"));
                }
                Some(_) => {}
                None => tables.push((mark, table)),
            }
        }
        Ok(())
    }

    /// Waits until all hosts have read everything, and checks that their tables are the same and
    /// empty.
    pub(super) fn compare_tables(&mut self) -> Result<(), String> {
        let until = self.now_ms + READ_MS;
        loop {
            let daemons = self.hosts.iter().filter_map(|host| host.daemon.as_ref());
            let tables: Vec<Snapshot> = daemons.map(|it| it.decide.table().snapshot()).collect();
            let is_empty = |it: &Snapshot| it.frames.is_empty() && it.holds.is_empty();
            let are_same = tables.windows(2).all(|pair| pair[0] == pair[1]);
            if are_same && tables.len() == self.hosts.len() && tables.iter().all(is_empty) {
                return Ok(());
            }
            if self.now_ms > until {
                return Err(format!("the tables differ, or something is left: {tables:?}"));
            }
            self.now_ms += STEP_MS;
            self.mend();
            self.step(false)?;
        }
    }

    /// Checks that the next daemon restores the table of this one.
    pub(super) fn compare_with_the_next(&mut self) -> Result<(), String> {
        for at in 0..self.hosts.len() {
            let snapshot =
                |host: &Host| host.daemon.as_ref().map(|it| it.decide.table().snapshot());
            let before = snapshot(&self.hosts[at]);
            self.hosts[at].kill_daemon();
            self.hosts[at].run_daemon(self.now_ms)?;
            let after = snapshot(&self.hosts[at]);
            let holds =
                |it: &Option<Snapshot>| it.as_ref().map(|it| (it.holds.clone(), it.frames.clone()));
            if holds(&before) != holds(&after) {
                return Err(format!("the next daemon finds another table: {before:?} {after:?}"));
            }
        }
        Ok(())
    }
}
