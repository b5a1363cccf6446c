//! The settings of keys and the policy after a restart.

use std::collections::BTreeSet;

use crate::tests::World;
use canal_core::{BYPASS_MAX_DEFAULT, Change, Key, Setting, View};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

impl World {
    fn starting(config: &str) -> Self {
        Self::new().again_with(config)
    }

    /// The next daemon after a boot, which empties /tmp.
    fn rebooted(self) -> Self {
        for name in ["journal.0", "journal.1"] {
            std::fs::remove_file(self.place.dir.join(name)).unwrap();
        }
        self.again()
    }

    /// Stores a setting by hand.
    fn store(&mut self, name: &str, setting: Setting) {
        let ledger = self.server.decide.ledger_mut();
        ledger.change_durable(|it| it.set(&key(name), &setting)).unwrap();
    }

    /// Changes a setting in the table only.
    fn set(&mut self, name: &str, setting: Setting) {
        let ledger = self.server.decide.ledger_mut();
        ledger.apply(Change::Set { key: key(name), setting });
        ledger.commit().unwrap();
    }

    fn views(&self) -> Vec<String> {
        let stored = self.server.decide.table().stored_settings();
        stored.map(|(key, settings)| format!("{key}={}", settings.view.unwrap())).collect()
    }
}

#[test]
fn views_follow_the_configuration_but_for_those_set_by_hand() {
    let mut first = World::starting("[keys.a]\nslots = 1\n[keys.b]\nslots = 2\n");
    assert_eq!(first.views(), ["a=1", "b=2"]);
    let setting = Setting::View(Some(View::Slots { slots: 7 }));
    first.store("b", setting.clone());
    first.set("b", setting);

    let second = first.again_with("[keys.b]\nslots = 3\n[keys.c]\nper = 2\nbuckets = 2\n");
    assert_eq!(second.views(), ["b=7", "c=2x2"], "a is gone, b was set by hand");
    assert_eq!(second.rebooted().views(), ["b=7"]);
}

#[test]
fn what_is_out_of_service_survives_a_restart_and_the_loss_of_the_journal() {
    let mut first = World::new();
    for (name, numbers, out) in
        [("a", vec![1, 2], true), ("b", vec![3], true), ("b", vec![3], false)]
    {
        first.store(name, Setting::Service { numbers, out });
    }
    // A table that differs from the state file follows it.
    for (name, numbers) in [("a", vec![2, 7]), ("c", vec![4])] {
        first.set(name, Setting::Service { numbers, out: true });
    }
    let without = |world: &World| {
        let table = world.server.decide.table();
        ["a", "b", "c"].map(|name| table.settings(&key(name)).without.0.clone())
    };
    let expected = [[1, 2].into(), BTreeSet::new(), BTreeSet::new()];
    let second = first.again();
    assert_eq!(without(&second), expected);
    assert_eq!(without(&second.rebooted()), expected);
}

#[test]
fn a_pause_survives_a_restart_and_the_loss_of_the_journal() {
    let mut first = World::new();
    for (name, paused) in [("a", true), ("b", true), ("b", false), ("c", true)] {
        first.store(name, Setting::Paused(paused));
        first.set(name, Setting::Paused(paused));
    }
    let paused = |world: &World| {
        let stored = world.server.decide.table().stored_settings();
        let paused = stored.filter(|(_, settings)| settings.paused);
        paused.map(|(key, _)| key.clone()).collect::<Vec<_>>()
    };
    let second = first.again();
    assert_eq!(paused(&second), ["a", "c"].map(key));
    assert_eq!(paused(&second.rebooted()), ["a", "c"].map(key));
}

#[test]
fn the_policy_follows_the_configuration() {
    let bypass_max = |world: &World| world.server.decide.table().globals().bypass_max;
    let first = World::starting("[policy]\nbypass_max = 3\n");
    assert_eq!(bypass_max(&first), 3);
    assert_eq!(bypass_max(&first.again()), BYPASS_MAX_DEFAULT);
}
