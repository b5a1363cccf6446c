//! The holders of a key: for reports, for the client that was granted it, and for clients that
//! watch its leader.
//!
//! A client that watches the leader gets the present state, not a queue of changes, which would
//! grow while it sleeps.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use crate::view::visible_table::{Shown, frame_name, held_item};
use crate::wording::{pid_of, time};
use canal_core::{
    FrameId, Granted, GrantedItem, HeldItem, HoldState, Item, Key, Leadership, Mode, OwnSlots,
    Owner, Request, Token, UnixMillis,
};
use canal_protocol::{
    ChildrenInfo, ErrorName, Failure, Grant, GrantedKey, HOLDERS_SHOWN_MAX, HolderInfo, Leader,
    LeaseInfo, OverNodesInfo, OwnerInfo, SlotInfo,
};
use canal_sys::clock;
use canal_sys::process::{self, RunState, run_state};

/// The most holds that are examined to list the holders that block a request.
const HOLDERS_LOOKED_AT_MAX: usize = 500;

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
    pub(crate) fn holder(&self, hold: &HoldState, key: &Key, looks: Looks) -> HolderInfo {
        let has_state = looks != Looks::Briefly && hold.asked.ttl_ms.is_none();
        let state = has_state.then(|| self.state(hold)).flatten();
        let (folder, children) = match looks {
            Looks::Fully => (self.folder(&hold.asked, hold.frame), self.keepers(hold)),
            Looks::Closely | Looks::Briefly => (None, None),
        };
        let item = hold.items.iter().find(|item| item.key == *key);
        let (bucket, state) = (item.and_then(bucket), state.map(str::to_owned));
        HolderInfo { state, bucket, folder, children, ..self.holder_briefly(hold, Some(key)) }
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
    pub(crate) fn holder_briefly(&self, hold: &HoldState, key: Option<&Key>) -> HolderInfo {
        let uid = hold.asked.uid;
        let of_process = self.build_of(hold).unwrap_or(hold);
        let item = key.and_then(|key| hold.items.iter().find(|item| item.key == *key));
        HolderInfo {
            pid: pid_of(&of_process.asked.owner),
            uid,
            command: self.command(uid, &hold.asked.command.0),
            since: time(hold.since),
            token: hold.token.0,
            mode: item.map(|item| item.mode),
            slots: item.into_iter().flat_map(|item| item.slots.iter()).collect(),
            session: self.session(of_process.frame),
            host: self.label_of(hold.frame),
            lease: self.lease(hold),
            max_run_ms: hold.asked.max_run_ms,
            note: hold.asked.note.as_deref().map(str::to_owned),
            over_nodes: self.over_nodes(&hold.asked, hold.frame, hold.provisional),
            ..HolderInfo::default()
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
        let reported = self.leases.reported.get(&frame);
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
        let left_ms = self.leases.left_ms(hold.frame).filter(|_| !hold.is_collecting());
        let end = |left| time(UnixMillis(clock::unix_ms().saturating_add(left)));
        let state = self.table.frame(hold.frame).and_then(|frame| frame.lease);
        let renewals = state.map_or(0, |lease| lease.renewals);
        Some(LeaseInfo { ttl_ms, left_ms, expires: left_ms.map(end), renewals })
    }

    /// The hold of the build that has a job token; `None` if the hold is not a job token.
    fn build_of(&self, hold: &HoldState) -> Option<&'a HoldState> {
        let Owner::Jobserver(build) = hold.asked.owner else { return None };
        self.table.hold_tagged(build)
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
        each_once.filter_map(|hold| self.holder_of(hold, key, ask.mode())).collect()
    }

    /// The holders that were granted a key, or a key above or below it, after a token.
    pub(crate) fn holders_since(&self, key: &Key, token: Token) -> Vec<HolderInfo> {
        let tokens = self.table.conflicting_holds(key, Mode::Write, &[]);
        let later = tokens.take(HOLDERS_LOOKED_AT_MAX).filter(|it| *it > token);
        let later: BTreeSet<Token> = later.collect();
        let holds = later.into_iter().filter_map(|token| self.table.hold(token));
        let shown = holds.filter_map(|hold| self.holder_of(hold, key, Mode::Write));
        shown.take(HOLDERS_SHOWN_MAX).collect()
    }

    /// A holder that blocks a request for `key`.
    fn holder_of(&self, hold: &HoldState, key: &Key, mode: Mode) -> Option<HolderInfo> {
        let (held, _) = held_item(&hold.items, key, mode)?;
        let holder = self.holder(hold, held, Looks::Closely);
        Some(HolderInfo { key: (held != key).then(|| held.to_string()), ..holder })
    }

    /// The grant of a hold. If a part of the hold was released before the client received the
    /// grant, `acquired` is the number held now, because the number right after the grant is no
    /// longer known.
    pub(crate) fn grant(&self, hold: &HoldState, granted: &Granted) -> Grant {
        let items = match granted.items.len() == hold.items.len() {
            true => Cow::Borrowed(&granted.items),
            false => Cow::Owned(self.table.granted(hold).items),
        };
        let keys = hold.items.iter().zip(&*items);
        let (pid, command) = (pid_of(&hold.asked.owner), hold.asked.command.0.clone());
        Grant {
            keys: keys.map(|(item, granted)| granted_key(&item.key, item.mode, granted)).collect(),
            token: hold.token.0,
            owner: OwnerInfo { pid, command },
            session: self.session(hold.frame),
            frame: frame_name("f", hold.frame),
            lease: self.lease(hold),
            ..Grant::default()
        }
    }

    /// The hold that leads a key, if there is one.
    ///
    /// # Errors
    /// Several requests can hold the key at once.
    pub(crate) fn leader(&self, key: &Key) -> Result<Option<&'a HoldState>, Failure> {
        let (message, hint) = match self.table.leader(key) {
            Leadership::Vacant => return Ok(None),
            Leadership::Led(token) => return Ok(self.table.hold(token)),
            Leadership::Slots(slots) => (
                format!(
                    "`{key}` has {slots} slots: several processes can hold it at the same time, \
                     and none of them leads"
                ),
                "run candidates with -j 1 or with --write: only a lock with one slot has a leader",
            ),
            Leadership::Readers => (
                format!("`{key}` has only readers: they share it, and none of them leads"),
                "run candidates with --key or --write",
            ),
        };
        Err(Failure::new(ErrorName::NotExclusive, message).hint(hint))
    }

    /// The leader in the form that a client receives.
    pub(crate) fn leader_reply(&self, found: LeaderFound<'_>, key: &Key) -> Leader {
        let leader = found.hold.map(|hold| self.holder_briefly(hold, Some(key)));
        Leader { leader, stale: found.stale }
    }
}

/// The bucket that contains all slots of an item of a hold.
fn bucket(item: &HeldItem) -> Option<u64> {
    let view = item.view?;
    let mut buckets = item.slots.iter().map(|slot| view.bucket(slot));
    let first = buckets.next()??;
    buckets.all(|bucket| bucket == Some(first)).then_some(first)
}

/// A key that a request was granted, or would be.
pub(crate) fn granted_key(key: &Key, mode: Mode, granted: &GrantedItem) -> GrantedKey {
    let bucket = |slot| granted.view.and_then(|view| view.bucket(slot));
    let slots = granted.slots.iter().map(|slot| SlotInfo { slot, bucket: bucket(slot) });
    let (key, slots) = (key.as_str().to_owned(), slots.collect());
    GrantedKey { key, acquired: granted.acquired, slots, mode }
}

/// The current leader of a key: its only holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaderFound<'a> {
    /// `None` if there is no leader, or if this host cannot read the log and knows none.
    pub hold: Option<&'a HoldState>,
    pub stale: bool,
}

impl LeaderFound<'_> {
    /// A hash of the facts whose change is news to a client that watches the leader.
    pub(crate) fn news(self) -> u64 {
        let leader = self.hold.map(|hold| (hold.token, hold.asked.note.as_deref()));
        BuildHasherDefault::<DefaultHasher>::default().hash_one((leader, self.stale))
    }
}
