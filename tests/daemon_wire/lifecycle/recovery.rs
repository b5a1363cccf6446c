//! How a daemon handles a journal of another boot or namespace, with reused pids, or with damage.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use canal::core::{
    Ask, Change, Command, ENTRY_VERSION, Entry, FrameId, HostId, Item, Key, Outcome, Owner,
    ProcessId, RULES_VERSION, Release, Request, RequestId, Revision, Table, Tag, Token, UnixMillis,
    View, Wait,
};
use canal::log::journal::{Batch, Journal};
use canal::sys::process::{Origin, identity};
use serde_json::{Value, json};

use crate::wire::daemon::{Daemon, wait_until};
use crate::wire::peer::{Idler, mutex, mutex_for};

fn request(process: ProcessId, key: &str, wait: Wait) -> Change {
    let view = Some(View::Slots { slots: 1 });
    let item = Item { key: Key::new(key).unwrap(), ask: Ask::slots(1, view) };
    Change::Request(Arc::new(Request {
        tag: Tag(process.pid.into()),
        host: HostId(0),
        owner: Owner::Process(process),
        parent: None,
        uid: nix::unistd::geteuid().as_raw(),
        command: Command("made up".to_owned()),
        note: None,
        items: vec![item],
        wait,
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
    }))
}

/// Writes a journal in which a process holds `a`.
fn write_journal(daemon: &Daemon, origin: &Origin, process: ProcessId) {
    write_changes(daemon, (origin, RULES_VERSION), [request(process, "a", Wait::No)], |_| {});
}

/// Writes a journal of these changes. `decide` may alter their outcomes.
fn write_changes(
    daemon: &Daemon,
    (origin, rules): (&Origin, u32),
    changes: impl IntoIterator<Item = Change>,
    decide: impl Fn(&mut [Outcome]),
) {
    let mut journal = Journal::open(&daemon.path("")).unwrap().journal;
    let mut table = Table::default();
    journal.compact(&table.snapshot(), origin, rules, 0).unwrap();
    let since_1970 = UNIX_EPOCH.elapsed().unwrap();
    let at = UnixMillis(u64::try_from(since_1970.as_millis()).unwrap());
    let mut records = Batch::default();
    for (revision, change) in (1..).map(Revision).zip(changes) {
        let entry = Entry { version: ENTRY_VERSION, at, change };
        let mut outcomes = Vec::new();
        table.apply(revision, &entry, &mut outcomes);
        decide(&mut outcomes);
        records.push(revision, &entry, &outcomes);
    }
    journal.append(&records).unwrap();
}

fn process(pid: u32) -> ProcessId {
    ProcessId { pid, started: 1, inode: 0 }
}

/// Runs a daemon that cannot start. Returns its output.
fn output_of(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.command().args(args).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    String::from_utf8(output.stderr).unwrap()
}

/// Writes a journal of these rules in which the second of three waiters got `a`, not the first.
fn write_unlike_ours(daemon: &Daemon, rules: u32, processes: &[ProcessId; 3]) {
    let [holder, first, second] = *processes;
    let release = Release::Hold { token: Token(1), forced: false };
    let changes = [
        request(holder, "a", Wait::No),
        request(first, "a", Wait::Yes { until: None }),
        request(second, "a", Wait::Yes { until: None }),
        Change::Release(release),
    ];
    let origin = Origin::read().unwrap();
    write_changes(daemon, (&origin, rules), changes, |outcomes| {
        for outcome in outcomes {
            if let Outcome::Granted(granted) = outcome
                && granted.request == RequestId(2)
            {
                (granted.request, granted.frame) = (RequestId(3), FrameId(3));
            }
        }
    });
}

#[test]
fn a_daemon_with_other_rules_keeps_the_decisions_of_the_journal() {
    let mut daemon = Daemon::folder();
    let (holder, mut first, mut second) = (Idler::start(), Idler::start(), Idler::start());
    let processes = [&holder, &first, &second].map(|idler| {
        let ProcessId { pid, started, inode } = identity(&idler.pidfd()).unwrap();
        ProcessId { pid, started, inode }
    });
    write_unlike_ours(&daemon, RULES_VERSION + 1, &processes);
    daemon.run(|_| {});
    let holders = daemon.key("a").unwrap().holders;
    assert_eq!(holders.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [second.pid()]);
    assert_eq!(daemon.use_of("a"), (1, 1));
    // From here on the rules of this daemon apply.
    let others = [Idler::start(), Idler::start()];
    let mut waiters = [0, 1].map(|at: u8| {
        let mut peer = daemon.connect();
        peer.send_with("Acquire", mutex_for(at.into(), "a"), &others[usize::from(at)].pidfd());
        daemon.until_use("a", 1, u64::from(at) + 2);
        peer
    });
    first.kill();
    second.kill();
    assert!(waiters[0].returned("Acquire")["token"].is_u64());
    assert!(waiters[1].is_silent());
}

#[test]
fn a_journal_that_breaks_its_own_rules_is_refused() {
    let daemon = Daemon::folder();
    write_unlike_ours(&daemon, RULES_VERSION, &[1, 2, 3].map(process));
    let said = output_of(&daemon, &[]);
    assert!(said.contains("the journal contradicts its own rules at revision 4"), "{said}");
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
    // The record contains no inode, so nothing identifies its process here.
    assert!(said.contains("names processes in another pid or time namespace"), "{said}");
    assert!(said.contains("cannot identify before Linux 6.9: a (made up)"), "{said}");
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
    assert!(refused.contains("the daemon could not identify process"), "{told}");
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
