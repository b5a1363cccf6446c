//! Everything that only a daemon with an engine needs: this host is a member of a table that hosts
//! share.
//!
//! [`Cluster`] owns all of it. A daemon with the embedded journal has none.
//! [`Decide`](decide::Decide) owns the table and its log in either case. The rest of the daemon
//! asks only `Decide`.
//!
//! Invariant: no command outlives the time at which another host may be granted what the command
//! holds.

use std::io;
use std::os::fd::OwnedFd;

use anyhow::Context;

use crate::cluster::end_commands::Terminator;
use crate::cluster::engine::Chosen;
use crate::cluster::engine_driver::EngineDriver;
use crate::cluster::engine_status::EngineStatus;
use crate::cluster::sent_tokens::SentTokens;
use crate::cluster::shared_marker::SharedMarker;
use crate::cluster::watcher::Watcher;
use crate::host::Deadlines;
use crate::options::Options;
use crate::processes::holder_record::{Holder, HolderRecord};
use canal_core::{HoldState, Token};
use canal_protocol::DeadlinePageFound;
use canal_sys::deadline::{Deadline, Writer};
use canal_sys::process::Origin;

pub(super) mod decide;
pub(super) mod end_commands;
pub(super) mod engine;
pub(super) mod engine_driver;
pub(super) mod engine_status;
pub(super) mod health;
pub(super) mod join;
pub(super) mod not_a_member;
pub(super) mod sent_tokens;
pub(super) mod shared_marker;
pub(super) mod watcher;

#[cfg(test)]
use crate::host::Mark;

/// This host's part in a table that hosts share.
#[derive(Debug)]
pub(crate) struct Cluster {
    driver: EngineDriver,
    status: EngineStatus,
    /// The processes of this host that received a grant.
    holder_record: HolderRecord,
    /// The tokens that clients of this host received.
    tokens: SentTokens,
    terminator: Terminator,
    /// The page with the time until which holds are safe. `None` while this host is not a member.
    page: Option<Writer>,
    /// The deadlines on the page.
    published: Deadlines,
    /// The mark for later daemons that this place uses an engine. `None` in a test.
    mark: Option<SharedMarker>,
    /// The watcher process, which outlives this daemon.
    watcher: Watcher,
}

impl Cluster {
    /// Reads the files of earlier daemons of this place, and prepares those of this daemon.
    ///
    /// # Errors
    /// A file cannot be read or written, or the record names processes of another namespace.
    pub(crate) fn open(
        options: &Options,
        chosen: &Chosen,
        driver: EngineDriver,
    ) -> anyhow::Result<Self> {
        let place = &options.place;
        let origin = Origin::read()?;
        let (mark, boots) = SharedMarker::prepare(place, chosen, &origin.boot_id)
            .context("cannot record the engine")?;
        let holder_record = HolderRecord::open(&place.dir, origin, options.discard_journal)
            .with_context(|| format!("the record of owners in {}", place.dir.display()))?;
        let tokens = SentTokens::open(place, &chosen.name)
            .context(place.dir.display().to_string())
            .context("cannot read which tokens were granted here")?;
        let status = EngineStatus::new(chosen, options.on_demand);
        let mut cluster = Self::new(driver, status, holder_record, tokens);
        cluster.driver.member.remember_boots(boots);
        cluster.mark = Some(mark);
        cluster.watcher = Watcher::of(options);
        Ok(cluster)
    }

    /// A cluster without a watcher, which leaves no mark for later daemons.
    pub(crate) fn new(
        mut driver: EngineDriver,
        status: EngineStatus,
        holder_record: HolderRecord,
        tokens: SentTokens,
    ) -> Self {
        driver.member.remember(sent_tokens::memory_of(&tokens, &holder_record));
        driver.start(holder_record.dir_number());
        Self {
            driver,
            status,
            holder_record,
            tokens,
            terminator: Terminator::default(),
            page: None,
            published: Deadlines::default(),
            mark: None,
            watcher: Watcher::default(),
        }
    }

    /// How many reads for clients have ended, and whether one is pending.
    #[cfg(test)]
    pub(crate) fn reads(&self) -> (u64, bool) {
        self.driver.member.reads()
    }

    /// Adds the deadline page to the descriptors of a grant, if there is one.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn add_page(&self, fds: &mut Vec<OwnedFd>) -> io::Result<Option<DeadlinePageFound>> {
        let Some(writer) = &self.page else { return Ok(None) };
        let index = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let found =
            DeadlinePageFound { deadline_fd: index(fds.len()), liveness_fd: index(fds.len() + 1) };
        fds.push(writer.page().try_clone_to_owned()?);
        fds.push(writer.line().try_clone_to_owned()?);
        Ok(Some(found))
    }

    /// Publishes the time until which the holds are safe.
    pub(crate) fn keep_deadline(&mut self) {
        let Some(writer) = &self.page else { return };
        let deadlines = self.driver.member.deadlines();
        if self.published != deadlines {
            writer.publish(self.published_deadline());
            self.published = deadlines;
        }
    }

    fn published_deadline(&self) -> Deadline {
        let deadlines = self.driver.member.deadlines();
        Deadline {
            reached_at: self.driver.member.health().renewed_ms.unwrap_or(0),
            term_at: deadlines.term_at,
            kill_at: deadlines.kill_at,
        }
    }

    /// Records a grant before its client receives it. A later daemon then knows the token even
    /// after a reboot, and can end the process if this host loses the hold.
    ///
    /// # Errors
    /// The grant is not recorded, so the client must not receive it.
    pub(crate) fn record_grant(&mut self, hold: &HoldState) -> io::Result<()> {
        let token = hold.token;
        self.tokens.tell(token, self.driver.member.memory().epoch)?;
        self.driver.member.tell(token);
        let Some(told) = Holder::of(hold, self.driver.member.mark()) else { return Ok(()) };
        // A client receives the token again.
        self.terminator.lost.remove(&token);
        self.holder_record.tell(token, told)
    }

    /// How far this host has read the log.
    #[cfg(test)]
    pub(crate) fn read_to(&self) -> Option<Mark> {
        self.driver.member.mark()
    }

    /// Whether the client of a hold certainly received its grant: a daemon of this host records
    /// that before it sends the grant.
    pub(crate) fn was_told(&self, token: Token) -> bool {
        self.holder_record.get(token).is_some_and(|holder| !holder.taken_over)
    }
}
