//! One table on two hosts: over an engine, the clients of a world are spread over two daemons.
//!
//! Clients take turns. What names a process (`--pid`) goes to the host where that process was started,
//! as it would on two machines; what a script runs stays on the host of the script.
//!
//! The invariant: what a test looks at is what both hosts say. A host may be behind the other by the
//! time that a batch takes; so it is asked until both say the same, and what has ended is waited for
//! until both know of it. Where one daemon is dead, the other one is believed.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use canal::protocol::{HolderInfo, Status, WaiterInfo};
use serde_json::Value;

use crate::over;
use crate::peer::Peer;
use crate::process::{alive, wait_until};

/// A log in an engine, of which nobody else knows.
pub(crate) struct Log {
    pub(crate) url: String,
    /// What must live as long.
    pub(crate) _server: Option<Arc<dyn Any + Send + Sync>>,
}

/// The hosts of a world.
pub(crate) struct Spread {
    log: Option<Log>,
    /// Where each daemon has its socket.
    places: Vec<PathBuf>,
    turn: AtomicUsize,
    /// Whether all clients go to the first host.
    pinned: AtomicBool,
    /// On which host processes were started.
    homes: Mutex<HashMap<u32, usize>>,
}

impl std::fmt::Debug for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spread").field("places", &self.places).finish_non_exhaustive()
    }
}

impl Spread {
    /// Makes the hosts' folders below `folder`.
    pub(crate) fn below(folder: &Path) -> Self {
        let log = over::log();
        let names = if log.is_some() { &["run", "run.b"][..] } else { &["run"] };
        let places: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
        for place in &places {
            DirBuilder::new().mode(0o700).create(place).unwrap();
        }
        let (turn, pinned, homes) = Default::default();
        let spread = Self { log, places, turn, pinned, homes };
        if over::ENGINE {
            spread.configure("");
        }
        spread
    }

    /// Writes the configuration of each daemon.
    pub(crate) fn configure(&self, rest: &str) {
        for (place, label) in self.places.iter().zip(["a", "b"]) {
            let engine = self.log.as_ref().map_or_else(String::new, |log| {
                format!("[engine]\nurl = \"{}\"\nttl = \"10h\"\nrenewal = \"10s\"\nhost = \"{label}\"\n\n", log.url)
            });
            fs::write(place.join("canal.toml"), engine + rest).unwrap();
        }
    }

    /// Has all clients go to the first host from now on.
    pub(crate) fn pin(&self) {
        self.pinned.store(true, Ordering::Relaxed);
    }

    /// The folder of a host's daemon.
    pub(crate) fn place(&self, host: usize) -> &Path {
        &self.places[host]
    }

    pub(crate) fn socket(&self, host: usize) -> PathBuf {
        self.places[host].join("canal.sock")
    }

    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Whose turn it is.
    pub(crate) fn next(&self) -> usize {
        if self.pinned.load(Ordering::Relaxed) {
            return 0;
        }
        self.turn.fetch_add(1, Ordering::Relaxed) % self.places.len()
    }

    /// The host for a command with these arguments.
    pub(crate) fn host_for(&self, args: &[OsString]) -> usize {
        let text: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
        let text = text.join(" ");
        let words: Vec<&str> = text.split_whitespace().collect();
        let named = words.windows(2).find_map(|pair| match pair {
            ["--pid", number] => number.parse::<u32>().ok(),
            _ => None,
        });
        let Some(pid) = named else { return self.next() };
        let known = self.homes.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).copied();
        known.unwrap_or_else(|| {
            let host = self.next();
            self.lives(pid, host);
            host
        })
    }

    /// Notes where a process was started.
    pub(crate) fn lives(&self, pid: u32, host: usize) {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, host);
    }

    /// What a host's daemon says, if it answers and, over an engine, runs and has joined.
    fn ask(&self, host: usize) -> Option<Status> {
        let mut peer = Peer::try_connect_to(&self.socket(host))?;
        if over::ENGINE && peer.is_stopped() {
            return None;
        }
        let reply = peer.call("Status", &Value::Null)?;
        let status: Status = serde_json::from_value(reply.get("parameters")?.clone()).ok()?;
        let joined = |status: &Status| status.engine.as_ref().is_none_or(|it| it.state == "member");
        (!over::ENGINE || joined(&status)).then_some(status)
    }

    /// What each host says that has joined.
    pub(crate) fn ask_all(&self) -> Vec<Option<Status>> {
        (0..self.places.len()).map(|host| self.ask(host)).collect()
    }

    /// What one host says, in turn, also if another one says something else by now.
    pub(crate) fn glance(&self) -> Option<Status> {
        self.ask(self.next())
    }

    /// What the hosts say alike; of each process what its own host says of it.
    #[track_caller]
    pub(crate) fn look(&self) -> Option<Status> {
        let mut said = self.ask_all();
        wait_until("both hosts say the same", || {
            let known: Vec<_> = said.iter().flatten().map(table).collect();
            let alike = known.windows(2).all(|pair| pair[0] == pair[1]);
            if !alike {
                said = self.ask_all();
            }
            alike
        });
        let mut said = said.into_iter().flatten();
        let mut first = said.next()?;
        if let Some(second) = said.next() {
            merge(&mut first, second);
        }
        Some(first)
    }

    /// Waits until no host says of one that is dead by now that it holds or waits.
    #[track_caller]
    pub(crate) fn settle(&self) {
        if !over::ENGINE {
            return;
        }
        let mut left: Option<Vec<(u32, String)>> = None;
        wait_until("both hosts know what has ended", || {
            let dead = dead(&self.ask_all());
            let left = left.get_or_insert_with(|| dead.clone());
            left.retain(|one| dead.contains(one));
            left.is_empty()
        });
    }
}

/// What all hosts must say alike.
fn table(status: &Status) -> Vec<Value> {
    let own = ["state", "reason", "since", "command", "lease", "renewed"];
    let mut keys: Vec<Value> =
        status.keys.iter().map(|key| serde_json::to_value(key).unwrap()).collect();
    for key in &mut keys {
        for list in ["holders", "waiters"] {
            for one in key[list].as_array_mut().into_iter().flatten() {
                own.iter().for_each(|field| drop(one.as_object_mut().unwrap().remove(*field)));
            }
        }
    }
    keys
}

/// Takes what `second` says of the processes of its own host.
fn merge(first: &mut Status, second: Status) {
    let here = second.engine.map(|engine| engine.host);
    for (mine, its) in first.keys.iter_mut().zip(second.keys) {
        let of_holder = |it: &HolderInfo| it.host == here;
        for (mine, its) in mine.holders.iter_mut().zip(its.holders) {
            if of_holder(&its) {
                *mine = its;
            }
        }
        let of_waiter = |it: &WaiterInfo| it.host == here;
        for (mine, its) in mine.waiters.iter_mut().zip(its.waiters) {
            if of_waiter(&its) {
                *mine = its;
            }
        }
    }
}

/// Dead processes that hold or wait, by the words of any host, and of which their own host's daemon
/// runs: with their sessions.
fn dead(said: &[Option<Status>]) -> Vec<(u32, String)> {
    let up = |host: &Option<String>| {
        said.iter()
            .flatten()
            .any(|it| it.engine.as_ref().map(|engine| &engine.host) == host.as_ref())
    };
    let keys = || said.iter().flatten().flat_map(|status| &status.keys);
    let kept: Vec<u32> = keys()
        .flat_map(|key| &key.holders)
        .filter(|it| it.state.as_deref() == Some("children"))
        .map(|it| it.pid)
        .collect();
    let holders = keys().flat_map(|key| &key.holders).map(|it| (it.pid, &it.session, &it.host));
    let waiters = keys().flat_map(|key| &key.waiters).map(|it| (it.pid, &it.session, &it.host));
    holders
        .chain(waiters)
        .filter(|(pid, _, host)| *pid != 0 && up(host) && !kept.contains(pid))
        .filter(|(pid, _, _)| !alive(pid.cast_signed()))
        .map(|(pid, session, _)| (pid, session.clone()))
        .collect()
}
