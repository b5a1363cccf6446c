use super::*;
use crate::cli::output::sanitize::width;
use crate::cli::wording::holders_and_waiters::tests::somebody;
use crate::cli::wording::time::tests::at;
use crate::protocol::{ChildrenInfo, EngineInfo};

const SINCE: &str = "2026-11-20T14:02:11Z";

fn now() -> Now {
    at("2026-11-20T14:05:23Z")
}

fn waiter(position: u64, reason: &str) -> WaiterInfo {
    WaiterInfo {
        pid: 900,
        uid: 0,
        command: Some("./deploy.sh".to_owned()),
        since: SINCE.to_owned(),
        position,
        priority: 0,
        count: 1,
        mode: Mode::Counted,
        view: None,
        session: "s9".to_owned(),
        job: None,
        host: None,
        reason: reason.to_owned(),
        lease: None,
        note: None,
        over_nodes: None,
        estimate: None,
    }
}

fn key(name: &str, holders: Vec<HolderInfo>, waiters: Vec<WaiterInfo>) -> KeyInfo {
    KeyInfo {
        key: name.to_owned(),
        kind: Some(Kind::Buckets),
        held: holders.len() as u64,
        capacity: Some(6),
        view: Some("3x2".to_owned()),
        waiting: waiters.len() as u64,
        holders,
        waiters,
        ..KeyInfo::default()
    }
}

fn status(keys: Vec<KeyInfo>) -> Status {
    let daemon = DaemonInfo {
        pid: 77,
        version: "0.1.0".to_owned(),
        socket: "/tmp/canal-0/canal.sock".to_owned(),
        since: SINCE.to_owned(),
        uid: 0,
        notes: vec!["a note".to_owned()],
    };
    Status { daemon, keys, left_out: 0, engine: None, hosts: Vec::new() }
}

/// The page as plain text.
fn text(status: &Status, scope: Scope<'_>, verbose: bool, columns: Option<usize>) -> String {
    let text = page(status, scope, false, verbose, &now()).render(columns);
    anstream::adapter::strip_str(&text).to_string()
}

#[test]
fn an_empty_report_is_a_sentence() {
    let empty = status(vec![]);
    assert_eq!(
        text(&empty, Scope::Everything, false, None),
        "no locks are held; no one is waiting\n"
    );
    assert_eq!(text(&empty, Scope::Key("db"), false, None), "no one holds or waits for db\n");
}

#[test]
fn the_two_questions_are_answered() {
    let holders = vec![
        somebody(812, Some("make test"), SINCE),
        HolderInfo { slots: vec![1, 2, 3, 5], ..somebody(815, None, "2026-11-19T14:05:23Z") },
    ];
    let waiters = vec![
        waiter(1, "6 of 6 slots held"),
        WaiterInfo { priority: -5, count: 2, ..waiter(2, "behind an earlier waiter") },
        waiter(3, "behind an earlier waiter"),
    ];
    let shown = text(&status(vec![key("db", holders, waiters)]), Scope::Overview, false, Some(80));
    assert_eq!(
        shown,
        "1 key, 1 holder, 1 waiter  longest wait 3m12s
         PID  USER  FOR    SINCE         SLOTS  COMMAND
db  buckets 3x2, 2 of 6 held, 3 waiting
  holds  812  root  3m12s  14:02:11      0      make test
  holds  815  root  1d00h  Nov 19 14:05  1-3,5  (hidden)
  #1     900  root  3m12s  14:02:11             ./deploy.sh
         waiting: 6 of 6 slots held
  #2     900  root  3m12s  14:02:11             ./deploy.sh
         waiting: behind an earlier waiter; asks for 2 slots; priority -5
  #3     900  root  3m12s  14:02:11             ./deploy.sh
"
    );
}

#[test]
fn two_hundred_keys_fit_eighty_columns_with_nothing_raw() {
    let long = "x".repeat(500) + "\x1b[31m\u{202e}";
    let keys = (0..200).map(|n| {
        let mut holder = somebody(4_000_000 + n, Some(&long), "2026-11-19T14:05:23Z");
        holder.slots = (0..50).map(|slot| slot * 2).collect();
        holder.state = Some("unverified".to_owned());
        let reason = "behind a waiter that was overtaken as often as is allowed and is next now";
        key(&format!("{n}/{}", "k".repeat(300)), vec![holder], vec![waiter(1, reason)])
    });
    let status = status(keys.collect());
    let shown = page(&status, Scope::Overview, false, true, &now()).render(Some(80));
    assert!(!anstream::adapter::strip_str(&shown).to_string().contains(['\x1b', '\u{202e}']));
    let plain = text(&status, Scope::Overview, true, Some(80));
    for line in plain.lines() {
        assert!(width(line) <= 80, "{line}");
    }
    let uncut = text(&status, Scope::Everything, false, None);
    assert!(uncut.contains(&"x".repeat(500)) && uncut.contains(&"k".repeat(300)));
}

#[test]
fn keys_with_waiters_come_first_and_the_first_line_counts() {
    let mut older = waiter(2, "x");
    (older.pid, older.since) = (901, "2026-11-20T13:00:00Z".to_owned());
    let first = key("c", vec![somebody(812, None, SINCE)], vec![waiter(1, "x"), older]);
    let mut second = key("d", vec![], vec![waiter(1, "x")]);
    second.holders.push(HolderInfo { token: 78, ..somebody(813, None, SINCE) });
    let keys = vec![key("a", vec![somebody(812, None, SINCE)], vec![]), first, second];
    let shown = text(&status(keys), Scope::Everything, false, None);
    assert!(shown.starts_with("3 keys, 2 holders, 2 waiters  longest wait 1h05m\n"), "{shown}");
    let order: Vec<_> = ["c  buckets", "d  buckets", "a  buckets"]
        .map(|name| shown.lines().position(|line| line.starts_with(name)).unwrap())
        .into();
    assert!(order.is_sorted(), "{shown}");
}

#[test]
fn one_key_is_shown_in_full() {
    let children = ChildrenInfo { device: 1, inode: 2, pids: vec![812, 900, 901] };
    let holder = HolderInfo {
        bucket: Some(1),
        folder: Some("/srv/a\x1bb".to_owned()),
        children: Some(children),
        ..somebody(812, Some("make"), SINCE)
    };
    let waiters = vec![waiter(1, "6 of 6 slots held"), waiter(2, "6 of 6 slots held")];
    let status = status(vec![key("db", vec![holder], waiters)]);
    let shown = text(&status, Scope::Key("db"), false, Some(80));
    assert_eq!(
        shown,
        "         PID  USER  FOR    SINCE     SLOTS  COMMAND
db  buckets 3x2, 1 of 6 held, 2 waiting
  holds  812  root  3m12s  14:02:11  0      make
         bucket 1, in /srv/a?b
         kept by pid 900, pid 901 (--with-children)
  #1     900  root  3m12s  14:02:11         ./deploy.sh
         waiting: 6 of 6 slots held
  #2     900  root  3m12s  14:02:11         ./deploy.sh
         waiting: 6 of 6 slots held
"
    );
    assert!(!text(&status, Scope::Overview, false, Some(80)).contains("bucket 1"));
}

#[test]
fn what_is_left_of_max_run_is_shown_with_the_key() {
    let shown = |max_run_ms, scope| {
        let holder = HolderInfo { max_run_ms, ..somebody(812, Some("make"), SINCE) };
        text(&status(vec![key("db", vec![holder], vec![])]), scope, false, None)
    };
    let full = |max_run_ms| shown(Some(max_run_ms), Scope::Key("db"));
    assert!(
        full(600_000).contains("\n         --max-run 10m00s, 6m48s left\n"),
        "{}",
        full(600_000)
    );
    // Its parent is stopped or was killed.
    let over = "\n         --max-run 1m00s exceeded by 2m12s\n";
    assert!(full(60_000).contains(over), "{}", full(60_000));
    assert!(!shown(Some(600_000), Scope::Overview).contains("--max-run"));
    assert!(!shown(None, Scope::Key("db")).contains("--max-run"));
    full(u64::MAX);
}

#[test]
fn what_a_choice_leaves_out_is_counted() {
    let mut one = key("db", vec![], vec![waiter(7, "6 of 6 slots held")]);
    one.waiting = 9;
    let shown = text(&status(vec![one]), Scope::Overview, false, Some(80));
    assert!(shown.ends_with("      8 more are waiting\n"), "{shown}");
    let none = page(&status(vec![]), Scope::Overview, true, false, &now()).render(None);
    assert_eq!(
        anstream::adapter::strip_str(&none).to_string(),
        "no lock matches; run `canal status` to see all locks\n"
    );
}

#[test]
fn an_overview_cuts_long_queues_short_and_a_key_does_not() {
    let waiters: Vec<_> = (1..=12).map(|n| waiter(n, "6 of 6 slots held")).collect();
    let status = status(vec![key("db", vec![], waiters)]);
    let overview = text(&status, Scope::Overview, false, Some(80));
    assert!(overview.contains("#10") && !overview.contains("#11"), "{overview}");
    assert!(overview.contains("2 more are waiting; `canal status db` shows all"), "{overview}");
    assert!(text(&status, Scope::Key("db"), false, Some(80)).contains("#12"));
}

#[test]
fn notes_stand_below_what_they_are_about() {
    let note = || Some("https://ci/7 \x1b[2J".to_owned());
    let holder = HolderInfo { note: note(), ..somebody(812, Some("make"), SINCE) };
    let waiter = WaiterInfo { note: note(), ..waiter(1, "full") };
    let shown =
        text(&status(vec![key("db", vec![holder], vec![waiter])]), Scope::Overview, false, None);
    let lines: Vec<&str> = shown.lines().map(str::trim).collect();
    let at = |start: &str| lines.iter().position(|line| line.starts_with(start)).unwrap();
    assert_eq!(lines[at("holds") + 1], "note: https://ci/7 ?[2J", "{shown}");
    assert_eq!(lines[at("waiting: full") + 1], "note: https://ci/7 ?[2J", "{shown}");
}

#[test]
fn verbose_adds_the_daemon_its_notes_and_tokens() {
    let status = status(vec![key("db", vec![somebody(812, None, SINCE)], vec![])]);
    let shown = text(&status, Scope::Everything, true, None);
    let daemon = "daemon 0.1.0, pid 77, root, since 14:02:11 (for 3m12s), /tmp/canal-0/canal.sock";
    assert!(shown.starts_with(&format!("{daemon}\nnote: a note\n")), "{shown}");
    assert!(shown.contains("token 77, session s1"), "{shown}");
}

#[test]
fn a_summary_names_what_is_special() {
    let mut one = key("db", vec![], vec![]);
    assert_eq!(summary(&one), "buckets 3x2, 0 of 6 held");
    (one.kind, one.capacity, one.stored) = (Some(Kind::Slots), Some(2), true);
    assert_eq!(summary(&one), "slots, 0 of 2 held, stored");
    one.paused = true;
    assert_eq!(summary(&one), "slots, 0 of 2 held, stored, paused");
    one.without = vec![1, 3];
    assert_eq!(summary(&one), "slots, 0 of 2 held, stored, paused, out of service: 1 3");
    one.without.clear();
    (one.kind, one.capacity, one.waiting, one.stored) = (None, None, 2, false);
    assert_eq!(summary(&one), "unused, 0 held, 2 waiting, paused");
}

#[test]
fn readers_and_writers_are_shown_by_what_they_do() {
    let read = HolderInfo { slots: vec![], mode: Some(Mode::Read), ..somebody(812, None, SINCE) };
    let write = WaiterInfo { mode: Mode::Write, count: 0, ..waiter(1, "1 holds it") };
    let mut db = key("db", vec![read], vec![write]);
    (db.kind, db.capacity, db.view, db.held) = (None, None, None, 0);
    let mut migrated = key("db/x", vec![somebody(815, Some("./job"), SINCE)], vec![]);
    migrated.holders[0].mode = Some(Mode::Counted);
    let shown = text(&status(vec![db.clone(), migrated]), Scope::Key("db"), false, None);
    assert_eq!(
        shown,
        "         PID  USER  FOR    SINCE     SLOTS  COMMAND
db  1 reading, 1 waiting
  holds  812  root  3m12s  14:02:11  read   (hidden)
  #1     900  root  3m12s  14:02:11  write  ./deploy.sh
         waiting: 1 holds it
db/x  buckets 3x2, 1 of 6 held
  holds  815  root  3m12s  14:02:11  0      ./job
"
    );
    db.holders[0].mode = Some(Mode::Write);
    (db.kind, db.capacity, db.stored) = (Some(Kind::Slots), Some(2), true);
    assert_eq!(summary(&db), "slots, 1 writing, 1 waiting, stored");
}

#[test]
fn a_host_that_is_cut_off_shows_that_first_and_then_its_last_table() {
    let engine = EngineInfo {
        name: "etcd://one".to_owned(),
        state: "away".to_owned(),
        host: "alpha".to_owned(),
        id: Some(7),
        ttl_ms: 60_000,
        renewed: Some("2026-11-20T14:05:02Z".to_owned()),
        stops: Some("2026-11-20T14:05:47Z".to_owned()),
        away_since: Some("2026-11-20T14:05:11Z".to_owned()),
        why: Some("connection refused".to_owned()),
        hint: None,
        recovery: None,
    };
    let mut shown = status(vec![]);
    shown.engine = Some(engine);
    let first = "engine etcd://one, unreachable since 14:05:11 (for 12s): connection refused; \
                 canal will end commands here at 14:05:47\n";
    assert_eq!(
        text(&shown, Scope::Everything, false, None),
        format!("{first}this host does not currently know which locks are held\n")
    );
    assert_eq!(
        text(&shown, Scope::Key("db"), false, None),
        format!("{first}this host does not currently know who holds or waits for db\n")
    );
    shown.keys = vec![key("db", vec![somebody(812, Some("make test"), SINCE)], vec![])];
    let known = text(&shown, Scope::Everything, false, None);
    let rest = known.strip_prefix(first).expect("it says so first");
    assert!(rest.starts_with("as of 14:05:02; it may have changed since:\n"), "{known}");
    assert!(rest.contains("holds  812"), "{known}");
    assert!(text(&shown, Scope::Everything, true, None).starts_with(first));
}

#[test]
fn rows_omitted_by_the_daemon_are_counted() {
    let mut crowded = key("a", Vec::new(), Vec::new());
    crowded.left_out = 3;
    let mut status = status(vec![crowded]);
    status.left_out = 1;
    let text = text(&status, Scope::Everything, false, None);
    assert!(
        text.contains("3 holders and waiters are left out because there are too many\n"),
        "{text}"
    );
    assert!(text.ends_with("1 more key is left out; `canal status KEY` shows one\n"), "{text}");
}
