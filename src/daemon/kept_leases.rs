//! The leases as the state file keeps them: all that is left of a table after a reboot.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::core::{Key, Revision, Rules, Snapshot, StoredView, Table, Token};
use crate::log::state::Leases;

/// What is to be kept of the leases that have these tokens.
pub(super) fn keep(table: &Table, tokens: &BTreeSet<Token>) -> Leases {
    let mut leases = Leases::default();
    for hold in tokens.iter().filter_map(|token| table.hold(*token)) {
        leases.frames.extend(table.frame(hold.frame).cloned());
        let mut hold = hold.clone();
        // After a reboot nobody is left who could confirm it. Whether it was told cannot be known
        // then, so that it stays for its TTL.
        hold.provisional = false;
        Arc::make_mut(&mut hold.asked).provisional = false;
        leases.holds.push(hold);
    }
    leases.frames.sort_by_key(|frame| frame.id);
    let items = leases.holds.iter().flat_map(|hold| &hold.items);
    let keys: BTreeSet<&Key> =
        items.filter(|item| item.view.is_some()).map(|item| &item.key).collect();
    let own = |key: &Key| {
        let own = table.own_view(key).filter(|_| table.stored(key).is_none())?;
        Some(StoredView { key: key.clone(), view: own })
    };
    leases.in_use = keys.into_iter().filter_map(own).collect();
    leases
}

/// A table of nothing but leases: all that is left after a reboot, or without a journal.
pub(super) fn table_of(leases: &Leases, rules: Rules) -> anyhow::Result<Table> {
    let ids = leases.frames.iter().map(|frame| frame.id.0);
    let ids = ids.chain(leases.holds.iter().map(|hold| hold.request.0));
    let next_token = leases.holds.iter().map(|hold| Token(hold.token.0 + 1)).max();
    let fresh = Table::new(rules);
    let snapshot = Snapshot {
        // Nothing that is asked from now on has a name of theirs.
        revision: Revision(ids.max().unwrap_or(0)),
        next_token: next_token.unwrap_or(fresh.next_token()),
        frames: leases.frames.clone(),
        holds: leases.holds.clone(),
        in_use: leases.in_use.clone(),
        ..fresh.snapshot()
    };
    Ok(Table::restore(&snapshot, rules)?)
}

/// The tokens of a table's leases.
pub(super) fn lease_tokens(table: &Table) -> BTreeSet<Token> {
    let leases = table.holds().filter(|hold| hold.asked.ttl_ms.is_some());
    leases.map(|hold| hold.token).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::config::Config;
    use super::super::recover::{Recovered, recover};
    use super::*;
    use crate::core::{
        Ask, Change, Command, HostId, Item, LeaseId, Outcome, Owner, ProcessId, Request, Tag, View,
        Wait,
    };
    use crate::protocol::place::{Place, Rule, Stores};

    fn recovered(dir: &Path) -> Recovered {
        let place = Place {
            socket: dir.join("canal.sock"),
            dir: dir.to_owned(),
            rule: Rule::PerUser,
            stores: Stores { state_dir: dir.join("state"), config: Vec::new() }.into(),
        };
        let config = Config::read(&place.stores().config).unwrap();
        recover(&place, &config, Rules::Current, false).unwrap()
    }

    fn ask(recovered: &mut Recovered, tag: u128, owner: Owner, items: Vec<Item>) -> Token {
        let ttl_ms = matches!(owner, Owner::Lease(_)).then_some(60_000);
        let request = Request {
            tag: Tag(tag),
            host: HostId(0),
            owner,
            parent: None,
            uid: 0,
            command: Command("x".to_owned()),
            items,
            wait: Wait::No,
            priority: 0,
            provisional: true,
            children: false,
            ttl_ms,
            on_lost: Default::default(),
        };
        let applied = recovered.ledger.apply(Change::Request(request.into()));
        match &applied.outcomes[..] {
            [Outcome::Granted(granted)] => granted.token,
            other => panic!("{other:?}"),
        }
    }

    fn slot(key: &str, slots: u64) -> Item {
        let view = Some(View::Slots { slots });
        Item { key: Key::new(key).unwrap(), ask: Ask::Counted { count: 1, view } }
    }

    fn lease(name: u128) -> Owner {
        Owner::Lease(LeaseId(name))
    }

    /// Ends a daemon as a reboot does: what it wrote is of an earlier start of the machine.
    fn reboot(mut recovered: Recovered) {
        recovered.ledger.commit().unwrap();
        recovered.ledger.kept().unwrap().1.origin.boot_id = "of-an-earlier-start".to_owned();
        recovered.ledger.compact().unwrap();
    }

    #[test]
    fn after_a_reboot_leases_have_their_tokens_and_slots_and_processes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        let process = ProcessId { pid: std::process::id(), started: 1, inode: 0 };
        let write = Item { key: Key::new("w").unwrap(), ask: Ask::Write };
        ask(&mut first, 1, Owner::Process(process), vec![slot("gpu", 3)]);
        let one = ask(&mut first, 2, lease(2), vec![slot("gpu", 3), write]);
        let two = ask(&mut first, 3, lease(3), vec![slot("gpu", 3)]);
        first.ledger.apply(Change::Renew { lease: LeaseId(2), host: HostId(0) });
        let before = first.ledger.table.snapshot();
        reboot(first);

        let mut second = recovered(dir.path());
        let table = &second.ledger.table;
        let tokens: Vec<Token> = table.holds().map(|hold| hold.token).collect();
        assert_eq!(tokens, [one, two]);
        for hold in table.holds() {
            let old = before.holds.iter().find(|old| old.token == hold.token).unwrap();
            assert_eq!((&hold.items, hold.frame), (&old.items, old.frame));
            assert!(!hold.provisional, "nobody is left to confirm it");
        }
        assert_eq!(
            table.frame(table.lease(LeaseId(2)).unwrap()).unwrap().lease.unwrap().ttl_ms,
            60_000
        );
        assert_eq!(table.report(&Key::new("gpu").unwrap()).view, Some(View::Slots { slots: 3 }));
        // The slot that was the process's is free, the others are not.
        let next = ask(&mut second, 4, lease(4), vec![slot("gpu", 3)]);
        assert!(next > two);
        let slots = &second.ledger.table.hold(next).unwrap().items[0].slots;
        assert_eq!(slots.iter().collect::<Vec<_>>(), [0]);
        assert!(second.ledger.table.hold(next).unwrap().request.0 > before.revision.0 - 1);
        // And once more, with what came since.
        reboot(second);
        let third = recovered(dir.path());
        assert_eq!(lease_tokens(&third.ledger.table), BTreeSet::from([one, two, next]));
    }

    #[test]
    fn a_lease_that_ended_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        let token = ask(&mut first, 1, lease(1), vec![slot("a", 1)]);
        first.ledger.keep_leases().unwrap();
        let frame = first.ledger.table.hold(token).unwrap().frame;
        first.ledger.apply(Change::Expire { frame, renewal: 0 });
        reboot(first);
        assert_eq!(recovered(dir.path()).ledger.table.held(), 0);
    }

    #[test]
    fn within_a_boot_the_journal_goes_before_the_state_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        let kept = ask(&mut first, 1, lease(1), vec![slot("a", 1)]);
        let untold = ask(&mut first, 2, lease(2), vec![slot("b", 1)]);
        first.ledger.keep_leases().unwrap();
        // The daemon dies before the second one is in the journal.
        let turn = &mut first.ledger.kept().unwrap().1.turn;
        turn.truncate(turn.len() - 1);
        first.ledger.commit().unwrap();
        drop(first);
        let mut second = recovered(dir.path());
        assert!(second.ledger.table.hold(kept).is_some());
        assert!(second.ledger.table.hold(untold).is_none());
        // And the state file follows.
        let stored =
            second.ledger.kept().unwrap().1.durable.leases.holds.iter().map(|hold| hold.token);
        assert_eq!(stored.collect::<Vec<_>>(), [kept]);
    }

    #[test]
    fn leases_that_contradict_each_other_are_no_table() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = recovered(dir.path());
        let token = ask(&mut first, 1, lease(1), vec![slot("a", 1)]);
        let mut leases = keep(&first.ledger.table, &BTreeSet::from([token]));
        assert!(table_of(&leases, Rules::Current).is_ok());
        leases.holds.push(leases.holds[0].clone());
        assert!(table_of(&leases, Rules::Current).is_err());
    }
}
