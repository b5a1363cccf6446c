//! Random lives of requests in a real table: the records about them fit into their room.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use canal_core::{Release, Table};

/// The possible next steps; the numbers choose among the candidates.
#[derive(Clone, Debug)]
enum Step {
    Ask { owner: u64, items: Vec<(u8, u64)>, canal: bool, provisional: bool },
    Suspend(usize),
    Resume(usize),
    Confirm(usize),
    Release(usize),
    Force(usize),
    Withdraw(usize),
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let items = prop::collection::vec((0..3_u8, 1..4_u64), 1..3);
    let ask = (0..6_u64, items, any::<bool>(), any::<bool>()).prop_map(
        |(owner, items, canal, provisional)| Step::Ask { owner, items, canal, provisional },
    );
    let which = any::<usize>();
    prop_oneof![
        6 => ask,
        2 => which.prop_map(Step::Suspend),
        2 => which.prop_map(Step::Resume),
        1 => which.prop_map(Step::Confirm),
        2 => which.prop_map(Step::Release),
        1 => which.prop_map(Step::Force),
        1 => which.prop_map(Step::Withdraw),
        1 => which.prop_map(Step::End),
    ]
}

fn ask(n: u64, owner: u64, items: &[(u8, u64)], canal: bool, provisional: bool) -> Request {
    let view = |count| match canal {
        true => View::Buckets { per: count, buckets: 2 },
        false => View::Slots { slots: 3 },
    };
    let mut wanted = BTreeMap::new();
    for (key, count) in items {
        // Each kind has separate keys.
        let key = Key::new(&format!("{}{canal}", "k".repeat(*key as usize * 100 + 1))).unwrap();
        wanted.insert(key, Ask::slots(*count, Some(view(*count))));
    }
    let owner = Owner::Process(ProcessId { pid: 10, started: owner, inode: 0 });
    let items = wanted.into_iter().map(|(key, ask)| Item { key, ask }).collect();
    Request { owner, items, provisional, ..asked(n) }
}

/// The change that a step makes in this table, if any.
fn change(table: &Table, step: &Step, moves: &mut BTreeMap<RequestId, u32>) -> Option<Change> {
    let waiting: Vec<_> = table.waiters().map(|waiter| waiter.id).collect();
    let held: Vec<_> = table.holds().cloned().collect();
    let pick = |which: &usize| held.get(which % held.len().max(1));
    let any_of = |which: &usize| {
        let all: Vec<_> = waiting.iter().copied().chain(held.iter().map(|h| h.request)).collect();
        all.get(which % all.len().max(1)).copied()
    };
    Some(match step {
        Step::Ask { owner, items, canal, provisional } => {
            let n = table.revision().0;
            Change::Request(Arc::new(ask(n, *owner, items, *canal, *provisional)))
        }
        Step::Suspend(which) => {
            let request = any_of(which)?;
            let before = moves.entry(request).or_default();
            *before += 1;
            // More moves could exceed the room.
            if *before > 3 {
                return None;
            }
            Change::Suspend { request }
        }
        Step::Resume(which) => {
            let suspended =
                table.waiters().filter(|w| w.status != canal_core::WaiterStatus::Active);
            let suspended: Vec<_> = suspended.map(|waiter| waiter.id).collect();
            Change::Resume { request: *suspended.get(which % suspended.len().max(1))? }
        }
        Step::Confirm(which) => {
            let hold = pick(which).filter(|hold| hold.provisional)?;
            Change::Confirm { request: hold.request }
        }
        Step::Release(which) => {
            let hold = pick(which)?;
            let key = hold.items[which % hold.items.len()].key.clone();
            Change::Release(Release::Latest { frame: hold.frame, key })
        }
        Step::Force(which) => {
            Change::Release(Release::Hold { token: pick(which)?.token, forced: true })
        }
        Step::Withdraw(which) => Change::Withdraw { request: any_of(which)? },
        Step::End(which) => {
            let frames: Vec<_> = table.frames().map(|frame| frame.id).collect();
            Change::End { frame: *frames.get(which % frames.len().max(1))? }
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn records_of_requests_fit_the_room_reserved_for_them(
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let mut table = Table::default();
        let (mut room, mut moves) = (0, BTreeMap::new());
        let mut bytes = Vec::new();
        format::encode(&mut bytes, &table.snapshot()).unwrap();
        let empty = bytes.len() as u64;
        let mut written = 0;
        for step in &steps {
            let Some(change) = change(&table, step, &mut moves) else { continue };
            if let Change::Request(request) = &change {
                room += room_for(request);
            }
            let entry = Entry { version: 1, at: UnixMillis(u64::MAX), change };
            let revision = Revision(table.revision().0 + 1);
            let mut outcomes = Vec::new();
            table.apply(revision, &entry, &mut outcomes);
            bytes.clear();
            format::encode(&mut bytes, &Record { revision, entry, outcomes }).unwrap();
            written += bytes.len() as u64;
            bytes.clear();
            format::encode(&mut bytes, &table.snapshot()).unwrap();
            let now = written + bytes.len() as u64;
            // The numbers of an empty snapshot may grow longer.
            prop_assert!(now <= room + empty + 60, "{} bytes, room for {}", now, room);
        }
    }
}
