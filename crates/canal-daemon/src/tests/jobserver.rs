//! The job tokens of a build: how many slots it has, turn by turn.

use std::os::fd::{AsFd, OwnedFd};

use nix::unistd::{read, write};
use serde_json::{Value, json};

use crate::tests::{Holder, Peer, World, call, granted, hex, try_mutex};
use canal_core::{Key, Tag};
use canal_sys::clock;
use canal_sys::rerun::wait_until;

const SLOTS: u64 = 3;

/// A build whose jobs run in the test itself.
struct Build {
    peer: Peer,
}

/// Whether the build finds its jobserver by the name of a single FIFO: both forms behave alike.
const FORMS: [bool; 2] = [false, true];

impl Build {
    fn start(world: &mut World, finds_fifo: bool) -> Self {
        let mut peer = world.connect();
        let mut request = request(1);
        request["jobserver_fifo"] = finds_fifo.into();
        let grant = world.call(&mut peer, "Acquire", &request);
        granted(&grant);
        assert_eq!((&grant["parameters"]["offers_fd"], peer.fds.len()), (&json!(1), 3));
        Self { peer }
    }

    fn offers(&self) -> &OwnedFd {
        &self.peer.fds[1]
    }

    /// The number of tokens offered.
    fn offered(&self) -> u64 {
        rustix::io::ioctl_fionread(self.offers()).unwrap()
    }

    /// Takes the offered token.
    #[track_caller]
    fn take(&self, world: &mut World) {
        assert_eq!(self.offered(), 1);
        assert_eq!(read(self.offers(), &mut [0; 1]), Ok(1));
        world.turn();
    }

    /// Writes tokens back.
    fn give_back(&self, world: &mut World, tokens: usize) {
        assert_eq!(write(&self.peer.fds[2], &vec![b'+'; tokens]), Ok(tokens));
        world.turn();
    }
}

fn request(tag: u128) -> Value {
    json!({
        "tag": hex(tag),
        "items": [{ "key": "cpu", "slots": SLOTS }],
        "command": "make",
        "with_children": true,
        "jobserver": true,
    })
}

fn held(world: &World) -> u64 {
    world.server.decide.table().held_of(&Key::new("cpu").unwrap())
}

/// Requests a slot that must be free, and releases it.
#[track_caller]
fn try_slot(world: &mut World, tag: u128) -> bool {
    let holder = Holder::start();
    let mut peer = world.connect();
    let mut parameters = try_mutex(tag, "cpu");
    parameters["items"][0]["slots"] = SLOTS.into();
    parameters["owner_fd"] = 0.into();
    peer.send(&call("Acquire", &parameters), &[holder.pidfd().as_fd()]);
    world.turn();
    let reply = peer.reply().expect("a reply");
    drop(peer);
    wait_until("processes that other tests start have closed the connection, too", || {
        world.turn();
        world.server.decide.table().tagged(Tag(tag)).is_none()
    });
    reply["parameters"]["token"].is_u64()
}

#[test]
fn a_build_gets_one_token_after_the_other_up_to_the_last_slot() {
    for finds_fifo in FORMS {
        let mut world = World::new();
        let build = Build::start(&mut world, finds_fifo);
        assert_eq!(held(&world), 2, "its own slot, and that of the token that is offered");
        build.take(&mut world);
        build.take(&mut world);
        assert_eq!((held(&world), build.offered()), (3, 0));
        assert!(!try_slot(&mut world, 9));
        build.give_back(&mut world, 1);
        assert_eq!((held(&world), build.offered()), (3, 1), "it may have the token again");
        build.give_back(&mut world, 1);
        assert_eq!((held(&world), build.offered()), (2, 1), "one offer is enough");
    }
}

#[test]
fn bytes_that_nobody_took_make_no_tokens() {
    for finds_fifo in FORMS {
        let mut world = World::new();
        let build = Build::start(&mut world, finds_fifo);
        build.give_back(&mut world, 50);
        assert_eq!((held(&world), build.offered()), (2, 1));
        build.take(&mut world);
        build.give_back(&mut world, 50);
        assert_eq!((held(&world), build.offered()), (2, 1));
        assert_eq!(write(build.offers(), &[b'+'; 50]), Ok(50));
        build.give_back(&mut world, 1);
        assert_eq!((held(&world), build.offered()), (2, 1));
        build.take(&mut world);
        build.take(&mut world);
        assert!(!try_slot(&mut world, 9), "three slots are in use");
    }
}

#[test]
fn an_offer_that_nobody_took_makes_no_request_fail() {
    for finds_fifo in FORMS {
        let mut world = World::new();
        let build = Build::start(&mut world, finds_fifo);
        build.take(&mut world);
        assert_eq!((held(&world), build.offered()), (3, 1));
        for tag in 10..13 {
            assert!(try_slot(&mut world, tag));
            assert_eq!((held(&world), build.offered()), (3, 1), "it is offered again");
        }
    }
}

#[test]
fn a_waiter_gets_the_slot_of_the_next_token_that_comes_back() {
    for finds_fifo in FORMS {
        let mut world = World::new();
        let build = Build::start(&mut world, finds_fifo);
        build.take(&mut world);
        build.take(&mut world);
        let holder = Holder::start();
        let mut peer = world.connect();
        let mut parameters = request(9);
        parameters["jobserver"] = false.into();
        parameters["with_children"] = false.into();
        parameters["owner_fd"] = 0.into();
        peer.send(&call("Acquire", &parameters), &[holder.pidfd().as_fd()]);
        world.turn();
        assert_eq!(peer.reply(), None, "it waits");
        build.give_back(&mut world, 1);
        granted(&peer.reply().expect("a grant"));
        assert_eq!((held(&world), build.offered()), (3, 0));
    }
}

#[test]
fn the_next_daemon_counts_the_tokens_that_are_out() {
    for finds_fifo in FORMS {
        let mut world = World::new();
        let build = Build::start(&mut world, finds_fifo);
        build.take(&mut world);
        build.take(&mut world);
        // One token returns while no daemon runs.
        let returned = write(&build.peer.fds[2], b"+");
        assert_eq!(returned, Ok(1));
        let mut world = world.again();
        world.server.turn().unwrap();
        assert_eq!((held(&world), build.offered()), (3, 1), "one is taken, and one is offered");
        assert_eq!(read(build.offers(), &mut [0; 1]), Ok(1));
        world.turn();
        assert!(!try_slot(&mut world, 9), "none was given out twice");
        build.give_back(&mut world, 2);
        assert_eq!((held(&world), build.offered()), (2, 1));
    }
}

#[test]
fn a_token_that_was_recorded_and_never_written_is_free_at_the_next_daemon() {
    for finds_fifo in FORMS {
        let mut world = World::new();
        let build = Build::start(&mut world, finds_fifo);
        build.take(&mut world);
        // The daemon is killed between its record and its write.
        let tag = Tag(1);
        let now = clock::now();
        assert_eq!(read(build.offers(), &mut [0; 1]), Ok(1));
        build.give_back(&mut world, 2);
        world.server.jobservers.get_mut(tag).unwrap().withdraw(1);
        world.server.jobservers.offer(tag, now);
        let mut world = world.again();
        world.server.turn().unwrap();
        assert_eq!((held(&world), build.offered()), (2, 1));
    }
}

#[test]
fn all_tokens_end_with_the_hold_of_the_build() {
    for finds_fifo in FORMS {
        let mut world = World::new();
        let mut build = Build::start(&mut world, finds_fifo);
        build.take(&mut world);
        build.take(&mut world);
        assert_eq!(held(&world), 3);
        world.call(&mut build.peer, "Release", &json!({ "key": "cpu" }));
        world.turn();
        assert_eq!(held(&world), 0);
        assert!(world.server.jobservers.is_empty());
    }
}

#[test]
fn a_smaller_size_takes_back_what_nobody_took() {
    for finds_fifo in FORMS {
        let mut world = World::new();
        let build = Build::start(&mut world, finds_fifo);
        let mut peer = world.connect();
        world.call(&mut peer, "Resize", &json!({ "key": "cpu", "slots": 1 }));
        assert_eq!((held(&world), build.offered()), (1, 0));
        world.call(&mut peer, "Resize", &json!({ "key": "cpu", "slots": 2 }));
        assert_eq!((held(&world), build.offered()), (2, 1));
    }
}

#[test]
fn a_jobserver_for_what_is_not_one_slot_is_refused() {
    let mut world = World::new();
    let mut peer = world.connect();
    for change in [
        json!({ "with_children": false }),
        json!({ "items": [{ "key": "cpu", "slots": 3, "count": 2 }] }),
        json!({ "items": [{ "key": "cpu", "mode": "read" }] }),
        json!({ "items": [{ "key": "a" }, { "key": "b" }] }),
    ] {
        let mut parameters = request(1);
        for (name, value) in change.as_object().unwrap() {
            parameters[name] = value.clone();
        }
        let reply = world.call(&mut peer, "Acquire", &parameters);
        assert_eq!(reply["error"], "io.canal.Lock.BadRequest", "{reply}");
    }
    assert_eq!(world.server.decide.table().holds().len(), 0);
}

#[test]
fn a_single_fifo_never_stays_full_of_what_passed_through_it() {
    let mut world = World::new();
    let build = Build::start(&mut world, true);
    build.take(&mut world);
    build.take(&mut world);
    // Without a daemon's turn, more bytes than the FIFO can hold, with one always left in it.
    assert_eq!(write(&build.peer.fds[2], b"+"), Ok(1));
    let write_end = &build.peer.fds[2];
    nix::fcntl::fcntl(write_end, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
        .unwrap();
    for _ in 0..3 * 4096 {
        assert_eq!(write(write_end, b"+"), Ok(1));
        assert_eq!(read(build.offers(), &mut [0; 1]), Ok(1));
    }
    world.turn();
    assert_eq!((held(&world), build.offered()), (3, 1), "one is taken, and one is offered");
}

#[test]
fn a_build_finds_its_single_fifo_by_the_path_in_the_grant() {
    let mut world = World::new();
    let mut peer = world.connect();
    let mut request = request(1);
    request["jobserver_fifo"] = true.into();
    let grant = world.call(&mut peer, "Acquire", &request);
    let path = grant["parameters"]["jobserver_path"].as_str().unwrap();
    let by_path = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
    for fd in &peer.fds[1..] {
        assert_eq!(nix::sys::stat::fstat(fd).unwrap().st_ino, by_path);
    }
}
