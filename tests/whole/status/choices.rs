//! Parts of the status: the holds of a user, the waiters, the keys below a prefix, and one key in
//! full.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::backend;
use crate::script;
use crate::terminal::Terminal;
use crate::world::World;
use crate::world::process::wait_until;

fn keys(world: &World, args: &str) -> Vec<String> {
    let words = ["status", "--json"].into_iter().chain(args.split_whitespace());
    let status = world.canal(words).end().code(0).json();
    let keys = status["keys"].as_array().unwrap();
    keys.iter().map(|key| key["key"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_choice_of_locks_counts_for_people_and_in_json() {
    let world = World::with_daemon();
    let holders = ["a", "b/1", "b/2", "bc"].map(|key| world.holder(&["-k", key]));
    let waiter = world.waiter("b/2", &[], &["true"]);
    let me = nix::unistd::geteuid().as_raw();
    for (args, expected) in [
        ("", &["a", "b/1", "b/2", "bc"][..]),
        ("--mine", &["a", "b/1", "b/2", "bc"]),
        (&format!("--user {me}"), &["a", "b/1", "b/2", "bc"]),
        ("--user 3999999999", &[]),
        ("--user 3999999999 --waiting", &[]),
        ("--waiting", &["b/2"]),
        ("--waiting --mine --under b", &["b/2"]),
        ("--under b", &["b/1", "b/2"]),
        ("--under b/1 --waiting", &[]),
    ] {
        assert_eq!(keys(&world, args), expected, "{args}");
        let text = world.sh(&format!("canal ps {args} | cat")).end().code(0).stdout;
        let titles = text.lines().filter(|line| line.contains(" of 1 held")).count();
        assert_eq!(titles, expected.len(), "{args}: {text}");
    }
    let listed = world.sh("canal list | cat").end().code(0).stdout;
    let first = listed.lines().find(|line| line.contains("keys")).unwrap();
    assert!(first.starts_with("4 keys, 4 holders, 1 waiter  longest wait "), "{listed}");
    let position = |key: &str| listed.lines().position(|line| line.starts_with(key)).unwrap();
    assert!(position("b/2 ") < position("a "), "{listed}");
    for wrong in [
        &["--mine", "--user", "root"][..],
        &["--user", "nobody like that"],
        &["a", "--under", "b"],
        &["--why", "1", "--mine"],
        &["--ended", "--watch"],
    ] {
        let words = ["status"].into_iter().chain(wrong.iter().copied());
        let ended = world.canal(words).end().code(125);
        assert_eq!(ended.stderr.lines().count(), 2, "{wrong:?}: {ended:?}");
    }
    for holder in holders {
        holder.finish();
    }
    waiter.end().code(0);
}

#[test]
fn one_key_is_shown_in_full_and_several_are_not() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "db=1x3"]);
    let second = world.holder(&["-k", "db=1x3"]);
    let work = world.path("work").canonicalize().unwrap();
    let one = world.canal(["status", "--json", "db"]).end().code(0).json();
    let holders = &one["keys"][0]["holders"];
    for (at, bucket) in [(0, 0), (1, 1)] {
        assert_eq!(holders[at]["bucket"], bucket, "{one}");
        assert_eq!(holders[at]["folder"], json!(work.to_str()), "{one}");
    }
    let text = world.sh("canal status db | cat").end().code(0).stdout;
    assert!(text.contains(&format!("bucket 1, in {}\n", work.display())), "{text}");
    let all = world.canal(["status", "--json"]).end().code(0).json();
    assert!(all["keys"][0]["holders"][0].get("folder").is_none(), "{all}");
    holder.finish();
    second.finish();
}

#[test]
fn what_is_left_of_max_run_is_shown_also_by_the_next_daemon() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "db", "--max-run", "10m"]);
    let without = world.holder(&["-k", "other"]);
    let shown = || {
        wait_until("the status shows that less is left", || {
            let full = world.sh("canal status db | cat").end().code(0).stdout;
            full.lines().any(|line| {
                let left = line.trim().strip_prefix("--max-run 10m00s, ");
                left.is_some_and(|left| left.ends_with("s left") && !left.starts_with("10m00s"))
            })
        });
        assert_eq!(world.key("db").holders[0].max_run_ms, Some(600_000));
        assert_eq!(world.key("other").holders[0].max_run_ms, None);
    };
    shown();
    world.kill_daemon();
    // Over an engine the next daemon has to join first.
    shown();
    holder.finish();
    without.finish();
}

#[test]
fn a_screen_fits_a_small_terminal_and_says_what_it_leaves_out() {
    let world = World::with_daemon().on_one_host();
    let script = "i=0; while [ $i -lt 40 ]; do
            canal acquire -q --pid $$ -k team/project-with-a-long-name/job-$i=3x2 || exit
            i=$((i + 1))
        done; echo all; read line";
    let holder = world.sh(script).stdin(std::process::Stdio::piped()).spawn();
    wait_until("all are held", || holder.stdout() == "all\n");
    for (rows, columns) in [("24", "80"), ("12", "40")] {
        let resize = format!("stty rows {rows} cols {columns}; exec canal status --watch");
        let command = ["env", "NO_COLOR=1", "sh", "-c", &resize];
        let mut terminal = Terminal::start(&world, &command);
        let seen = terminal.until(" more keys");
        let screen = seen.rsplit("\x1b[H").next().unwrap();
        let lines: Vec<&str> = screen.split("\x1b[K\r\n").collect();
        assert!(lines.len() < rows.parse().unwrap(), "{screen:?}");
        let columns: usize = columns.parse().unwrap();
        assert!(lines.iter().all(|line| line.chars().count() <= columns), "{screen:?}");
        let first = lines.iter().find(|line| !line.starts_with(['e', ' '])).unwrap();
        assert!(first.starts_with("40 keys, 40 holders, 0 waiters"), "{screen:?}");
        assert!(lines.last().unwrap().starts_with("… "), "{screen:?}");
        terminal.session.signal(Signal::SIGTERM);
        terminal.end();
    }
    holder.finish();
}

#[test]
fn without_a_cursor_to_move_each_page_of_a_watch_follows_the_last_one() {
    let world = World::with_daemon();
    for term in ["TERM=dumb", "TERM="] {
        let command = ["env", term, "canal", "status", "--watch"];
        let mut terminal = Terminal::start(&world, &command);
        terminal.until("no locks");
        let holder = world.holder(&["-k", "a"]);
        let seen = terminal.until("1 holder");
        assert!(!seen.contains("\x1b[H"), "{term}: {seen:?}");
        terminal.session.signal(Signal::SIGTERM);
        terminal.end();
        holder.finish();
    }
}

#[test]
fn why_names_what_waits_for_a_holder_to_the_end() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "a"]);
    let mut script = script::Script::start(&world, "one", "-k b", "-k a");
    script.go_and_wait(&world);
    let last = world.waiter("b", &[], &["true"]);
    let ask = |what: &str| {
        let text = world.sh(&format!("canal status --why {what} | cat")).end().code(0).stdout;
        let told = world.canal(["status", "--json", "--why", what]).end().code(0).json();
        let pids = told["waiters"].as_array().cloned().unwrap_or_default();
        let pids: Vec<Value> = pids.iter().map(|wait| wait["waiter"]["pid"].clone()).collect();
        (text, pids)
    };
    let (text, pids) = ask(&holder.pid_text());
    assert_eq!(pids, [json!(script.inner_pid()), json!(last.pid())], "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], format!("pid {} is not waiting for anything", holder.pid()));
    assert_eq!(lines[1], "2 requests are waiting for it:");
    assert!(lines[2].starts_with(&format!("  pid {} `", script.inner_pid())), "{text}");
    assert!(lines[3].contains(" has been waiting for `b` since "), "{text}");
    assert_eq!(ask(&last.pid_text()).1, [] as [Value; 0]);
    let session = world.key("a").holders[0].session.clone();
    assert_eq!(ask(&session).1, pids);
    holder.finish();
    script.succeeds();
    last.end().code(0);
    assert!(backend::is_engine() || world.look().is_some());
}
