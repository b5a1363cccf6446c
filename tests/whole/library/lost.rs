//! A lock that is lost while a guard holds it. The daemon is a fake one that hands out a deadline
//! page like a daemon over an engine.

use std::sync::mpsc;
use std::time::Duration;

use canal::{Endpoint, ErrorKind, Guard, Lock, LostReason, OnLost};

use crate::fake_daemon::{Fake, LONG, deadline, writer};
use crate::world::process::{BOUND, wait_until};

fn lock(fake: &Fake) -> Lock {
    Lock::new("db").endpoint(&Endpoint::at(fake.path("run/canal.sock")).no_start())
}

/// A guard, and the receiver of its callback's messages.
fn watched(fake: &Fake) -> (Guard, mpsc::Receiver<canal::Lost>) {
    let guard = lock(fake).acquire().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |lost| tell.send(lost.clone()).unwrap());
    (guard, told)
}

#[test]
fn a_guard_tells_that_its_lock_is_lost_when_its_time_is_over() {
    let fake = Fake::sure(LONG, LONG);
    let (guard, told) = watched(&fake);
    assert!(!guard.is_lost());
    assert_eq!(guard.wait_lost(Duration::from_millis(10)), None);
    fake.shared().writer.as_ref().unwrap().publish(deadline(0, LONG));
    assert!(guard.is_lost(), "the page says so");
    assert!(guard.wait_lost(BOUND).is_some());
    let lost = guard.lost().unwrap();
    assert_eq!((lost.token, lost.reason), (9, LostReason::Unreachable));
    assert_eq!((lost.engine.as_str(), lost.host.as_str()), ("etcd", "alpha"));
    // The timer of the thread still has the earlier deadline; no renewal is in time now.
    fake.shared().writer.as_ref().unwrap().publish(deadline(LONG, LONG));
    assert!(guard.is_lost(), "what is lost stays lost");
    fake.die();
    assert_eq!(told.recv_timeout(BOUND).unwrap(), lost);
    let (tell, at_once) = mpsc::channel();
    guard.on_lost(move |lost| tell.send(lost.token).unwrap());
    assert_eq!(at_once.try_recv(), Ok(9), "a later callback is called at once");
}

#[test]
fn a_guard_wakes_by_itself_at_the_deadline() {
    let fake = Fake::sure(300, LONG);
    let (guard, told) = watched(&fake);
    assert_eq!(told.recv_timeout(BOUND).unwrap().reason, LostReason::Unreachable);
    assert!(guard.is_lost());
}

#[test]
fn a_guard_goes_on_with_the_page_of_the_next_daemon() {
    let fake = Fake::sure(LONG, LONG);
    let (guard, told) = watched(&fake);
    let asked = || {
        let shared = fake.shared();
        shared.calls.iter().filter(|(name, _)| name == "DeadlinePage").count()
    };
    // The guard ignores a page that reported the loss before the guard took it. Then the test tries
    // again.
    wait_until("the next page says that the lock is lost", || {
        let before = asked();
        // The next daemon has taken over the hold, and writes another page.
        let old = fake.shared().writer.replace(writer(LONG, LONG));
        drop(old);
        wait_until("the present daemon is asked", || asked() > before);
        fake.shared().writer.as_mut().unwrap().lost(canal::sys::deadline_page::Why::Gone);
        guard.wait_lost(Duration::from_millis(100)).is_some()
    });
    assert_eq!(told.recv_timeout(BOUND).unwrap().reason, LostReason::Gone);
}

#[test]
fn a_guard_is_told_by_the_next_daemon_that_its_lock_was_lost() {
    let fake = Fake::sure(LONG, LONG);
    let (guard, told) = watched(&fake);
    let mut shared = fake.shared();
    (shared.writer, shared.lost) = (None, Some("rewritten"));
    drop(shared);
    assert_eq!(told.recv_timeout(BOUND).unwrap().reason, LostReason::Rewritten);
    assert!(guard.is_lost());
}

#[test]
fn a_lock_that_is_lost_when_it_comes_is_an_error() {
    let fake = Fake::sure(0, LONG);
    let error = lock(&fake).acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(fake.shared().calls.last().unwrap().0, "Release", "it is given back all the same");
}

#[test]
fn what_the_daemon_does_at_a_loss_is_asked_for() {
    let fake = Fake::sure(LONG, LONG);
    for (on_lost, word) in [(OnLost::Tell, "warn"), (OnLost::Term, "term"), (OnLost::Kill, "kill")]
    {
        drop(lock(&fake).on_lost(on_lost).acquire().unwrap());
        let shared = fake.shared();
        let (_, acquire) = shared.calls.iter().rfind(|(name, _)| name == "Acquire").unwrap();
        // The daemon kills by default.
        assert_eq!(acquire["on_lost"].as_str().unwrap_or("kill"), word);
        assert!(acquire["wrapper"].is_null(), "nothing stands beside this process");
    }
}

#[test]
fn a_lock_on_one_machine_is_never_lost() {
    let fake = Fake::start(None);
    let (guard, told) = watched(&fake);
    assert_eq!(guard.wait_lost(Duration::from_millis(1)), None);
    drop(guard);
    assert!(told.try_recv().is_err());
}
