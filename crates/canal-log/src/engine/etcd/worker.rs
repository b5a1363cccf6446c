//! The thread of the engine: connects, and carries out calls while connected.
//!
//! Invariant: it carries out no call over a connection before the log names the era of the etcd
//! behind it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::address::{Address, AddressError};
use super::client::{CLOSES_AT_ONCE, CallTimeout, Client, LastSeen};
use super::era::Observation;
use super::error::{EtcdError, LOST};
use super::hosts::{Registration, register, renew, withdraw};
use super::layout::Keys;
use super::messages::Status;
use super::shared::{EngineState, Shared};
use super::{era, log};
use crate::engine::thread::Caller;
use crate::engine::{Append, Call, Outage, Position, Source};

/// Pauses between attempts, once every member has failed: the first, the longest if no member
/// answers, and the longest if one answers and refuses.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
const PAUSE_REFUSED_MAX: Duration = Duration::from_secs(5);

/// A connection that lasted this long counts as a success.
const GOOD: Duration = Duration::from_secs(5);

/// Serves the caller, over one connection after another.
pub(super) async fn work(mut endpoints: Endpoints, mut caller: Caller) -> Infallible {
    let engine = EngineState::new(Keys::new(&endpoints.prefix), caller.answers.clone());
    let mut roads = Roads::new();
    loop {
        let Reached { client, exact, seen } =
            roads.find(&mut endpoints, &engine, &mut caller).await;
        caller.back();
        let began = Instant::now();
        let shared = Shared { client, engine: engine.clone(), exact };
        let Err(error) = serve(shared, seen, &mut caller).await;
        caller.away(error.into());
        roads.failed(began.elapsed() > GOOD);
    }
}

/// The current endpoints of etcd.
pub(super) struct Endpoints {
    /// The prefix of all keys. Another one would be another table.
    prefix: String,
    members: usize,
    source: Source,
}

impl Endpoints {
    pub(super) fn new(address: &Address, source: Source) -> Self {
        let (prefix, members) = (address.prefix.clone(), address.endpoints.len());
        Self { prefix, members, source }
    }

    fn address(&mut self) -> Result<Address, Outage> {
        let url = (self.source)()?;
        let address: Address =
            url.parse().map_err(|error: AddressError| Outage::refused(error.to_string(), None))?;
        if address.prefix != self.prefix {
            return Err(Outage::moved());
        }
        self.members = address.endpoints.len();
        Ok(address)
    }
}

/// The members, and the recent success with them.
struct Roads {
    patience: CallTimeout,
    last_seen: LastSeen,
    next: usize,
    /// The number of failures in a row.
    failures: usize,
}

/// The errors of the members that were tried in this round.
#[derive(Default)]
struct Round(BTreeMap<usize, EtcdError>);

impl Round {
    /// The error to report. A member that does not answer may come back unaided and be usable.
    fn outage(&self) -> Option<Outage> {
        let silent = self.0.values().find(|error| matches!(error, EtcdError::Away(_)));
        let refused = self.0.values().find(|error| !matches!(error, EtcdError::Away(_)));
        let [silent, refused] = [silent, refused].map(|error| error.cloned().map(Outage::from));
        match (silent, refused) {
            (Some(silent), Some(refused)) => Some(Outage {
                why: format!("{}; another member: {}", silent.why, refused.why),
                hint: refused.hint,
                refused: false,
            }),
            (one, other) => one.or(other),
        }
    }
}

impl Roads {
    /// Begins with a random member, so that not all daemons connect to the first.
    fn new() -> Self {
        let mut byte = [0];
        // Without randomness, it is the first.
        let _ = getrandom::fill(&mut byte);
        let next = usize::from(byte[0]);
        Self { patience: CallTimeout::new(), last_seen: LastSeen::default(), next, failures: 0 }
    }

    fn failed(&mut self, was_good: bool) {
        self.failures = if was_good { 0 } else { self.failures + 1 };
        self.next += 1;
    }

    /// Connects to the first usable member. Reports that etcd is away if there is none.
    async fn find(
        &mut self,
        endpoints: &mut Endpoints,
        engine: &EngineState,
        caller: &mut Caller,
    ) -> Reached {
        let mut round = Round::default();
        loop {
            let rounds = self.failures / endpoints.members.max(1);
            if rounds > 0 {
                caller.pause(length(rounds, caller.outage())).await;
            }
            // Any part of it may have changed, above all the passwords.
            let address = match endpoints.address() {
                Ok(address) => address,
                Err(outage) => {
                    caller.away(outage);
                    self.failures += endpoints.members.max(1);
                    continue;
                }
            };
            let at = self.next % endpoints.members.max(1);
            let endpoint = address.endpoints.get(at).map_or("", String::as_str);
            let (patience, last_seen) = (self.patience.clone(), self.last_seen.clone());
            match reach(&address, endpoint, (patience, last_seen), engine).await {
                Ok(found) => return found,
                Err(error) => {
                    self.failed(false);
                    round.0.insert(at, error);
                }
            }
            // Another member may work where this one does not.
            if round.0.len() >= endpoints.members {
                if let Some(outage) = round.outage() {
                    caller.away(outage);
                }
                round = Round::default();
            }
        }
    }
}

/// How long to pause after `rounds` attempts.
fn length(rounds: usize, away: Option<&Outage>) -> Duration {
    let refused = away.is_some_and(|outage| outage.refused);
    let max = if refused { PAUSE_REFUSED_MAX } else { PAUSE_MAX };
    let step = u32::try_from(rounds).unwrap_or(u32::MAX).min(8) - 1;
    (PAUSE_FIRST * 2u32.pow(step)).min(max)
}

/// A usable member.
struct Reached {
    client: Client,
    /// See [`exact`].
    exact: bool,
    seen: Observation,
}

/// Connects to a member and checks that it is usable.
async fn reach(
    address: &Address,
    endpoint: &str,
    (patience, last_seen): (CallTimeout, LastSeen),
    engine: &EngineState,
) -> Result<Reached, EtcdError> {
    let client = Client::connect(address, endpoint, patience, last_seen).await?;
    match greet(&client, engine).await {
        Ok((version, seen)) => Ok(Reached { client, exact: exact(version), seen }),
        Err(error) => Err(explained(error, endpoint, address)),
    }
}

/// The error of a member, with its name.
pub(super) fn explained(error: EtcdError, endpoint: &str, address: &Address) -> EtcdError {
    let EtcdError::Away(why) = error else { return error };
    let speaks_tls = why.starts_with(LOST) && address.tls.is_none();
    let why = if speaks_tls { CLOSES_AT_ONCE } else { &why };
    EtcdError::Away(format!("etcd at {endpoint}: {why}"))
}

async fn greet(client: &Client, engine: &EngineState) -> Result<(Version, Observation), EtcdError> {
    client.log_in().await?;
    let status = client.status().await?;
    let version = version_in_use(&status)?;
    engine.has_room(!status.errors.iter().any(|error| error.contains("NOSPACE")));
    let seen = era::look_after(&status, client, &engine.keys).await?;
    Ok((version, seen))
}

/// The version of a usable member.
pub(super) fn version_in_use(status: &Status) -> Result<Version, EtcdError> {
    let version = version(&status.version);
    if version < [3, 4, 0] {
        let why = format!("this etcd is version {}", status.version);
        return Err(EtcdError::refused(why, "canal needs etcd 3.4 or later"));
    }
    if status.is_learner {
        return Err(EtcdError::Away("is a learner, which serves no requests".into()));
    }
    if status.leader == 0 {
        let why = "has no leader: too few members can reach each other";
        return Err(EtcdError::Away(why.into()));
    }
    Ok(version)
}

/// Major, minor, patch.
pub(super) type Version = [u32; 3];

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
async fn serve(
    shared: Shared,
    seen: Observation,
    caller: &mut Caller,
) -> Result<Infallible, EtcdError> {
    era::settle(&shared, seen, caller).await?;
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
    store: Option<(Position, AbortHandle)>,
}

impl Running {
    fn begin(&mut self, shared: &Shared, call: Call, tasks: &mut JoinSet<Result<(), EtcdError>>) {
        let shared = shared.clone();
        match call {
            Call::Register { identity, nonce, ttl_ms, asked_at } => {
                tasks.spawn(register(shared, Registration { identity, nonce, ttl_ms, asked_at }));
            }
            Call::Withdraw { host } => {
                tasks.spawn(withdraw(shared, host));
            }
            Call::Load => replace(&mut self.reader, tasks.spawn(log::load(shared))),
            Call::Follow { after } => {
                replace(&mut self.reader, tasks.spawn(log::follow(shared, after)));
            }
            Call::Append(append) => {
                if let Some((before, task)) = &self.append
                    && !task.is_finished()
                {
                    if *before == append {
                        // It is in flight, or waits for room.
                        return;
                    }
                    task.abort();
                }
                let task = tasks.spawn(log::append(shared, append.clone()));
                self.append = Some((append, task));
            }
            // Nothing to switch: a watch of etcd wakes no host that waits for nothing.
            Call::Attend { .. } => {}
            Call::Renew { host, asked_at } => {
                tasks.spawn(renew(shared, host, asked_at));
            }
            // There is no longer an era to note.
            Call::NoteEra { .. } => {}
            Call::Store(stored) => {
                if let Some((before, task)) = &self.store
                    && !task.is_finished()
                {
                    if *before == stored.position {
                        return;
                    }
                    task.abort();
                }
                let position = stored.position;
                self.store = Some((position, tasks.spawn(log::store(shared, stored))));
            }
        }
    }
}

/// There is one reader: a new one replaces it.
fn replace(reader: &mut Option<AbortHandle>, with: AbortHandle) {
    if let Some(before) = reader.replace(with) {
        before.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_refuses_does_not_decide_for_silent_members() {
        let refused = EtcdError::refused("wrong CA", "another one");
        let silent = |why: &str| EtcdError::Away(why.into());
        let mut round = Round::default();
        assert_eq!(round.outage(), None);
        round.0.insert(1, refused.clone());
        assert!(round.outage().unwrap().refused);
        round.0.extend([(2, silent("b")), (0, silent("a"))]);
        let outage = round.outage().unwrap();
        assert_eq!(outage.why, "a; another member: wrong CA");
        assert_eq!((outage.refused, outage.hint.as_deref()), (false, Some("another one")));
    }

    #[test]
    fn pauses_grow_up_to_their_bound() {
        let refused = Outage::refused("x", None);
        assert_eq!(length(1, None), Duration::from_millis(100));
        assert_eq!(length(1000, None), PAUSE_MAX);
        assert_eq!(length(1000, Some(&refused)), PAUSE_REFUSED_MAX);
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
