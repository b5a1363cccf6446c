//! Private servers of a benchmark, on loopback. They sync to disk before they acknowledge, and end
//! with their values.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User, chown};

use super::{connects_tcp, wait_until};

/// An etcd of one member.
pub(crate) struct Etcd(Child);

impl Etcd {
    /// Starts it. Returns the address for clients.
    pub(crate) fn start(folder: &Path) -> io::Result<(Self, String)> {
        let port = || TcpListener::bind("127.0.0.1:0")?.local_addr();
        let (clients, peers) = (port()?, port()?);
        let (url, peer_url) = (format!("http://{clients}"), format!("http://{peers}"));
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("default={peer_url}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let etcd = Self(child);
        wait_until("etcd listens", || connects_tcp(clients));
        Ok((etcd, url))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A PostgreSQL with a database `canal` that belongs to its superuser `canal`.
pub(crate) struct Postgres {
    process: Child,
    pub(crate) psql: PathBuf,
    /// The address of the database.
    pub(crate) url: String,
}

impl Postgres {
    /// The folder of the newest installed version.
    pub(crate) fn installed() -> Option<PathBuf> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
        let path = std::env::var_os("PATH").unwrap_or_default();
        found.sort();
        found.extend(std::env::split_paths(&path));
        let is_whole = |bin: &PathBuf| {
            ["initdb", "postgres", "psql"].iter().all(|program| bin.join(program).is_file())
        };
        found.into_iter().rev().find(is_whole)
    }

    /// Starts the server in `bin`.
    pub(crate) fn start(bin: &Path, folder: &Path) -> io::Result<Self> {
        let data = folder.join("postgres");
        fs::create_dir(&data)?;
        let user = server_user();
        if let Some(user) = &user {
            chown(&data, Some(user.uid), Some(user.gid))?;
            // The server's user needs access to its own folder.
            fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        }
        let program = |name: &str| {
            let program = bin.join(name);
            let mut command = match &user {
                None => Command::new(program),
                Some(User { uid, gid, .. }) => {
                    let mut command = Command::new("setpriv");
                    command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
                    command.arg("--clear-groups").arg("--").arg(program);
                    command
                }
            };
            command.current_dir("/").stdin(Stdio::null());
            command
        };
        let mut init = program("initdb");
        init.args(["--no-locale", "-E", "UTF8", "-A", "trust", "-U", "canal", "-D"]).arg(&data);
        let made = init.output()?;
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut server = program("postgres");
        server.arg("-D").arg(&data).args(["-p", &address.port().to_string()]);
        for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories="] {
            server.args(["-c", setting]);
        }
        let log = File::create(folder.join("postgres.log"))?;
        let process = server.stdout(log.try_clone()?).stderr(log).spawn()?;
        let url = format!("postgres://canal@{address}/canal");
        let server = Self { process, psql: bin.join("psql"), url };
        let base = format!("postgres://canal@{address}/postgres");
        let mut create = Command::new(&server.psql);
        create.args(["-Xq", "-c", "CREATE DATABASE canal", &base]).stdin(Stdio::null());
        create.stdout(Stdio::null()).stderr(Stdio::null());
        wait_until("PostgreSQL has a database", || create.status().is_ok_and(|it| it.success()));
        Ok(server)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // INT is the fast shutdown, which does not wait for clients.
        let pid = i32::try_from(self.process.id()).unwrap_or(0);
        if pid > 0 {
            let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
        let _ = self.process.wait();
    }
}

/// The user that runs the server, because PostgreSQL does not run as root.
fn server_user() -> Option<User> {
    let known = |name| User::from_name(name).ok().flatten();
    Uid::effective().is_root().then(|| known("postgres").or_else(|| known("nobody"))).flatten()
}
