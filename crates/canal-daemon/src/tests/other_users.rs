//! Tests the permissions of another user at a shared daemon.

use serde_json::{Value, json};

use crate::config::permissions::Permission;
use crate::tests::{Peer, World, granted, hex, mutex};

/// A user, and a group with the same number.
const OTHER: u32 = 65_533;

impl World {
    /// Requests a lease of these keys. Returns its token, without confirming it.
    fn lease_of(&mut self, peer: &mut Peer, tag: u128, keys: &[&str]) -> u64 {
        let mut parameters = mutex(tag, "");
        let item = |key| json!({ "key": key, "slots": 1 });
        parameters["items"] = keys.iter().map(item).collect();
        parameters["lease"] = json!({ "handle": hex(tag), "ttl_ms": 600_000 });
        let reply = self.call(peer, "Acquire", &parameters);
        granted(&reply);
        reply["parameters"]["token"].as_u64().unwrap()
    }
}

fn permission(text: &str) -> Permission {
    toml::from_str(text).unwrap()
}

#[track_caller]
fn denied(reply: &Value, message: &str) {
    assert_eq!(reply["error"], "io.canal.Lock.Denied", "{reply}");
    let found = reply["parameters"]["message"].as_str().unwrap();
    assert!(found.contains(message), "{reply}");
}

#[test]
fn a_hold_of_several_keys_is_ended_by_force_only_with_permission_for_each_key() {
    let mut world = World::new();
    let entry = format!("keys = \"open\"\ngroups = [{OTHER}]\nmay = [\"force\"]");
    world.server.effective.config.permissions.0 = vec![permission(&entry)];
    let (_, mut other) = world.connect_as(OTHER);
    for (tag, keys) in (1..).zip([["open/1", "shut"], ["shut", "open/1"]]) {
        let mut owner = world.connect();
        let token = world.lease_of(&mut owner, tag, &keys);
        world.call(&mut owner, "Confirm", &json!({ "tag": hex(tag) }));
        let reply = world.call(&mut other, "Release", &json!({ "token": token }));
        denied(&reply, "may not break other users' holds on `shut`");
        let reply = world.call(&mut owner, "Release", &json!({ "token": token }));
        assert_eq!(reply["error"], Value::Null, "{reply}");
    }
    let mut owner = world.connect();
    let token = world.lease_of(&mut owner, 9, &["open/1", "open/2"]);
    let reply = world.call(&mut other, "Release", &json!({ "token": token }));
    assert_eq!(reply["error"], Value::Null, "{reply}");
}

#[test]
fn a_grant_is_confirmed_by_its_own_user_only() {
    let mut world = World::new();
    let (mut owner, (_, mut other)) = (world.connect(), world.connect_as(OTHER));
    world.lease_of(&mut owner, 1, &["k"]);
    let reply = world.call(&mut other, "Confirm", &json!({ "tag": hex(1) }));
    denied(&reply, "the grant belongs to another user");
    let reply = world.call(&mut other, "Overrun", &json!({ "tag": hex(1) }));
    assert_eq!(reply["error"], "io.canal.Lock.UnknownTag", "{reply}");
    // Nothing was confirmed: the client leaves, and the grant is revoked.
    drop(owner);
    world.turn();
    assert_eq!(world.server.decide.table().holds().len(), 0);
}
