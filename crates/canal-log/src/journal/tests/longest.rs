//! The longest values of each kind in a journal, except keys, commands and slots.

use canal_core::{
    Ask, Command, FrameId, FrameState, Granted, GrantedItem, HeldItem, HoldState, HostId, Item,
    Key, LeaseState, Mode, OnLost, Outcome, Owner, ProcessId, Refusal, Request, RequestId, Slots,
    Tag, Token, UnixMillis, View, Wait, WaiterState, WaiterStatus,
};

pub(in crate::journal) const ID: RequestId = RequestId(u64::MAX);
pub(in crate::journal) const FRAME: FrameId = FrameId(u64::MAX);
pub(in crate::journal) const TOKEN: Token = Token(u64::MAX);
pub(in crate::journal) const NOW: UnixMillis = UnixMillis(u64::MAX);
pub(in crate::journal) const VIEW: View = View::Buckets { per: u64::MAX, buckets: u64::MAX };
pub(in crate::journal) const PROCESS: ProcessId =
    ProcessId { pid: u32::MAX, started: u64::MAX, inode: u64::MAX };
pub(in crate::journal) const OWNER: Owner = Owner::Process(PROCESS);

pub(in crate::journal) fn key() -> Key {
    Key::new("k").expect("`k` is a key")
}

pub(in crate::journal) fn item() -> Item {
    Item {
        key: key(),
        ask: Ask::Counted { count: u64::MAX, view: None, given: Some(VIEW), spread: true },
    }
}

pub(in crate::journal) fn request(items: Vec<Item>) -> Request {
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

pub(in crate::journal) fn queued() -> Outcome {
    Outcome::Queued { request: ID, frame: FRAME }
}

pub(in crate::journal) fn barrier() -> Outcome {
    Outcome::Barrier { request: ID }
}

pub(in crate::journal) fn refused() -> Outcome {
    Outcome::Refused {
        request: ID,
        why: Refusal::TooLarge { item: usize::MAX, capacity: u64::MAX },
    }
}

pub(in crate::journal) fn requeued() -> Outcome {
    Outcome::Requeued { request: ID, token: TOKEN }
}

pub(in crate::journal) fn granted(items: Vec<GrantedItem>) -> Outcome {
    Outcome::Granted(Granted {
        request: ID,
        frame: FRAME,
        token: TOKEN,
        items,
        bypassed_blockers: true,
    })
}

pub(in crate::journal) fn granted_item() -> GrantedItem {
    GrantedItem { acquired: u64::MAX, slots: Slots::default(), shared: true, view: Some(VIEW) }
}

/// The outcomes of an end of any kind.
pub(in crate::journal) fn gone() -> Vec<Outcome> {
    let (token, frame, request) = (TOKEN, FRAME, ID);
    vec![
        Outcome::Withdrawn { request },
        Outcome::Released { token, frame, request, keys: Vec::new(), whole: false },
        Outcome::FrameGone { frame },
    ]
}

pub(in crate::journal) fn frame() -> FrameState {
    let (id, host, parent) = (FRAME, HostId(u64::MAX), Some(FRAME));
    let lease = LeaseState { ttl_ms: u64::MAX, renewals: u64::MAX, renewed: Some(NOW) };
    FrameState { id, host, owner: OWNER, parent, uid: u32::MAX, ended: false, lease: Some(lease) }
}

pub(in crate::journal) fn hold() -> HoldState {
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

pub(in crate::journal) fn held_item() -> HeldItem {
    HeldItem {
        key: key(),
        mode: Mode::Counted,
        slots: Slots::default(),
        shared: false,
        view: Some(VIEW),
        stated: Some(VIEW),
    }
}

pub(in crate::journal) fn waiter() -> WaiterState {
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
