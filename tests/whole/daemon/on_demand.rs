//! A daemon that a client starts is independent of the job that started it.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::backend::{self, over_engines};
use crate::world::process::{
    BOUND, Proc, alive, in_time, installed_or_skip, runs_another_program, signal, wait_until,
};
use crate::world::record::{Events, recorded};
use crate::world::{World, canal, journal_only};

over_engines! {
    "a daemon has to join before it answers":
        fifty_runs_at_once_without_a_daemon_start_one_daemon_and_all_run,
        a_daemon_is_replaced_without_losing_holders_and_waiters;
}

fn link(pid: i32, name: &str) -> String {
    fs::read_link(format!("/proc/{pid}/{name}")).unwrap().display().to_string()
}

/// A field of `/proc/PID/stat`, by its number in proc(5), from the fourth on.
fn stat(pid: i32, field: usize) -> i64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let rest = stat.rsplit_once(") ").unwrap().1;
    rest.split(' ').nth(field - 3).unwrap().parse().unwrap()
}

#[test]
fn fifty_runs_at_once_without_a_daemon_start_one_daemon_and_all_run() {
    let world = World::new();
    let body = recorded("sleep 0.01");
    let spawn = |i: usize| {
        let name = i.to_string();
        // A client that waits for a long time would print progress.
        let lock = ["run", "--progress", "none", "-k", "x", "--per", "4", "--"];
        world.canal([&lock[..], &["sh", "-c", &body, "sh", &name]].concat()).spawn()
    };
    let all: Vec<Proc> = (0..50).map(spawn).collect();
    for one in all {
        let ended = one.end();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    }
    let events = Events::of(&world);
    assert_eq!(events.ended(), 50);
    assert!(events.most_at_once() <= 4, "{}", events.most_at_once());
    wait_until("one daemon is left", || daemons(&world).len() == 1);
    world.until_idle();
}

/// The daemons of a world, found by their arguments.
fn daemons(world: &World) -> Vec<i32> {
    let socket = world.socket();
    let socket = socket.as_os_str().as_encoded_bytes();
    let is_daemon = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut args = line.split(|byte| *byte == 0);
        let mut has = |what: &[u8]| args.any(|arg| arg == what);
        // Over an engine each daemon has a watcher.
        let watches = line.split(|byte| *byte == 0).any(|arg| arg == b"--watcher");
        has(b"daemon") && has(socket) && !watches && alive(*pid)
    };
    let all = fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(is_daemon).collect()
}

#[test]
fn the_daemon_has_its_own_session_the_root_folder_and_a_clean_environment() {
    let world = World::new();
    let mut job = world.canal(["run", "-k", "x", "--", "true"]).env("BUILD_COOKIE", "keep-me");
    job.command.process_group(0);
    job.end().code(0);
    let daemon = world.daemon_pid();
    let me = std::process::id().cast_signed();
    assert_ne!(stat(daemon, 4), i64::from(me), "its parent is not the process that started it");
    assert_ne!(stat(daemon, 6), stat(me, 6), "it has a session of its own");
    assert_eq!(stat(daemon, 7), 0, "it has no terminal");
    assert_eq!(link(daemon, "cwd"), "/");
    let environ = fs::read(format!("/proc/{daemon}/environ")).unwrap();
    let environ = String::from_utf8_lossy(&environ).into_owned();
    for foreign in ["BUILD_COOKIE", "HOME=", "TEST_WORLD", "CARGO"] {
        assert!(!environ.contains(foreign), "{foreign} is in {environ:?}");
    }
    let status = fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
    assert!(status.contains("Umask:\t0077"), "{status}");
}

#[test]
fn the_daemon_inherits_no_descriptor() {
    let world = World::new();
    let (mut read, write) = std::io::pipe().unwrap();
    let more = "exec 5<>/dev/null 6>&1 77>&2; canal run -k x -- true";
    let job = world.program("bash", ["-c", more]).stdout(write.try_clone().unwrap()).stderr(write);
    job.end().code(0);
    // The job's pipe closes although the daemon lives on. (The test has already dropped the
    // command.)
    let mut said = String::new();
    read.read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
    let daemon = world.daemon_pid();
    assert_eq!(link(daemon, "fd/0"), "/dev/null");
    assert_eq!(link(daemon, "fd/1"), "/dev/null");
    let runtime = world.runtime().display().to_string();
    for entry in fs::read_dir(format!("/proc/{daemon}/fd")).unwrap() {
        let Ok(target) = fs::read_link(entry.unwrap().path()) else { continue };
        let target = target.display().to_string();
        let own = [
            "/dev/null",
            "anon_inode:",
            "socket:",
            "pipe:",
            "/proc",
            "/memfd:canal-deadline",
            &runtime,
        ];
        assert!(own.iter().any(|own| target.starts_with(own)), "it has {target} open");
    }
}

#[test]
fn the_daemon_survives_the_kill_of_the_job_that_started_it() {
    let world = World::new();
    let script = "canal run -k x -- sleep 600 & canal run -k y -- true; wait";
    let mut job = world.sh(script);
    job.command.process_group(0);
    let job = job.spawn();
    world.until_held("x", 1);
    let daemon = world.look().unwrap().daemon.pid.cast_signed();
    let command = world.key("x").holders[0].pid.cast_signed();
    // Over an engine a command that has not started ends with its parent.
    wait_until("its command runs", || runs_another_program(command));
    killpg(Pid::from_raw(job.pid()), Signal::SIGKILL).unwrap();
    if backend::is_engine() {
        // Under a parent that stays, the command has its own group.
        signal(command, Signal::SIGKILL);
    }
    job.end();
    assert!(alive(daemon));
    world.until_idle();
    assert_eq!(world.daemon_pid(), daemon);
}

#[test]
fn the_daemon_inherits_neither_signals_nor_niceness() {
    let world = World::new().on_one_host();
    let ignoring = "trap '' TERM HUP PIPE INT; exec canal run -k x -- true";
    world.program("nice", ["-n", "5", "sh", "-c", ignoring]).end().code(0);
    let daemon = world.daemon_pid();
    let status = fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
    let mask = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        u64::from_str_radix(line[name.len()..].trim(), 16).unwrap()
    };
    let bit = |which: Signal| 1_u64 << (which as u32 - 1);
    // The daemon reads these signals itself. It neither blocks nor ignores the signals that the job
    // did.
    let read = bit(Signal::SIGTERM) | bit(Signal::SIGINT) | bit(Signal::SIGHUP);
    assert_eq!(mask("SigBlk:") & !read, 0);
    assert_eq!(mask("SigIgn:") & read, 0);
    if nix::unistd::geteuid().is_root() {
        assert_eq!(stat(daemon, 19), 0, "its niceness is that of a daemon, not of the job");
    }
    signal(daemon, Signal::SIGTERM);
    wait_until("the daemon has ended", || !alive(daemon));
}

#[test]
fn with_no_start_no_daemon_is_started() {
    let world = World::new();
    for args in [&["status", "--no-start"][..], &["run", "--no-start", "-k", "x", "--", "true"]] {
        let ended = world.canal(args).end().code(125);
        assert!(ended.stderr.starts_with("canal: no daemon"), "{ended:?}");
    }
    assert!(world.look().is_none());
}

#[test]
fn an_idle_daemon_ends_with_idle_exit() {
    in_time(Duration::from_millis(500), |idle| {
        let world = World::new();
        let begun = Instant::now();
        let seconds = idle.as_secs_f64().to_string();
        let mut daemon = world.daemon(|cmd| cmd.arg("--idle-exit").arg(seconds));
        let holder = world.holder(&["-k", "x"]);
        if begun.elapsed() > idle {
            return None;
        }
        let begun = Instant::now();
        wait_until("more than the idle time is over", || begun.elapsed() > idle * 9 / 5);
        assert!(!daemon.has_ended(), "a lock is held");
        holder.finish();
        daemon.end().code(0);
        // The next client starts another daemon.
        world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(0);
        Some(())
    });
}

#[test]
fn a_service_manager_passes_the_socket_and_gets_the_readiness_notification() {
    if !installed_or_skip("perl", "socket activation") {
        return;
    }
    let world = World::new().on_one_host();
    let notify = UnixDatagram::bind(world.path("notify")).unwrap();
    notify.set_read_timeout(Some(BOUND)).unwrap();
    let listen = "use IO::Socket::UNIX; use POSIX; \
        my $s = IO::Socket::UNIX->new(Local => $ENV{CANAL_SOCKET}, Listen => 64) or die; \
        POSIX::dup2(fileno $s, 3) if fileno $s != 3; \
        open my $fd, '+<&=', 3; fcntl $fd, 2, 0; \
        $ENV{LISTEN_FDS} = 1; $ENV{LISTEN_PID} = $$; exec @ARGV";
    let daemon = world.program("perl", ["-e", listen, "canal", "daemon"]);
    let daemon = daemon.env("NOTIFY_SOCKET", world.path("notify")).spawn();
    let mut word = [0; 256];
    let mut said = String::new();
    while !said.contains("READY=1") {
        let length = match notify.recv(&mut word) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            received => received.unwrap(),
        };
        said += &String::from_utf8_lossy(&word[..length]);
    }
    let inode = fs::metadata(world.socket()).unwrap().ino();
    world.canal(["run", "-n", "-k", "x", "--no-start", "--", "true"]).end().code(0);
    assert_eq!(world.daemon_pid(), daemon.pid());
    assert_eq!(fs::metadata(world.socket()).unwrap().ino(), inode, "the socket is the given one");
    daemon.signal(Signal::SIGTERM);
    daemon.end().code(0);
}

#[test]
fn a_second_daemon_names_the_first() {
    let world = World::with_daemon().on_one_host();
    let first = world.daemon_pid();
    let second = world.canal(["daemon"]).end().code(125);
    assert!(second.stderr.contains(&first.to_string()), "{second:?}");
    assert_eq!(world.daemon_pid(), first);
}

#[test]
fn a_daemon_is_replaced_without_losing_holders_and_waiters() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "x"]);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    let first = world.daemon_pid();
    let second = world.canal(["daemon", "--replace", "--foreground"]).spawn();
    wait_until("the new one answers", || {
        world.look().is_some_and(|s| s.daemon.pid.cast_signed() == second.pid())
    });
    wait_until("the first one has ended", || !alive(first));
    let ended = world.canal(["daemon", "--replace", "--idle-exit", "1h", "-v"]).end().code(0);
    let status = world.canal(["status", "--no-start", "--json"]).end().code(0).json();
    let third = status["daemon"]["pid"].as_i64().unwrap();
    let said = format!("canal: the new daemon is running, pid {third}\n");
    assert!(ended.stderr.ends_with(&said), "{ended:?}");
    assert_ne!(third, i64::from(second.pid()));
    second.end().code(0);
    let config = world.canal(["config"]).end().code(0).stdout;
    assert!(config.contains("1h") && config.contains("--idle-exit"), "{config}");
    world.until_waiting("x", 1);
    assert_eq!(world.held("x"), 1);
    holder.finish();
    assert_eq!(waiter.end().code(0).stdout, "on\n");
}

#[test]
fn a_daemon_is_started_in_the_background_where_there_was_none_to_replace() {
    let world = World::new().on_one_host();
    world.canal(["daemon", "--replace"]).end().code(0);
    world.canal(["run", "-k", "x", "--no-start", "--", "true"]).end().code(0);
}

#[test]
fn a_daemon_that_cannot_work_replaces_none() {
    let world = World::with_daemon().on_one_host();
    let first = world.daemon_pid();
    let config = world.runtime().join("canal.toml");
    let good = fs::read_to_string(&config).unwrap_or_default();
    fs::write(&config, "[limits\n").unwrap();
    let refused = world.canal(["daemon", "--replace"]).end().code(125);
    assert!(refused.stderr.starts_with("canal: ") && refused.stderr.contains("canal.toml, line 1"));
    fs::write(&config, good).unwrap();
    assert_eq!(world.daemon_pid(), first);
}

#[test]
fn a_renamed_canal_starts_itself_as_the_daemon() {
    let world = World::new();
    let other = world.path("work").join("lock-it");
    if fs::hard_link(canal(), &other).is_err() {
        // A descriptor of this process for writing could be inherited by another test's child.
        let copied = std::process::Command::new("cp").arg(canal()).arg(&other).status().unwrap();
        assert!(copied.success());
    }
    // This PATH contains no canal.
    let script = "PATH=/usr/bin:/bin exec ./lock-it run -k x -- echo ran";
    let ended = world.sh(script).end().code(0);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("ran\n", ""), "{ended:?}");
    assert_eq!(link(world.daemon_pid(), "exe"), other.display().to_string());
}

#[test]
fn with_too_few_descriptors_a_daemon_does_not_start_and_gives_the_reason() {
    if journal_only("the notes shown can be those of the daemon of the other host") {
        return;
    }
    let what = "a hard limit that cannot be raised";
    if !crate::world::process::root_or_skip(what) || !installed_or_skip("setpriv", what) {
        return;
    }
    let world = World::new();
    // Run without the capability to raise the limit again.
    let script = "ulimit -n 33; exec setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource \
                  canal run -k x -- true";
    let said = world.sh(script).end().code(125).stderr;
    assert!(said.contains("the limit on open files is 33") && said.contains("hint: "), "{said}");
    world.sh("ulimit -n 512; canal run -k x -- true").end().code(0);
    let notes = world.status().daemon.notes;
    assert!(notes.iter().any(|note| note == "open descriptors limited to 512"), "{notes:?}");
}
