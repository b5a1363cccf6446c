//! Real etcd servers for tests: on loopback, with folders and ports of their own, ended by their
//! number; and a proxy that can be cut. A test binary includes this folder by path.

pub(crate) mod certificates;
pub(crate) mod cluster;
pub(crate) mod proxy;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

#[allow(clippy::duplicate_mod, reason = "other folders that a test binary includes have it too")]
#[path = "../bound/mod.rs"]
mod bound;
use bound::BOUND;
#[allow(clippy::duplicate_mod, reason = "other folders that a test binary includes have it too")]
#[path = "../free_port/mod.rs"]
mod free_port;
pub(crate) use free_port::free_port;

/// Waits until it is so, and fails if it does not become so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        sleep(Duration::from_millis(10));
    }
}

/// Whether there is an etcd. If not, says so, and fails where everything must be there.
pub(crate) fn installed() -> bool {
    let there = |name| Command::new(name).arg("--version").output().is_ok();
    if there("etcd") && there("etcdctl") {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "etcd and etcdctl must be installed in CI");
    eprintln!("skipped: etcd or etcdctl is not installed");
    false
}

/// One member. It is killed, and its folder removed, with its value.
#[derive(Debug)]
pub(crate) struct Etcd {
    dir: TempDir,
    child: Option<Child>,
    client_port: u16,
    health_port: u16,
    args: Vec<String>,
    /// How `etcdctl` gets in, beside the endpoint.
    pub(crate) ctl: Vec<String>,
}

/// A cluster of one, that has elected its leader.
pub(crate) fn start_etcd() -> Etcd {
    start_etcd_with(&["--heartbeat-interval=50", "--election-timeout=500"])
}

/// The same with further options of etcd's.
pub(crate) fn start_etcd_with(options: &[&str]) -> Etcd {
    let mut etcd = prepare(options, "http", free_port());
    etcd.start_alone();
    etcd
}

/// The same, that speaks TLS to clients, with these files in PEM; `client_authority` if clients
/// must show a certificate.
pub(crate) fn start_etcd_tls(cert: &Path, key: &Path, client_authority: Option<&Path>) -> Etcd {
    let mut etcd = prepare(&[], "https", free_port());
    etcd.args.push(format!("--cert-file={}", cert.display()));
    etcd.args.push(format!("--key-file={}", key.display()));
    if let Some(authority) = client_authority {
        etcd.args.push("--client-cert-auth=true".to_owned());
        etcd.args.push(format!("--trusted-ca-file={}", authority.display()));
    }
    etcd.start_alone();
    etcd
}

/// A cluster of so many, that has elected its leader.
pub(crate) fn start_etcd_cluster(count: usize) -> Vec<Etcd> {
    start_members(count, "http", |_| Vec::new())
}

/// The same, whose members speak TLS to clients, each with its certificate and key in PEM.
pub(crate) fn start_etcd_cluster_tls(files: &[(PathBuf, PathBuf)]) -> Vec<Etcd> {
    start_members(files.len(), "https", |n| {
        let (cert, key) = &files[n];
        vec![format!("--cert-file={}", cert.display()), format!("--key-file={}", key.display())]
    })
}

fn start_members(count: usize, scheme: &str, options: impl Fn(usize) -> Vec<String>) -> Vec<Etcd> {
    let ports: Vec<_> = (0..count).map(|_| free_port()).collect();
    let member = |(n, port): (usize, &u16)| format!("m{n}=http://127.0.0.1:{port}");
    let cluster: Vec<_> = ports.iter().enumerate().map(member).collect();
    let cluster = format!("--initial-cluster={}", cluster.join(","));
    let mut members: Vec<_> = ports.iter().map(|port| prepare(&[], scheme, *port)).collect();
    for (n, etcd) in members.iter_mut().enumerate() {
        etcd.args.extend([format!("--name=m{n}"), cluster.clone()]);
        etcd.args.extend(options(n));
        etcd.spawn();
    }
    for etcd in &mut members {
        etcd.wait();
    }
    members
}

fn prepare(options: &[&str], scheme: &str, peer_port: u16) -> Etcd {
    let dir = tempfile::tempdir().unwrap();
    let (client_port, health_port) = (free_port(), free_port());
    let mut args = vec![
        format!("--data-dir={}", dir.path().join("data").display()),
        format!("--listen-client-urls={scheme}://127.0.0.1:{client_port}"),
        format!("--advertise-client-urls={scheme}://127.0.0.1:{client_port}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer_port}"),
        format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}"),
        format!("--listen-metrics-urls=http://127.0.0.1:{health_port}"),
        "--logger=zap".to_owned(),
    ];
    args.extend(options.iter().map(|&option| option.to_owned()));
    Etcd { dir, child: None, client_port, health_port, args, ctl: Vec::new() }
}

impl Etcd {
    pub(crate) fn port(&self) -> u16 {
        self.client_port
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// Its folder; `data` in it is etcd's own.
    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn start_alone(&mut self) {
        let own =
            |arg: &String| Some(arg.strip_prefix("--initial-advertise-peer-urls=")?.to_owned());
        let peer = self.args.iter().find_map(own).unwrap();
        self.args.extend(["--name=m".to_owned(), format!("--initial-cluster=m={peer}")]);
        self.start();
    }

    pub(crate) fn start(&mut self) {
        self.spawn();
        self.wait();
    }

    /// Starts it and does not wait until it is healthy.
    pub(crate) fn spawn(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.log()).unwrap();
        let mut etcd = Command::new("etcd");
        etcd.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(etcd.spawn().unwrap());
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Waits until it is healthy: has a leader and answers.
    pub(crate) fn wait(&mut self) {
        let (log, port) = (self.log(), self.health_port);
        let child = self.child.as_mut().unwrap();
        until("etcd is healthy", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("etcd ended with {status}:\n{}", fs::read_to_string(&log).unwrap());
            }
            health(port).is_some_and(|health| health.contains(r#""health":"true""#))
        });
    }

    /// Kills it, as a crash does; its data stay.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it in good order.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let _ = self.child.take().map(|mut child| child.wait());
    }

    pub(crate) fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().unwrap().id();
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
    }

    /// Stores a snapshot in a file.
    pub(crate) fn save(&self, to: &Path) {
        self.ctl_ok(&["snapshot", "save", &to.display().to_string()]);
    }

    /// Starts it anew from a snapshot, as its manual says.
    pub(crate) fn restore(&mut self, from: &Path) {
        self.kill();
        fs::remove_dir_all(self.data()).unwrap();
        let mut restore = Command::new("etcdctl");
        restore.env("ETCDCTL_API", "3").args(["snapshot", "restore"]).arg(from);
        let own =
            ["--data-dir=", "--name=", "--initial-cluster=", "--initial-advertise-peer-urls="];
        restore.args(self.args.iter().filter(|arg| own.iter().any(|own| arg.starts_with(own))));
        let restored = restore.output().unwrap();
        assert!(restored.status.success(), "{restored:?}");
        self.start();
    }

    /// Runs `etcdctl`.
    pub(crate) fn ctl(&self, args: &[&str]) -> Output {
        let mut ctl = Command::new("etcdctl");
        ctl.env("ETCDCTL_API", "3").arg("--endpoints").arg(self.endpoint());
        ctl.args(&self.ctl).args(args).output().unwrap()
    }

    /// Runs `etcdctl`, which must succeed, and gives what it said.
    pub(crate) fn ctl_ok(&self, args: &[&str]) -> String {
        let output = self.ctl(args);
        assert!(output.status.success(), "etcdctl {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn version(&self) -> String {
        let said = self.ctl_ok(&["endpoint", "status", "--write-out=simple"]);
        said.split(", ").nth(2).unwrap().to_owned()
    }

    /// Whether it is its cluster's leader.
    pub(crate) fn leads(&self) -> bool {
        let said = self.ctl_ok(&["endpoint", "status", "--write-out=simple"]);
        said.split(", ").nth(4) == Some("true")
    }

    /// The revision of its store.
    pub(crate) fn revision(&self) -> u64 {
        let said = self.ctl_ok(&["get", "no such key", "--write-out=json"]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        said["header"]["revision"].as_u64().unwrap()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn health(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    Some(said)
}
