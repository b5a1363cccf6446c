//! Checks which turn makes which decision.

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::history::recorder::History;
use crate::history::writer::Files;
use crate::hooks::active_hooks::Hooks;
use crate::net::call_state::{CallState, PendingAcquire, Subject};
use crate::processes::identify_owner::process_of;
use crate::server::call_step::Step;
use crate::server::observe::Observe;
use crate::server::turn::{Batch, CALLS_PER_TURN};
use crate::tests::{Holder, Peer, World, call, granted, hex, mutex, try_mutex};
use canal_core::{Owner, Tag, Token, Wait};
use canal_history::Limits;
use canal_sys::rerun::wait_until;

#[test]
fn a_call_sent_during_a_turn_is_decided_in_the_next_with_the_deaths_before_it() {
    let mut world = World::new();
    let holder = world.hold(1, "a");
    world.lease(2, "b");
    world.server.leases.all_over();
    let batch = Batch::take(&mut world.server);
    // A shell that has waited for the holder requests its lock during the turn.
    holder.end();
    let mut peer = world.connect();
    peer.send(&call("Acquire", &try_mutex(3, "a")), &[]);
    world.server.carry_out_batch(batch).unwrap();
    assert_eq!(peer.reply(), None);
    assert_eq!(world.server.leases.next_end(), None, "the lease has ended in that turn");
    world.turn();
    granted(&peer.reply().unwrap());
}

/// A hold whose owner the test can end while a descendant lives. The descriptor that the requesting
/// client received represents the descendant.
fn with_descendant(world: &mut World, key: &str) -> (Holder, Peer, Token) {
    let owner = Holder::start();
    let mut asker = world.connect();
    let mut parameters = mutex(1, key);
    parameters["owner_fd"] = 0.into();
    parameters["with_children"] = true.into();
    asker.send(&call("Acquire", &parameters), &[owner.pidfd().as_fd()]);
    world.turn();
    let grant = asker.reply().unwrap();
    let token = Token(grant["parameters"]["token"].as_u64().unwrap());
    world.call(&mut asker, "Confirm", &json!({ "tag": hex(1) }));
    (owner, asker, token)
}

#[track_caller]
fn end_descendant(world: &World, mut asker: Peer, token: Token) {
    asker.fds.clear();
    wait_until("processes that other tests start have closed it too", || {
        !world.server.children.has_writers(token)
    });
}

#[test]
fn a_hold_is_free_for_a_request_after_its_last_descendant() {
    let mut world = World::new();
    let (owner, asker, token) = with_descendant(&mut world, "a");
    owner.end();
    world.turn();
    // Another client connects. The descendant ends before the daemon examines the new connection.
    let _other = world.connect();
    assert!(world.server.conns.wait(Some(Duration::ZERO)));
    end_descendant(&world, asker, token);
    let mut peer = world.connect();
    peer.send(&call("Acquire", &try_mutex(2, "a")), &[]);
    world.turn();
    granted(&peer.reply().unwrap());
}

#[test]
fn a_hold_whose_descendants_cannot_be_watched_ends_when_they_do() {
    let mut world = World::new();
    let (owner, asker, token) = with_descendant(&mut world, "a");
    owner.end();
    world.server.owners.fail(2);
    world.turn();
    assert!(world.server.due.processes.is_some());
    world.server.due.processes = Some(Instant::now());
    world.server.turn().unwrap();
    end_descendant(&world, asker, token);
    world.turn();
    assert!(world.server.decide.table().hold(token).is_some(), "its end was not reported");
    world.server.due.processes = world.server.due.processes.map(|_| Instant::now());
    world.server.turn().unwrap();
    assert!(world.server.decide.table().hold(token).is_none());
    assert_eq!(world.server.due.processes, None);
}

#[test]
fn bytes_that_a_descendant_writes_into_its_fifo_wake_nobody() {
    let mut world = World::new();
    let (owner, asker, token) = with_descendant(&mut world, "a");
    owner.end();
    world.turn();
    for _ in 0..1000 {
        let _ = nix::unistd::write(&asker.fds[0], b"noise");
        assert!(!world.server.conns.wait(Some(Duration::ZERO)));
    }
    assert!(world.server.decide.table().hold(token).is_some());
    end_descendant(&world, asker, token);
    world.turn();
    assert!(world.server.decide.table().hold(token).is_none());
}

#[test]
fn peers_that_keep_sending_leave_others_their_turn() {
    let mut world = World::new();
    let one = br#"{"method":"org.varlink.service.GetInfo","oneway":true}"#;
    let calls = [&one[..], b"\0"].concat().repeat(1000);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let mut stream = UnixStream::connect(&world.place.socket).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
            let (calls, done) = (&calls, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let _ = stream.write(calls);
                }
            });
        }
        let mut bystander = world.connect();
        let mut ask = || {
            bystander.send(&call("Renew", &json!({ "handle": hex(1) })), &[]);
            // The daemon may read the call in the first turn, or, if it is too late for that, in
            // the second.
            (0..2).any(|_| {
                world.server.conns.wait(Some(Duration::ZERO));
                world.server.turn().unwrap();
                bystander.reply().is_some()
            })
        };
        let answered = (0..100).take_while(|_| ask()).count();
        done.store(true, Ordering::Relaxed);
        assert_eq!(answered, 100);
    });
}

#[test]
fn a_full_turn_sends_the_grant_of_its_last_call() {
    let mut world = World::new();
    let of_each = CALLS_PER_TURN / 8;
    let info = json!({ "method": "org.varlink.service.GetInfo" }).to_string() + "\0";
    let mut peers: Vec<Peer> = (0..8).map(|_| world.connect()).collect();
    world.turn();
    for (n, peer) in peers.iter_mut().enumerate() {
        let tag = n as u128 + 1;
        let mut parameters = mutex(tag, &format!("key-{n}"));
        parameters["lease"] = json!({ "handle": hex(tag), "ttl_ms": 600_000 });
        let mut calls = info.as_bytes().repeat(of_each - 1);
        calls.extend(call("Acquire", &parameters));
        assert!(peer.send(&calls, &[]));
    }
    assert!(world.server.conns.wait(Some(Duration::ZERO)));
    world.server.turn().unwrap();
    for peer in &mut peers {
        let replies: Vec<Value> = std::iter::from_fn(|| peer.reply()).collect();
        assert_eq!(replies.len(), of_each, "each call is answered");
        granted(replies.last().unwrap());
    }
}

/// A daemon that was stopped cannot determine when the renewals that it finds were sent. While it
/// has not ended the lease, no other client has had the lock, so the renewal counts.
#[test]
fn a_renewal_that_arrived_before_the_expiry_was_applied_counts() {
    let mut world = World::new();
    world.lease(1, "a");
    let mut waiter = world.connect();
    waiter.send(&call("Acquire", &mutex(2, "a")), &[]);
    world.turn();
    // From here to the next turn, the daemon may have been stopped for any time.
    let mut client = world.connect();
    client.send(&call("Renew", &json!({ "handle": hex(1) })), &[]);
    world.server.leases.all_over();
    world.turn();
    assert_eq!(client.reply().unwrap()["parameters"]["lease"]["renewals"], 1);
    assert_eq!(waiter.reply(), None);
    assert!(world.server.leases.next_end().is_some(), "and lives for another TTL");
}

#[test]
fn a_renewal_after_the_expiry_fails_even_if_the_daemon_was_stopped() {
    let mut world = World::new();
    world.lease(1, "a");
    let mut waiter = world.connect();
    waiter.send(&call("Acquire", &mutex(2, "a")), &[]);
    world.turn();
    world.server.leases.all_over();
    world.server.turn().unwrap();
    granted(&waiter.reply().unwrap());
    let mut client = world.connect();
    let renewed = world.call(&mut client, "Renew", &json!({ "handle": hex(1) }));
    assert_eq!(renewed["error"], "io.canal.Lock.LeaseLost");
    assert_eq!(renewed["parameters"]["reason"], "expired");
}

/// The client may have been stopped before it read the grant, and counts the time from its
/// confirmation on.
#[test]
fn the_time_of_a_lease_begins_anew_with_each_confirmation() {
    let mut world = World::new();
    let mut client = world.connect();
    let mut parameters = mutex(1, "a");
    parameters["lease"] = json!({ "handle": hex(1), "ttl_ms": 600_000 });
    granted(&world.call(&mut client, "Acquire", &parameters));
    let mut waiter = world.connect();
    waiter.send(&call("Acquire", &mutex(2, "a")), &[]);
    world.turn();
    // The second confirmation comes from a client that did not read the reply to the first.
    for _ in 0..2 {
        client.send(&call("Confirm", &json!({ "tag": hex(1) })), &[]);
        world.server.leases.all_over();
        world.turn();
        let confirmed = client.reply().unwrap();
        assert_eq!(confirmed.get("error"), None, "{confirmed}");
        assert_eq!(waiter.reply(), None);
        assert!(world.server.leases.next_end().is_some_and(|end| end > 0));
    }
    world.server.leases.all_over();
    world.server.turn().unwrap();
    granted(&waiter.reply().unwrap());
    let confirmed = world.call(&mut client, "Confirm", &json!({ "tag": hex(1) }));
    assert_eq!(confirmed["error"], "io.canal.Lock.UnknownTag");
}

/// The daemon was woken, and stopped before it looked for the cause.
#[test]
fn a_renewal_in_the_socket_counts_before_its_lease_expires() {
    let mut world = World::new();
    world.lease(1, "a");
    let mut client = world.connect();
    world.turn();
    let _other = world.connect();
    assert!(world.server.conns.wait(Some(Duration::ZERO)));
    client.send(&call("Renew", &json!({ "handle": hex(1) })), &[]);
    world.server.leases.all_over();
    world.server.turn().unwrap();
    assert_eq!(client.reply().unwrap()["parameters"]["lease"]["renewals"], 1);
}

#[test]
fn a_size_that_cannot_be_stored_lets_no_waiter_in() {
    let mut world = World::new();
    let _holder = world.hold(1, "a");
    let mut waiter = world.connect();
    waiter.send(&call("Acquire", &mutex(2, "a")), &[]);
    world.turn();
    let mut operator = world.connect();
    let more = json!({ "key": "a", "slots": 2 });
    // Nothing can replace a directory.
    let (state, kept) = (world.place.dir.join("state.json"), world.place.dir.join("kept"));
    std::fs::rename(&state, &kept).unwrap();
    std::fs::create_dir(&state).unwrap();
    let refused = world.call(&mut operator, "Resize", &more);
    assert_eq!(refused["error"], "io.canal.Lock.DiskFull", "{refused}");
    world.turn();
    assert_eq!(waiter.reply(), None);
    assert_eq!(world.server.decide.table().holds().len(), 1);
    std::fs::remove_dir(&state).unwrap();
    std::fs::rename(&kept, &state).unwrap();
    let resized = world.call(&mut operator, "Resize", &more);
    assert_eq!(resized["parameters"]["now"], "2", "{resized}");
    granted(&waiter.reply().unwrap());
}

#[test]
fn a_size_of_another_kind_is_not_stored() {
    let mut world = World::new();
    let _holder = world.hold(1, "a");
    let before = std::fs::read(world.place.dir.join("state.json")).unwrap();
    let mut operator = world.connect();
    let other = json!({ "key": "a", "per": 2, "buckets": 2 });
    let refused = world.call(&mut operator, "Resize", &other);
    assert_eq!(refused["error"], "io.canal.Lock.Mismatch", "{refused}");
    assert_eq!(std::fs::read(world.place.dir.join("state.json")).unwrap(), before);
}

/// Does the delayed work that each earlier event causes once.
fn let_pass(world: &mut World) {
    let due = &mut world.server.due;
    for due in [&mut due.progress, &mut due.home] {
        *due = due.map(|_| Instant::now());
    }
    world.server.turn().unwrap();
}

#[test]
fn an_idle_daemon_wakes_to_note_that_it_knows_all_that_it_granted_over_nodes() {
    let mut world = World::new();
    world.server.due.node_settled = Some(Instant::now() + Duration::from_secs(600));
    let time = world.server.time_to_sleep();
    assert!(time.is_some_and(|time| time <= Duration::from_secs(600)), "{time:?}");
}

#[test]
fn a_daemon_where_nothing_happens_sleeps_until_something_ends() {
    let mut world = World::new();
    // The state of this daemon is new, so the time at which it grants over nodes is due, too.
    world.server.due.node_settled = None;
    world.turn();
    assert_eq!((world.server.time_to_sleep(), world.server.timer.set_for), (None, None));
    world.lease(1, "a");
    let mut waiter = world.connect();
    let mut asked = mutex(2, "a");
    asked["wait_ms"] = 60_000.into();
    waiter.send(&call("Acquire", &asked), &[]);
    world.turn();
    // The last change is reported once, and the files are checked once.
    assert!(world.server.due.progress.is_some());
    let_pass(&mut world);
    assert_eq!(world.server.time_to_sleep(), None);
    assert_eq!(world.server.timer.set_for, world.server.waiters.next_end());
    drop(waiter);
    world.turn();
    let_pass(&mut world);
    assert_eq!(world.server.time_to_sleep(), None);
    assert_eq!(world.server.timer.set_for, world.server.leases.next_end());
}

#[test]
fn the_alarm_ends_waits_and_leases() {
    let mut world = World::new();
    world.lease(1, "a");
    let mut waiter = world.connect();
    let mut asked = mutex(2, "a");
    asked["wait_ms"] = 20.into();
    waiter.send(&call("Acquire", &asked), &[]);
    world.turn();
    world.server.due.progress = None;
    while waiter.reply().is_none() {
        let time = world.server.time_to_sleep();
        world.server.conns.wait(time);
        world.server.turn().unwrap();
    }
    world.server.leases.all_over();
    world.server.turn().unwrap();
    assert_eq!(world.server.leases.next_end(), None);
}

/// Requests a key in a mode, for a separate process, and waits for 20 ms at most.
fn ask_in_mode(world: &mut World, tag: u128, mode: &str) -> (Holder, Peer) {
    let owner = Holder::start();
    let mut asker = world.connect();
    let mut parameters = mutex(tag, "x");
    parameters["items"] = json!([{ "key": "x", "mode": mode }]);
    parameters["owner_fd"] = 0.into();
    parameters["wait_ms"] = 20.into();
    asker.send(&call("Acquire", &parameters), &[owner.pidfd().as_fd()]);
    world.turn();
    (owner, asker)
}

#[test]
fn a_waiter_granted_by_the_end_of_another_wait_is_told() {
    let mut world = World::new();
    let (_reader, mut first) = ask_in_mode(&mut world, 1, "read");
    granted(&first.reply().unwrap());
    let (_writer, mut second) = ask_in_mode(&mut world, 2, "write");
    let (_other, mut third) = ask_in_mode(&mut world, 3, "read");
    // Both waits have expired by the next turn.
    std::thread::sleep(Duration::from_millis(40));
    world.turn();
    assert!(second.reply().unwrap()["error"].is_string());
    granted(&third.reply().unwrap());
}

#[test]
fn a_waiter_whose_grant_may_not_be_told_yet_is_told_why() {
    let mut world = World::new();
    let _holder = world.hold(1, "a");
    let mut peer = world.connect();
    peer.send(&with_more(call("Status", &json!({}))), &[]);
    world.turn();
    peer.reply().unwrap();
    let id = world.server.conns.those(Subject::Status)[0];
    // As with an engine that does not answer renewals.
    let table = world.server.decide.table();
    let hold = table.holds().next().unwrap();
    let granted = table.granted(hold);
    let step = world.server.keep_untold(id, &granted);
    assert!(matches!(step, Ok(Step::Wait(_))));
    world.server.carry_out(id, step);
    world.server.turn().unwrap();
    let progress = peer.reply().expect("a word of progress");
    assert_eq!(progress["continues"], true, "{progress}");
    let said = &progress["parameters"];
    assert_eq!((&said["key"], &said["position"]), (&json!("a"), &json!(0)));
    assert_eq!(said["reason"], "this host has not yet joined the engine's table");
    world.server.turn().unwrap();
    assert_eq!(peer.reply(), None, "it is told once");
}

/// The deferral is longer than any test, so only the death can end it.
#[test]
fn a_deferred_request_is_granted_as_soon_as_the_holder_has_ended() {
    let mut world = World::new();
    let holder = world.hold(1, "a");
    let owner = Holder::start();
    let (id, mut peer) = world.connect_as(world.server.about.uid);
    world.turn();
    let mut request = world.server.decide.table().holds().next().unwrap().asked.clone();
    let asked = Arc::make_mut(&mut request);
    (asked.tag, asked.wait) = (Tag(2), Wait::No);
    asked.owner = Owner::Process(process_of(&owner.pidfd()).unwrap());
    let until = Instant::now() + Duration::from_secs(3600);
    let mut newcomer = PendingAcquire::again(request, Some(owner.pidfd()));
    newcomer.deferred_until = Some(until);
    world.server.conns.set_state(id, CallState::Deferred(newcomer));
    world.turn();
    assert_eq!(peer.reply(), None);
    holder.end();
    world.turn();
    granted(&peer.reply().expect("a reply"));
}

/// Another client requested the lease, and has not confirmed it.
#[test]
fn a_lease_whose_client_leaves_while_it_is_stored_is_taken_back() {
    let mut world = World::new();
    let mut asker = world.connect();
    let mut parameters = mutex(1, "a");
    parameters["lease"] = json!({ "handle": hex(1), "ttl_ms": 600_000 });
    granted(&world.call(&mut asker, "Acquire", &parameters));
    let (id, _peer) = world.connect_as(world.server.about.uid);
    let table = world.server.decide.table();
    let hold = table.holds().next().unwrap();
    let (request, granted) = (hold.request, Box::new(table.granted(hold)));
    world.server.conns.set_state(id, CallState::Stores(request, Some(granted)));
    world.server.disconnect(id);
    world.server.follow().unwrap();
    assert_eq!(world.server.decide.table().hold_of(request), None);
    world.turn();
    assert_eq!(asker.reply(), None);
}

/// The client closes its writing half while the thread of the history searches.
#[test]
fn a_client_that_sends_nothing_further_still_gets_what_the_history_has() {
    let mut world = World::new();
    let limits = Limits::default();
    let dir = world.place.dir.join("history");
    let files = Files { dir, limits, boot_id: "this boot".to_owned() };
    let history = History::new(Some(files), None);
    world.server.observe = Observe::new(history, Hooks::default(), None);
    let mut peer = world.connect();
    peer.send(&call("History", &json!({})), &[]);
    assert!(world.server.conns.wait(Some(Duration::ZERO)));
    world.server.turn().unwrap();
    peer.stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = None;
    wait_until("it is answered", || {
        world.server.conns.wait(Some(Duration::ZERO));
        world.server.turn().unwrap();
        reply = reply.take().or_else(|| peer.reply());
        reply.is_some()
    });
    let reply = reply.unwrap();
    assert_eq!(reply.get("error"), None, "{reply}");
}

fn with_more(call: Vec<u8>) -> Vec<u8> {
    let mut call: Value = serde_json::from_slice(&call[..call.len() - 1]).unwrap();
    call["more"] = true.into();
    let mut bytes = call.to_string().into_bytes();
    bytes.push(0);
    bytes
}
