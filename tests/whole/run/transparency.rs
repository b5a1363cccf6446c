//! The command runs exactly as its caller set it up.
//!
//! Each probe runs twice, with and without `canal run` before it, and prints what the kernel
//! reports about it. Both have the same caller and the same parent. The test leaves out what
//! differs by nature: pids, times, memory.

use std::process::Stdio;

use crate::backend;
use crate::world::World;

/// The ways to run a command with canal: as the command itself, and as its parent.
pub(crate) const WAYS: [&[&str]; 3] = [
    &["run", "-k", "x", "--"],
    &["run", "-k", "x", "--with-children", "--"],
    &["run", "-k", "x", "--max-run", "600", "--"],
];

/// Lines of `/proc/self/status` that depend on the caller.
const STATUS: [&str; 26] = [
    "Umask",
    "TracerPid",
    "Uid",
    "Gid",
    "Groups",
    "NSpgid",
    "NSsid",
    "Kthread",
    "THP_enabled",
    "untag_mask",
    "Threads",
    "SigPnd",
    "ShdPnd",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "Cpus_allowed",
    "Mems_allowed",
];

/// Fields of `/proc/self/stat`, by their numbers in proc(5): parent, group, session, terminal, its
/// foreground group, priority, niceness, threads, exit signal, real-time priority, policy.
const STAT: [usize; 11] = [4, 5, 6, 7, 8, 18, 19, 20, 38, 40, 41];

/// Prints everything that /proc reports about `cat` itself.
const CAT: [&str; 11] = [
    "cat",
    "/proc/self/status",
    "/proc/self/stat",
    "/proc/self/limits",
    "/proc/self/personality",
    "/proc/self/oom_score_adj",
    "/proc/self/coredump_filter",
    "/proc/self/timerslack_ns",
    "/proc/self/cgroup",
    "/proc/self/cmdline",
    "/proc/thread-self/comm",
];

/// The part of [`CAT`]'s output that must not differ.
fn facts(output: &str, parent: bool) -> String {
    let mut kept = String::new();
    for line in output.lines() {
        let name = line.split(':').next().unwrap_or_default();
        let fields: Vec<&str> =
            line.rsplit_once(") ").map_or(Vec::new(), |r| r.1.split(' ').collect());
        if fields.len() > 40 {
            // If canal stays, it is the command's parent, and the command is in a group that it
            // could also be in without canal.
            let skip = |field: &usize| parent && *field == 4;
            let of = |field: &usize| format!("{field}={}", fields[field - 3]);
            let picked: Vec<String> = STAT.iter().filter(|f| !skip(f)).map(of).collect();
            kept += &picked.join(" ");
        } else if STATUS.contains(&name) || !is_status(line) {
            kept += line;
        } else {
            continue;
        }
        kept.push('\n');
    }
    kept
}

/// Whether a line is from `/proc/self/status`.
fn is_status(line: &str) -> bool {
    line.split_once(":\t")
        .is_some_and(|(name, _)| name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c)))
}

/// Puts a way to run in front of a command.
pub(crate) fn through<'a>(way: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["canal"];
    all.extend(way);
    all.extend(command);
    all
}

/// Runs `probe` after `before` (a shell prefix that ends in `exec`), with and without canal, and
/// compares what `facts` keeps.
fn same(world: &World, before: &str, probe: &[&str]) {
    let run = |command: Vec<&str>| {
        let mut args = vec!["-c", before, "sh"];
        args.extend(command);
        let ended = world.program("sh", args).end();
        assert_eq!(ended.code, Some(0), "{before}: {ended:?}");
        ended.stdout
    };
    let plain = run(probe.to_vec());
    assert!(!plain.is_empty());
    for way in WAYS {
        let stays = backend::is_engine() || way.contains(&"--max-run");
        let canal = run(through(way, probe));
        // Without a terminal, the command of a limited run has its own group.
        let group = |text: String| if stays { without_group(&text) } else { text };
        let (canal, plain) = (group(facts(&canal, stays)), group(facts(&plain, stays)));
        assert_eq!(canal, plain, "{before} with {way:?}");
    }
}

fn without_group(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("NSpgid"));
    lines
        .map(|line| {
            line.split(' ').filter(|w| !w.starts_with("5=")).collect::<Vec<_>>().join(" ") + "\n"
        })
        .collect()
}

#[test]
fn the_kernel_reports_the_same_about_a_command() {
    let world = World::with_daemon();
    same(&world, "exec \"$@\"", &CAT);
}

#[test]
fn signal_dispositions_are_the_callers() {
    let world = World::with_daemon();
    for before in [
        "exec env --default-signal \"$@\"",
        "exec env --default-signal=PIPE \"$@\"",
        "exec env --ignore-signal=PIPE \"$@\"",
        "exec env --ignore-signal=PIPE,INT,QUIT,TERM,HUP,TSTP,USR1,USR2,WINCH,CHLD \"$@\"",
        "exec env --block-signal=USR1,INT,TERM,CHLD \"$@\"",
        "exec env --block-signal --ignore-signal=USR2 \"$@\"",
        "trap '' PIPE INT; exec \"$@\"",
    ] {
        same(&world, before, &CAT);
    }
}

#[test]
fn limits_umask_niceness_and_the_like_are_the_callers() {
    let world = World::with_daemon();
    for before in [
        "umask 027; exec \"$@\"",
        "umask 0; exec \"$@\"",
        "ulimit -n 100; exec \"$@\"",
        "ulimit -S -n 17; exec \"$@\"",
        "ulimit -c 0; ulimit -t 1000; ulimit -s 4096; ulimit -f 100000; exec \"$@\"",
        "exec nice -n 7 \"$@\"",
        "echo 500 >/proc/self/oom_score_adj; exec \"$@\"",
        "exec setpriv --no-new-privs \"$@\"",
        "exec setarch -R \"$@\"",
        "exec taskset 1 \"$@\"",
        "exec chrt -b 0 \"$@\"",
    ] {
        let tool = before.split_whitespace().nth(1).unwrap_or_default();
        let tool = if before.starts_with("exec ") { tool } else { "sh" };
        if crate::world::process::installed_or_skip(tool, before) {
            same(&world, before, &CAT);
        }
    }
}

#[test]
fn a_folder_that_was_removed_stays_the_folder() {
    let world = World::with_daemon();
    let probe = ["readlink", "/proc/self/cwd", "/proc/self/root"];
    same(&world, "exec \"$@\"", &probe);
    same(&world, "mkdir -p gone; cd gone; rmdir ../gone; exec \"$@\"", &probe);
}

#[test]
fn closed_descriptors_stay_closed_and_open_ones_stay_open() {
    let world = World::with_daemon();
    // The shell examines itself: `$$` is the process that canal became.
    let probe = "ls -l /proc/$$/fd >\"$0\" </dev/null 2>/dev/null; :";
    for redirection in [
        "",
        "<&-",
        ">&-",
        "2>&-",
        "<&- >&-",
        "<&- 2>&-",
        ">&- 2>&-",
        "<&- >&- 2>&-",
        "5</dev/null",
        "9>>kept",
        "<&- 7</dev/null",
    ] {
        let run = |way: &[&str]| {
            let canal =
                if way.is_empty() { String::new() } else { format!("canal {} ", way.join(" ")) };
            // Standard output and error are those of the shell, not those of the harness.
            let script = format!("exec {canal}sh -c '{probe}' \"$1\" {redirection}");
            let mut cmd = world.program("sh", ["-c", &script, "sh", "listing"]);
            cmd.command.stdout(Stdio::null()).stderr(Stdio::null());
            let ended = cmd.stdout(Stdio::null()).stderr(Stdio::null()).end();
            assert_eq!(ended.code, Some(0), "{script}: {ended:?}");
            targets(&world.read("listing"))
        };
        let plain = run(&[]);
        for way in WAYS {
            let mut canal = run(way);
            if way.contains(&"--with-children") {
                // The one descriptor that the command is meant to inherit.
                let fifo = canal.iter().position(|fd| fd.contains("/children/"));
                assert!(
                    canal.remove(fifo.expect("a FIFO is inherited")).starts_with(char::is_numeric)
                );
            }
            assert_eq!(canal, plain, "{redirection} with {way:?}");
        }
    }
}

/// `N -> TARGET` of each line of `ls -l`.
fn targets(listing: &str) -> Vec<String> {
    let arrows = listing.lines().filter_map(|line| {
        let (left, right) = line.split_once(" -> ")?;
        Some(format!("{} -> {right}", left.rsplit(' ').next()?))
    });
    arrows.collect()
}

#[test]
fn the_command_has_no_unknown_child() {
    // No daemon runs: the first `canal run` starts it.
    let probe = "read children </proc/$$/task/$$/children; echo \"[$children]\"";
    for way in WAYS {
        let world = World::new();
        let ended = world.canal(way.iter().chain(&["sh", "-c", probe])).end().code(0);
        assert_eq!(ended.stdout, "[]\n", "{way:?}");
    }
}

#[test]
fn the_command_runs_in_the_process_that_was_started() {
    let world = World::with_daemon();
    let run = world.canal(["run", "-k", "x", "--", "sh", "-c", "echo $$; exec cat"]);
    let run = run.stdin(Stdio::piped()).spawn();
    let pid = run.pid();
    world.until_held("x", 1);
    assert_eq!(run.finish().code(0).stdout, format!("{pid}\n"));
}
