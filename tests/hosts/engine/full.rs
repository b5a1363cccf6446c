//! An etcd that has used up its quota while commands run and wait.

use crate::etcd_server::{installed, start_etcd_with};
use crate::shared_table::commands::{finish, next, start_for_now};
use crate::shared_table::{Log, hosts, until_idle};
use crate::world::process::{alive, signal, wait_until};

use nix::sys::signal::Signal;

#[test]
fn a_full_etcd_is_shown_and_a_daemon_killed_meanwhile_costs_no_waiter_its_place() {
    if !installed() {
        return;
    }
    let server = start_etcd_with(&["--quota-backend-bytes=4000000"]);
    let log = Log::in_etcd(&server.endpoint(), None);
    let [a] = hosts(&log);
    let holder = start_for_now(&a, "1");
    let waiter = next(&a, "2");
    a.world.until_waiting("x", 1);
    server.fill();
    let late = next(&a, "3");
    let engine = || a.world.look().and_then(|status| status.engine);
    let shows =
        || engine().and_then(|it| it.why).is_some_and(|why| why.contains("etcd is out of space"));
    wait_until("the status shows it", shows);
    assert!(engine().unwrap().hint.is_some_and(|hint| hint.contains("etcdctl alarm disarm")));
    let refused = a.world.canal(["run", "-n", "-k", "y", "--", "echo", "ran"]).end().code(125);
    assert!(refused.stderr.contains("etcd is out of space"), "{refused:?}");
    let pid = a.world.daemon_pid();
    signal(pid, Signal::SIGKILL);
    wait_until("the daemon is dead", || !alive(pid));
    wait_until("the next daemon shows it", || {
        a.world.canal(["status"]).end();
        shows()
    });
    server.make_room();
    a.until("member");
    wait_until("nothing is full", || engine().is_some_and(|it| it.why.is_none()));
    finish(&a, "1");
    for command in [holder, waiter, late] {
        command.end().code(0);
    }
    until_idle(&[a]);
}
