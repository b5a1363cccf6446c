//! Random actions on a journal, against a model: a snapshot and a list of records.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::*;
use crate::sim::disk_faults as fault;

#[derive(Clone, Debug)]
enum Doing {
    /// Appends this many records, each with this many outcomes.
    Append(u64, usize),
    Admit(u64),
    Compact,
    Recreate,
    Reopen,
    /// The next action fails after this many bytes and steps, and the program continues.
    Fail(u64),
    /// The next action is killed there, and the journal is opened again.
    Kill(u64),
    /// Allocation fails from now on, or works again.
    Disk(bool),
}

fn doing() -> impl Strategy<Value = Doing> {
    let budget = prop_oneof![1..40_u64, 1..3000_u64, 1..30_000_u64];
    prop_oneof![
        6 => (0..6_u64, 0..12_usize).prop_map(|(count, size)| Doing::Append(count, size)),
        1 => (0..30_000_u64).prop_map(Doing::Admit),
        2 => Just(Doing::Compact),
        1 => Just(Doing::Recreate),
        1 => Just(Doing::Reopen),
        1 => budget.clone().prop_map(Doing::Fail),
        2 => budget.prop_map(Doing::Kill),
        1 => any::<bool>().prop_map(Doing::Disk),
    ]
}

/// A journal, and its expected content.
struct World {
    dir: TempDir,
    journal: Journal,
    first: u64,
    records: Vec<Record>,
}

impl World {
    fn last(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    fn check(&self) -> TestCaseResult {
        let opened = open(copy(self.dir.path()).path());
        prop_assert_eq!(opened.snapshot, Some(snapshot(self.first)));
        prop_assert_eq!(&opened.records, &self.records);
        prop_assert_eq!(opened.torn_bytes, 0);
        Ok(())
    }

    /// Performs an action; with a budget, it may be stopped in the middle.
    fn act(&mut self, doing: &Doing, budget: Option<u64>) -> io::Result<()> {
        let (last, batch) = (self.last(), self.batch(doing));
        let (dir, journal) = (self.dir.path(), &mut self.journal);
        let mut work = || match doing {
            Doing::Append(..) => journal.append_all(&batch),
            Doing::Admit(reserve) => journal.admit(0, *reserve).map_err(|no_room| no_room.error),
            Doing::Compact => journal.compact(&snapshot(last), &origin(), 5, 500),
            Doing::Recreate => {
                remove_other(journal, dir);
                journal.compact(&snapshot(last), &origin(), 5, 500)
            }
            _ => Ok(()),
        };
        match budget {
            Some(budget) => fault::after(budget, work).0,
            None => work(),
        }
    }

    fn batch(&self, doing: &Doing) -> Vec<Record> {
        let Doing::Append(count, size) = doing else { return Vec::new() };
        let last = self.last();
        let record = |revision| Record { outcomes: vec![granted(last); *size], ..record(revision) };
        (last + 1..=last + count).map(record).collect()
    }

    /// Updates the model for an action that succeeded.
    fn advance(&mut self, doing: &Doing) {
        let (last, batch) = (self.last(), self.batch(doing));
        self.records.extend(batch);
        if matches!(doing, Doing::Compact | Doing::Recreate) {
            (self.first, self.records) = (last, Vec::new());
        }
    }

    /// Opens the journal after a kill: it has the earlier content, and any prefix of the new.
    fn revive(&mut self, doing: &Doing) -> TestCaseResult {
        let opened = open(self.dir.path());
        self.journal = opened.journal;
        let came = match doing {
            Doing::Append(..) => opened.records.len() > self.records.len(),
            _ => opened.snapshot != Some(snapshot(self.first)),
        };
        if came {
            self.advance(doing);
        }
        prop_assert!(self.records.starts_with(&opened.records));
        self.records.truncate(opened.records.len());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_journal_is_a_snapshot_and_a_list(doings in prop::collection::vec(doing(), 1..40)) {
        let (dir, journal) = begun();
        let mut world = World { dir, journal, first: 0, records: Vec::new() };
        let mut doings = doings.iter();
        fault::disk(None);
        while let Some(doing) = doings.next() {
            match doing {
                Doing::Disk(full) => fault::disk(full.then_some(SIZE)),
                Doing::Reopen => world.journal = open(world.dir.path()).journal,
                Doing::Fail(budget) => {
                    let Some(next) = doings.next() else { break };
                    // Repeats a failed action, as the daemon does.
                    if world.act(next, Some(*budget)).or_else(|_| world.act(next, None)).is_ok() {
                        world.advance(next);
                    }
                }
                Doing::Kill(budget) => {
                    let Some(next) = doings.next() else { break };
                    let before = world.records.len();
                    let done = world.act(next, Some(*budget));
                    if done.is_ok() {
                        world.advance(next);
                        world.journal = open(world.dir.path()).journal;
                    } else {
                        world.revive(next)?;
                        prop_assert!(!matches!(next, Doing::Append(..)) || world.records.len() >= before);
                    }
                }
                doing => {
                    if world.act(doing, None).is_ok() {
                        world.advance(doing);
                    }
                }
            }
            world.check()?;
        }
        fault::disk(None);
    }
}
