//! Engines that stop and restart while commands run and wait.

use std::time::Duration;

use crate::hosts::over_each_engine;
use crate::shared_table::commands::{finish, lost, never_both, next, queue, start, start_for_now};
use crate::shared_table::{Host, Log, hosts, hosts_timed, mortal_hosts, until_idle};
use crate::world::process::wait_until;
use crate::world::record::Events;
use crate::{etcd_server, postgres_server};

over_each_engine!(
    until_shortly_before_commands_must_end,
    what_was_lost_is_recorded_while_the_engine_is_away,
    the_status_follows_the_renewals_of_other_hosts,
);

/// One command runs, and others wait or arrive during the outage. All of them continue.
fn shorter_than_commands_may_go_on_without_it(log: &Log, mut engine: impl FnMut(bool)) {
    let [a, b] = hosts(log);
    let holder = start_for_now(&a, "1");
    let mut others = vec![queue(&b, &[&a, &b], "2", 1), queue(&a, &[&a, &b], "3", 2)];
    engine(false);
    a.until("away");
    b.until("away");
    others.push(next(&b, "4"));
    let refused = b.world.canal(["run", "-n", "-k", "y", "--", "echo", "ran"]).end().code(125);
    assert!(refused.stderr.contains("unable to reach its engine since"), "{refused:?}");
    let over = b.world.canal(["run", "-w", "1", "-k", "y", "--", "echo", "ran"]).end().code(75);
    assert!(over.stderr.contains("unable to reach its engine since"), "{over:?}");
    let events = Events::of(&a.world);
    assert_eq!((events.started(), events.ended()), (vec!["1"], 0));
    engine(true);
    a.until("member");
    b.until("member");
    a.world.until_waiting("x", 3);
    finish(&a, "1");
    holder.end().code(0);
    for other in others {
        other.end().code(0);
    }
    never_both(&a, &["1", "2", "3", "4"]);
    until_idle(&[a, b]);
}

/// The running command ends in time and reports why; the daemon requests the waiting one again.
fn longer_than_the_ttl(log: &Log, mut engine: impl FnMut(bool)) {
    let [a, b] = mortal_hosts(log);
    let holder = start(&a, "1");
    let other = queue(&b, &[&a, &b], "2", 1);
    engine(false);
    lost(holder, "canal last reached ");
    // It may have been killed before it could record its end.
    assert_eq!(Events::of(&a.world).started(), ["1"]);
    for host in [&a, &b] {
        let said = || std::fs::read_to_string(host.world.runtime().join("daemon.log")).unwrap();
        wait_until("it gives up", || said().contains("lost all holds of this host"));
    }
    engine(true);
    other.end().code(0);
    never_both(&a, &["1", "2"]);
    a.until("member");
    a.world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
    until_idle(&[a, b]);
}

/// The network to the engine is cut until shortly before the running commands would have to end.
fn until_shortly_before_commands_must_end(log: &Log) {
    let hosts: [_; 3] = hosts_timed(log, "ttl = \"12s\"\nrenewal = \"500ms\"");
    let holders: Vec<_> =
        hosts.iter().map(|host| (host, host.world.holder(&["-k", &host.label()]))).collect();
    // A renewal sent earlier is good for nine seconds.
    hosts.iter().for_each(|host| host.proxy.cut());
    std::thread::sleep(Duration::from_millis(6_500));
    hosts.iter().for_each(|host| host.proxy.mend());
    hosts.iter().for_each(|host| host.until("member"));
    for (host, holder) in holders {
        let ended = holder.finish();
        assert_eq!(ended.code, Some(0), "{}: {ended:?}", host.label());
    }
}

#[test]
fn etcd_crashes_and_is_back_before_commands_must_end() {
    if !etcd_server::installed() {
        return;
    }
    let mut server = etcd_server::start_etcd();
    let log = Log::in_etcd(&server.endpoint(), None);
    shorter_than_commands_may_go_on_without_it(&log, |up| {
        if up { server.start() } else { server.kill() }
    });
}

#[test]
fn etcd_is_stopped_for_longer_than_the_ttl() {
    if !etcd_server::installed() {
        return;
    }
    let mut server = etcd_server::start_etcd();
    let log = Log::in_etcd(&server.endpoint(), None);
    longer_than_the_ttl(&log, |up| if up { server.start() } else { server.stop() });
}

#[test]
fn postgres_crashes_and_is_back_before_commands_must_end() {
    let Some(mut server) = postgres_server::start_postgres() else { return };
    let log = Log::in_postgres(&server);
    shorter_than_commands_may_go_on_without_it(&log, |up| {
        if up { server.start() } else { server.crash() }
    });
}

#[test]
fn postgres_is_stopped_for_longer_than_the_ttl() {
    let Some(mut server) = postgres_server::start_postgres() else { return };
    let log = Log::in_postgres(&server);
    longer_than_the_ttl(&log, |up| if up { server.start() } else { server.halt() });
}

#[test]
fn the_reason_that_is_shown_for_an_outage_is_the_present_one() {
    let Some(mut server) = postgres_server::start_postgres() else { return };
    let log = Log::in_postgres(&server);
    let [a] = hosts(&log);
    server.crash();
    a.until("away");
    server.configure("default_transaction_read_only = on");
    server.start();
    let why = || a.world.look().and_then(|status| status.engine?.why).unwrap_or_default();
    wait_until("the reason is another one", || why().contains("read-only"));
    server.configure("default_transaction_read_only = off");
    server.halt();
    server.start();
    a.until("member");
}

/// The last time at which a host knew that the other one lived.
fn seen_of_other(host: &Host) -> Option<String> {
    let status = host.world.look()?;
    let label = status.engine.as_ref()?.host.clone();
    status.hosts.into_iter().find(|it| it.host != label)?.renewed
}

/// A lost hold counts as ended at once, and the time of the last renewal remains known.
fn what_was_lost_is_recorded_while_the_engine_is_away(log: &Log) {
    let [a, b] = mortal_hosts(log);
    let holder = start(&a, "1");
    wait_until("it has seen the other host", || seen_of_other(&a).is_some());
    a.proxy.cut();
    lost(holder, "canal last reached ");
    wait_until("the record says so", || {
        a.world.canal(["history"]).end().code(0).stdout.contains("lost")
    });
    assert!(seen_of_other(&a).is_some(), "{:?}", a.world.look());
    a.proxy.mend();
    a.until("member");
    until_idle(&[a, b]);
}

/// The status shows when the other host was last known to live.
fn the_status_follows_the_renewals_of_other_hosts(log: &Log) {
    let [a, b] = hosts(log);
    let mut shown = None;
    for _ in 0..3 {
        wait_until("a later renewal is shown", || seen_of_other(&a) > shown);
        shown = seen_of_other(&a);
    }
    drop(b);
}

/// An operator empties the table of hosts while one of them is cut off permanently.
#[test]
fn a_host_that_postgres_has_no_record_of_holds_nothing_forever() {
    let Some(server) = postgres_server::start_postgres() else { return };
    let log = Log::in_postgres(&server);
    let [a, b] = mortal_hosts(&log);
    let holder = start(&a, "1");
    a.proxy.cut();
    server.sql_in(log.name(), "TRUNCATE canal.hosts");
    lost(holder, "canal last reached ");
    b.world.canal(["run", "-w", "60", "-k", "x", "--", "true"]).end().code(0);
    a.proxy.mend();
    a.until("member");
    until_idle(&[a, b]);
}
