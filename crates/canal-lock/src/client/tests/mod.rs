//! Tests the client against a daemon that misbehaves as each test requires.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{Client, ClientError, Start, Watch, tag};
use canal_protocol::paths::Rule;
use canal_protocol::{
    Acquire, ErrorName, NoParameters, Release, RequestTag, Resize, StatusQuery, WireItem,
};

mod acquire;
mod busy;
mod connect;
mod fake;
mod start;

use canal_sys::rerun::BOUND;
use fake::{Scratch, accept, impatient, patient, status};

fn release() -> Release {
    Release { key: Some("k".into()), ..Release::default() }
}

#[test]
fn a_connection_serves_several_calls() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        for pid in 1..=3 {
            assert_eq!(peer.call().0, "Status");
            peer.reply(status(pid));
        }
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    for pid in 1..=3 {
        assert_eq!(client.status(&StatusQuery::default()).unwrap().daemon.pid, pid);
    }
    daemon.join().unwrap();
}

#[test]
fn an_error_reply_is_a_failure_with_its_name_and_leaves_the_connection_usable() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        peer.call();
        let parameters = json!({ "message": "not yours", "hint": "ask", "reason": "full" });
        peer.refuse("io.canal.Lock.NotHeld", parameters);
        peer.call();
        peer.reply(status(1));
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    let error = client.release(&release()).unwrap_err();
    let ClientError::Failure(failure) = error else { panic!("{error:?}") };
    assert_eq!(failure.name, ErrorName::NotHeld);
    assert_eq!(failure.message, "not yours");
    assert_eq!(failure.hint.as_deref(), Some("ask"));
    assert_eq!(failure.reason.as_deref(), Some("full"));
    client.status(&StatusQuery::default()).unwrap();
    daemon.join().unwrap();
}

#[test]
fn an_unknown_error_keeps_its_words_or_else_its_name() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        peer.call();
        peer.refuse("io.canal.Lock.OfTomorrow", json!({ "message": "too new" }));
        peer.call();
        peer.refuse("org.varlink.service.MethodNotFound", json!({ "method": "x" }));
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    let texts = ["too new", "org.varlink.service.MethodNotFound"];
    for text in texts {
        let error = client.resize(&Resize::default()).unwrap_err();
        assert!(matches!(error, ClientError::UnknownError { .. }), "{error:?}");
        assert_eq!(error.to_string(), text);
    }
    daemon.join().unwrap();
}

#[test]
fn a_daemon_that_says_nothing_is_silent_and_named() {
    let scratch = Scratch::new();
    let _listener = scratch.listen();
    let mut client = Client::connect(&scratch.place, impatient()).unwrap();
    let before = Instant::now();
    let error = client.status(&StatusQuery::default()).unwrap_err();
    let elapsed = before.elapsed();
    assert!(matches!(error, ClientError::Silent { pid, .. } if pid == std::process::id()));
    assert!(elapsed >= Duration::from_millis(200), "{elapsed:?}");
    assert!(elapsed < BOUND, "{elapsed:?}");
}

#[test]
fn half_a_message_and_then_nothing_is_silence() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        peer.call();
        peer.raw(b"{\"parameters\":{");
        peer.wait_closed();
    });
    let mut client = Client::connect(&scratch.place, impatient()).unwrap();
    let error = client.status(&StatusQuery::default()).unwrap_err();
    assert!(matches!(error, ClientError::Silent { .. }), "{error:?}");
    daemon.join().unwrap();
}

#[test]
fn half_a_message_and_then_the_end_is_asked_again() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        peer.call();
        peer.raw(b"{\"parameters\":{");
        drop(peer);
        let mut peer = accept(&listener);
        peer.call();
        peer.reply(status(2));
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    assert_eq!(client.status(&StatusQuery::default()).unwrap().daemon.pid, 2);
    daemon.join().unwrap();
}

#[test]
fn an_answer_in_pieces_is_one_answer() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        peer.call();
        let mut bytes = json!({ "parameters": status(3) }).to_string().into_bytes();
        bytes.push(0);
        for byte in bytes {
            peer.raw(&[byte]);
        }
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    assert_eq!(client.status(&StatusQuery::default()).unwrap().daemon.pid, 3);
    daemon.join().unwrap();
}

#[test]
fn an_answer_of_megabytes_is_taken() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        peer.call();
        let mut large = status(4);
        large["daemon"]["version"] = "v".repeat(5 << 20).into();
        peer.reply(large);
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    let status = client.status(&StatusQuery::default()).unwrap();
    assert_eq!(status.daemon.version.len(), 5 << 20);
    daemon.join().unwrap();
}

#[test]
fn junk_is_a_protocol_error() {
    for junk in [&b"hello\0"[..], b"\0", b"[]\0", b"{\"parameters\":{\"daemon\":7}}\0"] {
        let scratch = Scratch::new();
        let daemon = scratch.daemon(move |listener| {
            let mut peer = accept(&listener);
            peer.call();
            peer.raw(junk);
        });
        let mut client = Client::connect(&scratch.place, patient()).unwrap();
        let error = client.status(&StatusQuery::default()).unwrap_err();
        assert!(matches!(error, ClientError::Protocol(_)), "{error:?}");
        daemon.join().unwrap();
    }
}

#[test]
fn a_release_that_may_have_been_done_is_not_sent_again() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        accept(&listener).call();
        listener.set_nonblocking(true).unwrap();
        listener
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    let error = client.release(&release()).unwrap_err();
    assert!(matches!(error, ClientError::Gone(_)), "{error:?}");
    let listener = daemon.join().unwrap();
    let again = listener.accept().unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::WouldBlock);
}

/// The daemon's answer about what a release would release, or released.
fn released(token: u64) -> serde_json::Value {
    let holder = json!({
        "pid": 1, "uid": 0, "since": "2026-01-01T00:00:00Z", "token": token, "session": "s1",
        "slots": [],
    });
    json!({ "released": [{ "token": token, "keys": ["k"], "holder": holder }] })
}

fn tokens(released: &canal_protocol::Released) -> Vec<u64> {
    released.released.iter().map(|hold| hold.token).collect()
}

#[test]
fn a_release_that_may_have_been_done_is_asked_again_by_its_token() {
    for done in [false, true] {
        let scratch = Scratch::new();
        let daemon = scratch.daemon(move |listener| {
            let mut peer = accept(&listener);
            assert_eq!(peer.call(), ("WouldRelease".to_owned(), json!({ "key": "k" })));
            peer.reply(released(7));
            let named = ("Release".to_owned(), json!({ "key": "k", "token": 7 }));
            assert_eq!(peer.call(), named);
            drop(peer);
            let mut peer = accept(&listener);
            assert_eq!(peer.call(), named);
            match done {
                true => peer.refuse("io.canal.Lock.NotHeld", json!({ "message": "it is not" })),
                false => peer.reply(released(7)),
            }
        });
        let mut client = Client::connect(&scratch.place, patient()).unwrap();
        assert_eq!(tokens(&client.release_once(&release(), None).unwrap()), [7]);
        daemon.join().unwrap();
    }
}

#[test]
fn a_release_of_what_is_not_held_or_no_longer_the_latest_gives_back_nothing_else() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        let changed = json!({ "message": "a later one", "reason": "changed" });
        for (held, answer) in [(7, changed), (8, json!({ "message": "not any more" }))] {
            assert_eq!(peer.call().0, "WouldRelease");
            peer.reply(released(held));
            assert_eq!(peer.call().1["token"], held);
            peer.refuse("io.canal.Lock.NotHeld", answer);
        }
        assert_eq!(peer.call().0, "WouldRelease");
        peer.refuse("io.canal.Lock.NotHeld", json!({ "message": "nothing" }));
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    let error = client.release_once(&release(), None).unwrap_err();
    assert!(matches!(&error, ClientError::Failure(it) if it.message == "nothing"), "{error:?}");
    daemon.join().unwrap();
}

#[test]
fn a_release_that_nobody_read_or_that_a_stopping_daemon_refused_is_sent_again() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        accept(&listener).wait_unread();
        let mut peer = accept(&listener);
        peer.call();
        peer.refuse("io.canal.Lock.Stopping", json!({ "message": "stopping" }));
        drop(peer);
        let mut peer = accept(&listener);
        assert_eq!(peer.call().1["key"], "k");
        peer.reply(json!({ "released": [] }));
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    client.release(&release()).unwrap();
    daemon.join().unwrap();
}

#[test]
fn what_a_daemon_says_that_hangs_up_before_the_call_is_heard() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let parameters = json!({ "message": "too many" });
        accept(&listener).refuse("io.canal.Lock.TooManyConnections", parameters);
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    daemon.join().unwrap();
    let error = client.release(&release()).unwrap_err();
    let ClientError::Failure(failure) = error else { panic!("{error:?}") };
    assert_eq!(failure.name, ErrorName::TooManyConnections);
}

#[test]
fn a_release_to_a_daemon_that_has_hung_up_is_sent_to_the_next() {
    let scratch = Scratch::new();
    let first = scratch.daemon(|listener| {
        drop(accept(&listener));
        listener
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    let listener = first.join().unwrap();
    let second = std::thread::spawn(move || {
        let mut peer = accept(&listener);
        peer.call();
        peer.reply(json!({ "released": [] }));
    });
    client.release(&release()).unwrap();
    second.join().unwrap();
}

#[test]
fn a_confirmation_is_sent_until_a_daemon_takes_it() {
    let scratch = Scratch::new();
    let confirm = RequestTag { tag: tag().unwrap() };
    let text = confirm.tag.to_string();
    let daemon = scratch.daemon(move |listener| {
        assert_eq!(accept(&listener).call().1["tag"], text);
        let mut peer = accept(&listener);
        assert_eq!(peer.call(), ("Confirm".to_owned(), json!({ "tag": text })));
        peer.raw(b"{}\0");
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    client.confirm(&confirm).unwrap();
    daemon.join().unwrap();
}

#[test]
fn a_daemon_that_ends_at_each_call_is_given_up() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut calls = 0;
        loop {
            let mut peer = accept(&listener);
            if peer.call().0 == "Stop" {
                peer.reply(json!({ "pid": 1 }));
                return calls;
            }
            calls += 1;
        }
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    let error = client.status(&StatusQuery::default()).unwrap_err();
    assert!(matches!(error, ClientError::Gone(_)), "{error:?}");
    client.stop(&NoParameters {}).unwrap();
    assert!(daemon.join().unwrap() > 1);
}

#[test]
fn a_watcher_goes_on_with_the_next_daemon_until_it_has_seen_enough() {
    let scratch = Scratch::new();
    let (old, seen_old) = std::sync::mpsc::channel();
    let daemon = scratch.daemon(move |listener| {
        let mut peer = accept(&listener);
        assert_eq!(peer.call().0, "Status");
        peer.go_on(status(1));
        seen_old.recv().unwrap();
        peer.go_on(status(2));
        drop(peer);
        let mut peer = accept(&listener);
        peer.call();
        peer.go_on(status(3));
        peer.wait_closed();
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    let mut watch = Watch::new(StatusQuery::default());
    let mut next = |time: Option<Duration>| {
        let until = time.map(|time| Instant::now() + time);
        watch.next(&mut client, until).unwrap().map(|status| status.daemon.pid)
    };
    assert_eq!(next(None), Some(1));
    assert_eq!(next(Some(Duration::from_millis(1))), None, "nothing has changed yet");
    old.send(()).unwrap();
    assert_eq!((next(None), next(None)), (Some(2), Some(3)), "it waits for a change");
    drop(watch);
    daemon.join().unwrap();
}

#[test]
fn stopping_waits_for_the_end_of_the_connection() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        assert_eq!(peer.call().0, "Stop");
        // Not the pid of this process, as with a service manager's socket.
        peer.reply(json!({ "pid": 1 }));
        std::thread::sleep(Duration::from_millis(100));
        Instant::now()
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    assert_eq!(client.stop(&NoParameters {}).unwrap().pid, 1);
    let after = Instant::now();
    assert!(daemon.join().unwrap() <= after);
}

#[test]
fn tags_differ() {
    assert_ne!(tag().unwrap(), tag().unwrap());
}

fn request(wait_ms: Option<u64>) -> Acquire {
    Acquire {
        tag: tag().unwrap(),
        items: vec![WireItem { key: "k".into(), ..WireItem::default() }],
        wait_ms,
        command: "x".to_owned(),
        ..Acquire::default()
    }
}
