//! The cluster's part in joining the table that hosts share, and in leaving it.

use std::collections::BTreeSet;
use std::io;

use crate::cluster::Cluster;
use crate::cluster::end_commands::Watched;
use crate::cluster::engine::Chosen;
use crate::cluster::engine_driver::EngineDriver;
use crate::cluster::shared_marker::SharedMarker;
use crate::history::open::Unseen;
use crate::host::{Known, Member};
use crate::options::Options;
use crate::processes::descendants::Children;
use crate::processes::holder_record::{Claim, Holder};
use crate::store::ledger::Ledger;
use crate::store::previous_journal;
use crate::store::recover::Recovered;
use crate::wording::StartError;
use canal_core::{HoldState, HostId};
use canal_protocol::place::Place;
use canal_sys::deadline::{Why, Writer};
use canal_sys::process::Origin;

const TWO_TABLES_HINT: &str = "first let them end under a daemon without the engine, or set that \
                               journal aside with `canal daemon --discard-journal`";

const NO_BOOT: &str = "cannot read /proc/sys/kernel/random/boot_id, which other hosts need to \
                       tell this boot of the machine from an earlier one";

const NO_BOOT_HINT: &str = "mount all of /proc here: `mount -t proc proc /proc`";

/// Begins to take part in the table of an engine.
///
/// # Errors
/// This host cannot take part. The error is a [`StartError`] if the user can do something about it.
pub(crate) fn begin(
    options: &Options,
    chosen: &Chosen,
) -> anyhow::Result<(Recovered, EngineDriver)> {
    let place = &options.place;
    let origin = Origin::read()?;
    if options.discard_journal {
        previous_journal::open(place, &origin, true)?;
    }
    if origin.boot_id.is_empty() {
        return Err(StartError { what: NO_BOOT.to_owned(), hint: NO_BOOT_HINT.into() }.into());
    }
    refuse_living(place, &origin)?;
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
    let nonce = u128::from_ne_bytes(nonce);
    let identity = chosen.identity(place, &origin);
    let engine = chosen.open(options)?;
    let member = Member::new(chosen.settings, identity, nonce);
    let recovered = Recovered {
        ledger: Ledger::of_engine(),
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

/// Refuses to start while a live process of this place holds a lock that is in a journal.
///
/// # Errors
/// Such processes exist.
pub(crate) fn refuse_living(place: &Place, origin: &Origin) -> anyhow::Result<()> {
    let left = previous_journal::living(place, origin);
    if left == 0 {
        return Ok(());
    }
    let hold =
        if left == 1 { "1 process holds".to_owned() } else { format!("{left} processes hold") };
    let what = format!(
        "{hold} locks on this machine only, unknown to other hosts (the journal in {})",
        place.dir.display()
    );
    Err(StartError { what, hint: TWO_TABLES_HINT.into() }.into())
}

impl Cluster {
    /// Begins a membership: creates its deadline page, and a mark for later daemons.
    ///
    /// # Errors
    /// The page cannot be created. Without one, this host must not hold anything.
    pub(crate) fn begin_membership(&mut self, host: HostId) -> io::Result<()> {
        self.status.lives_on = true;
        self.status.let_in = true;
        self.status.unable = None;
        let deadline = self.published_deadline();
        self.page = Some(Writer::create(host.0, &self.status.name, &self.status.label, deadline)?);
        if let Some(Err(error)) = self.mark.as_mut().map(SharedMarker::set) {
            tracing::error!(%error, "cannot mark this membership for a later daemon without the \
                                     engine");
        }
        self.published = self.driver.member.deadlines();
        Ok(())
    }

    /// Records the processes of the holds that this membership takes over, in case the record of
    /// earlier daemons was lost. A process that is not in that record probably did not receive its
    /// grant.
    pub(crate) fn take_over(&mut self, own: &[HoldState]) {
        let mark = self.driver.member.mark();
        for hold in own {
            let Some(holder) = Holder::of(hold, mark) else { continue };
            let was_told = self.was_told(hold.token);
            let holder = Holder { taken_over: !was_told, ..holder };
            if let Err(error) = self.holder_record.tell(hold.token, holder) {
                tracing::error!(%error, "cannot record an owner");
            }
        }
    }

    /// Schedules the kill of processes that received a grant that the log does not contain. Forgets
    /// the processes whose grant has ended.
    pub(crate) fn schedule_unknown(&mut self, watched: Watched<'_>, now: u64) {
        for (token, told) in self.holder_record.iter().collect::<Vec<_>>() {
            let known = told.mark.map_or(Known::TooOld, |mark| self.driver.member.knows(mark));
            match Claim::of(watched.table, known, token, &told) {
                Claim::Holds => {}
                Claim::Over(removable) => self.holder_record.end(token, removable),
                Claim::Unknown => {
                    self.terminator.note_lost(token, Why::Rewritten);
                    self.schedule_kill(watched, (token, told), now);
                }
            }
        }
    }

    /// Ends the membership if no process depends on it. Returns whether the withdrawal is under
    /// way.
    pub(crate) fn leave_unused(&mut self) -> bool {
        self.holder_record.is_empty() && self.driver.leave()
    }
}
