//! What a daemon does with a journal from another boot or namespace, with reused pids, or with
//! damage.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use canal::core::{
    Ask, Change, Command, ENTRY_VERSION, Entry, HostId, Item, Key, Owner, ProcessId, Request,
    Revision, Rules, Table, Tag, UnixMillis, View, Wait,
};
use canal::log::journal::{Batch, Journal};
use canal::sys::process::Origin;
use serde_json::{Value, json};

use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{Idler, mutex};

fn request(process: ProcessId, key: &str) -> Change {
    let view = Some(View::Slots { slots: 1 });
    let item = Item { key: Key::new(key).unwrap(), ask: Ask::slots(1, view) };
    Change::Request(Arc::new(Request {
        tag: Tag(77),
        host: HostId(0),
        owner: Owner::Process(process),
        parent: None,
        uid: nix::unistd::geteuid().as_raw(),
        command: Command("made up".to_owned()),
        note: None,
        items: vec![item],
        wait: Wait::No,
        priority: 0,
        max_waiting: None,
        max_run_ms: None,
        provisional: false,
        children: false,
        ttl_ms: None,
        on_lost: Default::default(),
        asker: None,
        over_nodes: None,
        above: None,
    }))
}

/// A journal in which a process holds `a`.
fn write_journal(daemon: &Daemon, origin: &Origin, process: ProcessId) {
    let mut journal = Journal::open(&daemon.path("")).unwrap().journal;
    let mut table = Table::new(Rules::Current);
    journal.compact(&table.snapshot(), origin, Rules::Current.version(), 0).unwrap();
    let change = request(process, "a");
    let since_1970 = UNIX_EPOCH.elapsed().unwrap();
    let at = UnixMillis(u64::try_from(since_1970.as_millis()).unwrap());
    let entry = Entry { version: ENTRY_VERSION, at, change };
    let mut outcomes = Vec::new();
    table.apply(Revision(1), &entry, &mut outcomes);
    let mut records = Batch::default();
    records.push(Revision(1), &entry, &outcomes);
    journal.append(&records).unwrap();
}

fn process(pid: u32) -> ProcessId {
    ProcessId { pid, started: 1, inode: 0 }
}

/// Runs a daemon that cannot start; returns its output.
fn output_of(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.command().args(args).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn holds_from_before_a_reboot_are_void() {
    let mut daemon = Daemon::folder();
    let origin = Origin { boot_id: "another boot".into(), ..Origin::read().unwrap() };
    write_journal(&daemon, &origin, process(1));
    daemon.run(|_| {});
    assert_eq!(daemon.use_of("a"), (0, 0));
    let token = daemon.connect().call("Acquire", mutex(1, "a"))["token"].as_u64().unwrap();
    assert!(token > 1, "no token is given out twice: {token}");
    let mut recorded = Value::Null;
    wait_until("the hold is in the history", || {
        recorded = daemon.connect().call("History", json!({}))["records"][0].clone();
        recorded.is_object()
    });
    assert_eq!((&recorded["how"], &recorded["at_least"]), (&json!("reboot"), &json!(true)));
    assert_eq!((&recorded["token"], &recorded["held_ms"]), (&json!(1), &json!(0)), "{recorded}");
}

#[test]
fn a_reused_pid_holds_nothing() {
    let mut daemon = Daemon::folder();
    let idler = Idler::start();
    write_journal(&daemon, &Origin::read().unwrap(), process(idler.pid()));
    daemon.run(|_| {});
    assert_eq!(daemon.use_of("a"), (0, 0));
}

#[test]
fn live_processes_of_another_pid_namespace_keep_their_locks() {
    let daemon = Daemon::folder();
    let origin = Origin { pid_namespace: 7, ..Origin::read().unwrap() };
    write_journal(&daemon, &origin, process(1));
    let said = output_of(&daemon, &[]);
    // The record says no inode, so nothing identifies its process here.
    assert!(said.contains("names processes of another pid or time namespace"), "{said}");
    assert!(said.contains("nothing identifies them here: a (made up)"), "{said}");
    let hint = said.lines().nth(1).unwrap();
    assert!(hint.starts_with("hint: ") && hint.contains("--discard-journal"), "{said}");
}

#[test]
fn a_process_in_an_unknown_state_keeps_its_lock_until_it_is_forced() {
    let mut daemon = Daemon::folder();
    write_journal(&daemon, &Origin::read().unwrap(), process(0));
    daemon.run(|_| {});
    let holder = daemon.key("a").unwrap().holders.remove(0);
    assert_eq!(holder.state.as_deref(), Some("unverified"));
    let mut peer = daemon.connect();
    let told = peer.call("WouldKill", json!({ "key": "a" }));
    let refused = told["targets"][0]["refused"].as_str().unwrap();
    assert!(refused.contains("could not be told apart from another one"), "{told}");
    peer.send("Kill", json!({ "token": holder.token, "signal": 9 }));
    let (name, failure) = peer.error();
    assert_eq!((name.as_str(), failure["message"].as_str()), ("Denied", Some(refused)));
    daemon.connect().call("Release", json!({ "token": holder.token }));
    assert_eq!(daemon.use_of("a"), (0, 0));
}

#[test]
fn a_damaged_journal_is_refused_and_can_be_skipped_with_a_line_for_each_lost_hold() {
    let mut daemon = Daemon::start();
    let first = daemon.hold(1, "a");
    let token = daemon.key("a").unwrap().holders[0].token;
    let _later = daemon.hold(2, "b");
    daemon.kill();
    let path = daemon.path("journal.0");
    let bytes = fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"#", end - 10).unwrap();

    let refusal = output_of(&daemon, &[]);
    assert!(refusal.contains(&format!("{} is damaged at byte ", path.display())), "{refusal}");
    assert!(refusal.contains("--discard-journal"), "{refusal}");

    daemon.run(|command| {
        command.arg("--discard-journal");
    });
    let told = daemon.log();
    let loser = told.lines().find(|line| line.contains(&format!("pid={}", first.pid())));
    assert!(loser.is_some_and(|line| line.contains("loses its lock")), "{told}");
    assert_eq!(daemon.use_of("a"), (0, 0));
    let next = daemon.connect().call("Acquire", mutex(3, "a"))["token"].as_u64().unwrap();
    assert!(next > token);
}

#[test]
fn tokens_grow_also_when_journal_and_state_are_lost() {
    let mut daemon = Daemon::start();
    let token = daemon.connect().call("Acquire", mutex(1, "a"))["token"].as_u64().unwrap();
    for lost in [
        &["state.json"][..],
        &["journal.0", "journal.1"],
        &["state.json", "journal.0", "journal.1"],
    ] {
        daemon.kill();
        for name in lost {
            fs::remove_file(daemon.path(name)).unwrap();
        }
        daemon.run(|_| {});
        let next = daemon.connect().call("Acquire", mutex(2, "b"))["token"].as_u64().unwrap();
        assert!(next > token, "{lost:?}: {next} after {token}");
        daemon.connect().call("Release", json!({ "all": true }));
    }
}
