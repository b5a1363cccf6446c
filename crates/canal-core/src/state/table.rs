//! The lock table.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::index::grant_order::Rank;
use crate::index::key_tree::{KeyTree, PerMode};
use crate::{
    FrameId, FrameState, Globals, HoldState, HostId, Key, Owner, ProcessId, Release, Request,
    RequestId, Revision, Tag, Token, Usage, WaiterState,
};

/// The result of carrying out an outcome. The error is how the outcome contradicts the table.
pub(crate) type Result<T = (), E = String> = std::result::Result<T, E>;

/// The lock table: a function of the entries applied to it.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub(crate) globals: Globals,
    pub(crate) frames: BTreeMap<FrameId, Box<Frame>>,
    /// The frames of the owners that have not ended; see [`owner_key`].
    pub(crate) owners: BTreeMap<(HostId, Owner), FrameId>,
    pub(crate) holds: Holds,
    pub(crate) granted: BTreeMap<RequestId, Token>,
    pub(crate) waiters: BTreeMap<RequestId, Box<WaiterState>>,
    pub(crate) tags: BTreeMap<Tag, RequestId>,
    /// The requests over nodes that hold or wait.
    pub(crate) over_nodes: BTreeSet<RequestId>,
    pub(crate) tree: KeyTree,
    /// Waiters that were overtaken `bypass_max` times, until they become barriers.
    pub(crate) bypass_exhausted: BTreeSet<RequestId>,
    pub(crate) sessions: BTreeMap<FrameId, Session>,
    /// Sessions that both hold and wait (Coffman's hold-and-wait condition). Only these can be part
    /// of a deadlock.
    pub(crate) hold_and_wait: BTreeSet<FrameId>,
    /// The holds and waiting requests of each user, in total.
    pub(crate) usage: BTreeMap<u32, Usage>,
}

/// All holds.
pub(crate) type Holds = BTreeMap<Token, Arc<HoldState>>;

/// A frame, its holds and its waiting requests.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) state: FrameState,
    /// The outermost frame around it.
    pub(crate) root: FrameId,
    pub(crate) children: usize,
    pub(crate) holds: BTreeSet<Token>,
    pub(crate) shares: BTreeMap<Key, Box<Share>>,
    pub(crate) waiters: BTreeSet<RequestId>,
}

/// The part of one key that a frame holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Share {
    /// The holds with an item of the key.
    pub(crate) tokens: BTreeSet<Token>,
    /// The number of their items of the key.
    pub(crate) items: PerMode<usize>,
}

/// A session: all frames under one outermost frame, with their holds and waiters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    pub(crate) frames: BTreeSet<FrameId>,
    pub(crate) holds: usize,
    pub(crate) waiters: usize,
}

/// A request that waits or is new, with everything that decides whether it is granted.
#[derive(Clone, Debug)]
pub(crate) struct Contender<'a> {
    pub(crate) asked: Cow<'a, Request>,
    pub(crate) frame: FrameId,
    /// The frames whose holds do not block it; see [`Table::lineage`].
    pub(crate) lineage: Vec<FrameId>,
    pub(crate) rank: Rank,
}

impl Table {
    /// The revision of the last entry applied.
    pub fn revision(&self) -> Revision {
        self.globals.revision
    }

    /// The values that belong to no key, frame or request.
    pub fn globals(&self) -> &Globals {
        &self.globals
    }

    /// The waiting or holding request with this tag.
    pub fn tagged(&self, tag: Tag) -> Option<RequestId> {
        self.tags.get(&tag).copied()
    }

    /// A waiting request.
    pub fn waiter(&self, request: RequestId) -> Option<&WaiterState> {
        self.waiters.get(&request).map(Box::as_ref)
    }

    /// The hold that was granted to a request.
    pub fn hold_of(&self, request: RequestId) -> Option<&HoldState> {
        self.hold(*self.granted.get(&request)?)
    }

    /// The hold of the request with this tag.
    pub fn hold_tagged(&self, tag: Tag) -> Option<&HoldState> {
        self.hold_of(self.tagged(tag)?)
    }

    /// The content of a request that waits or holds.
    pub fn request(&self, id: RequestId) -> Option<&Arc<Request>> {
        let waiting = self.waiter(id).map(|waiter| &waiter.request);
        waiting.or_else(|| self.hold_of(id).map(|hold| &hold.asked))
    }

    /// The frame of a request that waits or holds.
    pub fn frame_of_request(&self, id: RequestId) -> Option<FrameId> {
        let waiting = self.waiter(id).map(|waiter| waiter.frame);
        waiting.or_else(|| self.hold_of(id).map(|hold| hold.frame))
    }

    /// A hold.
    pub fn hold(&self, token: Token) -> Option<&HoldState> {
        self.holds.get(&token).map(Arc::as_ref)
    }

    /// A hold, shared so that the caller can still use it after it has ended.
    pub fn hold_to_keep(&self, token: Token) -> Option<Arc<HoldState>> {
        self.holds.get(&token).cloned()
    }

    /// The holds that a release ends, as a whole or in part.
    pub fn holds_of(&self, release: &Release) -> Vec<Arc<HoldState>> {
        let tokens: Vec<Token> = match release {
            Release::Latest { frame, key } => self.latest_hold(*frame, key).into_iter().collect(),
            Release::All { frame } => self.holds_in(*frame).map(|hold| hold.token).collect(),
            Release::Hold { token, .. } => vec![*token],
        };
        tokens.into_iter().filter_map(|token| self.hold_to_keep(token)).collect()
    }

    /// The frame of an owner that has not ended.
    pub fn frame_of(&self, host: HostId, owner: &Owner) -> Option<FrameId> {
        self.owners.get(&owner_key(host, owner)).copied()
    }

    /// The frames of the processes with this pid that have not ended. There is more than one only
    /// if a process has ended and the table does not know it yet.
    pub fn frames_of_number(&self, host: HostId, pid: u32) -> impl Iterator<Item = FrameId> {
        let with = |rest| (host, Owner::Process(ProcessId { pid, started: rest, inode: rest }));
        self.owners.range(with(0)..=with(u64::MAX)).map(|(_, frame)| *frame)
    }

    /// A frame.
    pub fn frame(&self, frame: FrameId) -> Option<&FrameState> {
        self.frames.get(&frame).map(|frame| &frame.state)
    }

    /// The outermost frame around a frame, which identifies its session.
    pub fn session(&self, frame: FrameId) -> FrameId {
        self.frames.get(&frame).map_or(frame, |frame| frame.root)
    }

    /// All frames, by id.
    pub fn frames(&self) -> impl Iterator<Item = &FrameState> {
        self.frames.values().map(|frame| &frame.state)
    }

    /// A frame's holds, oldest first.
    pub fn holds_in(&self, frame: FrameId) -> impl Iterator<Item = &HoldState> {
        let tokens = self.frames.get(&frame).into_iter().flat_map(|frame| &frame.holds);
        tokens.filter_map(|token| self.hold(*token))
    }

    /// The token of a frame's latest hold of a key.
    pub fn latest_hold(&self, frame: FrameId, key: &Key) -> Option<Token> {
        self.frames.get(&frame)?.shares.get(key)?.tokens.last().copied()
    }

    /// A frame's waiting requests, oldest first.
    pub fn waiters_in(&self, frame: FrameId) -> impl Iterator<Item = &WaiterState> {
        let requests = self.frames.get(&frame).into_iter().flat_map(|frame| &frame.waiters);
        requests.filter_map(|request| self.waiter(*request))
    }

    /// All holds, by token.
    pub fn holds(&self) -> impl ExactSizeIterator<Item = &HoldState> {
        self.holds.values().map(Arc::as_ref)
    }

    /// All waiting requests, by id.
    pub fn waiters(&self) -> impl ExactSizeIterator<Item = &WaiterState> {
        self.waiters.values().map(Box::as_ref)
    }

    /// The usage of a user.
    pub fn usage(&self, uid: u32) -> Usage {
        self.usage.get(&uid).copied().unwrap_or_default()
    }

    /// The usage of a user. A user without requests keeps an entry, because most users return.
    pub(crate) fn usage_mut(&mut self, uid: u32) -> &mut Usage {
        self.usage.entry(uid).or_default()
    }

    /// All frames under an outermost frame, by id.
    pub(crate) fn frames_of_session(&self, session: FrameId) -> impl Iterator<Item = &Frame> {
        let frames = self.sessions.get(&session).into_iter().flat_map(|session| &session.frames);
        frames.filter_map(|frame| self.frames.get(frame)).map(Box::as_ref)
    }

    /// The waiting requests of a session, by frame.
    pub(crate) fn waiters_of_session(&self, session: FrameId) -> impl Iterator<Item = RequestId> {
        self.frames_of_session(session).flat_map(|frame| frame.waiters.iter().copied())
    }

    pub(crate) fn frame_mut(&mut self, frame: FrameId) -> Result<&mut Frame> {
        let found = self.frames.get_mut(&frame).map(Box::as_mut);
        found.ok_or_else(|| format!("no frame {frame}"))
    }

    /// The frame and those that enclose it, innermost first.
    pub(crate) fn enclosing(&self, frame: FrameId) -> impl Iterator<Item = &Frame> {
        let get = |frame| self.frames.get(&frame).map(Box::as_ref);
        std::iter::successors(get(frame), move |frame| get(frame.state.parent?))
    }

    /// Updates the session after a hold or request of `frame` began or ended.
    pub(crate) fn count_in_session(&mut self, frame: FrameId, holds: isize, waiters: isize) {
        let root = self.session(frame);
        let session = self.sessions.entry(root).or_default();
        session.holds = session.holds.saturating_add_signed(holds);
        session.waiters = session.waiters.saturating_add_signed(waiters);
        if session.holds > 0 && session.waiters > 0 {
            self.hold_and_wait.insert(root);
        } else {
            self.hold_and_wait.remove(&root);
        }
    }
}

/// The name of an owner among those of all hosts. The owner of a lease does not depend on the host
/// that watches over it.
pub(crate) fn owner_key(host: HostId, owner: &Owner) -> (HostId, Owner) {
    let host = if matches!(owner, Owner::Lease(_)) { HostId::default() } else { host };
    (host, owner.clone())
}
