//! A PostgreSQL server for tests: of its own, on loopback, in a directory of its own.
//!
//! A test binary includes this folder by path (`#[path = "../postgres_server/mod.rs"]`). Where
//! PostgreSQL is not installed, `start` says so loudly and gives nothing; with `CI` set it fails.
//!
//! Invariant: the server ends with the test process, however that ends: a shell waits for the end of
//! a pipe that only the test process holds, then ends the server by its pid and removes the files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Uid, User, chown};

#[allow(clippy::duplicate_mod, reason = "other folders that a test binary includes have it too")]
#[path = "../bound/mod.rs"]
mod bound;
use bound::BOUND;
#[allow(clippy::duplicate_mod, reason = "other folders that a test binary includes have it too")]
#[path = "../free_port/mod.rs"]
mod free_port;
pub(crate) use free_port::free_port;

/// The superuser of the servers.
pub(crate) const ADMIN: &str = "admin";

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    bin: PathBuf,
    dir: PathBuf,
    pub(crate) port: u16,
    shell: Option<Child>,
}

/// The server that all tests of the binary share.
pub(crate) fn shared() -> Option<&'static Server> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    SHARED.get_or_init(start_postgres).as_ref()
}

/// A server of the caller's own.
pub(crate) fn start_postgres() -> Option<Server> {
    let Some(bin) = binaries() else {
        let why = "skipped: PostgreSQL is not installed (Debian: apt install postgresql)";
        assert!(std::env::var_os("CI").is_none(), "{why}");
        eprintln!("{why}");
        return None;
    };
    let dir = tempfile::Builder::new().prefix("canal-pg").tempdir().unwrap().keep();
    let mut server = Server { bin, dir, port: 0, shell: None };
    server.init();
    server.start();
    Some(server)
}

/// The folder of the newest version that is installed.
fn binaries() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> = versions.map(|entry| entry.path().join("bin")).collect();
    found.sort_by_key(|bin| {
        let version = bin.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        version.and_then(|name| name.parse::<u32>().ok())
    });
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let whole = |bin: &PathBuf| {
        ["initdb", "postgres", "psql", "pg_basebackup"].iter().all(|name| bin.join(name).exists())
    };
    found.into_iter().rev().chain(std::env::split_paths(&on_path)).find(whole)
}

/// PostgreSQL does not run as root.
fn server_user() -> Option<User> {
    if !Uid::effective().is_root() {
        return None;
    }
    let known = |name| User::from_name(name).ok().flatten();
    Some(known("postgres").or_else(|| known("nobody")).unwrap())
}

/// `program` as a user that PostgreSQL likes.
pub(crate) fn as_server_user(program: &Path) -> Command {
    let Some(user) = server_user() else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={}", user.uid)).arg(format!("--regid={}", user.gid));
    command.arg("--clear-groups").arg("--").arg(program);
    command
}

/// Waits until `done`, and fails if that takes too long.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + BOUND;
    while !done() {
        assert!(Instant::now() < until, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Server {
    fn init(&self) {
        self.give(&self.dir);
        let mut init = as_server_user(&self.bin.join("initdb"));
        init.args(["--no-sync", "--no-locale", "-E", "UTF8", "-A", "trust", "-U", ADMIN, "-D"]);
        init.arg(self.data()).current_dir("/");
        let made = init.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Gives a file to the user whom the server runs as.
    pub(crate) fn give(&self, path: &Path) {
        if let Some(user) = server_user() {
            chown(path, Some(user.uid), Some(Gid::from_raw(user.gid.as_raw()))).unwrap();
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Starts the server, on the port it had if it had one.
    pub(crate) fn start(&mut self) {
        let again = self.port != 0;
        for _ in 0..5 {
            if !again {
                self.port = free_port();
            }
            let earlier = self.log().len();
            self.spawn();
            if self.comes_up(earlier) {
                return;
            }
            self.halt();
        }
        panic!("the server does not start: {}", self.log());
    }

    fn spawn(&mut self) {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.dir.join("log"));
        let log = log.unwrap();
        let postgres = as_server_user(&self.bin.join("postgres"));
        // INT is the fast shutdown; it does not wait for clients.
        let script = "\"$@\" & pid=$!; read -r how; kill -\"${how:-INT}\" $pid; wait $pid";
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{script}; [ -n \"$how\" ] || rm -rf {}", self.dir.display())]);
        shell.arg("sh").arg(postgres.get_program()).args(postgres.get_args());
        shell.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
        for setting in ["listen_addresses=127.0.0.1", "max_connections=200", "fsync=off"] {
            shell.args(["-c", setting]);
        }
        shell.arg("-c").arg(format!("unix_socket_directories={}", self.dir.display()));
        shell.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        self.shell = Some(shell.current_dir("/").spawn().unwrap());
    }

    fn comes_up(&self, earlier: usize) -> bool {
        let until = Instant::now() + BOUND;
        while Instant::now() < until {
            let pid_file = fs::read_to_string(self.data().join("postmaster.pid"));
            if pid_file.is_ok_and(|text| text.contains("ready")) {
                return true;
            }
            if self.log()[earlier..].contains("could not bind") {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// Adds to the configuration; counts from the next start.
    pub(crate) fn configure(&self, settings: &str) {
        let path = self.data().join("postgresql.auto.conf");
        let before = fs::read_to_string(&path).unwrap();
        fs::write(path, format!("{before}\n{settings}\n")).unwrap();
    }

    /// Says who is let in, at once if the server runs.
    pub(crate) fn hba(&self, lines: &str) {
        fs::write(self.data().join("pg_hba.conf"), lines).unwrap();
        if self.shell.is_some() {
            let loaded = "SELECT pg_conf_load_time()";
            let before = self.sql(loaded);
            self.sql("SELECT pg_reload_conf()");
            until("pg_hba.conf", || self.sql(loaded) != before);
        }
    }

    fn backup(&self) -> PathBuf {
        self.dir.join("backup")
    }

    /// Makes a base backup, in the place of the one before.
    pub(crate) fn back_up(&self) {
        let _ = fs::remove_dir_all(self.backup());
        let mut copy = as_server_user(&self.bin.join("pg_basebackup"));
        copy.arg("-h").arg(&self.dir).args(["-p", &self.port.to_string(), "-U", ADMIN]);
        copy.args(["-X", "stream", "-c", "fast", "-D"]).arg(self.backup());
        let copied = copy.current_dir("/").output().unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    }

    /// Starts the server anew from its base backup.
    pub(crate) fn restore(&mut self) {
        self.halt();
        fs::remove_dir_all(self.data()).unwrap();
        let mut copy = Command::new("cp");
        assert!(copy.arg("-a").args([self.backup(), self.data()]).status().unwrap().success());
        self.start();
    }

    /// Writes a database as SQL, of what is in one schema.
    pub(crate) fn dump(&self, database: &str, schema: &str) -> String {
        let mut dump = Command::new(self.bin.join("pg_dump"));
        dump.arg("-h").arg(&self.dir).args(["-p", &self.port.to_string(), "-U", ADMIN]);
        let dumped = dump.args(["--inserts", "-n", schema, database]).output().unwrap();
        assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
        // Without what only psql reads.
        let text = String::from_utf8(dumped.stdout).unwrap();
        text.lines()
            .filter(|line| !line.starts_with('\\'))
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// A standby of this server, which streams from it.
    pub(crate) fn standby(&self) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("canal-pg").tempdir().unwrap().keep();
        let mut standby = Self { bin: self.bin.clone(), dir, port: 0, shell: None };
        standby.give(&standby.dir);
        let mut copy = as_server_user(&self.bin.join("pg_basebackup"));
        copy.arg("-h").arg(&self.dir).args(["-p", &self.port.to_string(), "-U", ADMIN]);
        copy.args(["-R", "-X", "stream", "-c", "fast", "-D"]).arg(standby.data());
        let copied = copy.current_dir("/").output().unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        standby.start();
        Some(standby)
    }

    /// Waits until this standby has everything that `primary` has.
    pub(crate) fn has_replayed(&self, primary: &Self) {
        let upto = primary.sql("SELECT pg_current_wal_flush_lsn()");
        let done = format!("SELECT pg_last_wal_replay_lsn() >= '{upto}'");
        until("the standby", || self.sql(&done) == "t");
    }

    /// Stops the server at once and keeps its files.
    pub(crate) fn halt(&mut self) {
        self.end("INT");
    }

    /// Stops the server as a crash does and keeps its files.
    pub(crate) fn crash(&mut self) {
        self.end("QUIT");
    }

    fn end(&mut self, signal: &str) {
        use std::io::Write as _;
        let Some(mut shell) = self.shell.take() else { return };
        writeln!(shell.stdin.take().unwrap(), "{signal}").unwrap();
        shell.wait().unwrap();
    }

    /// Runs SQL as the superuser in a database; the rows, columns separated by `|`.
    pub(crate) fn sql_in(&self, database: &str, sql: &str) -> String {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-h"]).arg(&self.dir);
        psql.args(["-p", &self.port.to_string(), "-U", ADMIN, "-d", database, "-c", sql]);
        let ran = psql.output().unwrap();
        assert!(ran.status.success(), "{sql}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap().trim_end().to_owned()
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        self.sql_in("postgres", sql)
    }

    /// Makes a user of that name and a database that belongs to it.
    pub(crate) fn make_database(&self, name: &str) {
        self.sql(&format!("CREATE ROLE \"{name}\" LOGIN"));
        self.sql(&format!("CREATE DATABASE \"{name}\" OWNER \"{name}\""));
    }

    /// The address of a database, as a user of the same name.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://{database}@127.0.0.1:{}/{database}", self.port)
    }

    /// The address of a new database of which nobody else knows.
    pub(crate) fn new_url(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("db{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.make_database(&name);
        self.url(&name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            drop(shell.stdin.take());
            let _ = shell.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}
