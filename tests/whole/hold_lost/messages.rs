//! The message about a lost hold.

use canal::sys::deadline_page::Why;

use crate::fake_daemon::{Fake, LONG};

const LOOP: &str = "echo $$ >>pids; while :; do sleep 0.01; done";

#[test]
fn the_message_says_once_what_was_lost_when_and_why() {
    let fake = Fake::sure(LONG, LONG);
    let running = fake.spawn(&[], &format!("trap '' TERM; {LOOP}"));
    fake.line("pids");
    fake.hasten(&running, 50, 200);
    let (code, said) = running.end();
    assert_eq!(code, Some(122));
    let first = said.lines().next().unwrap();
    assert!(first.starts_with("canal: lost `db` (token 9) at "), "{said}");
    let (_, silence) = first.split_once(": canal last reached etcd ").unwrap_or_default();
    assert!(silence.ends_with("s earlier; canal ends the command"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.lines().nth(1).unwrap().starts_with("hint: "), "{said}");
}

#[test]
fn the_message_has_the_reason_that_the_daemon_knows() {
    for (why, words) in [
        (Why::Gone, "this host (alpha) was declared gone; canal last reached etcd"),
        (Why::Rewritten, "the history of etcd changed"),
        (Why::Taken, "another daemon is writing to etcd as this host (alpha)"),
    ] {
        let fake = Fake::sure(LONG, LONG);
        let running = fake.spawn(&[], LOOP);
        fake.line("pids");
        fake.shared().writer.as_mut().unwrap().lost(why);
        let (code, said) = running.end();
        assert_eq!(code, Some(122));
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_loss_is_hidden_by_qq_only() {
    for (window, until) in [(200, 300), (0, 0)] {
        let fake = Fake::sure(window, until);
        assert_eq!(fake.spawn(&["-qq"], LOOP).end(), (Some(122), String::new()));
        // `-q` suppresses the reports that others had the lock first; this is a failure.
        let fake = Fake::sure(window, until);
        let (code, said) = fake.spawn(&["-q"], LOOP).end();
        assert_eq!(code, Some(122));
        assert!(said.starts_with("canal: lost `db`"), "{said}");
    }
}
