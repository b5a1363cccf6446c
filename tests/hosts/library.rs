//! A program that holds a lock with a guard of the library, on a host that loses the lock.

use std::sync::mpsc;
use std::thread;

use canal::{Endpoint, Lock, LostReason};

use crate::hosts::over_each_engine;
use crate::shared_table::{Host, Log, mortal_and_patient_hosts, until_idle};
use crate::world::process::BOUND;

over_each_engine!(
    a_guard_tells_of_its_loss_before_another_host_has_the_lock,
    a_guard_goes_on_over_a_restart_of_its_daemon,
);

fn lock(host: &Host) -> Lock {
    let endpoint = Endpoint::at(host.world.socket()).program(crate::world::canal());
    Lock::new("x").slots(1).endpoint(&endpoint).wait(BOUND)
}

fn a_guard_tells_of_its_loss_before_another_host_has_the_lock(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let guard = lock(&a).acquire().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |lost| tell.send(lost.clone()).unwrap());
    let (held, next) = (&guard, lock(&b));
    let after = thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let after = next.acquire().unwrap();
            assert!(held.is_lost(), "another host has it");
            after
        });
        b.world.until_waiting("x", 1);
        assert!(!guard.is_lost());
        a.proxy.cut();
        waiter.join().unwrap()
    });
    let lost = told.recv_timeout(BOUND).unwrap();
    assert_eq!((lost.reason, lost.token), (LostReason::Unreachable, guard.token()));
    assert_eq!(lost.host, "a");
    assert!(lost.to_string().contains(": canal last reached "), "{lost}");
    assert!(after.token() > guard.token());
    assert!(!after.is_lost());

    // The daemon neither ends this process nor waits for its end.
    a.proxy.mend();
    a.until("member");
    drop((after, guard));
    lock(&a).acquire().unwrap().release().unwrap();
    until_idle(&[a, b]);
}

fn a_guard_goes_on_over_a_restart_of_its_daemon(log: &Log) {
    let [a, b] = mortal_and_patient_hosts(log);
    let guard = lock(&b).acquire().unwrap();
    b.world.canal(["daemon", "--stop"]).end().code(0);
    b.join();
    assert!(!guard.is_lost());
    a.world.until_held("x", 1);
    assert!(lock(&a).try_acquire().unwrap().is_none());
    guard.release().unwrap();
    until_idle(&[a, b]);
}
