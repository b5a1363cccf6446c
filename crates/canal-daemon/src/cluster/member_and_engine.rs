//! This host's part in a table that many hosts share: its member state machine, the engine that
//! keeps the log, and what the daemon knows about both.
//!
//! Invariant: events are returned one at a time, in the order in which the member produces them.
//! The daemon carries out each event on the table that the previous event left.

use std::collections::VecDeque;
use std::task::{Context as TaskContext, Poll};

use anyhow::{Context, Result};

use crate::cluster::choose_engine::Chosen;
use crate::cluster::daemon_watcher::Watcher;
use crate::cluster::end_commands::Terminator;
use crate::cluster::engine_required::SharedMarker;
use crate::cluster::sent_tokens::SentTokens;
use crate::membership::{Event, Member, Now};
use crate::metrics::counters::Histogram;
use crate::options::Options;
use crate::processes::holder_record::HolderRecord;
use crate::store::previous_journal;
use crate::wording::StartError;
use canal_core::{Token, UnixMillis};
use canal_log::engine::{Answer, Engine};
use canal_protocol::paths::Place;
use canal_sys::clock;
use canal_sys::deadline_page::Writer;
use canal_sys::kernel::random;
use canal_sys::process::Origin;

/// This host's part in a table that hosts share.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// What needs neither the time nor the engine is asked of the member itself.
    pub(super) member: Member,
    pub(super) engine: Box<dyn Engine>,
    /// The engine's answers that the member has not processed yet.
    answers: VecDeque<Answer>,
    /// The name of the engine in messages. It contains no password.
    pub(super) name: String,
    /// Whether a client started this daemon. If not, and the engine refuses this host, the daemon
    /// ends with an error: it runs in the foreground, a person sees the error, and nothing was held
    /// yet.
    pub(super) on_demand: bool,
    /// Whether this host was a member while this daemon ran.
    pub(super) let_in: bool,
    /// How long changes of this host took to come back from the log.
    pub(super) appends: Histogram,
    /// When this daemon started, in milliseconds of CLOCK_BOOTTIME.
    began_ms: u64,
    /// The tokens that clients of this host received.
    pub(super) tokens: SentTokens,
    /// The processes of this host that received a grant, and their end.
    pub(super) terminator: Terminator,
    /// The page with the time until which holds are safe. `None` while this host is not a member.
    pub(super) page: Option<Writer>,
    /// The mark for later daemons that this place uses an engine. `None` in a test.
    pub(super) mark: Option<SharedMarker>,
    /// The watcher process, which outlives this daemon.
    pub(super) watcher: Watcher,
}

impl Cluster {
    /// Begins to take part in the table of an engine: reads the files of earlier daemons of this
    /// place, and prepares those of this daemon.
    ///
    /// # Errors
    /// This host cannot take part; a [`StartError`] if the user can do something about it.
    pub(crate) fn open(options: &Options, chosen: &Chosen, origin: &Origin) -> Result<Self> {
        let place = &options.place;
        if options.discard_journal {
            previous_journal::open(place, origin, true)?;
        }
        if origin.boot_id.is_empty() {
            return Err(StartError { what: NO_BOOT.to_owned(), hint: NO_BOOT_HINT.into() }.into());
        }
        refuse_living(place, origin)?;
        let nonce = random::u128().context("no random bytes")?;
        let identity = chosen.identity(place, origin);
        let engine = chosen.open(options)?;
        let mut member = Member::new(chosen.settings, identity, nonce);
        let (mark, boots) = SharedMarker::prepare(place, chosen, &origin.boot_id)
            .context("cannot record the engine")?;
        let discard = options.discard_journal;
        let holder_record = HolderRecord::open(&place.dir, origin.clone(), discard)
            .with_context(|| format!("the record of owners in {}", place.dir.display()))?;
        let tokens = SentTokens::open(place, &chosen.name)
            .context(place.dir.display().to_string())
            .context("cannot read which tokens were granted here")?;
        member.boots = boots;
        let named = (chosen.name.clone(), engine);
        let cluster = Self::new(member, named, options.on_demand, holder_record, tokens);
        Ok(Self { mark: Some(mark), watcher: Watcher::of(options), ..cluster })
    }

    /// A cluster without a watcher, which leaves no mark for later daemons. It starts the member,
    /// which registers under the number of this place's directory.
    pub(crate) fn new(
        mut member: Member,
        (name, engine): (String, Box<dyn Engine>),
        on_demand: bool,
        holder_record: HolderRecord,
        tokens: SentTokens,
    ) -> Self {
        member.memory = tokens.memory(&holder_record);
        member.identity.dir_number = holder_record.content().dir_number.unwrap_or_default();
        member.start(now());
        Self {
            member,
            engine,
            answers: VecDeque::new(),
            name,
            on_demand,
            let_in: false,
            appends: Histogram::default(),
            began_ms: clock::boottime_ms(),
            tokens,
            terminator: Terminator::new(holder_record),
            page: None,
            mark: None,
            watcher: Watcher::default(),
        }
    }
}

/// The current time in the form that the member expects.
pub(super) fn now() -> Now {
    Now { boot_ms: clock::boottime_ms(), unix: UnixMillis(clock::unix_ms()) }
}

/// The member and the engine.
impl Cluster {
    /// Returns whether there are answers to process. If not, the next one will wake `context`.
    pub(super) fn poll(&mut self, context: &mut TaskContext<'_>) -> bool {
        while let Poll::Ready(answer) = self.engine.poll(context) {
            self.answers.push_back(answer);
        }
        !self.answers.is_empty()
    }

    /// The next event to carry out.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.member.next_event() {
                return Some(event);
            }
            let answer = self.answers.pop_front()?;
            self.member.answer(now(), answer);
        }
    }

    // A membership, its deadlines and its grants.

    /// Whether the client of a hold certainly received its grant: a daemon of this host records
    /// that before it sends the grant.
    pub(crate) fn was_told(&self, token: Token) -> bool {
        self.terminator.record.each().get(&token).is_some_and(|holder| !holder.taken_over)
    }

    /// The latest time until which the previous daemon may have renewed the holds in the record, if
    /// this daemon has not taken them over. A watcher knows the deadline more exactly, but the
    /// watcher may have been killed, too.
    pub(super) fn unclaimed_until(&self) -> Option<u64> {
        let record = &self.terminator.record;
        let is_unclaimed = !self.let_in && !record.each().is_empty();
        // The configuration may have changed in between.
        let ttl_ms = record.content().ttl_ms.unwrap_or(self.member.settings.ttl_ms);
        is_unclaimed.then(|| self.began_ms.saturating_add(ttl_ms))
    }
}

const TWO_TABLES_HINT: &str = "first let them end under a daemon without the engine, or set that \
                               journal aside with `canal daemon --discard-journal`";

const NO_BOOT: &str = "cannot read /proc/sys/kernel/random/boot_id, which other hosts need to \
                       tell this boot of the machine from an earlier one";

const NO_BOOT_HINT: &str = "mount all of /proc here: `mount -t proc proc /proc`";

/// Refuses to start while a live process of this place holds a lock that is in a journal.
///
/// # Errors
/// Such processes exist.
pub(crate) fn refuse_living(place: &Place, origin: &Origin) -> Result<()> {
    let left = previous_journal::living(place, origin);
    if left == 0 {
        return Ok(());
    }
    let hold = canal_text::plural(left as u64, "process holds", "processes hold");
    let what = format!(
        "{hold} locks on this machine only, unknown to other hosts (the journal in {})",
        place.dir.display()
    );
    Err(StartError { what, hint: TWO_TABLES_HINT.into() }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{Mark, Settings};
    use crate::processes::holder_record::Holder;
    use canal_core::{OnLost, ProcessId};
    use canal_log::engine::{Call, Identity};

    impl Cluster {
        /// How many reads for clients have ended, and whether one is pending.
        pub(crate) fn reads(&self) -> (u64, bool) {
            self.member.reads()
        }

        /// How far this host has read the log.
        pub(crate) fn read_to(&self) -> Option<Mark> {
            self.member.mark()
        }
    }

    /// An engine that never answers.
    #[derive(Debug)]
    struct Silent;

    impl Engine for Silent {
        fn call(&mut self, _: Call) {}

        fn poll(&mut self, _: &mut TaskContext<'_>) -> Poll<Answer> {
            Poll::Pending
        }
    }

    #[test]
    fn processes_of_the_previous_daemon_live_for_its_ttl_and_not_for_a_longer_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::find(Some(&dir.path().join("canal.sock")), 0).unwrap();
        let record = || HolderRecord::open(dir.path(), Origin::read().unwrap(), false).unwrap();
        let until = || {
            let settings = Settings { ttl_ms: 60_000, ..Settings::default() };
            let member = Member::new(settings, Identity::default(), 1);
            let tokens = SentTokens::open(&place, "fake").unwrap();
            let engine: Box<dyn Engine> = Box::new(Silent);
            let named = ("fake".to_owned(), engine);
            let cluster = Cluster::new(member, named, false, record(), tokens);
            Cluster { began_ms: 5, ..cluster }.unclaimed_until()
        };
        let process = ProcessId { pid: 1, started: 1, inode: 1 };
        let (on_lost, mark, tag, taken_over) = (OnLost::Kill, None, None, false);
        let holder = Holder { process, on_lost, mark, tag, taken_over };
        assert_eq!(until(), None);
        record().tell(Token(1), holder).unwrap();
        assert_eq!(until(), Some(60_005));
        record().set_ttl(1_000).unwrap();
        assert_eq!(until(), Some(1_005));
    }
}
