//! The holders of a key.

use std::collections::BTreeSet;

use crate::limits::HOLDERS_LOOKED_AT_MAX;
use crate::view::conflict::blocking_holds;
use crate::view::{Shown, held_item};
use crate::waiters::leases::is_collecting;
use crate::wording::{Text, pid_of, time};
use canal_core::{
    FrameId, HoldState, Item, Key, Mode, OwnSlots, Owner, Request, Token, UnixMillis,
};
use canal_protocol::{ChildrenInfo, HOLDERS_SHOWN_MAX, HolderInfo, LeaseInfo, OverNodesInfo};
use canal_sys::clock;
use canal_sys::process::{self, RunState, run_state};

/// How much of a holder's process is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looks {
    /// Look up the state in /proc.
    Closely,
    /// Look up the state and everything else that a full report contains.
    Fully,
    /// Look up nothing.
    Briefly,
}

impl<'a> Shown<'a> {
    /// A holder, with its slots of `key`.
    pub(crate) fn holder(&self, hold: &HoldState, key: Option<&Key>, looks: Looks) -> HolderInfo {
        let has_state = looks != Looks::Briefly && hold.asked.ttl_ms.is_none();
        let state = if has_state { self.state(hold) } else { None };
        let (folder, children) = match looks {
            Looks::Fully => (self.folder(&hold.asked, hold.frame), self.keepers(hold)),
            Looks::Closely | Looks::Briefly => (None, None),
        };
        let bucket = key.and_then(|key| bucket(hold, key));
        let holder = self.holder_briefly(hold, key).map_texts(|text| text.to_string());
        HolderInfo { state: state.map(str::to_owned), bucket, folder, children, ..holder }
    }

    /// The working directory of a process that holds or waits, if it is known and the viewer may
    /// see it.
    pub(crate) fn folder(&self, asked: &Request, frame: FrameId) -> Option<String> {
        let pid = pid_of(&asked.owner);
        let lives = self.table.frame(frame).is_some_and(|state| !state.ended);
        let is_certain = lives && !self.unverified.contains(&frame);
        if asked.host != self.here || pid == 0 || !is_certain || !self.sees(asked.uid) {
            return None;
        }
        let user = (self.viewer != 0).then_some(asked.uid);
        process::folder(pid, user).map(|folder| folder.to_string_lossy().into_owned())
    }

    /// The FIFO of a hold, which the processes that keep the hold have open.
    fn keepers(&self, hold: &HoldState) -> Option<ChildrenInfo> {
        let is_here = hold.asked.children && hold.asked.host == self.here;
        let fifo = self.children.filter(|_| is_here && self.sees(hold.asked.uid));
        let (device, inode) = fifo?.fifo_id(hold.token)?;
        Some(ChildrenInfo { device, inode, pids: Vec::new() })
    }

    /// A holder without the state of its process, for a client that releases.
    pub(crate) fn holder_briefly<'h>(
        &self,
        hold: &'h HoldState,
        key: Option<&Key>,
    ) -> HolderInfo<Text<'h>>
    where
        'a: 'h,
    {
        let uid = hold.asked.uid;
        let item = key.and_then(|key| hold.items.iter().find(|item| item.key == *key));
        HolderInfo {
            pid: self.pid_of_hold(hold),
            uid,
            command: self.sees(uid).then_some(Text::Itself(&hold.asked.command.0)),
            since: Text::Time(hold.since),
            token: hold.token.0,
            mode: item.map(|item| item.mode),
            slots: item.map(|item| item.slots.to_vec()).unwrap_or_default(),
            bucket: None,
            folder: None,
            children: None,
            key: None,
            session: Text::Session(self.table.session(self.build_of(hold).unwrap_or(hold).frame)),
            job: None,
            host: self.label(hold.frame).map(Text::Itself),
            state: None,
            lease: self.lease(hold),
            max_run_ms: hold.asked.max_run_ms,
            note: hold.asked.note.as_deref().map(Text::Itself),
            over_nodes: self.over_nodes(&hold.asked, hold.frame, hold.provisional),
        }
    }

    /// The whole request over nodes to which a part at this daemon belongs.
    pub(crate) fn over_nodes(
        &self,
        asked: &Request,
        frame: FrameId,
        collecting: bool,
    ) -> Option<Box<OverNodesInfo>> {
        let over = asked.over_nodes.as_deref()?;
        let reported = self.leases.reported(frame);
        Some(Box::new(OverNodesInfo {
            run: over.run,
            nodes: over.nodes.clone(),
            require: over.require,
            need: over.least() as u64,
            held: reported.map(|it| it.held),
            waits_for: reported.map(|it| it.waits_for.clone()).unwrap_or_default(),
            collecting,
            spare: over.spare,
        }))
    }

    /// The remaining TTL of the lease that has a hold, if a lease has it.
    pub(crate) fn lease(&self, hold: &HoldState) -> Option<LeaseInfo> {
        let ttl_ms = hold.asked.ttl_ms?;
        let left_ms = self.leases.left_ms(hold.frame).filter(|_| !is_collecting(hold));
        let end = |left| time(UnixMillis(clock::unix_ms().saturating_add(left)));
        let state = self.table.frame(hold.frame).and_then(|frame| frame.lease);
        let renewals = state.map_or(0, |lease| lease.renewals);
        Some(LeaseInfo { ttl_ms, left_ms, expires: left_ms.map(end), renewals })
    }

    /// The hold of the build that has a job token; `None` if the hold is not a job token.
    fn build_of(&self, hold: &HoldState) -> Option<&'a HoldState> {
        match hold.asked.owner {
            Owner::Jobserver(build) => self.table.hold_of(self.table.tagged(build)?),
            Owner::Process(_) | Owner::Lease(_) => None,
        }
    }

    /// The process of a hold; for a job token, the process of its build.
    fn pid_of_hold(&self, hold: &HoldState) -> u32 {
        pid_of(&self.build_of(hold).unwrap_or(hold).asked.owner)
    }

    fn state(&self, hold: &HoldState) -> Option<&'static str> {
        let hold = self.build_of(hold).unwrap_or(hold);
        if hold.orphaned {
            return Some("children");
        }
        if self.unverified.contains(&hold.frame) {
            return Some("unverified");
        }
        if hold.asked.host != self.here {
            return None;
        }
        match run_state(pid_of(&hold.asked.owner)) {
            RunState::Running => Some("running"),
            RunState::Stopped => Some("stopped"),
            RunState::Frozen => Some("frozen"),
            RunState::Exiting | RunState::Gone => None,
        }
    }

    /// Some of the holders that block an item of a request. The longest holder comes first, and
    /// each frame appears once. The list is empty if the item waits only because other waiters come
    /// first.
    pub(crate) fn holders(&self, asked: &Request, item: usize, own: OwnSlots) -> Vec<HolderInfo> {
        let Some(Item { key, ask }) = asked.items.get(item) else { return Vec::new() };
        let mut tokens = self.table.blocking_holds(asked, item, own, HOLDERS_LOOKED_AT_MAX);
        tokens.sort_unstable();
        let holds = tokens.into_iter().filter_map(|token| self.table.hold(token));
        let mut frames = BTreeSet::new();
        let each_once = holds.filter(|hold| frames.insert(hold.frame)).take(HOLDERS_SHOWN_MAX);
        let shown = each_once.filter_map(|hold| {
            let held = held_item(&hold.items, key, ask.mode())?;
            Some(self.holder_of(hold, &held.key, key))
        });
        shown.collect()
    }

    /// The holders that were granted a key, or a key above or below it, after a token.
    pub(crate) fn holders_since(&self, key: &Key, token: Token) -> Vec<HolderInfo> {
        let found = blocking_holds(self.table, key, Mode::Write, HOLDERS_SHOWN_MAX);
        let mut found: Vec<_> = found.filter(|it| it.hold.token > token).collect();
        found.sort_by_key(|obstacle| obstacle.hold.token);
        found.dedup_by_key(|obstacle| obstacle.hold.token);
        found.truncate(HOLDERS_SHOWN_MAX);
        let shown = found.into_iter();
        shown.map(|obstacle| self.holder_of(obstacle.hold, &obstacle.item.key, key)).collect()
    }

    /// A holder of one of its keys, for a client that asks for `key`.
    fn holder_of(&self, hold: &HoldState, held: &Key, key: &Key) -> HolderInfo {
        let holder = self.holder(hold, Some(held), Looks::Closely);
        HolderInfo { key: (held != key).then(|| held.to_string()), ..holder }
    }
}

/// The bucket that contains all slots of a hold of a key.
fn bucket(hold: &HoldState, key: &Key) -> Option<u64> {
    let item = hold.items.iter().find(|item| item.key == *key)?;
    let view = item.view?;
    let mut buckets = item.slots.iter().map(|slot| view.bucket(slot));
    let first = buckets.next()??;
    buckets.all(|bucket| bucket == Some(first)).then_some(first)
}
