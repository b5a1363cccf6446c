//! Estimates how much longer each request that waits for a key usually waits.

use std::collections::BTreeMap;

use canal_core::{Key, Mode, RequestId, Table, WaiterStatus};
use canal_history::{Holder, Sample, Summary, Waiter, estimates};
use canal_protocol::EstimateInfo;

/// Waiters behind this many others get no estimate.
const WAITERS_MAX: usize = 100;

/// A key with more holders than this gets no estimates.
const HOLDERS_MAX: usize = 200;

/// The most holders and waiters examined for one report. Each takes about 10 µs.
pub(crate) const LOOKED_AT_MAX: usize = 1_000;

/// How much longer each request that waits for a key usually waits, if the history is sufficient.
/// `may_look_at`: how many holders and waiters the report may still examine.
pub(crate) fn of_key(
    table: &Table,
    key: &Key,
    summary: &Summary,
    now_ms: u64,
    may_look_at: &mut usize,
) -> BTreeMap<RequestId, EstimateInfo> {
    let Some((holders, waiters)) = queue(table, key, summary, now_ms) else {
        return BTreeMap::new();
    };
    let looked_at = holders.len() + waiters.len();
    let Some(left) = may_look_at.checked_sub(looked_at) else { return BTreeMap::new() };
    *may_look_at = left;
    let (requests, waiters): (Vec<(RequestId, bool)>, Vec<Waiter>) = waiters.into_iter().unzip();
    let found = requests.into_iter().zip(estimates(&holders, &waiters));
    let found = found.filter(|((_, is_alone), _)| *is_alone);
    found.filter_map(|((request, _), estimate)| Some((request, estimate?))).collect()
}

/// The holders of a key, and its waiters, each with its request and whether it waits for this key
/// alone.
type Queue = (Vec<Holder>, Vec<((RequestId, bool), Waiter)>);

/// The queue of a key in the order of service; `None` if no estimate is possible: a request reads
/// or writes the key, or there are too many holders.
fn queue(table: &Table, key: &Key, summary: &Summary, now_ms: u64) -> Option<Queue> {
    if table.settings(key).paused || table.waiting_for(key) == 0 {
        return None;
    }
    let tokens: Vec<_> = table.holders(key).take(HOLDERS_MAX + 1).collect();
    if tokens.len() > HOLDERS_MAX {
        return None;
    }
    // Many requests in a queue run the same command.
    let mut known: BTreeMap<String, Option<Sample>> = BTreeMap::new();
    let mut usual = |command: &str| {
        let usual = || summary.usual(key.as_str(), command);
        known.entry(command.to_owned()).or_insert_with(usual).clone()
    };
    let mut holders = Vec::new();
    for hold in tokens.into_iter().filter_map(|token| table.hold(token)) {
        let item = hold.items.iter().find(|item| item.key == *key)?;
        if item.mode != Mode::Counted {
            return None;
        }
        if !item.shared {
            holders.push(Holder {
                count: item.slots.count(),
                held_ms: now_ms.saturating_sub(hold.since.0),
                usual: usual(&hold.asked.command.0),
            });
        }
    }
    let served = table.served(key).into_iter().filter_map(|request| table.waiter(request));
    // A suspended request blocks no other request.
    let served = served.filter(|waiter| waiter.status != WaiterStatus::Suspended);
    let waiters = served.take(WAITERS_MAX).map(|waiter| {
        let asked = &waiter.request;
        let item = asked.items.iter().position(|item| item.key == *key)?;
        let (count, _) = asked.items.get(item)?.ask.counted()?;
        let (_, capacity) = table.use_for(asked, item)?;
        let is_alone = asked.items.len() == 1 && asked.over_nodes.is_none();
        let waiter_of_key = Waiter { count, capacity, usual: usual(&asked.command.0) };
        Some(((waiter.id, is_alone), waiter_of_key))
    });
    let waiters = waiters.collect::<Option<_>>()?;
    Some((holders, waiters))
}
