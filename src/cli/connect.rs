//! Connects to the daemon that the global options name, and turns client errors into messages; how
//! the daemon of this machine is started, which only root's commands do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::{Failed, Global, Now, Result, Verbosity, stderr, user_name};
use crate::client::{
    Client, ClientError, Limits, OWN, Options, ServiceManager, Start, command_environment,
    is_from_outside,
};
use crate::protocol::paths::{MachineUid, Place, Rule, uid_of_machine};
use crate::protocol::{ErrorName, HistoryQuery, NodeFailure, RequestTag, StatusQuery, Tag};
use crate::run::OwnCode;
use crate::shell_word;
use crate::sys::process::user::geteuid;
use crate::sys::terminal::drawn_line;

use crate::cli::wording::separate_daemons;

/// How long the daemon may take to connect, and to answer a report that a command ran for too long.
const REPORTED_WITHIN: Duration = Duration::from_millis(250);

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
    /// They start this program as the daemon, whatever the name of its file.
    pub(crate) options: Options,
    /// Whether the variable `CANAL_SOCKET` named the socket.
    pub(crate) by_environment: bool,
}

impl Target {
    /// The target that the global options name.
    pub(crate) fn of(global: &Global) -> Result<Self> {
        let variable = std::env::var_os(command_environment::SOCKET).map(PathBuf::from);
        let given = global.socket.as_deref().or(variable.as_deref());
        let place = Place::find(given, MachineUid::own()).map_err(Failed::new)?;
        let start = if global.no_start { Start::Never } else { Start::IfNeeded };
        let by_environment = global.socket.is_none() && place.rule == Rule::Given;
        let options = Options { program: Some(OWN.into()), ..Options::from(start) };
        Ok(Self { place, options, by_environment })
    }

    /// Connects, starts a daemon if necessary and allowed, and prints what keeps its locks apart
    /// from others.
    pub(crate) fn connect(&self) -> Result<Client> {
        self.connect_for(None)
    }

    /// Connects for a request that waits at most this long.
    pub(crate) fn connect_for(&self, wait_ms: Option<u64>) -> Result<Client> {
        if stderr::shows(Verbosity::Detailed) {
            let why = match self.place.rule {
                Rule::Given => "given by --socket or CANAL_SOCKET",
                Rule::Shared => "this machine's",
                Rule::PerUser => "this user's own",
            };
            let socket = self.place.socket.display();
            stderr::fine_detail(&format!("calling the daemon at {socket}, {why}"));
        }
        let mut client = Client::connect(&self.place, self.options.clone().of_wait(wait_ms))?;
        let has_started = client.has_started_daemon();
        separate_daemons::note(&self.place, self.by_environment, has_started);
        if stderr::shows(Verbosity::Detailed) {
            if has_started {
                stderr::fine_detail("no daemon was running; this command started one");
            }
            stderr::fine_detail(&introduction(&mut client));
            client.trace = Some(|line| {
                // The waiting line appears again below the message.
                drawn_line::erase();
                stderr::fine_detail(line);
            });
        }
        Ok(client)
    }

    /// Reports to the daemon that the command of the request with this tag has run for too long. A
    /// daemon that does not answer soon cannot delay the end of the command.
    pub(crate) fn report_overrun(&self, tag: Tag) {
        let limits = Limits::of(REPORTED_WITHIN, REPORTED_WITHIN);
        let options = Options { start: Start::Never, limits, ..self.options.clone() };
        if let Ok(mut client) = Client::connect(&self.place, options) {
            // Without the report, the history only has the exit status.
            let _ = client.overrun(&RequestTag { tag });
        }
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
        let Ok(mut client) = Client::connect(&self.place, self.options.clone()) else { return };
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
    let (pid, version, since) = (daemon.pid, daemon.version, Now::here().clock(&daemon.since));
    let (runs, calls) = (user_name::name(daemon.uid), user_name::name(uid));
    format!(
        "the daemon is pid {pid}, version {version}, run by {runs}, running since {since}; calling \
         it as {calls} {rights}"
    )
}

impl From<NodeFailure> for Failed {
    fn from(NodeFailure { what, hint, .. }: NodeFailure) -> Self {
        Self::new(what).hint_if(hint)
    }
}

/// Turns an error of the client into a failure of canal (125).
impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Self {
        let hint = match &error {
            // The daemon explains itself in the format of this program: `canal: …`, `hint: …`.
            ClientError::Start(message) => {
                let first = message.lines().next().unwrap_or_default();
                let hint = message.lines().skip(1).find_map(|line| line.strip_prefix("hint: "));
                return Self::new(first.strip_prefix("canal: ").unwrap_or(first)).hint_if(hint);
            }
            ClientError::Failure(failure) => failure.hint.as_deref().map(str::to_owned),
            ClientError::Abandoned => Some("keep waiting with `--unattended`".to_owned()),
            ClientError::NoDaemon(it) if it.rule == Rule::Shared => Some(not_on_demand(it)),
            ClientError::NoDaemon(_) => {
                let start = "leave out --no-start to start a daemon, or run one in the foreground \
                             with `canal daemon`";
                Some(start.to_owned())
            }
            ClientError::Place(_) => {
                Some("choose another directory with --socket or CANAL_SOCKET".to_owned())
            }
            ClientError::Silent { pid: 0, .. } => {
                Some("find the reason with `canal doctor`".into())
            }
            ClientError::Silent { pid, state: 'T' | 't' } => {
                Some(format!("it is stopped; continue it with `kill -CONT {pid}`"))
            }
            ClientError::Silent { pid, .. } => Some(format!(
                "end it with `kill -9 {pid}`; the next daemon takes over all holds, and nothing is \
                 lost"
            )),
            ClientError::HeldAtOwnDaemon { socket, .. } => {
                let socket = shell_word::of_path(socket);
                Some(format!(
                    "wait until they end (`canal status --socket {socket}`), or give them up with \
                     `canal daemon --stop --socket {socket}`"
                ))
            }
            _ => None,
        };
        let message = error.to_string();
        let (code, failure) = match error {
            ClientError::Abandoned => (OwnCode::NotAcquired, None),
            ClientError::Failure(failure) => {
                let is_lost = failure.name == ErrorName::LeaseLost;
                let code = if is_lost { OwnCode::LockLost } else { OwnCode::Failed };
                (code, Some(Box::new(failure)))
            }
            _ => (OwnCode::Failed, None),
        };
        Self { code: code.number(), message, hint, failure }
    }
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
        let host = "such as the container's host";
        return format!("start the daemon on the system that owns {dir}, {host}");
    }
    let start = started_by_root();
    if ServiceManager::of_machine() == ServiceManager::Systemd {
        return format!(
            "run {start} to start this machine's daemon, which does not start on demand"
        );
    }
    format!("start it as root, with any canal command or with {start}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_cannot_start_speaks_for_itself() {
        let started_badly = |text: &str| Failed::from(ClientError::Start(text.to_owned()));
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
        let silent = |pid, state| Failed::from(ClientError::Silent { pid, state });
        assert!(silent(7, 'T').hint.unwrap_or_default().contains("kill -CONT 7"));
        assert!(silent(7, 'R').hint.unwrap_or_default().contains("kill -9 7"));
        let unknown = silent(0, '?');
        assert_eq!(unknown.message, "the daemon does not answer");
        assert!(unknown.hint.unwrap_or_default().contains("canal doctor"));
    }
}
