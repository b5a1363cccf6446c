use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::waitpid;

use super::*;
use crate::pidfd::Pidfd;
use crate::rerun::{self, BOUND, wait_for_lines, wait_until};

const SCENE: &str = "process::detach::tests::starts_in_odd_circumstances";
const SHELL: &str = "/bin/sh";

fn shell(script: &str) -> Vec<OsString> {
    ["sh", "-c", script].map(OsString::from).into()
}

/// The report of a process that may take `timeout_ms` to write it.
fn start_within(
    program: &Path,
    argv: &[OsString],
    environment: &[(OsString, OsString)],
    log: Option<&Path>,
    timeout_ms: u64,
) -> io::Result<String> {
    let mut started = start(program, argv, environment, log)?;
    let report = started.report_within(Duration::from_millis(timeout_ms))?;
    report.ok_or_else(|| io::ErrorKind::TimedOut.into())
}

fn run(script: &str) -> io::Result<String> {
    start_within(Path::new(SHELL), &shell(script), &[], None, 10_000)
}

#[test]
fn what_the_program_says_before_it_closes_the_pipe_is_returned() {
    assert_eq!(run("echo 'cannot start: no' >&3").unwrap(), "cannot start: no\n");
    assert_eq!(run("exit 1").unwrap(), "");
    let long = run("i=0; while [ $i -lt 5000 ]; do echo 0123456789 >&3; i=$((i+1)); done");
    assert_eq!(long.unwrap().len(), 55_000);
}

#[test]
fn a_program_that_is_up_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let script = "echo $$ >&2; exec 3>&-; exec sleep 60";
    let report = start_within(Path::new(SHELL), &shell(script), &[], Some(&log), 10_000).unwrap();
    assert_eq!(report, "");
    let pid = wait_for_lines(&log, 1).trim().parse().unwrap();
    let pidfd = Pidfd::open(pid).unwrap();
    assert!(!pidfd.has_ended());
    assert_ne!(crate::process::parent(pid), Some(std::process::id()));
    pidfd.signal(Signal::SIGKILL).unwrap();
    assert!(pidfd.wait_end(BOUND));
}

#[test]
fn a_program_that_never_says_it_is_up_is_waited_for_no_longer_than_asked() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let before = Instant::now();
    let script = "echo $$ >&2; exec sleep 60";
    let error = start_within(Path::new(SHELL), &shell(script), &[], Some(&log), 50).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(before.elapsed() >= Duration::from_millis(50));
    assert!(before.elapsed() < BOUND);
    let pid = wait_for_lines(&log, 1).trim().parse().unwrap();
    Pidfd::open(pid).unwrap().signal(Signal::SIGKILL).unwrap();
}

#[test]
fn the_pid_is_known_before_the_program_says_anything() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let up = folder.path().join("up");
    assert!(Command::new("mkfifo").arg(&up).status().unwrap().success());
    let mut argv = shell("echo $$ >&2; read line <\"$0\"; echo $line >&3");
    argv.push(up.clone().into());
    let mut started = start(Path::new(SHELL), &argv, &[], Some(&log)).unwrap();
    let pid: u32 = wait_for_lines(&log, 1).trim().parse().unwrap();
    assert_eq!(started.report_within(Duration::ZERO).unwrap(), None);
    assert_eq!(started.pid(), Some(pid));
    fs::write(&up, "ready\n").unwrap();
    assert_eq!(started.report_within(BOUND).unwrap().as_deref(), Some("ready\n"));
}

#[test]
fn a_program_that_is_not_there_is_an_error_that_names_it() {
    let error = start_within(Path::new("/not/there"), &shell(""), &[], None, 10_000).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().starts_with("/not/there: "), "{error}");
}

#[test]
fn the_starter_keeps_no_child() {
    let pid = run("echo $$ >&3").unwrap().trim().parse::<i32>().unwrap();
    // The caller has neither the process nor the one in between (whose pid is the session's id) as
    // a child.
    let waited = waitpid(nix::unistd::Pid::from_raw(pid), None);
    assert_eq!(waited, Err(Errno::ECHILD));
    let session = run("cut -d' ' -f6 /proc/$$/stat >&3").unwrap();
    let session = nix::unistd::Pid::from_raw(session.trim().parse().unwrap());
    assert_eq!(waitpid(session, None), Err(Errno::ECHILD));
}

#[test]
fn a_log_is_appended_to_and_private() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    for _ in 0..2 {
        start_within(Path::new(SHELL), &shell("echo word >&2"), &[], Some(&log), 10_000).unwrap();
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), "word\nword\n");
    assert_eq!(log.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_log_that_cannot_be_opened_is_no_reason_not_to_start() {
    let folder = tempfile::tempdir().unwrap();
    let script = "readlink /proc/$$/fd/2 >&3";
    let log = folder.path().join("no/such/folder");
    let report = start_within(Path::new(SHELL), &shell(script), &[], Some(&log), 10_000).unwrap();
    assert_eq!(report, "/dev/null\n");
    // A symbolic link is not followed either.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path().join("target"), &link).unwrap();
    let report = start_within(Path::new(SHELL), &shell(script), &[], Some(&link), 10_000).unwrap();
    assert_eq!(report, "/dev/null\n");
    assert!(!folder.path().join("target").exists());
}

/// Makes a shell print its circumstances, one name at a time.
const ASK: &str = r#"
    exec >&3
    echo "folder $(pwd)"
    echo "mask $(umask)"
    env | sed 's/^/env /'
    for fd in /proc/$$/fd/*; do echo "fd${fd##*/} $(readlink $fd)"; done
    sed -n 's/^\(Sig[A-Z][a-z]*\|Cpus_allowed\):\s*/\1 /p' /proc/self/status
    sed 's/^.*) //' /proc/$$/stat | { read _ parent group session terminal rest
        echo "parent $parent"; echo "group $group"; echo "session $session"
        echo "terminal $terminal"; }
    echo "self $$"
    echo "nice $(nice)"
    echo "files $(ulimit -S -f)"
    echo "files-hard $(ulimit -H -f)"
    echo "descriptors $(ulimit -S -n)"
    echo "descriptors-hard $(ulimit -H -n)"
    echo "core $(ulimit -S -c)"
    echo "core-hard $(ulimit -H -c)"
"#;

#[test]
#[ignore = "a scene of nothing_of_the_starters_job_clings_to_it"]
fn starts_in_odd_circumstances() {
    if !rerun::plays(SCENE) {
        return;
    }
    let to = std::env::var_os("TO").unwrap();
    // A descriptor that a careless parent left open without close-on-exec.
    let stray = fds::pipe().unwrap();
    fds::inherit(stray.1, 40).unwrap();
    let blocked = SigSet::from_iter([Signal::SIGUSR1, Signal::SIGTERM]);
    blocked.thread_block().unwrap();
    let environment = [("ONLY".into(), "this".into())];
    let report = start_within(Path::new(SHELL), &shell(ASK), &environment, None, 10_000).unwrap();
    assert!(blocked.is_subset(&SigSet::thread_get_mask().unwrap()), "the mask is put back");
    fs::write(to, report).unwrap();
}

trait Subset {
    fn is_subset(&self, of: &SigSet) -> bool;
}

impl Subset for SigSet {
    fn is_subset(&self, of: &SigSet) -> bool {
        self.iter().all(|signal| of.contains(signal))
    }
}

fn circumstances(before: &str, kernel: Option<&str>) -> HashMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("report");
    let mut command = rerun::command(SCENE, before);
    command.env("TO", &to).current_dir(folder.path());
    if let Some(kernel) = kernel {
        command.env("CANAL_KERNEL", kernel);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report = fs::read_to_string(to).unwrap();
    let pairs = report.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn assert_nothing_clings(found: &HashMap<String, String>) {
    let of = |name: &str| found.get(name).map_or("", String::as_str);
    assert_eq!(of("folder"), "/");
    assert_eq!(of("mask"), "0077");
    for (name, target) in [("fd0", "/dev/null"), ("fd2", "/dev/null")] {
        assert_eq!(of(name), target, "{name}: {found:?}");
    }
    let open: Vec<_> = found.keys().filter(|name| name.starts_with("fd")).collect();
    // The shell itself may keep a copy of its descriptor 1 at 10 or above. An inherited copy would
    // be at 40.
    assert!(!found.contains_key("fd40"), "{open:?}");
    assert_eq!(of("SigBlk"), "0000000000000000");
    assert_eq!(of("SigIgn"), "0000000000000000");
    assert_ne!(of("session"), of("self"), "no leader");
    assert_eq!(of("session"), of("group"));
    assert_eq!(of("terminal"), "0");
    assert_eq!(of("descriptors"), of("descriptors-hard"));
    assert_eq!(of("core"), of("core-hard"));
    assert_eq!(of("files"), of("files-hard"));
}

#[test]
fn nothing_of_the_starters_job_clings_to_it() {
    let before = "trap '' HUP PIPE TERM USR2; ulimit -S -f 2000; ulimit -S -n 100; \
                  ulimit -S -c 0; umask 000; COOKIE=1; export COOKIE; ";
    let found = circumstances(before, None);
    assert_nothing_clings(&found);
    let report: Vec<_> = found.values().filter(|value| value.starts_with("COOKIE")).collect();
    assert!(report.is_empty(), "{report:?}");
}

#[test]
fn nor_does_it_on_a_kernel_without_close_range() {
    assert_nothing_clings(&circumstances("ulimit -S -n 100;", Some("5.8")));
}

#[test]
fn nor_if_the_starter_had_no_standard_descriptors() {
    assert_nothing_clings(&circumstances("exec <&-;", None));
}

/// Whether this process has the capability of this number (capability.h).
fn capable(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap() & (1 << number) != 0
}

#[test]
fn a_low_priority_and_a_low_hard_limit_go_as_far_as_allowed() {
    const SYS_NICE: u32 = 23;
    const SYS_RESOURCE: u32 = 24;
    let found = circumstances("renice 7 $$ >/dev/null; ulimit -f 3000;", None);
    assert_eq!(found["nice"], if capable(SYS_NICE) { "0" } else { "7" });
    assert_eq!(found["files"], if capable(SYS_RESOURCE) { "unlimited" } else { "3000" });
}

#[test]
fn the_environment_is_only_what_was_given() {
    let environment: [(OsString, OsString); 2] =
        [("A".into(), "1 2\n3".into()), ("EMPTY".into(), "".into())];
    let argv = shell("cat /proc/$$/environ >&3");
    let report = start_within(Path::new(SHELL), &argv, &environment, None, 10_000).unwrap();
    assert_eq!(report, "A=1 2\n3\0EMPTY=\0");
}

#[test]
fn notes_name_what_could_not_be_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let to: PathBuf = folder.path().join("notes");
    let before = "ulimit -v 8000000; ulimit -n 512; renice 3 $$ >/dev/null; \
                  echo 77 >/proc/$$/oom_score_adj;";
    let mut command = rerun::command("process::detach::tests::writes_its_notes", before);
    assert!(command.env("TO", &to).output().unwrap().status.success());
    wait_until("the notes are there", || to.exists());
    let notes = fs::read_to_string(to).unwrap();
    for note in [
        "nice value 3",
        "address space limited to 8192000000 bytes",
        "open descriptors limited to 512",
        "oom_score_adj 77: killed early when memory is short",
    ] {
        assert!(notes.lines().any(|line| line == note), "{note}: {notes}");
    }
    assert!(!notes.contains("processor time"), "{notes}");
}

#[test]
#[ignore = "a scene of notes_name_what_could_not_be_put_back"]
fn writes_its_notes() {
    if rerun::plays("process::detach::tests::writes_its_notes") {
        fs::write(std::env::var_os("TO").unwrap(), notes().join("\n")).unwrap();
    }
}
