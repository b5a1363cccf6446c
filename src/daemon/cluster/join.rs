//! Joins the table that many hosts share, and leaves it.
//!
//! Invariant: everything taken over from an earlier incarnation is verified before this host asks
//! for anything new.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use crate::core::{
    BYPASS_MAX_DEFAULT, Change, FrameId, HoldState, HostId, Owner, ProcessId, Request, RequestId,
    Rules, Table,
};
use crate::daemon::calls::pending_acquire::PendingAcquire;
use crate::daemon::cluster::Cluster;
use crate::daemon::cluster::end_commands::Watched;
use crate::daemon::cluster::engine::Chosen;
use crate::daemon::cluster::engine_driver::EngineDriver;
use crate::daemon::cluster::engine_mark::EngineMark;
use crate::daemon::history::open::Unseen;
use crate::daemon::options::Options;
use crate::daemon::processes::children::Children;
use crate::daemon::processes::holder::Holder;
use crate::daemon::processes::owners::find;
use crate::daemon::processes::proof::Claim;
use crate::daemon::server::Server;
use crate::daemon::store::ledger::{Ledger, NO_HOST};
use crate::daemon::store::previous_journal;
use crate::daemon::store::recover::{Recovered, token_by_clock};
use crate::daemon::unusable::Unusable;
use crate::daemon::waiters::leases::Leases;
use crate::daemon::waiters::waiting::Waiter;
use crate::history::Ending;
use crate::host::Member;
use crate::protocol::place::Place;
use crate::sys::clock;
use crate::sys::deadline::{Why, Writer};
use crate::sys::process::{Found, Origin};

const TWO_TABLES_HINT: &str = "let them end under a daemon without the engine first, or leave \
                               that journal out with `canal daemon --discard-journal`";

/// Starts to take part in the table that an engine keeps.
///
/// # Errors
/// Why this is impossible. The error is an [`Unusable`] if the user can do something about it.
pub(crate) fn begin(
    options: &Options,
    chosen: &Chosen,
) -> anyhow::Result<(Recovered, EngineDriver)> {
    let place = &options.place;
    let origin = Origin::read()?;
    if options.discard_journal {
        previous_journal::open(place, &origin, true)?;
    }
    refuse_living(place, &origin)?;
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
    let (nonce, rules) = (u128::from_ne_bytes(nonce), Rules::Current);
    let identity = chosen.identity(place, &origin);
    let engine = chosen.open(options)?;
    let member = Member::new(chosen.settings, identity, nonce, rules);
    let recovered = Recovered {
        ledger: Ledger::of_engine(rules),
        origin,
        children: Children::new(&place.dir),
        found: Vec::new(),
        unverified: BTreeSet::new(),
        notes: Vec::new(),
        unseen: Unseen::default(),
        state_dir: None,
        is_anew: false,
    };
    Ok((recovered, EngineDriver::new(member, engine)))
}

/// Refuses to start while a live process here holds a lock by a journal.
///
/// # Errors
/// Such processes live.
pub(crate) fn refuse_living(place: &Place, origin: &Origin) -> anyhow::Result<()> {
    let left = previous_journal::living(place, origin);
    if left == 0 {
        return Ok(());
    }
    let hold =
        if left == 1 { "1 process holds".to_owned() } else { format!("{left} processes hold") };
    let what = format!(
        "{hold} locks of this machine alone, which other hosts know nothing of (the journal in {})",
        place.dir.display()
    );
    Err(Unusable { what, hint: TWO_TABLES_HINT.into() }.into())
}

impl Server {
    /// Handles that this host has become a member under this id.
    pub(crate) fn joined(&mut self, host: HostId, adopted: Option<HostId>) {
        tracing::info!(host = host.0, adopted = adopted.map(|host| host.0), "joined");
        self.ledger.host = host;
        self.due.changed = true;
        let Some(cluster) = &mut self.cluster else { return };
        if let Err(error) = cluster.begin_membership(host) {
            // Without a page `canal run` could not end its command in time.
            tracing::error!(%error, "no deadline page can be made, the daemon ends");
            self.stopping = true;
            return;
        }
        cluster.begin_watch(&self.conns);
        if let Some(words) = cluster.recovery_words(&self.ledger.table) {
            tracing::warn!("{words}");
        }
        self.take_over();
        // What is not in the table ended before the earlier incarnation was adopted, or with it.
        let ending = if adopted.is_some() { Ending::Ended } else { Ending::Lost };
        self.history.take_in_left(&self.ledger.table, &ending);
        self.follow_configuration();
        self.ask_for_those_waiting();
        self.resume_put_off();
    }

    /// Takes over this host's part of the table: what an adopted incarnation had, and leases of
    /// hosts that are gone.
    fn take_over(&mut self) {
        let (table, host) = (&self.ledger.table, self.ledger.host);
        self.waiters.follow_table(table, host);
        self.leases = Leases::of_table(table, host);
        self.history.follow(table, host);
        self.hooks.look_soon();
        let frames: Vec<_> = table.frames_of_host(host).collect();
        let enclosing: BTreeSet<FrameId> =
            table.frames().filter_map(|frame| frame.parent).collect();
        let own = table.holds().filter(|hold| frames.binary_search(&hold.frame).is_ok());
        let own: Vec<_> = own.cloned().collect();
        let provisional = own.iter().filter(|hold| hold.provisional);
        self.waiters.expect_claims(provisional.map(|hold| hold.request));
        self.stop_those_unknown();
        if let Some(cluster) = &mut self.cluster {
            cluster.take_over(&own);
        }
        for id in frames {
            let Some(frame) = self.ledger.table.frame(id).filter(|frame| !frame.ended) else {
                continue;
            };
            if let Owner::Process(process) = frame.owner {
                self.prove(id, process, enclosing.contains(&id));
            }
        }
        for hold in own.iter().filter(|hold| hold.asked.children) {
            if let Err(error) = self.children.take_over(hold.token, hold.asked.tag) {
                tracing::warn!(%error, token = hold.token.0, "its FIFO cannot be opened");
            }
        }
        self.children.sweep();
        self.await_orphans();
        if self.waiters.expects_any() {
            self.await_detached();
        }
    }

    /// Kills the processes that were told of a grant that the log does not know, because its
    /// history was rewritten. Until they are dead, this host asks for nothing and tells no grant.
    fn stop_those_unknown(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let watched = Watched { table: &self.ledger.table, owners: &self.owners };
        let now = clock::boottime_ms();
        cluster.schedule_unknown(watched, now);
        self.end_lost(now);
    }

    fn prove(&mut self, frame: FrameId, process: ProcessId, encloses: bool) {
        match find(process) {
            Found::Same(pidfd) if !pidfd.has_ended() => {
                // A process that only waits is recognized by its connection when it reconnects.
                let holds = self.ledger.table.holds_in(frame).next().is_some();
                if (encloses || holds)
                    && let Err(error) = self.owners.watch(frame, None, pidfd)
                {
                    tracing::warn!(%error, pid = process.pid, "an owner cannot be watched");
                    self.owners.unverified.insert(frame);
                }
            }
            Found::Same(_) | Found::Gone => {
                self.history.ends_unseen(frame);
                self.end(frame);
            }
            Found::Unknown(error) => {
                tracing::warn!(pid = process.pid, %error, "it cannot be told whether it still lives");
                self.owners.unverified.insert(frame);
            }
        }
    }

    /// Proposes the configuration's views and policy where the table has no other setting. Stored
    /// settings belong to all hosts, and the hosts' configurations may differ.
    fn follow_configuration(&mut self) {
        let table = &self.ledger.table;
        // The log is new: its tokens must be greater than those of any earlier journal.
        if table.next_token() == Table::new(Rules::Current).next_token() {
            let floor = Change::Floor { token: token_by_clock() };
            self.propose(floor);
        }
        let table = &self.ledger.table;
        let views = self.limits.views().iter();
        let unsaid: Vec<_> = views
            .filter(|(key, _)| table.stored(key).is_none())
            .map(|(key, view)| (key.clone(), Some(*view)))
            .collect();
        let bypass_max = self.cluster.as_ref().and_then(|cluster| cluster.status.bypass_max);
        let bypass_max = bypass_max.filter(|_| table.bypass_max() == BYPASS_MAX_DEFAULT);
        for (key, view) in unsaid {
            self.propose(Change::Resize { key, view });
        }
        if let Some(bypass_max) = bypass_max.filter(|max| *max != BYPASS_MAX_DEFAULT) {
            self.propose(Change::Policy { bypass_max });
        }
    }

    /// Handles that this host is no longer a member. The holds of its processes are void. The next
    /// incarnation asks again for the waiting requests, behind requests that other hosts have made
    /// meanwhile.
    pub(crate) fn lose_membership(&mut self) {
        self.ledger.host = NO_HOST;
        // This drops all that is known of the waiters, including grants that are still to be told.
        let waiters = self.waiters.forget_all();
        let again = waiters.iter().filter_map(|(request, waiter)| {
            Some((waiter.conn?, self.newcomer_again(*request, waiter)))
        });
        let again: Vec<_> = again.collect();
        if let Some(cluster) = &mut self.cluster {
            cluster.in_flight.forget_withdrawals();
        }
        self.leases = Leases::default();
        self.due.come_back = None;
        self.due.detached = None;
        self.owners.forget_all();
        self.children.remove_all(&mut self.owners);
        self.conns.disown_all();
        self.wait_for_next_incarnation(again);
    }

    /// Ends the membership when the daemon ends, if nothing here depends on it. The other hosts
    /// then need not wait until its TTL is over. Returns whether the withdrawal is under way.
    pub(crate) fn leave_unused(&mut self) -> bool {
        let (table, host) = (&self.ledger.table, self.ledger.host);
        let is_used = table.frames_of_host(host).next().is_some();
        self.cluster.as_mut().is_some_and(|cluster| !is_used && cluster.leave_unused())
    }

    fn newcomer_again(&self, id: RequestId, waiter: &Waiter) -> Option<PendingAcquire> {
        let table = &self.ledger.table;
        let asked: &Arc<Request> = match table.waiter(id) {
            Some(waiter) => &waiter.request,
            None => &table.hold_of(id)?.asked,
        };
        let pidfd = if asked.provisional {
            let frame = table.waiter(id).map(|waiter| waiter.frame);
            let frame = frame.or_else(|| table.hold_of(id).map(|hold| hold.frame))?;
            self.owners.of(frame).and_then(|pidfd| pidfd.try_clone().ok())
        } else {
            None
        };
        Some(PendingAcquire::again(waiter.conn?, asked.clone(), waiter.more, pidfd))
    }
}

impl Cluster {
    /// Begins a membership: makes its deadline page, and a mark for later daemons.
    ///
    /// # Errors
    /// There is no page, so that this host must not hold anything.
    fn begin_membership(&mut self, host: HostId) -> io::Result<()> {
        self.status.lives_on = true;
        self.status.let_in = true;
        self.status.unable = None;
        let deadline = self.published_deadline();
        self.page = Some(Writer::create(host.0, &self.status.name, &self.status.label, deadline)?);
        if let Some(Err(error)) = self.mark.as_mut().map(EngineMark::set) {
            tracing::error!(%error, "a later daemon without the engine would not notice that");
        }
        self.published = self.driver.deadlines();
        Ok(())
    }

    /// Records the processes of the holds that this incarnation takes over, in case the record of
    /// earlier daemons was lost. A process that is not in that record was probably not told.
    fn take_over(&mut self, own: &[HoldState]) {
        let mark = self.driver.mark();
        for hold in own {
            let Some(holder) = Holder::of(hold, mark) else { continue };
            let was_told = self.was_told(hold.token);
            let holder = Holder { taken_over: !was_told, ..holder };
            if let Err(error) = self.holder_record.tell(hold.token, holder) {
                tracing::error!(%error, "an owner cannot be recorded");
            }
        }
    }

    /// Schedules the kill of the processes that were told of a grant that the log does not know,
    /// and forgets those whose grant is over.
    fn schedule_unknown(&mut self, watched: Watched<'_>, now: u64) {
        for (token, told) in self.holder_record.iter().collect::<Vec<_>>() {
            match Claim::of(watched.table, self.driver.knows(told.mark), token, &told) {
                Claim::Holds => {}
                Claim::Over(proof) => self.holder_record.end(token, proof),
                Claim::Unknown => {
                    self.terminator.note_lost(token, Why::Rewritten);
                    self.schedule_kill(watched, (token, told), now);
                }
            }
        }
    }

    /// Ends the membership if no process and no change in flight depends on it. Returns whether
    /// the withdrawal is under way.
    fn leave_unused(&mut self) -> bool {
        let is_used = !self.holder_record.is_empty() || self.in_flight.len() > 0;
        !is_used && self.driver.leave()
    }
}
