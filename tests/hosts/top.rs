//! `canal top` on one of several hosts shows the holds and waiters of all of them, and acts on
//! these.

use crate::hosts::over_each_engine;
use crate::screen::Screen;
use crate::shared_table::commands::start;
use crate::shared_table::{Host, Log, PATIENT};

over_each_engine!(what_other_hosts_hold_and_wait_for_is_shown_and_acted_upon);

const ENTER: &str = "\r";

fn what_other_hosts_hold_and_wait_for_is_shown_and_acted_upon(log: &Log) {
    let a = Host::new(log, "a", PATIENT, None);
    let b = Host::new(log, "b", PATIENT, Some(&a.world));
    [&a, &b].into_iter().for_each(Host::join);
    let holder = start(&a, "1");
    let waiter = a.world.waiter("x", &[], &["true"]);
    let mut top = Screen::start(&b.world, &["canal", "top"], 24, 80);
    top.until("the list", |shown| {
        shown.starts_with("1 key, 1 holder, 1 waiter") && shown.contains("\n> x ")
    });
    top.keys(ENTER);
    top.until("the page of the key", |shown| {
        shown.contains("> holds") && shown.contains("on host a")
    });
    top.keys("j");
    top.until("the host of the waiter", |shown| {
        shown.contains("> #1") && shown.matches("on host a").count() == 2
    });
    top.keys("k");
    top.until("the holder again", |shown| shown.contains("> holds"));
    top.keys("x");
    let refusal = " is running on host a; run `canal kill` there";
    top.until("only its host ends a process", |shown| shown.contains(refusal));
    top.keys("r");
    top.until("it asks", |shown| shown.contains("[y/N]"));
    top.keys("y");
    top.until("the hold is broken", |shown| shown.contains("broke the hold on"));
    waiter.end().code(0);
    top.until("nothing is left of it", |shown| !shown.contains("> holds"));
    top.keys("q");
    // A release by force does not end the command.
    holder.kill();
}
