//! Connects to the daemon that the global options name, and turns client errors into messages; how
//! the daemon of this machine is started, which only root's commands do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::{Failed, Global, Now, Result, Verbosity, user_name};
use crate::client::{
    Client, ClientError, OWN, Options, ServiceManager, Start, environment, is_from_outside,
};
use crate::protocol::paths::{MachineUid, Place, Rule, uid_of_machine};
use crate::protocol::{ErrorName, HistoryQuery, NodeFailure, StatusQuery};
use crate::run::OwnCode;
use crate::shell_word;
use crate::sys::process::user::geteuid;
use crate::sys::terminal::drawn_line;

use super::wording::separation;

/// The longest wait until the history has the end of a job.
const RECORDED_WITHIN: Duration = Duration::from_secs(5);

/// How often to look for it.
const RECORDED_LOOK: Duration = Duration::from_millis(20);

/// How far back to look for it.
const RECORDED_SINCE_MS: u64 = 60_000;

/// The daemon's location, whether canal may start it, and how much to print about that.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) place: Place,
    start: Start,
    pub(crate) verbosity: Verbosity,
    /// Whether the variable `CANAL_SOCKET` named the socket.
    by_environment: bool,
}

impl Target {
    /// The target that the global options name.
    pub(crate) fn of(global: &Global) -> Result<Self> {
        let variable = std::env::var_os(environment::SOCKET).map(PathBuf::from);
        let given = global.socket.as_deref().or(variable.as_deref());
        let place = Place::find(given, MachineUid::own()).map_err(Failed::new)?;
        let start = if global.no_start { Start::Never } else { Start::IfNeeded };
        let by_environment = global.socket.is_none() && place.rule == Rule::Given;
        Ok(Self { place, start, verbosity: global.verbosity(), by_environment })
    }

    /// The same target with another verbosity.
    pub(crate) fn with_verbosity(self, verbosity: Verbosity) -> Self {
        Self { verbosity, ..self }
    }

    /// Connects, starts a daemon if necessary and allowed, and prints what keeps its locks apart
    /// from others.
    pub(crate) fn connect(&self) -> Result<Client> {
        self.connect_for(None)
    }

    /// Connects for a request that waits at most this long.
    pub(crate) fn connect_for(&self, wait_ms: Option<u64>) -> Result<Client> {
        let verbosity = self.verbosity;
        if verbosity >= Verbosity::Detailed {
            let why = match self.place.rule {
                Rule::Given => "given by --socket or CANAL_SOCKET",
                Rule::Shared => "this machine's",
                Rule::PerUser => "this user's own",
            };
            let socket = self.place.socket.display();
            verbosity.fine_detail(&format!("calling the daemon at {socket}, {why}"));
        }
        let client = Client::connect(&self.place, self.options().of_wait(wait_ms));
        let mut client = client?;
        let has_started = client.has_started_daemon();
        separation::note(&self.place, self.by_environment, has_started, verbosity);
        if verbosity >= Verbosity::Detailed {
            if has_started {
                verbosity.fine_detail("no daemon was running; this command started one");
            }
            verbosity.fine_detail(&introduction(&mut client));
            client.trace = Some(|line| {
                // The waiting line appears again below the message.
                drawn_line::erase();
                Verbosity::Detailed.fine_detail(line);
            });
        }
        Ok(client)
    }

    /// Client options that start this program as the daemon, whatever the name of its file.
    pub(crate) fn options(&self) -> Options {
        Options { program: Some(OWN.into()), ..Options::from(self.start) }
    }

    /// Waits until the history has the end of a background job. Returns at once if no daemon
    /// answers or if it keeps no history.
    pub(crate) fn until_recorded(&self, session: String) {
        let query = HistoryQuery {
            session: Some(session),
            since_ms: Some(RECORDED_SINCE_MS),
            limit: Some(1),
            ..HistoryQuery::default()
        };
        let Ok(mut client) = Client::connect(&self.place, self.options()) else { return };
        let until = Instant::now() + RECORDED_WITHIN;
        while client.history(&query).is_ok_and(|page| page.records.is_empty())
            && Instant::now() < until
        {
            thread::sleep(RECORDED_LOOK);
        }
    }
}

/// Describes the daemon and the permissions that the caller has there.
fn introduction(client: &mut Client) -> String {
    let nothing = StatusQuery { names_max: Some(0), ..StatusQuery::default() };
    let daemon = match client.status(&nothing) {
        Ok(status) => status.daemon,
        Err(error) => return format!("the daemon did not identify itself: {error}"),
    };
    let uid = uid_of_machine(geteuid().as_raw());
    let rights = match uid == 0 || uid == daemon.uid {
        true => "with all rights",
        false => "with the rights from `[[permission]]` of its configuration",
    };
    format!(
        "the daemon is pid {}, version {}, run by {}, running since {}; calling it as {} {rights}",
        daemon.pid,
        daemon.version,
        user_name::name(daemon.uid),
        Now::here().clock(&daemon.since),
        user_name::name(uid),
    )
}

/// Connects to the daemon that the global options name.
pub(crate) fn client(global: &Global) -> Result<Client> {
    Target::of(global)?.connect()
}

fn hint_without_daemon(place: &Place) -> String {
    match place.rule {
        Rule::Shared => not_on_demand(place),
        Rule::Given | Rule::PerUser => "leave out --no-start to start a daemon, or run one in the \
                                        foreground with `canal daemon`"
            .to_owned(),
    }
}

impl From<NodeFailure> for Failed {
    fn from(NodeFailure { what, hint, .. }: NodeFailure) -> Self {
        Self::new(what).hint_if(hint)
    }
}

/// Turns an error of the client into a failure of canal (125).
impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Failure(failure) => {
                let lost = failure.name == ErrorName::LeaseLost;
                let code = if lost { OwnCode::LockLost } else { OwnCode::Failed };
                Self::with_code(code.number(), failure.message).hint_if(failure.hint)
            }
            ClientError::Abandoned => {
                Self::with_code(OwnCode::NotAcquired.number(), error.to_string())
                    .hint("keep waiting with `--unattended`")
            }
            ClientError::NoDaemon(ref place) => {
                let hint = hint_without_daemon(place);
                Self::new(error.to_string()).hint(hint)
            }
            ClientError::Start(message) => started_badly(&message),
            ClientError::Place(message) => {
                Self::new(message).hint("choose another directory with --socket or CANAL_SOCKET")
            }
            ClientError::Silent { pid, state } => silent(pid, state),
            ClientError::HeldAtOwnDaemon { ref socket, .. } => {
                let socket = shell_word::of_path(socket);
                Self::new(error.to_string()).hint(format!(
                    "wait until they end (`canal status --socket {socket}`), or give them up with \
                     `canal daemon --stop --socket {socket}`"
                ))
            }
            other => Self::new(other.to_string()),
        }
    }
}

fn silent(pid: u32, state: char) -> Failed {
    let failed = Failed::new(ClientError::Silent { pid, state }.to_string());
    match (pid, state) {
        (0, _) => failed.hint("find the reason with `canal doctor`"),
        (_, 'T' | 't') => {
            failed.hint(format!("it is stopped; continue it with `kill -CONT {pid}`"))
        }
        _ => failed.hint(format!(
            "end it with `kill -9 {pid}`; the next daemon takes over all holds, and nothing is lost"
        )),
    }
}

/// The failure for a daemon that cannot start. It explains itself in the format of this program:
/// `canal: …`, `hint: …`.
fn started_badly(message: &str) -> Failed {
    let mut lines = message.lines();
    let first = lines.next().unwrap_or_default();
    let hint = lines.find_map(|line| line.strip_prefix("hint: "));
    Failed::new(first.strip_prefix("canal: ").unwrap_or(first)).hint_if(hint)
}

/// The script that starts the daemon where systemd does not run.
pub(crate) const INIT_SCRIPT: &str = "/etc/init.d/canal";

/// The command with which root starts the daemon of a machine with this manager.
pub(crate) fn start_command(manager: ServiceManager) -> &'static str {
    match manager {
        ServiceManager::Systemd => "systemctl enable --now canal.socket",
        ServiceManager::OpenRc => "rc-service canal start",
        ServiceManager::SysV(_) | ServiceManager::Unknown => "/etc/init.d/canal start",
    }
}

/// Runs a command whose words contain no blanks.
pub(crate) fn execute(command: &str) -> Result {
    let mut words = command.split(' ');
    match Command::new(words.next().unwrap_or_default()).args(words).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failed::new(format!("`{command}` failed: {status}"))),
        Err(error) => Err(Failed::new(format!("`{command}`: {error}"))),
    }
}

/// How root starts the daemon of this machine.
pub(crate) fn started_by_root() -> String {
    let manager = ServiceManager::of_machine();
    match manager == ServiceManager::Systemd || Path::new(INIT_SCRIPT).exists() {
        true => format!("`{}`", start_command(manager)),
        false => "`canal setup`".to_owned(),
    }
}

/// Advice if the daemon of this machine, which has this place, does not run.
pub(crate) fn not_on_demand(place: &Place) -> String {
    if is_from_outside(place) {
        let dir = place.dir.display();
        return format!(
            "start the daemon on the system that owns {dir}, such as the container's host"
        );
    }
    match ServiceManager::of_machine() {
        ServiceManager::Systemd => {
            format!(
                "run {} to start this machine's daemon, which does not start on demand",
                started_by_root()
            )
        }
        _ => format!("start it as root, with any canal command or with {}", started_by_root()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_cannot_start_speaks_for_itself() {
        let failed = started_badly("canal: /x is damaged at byte 9: y\nhint: --discard-journal\n");
        assert_eq!(failed.message, "/x is damaged at byte 9: y");
        assert_eq!(failed.hint.as_deref(), Some("--discard-journal"));
        assert_eq!(started_badly("died").message, "died");
    }

    /// Also if the daemon ended during a call, when nothing but the error names the place.
    #[test]
    fn whoever_misses_a_daemon_learns_how_to_start_one() {
        let hint = |place: Place| {
            let failed = Failed::from(ClientError::NoDaemon(Box::new(place)));
            failed.hint.unwrap_or_default()
        };
        let uid = geteuid().as_raw();
        assert!(hint(Place::of_user(uid)).contains("leave out --no-start"));
        let of_machine = hint(Place::shared(uid_of_machine(uid).into()));
        assert!(of_machine.contains("start"), "{of_machine}");
    }

    #[test]
    fn a_stopped_daemon_can_be_continued() {
        assert!(silent(7, 'T').hint.unwrap_or_default().contains("kill -CONT 7"));
        assert!(silent(7, 'R').hint.unwrap_or_default().contains("kill -9 7"));
        let unknown = silent(0, '?');
        assert_eq!(unknown.message, "the daemon does not answer");
        assert!(unknown.hint.unwrap_or_default().contains("canal doctor"));
    }
}
