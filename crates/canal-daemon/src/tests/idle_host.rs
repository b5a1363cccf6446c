//! A daemon whose engine announces no batches to it.

use crate::membership::Settings;
use crate::tests::recovering::{Fake, folder};
use crate::tests::{World, granted, mutex};
use canal_log::sim::engine::Flavour;
use canal_sys::rerun::wait_until;

impl World {
    /// How many reads for clients have ended, and whether one is pending.
    fn reads(&self) -> (u64, bool) {
        self.server.decide.cluster().unwrap().reads()
    }
}

#[test]
fn a_host_at_rest_reads_once_for_a_command() {
    let engine = Fake::of(Flavour::Counting);
    let settings = Settings { renewal_ms: Some(50), ..Settings::default() };
    let mut world = World::over_as(&engine, folder(), 1, settings);
    wait_until("it rests", || {
        world.turns();
        !world.server.decide.is_present()
    });
    world.turns();
    let (before, _) = world.reads();
    // `canal run` first asks to become the command.
    let mut parameters = mutex(1, "a");
    parameters["wrapper"] = "exec".into();
    let refused = world.ask(&parameters).reply().expect("a refusal");
    assert_eq!(refused["error"], "io.canal.Lock.SupervisorRequired", "{refused}");
    assert_eq!(world.reads(), (before, false));
    parameters["wrapper"] = "supervised".into();
    granted(&world.ask(&parameters).reply().expect("a grant"));
    assert_eq!(world.reads(), (before + 1, false));
}
