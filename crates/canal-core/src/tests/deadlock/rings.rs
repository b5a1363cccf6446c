//! Rings of sessions that wait for each other: each ring resolves with the youngest session as the
//! only victim, whichever session closes it.

use crate::tests::world::{Wish, World, apply_unchecked, by, grants};
use crate::*;

/// The kind of conflict between a session's hold and its predecessor's request.
#[derive(Clone, Copy, Debug)]
enum RingKind {
    WriteWrite,
    ReadWrite,
    WriteBelow,
    WriteAbove,
    Counted,
    WriteCounted,
}

const KINDS: [RingKind; 6] = [
    RingKind::WriteWrite,
    RingKind::ReadWrite,
    RingKind::WriteBelow,
    RingKind::WriteAbove,
    RingKind::Counted,
    RingKind::WriteCounted,
];

impl RingKind {
    /// Process `pid` takes its own lock.
    fn own(self, pid: usize) -> Wish {
        let (wish, name) = (by(u32::try_from(pid).unwrap()), format!("o{pid}"));
        match self {
            Self::WriteWrite | Self::WriteBelow | Self::WriteCounted => wish.write(&name),
            Self::ReadWrite => wish.read(&name),
            Self::WriteAbove => wish.write(&format!("{name}/x/y")),
            Self::Counted => wish.slots(&name, 1),
        }
    }

    /// Process `pid` asks for the lock of process `whose`.
    fn ask(self, pid: usize, whose: usize) -> Wish {
        let wish = by(u32::try_from(pid).unwrap());
        let name = self.key(whose);
        match self {
            Self::Counted | Self::WriteCounted => wish.bare(&name),
            _ => wish.write(&name),
        }
    }

    fn key(self, whose: usize) -> String {
        match self {
            Self::WriteBelow => format!("o{whose}/x/y"),
            _ => format!("o{whose}"),
        }
    }
}

/// A table to which entries are applied.
trait Apply {
    fn apply(&mut self, change: Change) -> Vec<Outcome>;
    fn table(&self) -> &Table;
}

impl Apply for World {
    fn apply(&mut self, change: Change) -> Vec<Outcome> {
        self.apply(change)
    }

    fn table(&self) -> &Table {
        &self.table
    }
}

impl Apply for Table {
    fn apply(&mut self, change: Change) -> Vec<Outcome> {
        apply_unchecked(self, change)
    }

    fn table(&self) -> &Table {
        self
    }
}

/// All orders of `0..n`, in lexical order.
fn orders(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..n {
        let longer = |order: Vec<usize>| {
            let missing = (0..n).filter(|at| !order.contains(at)).collect::<Vec<_>>();
            missing.into_iter().map(move |at| [order.as_slice(), &[at]].concat())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

/// Session `ring[i]` waits for the hold of `ring[i + 1]`, and the last for the hold of the first.
/// They ask in the order `asking`, given as places in the ring. Sessions are numbered by age; 1 is
/// the oldest.
fn resolves(world: &mut impl Apply, kind: RingKind, ring: &[usize], asking: &[usize]) {
    let n = ring.len();
    let mut tags = 0u128;
    let mut tag = || {
        tags += 1;
        Tag(tags)
    };
    let frames: Vec<FrameId> = (1..=n)
        .map(|pid| {
            world.apply(kind.own(pid).change(tag()));
            FrameId(world.table().revision().0)
        })
        .collect();
    let mut requests = vec![RequestId(0); n];
    let mut cycles = Vec::new();
    for (nth, at) in asking.iter().enumerate() {
        let wish = kind.ask(ring[*at], ring[(at + 1) % n]);
        let outcomes = world.apply(wish.change(tag()));
        requests[*at] = RequestId(world.table().revision().0);
        assert_eq!(grants(&outcomes), [], "{ring:?} {asking:?}");
        cycles.extend(outcomes.into_iter().filter_map(|outcome| match outcome {
            Outcome::Refused { request, why: Refusal::Deadlock { cycle } } => {
                assert_eq!(nth, n - 1, "{ring:?} {asking:?}: before the ring was closed");
                Some((request, cycle))
            }
            Outcome::Refused { why, .. } => panic!("{ring:?} {asking:?}: {why:?}"),
            _ => None,
        }));
    }
    let [(victim, cycle)] = cycles.as_slice() else {
        panic!("{kind:?} {ring:?} {asking:?}: {} victims", cycles.len())
    };
    let youngest = ring.iter().position(|pid| *pid == n).unwrap();
    assert_eq!(*victim, requests[youngest], "{ring:?} {asking:?}");
    assert_eq!(cycle.len(), n, "{ring:?} {asking:?}: {cycle:?}");
    for (step, offset) in cycle.iter().zip(0..) {
        let at = (youngest + offset) % n;
        let next = ring[(at + 1) % n];
        let (asked, frame) = (requests[at], frames[ring[at] - 1]);
        assert_eq!((step.request, step.frame, step.item), (asked, frame, 0), "{cycle:?}");
        assert_eq!(step.key.as_str(), kind.key(next), "{ring:?} {asking:?}");
        assert!(
            matches!(step.by, By::Hold(_, holder) if holder == frames[next - 1]),
            "{ring:?} {asking:?}: {cycle:?}"
        );
    }
    // The victim ends, then the session that waited for it, and so on, against the direction of the
    // waits.
    for back in 0..n {
        let at = (youngest + n - back) % n;
        let outcomes = world.apply(Change::End { frame: frames[ring[at] - 1] });
        let before = requests[(at + n - 1) % n];
        let next: &[RequestId] = if back + 1 < n { &[before] } else { &[] };
        assert_eq!(grants(&outcomes), next, "{ring:?} {asking:?}");
    }
    assert_eq!(world.table().frames().count(), 0);
}

/// Every ring of `n` sessions, with each arrangement of their ages, each with every `skip`th of the
/// orders in which they can ask. Returns the number of rings.
fn every_ring<W: Apply>(n: usize, skip: usize, new: fn() -> W, kinds: &[RingKind]) -> usize {
    let asking = orders(n);
    let mut count = 0;
    for (nth, rest) in orders(n - 1).into_iter().enumerate() {
        // A ring has no beginning, so the oldest session comes first.
        let ring: Vec<usize> = std::iter::once(1).chain(rest.iter().map(|at| at + 2)).collect();
        // Each ring uses different orders from the previous ring, far from those.
        for asking in asking.iter().skip(nth * 1_009 % skip).step_by(skip) {
            resolves(&mut new(), kinds[count % kinds.len()], &ring, asking);
            count += 1;
        }
    }
    println!("{count} rings of {n}");
    count
}

fn table() -> Table {
    Table::default()
}

#[test]
fn small_cycles_of_every_kind_resolve_step_by_step() {
    for kind in KINDS {
        assert_eq!(every_ring(2, 1, World::new, &[kind]), 2);
        assert_eq!(every_ring(3, 1, World::new, &[kind]), 12);
    }
}

#[test]
fn every_cycle_of_4_resolves_in_every_order_of_requests() {
    assert_eq!(every_ring(4, 1, table, &KINDS), 6 * 24);
    assert_eq!(every_ring(4, 1, World::new, &[RingKind::WriteWrite]), 6 * 24);
}

#[test]
fn every_cycle_of_5_resolves_in_every_order_of_requests() {
    assert_eq!(every_ring(5, 1, table, &[RingKind::WriteWrite]), 24 * 120);
}

#[test]
fn every_cycle_of_6_resolves() {
    assert_eq!(every_ring(6, 90, table, &KINDS), 120 * 8);
}

#[test]
fn every_cycle_of_7_resolves() {
    assert_eq!(every_ring(7, 5040, table, &KINDS), 720);
}
