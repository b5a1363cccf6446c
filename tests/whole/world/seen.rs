//! What the daemons of a world say of its keys, and waiting for it.

use std::ffi::OsString;

use canal::protocol::{KeyInfo, Status};
use serde_json::Value;

use super::{World, canal};
use crate::over;
use crate::process::wait_until;

impl World {
    /// What `canal status --json` says; starts daemons if none run.
    #[track_caller]
    pub(crate) fn status(&self) -> Status {
        if !over::ENGINE {
            return serde_json::from_value(self.status_of(0)).unwrap();
        }
        let member = |host| self.status_of(host)["engine"]["state"] == "member";
        for host in 0..self.spread.count() {
            wait_until("the host is a member", || member(host));
        }
        wait_until("the hosts know each other", || {
            let count = self.spread.count();
            self.spread.ask_all().iter().flatten().filter(|it| it.hosts.len() == count).count()
                == count
        });
        self.look().unwrap()
    }

    /// The same as it is printed; of two hosts, by the first.
    #[track_caller]
    pub(crate) fn status_json(&self) -> Value {
        if over::ENGINE {
            self.status();
        }
        self.status_of(0)
    }

    #[track_caller]
    fn status_of(&self, host: usize) -> Value {
        let args = ["status", "--json"].map(OsString::from);
        let ended = self.program_on(host, canal(), args.into()).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    }

    /// The same, asked over the socket, if a daemon answers there. Starts none.
    #[track_caller]
    pub(crate) fn look(&self) -> Option<Status> {
        self.spread.look()
    }

    /// What is known of a key.
    pub(crate) fn key(&self, key: &str) -> KeyInfo {
        self.look().map_or_else(|| unused(key), |status| key_of(status, key))
    }

    /// Slots held of a key.
    pub(crate) fn held(&self, key: &str) -> u64 {
        self.key(key).held
    }

    #[track_caller]
    pub(crate) fn until_held(&self, key: &str, held: u64) {
        wait_until(&format!("{held} slots of {key} are held"), || {
            self.look().is_some_and(|status| key_of(status, key).held == held)
        });
    }

    #[track_caller]
    pub(crate) fn until_waiting(&self, key: &str, waiting: u64) {
        wait_until(&format!("{waiting} wait for {key}"), || {
            self.look().is_some_and(|status| key_of(status, key).waiting == waiting)
        });
    }

    /// Nothing is held and nobody waits, by the daemon's own words.
    #[track_caller]
    pub(crate) fn until_idle(&self) {
        wait_until("nothing is held and nobody waits", || {
            // If none runs, there may be nobody left who would start one.
            let seen = self.look().or_else(|| Some(self.status()));
            seen.is_some_and(|s| s.keys.iter().all(|k| k.held == 0 && k.waiting == 0))
        });
    }
}

/// What a status says of a key.
fn key_of(status: Status, key: &str) -> KeyInfo {
    status.keys.into_iter().find(|shown| shown.key == key).unwrap_or_else(|| unused(key))
}

/// A key that nobody uses.
fn unused(key: &str) -> KeyInfo {
    KeyInfo {
        key: key.to_owned(),
        kind: None,
        held: 0,
        capacity: None,
        view: None,
        stored: false,
        waiting: 0,
        holders: Vec::new(),
        waiters: Vec::new(),
        left_out: 0,
    }
}
