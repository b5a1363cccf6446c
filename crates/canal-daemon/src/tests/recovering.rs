//! A daemon with an engine that begins a new era.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use serde_json::{Value, json};

use crate::calls::in_flight::Completion;
use crate::cluster::journal_or_engine::Decide;
use crate::cluster::member_and_engine::Cluster;
use crate::cluster::sent_tokens::SentTokens;
use crate::config::effective::EffectiveConfig;
use crate::config::file::Config;
use crate::config::sections_and_defaults::SocketAccess;
use crate::membership::tests::direct::Direct;
use crate::membership::{Member, Settings};
use crate::options::Options;
use crate::processes::holder_record::HolderRecord;
use crate::processes::identify_owner::process_of;
use crate::store::table_and_log::Ledger;
use crate::tests::{Holder, Peer, World, call, claim, granted, hex, mutex, try_mutex};
use canal_core::{Ask, Change, Command, HostId, Item, Key, Owner, Request, Tag, View, Wait};
use canal_log::engine::{Answer, Call, Engine, Identity, Outage};
use canal_log::sim::engine::{Flavour, Server};
use canal_protocol::paths::Place;
use canal_sys::clock;
use canal_sys::pidfd::Pidfd;
use canal_sys::process::Origin;
use canal_sys::rerun::wait_until;

/// An engine in memory that this host and a test share.
#[derive(Clone, Debug)]
pub(super) struct Fake {
    server: Arc<Mutex<Server>>,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    /// Whether answers no longer reach this host.
    is_silent: Arc<AtomicBool>,
}

const CLIENT: usize = 7;

impl Engine for Fake {
    fn call(&mut self, call: Call) {
        let answers = self.server.lock().unwrap().calls(CLIENT, clock::boottime_ms(), 1, call);
        self.answers.lock().unwrap().extend(answers);
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<Answer> {
        if self.is_silent.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let answer = self.answers.lock().unwrap().pop_front();
        let answer = answer.or_else(|| self.server.lock().unwrap().push(CLIENT));
        answer.map_or(Poll::Pending, Poll::Ready)
    }

    fn lets_rest(&self) -> bool {
        self.server.lock().unwrap().lets_rest()
    }
}

impl Fake {
    pub(super) fn new() -> Self {
        Self::of(Flavour::Watching)
    }

    pub(super) fn of(flavour: Flavour) -> Self {
        let mut server = Server::new(flavour);
        server.live_anew(1, false);
        let server = Arc::new(Mutex::new(server));
        Self { server, answers: Arc::default(), is_silent: Arc::default() }
    }

    /// Begins a new life of the engine, in which data may be missing.
    fn live_anew(&self, life: u64) {
        self.server.lock().unwrap().live_anew(life, true);
        let away = Answer::Away(Outage::unreachable("another life"));
        self.answers.lock().unwrap().extend([away, Answer::Back]);
    }

    /// The daemon that uses this engine is killed.
    fn disconnect(&self) {
        self.server.lock().unwrap().disconnect(CLIENT);
        self.answers.lock().unwrap().clear();
    }
}

impl World {
    pub(super) fn over(engine: &Fake, folder: tempfile::TempDir) -> Self {
        Self::over_as(engine, folder, 1, Settings::default())
    }

    /// A daemon with this nonce. The previous daemon had another one.
    pub(super) fn over_as(
        engine: &Fake,
        folder: tempfile::TempDir,
        nonce: u128,
        settings: Settings,
    ) -> Self {
        let dir = folder.path().join("run");
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&dir).unwrap();
        let uid = canal_sys::process::user::geteuid().as_raw();
        let place = Place::find(Some(&dir.join("canal.sock")), uid).unwrap();
        let claim = claim(&place);
        let config = Config::read(&[]).unwrap();
        let identity = Identity {
            label: "here".to_owned(),
            machine: "m".to_owned(),
            boot: "b".to_owned(),
            pid_namespace: 1,
            uid,
            dir: dir.display().to_string(),
            dir_number: 0,
        };
        let member = Member::new(settings, identity, nonce);
        let origin = Origin::read().unwrap();
        let options = Options { idle_exit_s: Some(0), ..Options::at(place.clone()) };
        let effective = EffectiveConfig::new(config, place.stores().config.clone(), 1024);
        let home = claim.open(None, SocketAccess::default()).unwrap();
        let holder_record = HolderRecord::open(&dir, origin.clone(), false).unwrap();
        let tokens = SentTokens::open(&place, "fake").unwrap();
        let named: (_, Box<dyn Engine>) = ("fake".to_owned(), Box::new(engine.clone()));
        let cluster = Cluster::new(member, named, true, holder_record, tokens);
        let decide = (Decide::new(Ledger::default(), Some(cluster)), Vec::new());
        let server = crate::start::server(options, home, effective, &origin, decide);
        let server = server.unwrap();
        let mut world = Self { server, place, _folder: folder };
        world.turns();
        assert!(world.server.decide.is_member());
        world
    }

    /// Does enough turns for this host and the engine to finish their exchange.
    pub(super) fn turns(&mut self) {
        for _ in 0..20 {
            self.server.turn().unwrap();
            self.turn();
        }
    }

    pub(super) fn ask(&mut self, parameters: &Value) -> Peer {
        let mut peer = self.connect();
        peer.send(&call("Acquire", parameters), &[]);
        self.turns();
        peer
    }

    fn status(&mut self) -> Value {
        let mut peer = self.connect();
        peer.send(&call("Status", &json!({})), &[]);
        let mut reply = None;
        // The daemon rests after a report that took long.
        wait_until("there is a status", || {
            self.turns();
            reply = reply.take().or_else(|| peer.reply());
            reply.is_some()
        });
        reply.unwrap()["parameters"].clone()
    }
}

pub(super) fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("canal-turns-").tempdir().unwrap()
}

fn lease(tag: u128, key: &str) -> Value {
    let mut parameters = mutex(tag, key);
    parameters["lease"] = json!({ "handle": hex(tag), "ttl_ms": 600_000 });
    parameters
}

#[test]
fn requests_wait_for_the_end_of_a_recovery_and_are_granted_then() {
    let engine = Fake::new();
    let mut world = World::over(&engine, folder());
    granted(&world.ask(&lease(1, "a")).reply().expect("a grant"));
    engine.live_anew(2);
    world.turns();
    let recovery = world.status()["engine"]["recovery"].clone();
    assert!(recovery["left_ms"].as_u64().is_some_and(|left| left <= 66_000), "{recovery}");
    assert_eq!(recovery["hosts"], json!([]), "this one has spoken");
    let mut waits = world.ask(&lease(2, "b"));
    let mut no_wait = world.ask(&try_mutex(3, "c"));
    assert!(waits.reply().is_none() && no_wait.reply().is_none(), "neither is refused as busy");
    let words = world.server.decide.not_a_member().message;
    assert!(words.contains("no locks are granted until"), "{words}");
    // Another host reports that the TTL has passed.
    let mut other = Direct::joined(9, &mut engine.server.lock().unwrap(), clock::boottime_ms());
    let from = other.table.recovery().unwrap().ttl_from.unwrap();
    other.propose(Change::TtlPassed { from });
    other.settle(&mut engine.server.lock().unwrap(), clock::boottime_ms());
    world.turns();
    granted(&waits.reply().expect("it is granted"));
    granted(&no_wait.reply().expect("it is granted, too"));
    assert!(world.status()["engine"]["recovery"].is_null());
}

#[test]
fn who_waits_for_the_end_of_an_earlier_incarnation_is_told_so() {
    let engine = Fake::new();
    let mut world = World::over(&engine, folder());
    let own = world.server.decide.host();
    let label = world.server.decide.table().host(own).unwrap().label.clone();
    assert_eq!(world.server.decide.not_a_member().message, "the engine does not answer");
    let (host, identity) = (HostId(own.0 + 1000), String::new());
    world.server.propose(Change::HostJoin { host, label, identity });
    world.turns();
    let words = world.server.decide.not_a_member().message;
    assert!(words.ends_with("wait until the old membership expires"), "{words}");
}

#[test]
fn the_next_daemon_notices_that_the_log_was_made_anew() {
    let (engine, kept) = (Fake::new(), folder());
    let mut world = World::over(&engine, folder());
    granted(&world.ask(&lease(1, "a")).reply().expect("a grant"));
    let state = world.place.stores().state_dir.join("tokens");
    let text = std::fs::read_to_string(&state).unwrap();
    drop(world);
    let place = kept.path().join("run");
    std::fs::DirBuilder::new().mode(0o700).create(&place).unwrap();
    let uid = canal_sys::process::user::geteuid().as_raw();
    let stores = Place::find(Some(&place.join("canal.sock")), uid).unwrap();
    std::fs::create_dir_all(&stores.stores().state_dir).unwrap();
    std::fs::write(stores.stores().state_dir.join("tokens"), text).unwrap();
    let anew = Fake::new();
    anew.server.lock().unwrap().epoch = 8;
    let world = World::over(&anew, kept);
    assert!(world.server.decide.table().recovery().is_some());
}

/// A request of this process for a mutex, which may wait.
fn request(host: HostId, tag: u128, key: &str) -> Request {
    let own = process_of(&Pidfd::open(std::process::id()).unwrap()).unwrap();
    let ask = Ask::slots(1, Some(View::Slots { slots: 1 }));
    Request {
        tag: Tag(tag),
        host,
        owner: Owner::Process(own),
        parent: None,
        uid: canal_sys::process::user::geteuid().as_raw(),
        command: Command::default(),
        note: None,
        items: vec![Item { key: Key::new(key).unwrap(), ask }],
        wait: Wait::Yes { until: None },
        priority: 0,
        max_waiting: None,
        supersede: None,
        max_run_ms: None,
        provisional: false,
        children: false,
        ttl_ms: None,
        on_lost: Default::default(),
        asker: None,
        over_nodes: None,
        above: None,
    }
}

#[test]
fn requests_of_a_gone_incarnation_are_asked_anew_by_the_next() {
    let engine = Fake::new();
    let mut world = World::over(&engine, folder());
    let now = clock::boottime_ms();
    let mut earlier = Direct::joined(9, &mut engine.server.lock().unwrap(), now);
    earlier.propose(Change::Request(Arc::new(request(earlier.id(), 5, "a"))));
    earlier.settle(&mut engine.server.lock().unwrap(), now);
    world.turns();
    let mut peer = world.ask(&mutex(5, "a"));
    assert_eq!(peer.reply(), None, "the log has the request of the earlier incarnation");
    let host = earlier.id();
    earlier.propose(Change::HostGone { host, by: host });
    earlier.settle(&mut engine.server.lock().unwrap(), now);
    world.turns();
    granted(&peer.reply().expect("it is granted"));
}

/// A daemon with an engine, and another host that holds `a`.
fn beside_a_holder() -> (Fake, World, Direct) {
    let engine = Fake::new();
    let mut world = World::over(&engine, folder());
    let now = clock::boottime_ms();
    let mut other = Direct::joined(9, &mut engine.server.lock().unwrap(), now);
    other.ask(1, "a");
    other.settle(&mut engine.server.lock().unwrap(), now);
    world.turns();
    (engine, world, other)
}

/// Ends the holds of this host.
fn release(host: &mut Direct, engine: &Fake) {
    let own = host.id();
    let frame = host.table.holds().find(|hold| hold.asked.host == own).unwrap().frame;
    host.propose(Change::End { frame });
    host.settle(&mut engine.server.lock().unwrap(), clock::boottime_ms());
}

/// While a process was stopped, its host proposed to suspend its request. The grant precedes the
/// suspension in the log, and other hosts have read both.
#[test]
fn a_grant_that_a_suspension_on_its_way_takes_back_is_not_told() {
    let (engine, mut world, mut other) = beside_a_holder();
    let (owner, mut peer) = (Holder::start(), world.connect());
    let mut parameters = mutex(2, "a");
    parameters["owner_fd"] = 0.into();
    peer.send(&call("Acquire", &parameters), &[owner.pidfd().as_fd()]);
    world.turns();
    assert_eq!(peer.reply(), None, "it waits");
    let request = world.server.decide.table().waiters().next().unwrap().id;
    world.server.suspend(request, Completion::Nothing);
    world.server.waiters.stopped.remove(&request);
    release(&mut other, &engine);
    world.turns();
    assert_eq!(peer.reply(), None, "it is not told of what was taken back");
    assert_eq!(world.server.decide.table().waiters().count(), 1);
    world.server.propose(Change::Resume { request });
    world.turns();
    granted(&peer.reply().expect("a grant"));
}

/// The log does not show yet that the client is back when its process is found stopped.
#[test]
fn a_waiter_that_is_back_and_stopped_for_a_moment_is_granted_its_lock() {
    let (engine, mut world, mut other) = beside_a_holder();
    let owner = Holder::start();
    let before = ask_for(&world, 2, "a", &owner);
    world.turns();
    assert_eq!(world.server.decide.table().waiters().len(), 1);
    let World { server, _folder: folder, .. } = world;
    drop((server, before));
    engine.disconnect();
    let mut world = World::over_as(&engine, folder, 2, Settings::default());
    engine.is_silent.store(true, Ordering::Relaxed);
    let mut peer = ask_for(&world, 2, "a", &owner);
    world.turns();
    owner.stop();
    world.server.look_at_stopped(clock::now());
    owner.go_on();
    engine.is_silent.store(false, Ordering::Relaxed);
    world.turns();
    world.server.look_at_stopped(clock::now());
    release(&mut other, &engine);
    world.turns();
    granted(&peer.reply().expect("a grant"));
}

/// The daemon is killed while a client waits, whose request is then granted. The engine loses the
/// entries after that. In them, another host may have been granted the lock and reported it.
#[test]
fn a_grant_that_an_earlier_daemon_did_not_tell_is_asked_for_again_after_a_loss() {
    let (engine, mut world, mut other) = beside_a_holder();
    let told = token(&mut world.ask(&mutex(3, "b")));
    assert_eq!(world.ask(&mutex(2, "a")).reply(), None, "it waits");
    assert_eq!(world.server.decide.table().waiters().len(), 1);
    let World { server, _folder: folder, .. } = world;
    drop(server);
    engine.disconnect();
    release(&mut other, &engine);
    let untold = other.table.holds().map(|hold| hold.token.0).max().unwrap();
    assert!(untold > told, "it is granted");
    engine.server.lock().unwrap().live_anew(2, true);
    let mut world = World::over_as(&engine, folder, 2, Settings::default());
    let now = clock::boottime_ms();
    let mut third = Direct::joined(8, &mut engine.server.lock().unwrap(), now);
    let recovery = third.table.recovery().unwrap().clone();
    third.propose(Change::TtlPassed { from: recovery.ttl_from.unwrap() });
    for host in recovery.unheard {
        third.propose(Change::HostGone { host, by: third.id() });
    }
    third.settle(&mut engine.server.lock().unwrap(), now);
    world.turns();
    assert!(world.server.decide.table().recovery().is_none());
    assert!(token(&mut world.ask(&mutex(2, "a"))) > untold);
    assert_eq!(token(&mut world.ask(&mutex(3, "b"))), told, "its client has been told of it");
}

/// The token of a grant that a client received.
#[track_caller]
fn token(peer: &mut Peer) -> u64 {
    let reply = peer.reply().expect("a grant");
    granted(&reply);
    reply["parameters"]["token"].as_u64().unwrap()
}

/// Requests a mutex on behalf of another process.
fn ask_for(world: &World, tag: u128, key: &str, owner: &Holder) -> Peer {
    let mut peer = world.connect();
    let mut parameters = mutex(tag, key);
    parameters["owner_fd"] = 0.into();
    peer.send(&call("Acquire", &parameters), &[owner.pidfd().as_fd()]);
    peer
}

#[track_caller]
fn assert_owner_gone(peer: &mut Peer) {
    let reply = peer.reply().expect("an answer");
    assert_eq!(reply["error"], "io.canal.Lock.OwnerGone", "{reply}");
}

/// The end of the owner is reported before the grant is read, but follows it in the log.
#[test]
fn a_grant_for_a_process_that_died_while_it_waited_is_not_told() {
    let (engine, mut world, mut other) = beside_a_holder();
    let owner = Holder::start();
    let mut peer = ask_for(&world, 2, "a", &owner);
    world.turns();
    assert_eq!(peer.reply(), None, "it waits");
    release(&mut other, &engine);
    owner.end();
    world.turns();
    assert_owner_gone(&mut peer);
    assert_eq!(world.server.decide.table().holds().len(), 0);
}

#[test]
fn a_grant_for_a_process_that_died_while_its_request_was_on_the_way_is_not_told() {
    let engine = Fake::new();
    let mut world = World::over(&engine, folder());
    let owner = Holder::start();
    let mut peer = ask_for(&world, 2, "a", &owner);
    let is_on_the_way = |world: &World| world.server.decide.in_flight.len() > 0;
    for _ in 0..100 {
        if !is_on_the_way(&world) {
            world.server.conns.wait(Some(Duration::ZERO));
            world.server.turn().unwrap();
        }
    }
    assert!(is_on_the_way(&world), "the engine has it, and the daemon has not read its answer");
    owner.end();
    world.turns();
    assert_owner_gone(&mut peer);
    assert_eq!(world.server.decide.table().holds().len(), 0);
}

#[test]
fn a_daemon_over_an_engine_is_no_node_and_says_why() {
    let engine = Fake::new();
    let mut world = World::over(&engine, folder());
    let mut ask = |method: &str, parameters: Value| {
        let mut peer = world.connect();
        let call =
            json!({ "method": format!("io.canal.Nodes.{method}"), "parameters": parameters });
        peer.send((call.to_string() + "\0").as_bytes(), &[]);
        world.turns();
        peer.reply().expect("an answer")
    };
    let identity = ask("Identify", json!({}))["parameters"].clone();
    assert_eq!(identity["lasting"], false);
    let refused = ask(
        "Collect",
        json!({
            "run": hex(1), "tag": hex(2), "handle": hex(3), "ttl_ms": 60_000, "command": "x",
            "items": [{ "key": "a", "slots": 1 }], "nodes": [identity["node"]], "require": "all",
        }),
    );
    assert_eq!(refused["error"], "io.canal.Nodes.NotLasting");
    let message = refused["parameters"]["message"].as_str().unwrap();
    assert_eq!(message, "this daemon is not a node: it has an engine");
}
