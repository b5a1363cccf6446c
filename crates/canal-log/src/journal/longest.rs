//! The longest values of each kind in a journal, except keys, commands and slots.

use canal_core::{
    Ask, Command, FrameId, FrameState, Granted, GrantedItem, HeldItem, HoldState, HostId, Item,
    Key, LeaseState, Mode, OnLost, Outcome, Owner, ProcessId, Refusal, Request, RequestId, Slots,
    Tag, Token, UnixMillis, View, Wait, WaiterState, WaiterStatus,
};

pub(super) const ID: RequestId = RequestId(u64::MAX);
pub(super) const FRAME: FrameId = FrameId(u64::MAX);
pub(super) const TOKEN: Token = Token(u64::MAX);
pub(super) const NOW: UnixMillis = UnixMillis(u64::MAX);
pub(super) const VIEW: View = View::Buckets { per: u64::MAX, buckets: u64::MAX };
pub(super) const PROCESS: ProcessId =
    ProcessId { pid: u32::MAX, started: u64::MAX, inode: u64::MAX };
pub(super) const OWNER: Owner = Owner::Process(PROCESS);

pub(super) fn key() -> Key {
    Key::new("k").expect("`k` is a key")
}

pub(super) fn item() -> Item {
    Item {
        key: key(),
        ask: Ask::Counted { count: u64::MAX, view: None, given: Some(VIEW), spread: true },
    }
}

pub(super) fn request(items: Vec<Item>) -> Request {
    Request {
        tag: Tag(u128::MAX),
        host: HostId(u64::MAX),
        owner: OWNER,
        parent: Some(FRAME),
        uid: u32::MAX,
        command: Command::default(),
        note: None,
        items,
        wait: Wait::Yes { until: Some(u64::MAX) },
        priority: i32::MIN,
        max_waiting: Some(u64::MAX),
        supersede: None,
        max_run_ms: Some(u64::MAX),
        provisional: false,
        children: false,
        ttl_ms: Some(u64::MAX),
        on_lost: OnLost::Term,
        asker: Some(PROCESS),
        over_nodes: None,
        above: None,
    }
}

pub(super) fn queued() -> Outcome {
    Outcome::Queued { request: ID, frame: FRAME }
}

pub(super) fn barrier() -> Outcome {
    Outcome::Barrier { request: ID }
}

pub(super) fn refused() -> Outcome {
    Outcome::Refused {
        request: ID,
        why: Refusal::TooLarge { item: usize::MAX, capacity: u64::MAX },
    }
}

pub(super) fn requeued() -> Outcome {
    Outcome::Requeued { request: ID, token: TOKEN }
}

pub(super) fn granted(items: Vec<GrantedItem>) -> Outcome {
    Outcome::Granted(Granted {
        request: ID,
        frame: FRAME,
        token: TOKEN,
        items,
        bypassed_blockers: true,
    })
}

pub(super) fn granted_item() -> GrantedItem {
    GrantedItem { acquired: u64::MAX, slots: Slots::default(), shared: true, view: Some(VIEW) }
}

/// The outcomes of an end of any kind.
pub(super) fn gone() -> Vec<Outcome> {
    let (token, frame, request) = (TOKEN, FRAME, ID);
    vec![
        Outcome::Withdrawn { request },
        Outcome::Released { token, frame, request, keys: Vec::new(), whole: false },
        Outcome::FrameGone { frame },
    ]
}

pub(super) fn frame() -> FrameState {
    let (id, host, parent) = (FRAME, HostId(u64::MAX), Some(FRAME));
    let lease = LeaseState { ttl_ms: u64::MAX, renewals: u64::MAX, renewed: Some(NOW) };
    FrameState { id, host, owner: OWNER, parent, uid: u32::MAX, ended: false, lease: Some(lease) }
}

pub(super) fn hold() -> HoldState {
    HoldState {
        token: TOKEN,
        request: ID,
        asked: request(Vec::new()).into(),
        frame: FRAME,
        since: NOW,
        asked_at: NOW,
        provisional: false,
        orphaned: false,
        passed: u32::MAX,
        items: Vec::new(),
    }
}

pub(super) fn held_item() -> HeldItem {
    HeldItem {
        key: key(),
        mode: Mode::Counted,
        slots: Slots::default(),
        shared: false,
        view: Some(VIEW),
        stated: Some(VIEW),
    }
}

pub(super) fn waiter() -> WaiterState {
    WaiterState {
        id: ID,
        request: request(Vec::new()).into(),
        frame: FRAME,
        since: NOW,
        status: WaiterStatus::Suspended,
        barrier: false,
        passed: u32::MAX,
        size_unchecked: true,
    }
}
