//! Reading the configuration again with an engine.

use serde_json::{Value, json};

use crate::tests::World;
use crate::tests::recovering::{Fake, folder};
use canal_core::{Change, Key, View};

impl World {
    /// Writes the configuration and makes the daemon read it.
    #[track_caller]
    fn reload(&mut self, config: &str) -> Value {
        std::fs::write(self.place.dir.join("canal.toml"), config).unwrap();
        let mut peer = self.connect();
        let reply = self.call(&mut peer, "Reload", &json!({}));
        self.turns();
        reply["parameters"].clone()
    }

    fn stored(&self, key: &str) -> Option<View> {
        self.server.decide.table().stored(&Key::new(key).unwrap())
    }
}

#[test]
fn over_an_engine_the_file_never_overwrites_what_is_stored() {
    let engine = Fake::new();
    let mut world = World::over(&engine, folder());
    world.reload("[keys.a]\nslots = 2\n[policy]\nbypass_max = 5\n");
    assert_eq!(world.stored("a"), Some(View::Slots { slots: 2 }), "nothing was stored");
    assert_eq!(world.server.decide.table().bypass_max(), 5);
    let (key, view) = (Key::new("a").unwrap(), Some(View::Slots { slots: 7 }));
    world.server.propose(Change::Resize { key, view });
    world.turns();
    let reloaded = world.reload("[keys.a]\nslots = 3\n[keys.b]\nslots = 1\n");
    let note = reloaded["notes"][0].as_str().unwrap();
    assert!(note.starts_with("`a` keeps the size 7, which is stored for all hosts"), "{note}");
    assert_eq!(world.stored("a"), Some(View::Slots { slots: 7 }));
    assert_eq!(world.stored("b"), Some(View::Slots { slots: 1 }));
    assert_eq!(world.server.decide.table().bypass_max(), 5, "it was stated for all hosts");
    let reloaded = world.reload("");
    assert_eq!(reloaded["notes"].as_array().unwrap().len(), 2, "{reloaded}");
    assert_eq!(world.stored("a"), Some(View::Slots { slots: 7 }));
    assert_eq!(world.stored("b"), Some(View::Slots { slots: 1 }));
}
