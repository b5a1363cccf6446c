//! Reasons why a daemon cannot work: it dies, or the system refuses what it needs.

use std::fs;
use std::time::Instant;

use crate::world::process::{Ended, installed_or_skip, root_or_skip, skipped};
use crate::world::{World, canal, journal_only};

/// How many daemons have logged that they listen.
fn daemons_started(world: &World) -> usize {
    let log = fs::read_to_string(world.runtime().join("daemon.log")).unwrap_or_default();
    log.lines().filter(|line| line.contains(" listening ")).count()
}

#[test]
fn a_client_starts_three_daemons_that_die_at_its_request_and_says_how_the_last_one_died() {
    if journal_only("the daemon dies as it writes the journal") {
        return;
    }
    for wait in [&[][..], &["-n"], &["-w", "2"]] {
        let world = World::new().switch("CANAL_FAULT", "journal:0");
        let begun = Instant::now();
        let args = [&["run", "-k", "x"], wait, &["--", "true"]].concat();
        let ended = world.canal(args).end().code(125);
        let took = begun.elapsed();
        assert_eq!(daemons_started(&world), 3, "{wait:?}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 2, "{ended:?}");
        let [first, hint] = ended.stderr.lines().collect::<Vec<_>>()[..] else {
            panic!("{ended:?}")
        };
        assert!(first.starts_with("canal: 3 daemons started, and each died"), "{ended:?}");
        assert!(first.contains("daemon.log: ") && first.contains(" listening "), "{ended:?}");
        assert!(hint.starts_with("hint: find the reason with `canal doctor`"), "{ended:?}");
        let doctor = world.canal(["doctor"]).end();
        assert!(doctor.stdout.contains("the last one did not end cleanly: "), "{doctor:?}");
        // Much less than the time that a client waits for a daemon to start.
        assert!(took.as_secs() < 9, "{wait:?}: {took:?}");
    }
}

/// Runs canal under a filter of system calls: each listed call fails with the error next to its
/// number. Returns `None` if this machine does not permit a filter.
fn under_filter(world: &World, forbidden: &[(libc::c_long, i32)], args: &[&str]) -> Option<Ended> {
    const FILTER: &str = r#"
        my $filter = pack("SCCL", 0x20, 0, 0, 0);
        while ($ARGV[0] ne "--") {
            my ($call, $error) = splice(@ARGV, 0, 2);
            $filter .= pack("SCCL", 0x15, 0, 1, $call) . pack("SCCL", 6, 0, 0, 0x50000 | $error);
        }
        $filter .= pack("SCCL", 6, 0, 0, 0x7fff0000);
        my $program = pack("S x6 P", length($filter) / 8, $filter);
        syscall(157, 38, 1, 0, 0, 0) == 0 && syscall(157, 22, 2, $program) == 0 or exit 99;
        shift @ARGV;
        exec @ARGV;
    "#;
    if !cfg!(target_arch = "x86_64") || !installed_or_skip("perl", "a filter of system calls") {
        return None;
    }
    let numbers = forbidden.iter().flat_map(|(call, error)| [call.to_string(), error.to_string()]);
    let canal = canal().display().to_string();
    let args = args.iter().map(|arg| (*arg).to_owned());
    let all = ["-e".to_owned(), FILTER.to_owned()].into_iter();
    let all = all.chain(numbers).chain(["--".to_owned(), canal]).chain(args);
    Some(world.program("perl", all).end())
}

#[test]
fn a_file_system_without_locks_is_named_and_nobody_is_waited_for() {
    let forbidden = [(libc::SYS_flock, libc::ENOLCK)];
    let world = World::new().on_one_host();
    let run = ["run", "-n", "-k", "x", "--", "true"];
    let Some(ended) = under_filter(&world, &forbidden, &run) else { return };
    let ended = ended.code(125);
    assert!(ended.stderr.contains("start.lock: flock(2): No locks available"), "{ended:?}");
    assert!(
        ended.stderr.contains("\nhint: choose another directory with --socket or CANAL_SOCKET"),
        "{ended:?}"
    );
    let Some(ended) = under_filter(&world, &forbidden, &["daemon"]) else { return };
    let ended = ended.code(125);
    assert!(ended.stderr.contains(": flock(2): No locks available"), "{ended:?}");
    let Some(ended) = under_filter(&world, &forbidden, &["doctor"]) else { return };
    let ended = ended.code(1);
    assert!(ended.stdout.contains("flock(2): No locks available"), "{ended:?}");
}

#[test]
fn a_filter_that_forbids_pidfd_open_is_named_and_does_not_pass_by_itself() {
    let forbidden = [(libc::SYS_pidfd_open, libc::EPERM)];
    // Later kernels provide the pidfd of a client without this call.
    let world = World::of_linux_5_10().on_one_host();
    let run = ["run", "-k", "x", "--", "true"];
    let Some(ended) = under_filter(&world, &forbidden, &run) else { return };
    let ended = ended.code(125);
    assert!(ended.stderr.contains("pidfd_open(2): Operation not permitted"), "{ended:?}");
    assert!(ended.stderr.contains("seccomp profile allows pidfd_open(2)"), "{ended:?}");
    let Some(ended) = under_filter(&world, &forbidden, &["doctor"]) else { return };
    let ended = ended.code(1);
    assert!(ended.stdout.contains("pidfd_open(2): Operation not permitted"), "{ended:?}");
}

#[test]
fn without_proc_or_with_a_part_of_it_locks_work_and_the_doctor_says_what_is_missing() {
    let what = "a daemon without /proc";
    if journal_only("a daemon over an engine needs the boot id of /proc")
        || !root_or_skip(what)
        || !installed_or_skip("unshare", what)
    {
        return;
    }
    for (mount, missing) in [
        ("mount -t tmpfs none /proc", "/proc is not mounted: canal works"),
        ("mount -t proc -o subset=pid none /proc", "cannot read /proc/sys"),
    ] {
        let world = World::new();
        let script = format!(
            "{mount} || exit 77
            canal run -k x -- sh -c 'canal run --new-session -n -q -k x -- true; echo busy $?'
            canal run -n -k x --max-run 60 -- true; echo free $?
            canal acquire -k y --pid $$ && canal run -n -q -k y -- true; echo held $?
            canal daemon --stop; canal run -n -q -k y -- true; echo still held $?
            canal release y --pid $$; canal run -n -k y -- true; echo free $?
            canal doctor | grep ' proc '; canal daemon --stop"
        );
        let ended = world.program("unshare", ["-m", "sh", "-c", &script]).end();
        if ended.code == Some(77) {
            return skipped("no other /proc can be mounted here");
        }
        let said = "busy 75\nfree 0\nheld 75\nstill held 75\nfree 0\n";
        assert!(ended.stdout.starts_with(said), "{mount}: {ended:?}");
        assert!(ended.stdout.contains(missing), "{mount}: {ended:?}");
        let kernel = world
            .program("unshare", ["-m", "sh", "-c", &format!("{mount}; canal run -k x -- true")]);
        let ended = kernel.env("CANAL_KERNEL", "6.12").end();
        match missing.contains("mounted") {
            true => assert!(ended.code(125).stderr.contains("/proc/self/ns/pid: "), "named"),
            false => drop(ended.code(0)),
        }
    }
}
