//! Bad input gets a clear error and does not disturb other clients.

use std::fs;
use std::process::Stdio;

use crate::world::process::wait_until;
use crate::world::{World, journal_only};

/// Everything that canal prints about an error: `canal: ...` and perhaps one `hint: ...`.
fn words(world: &World, args: &[&str]) -> String {
    let ended = world.canal(args).end().code(125);
    assert_eq!(ended.stdout, "", "{args:?}: {ended:?}");
    let mut lines = ended.stderr.lines();
    assert!(lines.next().is_some_and(|l| l.starts_with("canal: ")), "{args:?}: {ended:?}");
    assert!(lines.all(|l| l.starts_with("hint: ")), "{args:?}: {ended:?}");
    assert!(ended.stderr.lines().count() <= 2, "{args:?}: {ended:?}");
    ended.stderr
}

#[test]
fn wrong_requests_get_clear_errors() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "busy=3"]);
    let long = "k".repeat(2048);
    let run = |lock: &[&str]| {
        let mut args = vec!["run", "-n"];
        args.extend(lock);
        args.extend(["--", "true"]);
        words(&world, &args)
    };
    let mut report = String::new();
    for lock in [
        &["-k", "x", "--buckets", "-1"][..],
        &["-k", "x", "--per", "2", "--buckets", "-1"],
        &["-k", "x", "--per", "0"],
        &["-k", "x", "--per", "-3"],
        &["-k", "x", "--per", "1.5"],
        &["-k", "x", "--slots", "0"],
        &["-k", "x", "--slots", "-1"],
        &["-k", "x", "--slots", "1.5"],
        &["-k", "x", "--slots", "99999999999999999999"],
        &["-k", "x", "--buckets", "2"],
        &["-k", "x", "--slots", "2", "--per", "2"],
        &["-k", "x", "--slots", "3", "--count", "4"],
        &["-k", "x=2x2:5"],
        &["-k", "x=2:0"],
        &["-k", "x=2x"],
        &["-k", "x=zwei"],
        &["-k", "x", "-k", "x"],
        &["-k", "x", "-k", "y", "--per", "2"],
        &["-k", ""],
        &["-k", "/x/y"],
        &["-k", "x/"],
        &["-k", "x//y"],
        &["-k", "two\nlines"],
        &["-k", "tab\there"],
        &["-k", &long],
        &["-k", "busy:4"],
        &["-k", "busy=1x1"],
        &["-k", "busy", "-w", "soon"],
        &["-k", "x", "-w", "-1"],
        &["-k", "x", "--max-run", "0x"],
        &["-k", "x", "--kill-after", "1"],
        &["-k", "x", "-E", "256"],
        &["-k", "x", "--timeout", "3"],
        &[],
    ] {
        let shown = lock.join(" ").replace(&long, "<2048 bytes>");
        report +=
            &format!("$ {}\n{}", shown.escape_debug(), run(lock).replace(&long, "<2048 bytes>"));
    }
    for args in [
        &["release", "x"][..],
        &["release"],
        &["release", "x", "--all"],
        &["release", "--token", "1"],
        &["release", "--force"],
        &["release", "--force", "--token", "1"],
        &["release", "x", "--pid", "0"],
        &["acquire", "-k", "x", "--pid", "0"],
        &["acquire", "-k", "x", "--pid", "4194305"],
        &["acquire", "-k", "x", "--pid", "self"],
        &["acquire", "-k", "x", "-n", "-E", "0"],
        &["acquire", "-k", "x", "--ttl", "0.9"],
        &["acquire", "-k", "x", "--ttl", "infinity"],
        &["acquire", "-k", "x", "--ttl", "60s", "--pid", "7"],
        &["renew"],
        &["renew", "--handle", "my-secret"],
        &["release", "x", "--handle", "00000000000000000000000000000001"],
        &["resize", "x"],
        &["resize", "x", "--slots", "-1"],
        &["resize", "x", "--per", "0", "--buckets", "1"],
        &["resize", "busy", "--per", "1", "--buckets", "1"],
        &["status", "/x"],
        &["frobnicate"],
        &["run", "-k", "x", "--frobnicate", "--", "true"],
        &[],
    ] {
        report += &format!("$ canal {}\n{}", args.join(" "), words(&world, args));
    }
    // These parts differ from run to run.
    let name = fs::read_to_string("/proc/self/comm").unwrap();
    let pid = std::process::id().to_string();
    let report = report.replace(&format!("({})", name.trim()), "(<name>)").replace(&pid, "<pid>");
    crate::expected_text::matches("errors.txt", &report);

    let key = world.key("busy");
    assert_eq!((key.held, key.waiting), (1, 0), "the other clients are undisturbed");
    assert_eq!(world.status().keys.len(), 1, "and nothing was taken");
    holder.finish().code(0);
}

#[test]
fn releasing_a_lock_that_is_not_held_changes_nothing() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    // The test process is the parent of this `canal release`.
    let ended = world.canal(["release", "x"]).end().code(125);
    assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
    assert_eq!(world.held("x"), 1);
    // The same user can name the process that holds it.
    world.canal(["release", "x", "--pid", &holder.pid_text()]).end().code(0);
    assert_eq!(world.held("x"), 0);
    world.canal(["release", "x", "--pid", &holder.pid_text()]).end().code(125);
    holder.finish().code(0);
}

#[test]
fn a_lock_with_zero_buckets_admits_no_holder() {
    let world = World::with_daemon();
    let ended = world.canal(["run", "-k", "x", "--per", "2", "--buckets", "0", "--", "true"]).end();
    assert_eq!(ended.code, Some(75), "it is refused at once, though it may wait: {ended:?}");
    assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
}

#[test]
fn a_broken_configuration_is_named_with_file_and_line() {
    for (config, why) in [
        ("[keys.db]\nper = \"three\"\nbuckets = 2\n", "line 2"),
        ("[keys.db]\nper = 3\nbukets = 2\n", "buckets"),
        ("[keys.db\n", "line 1"),
        ("[limit]\nconnections = 5\n", "limits"),
        ("[keys.\"/db\"]\nslots = 1\n", "use `db`"),
        ("[keys.db]\nslots = 1\nper = 2\nbuckets = 2\n", "slots"),
    ] {
        let world = World::new().on_one_host();
        let file = world.runtime().join("canal.toml");
        fs::write(&file, config).unwrap();
        let name = file.display().to_string();
        for args in [&["status"][..], &["run", "-k", "x", "--", "true"], &["daemon"]] {
            let ended = world.canal(args).end().code(125);
            assert!(ended.stderr.starts_with("canal: "), "{config}: {ended:?}");
            assert!(ended.stderr.contains(&name), "{config}: {ended:?}");
            assert!(ended.stderr.contains(why), "{config}: {ended:?}");
        }
        world.configure("");
        world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
    }
}

#[test]
fn a_garbage_journal_is_refused_with_file_offset_and_a_hint() {
    if journal_only("there is no journal") {
        return;
    }
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    world.canal(["daemon", "--stop"]).end().code(0);
    let mut damaged = 0;
    for name in ["journal.0", "journal.1"] {
        let path = world.runtime().join(name);
        if path.exists() {
            fs::write(
                &path,
                b"this is not a journal, and longer than any header could be".repeat(99),
            )
            .unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "no journal was found");
    for args in [&["status"][..], &["run", "-k", "x", "--", "true"], &["daemon"]] {
        let ended = world.canal(args).end().code(125);
        assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
        for part in ["journal.", "byte ", "--discard-journal"] {
            assert!(ended.stderr.contains(part), "{part}: {ended:?}");
        }
    }
    let daemon = world.canal(["daemon", "--discard-journal"]).spawn();
    wait_until("a daemon answers", || world.look().is_some());
    world.canal(["run", "-k", "x", "--", "true"]).end().code(0);
    let kept = fs::read_dir(world.runtime()).unwrap();
    let kept =
        kept.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().contains("discarded"));
    assert_eq!(kept.count(), damaged, "what was discarded is moved aside");
    drop(daemon);
    holder.finish();
}

#[test]
fn a_torn_record_at_the_end_of_the_journal_is_cut_off() {
    if journal_only("there is no journal") {
        return;
    }
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let token = world.key("x").holders[0].token;
    world.canal(["run", "-k", "y", "--", "true"]).end().code(0);
    world.until_held("y", 0);
    world.kill_daemon_quietly();
    // The file written last. Its last non-zero byte ends the last record, which was about the end
    // of the command above.
    let files = ["journal.0", "journal.1"].map(|name| world.runtime().join(name));
    let written = files.iter().filter(|path| path.exists());
    let last = written.max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap()).unwrap();
    let mut bytes = fs::read(last).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end] = 0;
    fs::write(last, bytes).unwrap();

    assert_eq!(world.status().daemon.socket, world.socket().display().to_string());
    world.until_held("y", 0);
    let key = world.key("x");
    assert_eq!((key.held, key.holders[0].token), (1, token));
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    world.canal(["run", "-n", "-k", "y", "--", "true"]).end().code(0);
    holder.finish();
}

#[test]
fn junk_on_one_connection_disturbs_no_other_client() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    let mut peer = crate::world::peer::Peer::connect(&world);
    let _ = peer.raw(&[b'x'; 1 << 20]);
    world.canal(["run", "-n", "-k", "y", "--", "true"]).end().code(0);
    drop(peer);
    let mut half = crate::world::peer::Peer::connect(&world);
    half.raw(b"{\"method\":\"io.canal.Lo").unwrap();
    world.canal(["run", "-n", "-k", "y", "--", "true"]).end().code(0);
    holder.finish();
    assert_eq!(waiter.end().code(0).stdout, "on\n");
}

#[test]
fn a_closed_or_full_standard_error_is_no_failure() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    for redirection in ["2>&-", "2>/dev/full"] {
        let script = format!("canal run -n -k x -- true {redirection}");
        world.sh(&script).stdin(Stdio::null()).end().code(75);
    }
    holder.finish();
}
