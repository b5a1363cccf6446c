//! A PostgreSQL server of a test's own, reached by a Unix socket in the test's folder.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::process::{Cmd, Ended, Proc, skipped, wait_until};
use crate::world::World;

/// A server.
#[derive(Debug)]
pub(crate) struct Postgres<'w> {
    world: &'w World,
    /// Outside the world's folder, which is not for other users.
    folder: tempfile::TempDir,
    server: Option<Proc>,
}

/// The programs of the newest server that is installed.
fn programs() -> Option<PathBuf> {
    let has = |dir: &Path| dir.join("initdb").is_file() && dir.join("postgres").is_file();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut dirs: Vec<PathBuf> =
        versions.filter_map(|entry| Some(entry.ok()?.path().join("bin"))).collect();
    dirs.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs = dirs.into_iter().rev().chain(std::env::split_paths(&path).collect::<Vec<_>>());
    dirs.find(|dir| has(dir))
}

impl<'w> Postgres<'w> {
    /// Starts a server; says loudly what is skipped where none is installed.
    #[track_caller]
    pub(crate) fn start(world: &'w World, what: &str) -> Option<Self> {
        let Some(programs) = programs() else {
            skipped(&format!("PostgreSQL is not installed (package postgresql): {what}"));
            return None;
        };
        let folder = tempfile::Builder::new().prefix("canal-pg-").tempdir().unwrap();
        let mut postgres = Self { world, folder, server: None };
        let data = postgres.folder.path().join("data");
        if nix::unistd::geteuid().is_root() {
            // The server refuses to be root's.
            let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
            nix::unistd::chown(postgres.folder.path(), Some(nobody.uid), Some(nobody.gid)).unwrap();
        }
        fs::set_permissions(postgres.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let program = |name: &str| programs.join(name).into_os_string();
        let args: [OsString; 7] = [
            program("initdb"),
            "-A".into(),
            "trust".into(),
            "-U".into(),
            "canal".into(),
            "-D".into(),
            data.clone().into(),
        ];
        postgres.as_nobody(args).end().code(0);
        let socket = postgres.folder.path().as_os_str().to_owned();
        let plain = ["-c", "listen_addresses=", "-c", "fsync=off", "-k"].map(OsString::from);
        let args = [program("postgres"), "-D".into(), data.into()];
        let server = postgres.as_nobody(args.into_iter().chain(plain).chain([socket])).spawn();
        postgres.server = Some(server);
        wait_until("the server answers", || postgres.sql("SELECT 1").code == Some(0));
        Some(postgres)
    }

    fn as_nobody(&self, args: impl IntoIterator<Item = OsString>) -> Cmd<'w> {
        let mut args = args.into_iter();
        let cmd = if nix::unistd::geteuid().is_root() {
            let user = ["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"];
            self.world.program("setpriv", user.map(OsString::from).into_iter().chain(args))
        } else {
            self.world.program(args.next().unwrap(), args)
        };
        let mut cmd = cmd;
        cmd.command.current_dir("/");
        cmd
    }

    fn psql(&self, args: &[&str]) -> Cmd<'w> {
        let plain = ["-X", "-q", "-A", "-t", "-U", "canal", "-d", "postgres"];
        let cmd = self.world.program("psql", plain).args(["-v", "ON_ERROR_STOP=1", "-h"]);
        cmd.arg(self.folder.path()).args(args)
    }

    /// Runs some SQL.
    pub(crate) fn sql(&self, sql: &str) -> Ended {
        self.spawn(sql).end()
    }

    /// Begins to run some SQL.
    pub(crate) fn spawn(&self, sql: &str) -> Proc {
        self.psql(&["-c", sql]).spawn()
    }

    /// Runs some SQL from a file, with variables of psql.
    pub(crate) fn with(&self, sql: &str, variables: &[(&str, u64)]) -> Ended {
        let path = self.world.path("work/change.sql");
        fs::write(&path, sql).unwrap();
        let mut cmd = self.psql(&["-f"]).arg(path);
        for (name, value) in variables {
            cmd = cmd.args(["-v", &format!("{name}={value}")]);
        }
        cmd.end()
    }

    /// A session that is told line by line what to do.
    pub(crate) fn interactive(&self) -> Session {
        Session(self.psql(&[]).stdin(Stdio::piped()).spawn())
    }
}

impl Drop for Postgres<'_> {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            // Its processes end with it, in order.
            server.signal(Signal::SIGINT);
            server.end();
        }
    }
}

/// A session of psql.
#[derive(Debug)]
pub(crate) struct Session(Proc);

impl Session {
    pub(crate) fn say(&mut self, sql: &str) {
        let stdin = self.0.child.stdin.as_mut().unwrap();
        stdin.write_all(format!("{sql}\n").as_bytes()).unwrap();
    }

    pub(crate) fn said(&self) -> String {
        self.0.stdout()
    }

    #[track_caller]
    pub(crate) fn end(self) {
        self.0.finish().code(0);
    }
}
