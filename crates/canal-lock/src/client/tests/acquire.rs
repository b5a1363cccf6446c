//! Tests of requests and waits.

use std::cell::RefCell;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::mpsc;

use super::*;
use canal_protocol::{DeadlinePageQuery, ErrorName, Failure, Progress};
use canal_sys::deadline_page::{Deadline, Writer};
use canal_sys::pidfd::Pidfd;
use fake::{Peer, grant, progress};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

fn acquire(
    scratch: &Scratch,
    request: &Acquire,
) -> (Result<super::super::Acquired, ClientError>, Vec<u64>) {
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    let mut positions = Vec::new();
    let told = &mut |progress: Option<&Progress>| {
        positions.extend(progress.map(|progress| progress.position));
        Ok(None)
    };
    let acquired = client.acquire(request, None, told);
    (acquired, positions)
}

fn expect(peer: &mut Peer, tag: &str) -> serde_json::Value {
    let (method, parameters) = peer.call();
    assert_eq!(method, "Acquire");
    assert_eq!(parameters["tag"], tag);
    parameters
}

#[test]
fn progress_comes_in_order_and_then_the_grant() {
    let scratch = Scratch::new();
    let request = request(None);
    let tag = request.tag.to_string();
    let daemon = scratch.daemon(move |listener| {
        let mut peer = accept(&listener);
        let asked = expect(&mut peer, &tag);
        assert!(asked.get("owner_fd").is_none());
        assert!(asked.get("wait_ms").is_none());
        peer.go_on(progress(2));
        peer.go_on(progress(1));
        peer.reply(grant());
    });
    let (acquired, positions) = acquire(&scratch, &request);
    assert_eq!(acquired.unwrap().grant.token, 9);
    assert_eq!(positions, [2, 1]);
    daemon.join().unwrap();
}

#[test]
fn a_wait_goes_on_under_its_tag_with_the_next_daemon_for_the_time_that_is_left() {
    let scratch = Scratch::new();
    let request = request(Some(60_000));
    let tag = request.tag.to_string();
    let daemon = scratch.daemon(move |listener| {
        let mut peer = accept(&listener);
        assert_eq!(expect(&mut peer, &tag)["wait_ms"], 60_000);
        peer.go_on(progress(1));
        drop(peer);
        let mut peer = accept(&listener);
        let left_ms = expect(&mut peer, &tag)["wait_ms"].as_u64().unwrap();
        assert!((1..60_000).contains(&left_ms), "{left_ms}");
        let parameters = json!({ "message": "stopping" });
        peer.refuse("io.canal.Lock.Stopping", parameters);
        drop(peer);
        accept(&listener).wait_unread();
        let mut peer = accept(&listener);
        expect(&mut peer, &tag);
        peer.reply(grant());
    });
    let (acquired, positions) = acquire(&scratch, &request);
    assert_eq!(acquired.unwrap().grant.token, 9);
    assert_eq!(positions, [1]);
    daemon.join().unwrap();
}

#[test]
fn a_try_acquire_does_not_wait_with_the_next_daemon_either() {
    let scratch = Scratch::new();
    let request = request(Some(0));
    let tag = request.tag.to_string();
    let daemon = scratch.daemon(move |listener| {
        assert_eq!(expect(&mut accept(&listener), &tag)["wait_ms"], 0);
        let mut peer = accept(&listener);
        assert_eq!(expect(&mut peer, &tag)["wait_ms"], 0);
        let parameters = json!({ "message": "busy", "reason": "full" });
        peer.refuse("io.canal.Lock.Refused", parameters);
    });
    let error = acquire(&scratch, &request).0.unwrap_err();
    let ClientError::Failure(failure) = error else { panic!("{error:?}") };
    assert_eq!((failure.name, failure.reason.as_deref()), (ErrorName::Refused, Some("full")));
    daemon.join().unwrap();
}

#[test]
fn the_owners_pidfd_goes_with_the_call() {
    let scratch = Scratch::new();
    let request = request(None);
    let daemon = scratch.daemon(move |listener| {
        let mut peer = accept(&listener);
        let (_, parameters) = peer.call();
        assert_eq!(parameters["owner_fd"], 0);
        let owner = Pidfd::from_fd(peer.received.remove(0)).unwrap();
        peer.reply(grant());
        owner.pid()
    });
    let owner = Pidfd::open(std::process::id()).unwrap();
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    client.acquire(&request, Some(&owner), &mut |_| Ok(None)).unwrap();
    assert_eq!(daemon.join().unwrap(), Some(std::process::id()));
}

#[test]
fn the_descriptor_of_a_grant_is_the_one_that_it_names() {
    let scratch = Scratch::new();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let daemon = scratch.daemon(move |listener| {
        let mut peer = accept(&listener);
        peer.call();
        let mut grant = grant();
        grant["children_fd"] = 0.into();
        peer.reply_with(grant, &[writer.as_fd()]);
    });
    let children = acquire(&scratch, &request(None)).0.unwrap().children.unwrap();
    daemon.join().unwrap();
    std::fs::File::from(children).write_all(b"x").unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!(text, "x");
}

#[test]
fn a_deadline_page_comes_beside_the_other_descriptor_and_is_asked_for_again() {
    let page = || Writer::create(4, "etcd", "alpha", Deadline::default()).unwrap();
    let scratch = Scratch::new();
    let daemon = scratch.daemon(move |listener| {
        let (_, children) = std::io::pipe().unwrap();
        let mut peer = accept(&listener);
        peer.call();
        let mut grant = grant();
        (grant["children_fd"], grant["deadline_fd"], grant["liveness_fd"]) =
            (1.into(), 2.into(), 0.into());
        let first = page();
        let [its_page, line] = first.reader.descriptors();
        peer.reply_with(grant, &[line, children.as_fd(), its_page]);
        let (method, parameters) = peer.call();
        assert_eq!(method, "DeadlinePage");
        drop(first);
        let next = page();
        let found = json!({ "deadline_fd": 0, "liveness_fd": 1 });
        peer.reply_with(found, &next.reader.descriptors());
        (parameters["tag"].clone(), next)
    });
    let request = request(None);
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    let acquired = client.acquire(&request, None, &mut |_| Ok(None)).unwrap();
    assert!(acquired.children.is_some());
    let first = acquired.page.unwrap();
    assert_eq!(first.host(), 4);
    let second = client.page(&DeadlinePageQuery { tag: request.tag, token: None }).unwrap();
    let (tag, _next) = daemon.join().unwrap();
    assert_eq!(tag, serde_json::to_value(request.tag).unwrap());
    // A child that another test forks has a copy of the descriptor until it executes its program.
    let mut line = [PollFd::new(first.line(), PollFlags::POLLIN)];
    poll(&mut line, PollTimeout::from(60_000_u16)).unwrap();
    assert!(first.is_left() && !second.is_left());
}

#[test]
fn a_page_that_is_none_is_a_protocol_error() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        peer.call();
        let mut grant = grant();
        (grant["deadline_fd"], grant["liveness_fd"]) = (0.into(), 1.into());
        let (reader, writer) = std::io::pipe().unwrap();
        peer.reply_with(grant, &[reader.as_fd(), writer.as_fd()]);
    });
    let error = acquire(&scratch, &request(None)).0.unwrap_err();
    assert!(error.to_string().contains("the deadline page is not sealed"), "{error:?}");
    daemon.join().unwrap();
}

#[test]
fn a_grant_that_names_a_descriptor_which_did_not_come_is_a_protocol_error() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        peer.call();
        let mut grant = grant();
        grant["children_fd"] = 0.into();
        peer.reply(grant);
    });
    let error = acquire(&scratch, &request(None)).0.unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)), "{error:?}");
    daemon.join().unwrap();
}

#[test]
fn a_daemon_that_never_answers_a_waiter_is_silent() {
    let scratch = Scratch::new();
    let _listener = scratch.listen();
    let mut client = Client::connect(&scratch.place, impatient()).unwrap();
    let error = client.acquire(&request(None), None, &mut |_| Ok(None)).unwrap_err();
    assert!(matches!(error, ClientError::Silent { .. }), "{error:?}");
}

#[test]
fn a_daemon_that_lets_the_wait_run_over_is_silent() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(|listener| {
        let mut peer = accept(&listener);
        peer.call();
        peer.go_on(progress(1));
        peer.wait_closed();
    });
    let mut client = Client::connect(&scratch.place, impatient()).unwrap();
    let before = Instant::now();
    let mut ticks = 0;
    let tick = &mut |progress: Option<&Progress>| {
        ticks += i32::from(progress.is_none());
        Ok(Some(Duration::from_millis(100)))
    };
    let error = client.acquire(&request(Some(500)), None, tick).unwrap_err();
    assert!(matches!(error, ClientError::Silent { .. }), "{error:?}");
    assert!(before.elapsed() >= Duration::from_millis(700), "{:?}", before.elapsed());
    assert!(ticks > 0);
    daemon.join().unwrap();
}

#[test]
fn a_wait_that_its_callback_gives_up_ends_with_that_failure() {
    let scratch = Scratch::new();
    let daemon = scratch.daemon(move |listener| {
        let mut peer = accept(&listener);
        peer.call();
        peer.go_on(progress(1));
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    let give_up =
        &mut |_: Option<&Progress>| Err(Box::new(Failure::new(ErrorName::Refused, "a deadlock")));
    let error = client.acquire(&request(None), None, give_up).unwrap_err();
    assert!(matches!(&error, ClientError::Failure(it) if it.message == "a deadlock"), "{error:?}");
    daemon.join().unwrap();
}

#[test]
fn a_waiter_with_patience_is_called_at_its_times_during_silence() {
    let scratch = Scratch::new();
    let (go_on, told) = mpsc::channel();
    let daemon = scratch.daemon(move |listener| {
        let mut peer = accept(&listener);
        peer.call();
        peer.go_on(progress(1));
        told.recv().unwrap();
        peer.reply(grant());
    });
    let mut client = Client::connect(&scratch.place, impatient()).unwrap();
    let mut ticks = 0;
    let tick = &mut |progress: Option<&Progress>| {
        ticks += u32::from(progress.is_none());
        if ticks == 2 {
            go_on.send(()).unwrap();
        }
        // Together, the two are longer than the answer may take: a queue is not silence.
        Ok(Some(Duration::from_millis(150)))
    };
    client.acquire(&request(None), None, tick).unwrap();
    daemon.join().unwrap();
}

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn each_call_and_what_became_of_it_is_traced() {
    let scratch = Scratch::new();
    let request = request(None);
    let tag = request.tag.to_string();
    let daemon = scratch.daemon(move |listener| {
        let mut peer = accept(&listener);
        expect(&mut peer, &tag);
        peer.go_on(progress(2));
        drop(peer);
        let mut next = accept(&listener);
        expect(&mut next, &tag);
        next.reply(grant());
    });
    let mut client = Client::connect(&scratch.place, patient()).unwrap();
    client.trace = Some(|line| LINES.with_borrow_mut(|lines| lines.push(line.to_owned())));
    client.acquire(&request, None, &mut |_| Ok(None)).unwrap();
    let sending = format!("sending Acquire, request {}", request.tag);
    let lines = LINES.take();
    let [sent, waits, lost, again, sent_again, granted] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((sent, sent_again), (&sending, &sending));
    assert!(waits.starts_with("Acquire: waiting for ") && waits.contains(", 2 of "), "{waits}");
    assert_eq!(lost, "Acquire: the daemon closed the connection before it answered");
    assert_eq!(again, "connecting again");
    assert_eq!(granted, "Acquire: granted, token 9");
    daemon.join().unwrap();
}
