//! Requests over nodes that exclude each other, and that the daemon therefore refuses.

use serde_json::{Value, json};

use super::{COLLECT, failed, hex, id_of, node, part, take, with};

#[test]
fn a_key_in_use_over_a_list_that_need_not_meet_is_refused_with_both_lists() {
    let daemon = node();
    let own = id_of(&daemon);
    let list = |others: [u128; 2]| {
        let mut nodes = [own.clone(), hex(others[0]), hex(others[1])];
        nodes.sort();
        nodes
    };
    let asked = |tag, others, require: &str| {
        let asked = with(part(&daemon, tag, "a"), "nodes", json!(list(others)));
        with(with(asked, "require", require.into()), "wait_ms", 0.into())
    };
    let mut peer = daemon.connect();
    peer.call(COLLECT, asked(1, [2, 3], "majority"));
    let (name, said) = failed(&mut peer, COLLECT, asked(2, [2, 4], "majority"));
    assert_eq!((name.as_str(), &said["key"]), ("NodeListDiffers", &json!("a")));
    assert_eq!((&said["theirs"], &said["yours"]), (&json!(list([2, 3])), &json!(list([2, 4]))));
    // If the two sets of nodes always overlap, or if one node is enough, it is an ordinary refusal.
    for (tag, others, require) in [(3, [2, 3], "majority"), (4, [2, 4], "all"), (5, [7, 8], "any")]
    {
        assert_eq!(failed(&mut peer, COLLECT, asked(tag, others, require)).0, "Refused");
    }
}

#[test]
fn more_than_half_takes_no_writes_and_no_locks_of_several_slots() {
    let daemon = node();
    let asked = |item: Value| {
        let asked = with(part(&daemon, 1, ""), "items", json!([item]));
        with(asked, "require", "majority".into())
    };
    let mut peer = daemon.connect();
    for (item, words) in [
        (json!({ "key": "a", "slots": 2 }), "`a` has more than one slot"),
        (json!({ "key": "a", "mode": "write" }), "while it is held for writing"),
    ] {
        let (name, said) = failed(&mut peer, COLLECT, asked(item));
        assert_eq!(name, "RequireTooLarge");
        assert!(said["message"].as_str().unwrap().contains(words), "{said}");
        assert!(said["hint"].as_str().unwrap().contains("--require all"), "{said}");
    }
    peer.call(COLLECT, asked(json!({ "key": "a", "slots": 1 })));
    let resize = json!({ "key": "a", "slots": 2 });
    let (name, said) = failed(&mut daemon.connect(), "Resize", resize.clone());
    assert_eq!(name, "Mismatch", "{said}");
    drop(peer);
    daemon.until_use("a", 0, 0);
    daemon.connect().call("Resize", resize);
    take(&daemon, 2, "a");
    let mut peer = daemon.connect();
    peer.send(COLLECT, with(asked(json!({ "key": "a" })), "tag", hex(3).into()));
    assert_eq!(peer.error().0, "RequireTooLarge", "what is stored counts");
}
