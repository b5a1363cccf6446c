//! Coming up, working, and going down.

use std::future::{Future, poll_fn};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::pin::pin;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};

use super::alarm::Alarm;
use super::config::{Config, Limits};
use super::conns::Conns;
use super::due::Due;
use super::engine::Chosen;
use super::follow::Link;
use super::home::{Claim, ClaimError};
use super::join::begin;
use super::leases::Leases;
use super::limits::{COME_BACK_TIME, FAREWELL_TIME};
use super::owners::Owners;
use super::permission::Permissions;
use super::recover::{Recovered, recover};
use super::roll::Roll;
use super::server::Server;
use super::stop::Stops;
use super::underway::Underway;
use super::waiting::Waiting;
use super::{Options, Unusable};
use super::{logging, shown};
use crate::core::{Rules, UnixMillis};
use crate::protocol::DaemonShown;
use crate::protocol::place::{Place, Rule};
use crate::sys::memory::small;
use crate::sys::process::Origin;
use crate::sys::{clock, fds, peer, signals};

/// The descriptor over which a daemon that was started on demand says why it cannot come up.
const READINESS: i32 = 3;

/// Runs the daemon until it is told to end.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let readiness = Readiness::take(options.on_demand);
    let up = come_up(options);
    match up {
        Ok(Some((runtime, mut server, signals))) => {
            readiness.done();
            notify(&[NotifyState::Ready]);
            small::keep();
            let worked = runtime.block_on(work(&mut server, signals));
            notify(&[NotifyState::Stopping]);
            worked
        }
        // Another daemon is up, which is all that the starter wants.
        Ok(None) => Ok(()),
        Err(error) => {
            readiness.failed(&error);
            Err(error)
        }
    }
}

type Up = (tokio::runtime::Runtime, Server, Signals);

fn come_up(options: &Options) -> anyhow::Result<Option<Up>> {
    let place = &options.place;
    umask(Mode::from_bits_truncate(0o077));
    // A hard limit on the size of files (`ulimit -f`) is an error of the write then, like a full
    // disk, and not the end of the daemon.
    signals::set_ignored(Signal::SIGXFSZ)?;
    let uid = nix::unistd::geteuid().as_raw();
    let claim = match Claim::new(place, uid) {
        Ok(claim) => claim,
        Err(ClaimError::Running { .. }) if options.on_demand => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let config = Config::read(&place.config)?;
    let log_file = options.on_demand.then(|| place.dir.join("daemon.log"));
    logging::begin(options.verbose, config.log.as_deref(), log_file.as_deref())?;
    let descriptors = fds::raise_limit().context("the limit of open files cannot be read")?;
    let given = given_socket()?;
    let chosen = Chosen::of(options, &config)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let recovered = match &chosen {
        None => recover(place, &config, rules(), options.discard_journal)?,
        Some(chosen) => begin(place, chosen, options.discard_journal)?,
    };
    let limits = config.limits(descriptors, options.idle_exit_s);
    let permissions = config.permissions(&place.config);
    let inside = runtime.enter();
    let signals = Signals::take()?;
    let mut server = server(place, uid, claim.open(given)?, (limits, permissions), recovered)?;
    if let Some(chosen) = &chosen {
        server.link = Link::new(chosen, &config, options.on_demand);
        server.roll = Roll::open(&place.dir, Origin::read()?)
            .with_context(|| format!("the record of owners in {}", place.dir.display()))?;
        server.alarm = Some(Alarm::new()?);
        tracing::info!(engine = chosen.name, host = chosen.label, "joining");
    }
    drop(inside);
    tracing::info!(
        socket = %place.socket.display(),
        config = config.path.as_deref().map_or("none".into(), |path| path.to_string_lossy()).as_ref(),
        connections = server.limits.connections(0),
        "listening"
    );
    Ok(Some((runtime, server, signals)))
}

fn server(
    place: &Place,
    uid: u32,
    home: super::home::Home,
    (limits, permissions): (Limits, Permissions),
    recovered: Recovered,
) -> anyhow::Result<Server> {
    let Recovered { ledger, origin, children, found, unverified, mut notes } = recovered;
    notes.extend(home.note());
    notes.extend(notes_about(place, &origin));
    for note in &notes {
        tracing::warn!("{note}");
    }
    let about = DaemonShown {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        socket: place.socket.display().to_string(),
        since: shown::time(UnixMillis(clock::unix_ms())),
        uid,
        notes,
    };
    let mut owners = Owners::new()?;
    owners.unverified = unverified;
    for (frame, pidfd) in found {
        if let Err(error) = owners.watch(frame, None, pidfd) {
            tracing::warn!(%error, session = %format_args!("s{frame}"), "an owner cannot be watched");
            owners.unverified.insert(frame);
        }
    }
    let conns = Conns::new()?;
    if let Some(watch) = home.watch() {
        conns.await_removal(watch)?;
    }
    if let Some(guard) = &home.guard().socket {
        conns.await_looks(guard)?;
    }
    let holds = ledger.table.holds().filter(|hold| hold.provisional);
    let unclaimed = holds.map(|hold| hold.request).collect();
    let mut server = Server {
        about,
        home,
        deadline: None,
        link: Link::default(),
        underway: Underway::default(),
        roll: Roll::unused(),
        stops: Stops::default(),
        alarm: None,
        limits,
        permissions,
        waiting: Waiting::of_table(&ledger.table, ledger.host),
        leases: Leases::of_table(&ledger.table, ledger.host),
        ledger,
        owners,
        children,
        conns,
        aside: Vec::new(),
        stopped: Default::default(),
        granted: Default::default(),
        unclaimed,
        newcomers: Vec::new(),
        due: Due::default(),
        changed: false,
        restore_failed: false,
        stopping: false,
    };
    if server.waiting.len() + server.unclaimed.len() > 0 {
        server.due.come_back = Some(Instant::now() + COME_BACK_TIME);
    }
    server.await_orphans();
    Ok(server)
}

/// Works until it is told to end, or cannot go on.
async fn work(server: &mut Server, mut signals: Signals) -> anyhow::Result<()> {
    while !server.stopping {
        if server.has_work() {
            // The runtime has to look at the kernel meanwhile.
            tokio::task::yield_now().await;
        } else if let Some(signal) = something(server, &mut signals, server.sleep()).await {
            tracing::info!("told to end by {signal}");
            server.stopping = true;
        }
        server.turn()?;
    }
    server.home.close();
    let last_moment = Instant::now() + FAREWELL_TIME;
    let is_done = |server: &Server| server.conns.is_flushed() && server.underway.len() == 0;
    while Instant::now() < last_moment {
        if is_done(server) && !server.leave_unused() {
            break;
        }
        server.ask_engine();
        something(server, &mut signals, Some(last_moment - Instant::now())).await;
        server.turn()?;
    }
    tracing::info!("the daemon ends; what is held stays held");
    Ok(())
}

/// Waits until the kernel has something to report or so much time is over; names the signal if
/// one came that ends the daemon.
async fn something(
    server: &mut Server,
    signals: &mut Signals,
    time: Option<Duration>,
) -> Option<&'static str> {
    let mut over = pin!(tokio::time::sleep(time.unwrap_or(Duration::MAX)));
    poll_fn(|context| {
        if let Poll::Ready(name) = signals.poll(context) {
            return Poll::Ready(Some(name));
        }
        let ready = [
            server.owners.poll_ready(context),
            server.conns.poll_ready(context),
            server.home.listener.poll_ready(context),
            server.poll_engine(context),
            if time.is_some() { over.as_mut().poll(context) } else { Poll::Pending },
        ];
        if ready.iter().any(Poll::is_ready) { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// The signals that concern a daemon.
#[derive(Debug)]
struct Signals {
    terminate: Arrivals,
    interrupt: Arrivals,
    /// A terminal that went away is no reason to end. There is nothing to read anew.
    _hang_up: Arrivals,
}

impl Signals {
    fn take() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            _hang_up: signal(SignalKind::hangup())?,
        })
    }

    fn poll(&mut self, context: &mut TaskContext<'_>) -> Poll<&'static str> {
        if self.terminate.poll_recv(context).is_ready() {
            return Poll::Ready("SIGTERM");
        }
        self.interrupt.poll_recv(context).map(|_| "SIGINT")
    }
}

/// How the starter learns whether the daemon is up.
struct Readiness(Option<OwnedFd>);

impl Readiness {
    fn take(on_demand: bool) -> Self {
        Self(on_demand.then(|| fds::adopt(READINESS).ok()).flatten())
    }

    fn done(self) {
        drop(self);
    }

    /// Says why it is not. The starter shows it as its own words.
    fn failed(self, error: &anyhow::Error) {
        if let Some(fd) = self.0 {
            let hint = error.downcast_ref::<Unusable>().map(|unusable| &unusable.hint);
            let hint = hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
            let _ = writeln!(std::fs::File::from(fd), "{error:#}{hint}");
        }
    }
}

/// The socket that the service manager made, if it did.
fn given_socket() -> anyhow::Result<Option<UnixListener>> {
    let mut given = sd_notify::listen_fds().context("the sockets of the service manager")?;
    let Some(first) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        anyhow::bail!("the service manager handed over several sockets, one is expected");
    }
    let socket = fds::adopt(first).context("the socket of the service manager")?;
    Ok(Some(UnixListener::from(socket)))
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}

/// Which rules to decide by; tests may ask for others.
fn rules() -> Rules {
    let other = std::env::var_os("CANAL_RULES").is_some_and(|rules| rules == "newest-first");
    if cfg!(debug_assertions) && other { Rules::NewestFirst } else { Rules::Current }
}

/// What an operator should know of where the daemon runs.
fn notes_about(place: &Place, origin: &Origin) -> Vec<String> {
    let mut notes = Vec::new();
    if origin.pid_namespace != FIRST_PID_NAMESPACE {
        notes.push("it runs in a pid namespace of its own, such as a container's".to_owned());
    }
    if !peer::has_peer_pidfd() {
        notes.push(
            "the kernel is older than 6.5: a peer is known by its number and start time".to_owned(),
        );
    }
    if place.rule == Rule::PerUser {
        if is_private_tmp() {
            notes.push(
                "its /tmp is private to a service: others of this user do not meet it".to_owned(),
            );
        } else if is_another_tmp() {
            notes.push(
                "its /tmp is not that of process 1: others of this user may not meet it".to_owned(),
            );
        }
    }
    notes
}

/// The number that the kernel gives the first pid namespace (PROC_PID_INIT_INO).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Whether /tmp is one that systemd made for a service (`PrivateTmp=`).
fn is_private_tmp() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(3);
        let (root, mounted_at) = (words.next(), words.next());
        mounted_at == Some("/tmp") && root.is_some_and(|root| root.contains("/systemd-private-"))
    })
}

/// Whether /tmp is another directory than for process 1, as far as we may see that.
fn is_another_tmp() -> bool {
    let identity = |path: &str| std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let of_first = identity("/proc/1/root/tmp");
    of_first.is_some() && of_first != identity("/tmp")
}
