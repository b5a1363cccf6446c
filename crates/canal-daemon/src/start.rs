//! The start of the daemon, its work, and its end.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use anyhow::Context;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use sd_notify::NotifyState;

use crate::cluster::choose_engine::Chosen;
use crate::cluster::engine_required;
use crate::cluster::journal_or_engine::Decide;
use crate::cluster::member_and_engine::{Cluster, refuse_living};
use crate::config::effective::EffectiveConfig;
use crate::config::file::Config;
use crate::config::sections_and_defaults::SocketAccess;
use crate::config::user_limits::DESCRIPTORS_MIN;
use crate::event_loop::{Signals, work};
use crate::history::recorder::History;
use crate::history::writer::Files;
use crate::hooks::active_hooks::Hooks;
use crate::hooks::event::About;
use crate::jobserver::builds::Jobservers;
use crate::lease_deadlines::Leases;
use crate::metrics::exporter::{self, Exporter};
use crate::net::all_connections::{Conns, Source};
use crate::net::unread_reports::Reports;
use crate::options::Options;
use crate::processes::find_descendants::Children;
use crate::processes::holder_record;
use crate::processes::watch_owners::Owners;
use crate::runtime_dir::bind_socket::is_full;
use crate::runtime_dir::claim::{Claim, RuntimeDir};
use crate::runtime_dir::instance_lock::ClaimError;
use crate::runtime_dir::other_daemons::{Separation, separations};
use crate::server::Server;
use crate::server::observe::Observe;
use crate::store::node_identity;
use crate::store::recover::{Recovered, journal_of, recover};
use crate::timers::{BoottimeTimer, Due};
use crate::view::size_notes::ToldSizes;
use crate::waiters::Waiters;
use crate::wording::{StartError, time};
use crate::{logging, own_user};
use canal_core::{Change, RequestId, UnixMillis};
use canal_log::journal::{NoRoom, OpenError};
use canal_protocol::DaemonInfo;
use canal_protocol::paths::Rule;
use canal_sys::process::user::geteuid;
use canal_sys::process::{FIRST_PID_NAMESPACE, Origin, detach, may_look_into_others};
use canal_sys::{clock, fds, peer, signals};
use canal_text::shell_word;

/// The descriptor to which a daemon that was started on demand writes why it cannot start.
const READINESS: i32 = 3;

/// Reports to the process that started this daemon why it cannot start. It prints this as its own
/// message.
pub fn report_failure(message: &str, hint: Option<&str>) {
    report(fds::adopt(READINESS).ok(), message, hint);
}

/// Runs the daemon until it is asked to end.
///
/// # Errors
/// It cannot start or continue. The reason is text for people; a [`StartError`] if the user can do
/// something about it.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let readiness = options.on_demand.then(|| fds::adopt(READINESS).ok()).flatten();
    match come_up(options) {
        Ok(Some((mut server, signals))) => {
            drop(readiness);
            if options.embedded {
                return work(&mut server, &signals);
            }
            notify(&[NotifyState::Ready]);
            let worked = work(&mut server, &signals);
            notify(&[NotifyState::Stopping]);
            worked
        }
        // Another daemon already runs, so the client needs nothing else.
        Ok(None) => {
            report(readiness, detach::GAVE_WAY, None);
            Ok(())
        }
        Err(error) => {
            let error = with_hint(error);
            let hint = error.downcast_ref::<StartError>().map(|unusable| &*unusable.hint);
            report(readiness, &format!("{error:#}"), hint);
            Err(error)
        }
    }
}

/// Adds a hint if the disk is full.
fn with_hint(error: anyhow::Error) -> anyhow::Error {
    let no_room = || error.downcast_ref().map(|NoRoom { error, .. }| error);
    let failed: Option<&io::Error> = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(ClaimError::Io { error, .. }), _) | (_, Some(OpenError::Io { error, .. })) => {
            Some(error)
        }
        _ => error.downcast_ref().or_else(no_room),
    };
    if error.is::<StartError>() || !failed.is_some_and(is_full) {
        return error;
    }
    let hint = "make room there, or name a socket on another disk (`--socket PATH`)";
    StartError { what: format!("{error:#}"), hint: hint.into() }.into()
}

/// Checks whether a daemon could work, before the daemon that it replaces is asked to end.
///
/// # Errors
/// It could not. The reason is text for people; a [`StartError`] if the user can do something
/// about it.
pub fn check(options: &Options) -> anyhow::Result<()> {
    let (place, origin) = (&options.place, Origin::read()?);
    let config = Config::read_for_daemon(&place.stores().config)?;
    let chosen = Chosen::of(options, &config)?;
    if chosen.is_none() {
        holder_record::refuse_holders(&place.dir, &origin, options.discard_journal)?;
    }
    if !options.without_engine {
        engine_required::check(options, &config, chosen.as_ref())?;
    }
    let Some(chosen) = chosen else { return Ok(()) };
    if !options.discard_journal {
        refuse_living(place, &origin)?;
    }
    chosen.check(place, &origin)
}

fn come_up(options: &Options) -> anyhow::Result<Option<(Server, Signals)>> {
    let place = &options.place;
    if !options.embedded {
        umask(Mode::from_bits_truncate(0o077));
        // A write beyond a hard limit on the size of files (`ulimit -f`) is then an error, like a
        // full disk, and does not end the daemon.
        signals::set_ignored(Signal::SIGXFSZ)?;
    }
    let claimed = Claim::new(place, options.is_on_demand());
    if let Some(replacing) = &options.replaces {
        replacing.end();
    }
    let claim = match claimed {
        Ok(claim) => claim,
        Err(ClaimError::Running { .. }) if options.is_on_demand() => return Ok(None),
        Err(error) => return Err(not_claimed(error)),
    };
    if options.is_on_demand() && place.rule == Rule::Shared {
        own_user::refuse_outsider(place)?;
    }
    let config = Config::read_for_daemon(&place.stores().config)?;
    let (descriptors, given) = if options.embedded {
        (fds::limit().context("cannot read the limit on open files")?, None)
    } else {
        let log_file = options.on_demand.then(|| place.dir.join("daemon.log"));
        logging::begin(options.verbose, config.daemon.log.as_deref(), log_file.as_deref())?;
        let raised = fds::raise_limit(DESCRIPTORS_MIN);
        let descriptors = raised.context("cannot read the limit on open files")?;
        if descriptors < DESCRIPTORS_MIN {
            let what = format!(
                "the limit on open files is {descriptors}, but a daemon needs {DESCRIPTORS_MIN}"
            );
            let hint = "raise the limit (`ulimit -n`), then run `canal daemon`";
            return Err(StartError { what, hint: hint.into() }.into());
        }
        (descriptors, given_socket()?)
    };
    // Before the engine's thread starts, so that the signals are blocked there, too.
    let signals = Signals::take().context("cannot receive signals")?;
    let server = open(options, &config, claim, given, descriptors)?;
    tracing::info!(
        socket = %place.socket.display(),
        config = config.path.as_deref().map_or("none".into(), |path| path.to_string_lossy()).as_ref(),
        connections = server.effective.connections(0),
        "listening"
    );
    Ok(Some((server, signals)))
}

/// Adds a hint if the user can do something about it.
fn not_claimed(error: ClaimError) -> anyhow::Error {
    let hint = match &error {
        ClaimError::OtherSocket { theirs, .. } => {
            let theirs = shell_word::of_path(theirs);
            format!("reach it with `--socket {theirs}`; another socket needs its own directory")
                .into()
        }
        ClaimError::Lock { .. } => "choose another directory with --socket or CANAL_SOCKET".into(),
        _ => return error.into(),
    };
    StartError { what: error.to_string(), hint }.into()
}

/// Takes over the state that the previous daemon left, and opens the place to clients.
///
/// # Errors
/// The daemon cannot work; a [`StartError`] if the user can do something about it.
pub(crate) fn open(
    options: &Options,
    config: &Config,
    claim: Claim,
    given: Option<UnixListener>,
    descriptors: u64,
) -> anyhow::Result<Server> {
    let place = &options.place;
    let origin = Origin::read()?;
    let chosen = Chosen::of(options, config)?;
    if chosen.is_none() {
        holder_record::refuse_holders(&place.dir, &origin, options.discard_journal)?;
    }
    engine_required::check(options, config, chosen.as_ref())?;
    let stated = node_identity::take_first_start(place);
    let is_first_start =
        stated.context("the file of `canal setup --first-start`")? || options.first_start;
    if is_first_start {
        node_identity::check_first_start(place, chosen.is_some())?;
    }
    let cluster = chosen.as_ref().map(|chosen| Cluster::open(options, chosen, &origin));
    let cluster = cluster.transpose()?;
    let Recovered { mut ledger, notes, mut unseen } = match cluster {
        None => recover(place, config, &origin, options.discard_journal)?,
        Some(_) => Recovered::default(),
    };
    if is_first_start {
        ledger.settle_node().context("cannot record that this node has granted nothing")?;
    }
    let taken = config.metrics.listen.as_ref().map_or(0, |_| exporter::DESCRIPTORS);
    let (config_paths, left) = (place.stores().config.clone(), descriptors.saturating_sub(taken));
    let effective = EffectiveConfig::new(config.clone(), config_paths, left);
    if given.is_some() && config.socket != SocketAccess::default() {
        tracing::warn!(
            "the socket comes from the service manager: its unit sets group and mode, and \
             `[socket]` of the configuration does not apply"
        );
    }
    let runtime_dir = claim.open(given, config.socket.clone())?;
    let decide = Decide::new(ledger, cluster);
    let mut server = server(options.clone(), runtime_dir, effective, &origin, (decide, notes))?;
    unseen.leave_out(server.decide.table());
    if let Some(chosen) = &chosen {
        if place.rule == Rule::Shared && !may_look_into_others() {
            tracing::warn!("{BLIND}");
            server.about.notes.push(BLIND.to_owned());
        }
        tracing::info!(engine = chosen.name, host = chosen.label, "joining");
    }
    // A daemon in a thread of another program writes and offers only what the program asked for.
    let files = (config.history.max_bytes > 0 && !options.embedded).then(|| {
        let journal = server.decide.ledger().journal();
        let state_dir = journal.map_or(place.state_dir(), |journal| &*journal.state_dir);
        let (dir, limits) = (state_dir.join("history"), config.history);
        Files { dir, limits, boot_id: origin.boot_id }
    });
    let host = chosen.as_ref().map(|chosen| chosen.label.as_str());
    let mut history = History::new(files, host);
    history.take_in_unseen(&unseen, chosen.is_some());
    history.follow(server.decide.table(), server.decide.host());
    history.hand_over();
    let listen = config.metrics.listen.clone().filter(|_| !options.embedded);
    let exporter = listen.map(Exporter::start).transpose().unwrap_or_else(|error| {
        let note = format!("cannot serve metrics: {error}");
        tracing::warn!("{note}");
        server.about.notes.push(note);
        None
    });
    let program = options.watcher.clone().filter(|_| !options.embedded);
    let hooks = program.map_or_else(Hooks::default, |program| {
        let socket = place.socket.display().to_string();
        let about = About { socket, host: host.map(str::to_owned) };
        Hooks::new(program, &place.dir, about, &config.hooks)
    });
    server.observe = Observe::new(history, hooks, exporter);
    Ok(server)
}

/// The note of a daemon with an engine that cannot find the processes that other users' killed
/// commands left.
const BLIND: &str = "it lacks CAP_SYS_PTRACE or CAP_DAC_READ_SEARCH: if a lock is lost and its \
                     `canal run` was killed, it ends the command but not the processes that the \
                     command started";

pub(crate) fn server(
    options: Options,
    home: RuntimeDir,
    effective: EffectiveConfig,
    origin: &Origin,
    (decide, mut notes): (Decide, Vec<String>),
) -> anyhow::Result<Server> {
    let (place, uid) = (options.place.clone(), geteuid().as_raw());
    let node = decide.ledger().node(effective.config.limits.nodes_longest_ttl);
    notes.extend(home.notes());
    if origin.pid_namespace != FIRST_PID_NAMESPACE {
        notes.push("it runs in its own pid namespace, such as a container's".to_owned());
    }
    if !peer::has_peer_pidfd() {
        notes.push(
            "the kernel is older than 6.5, so the daemon identifies a peer by its pid and start \
             time"
                .to_owned(),
        );
    }
    notes.extend(separations(&place).iter().filter_map(Separation::note));
    notes.extend(detach::notes());
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    let about = DaemonInfo {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        socket: place.socket.display().to_string(),
        since: time(UnixMillis(clock::unix_ms())),
        uid,
        notes,
    };
    let owners = Owners::new()?;
    let conns = Conns::new()?;
    conns.await_source(Source::WAKES, &owners)?;
    let jobservers = Jobservers::new(&place.dir)?;
    conns.await_source(Source::WAKES, &jobservers)?;
    let timer = BoottimeTimer::new()?;
    conns.await_source(Source::BOOTTIME_TIMER, &timer)?;
    conns.await_source(Source::LISTENER, &home.listener)?;
    if let Some(watch) = home.watch() {
        conns.await_source(Source::RUNTIME_DIR, watch)?;
    }
    let mut server = Server {
        about,
        options,
        runtime_dir: home,
        effective,
        waiters: Waiters::default(),
        leases: Leases::default(),
        decide,
        owners,
        children: Children::new(&place.dir),
        jobservers,
        conns,
        reports: Reports::new(uid),
        observe: Observe::default(),
        told_sizes: ToldSizes::default(),
        due: Due::default(),
        timer,
        node,
        stopping: false,
    };
    server.due.node_settled = server.node.grants_from;
    if server.decide.is_member() {
        resume(&mut server)?;
    }
    server.take_up_jobservers();
    server.follow()?;
    server.decide.commit().with_context(|| journal_of(&place))?;
    // The first turn may be far away, and recovered leases may expire before it.
    server.look_ahead(clock::now());
    server.set_alarm()?;
    Ok(server)
}

/// Continues with the journal of the previous daemon, whose connections have ended.
fn resume(server: &mut Server) -> anyhow::Result<()> {
    if server.decide.is_used() {
        server.propose(Change::Detach { host: server.decide.host() });
    }
    let collecting = server.decide.table().holds().filter(|hold| hold.is_collecting());
    let collecting: Vec<RequestId> = collecting.map(|hold| hold.request).collect();
    collecting.into_iter().for_each(|request| server.propose(Change::Withdraw { request }));
    server.follow()?;
    server.take_over();
    server.follow()?;
    if server.decide.is_used() {
        let (table, unverified) = (server.decide.table(), server.owners.unverified.len());
        let (holds, waiting) = (table.holds().len(), table.waiters().len());
        let what = "took over the previous daemon's holds and waiters";
        tracing::info!(holds, waiting, unverified, "{what}");
    }
    server.follow_configuration();
    server.follow()
}

/// Writes why this daemon does not run to the process that started it.
fn report(readiness: Option<OwnedFd>, message: &str, hint: Option<&str>) {
    let hint = hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    if let Some(fd) = readiness {
        let _ = writeln!(std::fs::File::from(fd), "{message}{hint}");
    }
}

/// The socket from the service manager, if it passed one.
fn given_socket() -> anyhow::Result<Option<UnixListener>> {
    let mut given = sd_notify::listen_fds().context("the sockets of the service manager")?;
    let Some(first) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        anyhow::bail!("the service manager passed several sockets instead of one");
    }
    let socket = fds::adopt(first).context("the socket of the service manager")?;
    Ok(Some(UnixListener::from(socket)))
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}
