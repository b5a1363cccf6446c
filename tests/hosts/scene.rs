//! Hosts that share one table.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::sys::signal::Signal;

use crate::etcd_server::proxy::Proxy;
use crate::etcd_server::{self, Etcd};
use crate::postgres_server;
use crate::process::{alive, signal, wait_until};
use crate::world::World;

/// After how many batches hosts make a snapshot: more than the links that each host keeps to compare
/// histories (1,024).
pub(crate) const SNAPSHOT_BATCHES: usize = 1100;

/// A log of a test's own in an engine.
pub(crate) struct Log {
    port: u16,
    /// The address, where `PORT` stands for host and port.
    address: String,
    _server: Option<Arc<Etcd>>,
}

static SERVER: Mutex<Weak<Etcd>> = Mutex::new(Weak::new());
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A log in the etcd that the tests share: started by whoever needs it, ended with the last one.
pub(crate) fn etcd() -> Option<Log> {
    if !etcd_server::installed() {
        return None;
    }
    let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    let server = shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(etcd_server::start_etcd());
        *shared = Arc::downgrade(&server);
        server
    });
    Some(Log::in_etcd(&server.endpoint(), Some(Arc::clone(&server))))
}

/// A log in the PostgreSQL that the tests share.
pub(crate) fn postgres() -> Option<Log> {
    postgres_server::shared().map(Log::in_postgres)
}

impl Log {
    /// A log in an etcd that the test itself looks after.
    pub(crate) fn in_etcd(endpoint: &str, server: Option<Arc<Etcd>>) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let port = endpoint.rsplit_once(':').unwrap().1.parse().unwrap();
        Self { port, address: format!("etcd://PORT/test{number}"), _server: server }
    }

    /// A log in a cluster, whose members the daemons reach without a proxy, in this order.
    pub(crate) fn in_cluster<'a>(members: impl IntoIterator<Item = &'a Etcd>) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let endpoints: Vec<_> = members.into_iter().map(Etcd::endpoint).collect();
        let address = format!("etcd://{}/test{number}", endpoints.join(","));
        Self { port: 9, address, _server: None }
    }

    /// The same, over TLS, of a cluster whose authority's certificate is in this file.
    pub(crate) fn in_cluster_tls<'a>(
        members: impl IntoIterator<Item = &'a Etcd>,
        authority: &Path,
    ) -> Self {
        let mut log = Self::in_cluster(members);
        let address = log.address.replacen("etcd://", "etcds://", 1);
        log.address = format!("{address}?cacert={}", authority.display());
        log
    }

    pub(crate) fn in_postgres(server: &postgres_server::Server) -> Self {
        let url = server.new_url();
        let address = url.replace(&format!("127.0.0.1:{}", server.port), "PORT");
        Self { port: server.port, address, _server: None }
    }

    /// What people know the engine by.
    pub(crate) fn engine(&self) -> &str {
        if self.address.starts_with("etcd") { "etcd" } else { "PostgreSQL" }
    }

    /// Its prefix in etcd, or its database in PostgreSQL.
    pub(crate) fn name(&self) -> &str {
        self.address.rsplit('/').next().unwrap()
    }

    /// The address by way of a proxy.
    fn through(&self, proxy: &Proxy) -> String {
        self.address.replace("PORT", &proxy.endpoint())
    }
}

/// One host: its clients and its daemon.
pub(crate) struct Host {
    pub(crate) world: World,
    pub(crate) proxy: Proxy,
    stopped: Cell<i32>,
}

impl Host {
    /// A host whose daemon is started by its first client. The commands of all hosts record in one
    /// place, that of `first`.
    pub(crate) fn new(log: &Log, label: &str, times: &str, first: Option<&World>) -> Self {
        let world = World::new().switch("CANAL_SNAPSHOT_BATCHES", SNAPSHOT_BATCHES);
        let proxy = Proxy::to(log.port);
        if let Some(first) = first {
            fs::remove_dir(world.path("work")).unwrap();
            symlink(first.path("work"), world.path("work")).unwrap();
        }
        let url = log.through(&proxy);
        let config = format!("[engine]\nurl = \"{url}\"\n{times}\nhost = \"{label}\"\n");
        fs::write(world.runtime().join("canal.toml"), config).unwrap();
        Self { world, proxy, stopped: Cell::new(0) }
    }

    pub(crate) fn label(&self) -> String {
        self.world.look().and_then(|status| status.engine).map(|engine| engine.host).unwrap()
    }

    /// What the daemon says of its engine: `member`, `away` and so on.
    pub(crate) fn state(&self) -> String {
        let engine = self.world.look().and_then(|status| status.engine);
        engine.map_or_else(String::new, |engine| engine.state)
    }

    #[track_caller]
    pub(crate) fn until(&self, state: &str) {
        wait_until(&format!("the host is {state}"), || self.state() == state);
    }

    /// Starts the daemon and waits until it is a member.
    #[track_caller]
    pub(crate) fn join(&self) {
        self.world.status();
        self.until("member");
    }

    /// Stops the daemon's process, until [`Self::go_on`].
    #[track_caller]
    pub(crate) fn freeze(&self) -> i32 {
        let pid = self.world.daemon_pid();
        signal(pid, Signal::SIGSTOP);
        wait_until("the daemon is stopped", || crate::process::state(pid) == Some('T'));
        self.stopped.set(pid);
        pid
    }

    /// The daemon's process, which [`Self::freeze`] stopped and which does not answer.
    pub(crate) fn frozen(&self) -> i32 {
        self.stopped.get()
    }

    pub(crate) fn go_on(pid: i32) {
        assert!(alive(pid));
        signal(pid, Signal::SIGCONT);
    }
}

/// A TTL that is never over in a test, however slow the machine is; what is renewed is renewed as
/// often as with a TTL of some seconds.
pub(crate) const PATIENT: &str = "ttl = \"10h\"\nrenewal = \"500ms\"";

/// A TTL that is soon over for a host that cannot renew.
pub(crate) const SHORT: &str = "ttl = \"4s\"\nrenewal = \"500ms\"";

/// Hosts that are members, `a`, `b` and so on, and that no delay makes lose what they hold.
pub(crate) fn hosts<const N: usize>(log: &Log) -> [Host; N] {
    hosts_timed(log, PATIENT)
}

/// The same, each with a TTL that a test waits for. On a busy machine any of them may lose what it
/// holds.
pub(crate) fn mortal_hosts<const N: usize>(log: &Log) -> [Host; N] {
    hosts_timed(log, SHORT)
}

/// The first host has a TTL that a test waits for. No delay makes the others lose what they hold.
pub(crate) fn mortal_and_patient_hosts<const N: usize>(log: &Log) -> [Host; N] {
    let mut times = [PATIENT; N];
    times[0] = SHORT;
    hosts_with(log, times)
}

/// Hosts that are members, with these times in the configuration of each.
pub(crate) fn hosts_timed<const N: usize>(log: &Log, times: &str) -> [Host; N] {
    hosts_with(log, [times; N])
}

fn hosts_with<const N: usize>(log: &Log, times: [&str; N]) -> [Host; N] {
    let mut hosts: Vec<Host> = Vec::new();
    for (label, times) in ["a", "b", "c", "d"].into_iter().zip(times) {
        let first = hosts.first().map(|host| &host.world);
        hosts.push(Host::new(log, label, times, first));
    }
    hosts.iter().for_each(Host::join);
    for host in &hosts {
        wait_until("all know each other", || {
            host.world.look().is_some_and(|status| status.hosts.len() == N)
        });
    }
    hosts.try_into().ok().unwrap()
}

/// A shell command that records its start, and its end however it is ended, but for SIGKILL; `$1` is
/// its name. Asked to end, it does so at once.
pub(crate) fn recorded(body: &str) -> String {
    let traps = "trap 'trap \"\" TERM; exit 0' TERM; trap 'echo \"- $1\" >>events' EXIT";
    format!("{traps}; echo \"+ $1\" >>events; {body}")
}

/// All hosts say that nothing is held and nobody waits.
#[track_caller]
pub(crate) fn until_idle(hosts: &[Host]) {
    hosts.iter().for_each(|host| host.world.until_idle());
}
