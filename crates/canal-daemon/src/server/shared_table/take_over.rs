//! Takes over what an earlier daemon or incarnation left: also at the start of a daemon without an
//! engine.
//!
//! Invariant: this host verifies everything that it takes over from an earlier daemon or
//! incarnation before it asks for anything new.

use std::collections::BTreeSet;

use crate::cluster::end_commands::ToEnd;
use crate::processes::identify_owner::find;
use crate::server::Server;
use crate::store::recover::token_by_clock;
use canal_core::{Change, FrameId, Globals, Owner, ProcessId};
use canal_sys::clock;
use canal_sys::process::Found;

impl Server {
    /// Takes over this host's part of the table: the requests and holds of an earlier daemon or an
    /// adopted incarnation, and leases of hosts that are gone.
    pub(crate) fn take_over(&mut self) {
        let (table, host) = (self.decide.table(), self.decide.host());
        self.waiters.follow_table(table, host);
        self.leases.follow(table, host);
        self.observe.follow(self.decide.ledger());
        let frames: Vec<_> = table.frames_of_host(host).collect();
        let enclosing: BTreeSet<FrameId> =
            table.frames().filter_map(|frame| frame.parent).collect();
        let own = table.holds().filter(|hold| frames.binary_search(&hold.frame).is_ok());
        let own: Vec<_> = own.cloned().collect();
        let provisional = own.iter().filter(|hold| hold.provisional);
        self.waiters.unclaimed = provisional.map(|hold| hold.request).collect();
        // Until these are dead, this host asks for nothing and sends no grant.
        self.end_commands(ToEnd::Unknown);
        self.decide.take_over(&own);
        for id in frames {
            let Some(frame) = self.decide.table().frame(id).filter(|frame| !frame.ended) else {
                continue;
            };
            if let Owner::Process(process) = frame.owner {
                self.prove(id, process, enclosing.contains(&id));
            }
        }
        for hold in own.iter().filter(|hold| hold.asked.children) {
            if let Err(error) = self.children.take_over(hold.token, hold.asked.tag) {
                tracing::warn!(%error, token = hold.token.0, "cannot open its FIFO");
            }
        }
        self.children.sweep();
        let orphaned = self.decide.table().holds();
        let orphaned = orphaned.filter(|hold| hold.asked.host == host && hold.orphaned);
        let orphaned: Vec<_> = orphaned.map(|hold| hold.token).collect();
        orphaned.into_iter().for_each(|token| self.end_without_writers(token));
        if self.waiters.len() > 0 || !self.waiters.unclaimed.is_empty() {
            self.await_detached();
        }
    }

    fn prove(&mut self, frame: FrameId, process: ProcessId, encloses: bool) {
        match find(process) {
            Found::Same(pidfd) if !pidfd.has_ended() => {
                // A process that only waits is identified by its connection when it reconnects.
                let holds = self.decide.table().holds_in(frame).next().is_some();
                if (encloses || holds)
                    && let Err(error) = self.owners.watch(frame, None, pidfd)
                {
                    tracing::warn!(%error, pid = process.pid, "cannot watch an owner");
                    self.owners.unverified.insert(frame);
                }
            }
            Found::Same(_) | Found::Gone => {
                tracing::info!(pid = process.pid, session = %format_args!("s{frame}"),
                               "a process ended while no daemon was running");
                self.observe.history.ends_unseen(frame);
                self.end(frame);
            }
            Found::Unknown(error) => {
                tracing::warn!(pid = process.pid, %error, "cannot determine whether it is still running");
                self.owners.unverified.insert(frame);
            }
        }
    }

    /// Proposes the settings and the policy of the configuration and the state file. In a shared
    /// table, only where no host has stored another setting: the hosts' configurations may differ.
    pub(crate) fn follow_configuration(&mut self) {
        let table = self.decide.table();
        // The log is new. Its tokens must be greater than those of any earlier journal.
        if table.globals().next_token == Globals::default().next_token {
            self.propose(Change::Floor { token: token_by_clock() });
        }
        let (settings, notes) = self.settings_to_change(&self.effective.config);
        notes.iter().for_each(|note| tracing::warn!("{note}"));
        self.propose_settings(settings);
    }

    /// Ends these commands, those whose time has come at once. When all that have to be killed are
    /// dead, asks for the requests that had to wait for that.
    ///
    /// The supervisor (`canal run`) reads the same deadlines on the deadline page, and ends its
    /// command with all processes that the command started. The daemon's signals are the first line
    /// of defence, and the only one for a process without a supervisor.
    ///
    /// Invariant: after an incarnation lost its holds, this host asks for no grant until every
    /// process that has to be killed is dead.
    pub(crate) fn end_commands(&mut self, which: ToEnd<'_>) {
        if self.decide.end_commands(which, &self.owners, clock::boottime_ms()) {
            self.ask_for_those_waiting();
        }
    }
}
