//! Before the command begins: how it starts, and a hold that is lost by then.

use crate::fake_daemon::{Fake, LONG};
use crate::world::executable::executable;

#[test]
fn without_an_engine_canal_becomes_the_command_after_one_call() {
    let fake = Fake::start(None);
    let running = fake.spawn(&["--on-lost", "warn"], "echo $$ >>pids; exit 4");
    let canal = running.pid().to_string();
    assert_eq!(running.end(), (Some(4), String::new()));
    assert_eq!(fake.line("pids"), canal);
    let shared = fake.shared();
    let methods: Vec<&str> = shared.calls.iter().map(|(method, _)| method.as_str()).collect();
    assert_eq!(methods, ["Acquire"]);
    assert_eq!(shared.calls[0].1["wrapper"], "exec");
    assert_eq!(shared.calls[0].1["on_lost"], "warn");
}

#[test]
fn over_an_engine_a_supervised_child_asks_again_under_the_same_tag() {
    let fake = Fake::sure(LONG, LONG);
    let running = fake.spawn(&[], "echo $$ >>pids; echo $PPID >>pids; exit 4");
    let canal = running.pid().to_string();
    assert_eq!(running.end(), (Some(4), String::new()));
    let pids = fake.read("pids");
    let pids: Vec<&str> = pids.lines().collect();
    assert_ne!(pids[0], canal);
    assert_eq!(pids[1], canal);
    let shared = fake.shared();
    let [(_, first), (_, second)] = &shared.calls[..] else { panic!("{:?}", shared.calls) };
    assert_eq!((&first["wrapper"], &second["wrapper"]), (&"exec".into(), &"supervised".into()));
    assert_eq!(first["tag"], second["tag"]);
    assert!(second.get("on_lost").is_none(), "kill is what is meant without a word");
}

#[test]
fn the_exit_status_of_the_command_is_passed_on() {
    use std::os::unix::process::ExitStatusExt;
    let fake = Fake::sure(LONG, LONG);
    for code in [0, 1, 75, 122, 255] {
        assert_eq!(fake.output(&[], &format!("exit {code}")).status.code(), Some(code));
    }
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGUSR1] {
        let output = fake.output(&[], &format!("kill -{signal} $$"));
        assert_eq!(output.status.signal(), Some(signal), "{output:?}");
    }
    // The parent reaps ended orphans, and does not mistake them for the command.
    let script =
        "for n in 1 2 3 4 5; do (sh -c 'sleep 0.0$0; exit 9' $n &); done; sleep 0.2; exit 6";
    assert_eq!(fake.output(&[], script).status.code(), Some(6));
}

#[test]
fn a_command_whose_deadline_has_passed_is_not_started() {
    for options in [&[][..], &["--on-lost", "warn"], &["--max-run", "1h"]] {
        let fake = Fake::sure(0, LONG);
        let output = fake.output(options, "echo begun >>log");
        assert_eq!(output.status.code(), Some(122), "{output:?}");
        assert_eq!(fake.read("log"), "");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.matches("canal: ").count(), 1, "{said}");
        assert!(said.contains("; the command was not started\n"), "{said}");
    }
}

#[test]
fn a_command_that_cannot_be_executed_is_reported_as_that_and_not_as_a_loss() {
    let fake = Fake::sure(LONG, LONG);
    executable(fake.path("no-program"), "#!/nonexistent/interpreter\n");
    let words = fake.canal(&[], "");
    let mut words: Vec<_> =
        [words.get_program()].into_iter().chain(words.get_args()).map(ToOwned::to_owned).collect();
    // This replaces `sh -c ""`.
    words.truncate(words.len() - 3);
    words.push(fake.path("no-program").into());
    let output = std::process::Command::new(&words[0]).args(&words[1..]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.ends_with("its interpreter was not found\n"), "{said}");
    let methods: Vec<String> =
        fake.shared().calls.iter().map(|(method, _)| method.clone()).collect();
    assert_eq!(methods, ["Acquire", "Acquire", "Release"]);
}

#[test]
fn acquire_fails_if_the_lock_was_lost_before_it_could_report_it() {
    let own = std::process::id().to_string();
    for (sure, code, said) in
        [(LONG, 0, ""), (0, 122, "canal: the lock was lost before canal could report it\n")]
    {
        let fake = Fake::sure(sure, sure);
        let ended = fake.takes("acquire", &["--pid", &own]).output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!((ended.status.code(), &*stderr), (Some(code), said));
    }
}
