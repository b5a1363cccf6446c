use std::path::Path;
use std::process::{Child, Command};

use nix::sys::signal::Signal;

use super::user::uid_by_status;
use super::*;
use crate::pidfd::Pidfd;
use crate::rerun::{self, BOUND, wait_until};
use canal_core::ProcessId;

fn sleeper() -> Child {
    Command::new("sleep").arg("60").spawn().unwrap()
}

fn ended(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn await_state(pid: u32, state: RunState) {
    wait_until(&format!("{pid} is {state:?}"), || run_state(pid) == state);
}

#[test]
fn the_state_follows_the_process() {
    let mut child = sleeper();
    let pidfd = Pidfd::open(child.id()).unwrap();
    assert_eq!(run_state(child.id()), RunState::Running);
    pidfd.signal(Signal::SIGSTOP).unwrap();
    await_state(child.id(), RunState::Stopped);
    assert_eq!(state_letter(child.id()), Some('T'));
    pidfd.signal(Signal::SIGCONT).unwrap();
    await_state(child.id(), RunState::Running);
    pidfd.signal(Signal::SIGKILL).unwrap();
    assert!(pidfd.wait_end(BOUND));
    assert_eq!(run_state(child.id()), RunState::Exiting, "a zombie");
    child.wait().unwrap();
    assert_eq!(run_state(child.id()), RunState::Gone);
    assert_eq!(started(child.id()), None);
    assert_eq!(command_line(child.id()), None);
}

#[test]
fn a_process_that_executes_is_busy_and_one_that_sleeps_is_not() {
    let mut child = Command::new("/bin/sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let await_activity = |pid, expected| {
        wait_until(&format!("{pid} is {expected:?}"), || activity(pid) == expected);
    };
    await_activity(child.id(), Activity::Busy);
    let pidfd = Pidfd::open(child.id()).unwrap();
    pidfd.signal(Signal::SIGSTOP).unwrap();
    await_activity(child.id(), Activity::Stopped);
    pidfd.signal(Signal::SIGCONT).unwrap();
    await_activity(child.id(), Activity::Busy);
    child.kill().unwrap();
    assert!(pidfd.wait_end(BOUND));
    assert_eq!(activity(child.id()), Activity::Busy, "it may have threads that are still ending");
    child.wait().unwrap();
    assert_eq!(activity(child.id()), Activity::Idle, "it is gone");
    let child = sleeper();
    await_activity(child.id(), Activity::Idle);
    ended(child);
}

#[test]
fn the_parent_is_ours_and_the_start_is_past() {
    let child = sleeper();
    assert_eq!(parent(child.id()), Some(std::process::id()));
    let start = started(child.id()).unwrap();
    assert!(start >= started(std::process::id()).unwrap());
    assert!(start <= crate::peer::ticks_now());
    ended(child);
}

#[test]
fn the_ancestors_lead_up_to_us_and_to_the_first_process() {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "sleep 60 & echo $!; wait"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut { out }, &mut line).unwrap();
    let sleeper: u32 = line.trim().parse().unwrap();
    let found: Vec<_> = ancestors(sleeper).collect();
    assert_eq!(found[..2], [child.id(), std::process::id()]);
    let started: Vec<_> = found.iter().filter_map(|pid| started(*pid)).collect();
    assert!(started.is_sorted_by(|child, parent| child >= parent));

    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("it has another parent", || parent(sleeper) != Some(child.id()));
    assert!(ancestors(sleeper).all(|pid| pid != child.id()));
    Pidfd::open(sleeper).unwrap().signal(Signal::SIGKILL).unwrap();
}

#[test]
fn a_command_line_is_shown_on_one_line() {
    let script = "echo; read x";
    let mut child = Command::new("/bin/sh")
        .args(["-c", script, "\u{1b}[2J\n", "", "ä\u{202e}b"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The shell has been executed once it writes.
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    assert_eq!(command_line(child.id()).unwrap(), "/bin/sh -c echo; read x ?[2J?  ä?b");
    ended(child);
}

#[test]
fn a_long_command_line_is_cut() {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "echo; read x", &"y".repeat(100_000)])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    assert_eq!(command_line(child.id()).unwrap().len(), COMMAND_LINE_MAX);
    ended(child);
}

#[test]
fn a_process_without_a_command_line_shows_its_name() {
    let mut child = sleeper();
    let pidfd = Pidfd::open(child.id()).unwrap();
    wait_until("sleep runs", || name(child.id()).as_deref() == Some("sleep"));
    pidfd.signal(Signal::SIGKILL).unwrap();
    assert!(pidfd.wait_end(BOUND));
    assert_eq!(command_line(child.id()).as_deref(), Some("[sleep]"));
    child.wait().unwrap();
}

#[test]
fn the_user_is_the_real_one_as_long_as_the_process_is_not_reaped() {
    let mut child = sleeper();
    let pidfd = Pidfd::open(child.id()).unwrap();
    let own = user::getuid().as_raw();
    assert_eq!(uid_of(&pidfd), Some(own));
    assert_eq!(uid_by_status(&pidfd), Some(own));
    pidfd.signal(Signal::SIGKILL).unwrap();
    assert!(pidfd.wait_end(BOUND));
    assert_eq!(uid_of(&pidfd), Some(own), "a zombie still is somebody's");
    assert_eq!(uid_by_status(&pidfd), Some(own));
    child.wait().unwrap();
    assert_eq!(uid_of(&pidfd), None);
    assert_eq!(uid_by_status(&pidfd), None);
}

#[test]
fn a_process_is_found_again_until_it_is_reaped() {
    let mut child = sleeper();
    let pidfd = Pidfd::open(child.id()).unwrap();
    let known = identity(&pidfd).unwrap();
    assert_eq!(known.pid, child.id());
    let start = if known.inode == 0 { started(child.id()).unwrap() } else { 0 };
    assert_eq!(known.started, start, "the inode says it all");
    assert_eq!(known.inode, pidfd.inode());
    let Found::Same(again) = find(known) else { panic!("{:?}", find(known)) };
    assert_eq!(again.pid(), Some(child.id()));
    child.kill().unwrap();
    assert!(pidfd.wait_end(BOUND));
    assert_eq!(identity(&pidfd), Some(known), "a zombie still is who it was");
    assert!(matches!(find(known), Found::Same(zombie) if zombie.has_ended()));
    child.wait().unwrap();
    assert_eq!(identity(&pidfd), None);
    assert!(matches!(find(known), Found::Gone));
}

#[test]
fn another_process_with_the_number_is_not_taken_for_it() {
    let known = identity(&Pidfd::open(std::process::id()).unwrap()).unwrap();
    let inode = ProcessId { inode: known.inode + 1, ..known };
    let start = started(known.pid).unwrap();
    // Like a record from a kernel without pidfs, it has only the start time.
    let by_start = ProcessId { started: start, inode: 0, ..known };
    let started = ProcessId { started: start - 1, ..by_start };
    if known.inode != 0 {
        assert!(matches!(find(inode), Found::Gone));
    }
    assert!(matches!(find(started), Found::Gone));
    assert!(matches!(find(by_start), Found::Same(_)));
}

#[test]
fn what_cannot_be_compared_is_unknown_and_not_gone() {
    let known = identity(&Pidfd::open(std::process::id()).unwrap()).unwrap();
    for known in [
        ProcessId { pid: 0, started: 0, inode: known.inode },
        ProcessId { started: 0, inode: 0, ..known },
    ] {
        assert!(matches!(find(known), Found::Unknown(_)), "{known:?}");
    }
}

#[test]
fn the_origin_is_that_of_every_process_here() {
    let origin = Origin::read().unwrap();
    assert_eq!(origin.boot_id.len(), 36, "{origin:?}");
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap();
    assert_eq!(link, Path::new(&format!("pid:[{}]", origin.pid_namespace)));
    if Path::new("/proc/self/ns/time").exists() {
        assert_ne!(origin.time_namespace, 0);
    }
    assert_eq!(Origin::read().unwrap(), origin);
}

const ADOPTS: &str = "process::tests::adopts_orphans";

#[test]
#[ignore = "a scene of a_subreaper_adopts_orphans"]
fn adopts_orphans() {
    if rerun::plays(ADOPTS) {
        child::become_subreaper().unwrap();
        // The inner shell becomes an orphan when the outer shell ends.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 60 & echo $!"]).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut { stdout }, &mut line).unwrap();
        child.wait().unwrap();
        let orphan = line.trim().parse().unwrap();
        assert_eq!(parent(orphan), Some(std::process::id()));
        Pidfd::open(orphan).unwrap().signal(Signal::SIGKILL).unwrap();
        println!("ADOPTED");
    }
}

#[test]
fn a_subreaper_adopts_orphans() {
    let output = rerun::run(ADOPTS, "");
    assert!(String::from_utf8_lossy(&output.stdout).contains("ADOPTED"), "{output:?}");
}

/// A cgroup for this test, if we may create one.
struct Cgroup(std::path::PathBuf);

impl Cgroup {
    fn make(mount: &str) -> Option<Self> {
        let path = Path::new(mount).join(format!("canal-test-{}", std::process::id()));
        std::fs::create_dir(&path).is_ok().then(|| Self(path))
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A reaped process can briefly stay in it.
        wait_until("the cgroup is empty", || std::fs::remove_dir(&self.0).is_ok());
    }
}

fn shows_as_frozen(cgroup: &Cgroup, freeze: impl Fn(&Cgroup, bool)) {
    let child = sleeper();
    cgroup.write("cgroup.procs", &child.id().to_string());
    assert_eq!(run_state(child.id()), RunState::Running);
    freeze(cgroup, true);
    await_state(child.id(), RunState::Frozen);
    freeze(cgroup, false);
    await_state(child.id(), RunState::Running);
    ended(child);
}

#[test]
fn a_frozen_process_is_seen_if_we_may_freeze_one() {
    let word = |frozen| if frozen { "1" } else { "0" };
    for mount in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        if !Path::new(mount).join("cgroup.procs").exists() {
            continue;
        }
        let Some(cgroup) = Cgroup::make(mount) else { continue };
        shows_as_frozen(&cgroup, |cgroup, frozen| cgroup.write("cgroup.freeze", word(frozen)));
    }
    if let Some(cgroup) = Cgroup::make("/sys/fs/cgroup/freezer") {
        let word = |frozen| if frozen { "FROZEN" } else { "THAWED" };
        shows_as_frozen(&cgroup, |cgroup, frozen| cgroup.write("freezer.state", word(frozen)));
    }
}
