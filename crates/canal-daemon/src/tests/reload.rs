//! Reading the configuration again.

use std::net::Shutdown;
use std::time::Duration;

use serde_json::{Value, json};

use crate::calls::call::ConnId;
use crate::config::effective::Purpose;
use crate::net::call_state::CallState;
use crate::tests::recovering::{Fake, folder};
use crate::tests::{Peer, World, call};
use canal_core::{Change, Key, Setting, View};
use canal_sys::clock;
use canal_sys::rerun::wait_until;

/// A thread reads a configuration that names a group.
const GROUP: &str = "[[permission]]\ngroups = [\"root\"]\nmay = [\"hold\"]\n";

impl World {
    /// Writes the configuration and makes the daemon read it.
    #[track_caller]
    fn reload(&mut self, config: &str) -> Value {
        std::fs::write(self.place.dir.join("canal.toml"), config).unwrap();
        let mut peer = self.connect();
        peer.send(&call("Reload", &json!({})), &[]);
        let mut reply = None;
        wait_until("the configuration is read", || {
            self.turns();
            reply = peer.reply();
            reply.is_some()
        });
        reply.unwrap()["parameters"].clone()
    }

    /// A client whose call has waited for the configuration for this time.
    fn reader(&mut self, purpose: Purpose, since: Duration) -> (ConnId, Peer) {
        let (id, peer) = self.connect_as(0);
        let since = clock::now().checked_sub(since).unwrap();
        self.server.effective.readings.order(Some(id), purpose, since);
        self.server.conns.set_state(id, CallState::Configuration);
        self.server.turn().unwrap();
        (id, peer)
    }

    fn stored(&self, key: &str) -> Option<View> {
        self.server.decide.table().settings(&Key::new(key).unwrap()).view
    }
}

#[test]
fn over_an_engine_the_file_never_overwrites_what_is_stored() {
    let engine = Fake::new();
    let mut world = World::over(&engine, folder());
    world.reload("[keys.a]\nslots = 2\n[policy]\nbypass_max = 5\n");
    assert_eq!(world.stored("a"), Some(View::Slots { slots: 2 }), "nothing was stored");
    assert_eq!(world.server.decide.table().globals().bypass_max, 5);
    let setting = Setting::View(Some(View::Slots { slots: 7 }));
    world.server.propose(Change::Set { key: Key::new("a").unwrap(), setting });
    world.turns();
    let reloaded = world.reload("[keys.a]\nslots = 3\n[keys.b]\nslots = 1\n");
    let note = reloaded["notes"][0].as_str().unwrap();
    assert!(note.starts_with("`a` keeps the size 7, which is stored for all hosts"), "{note}");
    assert_eq!(world.stored("a"), Some(View::Slots { slots: 7 }));
    assert_eq!(world.stored("b"), Some(View::Slots { slots: 1 }));
    assert_eq!(world.server.decide.table().globals().bypass_max, 5, "it was stated for all hosts");
    let reloaded = world.reload("");
    assert_eq!(reloaded["notes"].as_array().unwrap().len(), 2, "{reloaded}");
    assert_eq!(world.stored("a"), Some(View::Slots { slots: 7 }));
    assert_eq!(world.stored("b"), Some(View::Slots { slots: 1 }));
}

#[test]
fn nobody_waits_longer_for_the_configuration_than_a_client_does() {
    let mut world = World::new();
    std::fs::write(world.place.dir.join("canal.toml"), GROUP).unwrap();
    let (_, mut shows) = world.reader(Purpose::Show, Duration::from_secs(5));
    let (_, mut reloads) = world.reader(Purpose::Reload, Duration::from_secs(5));
    let (waits, _peer) = world.reader(Purpose::Show, Duration::ZERO);
    let shown = shows.reply().unwrap()["parameters"]["broken"].to_string();
    assert!(shown.contains("the directory service does not answer"), "{shown}");
    let failure = reloads.reply().unwrap()["parameters"]["message"].to_string();
    assert!(failure.contains("the directory service does not answer"), "{failure}");
    let waits = world.server.conns.peek(waits).unwrap().state();
    assert!(matches!(waits, CallState::Configuration));
}

#[test]
fn a_client_that_only_stopped_sending_is_shown_the_configuration() {
    let mut world = World::new();
    let mut peer = world.connect();
    peer.send(&call("Configuration", &json!({})), &[]);
    peer.stream.shutdown(Shutdown::Write).unwrap();
    wait_until("it is shown", || {
        world.turns();
        peer.reply().is_some()
    });
}

#[test]
fn a_configuration_is_put_in_force_although_the_client_that_asked_has_left() {
    let mut world = World::new();
    let config = format!("[keys.a]\nslots = 2\n{GROUP}");
    std::fs::write(world.place.dir.join("canal.toml"), config).unwrap();
    let (_, peer) = world.reader(Purpose::Reload, Duration::ZERO);
    drop(peer);
    wait_until("the configuration is in force", || {
        world.server.turn().unwrap();
        world.stored("a") == Some(View::Slots { slots: 2 })
    });
}
