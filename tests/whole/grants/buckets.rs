//! Slots that are spread over buckets (`--spread`), and buckets out of service (`canal resize
//! --without`).

use crate::backend::over_engines;
use crate::world::process::wait_until;
use crate::world::{World, journal_only};

over_engines! {
    "what is out of service is read when a host joins again":
        a_slot_out_of_service_keeps_its_holder_and_no_one_else_gets_it;
}

const SPREAD: [&str; 7] = ["-k", "gpu", "--per", "3", "--buckets", "4", "--spread"];

#[test]
fn jobs_are_spread_over_the_buckets_and_packed_without_the_option() {
    let world = World::with_daemon();
    let spread: Vec<_> = (0..5).map(|_| world.holder(&SPREAD)).collect();
    let bucket = |args: &[&str]| {
        let run = [&["run"], args, &["-c", "echo $CANAL_BUCKET"]].concat();
        world.canal(run).end().code(0).stdout
    };
    assert_eq!(bucket(&SPREAD), "1\n");
    assert_eq!(bucket(&SPREAD[..6]), "0\n", "the lowest slot is the default");
    let of = |nth: usize| {
        let key = world.key("gpu");
        key.holders.iter().find(|it| it.pid == spread[nth].pid() as u32).unwrap().bucket
    };
    assert_eq!([0, 1, 2, 3, 4].map(of), [0, 1, 2, 3, 0].map(Some));
    // A killed daemon does not forget how full the buckets are.
    world.kill_daemon();
    world.status();
    assert_eq!(bucket(&SPREAD), "1\n");
    spread.into_iter().for_each(|holder| drop(holder.finish()));
    world.until_idle();
}

#[test]
fn the_configuration_can_spread_all_jobs_of_a_key() {
    if journal_only("the configuration of an engine is the test's") {
        return;
    }
    let world = World::new();
    world
        .configure("[keys.gpu]\nper = 3\nbuckets = 4\nspread = true\n[keys.port]\nspread = true\n");
    let _first = world.holder(&["-k", "gpu"]);
    let _port = world.holder(&["-k", "port", "--per", "1", "--buckets", "2"]);
    let slots = |args: &[&str]| {
        let run = [&["run"], args, &["-c", "echo $CANAL_SLOTS"]].concat();
        world.canal(run).end().code(0).stdout
    };
    assert_eq!(slots(&["-k", "gpu"]), "3\n");
    assert_eq!(slots(&["-k", "gpu:2"]), "1,2\n", "several slots at once are the lowest");
    assert_eq!(slots(&["-k", "port", "--per", "2", "--buckets", "2"]), "2\n");
    let config = world.canal(["config"]).end().code(0).stdout;
    assert!(config.contains("3x4, spread"), "{config}");
    assert!(config.contains("spread = true"), "{config}");
    world.configure("[keys.gpu]\nper = 3\nbuckets = 4\n");
    world.canal(["daemon", "--reload"]).end().code(0);
    assert_eq!(slots(&["-k", "gpu"]), "1\n");
}

#[test]
fn spread_is_for_one_slot_of_a_key() {
    let world = World::new();
    for (args, said) in [
        (&["-k", "gpu:2", "--spread"][..], "--spread chooses one slot of `gpu`, not 2"),
        (&["--read", "gpu", "--spread"], "--spread chooses a slot of --key, and none is given"),
    ] {
        let refused = world.canal([&["run"], args, &["--", "true"]].concat()).end().code(125);
        assert!(refused.stderr.contains(said), "{refused:?}");
    }
}

#[test]
fn a_slot_out_of_service_keeps_its_holder_and_no_one_else_gets_it() {
    let world = World::with_daemon();
    let gpu = ["-k", "gpu", "--per", "1", "--buckets", "3"];
    let holders: Vec<_> = (0..3).map(|_| world.holder(&gpu)).collect();
    let said = world.canal(["resize", "gpu", "--without", "1"]).end().code(0).stdout;
    assert_eq!(said, "gpu: 1 out of service; 3 held, 0 waiting\n");
    let shown = world.canal(["status", "gpu"]).end().code(0).stdout;
    assert!(shown.contains("3 of 2 held") && shown.contains("out of service: 1"), "{shown}");
    let json = world.canal(["status", "gpu", "--json"]).end().code(0).stdout;
    let compact: String = json.split_whitespace().collect();
    assert!(compact.contains("\"without\":[1]"), "{json}");
    let waiter = world.waiter("gpu", &gpu[2..], &["sh", "-c", "echo $CANAL_SLOT"]);
    let mut holders = holders.into_iter();
    let first = holders.next().unwrap();
    holders.next().unwrap().finish();
    // The waiter still waits: the slot that became free is out of service.
    let refused = world.canal([&["run", "-n"], &gpu[..], &["--", "true"]].concat()).end().code(75);
    assert!(refused.stderr.contains("2 of 2 slots held"), "{refused:?}");
    assert_eq!(world.key("gpu").waiting, 1);
    world.kill_daemon();
    world.status();
    wait_until("the waiter is back", || world.key("gpu").waiting == 1);
    assert_eq!(world.key("gpu").without, [1], "it survives a restart");
    let said = world.canal(["resize", "gpu", "--with", "1", "--json"]).end().code(0).stdout;
    assert!(!said.contains("without"), "{said}");
    assert_eq!(waiter.end().code(0).stdout, "1\n");
    first.finish();
    holders.next().unwrap().finish();
    world.until_idle();
}

#[test]
fn a_number_is_a_bucket_where_there_are_buckets_and_else_a_slot() {
    let world = World::with_daemon();
    world.canal(["resize", "gpu", "--without", "0,2", "--without", "3"]).end().code(0);
    let got = |lock: &[&str], variable: &str| {
        let script = format!("echo ${variable}");
        world.canal([&["run", "-k", "gpu"], lock, &["-c", &script]].concat()).end().code(0).stdout
    };
    assert_eq!(got(&["--per", "3", "--buckets", "4"], "CANAL_SLOT"), "3\n");
    assert_eq!(got(&["--per", "3", "--buckets", "4", "--spread"], "CANAL_BUCKET"), "1\n");
    assert_eq!(got(&["-j", "4"], "CANAL_SLOT"), "1\n");
    // A lock without a slot in service refuses requests, as one without buckets does.
    let refused = world.canal(["run", "-k", "gpu", "--", "true"]).end().code(75);
    assert!(refused.stderr.contains("all its slots are out of service"), "{refused:?}");
    assert!(
        refused.stderr.contains("hint: return slot or bucket N to service with `canal resize gpu"),
        "{refused:?}"
    );
    let refused = world.canal(["run", "-k", "gpu=4:2", "--", "true"]).end().code(125);
    assert!(
        refused.stderr.contains("2 slots of `gpu` can never be granted: only 1 slot is in service"),
        "{refused:?}"
    );
}

#[test]
fn a_call_that_contradicts_itself_is_a_usage_error() {
    let world = World::new();
    for more in [&["--with", "1"][..], &["--slots", "2"], &["--pause"]] {
        let args = [&["resize", "gpu", "--without", "1"], more].concat();
        let refused = world.canal(args).end().code(125);
        assert!(refused.stderr.contains("cannot be given together"), "{refused:?}");
    }
    world.canal(["resize", "gpu", "--without", "x"]).end().code(125);
}
