//! The answers of a node to clients that look for deadlocks.

use serde_json::{Value, json};

use super::{COLLECT, failed, hex, id_of, node, part, take, with};
use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::mutex;

const WAITS_NEAR: &str = "io.canal.Nodes.WaitsNear";

fn near(daemon: &Daemon, runs: &[u128]) -> Value {
    let runs: Vec<String> = runs.iter().map(|run| hex(*run)).collect();
    daemon.connect().call(WAITS_NEAR, json!({ "runs": runs }))
}

/// The held keys, and the keys with waiters.
fn keys(found: &Value) -> [Vec<String>; 2] {
    let of = |list: &str, items: &dyn Fn(&Value) -> Value| {
        let each = found["table"][list].as_array().unwrap().iter().map(items);
        let keys = each.flat_map(|items| items.as_array().unwrap().clone());
        let mut keys: Vec<String> =
            keys.map(|item| item["key"].as_str().unwrap().to_owned()).collect();
        keys.sort();
        keys
    };
    [
        of("holds", &|hold| hold["items"].clone()),
        of("waiters", &|waiter| waiter["request"]["items"].clone()),
    ]
}

fn frame(found: &Value, is_it: impl Fn(&Value) -> bool) -> &Value {
    let mut frames = found["frames"].as_array().unwrap().iter();
    frames.find(|frame| is_it(frame)).unwrap_or_else(|| panic!("{found}"))
}

#[test]
fn a_node_tells_what_runs_and_what_is_within_them_wait_for() {
    let daemon = node();
    take(&daemon, 1, "a");
    take(&daemon, 2, "b");
    let _other = daemon.hold(9, "unrelated");
    // Within the first run, a process waits for the lock of the second run.
    let mut inner = daemon.connect();
    inner.send_more("Acquire", with(mutex(3, "b"), "under_run", hex(1001).into()));
    inner.progress();
    // Within a frame of another node, a part waits for the lock of the first run.
    let mut part_of = daemon.connect();
    let above = json!({ "node": hex(77), "frame": 5 });
    part_of.send_more(COLLECT, with(part(&daemon, 4, "a"), "under_frame", above.clone()));
    part_of.progress();

    let found = near(&daemon, &[1001]);
    assert_eq!(found["node"], id_of(&daemon));
    assert_eq!(keys(&found), [["a", "b"], ["a", "b"]], "{found}");
    let run = |number: u128| {
        move |frame: &Value| frame["part_of"]["run"].as_str() == Some(hex(1000 + number).as_str())
    };
    let first = frame(&found, run(1));
    assert_eq!((&first["lease"], &first["command"]), (&json!(true), &json!("peer 1")));
    assert_eq!(first["part_of"]["nodes"].as_array().unwrap().len(), 2);
    assert_eq!(frame(&found, run(4))["under_frame"], above);
    let inside = frame(&found, |frame| frame["under_run"] == hex(1001));
    assert_eq!(inside["pid"], std::process::id());
    let text = found["table"].to_string();
    assert!(!text.contains("peer"), "{text}");

    // The answer always includes everything within a frame of a node, and otherwise only the
    // requested runs.
    let found = near(&daemon, &[]);
    assert_eq!(keys(&found)[1], ["a"], "{found}");
    let found = near(&daemon, &[1002, 5555]);
    assert_eq!(keys(&found)[1], ["a"], "nothing waits within the second run: {found}");
}

/// The names and addresses of nodes go to every caller that searches near the same run.
#[test]
fn a_node_names_the_nodes_that_others_near_the_same_run_read() {
    let daemon = node();
    take(&daemon, 1, "a");
    let mut waiter = daemon.connect();
    waiter.send_more("Acquire", with(mutex(3, "a"), "under_run", hex(1002).into()));
    waiter.progress();
    let there = json!({ "node": hex(77), "address": "ssh:web7" });
    let asked = |run: u128, nodes: Value| json!({ "runs": [hex(run)], "nodes": nodes });
    let mut first = daemon.connect();
    let found = first.call(WAITS_NEAR, asked(1001, json!([there])));
    assert_eq!(found["nodes"], Value::Null, "nobody else looks: {found}");
    // The second run waits for the first.
    let mut second = daemon.connect();
    assert_eq!(second.call(WAITS_NEAR, asked(1002, json!([])))["nodes"], json!([there]));
    let found = second.call(WAITS_NEAR, asked(1005, json!([])));
    assert_eq!(found["nodes"], Value::Null, "nothing there is near the first: {found}");
    drop(first);
    wait_until("the connection is closed", || {
        second.call(WAITS_NEAR, asked(1002, json!([])))["nodes"].is_null()
    });
    let address = "x".repeat(600);
    let long = asked(1002, json!([{ "node": hex(7), "address": address }]));
    assert_eq!(failed(&mut second, WAITS_NEAR, long).0, "BadRequest");
}

#[test]
fn a_frame_that_another_node_named_is_told_of() {
    let daemon = node();
    let _holder = daemon.hold(9, "a");
    let mut waiter = daemon.connect();
    waiter.send_more("Acquire", mutex(3, "a"));
    waiter.progress();
    let graph = daemon.connect().call("Graph", json!({}));
    let session = graph["waits"][0]["waiter"]["session"].as_str().unwrap();
    let number: u64 = session.strip_prefix('s').unwrap().parse().unwrap();
    let asked = json!({ "runs": [], "frames": [number, 4_000_000] });
    let found = daemon.connect().call(WAITS_NEAR, asked);
    assert_eq!(keys(&found), [["a"], ["a"]], "{found}");
    assert_eq!(keys(&near(&daemon, &[])), [[""; 0], [""; 0]]);
}

#[test]
fn a_restricted_connection_learns_of_its_keys_only() {
    let daemon = node();
    take(&daemon, 1, "deploy/a");
    take(&daemon, 2, "secret");
    let mut waiters = Vec::new();
    for (tag, key) in [(3, "deploy/a"), (4, "secret")] {
        let mut peer = daemon.connect();
        peer.send_more(COLLECT, part(&daemon, tag, key));
        peer.progress();
        waiters.push(peer);
    }
    let runs = json!({ "runs": [hex(1001), hex(1002), hex(1003), hex(1004)] });
    let found = daemon.connect().call(WAITS_NEAR, runs.clone());
    assert_eq!(keys(&found), [["deploy/a", "secret"], ["deploy/a", "secret"]]);
    let mut peer = daemon.connect();
    peer.call("io.canal.Nodes.Restrict", json!({ "keys": ["deploy"] }));
    let found = peer.call(WAITS_NEAR, runs);
    assert_eq!(keys(&found), [["deploy/a"], ["deploy/a"]]);
    assert!(!found["table"].to_string().contains("secret"), "{found}");
}

#[test]
fn an_answer_and_a_question_have_bounds() {
    let daemon = node();
    let runs: Vec<String> = (0..1001).map(hex).collect();
    let asked = json!({ "runs": runs });
    assert_eq!(failed(&mut daemon.connect(), WAITS_NEAR, asked).0, "BadRequest");
    // Each request has a frame and a hold, so 501 of them exceed the limit.
    let mut peer = daemon.connect();
    for tag in 1..=501 {
        let within = with(part(&daemon, tag, &format!("k{tag}")), "under_run", hex(7).into());
        peer.call(COLLECT, within);
    }
    let (name, said) = failed(&mut daemon.connect(), WAITS_NEAR, json!({ "runs": [hex(7)] }));
    assert_eq!(name, "TooMuch", "{said}");
}
