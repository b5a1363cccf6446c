//! The thread of the engine: connects, and carries out calls while connected.
//!
//! Invariant: it carries out no call over a connection before the log names the era of the etcd
//! behind it.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};

use super::address::Address;
use super::client::{Client, Known, explained};
use super::era::Observation;
use super::error::{EtcdError, Result, SILENT};
use super::hosts::{register, renew, withdraw};
use super::keys::Keys;
use super::messages::Status;
use super::shared::{EngineState, Shared};
use super::{era, log};
use crate::engine::engine_thread::Caller;
use crate::engine::{Append, Call, Outage, Source};
use canal_sys::kernel::random;

/// The longest pause between two attempts to reach a member.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Serves the caller, over one connection after another. Other keys would be another table.
pub(super) async fn work(keys: Keys, mut source: Source, mut caller: Caller) -> Infallible {
    let engine = Rc::new(EngineState::new(keys, caller.answers.clone()));
    // Begins with a random member, so that not all daemons connect to the first. Without
    // randomness, it is the first.
    let mut next = random::u64().unwrap_or(0) as usize;
    let reach_any = async |_: &Caller| {
        // Any part of the address may have changed, above all the passwords.
        let address = Address::parse(&source())?;
        if Keys::new(&address.prefix) != engine.keys {
            return Err(Outage::moved());
        }
        reach_one(&address, &mut next, &engine).await
    };
    let serve = async |(shared, seen), caller: &mut Caller| {
        let Err(error) = serve(shared, seen, caller).await;
        error.into()
    };
    caller.serve_on(PAUSE_MAX, reach_any, serve).await
}

/// Connects to the first usable member, beginning with the one at `next`.
async fn reach_one(
    address: &Address,
    next: &mut usize,
    engine: &Rc<EngineState>,
) -> Result<(Shared, Observation), Outage> {
    let mut outages = Vec::new();
    for _ in &address.endpoints {
        let endpoint = &address.endpoints[*next % address.endpoints.len()];
        *next += 1;
        match reach(address, endpoint, engine).await {
            Ok(found) => return Ok(found),
            Err(error) => outages.push(explained(error, endpoint, address)),
        }
    }
    Err(outage(&outages))
}

/// The error to report. A member that does not answer may come back unaided and be usable.
fn outage(outages: &[Outage]) -> Outage {
    let first = |refused| outages.iter().find(|outage| outage.refused == refused).cloned();
    match (first(false), first(true)) {
        (Some(silent), Some(refused)) => {
            let why = format!("{}; another member: {}", silent.why, refused.why);
            Outage { why, refused: false, ..refused }
        }
        (one, other) => one.or(other).unwrap_or_else(|| Outage::unreachable(SILENT)),
    }
}

/// Connects to a member and checks that it is usable. Errors do not name it.
async fn reach(
    address: &Address,
    endpoint: &str,
    engine: &Rc<EngineState>,
) -> Result<(Shared, Observation)> {
    let (client, status, version) = connect(address, endpoint, &engine.known).await?;
    engine.has_room(!status.errors.iter().any(|error| error.contains("NOSPACE")));
    let seen = era::look_after(status, &client, &engine.keys).await?;
    Ok((Shared { client, engine: Rc::clone(engine), exact: exact(version) }, seen))
}

/// Connects and logs in to a member, and checks that it can serve requests. Errors do not name it.
pub(super) async fn connect(
    address: &Address,
    endpoint: &str,
    known: &Rc<Known>,
) -> Result<(Client, Status, Version)> {
    let client = Client::connect(address, endpoint, known).await?;
    client.log_in().await?;
    let status = client.status().await?;
    let version = version(&status.version);
    if version < [3, 4, 0] {
        let why = format!("this etcd is version {}", status.version);
        return Err(EtcdError::refused(why, "canal needs etcd 3.4 or later"));
    }
    if status.is_learner {
        return Err(EtcdError::away("is a learner, which serves no requests"));
    }
    if status.leader == 0 {
        return Err(EtcdError::away("has no leader: too few members can reach each other"));
    }
    Ok((client, status, version))
}

/// Major, minor, patch.
type Version = [u32; 3];

fn version(text: &str) -> Version {
    let mut parts = text.split(['.', '-']).map_while(|part| part.parse().ok());
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

/// Whether this etcd revokes leases only if they were not renewed (etcd#15247).
fn exact(version: Version) -> bool {
    match version {
        [3, 4, patch] => patch >= 31,
        [3, 5, patch] => patch >= 13,
        _ => true,
    }
}

/// Carries out calls until the connection fails.
async fn serve(shared: Shared, seen: Observation, caller: &mut Caller) -> Result<Infallible> {
    era::settle(&shared, seen).await?;
    let mut tasks = JoinSet::new();
    let mut running = Running::default();
    let error = loop {
        tokio::select! {
            biased;
            call = caller.call() => running.begin(&shared, call, &mut tasks),
            Some(done) = tasks.join_next() => match done {
                Ok(Ok(())) => {}
                Ok(Err(error)) => break error,
                Err(error) if error.is_cancelled() => {}
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
        }
    };
    // After this, no task answers.
    tasks.shutdown().await;
    Err(error)
}

/// The tasks that exist only once.
#[derive(Default)]
struct Running {
    reader: Option<AbortHandle>,
    append: Option<(Append, AbortHandle)>,
}

impl Running {
    fn begin(&mut self, shared: &Shared, call: Call, tasks: &mut JoinSet<Result<()>>) {
        let shared = shared.clone();
        match call {
            Call::Register(registration) => drop(tasks.spawn_local(register(shared, registration))),
            Call::Withdraw { host } => drop(tasks.spawn_local(withdraw(shared, host))),
            Call::Renew { host, asked_at } => {
                drop(tasks.spawn_local(renew(shared, host, asked_at)));
            }
            Call::Load => self.read(tasks.spawn_local(log::load(shared))),
            Call::Follow { after } => self.read(tasks.spawn_local(log::follow(shared, after))),
            Call::Append(append) => {
                if let Some((before, task)) = &self.append {
                    // If it is in flight, it may be waiting for room.
                    if *before == append && !task.is_finished() {
                        return;
                    }
                    task.abort();
                }
                let task = tasks.spawn_local(log::append(shared, append.clone()));
                self.append = Some((append, task));
            }
            Call::Store(stored) => drop(tasks.spawn_local(log::store(shared, stored))),
            // Nothing to switch: a watch of etcd wakes no host that waits for nothing.
            Call::Attend { .. } => {}
        }
    }

    /// There is one reader: a new one replaces it.
    fn read(&mut self, reader: AbortHandle) {
        if let Some(before) = self.reader.replace(reader) {
            before.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_refuses_does_not_decide_for_silent_members() {
        let refused = Outage::from(EtcdError::refused("wrong CA", "another one"));
        assert!(outage(std::slice::from_ref(&refused)).refused);
        let outages = [Outage::unreachable("a"), refused, Outage::unreachable("b")];
        let outage = outage(&outages);
        assert_eq!(outage.why, "a; another member: wrong CA");
        assert_eq!((outage.refused, outage.hint.as_deref()), (false, Some("another one")));
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version("3.4.23"), [3, 4, 23]);
        assert_eq!(version("3.5.0-rc.1"), [3, 5, 0]);
        assert!(version("3.10.1") > [3, 4, 0] && version("3.3.25") < [3, 4, 0]);
        assert!(version("") < [3, 4, 0]);
    }

    #[test]
    fn leases_are_exact_since_the_versions_with_the_corrected_lessor() {
        for (text, is) in [
            ("3.4.23", false),
            ("3.4.31", true),
            ("3.5.12", false),
            ("3.5.13", true),
            ("3.6.0", true),
        ] {
            assert_eq!(exact(version(text)), is, "{text}");
        }
    }
}
