//! The server's part of jobservers: serves builds, gives them slots of the table, and takes back
//! the slots that their jobs release. [`Jobservers`](crate::jobserver::builds::Jobservers) owns the
//! state.

use std::sync::Arc;
use std::time::Instant;

use crate::calls::in_flight::Completion;
use crate::jobserver::share::{self, SlotFrom, Standing};
use crate::server::Server;
use crate::server::call_step::Result;
use crate::wording::bad;
use canal_core::{Ask, Change, Item, Key, Outcome, Owner, Release, Request, RequestId, Tag, Token};
use canal_protocol::{Acquire, ErrorName, Failure};
use canal_sys::clock;
use canal_sys::kernel::random;

/// The note of a job token in reports.
const NOTE: &str = "a job token of the build";

impl Server {
    /// Divides the slots of keys where something changed. Returns whether it must run again once
    /// the log has returned its proposals and the resulting grants are sent. It writes an offered
    /// token to its FIFO only after the offer is recorded.
    pub(crate) fn share_slots(&mut self, now: Instant) -> bool {
        if self.jobservers.is_empty() {
            return false;
        }
        self.end_job_tokens();
        let heard = self.jobservers.take_events();
        let is_due = self.jobservers.due.is_some_and(|due| due <= now);
        let revision = self.decide.table().revision();
        if !heard && !is_due && self.jobservers.seen == Some(revision) {
            return self.decide.has_proposed() || !self.waiters.to_tell.is_empty();
        }
        (self.jobservers.seen, self.jobservers.due) = (None, None);
        for key in self.jobservers.keys() {
            if self.decide.has_proposed() {
                return true;
            }
            self.share_slots_of(&key, now);
        }
        let is_over = !self.decide.has_proposed();
        self.jobservers.seen = is_over.then_some(revision);
        !is_over || !self.waiters.to_tell.is_empty()
    }

    /// Ends the job tokens of builds whose hold has ended.
    fn end_job_tokens(&mut self) {
        for build in std::mem::take(&mut self.jobservers.ended) {
            let owner = Owner::Jobserver(build);
            let frame = self.decide.table().frame_of(self.decide.host(), &owner);
            frame.into_iter().for_each(|frame| self.end(frame));
        }
    }

    fn share_slots_of(&mut self, key: &Key, now: Instant) {
        let builds = self.jobservers.of_keys(|it| it == key);
        self.count_job_tokens(&builds);
        let table = self.decide.table();
        // A waiting request has precedence.
        let nothing_is_offered = table.is_awaited(key) || table.settings(key).paused;
        // An operator stored a smaller size, or took slots out of service.
        let is_overfull = table.is_overfull(key);
        if nothing_is_offered || is_overfull {
            self.withdraw_offers(&builds);
        }
        if nothing_is_offered || self.decide.has_proposed() {
            return;
        }
        loop {
            let standings = self.standings(&builds, now);
            let next = share::next(&standings, |to| self.grantable_token(to).is_some());
            let Some((to, from)) = next else { break };
            self.move_slot(to, from, now);
            if self.decide.has_proposed() {
                return;
            }
        }
        builds.iter().for_each(|build| self.release_spares(*build));
        let next = share::next_look(&self.standings(&builds, now)).map(|time| now + time);
        self.jobservers.due = next.into_iter().chain(self.jobservers.due).min();
    }

    fn standings(&self, builds: &[Tag], now: Instant) -> Vec<(Tag, Standing)> {
        let standing = |tag: &Tag| {
            let held = self.job_tokens(*tag).len();
            Some((*tag, self.jobservers.get(*tag)?.standing(held, now)?))
        };
        builds.iter().filter_map(standing).collect()
    }

    /// Gives a build a slot, and offers its job token.
    fn move_slot(&mut self, build: Tag, from: SlotFrom, now: Instant) {
        let (SlotFrom::Spare(giver) | SlotFrom::Untaken(giver)) = from else {
            return self.take_slot(build);
        };
        if giver == build {
            return self.jobservers.offer(build, now);
        }
        if let SlotFrom::Untaken(_) = from
            && !self.jobservers.get_mut(giver).is_some_and(|giver| giver.lose_offer(now))
        {
            // A job took it just now.
            return;
        }
        match self.spares(giver).pop() {
            Some(token) => self.release_token(token, Completion::JobSlot { build }),
            None => self.take_slot(build),
        }
    }

    /// Asks for one more job token of a build, if a slot is free.
    pub(crate) fn take_slot(&mut self, build: Tag) {
        let Some(request) = self.grantable_token(build) else { return self.bar(build) };
        if let Err(error) = self.decide.ledger_mut().admit(&request) {
            tracing::debug!(%error, "cannot take a token");
            return self.bar(build);
        }
        let change = Change::Request(Arc::new(request));
        self.propose_and(change, Completion::JobToken { build });
    }

    /// Offers a job token that a build asked for, if it was granted.
    pub(crate) fn token_decided(&mut self, build: Tag, request: RequestId) {
        self.waiters.drop_grant(request);
        match self.decide.table().hold_of(request) {
            Some(_) => self.jobservers.offer(build, clock::now()),
            None => self.bar(build),
        }
    }

    fn bar(&mut self, build: Tag) {
        if let Some(build) = self.jobservers.get_mut(build) {
            build.barred = true;
            build.pass_over(clock::now());
        }
    }

    /// Withdraws the offers around some keys that no job has taken yet, because a request asks for
    /// one of these keys. It must not wait for a job token that no job has.
    pub(crate) fn withdraw_offers_for(&mut self, items: &[Item]) {
        if self.jobservers.is_empty() {
            return;
        }
        self.end_job_tokens();
        let around = |key: &Key| items.iter().any(|it| key.covers(&it.key) || it.key.covers(key));
        let builds = self.jobservers.of_keys(around);
        self.count_job_tokens(&builds);
        self.withdraw_offers(&builds);
    }

    fn withdraw_offers(&mut self, builds: &[Tag]) {
        for build in builds {
            if let Some(build) = self.jobservers.get_mut(*build) {
                build.withdraw(usize::MAX);
            }
            self.release_spares(*build);
        }
    }

    fn count_job_tokens(&mut self, builds: &[Tag]) {
        for build in builds {
            let held = self.job_tokens(*build).len();
            if let Some(build) = self.jobservers.get_mut(*build) {
                build.count(held);
            }
        }
    }

    /// Releases the job tokens of a build that no job has.
    fn release_spares(&mut self, build: Tag) {
        let spares = self.spares(build).into_iter();
        spares.for_each(|token| self.release_token(token, Completion::Nothing));
    }

    fn release_token(&mut self, token: Token, then: Completion) {
        let release = Release::Hold { token, forced: false };
        self.propose_and(Change::Release(release), then);
    }

    /// The job tokens of a build that no job has.
    fn spares(&self, build: Tag) -> Vec<Token> {
        let mut tokens = self.job_tokens(build);
        let spare = self.jobservers.get(build).map_or(0, |build| build.spare(tokens.len()));
        tokens.split_off(tokens.len().saturating_sub(spare))
    }

    /// The holds of a build's job tokens.
    fn job_tokens(&self, build: Tag) -> Vec<Token> {
        let table = self.decide.table();
        let frame = table.frame_of(self.decide.host(), &Owner::Jobserver(build));
        frame.into_iter().flat_map(|it| table.holds_in(it)).map(|hold| hold.token).collect()
    }

    /// The request for one more job token of a build, if the table would grant it now.
    fn grantable_token(&self, build: Tag) -> Option<Request> {
        let table = self.decide.table();
        let hold = table.hold_tagged(build)?;
        let [item] = &*hold.asked.items else { return None };
        let item = Item { key: item.key.clone(), ask: Ask::slots(1, item.ask.stated()) };
        // No client can predict the tag.
        let tag = Tag(random::u128().ok()?);
        let asked = Request {
            command: hold.asked.command.clone(),
            note: Some(NOTE.into()),
            // A job token has precedence over no other request.
            priority: i32::MIN,
            on_lost: hold.asked.on_lost,
            host: self.decide.host(),
            owner: Owner::Jobserver(build),
            uid: hold.asked.uid,
            items: vec![item],
            tag,
            ..Request::default()
        };
        self.check_quota(asked.uid, &asked.items, false).ok()?;
        matches!(table.verdict_on(&asked), Outcome::Granted(_)).then_some(asked)
    }

    /// Whether a request can have a jobserver.
    ///
    /// # Errors
    /// The daemon works over an engine, or the request is not for one slot of one key that lasts
    /// while descendants live.
    pub(crate) fn check_jobserver(
        &self,
        acquire: &Acquire,
        items: &[Item],
        is_part: bool,
    ) -> Result<()> {
        if self.decide.is_shared() {
            let message = "a daemon with an engine has no jobserver";
            let hint = "leave out --jobserver, or use a daemon without an engine";
            return Err(Failure::new(ErrorName::Unsupported, message).hint(hint));
        }
        let is_one_slot = matches!(items, [Item { ask: Ask::Counted { count: 1, .. }, .. }]);
        let is_plain = acquire.owner_fd.is_none() && acquire.lease.is_none() && !is_part;
        if is_one_slot && is_plain && acquire.with_children {
            return Ok(());
        }
        let message = "`jobserver` needs one slot of one key, `with_children`, and the calling \
                       process as the owner";
        Err(bad(message))
    }

    /// Opens the FIFOs of the builds that still hold their slot. Ends the job tokens of the others.
    pub(crate) fn take_up_jobservers(&mut self) {
        let mut builds = self.jobservers.found();
        builds.extend(self.decide.table().frames().filter_map(|frame| {
            if let Owner::Jobserver(build) = frame.owner { Some(build) } else { None }
        }));
        for build in builds {
            let hold = self.decide.table().hold_tagged(build);
            if let Some((hold, [item])) = hold.map(|hold| (hold, &*hold.items)) {
                if let Err(error) = self.jobservers.take_over(hold.token, build, &item.key) {
                    tracing::warn!(%error, token = hold.token.0, "cannot continue its jobserver");
                }
            } else {
                self.jobservers.forget(build);
            }
        }
    }
}
