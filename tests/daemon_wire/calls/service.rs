//! The methods of every varlink service, and the accuracy of the interface description.

use serde_json::{Value, json};

use crate::wire::daemon::Daemon;
use crate::wire::peer::{Idler, mutex, mutex_for, try_mutex};

#[test]
fn the_daemon_names_itself_and_describes_its_interfaces() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    let info = peer.call("org.varlink.service.GetInfo", Value::Null);
    assert_eq!(info["product"], "canal");
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    let interfaces: Vec<String> = serde_json::from_value(info["interfaces"].clone()).unwrap();
    assert_eq!(interfaces, ["org.varlink.service", "io.canal.Lock", "io.canal.Nodes"]);
    for interface in interfaces {
        let parameters = json!({ "interface": interface });
        let reply = peer.call("org.varlink.service.GetInterfaceDescription", parameters);
        let text = reply["description"].as_str().unwrap();
        let described = zlink_idl::Interface::try_from(text).unwrap();
        assert_eq!(described.name().as_str(), interface);
    }
    peer.send("org.varlink.service.GetInterfaceDescription", json!({ "interface": "io.example" }));
    assert_eq!(peer.error(), ("InterfaceNotFound".into(), json!({ "interface": "io.example" })));
}

#[test]
fn an_unknown_method_is_an_error_and_the_connection_goes_on() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    peer.send("Frobnicate", json!({}));
    let method = json!({ "method": "io.canal.Lock.Frobnicate" });
    assert_eq!(peer.error(), ("MethodNotFound".into(), method));
    peer.send("io.example.Frobnicate", json!({}));
    assert_eq!(peer.error(), ("InterfaceNotFound".into(), json!({ "interface": "io.example" })));
    peer.send("Confirm", json!({}));
    let (name, parameters) = peer.error();
    assert_eq!((name.as_str(), &parameters["parameter"]), ("InvalidParameter", &json!("tag")));
    peer.send("Acquire", json!({ "tag": "short", "items": [], "command": "" }));
    let (name, parameters) = peer.error();
    assert_eq!((name.as_str(), &parameters["parameter"]), ("InvalidParameter", &json!("tag")));
    assert!(parameters["message"].as_str().unwrap().contains("32 hexadecimal digits"));
    peer.send("Release", json!({ "token": "17" }));
    let (name, parameters) = peer.error();
    assert_eq!((name.as_str(), &parameters["parameter"]), ("InvalidParameter", &json!("token")));
    peer.call("Status", json!({ "a_parameter_of_a_later_version": 1 }));
}

/// The peer checks each reply against the description.
#[test]
fn every_method_and_many_errors_are_as_described() {
    let daemon = Daemon::start();
    let mut peer = daemon.connect();
    let grant = peer.call("Acquire", mutex(1, "a"));
    assert_eq!(
        grant["keys"],
        json!([
            { "key": "a", "acquired": 1, "slots": [{ "slot": 0, "bucket": null }], "mode": "counted" }
        ])
    );
    assert_eq!(grant["owner"], json!({ "pid": std::process::id(), "command": "peer 1" }));
    assert!(grant.get("children_fd").is_none());

    let canal = json!({
        "tag": format!("{:032x}", 2), "items": [{ "key": "b", "per": 2, "buckets": 2, "count": 3 }],
        "command": "peer 2",
    });
    let grant = peer.call("Acquire", canal);
    assert_eq!(
        grant["keys"][0]["slots"],
        json!([
            { "slot": 0, "bucket": 0 }, { "slot": 1, "bucket": 0 }, { "slot": 2, "bucket": 1 }
        ])
    );

    let idler = Idler::start();
    peer.send_with("Acquire", mutex_for(3, "c"), &idler.pidfd());
    assert_eq!(peer.returned("Acquire")["owner"]["pid"], idler.pid());
    peer.call("Confirm", json!({ "tag": format!("{:032x}", 3) }));
    let mut waiter = daemon.connect();
    waiter.send("Acquire", mutex(4, "c"));
    daemon.until_use("c", 1, 1);

    let status = peer.call("Status", json!({}));
    assert_eq!(status["keys"].as_array().unwrap().len(), 3);
    assert_eq!(status["keys"][2]["waiters"][0]["reason"], "1 of 1 slots held");
    assert_eq!(peer.call("Status", json!({ "key": "b" }))["keys"].as_array().unwrap().len(), 1);
    let names = peer.call("Status", json!({ "key": "c", "names_max": 5 }));
    assert_eq!(names["keys"][0]["key"], "c");
    peer.call("Resize", json!({ "key": "gpu", "slots": 4 }));
    let resized = peer.call("Resize", json!({ "key": "gpu", "forget": true }));
    assert_eq!((&resized["before"], &resized["now"]), (&json!("4"), &Value::Null));
    let paused = peer.call("Resize", json!({ "key": "gpu", "pause": true }));
    assert_eq!((&paused["now"], &paused["paused"]), (&Value::Null, &json!(true)));
    assert_eq!(peer.call("Resize", json!({ "key": "gpu", "pause": false }))["paused"], false);

    let would =
        peer.call("WouldAcquire", json!({ "items": [{ "key": "d", "per": 1, "buckets": 1 }] }));
    assert_eq!(would["keys"][0]["slots"], json!([{ "slot": 0, "bucket": 0 }]));
    peer.send("WouldAcquire", json!({ "items": [{ "key": "c" }] }));
    assert_eq!(peer.error().0, "Refused");
    let full = peer.call("Status", json!({ "key": "b", "full": true, "mine": true }));
    assert!(full["keys"][0]["holders"][0]["folder"].is_string(), "{full}");
    assert_eq!(peer.call("Why", json!({ "pid": idler.pid() }))["waiters"][0]["key"], "c");
    let targets = peer.call("WouldKill", json!({ "key": "c", "waiters": true }));
    assert_eq!(targets["targets"].as_array().unwrap().len(), 2, "{targets}");
    let token = &targets["targets"][0]["token"];
    // SIGCONT ends no process.
    let signalled = peer.call("Kill", json!({ "token": token, "signal": 18 }));
    assert_eq!(signalled, json!({ "pid": idler.pid() }));
    peer.call("EndedLeases", json!({}));
    let metrics = peer.call("Metrics", json!({}));
    assert!(metrics["text"].as_str().unwrap().ends_with("# EOF\n"), "{metrics}");
    let led = peer.call("Leader", json!({ "key": "c" }));
    assert_eq!((&led["leader"]["pid"], &led["stale"]), (&json!(idler.pid()), &json!(false)));
    assert_eq!(peer.call("Leader", json!({ "key": "d" }))["leader"], Value::Null);

    peer.send("Acquire", try_mutex(5, "c"));
    let (name, parameters) = peer.error();
    assert_eq!((name.as_str(), &parameters["reason"]), ("Refused", &json!("full")));
    assert_eq!(parameters["holders"][0]["pid"], idler.pid());
    for (method, parameters, error) in [
        (
            "Acquire",
            json!({ "tag": format!("{:032x}", 6), "items": [], "command": "" }),
            "BadRequest",
        ),
        ("Acquire", mutex_of(7, json!({ "key": "z", "slots": 2, "count": 3 })), "BadRequest"),
        ("Acquire", mutex_of(8, json!({ "key": "a", "per": 1, "buckets": 1 })), "Mismatch"),
        ("Acquire", mutex_of(9, json!({ "key": "r", "mode": "read", "slots": 1 })), "BadRequest"),
        ("Acquire", mutex_for(10, "x"), "BadRequest"),
        ("Release", json!({ "key": "nothing" }), "NotHeld"),
        ("Release", json!({ "token": 1 }), "NotHeld"),
        ("Release", json!({}), "BadRequest"),
        ("Confirm", json!({ "tag": format!("{:032x}", 99) }), "UnknownTag"),
        ("DeadlinePage", json!({ "tag": format!("{:032x}", 1) }), "Unsupported"),
        ("Resize", json!({ "key": "a", "per": 1, "buckets": 1 }), "Mismatch"),
        ("Resize", json!({ "key": "a" }), "BadRequest"),
        ("Resize", json!({ "key": "a", "slots": 2, "pause": true }), "BadRequest"),
        ("Status", json!({ "key": "/a" }), "BadRequest"),
        ("EndedLeases", json!({ "key": "/a" }), "BadRequest"),
        ("Leader", json!({ "key": "/a" }), "BadRequest"),
        ("Leader", json!({ "key": "b" }), "NotExclusive"),
        ("WouldAcquire", json!({ "items": [] }), "BadRequest"),
        ("WouldKill", json!({}), "BadRequest"),
        ("WouldKill", json!({ "key": "nothing" }), "NotHeld"),
        ("Kill", json!({ "token": 1, "signal": 18 }), "NotHeld"),
        ("Kill", json!({ "request": 1_000, "signal": 18 }), "NotHeld"),
        ("Kill", json!({ "token": 1, "signal": 0 }), "BadRequest"),
    ] {
        peer.send(method, parameters.clone());
        assert_eq!(peer.error().0, error, "{method} {parameters}");
    }
    let released = peer.call("Release", json!({ "all": true }));
    assert_eq!(released["released"].as_array().unwrap().len(), 2);
    let token = daemon.key("c").unwrap().holders[0].token;
    let released = peer.call("Release", json!({ "token": token }));
    assert_eq!(released["released"][0]["holder"]["pid"], idler.pid());
    waiter.returned("Acquire");
    peer.call("Stop", json!({}));
}

fn mutex_of(tag: u128, item: Value) -> Value {
    json!({ "tag": format!("{tag:032x}"), "items": [item], "command": "peer" })
}
