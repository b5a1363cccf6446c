//! The command line's view of a running daemon.

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin_cmd;
use tempfile::TempDir;

use crate::world::process::BOUND;

/// A socket in its own folder. Dropping it stops the daemon.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().unwrap_or_else(|error| panic!("{error}")))
    }

    fn canal(&self, args: &[&str]) -> Command {
        let mut canal: Command = cargo_bin_cmd!("canal");
        canal.env("CANAL_SOCKET", self.0.path().join("s")).env("CANAL_SEPARATE", "yes").args(args);
        canal.timeout(BOUND);
        canal
    }

    fn prints(&self, args: &[&str]) -> String {
        let assert = self.canal(args).assert().success();
        String::from_utf8_lossy(&assert.get_output().stdout).into_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.canal(&["daemon", "--stop"]).output();
    }
}

#[test]
fn keys_are_completed_by_prefix() {
    let place = Place::new();
    for key in ["db", "deploy/web", "my key", "web"] {
        place.canal(&["resize", key, "--slots", "2"]).assert().success();
    }
    for (prefix, keys) in [
        (&[][..], "db\ndeploy/web\nmy key\nweb\n"),
        (&["d"], "db\ndeploy/web\n"),
        (&["deploy/w"], "deploy/web\n"),
        (&["my k"], "my key\n"),
        (&["x"], ""),
        (&["/"], ""),
    ] {
        let mut args = vec!["complete", "keys", "--"];
        args.extend(prefix);
        // It prints nothing if the daemon does not answer within a tenth of a second.
        let tries = (0..100).map(|_| place.prints(&args));
        let found = tries.into_iter().find(|found| !found.is_empty() || keys.is_empty());
        assert_eq!(found.as_deref(), Some(keys), "{prefix:?}");
    }
}

#[test]
fn processes_that_hold_are_completed_by_the_beginning_of_their_pid() {
    let place = Place::new();
    let pid = std::process::id().to_string();
    place.canal(&["acquire", "-k", "db", "--pid", &pid]).assert().success();
    let other = if pid.starts_with('9') { "8" } else { "9" };
    for (prefix, pids) in
        [("", format!("{pid}\n")), (&pid[..1], format!("{pid}\n")), (other, String::new())]
    {
        // It prints nothing if the daemon does not answer within a tenth of a second.
        let tries = (0..100).map(|_| place.prints(&["complete", "pids", "--", prefix]));
        let found = tries.into_iter().find(|found| !found.is_empty() || pids.is_empty());
        assert_eq!(found, Some(pids), "{prefix:?}");
    }
}

#[test]
fn verbose_prints_the_acquired_slots_and_quiet_prints_nothing() {
    let place = Place::new();
    let said = |args: &[&str]| {
        let assert = place.canal(args).assert().success();
        String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
    };
    let verbose = said(&["run", "-v", "-k", "db=3x2", "-k", "gpu=4:2", "--", "true"]);
    let expected = "canal: acquired db slot 0 (1 held), gpu slot 0-1 (2 held), token ";
    let [db, gpu, acquired] = verbose.lines().collect::<Vec<_>>()[..] else { panic!("{verbose}") };
    assert!(acquired.starts_with(expected), "{verbose}");
    assert!(
        db.contains("`db=3x2` means the key `db`") && gpu.contains("`gpu=4:2` means the key `gpu`"),
        "{verbose}"
    );
    let detailed = said(&["run", "-vv", "-k", "db=3x2", "--", "true"]);
    let [asking, daemon, sent, answer, acquired] = detailed.lines().collect::<Vec<_>>()[..] else {
        panic!("{detailed}")
    };
    assert!(
        asking.starts_with("canal: calling the daemon at /") && asking.contains("/s, given by ")
    );
    assert!(daemon.starts_with("canal: the daemon is pid "), "{detailed}");
    assert!(daemon.ends_with(" with all rights"), "{detailed}");
    let tag = sent.strip_prefix("canal: sending Acquire, request ").expect(sent);
    assert_eq!(tag.len(), 32, "{detailed}");
    assert!(answer.starts_with("canal: Acquire: granted, token "), "{detailed}");
    assert!(acquired.starts_with("canal: acquired db slot 0 "), "{detailed}");
    let test = said(&["test", "-vv", "db"]);
    assert!(test.contains("canal: sending WouldAcquire\n"), "{test}");
    assert!(test.contains("canal: WouldAcquire: answered\n"), "{test}");
    assert_eq!(said(&["run", "-k", "db", "--", "true"]), "");
    let pid = std::process::id().to_string();
    assert_eq!(said(&["acquire", "-q", "-k", "db", "--pid", &pid]), "");
    assert!(
        said(&["release", "-v", "db", "--pid", &pid])
            .starts_with("canal: released db held by pid ")
    );
}

#[test]
fn a_resize_reports_the_old_and_the_new_size() {
    let place = Place::new();
    let resized = place.prints(&["resize", "db", "--per", "3", "--buckets", "2"]);
    assert_eq!(resized, "db: size 3x2 (previously not stored); 0 held, 0 waiting\n");
    let json = place.prints(&["resize", "db", "--per", "4", "--json"]);
    let expected = r#"{"key":"db","before":"3x2","now":"4x1","paused":false,"held":0,"waiting":0}"#;
    assert_eq!(json, format!("{expected}\n"));
    let status = place.prints(&["status"]);
    let expected = "1 key, 0 holders, 0 waiters\ndb  buckets 4x1, 0 of 4 held, stored\n";
    assert_eq!(status, expected);
    place.prints(&["resize", "db", "--forget"]);
    assert_eq!(place.prints(&["status"]), "no locks are held; no one is waiting\n");
}

#[test]
fn stopping_a_daemon_that_does_not_run_succeeds() {
    let place = Place::new();
    let stop = place.canal(&["daemon", "--stop"]).assert().success();
    let said = String::from_utf8_lossy(&stop.get_output().stderr).into_owned();
    assert!(said.starts_with("canal: no daemon is running at "), "{said}");
    place.canal(&["daemon", "--stop", "-q"]).assert().success().stderr("");
}
