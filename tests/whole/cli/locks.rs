//! The command line's view of read and write locks, sessions and deadlocks.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::world::process::BOUND;

/// A socket in its own folder. Dropping it stops the daemon.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn sh(&self, script: &str) -> Command {
        let canal = assert_cmd::cargo::cargo_bin!("canal");
        let mut sh = Command::new("timeout");
        // Scripts find canal by its name.
        let path =
            format!("{}:{}", canal.parent().unwrap().display(), std::env::var("PATH").unwrap());
        sh.arg(BOUND.as_secs().to_string()).args(["sh", "-c", script]).env("PATH", path);
        sh.env("CANAL_SOCKET", self.0.path().join("s")).env("CANAL_SEPARATE", "yes");
        sh.current_dir(self.0.path());
        sh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        sh
    }

    fn start(&self, script: &str) -> Child {
        self.sh(script).spawn().unwrap()
    }

    fn output(&self, script: &str) -> Output {
        self.sh(script).output().unwrap()
    }

    fn prints(&self, script: &str) -> String {
        let output = self.output(script);
        assert!(output.status.success(), "{script}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn json(&self, script: &str) -> Value {
        serde_json::from_str(&self.prints(script)).unwrap()
    }

    /// Waits until `many` requests wait for the key.
    fn until_waiting(&self, key: &str, many: u64) {
        until(|| {
            let status = self.json(&format!("canal status {key} --json"));
            status["keys"]
                .as_array()
                .unwrap()
                .iter()
                .any(|k| k["key"] == key && k["waiting"] == many)
        });
    }

    fn until_there(&self, file: &str) {
        until(|| self.0.path().join(file).exists());
    }

    fn touch(&self, file: &str) {
        std::fs::write(self.0.path().join(file), "").unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.output("canal daemon --stop");
    }
}

#[track_caller]
fn until(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + BOUND;
    while !condition() {
        assert!(Instant::now() < end, "it never came true");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A job that creates a file when it runs, and continues until another file exists.
fn job(lock: &str, runs: &str, end: &str) -> String {
    format!("exec canal run {lock} -c 'touch {runs}; until [ -e {end} ]; do sleep 0.01; done'")
}

#[test]
fn status_of_a_key_shows_the_modes_below_it() {
    let place = Place::new();
    let slot = place.start(&job("-k db/x -j 4", "slot", "end"));
    let read = place.start(&job("--read db/y", "read", "end"));
    let other = place.start(&job("--read other", "other", "end"));
    ["slot", "read", "other"].iter().for_each(|file| place.until_there(file));
    let write = place.start("exec canal run --write db true");
    place.until_waiting("db", 1);
    let page = place.prints("canal status db");
    let rows: Vec<Vec<&str>> = page.lines().map(|line| line.split_whitespace().collect()).collect();
    let titles: Vec<_> = page.lines().filter(|line| line.starts_with("db")).collect();
    assert_eq!(titles, ["db  1 waiting", "db/x  slots, 1 of 4 held", "db/y  1 reading"], "{page}");
    let taken = |first: &str, word: &str| {
        rows.iter().any(|row| row.first() == Some(&first) && row.get(5) == Some(&word))
    };
    assert!(taken("#1", "write") && taken("holds", "0") && taken("holds", "read"), "{page}");
    assert!(!page.contains("\nother"), "{page}");
    place.touch("end");
    for child in [slot, read, other, write] {
        assert!(child.wait_with_output().unwrap().status.success());
    }
}

#[test]
fn status_why_follows_the_chain_and_the_graph_has_its_edges() {
    let place = Place::new();
    let first = place.start(&job("--write a", "first", "end"));
    place.until_there("first");
    let second =
        place.start("exec canal run --write b -c 'touch second; canal run --write a true'");
    place.until_there("second");
    place.until_waiting("a", 1);
    let third = place.start("exec canal run --read b/x true");
    until(|| place.prints("canal status --graph").matches(" -> ").count() == 2);
    let pid = place.json("canal status b --json")["keys"][1]["waiters"][0]["pid"].to_string();
    let why = place.prints(&format!("canal status --why {pid}"));
    let lines: Vec<&str> = why.lines().collect();
    assert_eq!(lines.len(), 4, "{why}");
    assert!(lines[0].starts_with(&format!("pid {pid} `true` (")), "{why}");
    assert!(lines[0].contains(") has been waiting to read `b/x` since "), "{why}");
    assert!(
        lines[1].starts_with("  pid ") && lines[1].contains(" has held `b` for writing"),
        "{why}"
    );
    assert!(
        lines[2].starts_with("    pid ") && lines[2].contains(" has been waiting to write `a`"),
        "{why}"
    );
    assert!(
        lines[3].starts_with("      pid ") && lines[3].contains(" has held `a` for writing"),
        "{why}"
    );
    let waits = place.json(&format!("canal status --why {pid} --json"));
    assert_eq!(waits["waits"][1]["key"], "a", "{waits}");
    let graph = place.prints("canal status --graph");
    assert!(graph.starts_with("digraph canal {\n") && graph.ends_with("}\n"), "{graph}");
    assert!(graph.contains("[label=\"read b/x\\nby write b\"];"), "{graph}");
    let holder = place.json("canal status a --json")["keys"][0]["holders"][0]["pid"].to_string();
    let none = place.prints(&format!("canal status --why {holder}"));
    let lines: Vec<&str> = none.lines().collect();
    assert_eq!(
        lines[..2],
        [&*format!("pid {holder} is not waiting for anything"), "2 requests are waiting for it:"]
    );
    assert!(lines[2].contains(") has been waiting to write `a` since "), "{none}");
    assert!(lines[3].contains(") has been waiting to read `b/x` since "), "{none}");
    let unknown = place.output("canal status --why 1");
    assert_eq!(unknown.status.code(), Some(125));
    assert!(text(&unknown.stderr).starts_with("canal: process 1 "), "{}", text(&unknown.stderr));
    place.touch("end");
    for child in [first, second, third] {
        assert!(child.wait_with_output().unwrap().status.success());
    }
}

/// Holds `mine` and then asks for `other`, once both scripts hold their first lock.
fn crosswise(mine: &str, other: &str) -> String {
    format!(
        "exec canal run --write {mine} -c 'touch has-{mine}
         until [ -e has-{other} ]; do sleep 0.01; done
         canal run -E 3 --write {other} -- true'"
    )
}

#[test]
fn a_deadlock_message_shows_the_whole_cycle_and_the_code_is_never_the_conflict_code() {
    let place = Place::new();
    let scripts = [place.start(&crosswise("a", "b")), place.start(&crosswise("b", "a"))];
    let ends = scripts.map(|child| child.wait_with_output().unwrap());
    let mut codes = ends.each_ref().map(|end| end.status.code().unwrap());
    codes.sort_unstable();
    assert_eq!(codes, [0, 75], "{}", ends.each_ref().map(|end| text(&end.stderr)).concat());
    let victim = ends.iter().find(|end| end.status.code() == Some(75)).unwrap();
    let said = text(&victim.stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 6, "{said}");
    assert!(lines[0].ends_with("2 sessions would wait for each other forever"), "{said}");
    assert!(lines[1].starts_with("canal:   pid "), "{said}");
    for (line, end) in
        [(1, ", held for writing by"), (2, ", which encloses"), (3, ", held for writing by")]
    {
        assert!(lines[line].ends_with(end), "{said}");
    }
    assert!(lines[4].contains(", which encloses pid "), "{said}");
    assert!(lines[5].starts_with("hint: rerun the command"), "{said}");
    assert!(
        said.contains(" is waiting to write `a`") && said.contains(" is waiting to write `b`"),
        "{said}"
    );
}

#[test]
fn acquire_prints_the_cycle_as_json() {
    let place = Place::new();
    let script = |mine: &str, other: &str| {
        format!(
            "canal acquire --pid $$ --write {mine} && touch has-{mine}
             until [ -e has-{other} ]; do sleep 0.01; done
             canal acquire --json --pid $$ --write {other}"
        )
    };
    let scripts = [place.start(&script("a", "b")), place.start(&script("b", "a"))];
    let ends = scripts.map(|child| child.wait_with_output().unwrap());
    let victim = ends.iter().find(|end| end.status.code() == Some(75));
    let said = || ends.each_ref().map(|end| text(&end.stderr)).concat();
    let victim = victim.unwrap_or_else(|| panic!("{}", said()));
    let refusal: Value = serde_json::from_slice(&victim.stdout).unwrap();
    assert_eq!(
        (&refusal["refused"], &refusal["holders"]),
        (&"deadlock".into(), &Value::Array(vec![]))
    );
    let cycle = refusal["cycle"].as_array().unwrap();
    assert_eq!(cycle.len(), 2, "{refusal}");
    for (step, next) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
        assert_eq!(step["blocker"]["party"]["session"], next["waiter"]["session"], "{refusal}");
        assert_eq!(step["blocker"]["key"], step["key"], "{refusal}");
    }
    let granted = ends.iter().find(|end| end.status.success()).unwrap();
    let grant: Value = serde_json::from_slice(&granted.stdout).unwrap();
    assert_eq!(grant["keys"][0]["mode"], "write", "{grant}");
}

#[test]
fn a_nested_run_joins_the_session_unless_an_option_or_the_kernel_says_otherwise() {
    let place = Place::new();
    let nested = |options: &str| {
        place.output(&format!(
            "canal run --write build -c 'canal run {options} -v -n --read build/lib -- true'"
        ))
    };
    let own = nested("");
    let said = text(&own.stderr);
    assert!(
        own.status.success() && said.starts_with("canal: acquired build/lib to read, "),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    let new = nested("--new-session");
    assert_eq!(new.status.code(), Some(75), "{}", text(&new.stderr));
    let stranger = place.output("CANAL_SESSION=s1 CANAL_FRAME=f1 canal run -v --read x -- true");
    let said = text(&stranger.stderr);
    assert!(stranger.status.success(), "{said}");
    assert!(said.contains("canal: began session ") && said.contains("CANAL_FRAME=f1 "), "{said}");
}

#[test]
fn acquired_locks_are_printed_by_kind_of_option() {
    let place = Place::new();
    let told = place.prints(
        "canal run --write w --read r -k q=3:2 -c 'echo \"$CANAL_KEY|$CANAL_SLOTS|${CANAL_SLOT-}\"'",
    );
    assert_eq!(told, "q\nr\nw|0,1|\n");
    let first = place.prints("canal run --write w -k q -k p=3:2 -c 'echo \"$CANAL_SLOT\"'");
    assert_eq!(first, "0\n", "the slot of the first key");
    let none = place.prints("canal run --write w -c 'echo \"[$CANAL_SLOTS]${CANAL_SLOT-unset}\"'");
    assert_eq!(none, "[]unset\n");
}

#[test]
fn releasing_an_upgrade_leaves_the_read_lock() {
    let place = Place::new();
    let modes = "canal status conf --json | tr ',{' '\\n\\n' | grep '\"mode\"' | sort -u";
    let told = place.prints(&format!(
        "canal acquire --pid $$ --read conf && canal acquire --pid $$ --write conf || exit
         {modes}
         canal release --pid $$ conf
         echo; {modes}"
    ));
    assert_eq!(told, "\"mode\":\"read\"\n\"mode\":\"write\"\n\n\"mode\":\"read\"\n");
}

#[test]
fn a_script_that_blocks_its_own_command_is_named_at_once() {
    let place = Place::new();
    let output = place.output(
        "canal acquire --pid $$ --write a || exit 1
         canal run -w 1 --write a/b -- true; echo $?",
    );
    let said = text(&output.stderr);
    assert_eq!(text(&output.stdout), "75\n", "{said}");
    let warning =
        said.lines().find(|line| line.contains(", which started this command, holds `a`: "));
    assert!(warning.is_some_and(|line| line.starts_with("canal: pid ")), "{said}");
    assert!(
        said.contains("\nhint: release the lock first, or run the outer command under"),
        "{said}"
    );
}
