//! The lock table.

use super::{
    Entry, FrameId, FrameState, HoldState, HostId, Key, KeyReport, Outcome, Owner, RequestId,
    Revision, Rules, Snapshot, Tag, Token, WaiterState, Why,
};

/// The lock table: a function of the entries applied to it.
#[derive(Clone, Debug)]
pub struct Table {}

/// A recorded entry cannot have had the recorded outcomes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the outcomes recorded at revision {revision} do not fit the table: {what}")]
pub struct Diverged {
    /// Where in the log.
    pub revision: Revision,
    /// What does not fit.
    pub what: String,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        let _ = rules;
        todo!()
    }

    /// The table that a snapshot describes.
    pub fn restore(snapshot: &Snapshot, rules: Rules) -> Result<Self, Diverged> {
        let _ = (snapshot, rules);
        todo!()
    }

    /// The table as plain data.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        todo!()
    }

    /// Applies the next entry; what is decided is appended to `outcomes`.
    ///
    /// # Panics
    /// If `revision` is not the next one: the log has a gap.
    pub fn apply(&mut self, revision: Revision, entry: &Entry, outcomes: &mut Vec<Outcome>) {
        let _ = (revision, entry, outcomes);
        todo!()
    }

    /// Applies an entry whose outcomes are known, without deciding anything: for logs that were
    /// written under other rules.
    pub fn replay(
        &mut self,
        revision: Revision,
        entry: &Entry,
        outcomes: &[Outcome],
    ) -> Result<(), Diverged> {
        let _ = (revision, entry, outcomes);
        todo!()
    }

    /// The revision of the last entry applied.
    #[must_use]
    pub fn revision(&self) -> Revision {
        todo!()
    }

    /// The token that the next grant gets.
    #[must_use]
    pub fn next_token(&self) -> Token {
        todo!()
    }

    /// The waiting or holding request of this tag.
    #[must_use]
    pub fn tagged(&self, tag: Tag) -> Option<RequestId> {
        let _ = tag;
        todo!()
    }

    /// A waiting request.
    #[must_use]
    pub fn waiter(&self, request: RequestId) -> Option<&WaiterState> {
        let _ = request;
        todo!()
    }

    /// The hold that a request was granted.
    #[must_use]
    pub fn hold_of(&self, request: RequestId) -> Option<&HoldState> {
        let _ = request;
        todo!()
    }

    /// A hold.
    #[must_use]
    pub fn hold(&self, token: Token) -> Option<&HoldState> {
        let _ = token;
        todo!()
    }

    /// The frame of an owner.
    #[must_use]
    pub fn frame_of(&self, host: HostId, owner: &Owner) -> Option<FrameId> {
        let _ = (host, owner);
        todo!()
    }

    /// A frame.
    #[must_use]
    pub fn frame(&self, frame: FrameId) -> Option<&FrameState> {
        let _ = frame;
        todo!()
    }

    /// The outermost frame around a frame: its session.
    #[must_use]
    pub fn session(&self, frame: FrameId) -> FrameId {
        let _ = frame;
        todo!()
    }

    /// All frames, by id.
    pub fn frames(&self) -> impl Iterator<Item = &FrameState> {
        std::iter::empty()
    }

    /// A frame's holds, oldest first.
    pub fn holds_in(&self, frame: FrameId) -> impl Iterator<Item = &HoldState> {
        let _ = frame;
        std::iter::empty()
    }

    /// A frame's waiting requests, oldest first.
    pub fn waiters_in(&self, frame: FrameId) -> impl Iterator<Item = &WaiterState> {
        let _ = frame;
        std::iter::empty()
    }

    /// All holds, by token.
    pub fn holds(&self) -> impl Iterator<Item = &HoldState> {
        std::iter::empty()
    }

    /// All waiting requests, by id.
    pub fn waiters(&self) -> impl Iterator<Item = &WaiterState> {
        std::iter::empty()
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        todo!()
    }

    /// How many holds there are.
    #[must_use]
    pub fn held(&self) -> usize {
        todo!()
    }

    /// The keys in use or with a stored view that `prefix` covers (all without one), in order.
    pub fn keys(&self, prefix: Option<&Key>) -> impl Iterator<Item = &Key> {
        let _ = prefix;
        std::iter::empty()
    }

    /// What is known of a key.
    #[must_use]
    pub fn report(&self, key: &Key) -> KeyReport {
        let _ = key;
        todo!()
    }

    /// What keeps a waiting request from being granted.
    #[must_use]
    pub fn why(&self, request: RequestId) -> Option<Why> {
        let _ = request;
        todo!()
    }

    /// A waiter's place in the queue of an item's key: 1 is the next to be served. Linear in the
    /// length of the queue.
    #[must_use]
    pub fn position(&self, request: RequestId, item: usize) -> Option<usize> {
        let _ = (request, item);
        todo!()
    }
}
