//! The thread's work: connecting, and carrying out calls while connected.
//!
//! Invariant: between `Away` and `Back` nothing is answered, and nothing that was asked before
//! `Back` was said is answered after it unless it is asked again.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use super::address::Address;
use super::client::{CLOSES_AT_ONCE, Client, Patience};
use super::layout::Keys;
use super::messages::{Nothing, Status};
use super::register::{Asker, meta_of, register};
use super::shared::{Lasting, Shared};
use super::trouble::{LOST, ROOM, Trouble};
use super::txn::{one, reads};
use super::{append, read, renew, store};
use crate::log::engine::{Answer, Call};

/// Pauses between attempts, once every member has failed.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// A connection that lasted so long was a good one.
const GOOD: Duration = Duration::from_secs(5);

/// Works until nobody calls any more, or until it is of no use.
pub(super) async fn work(
    address: Address,
    mut calls: mpsc::UnboundedReceiver<Call>,
    answers: mpsc::UnboundedSender<Answer>,
) {
    let lasting = Lasting::new(Keys::new(&address.prefix), answers);
    let mut roads = Roads::new(&address);
    let mut away = false;
    loop {
        let (client, exact) = match roads.find(&address, &lasting, &mut calls, &mut away).await {
            Found::Client(client, exact) => (client, exact),
            Found::Nothing(trouble) => return give_up(&lasting, trouble),
            Found::Closed => return,
        };
        if away {
            if !drop_calls(&mut calls) {
                return;
            }
            lasting.say(Answer::Back);
        }
        let began = Instant::now();
        match serve(Shared { client, lasting: lasting.clone(), exact }, &mut calls).await {
            None => return,
            Some(Trouble::Away(why)) => {
                away = true;
                lasting.say(Answer::Away { why });
            }
            Some(trouble) => return give_up(&lasting, trouble),
        }
        roads.failed(began.elapsed() > GOOD);
    }
}

fn give_up(lasting: &Lasting, trouble: Trouble) {
    let (why, hint) = match trouble {
        Trouble::Unable { why, hint } => (why, hint),
        // None of these gets so far.
        Trouble::Away(why) => (why, None),
        Trouble::OtherRevision => ("etcd compacts too early".into(), None),
        Trouble::Token => ("etcd does not accept the token that it gave".into(), None),
        Trouble::NoLease => ("a lease of etcd's ended early".into(), None),
        Trouble::Full => ("etcd is full and takes nothing in".into(), Some(ROOM.into())),
    };
    lasting.say(Answer::Unable { why, hint });
}

/// Forgets what was called; false: nobody calls any more.
fn drop_calls(calls: &mut mpsc::UnboundedReceiver<Call>) -> bool {
    loop {
        match calls.try_recv() {
            Ok(_) => {}
            Err(mpsc::error::TryRecvError::Empty) => return true,
            Err(mpsc::error::TryRecvError::Disconnected) => return false,
        }
    }
}

/// The members, and how well it went with them.
struct Roads {
    patience: Patience,
    next: usize,
    /// How many failed, one after the other.
    failures: usize,
}

enum Found {
    /// And whether its leases are exact.
    Client(Client, bool),
    Nothing(Trouble),
    Closed,
}

impl Roads {
    /// Begins with any of them, so that not all daemons come to the first.
    fn new(address: &Address) -> Self {
        let mut byte = [0];
        // Without randomness it is the first.
        let _ = getrandom::fill(&mut byte);
        let next = usize::from(byte[0]) % address.endpoints.len().max(1);
        Self { patience: Patience::new(), next, failures: 0 }
    }

    fn failed(&mut self, was_good: bool) {
        self.failures = if was_good { 0 } else { self.failures + 1 };
        self.next += 1;
    }

    /// Connects to the first member that is of use. Says that etcd is away when none is.
    async fn find(
        &mut self,
        address: &Address,
        lasting: &Lasting,
        calls: &mut mpsc::UnboundedReceiver<Call>,
        away: &mut bool,
    ) -> Found {
        let count = address.endpoints.len();
        let mut unable = None;
        let mut tried = 0;
        loop {
            if self.failures >= count {
                let step = u32::try_from(self.failures / count).unwrap_or(u32::MAX).min(5) - 1;
                if !pause((PAUSES[0] * 2u32.pow(step)).min(PAUSES[1]), calls).await {
                    return Found::Closed;
                }
            }
            let Some(endpoint) = address.endpoints.get(self.next % count.max(1)) else {
                return Found::Closed;
            };
            tried += 1;
            match reach(address, endpoint, self.patience.clone(), &lasting.keys).await {
                Ok((client, exact)) => return Found::Client(client, exact),
                Err(Trouble::Away(why)) => {
                    tracing::debug!("{why}");
                    self.failed(false);
                    if tried >= count && unable.is_none() && !*away {
                        *away = true;
                        lasting.say(Answer::Away { why });
                    }
                }
                Err(trouble) => {
                    self.failed(false);
                    unable = Some(trouble);
                }
            }
            // What is wrong with one member may be right with another.
            if tried >= count
                && let Some(trouble) = unable.take()
            {
                return Found::Nothing(trouble);
            }
        }
    }
}

/// Waits, and forgets what is called meanwhile; false: nobody calls any more.
async fn pause(length: Duration, calls: &mut mpsc::UnboundedReceiver<Call>) -> bool {
    let over = sleep(length);
    tokio::pin!(over);
    loop {
        tokio::select! {
            () = &mut over => return true,
            call = calls.recv() => if call.is_none() { return false },
        }
    }
}

/// Connects to a member and sees whether it is of use.
async fn reach(
    address: &Address,
    endpoint: &str,
    patience: Patience,
    keys: &Keys,
) -> Result<(Client, bool), Trouble> {
    let client = Client::connect(address, endpoint, patience).await?;
    match greet(&client, keys).await {
        Ok(version) => Ok((client, exact(version))),
        Err(Trouble::Away(why)) => {
            let why =
                if why.starts_with(LOST) && address.tls.is_none() { CLOSES_AT_ONCE } else { &why };
            Err(Trouble::Away(format!("etcd at {endpoint}: {why}")))
        }
        Err(other) => Err(other),
    }
}

async fn greet(client: &Client, keys: &Keys) -> Result<Version, Trouble> {
    client.log_in().await?;
    let status: Status = client.ask("/etcdserverpb.Maintenance/Status", Nothing {}).await?;
    let version = version(&status.version);
    if version < [3, 4, 0] {
        let why = format!("this etcd has version {}", status.version);
        return Err(Trouble::unable(why, "canal needs etcd 3.4 or later"));
    }
    if status.is_learner {
        return Err(Trouble::Away("is a learner, which answers nothing".into()));
    }
    if status.leader == 0 {
        let why = "has no leader: too few members can reach each other";
        return Err(Trouble::Away(why.into()));
    }
    if status.errors.iter().any(|error| error.contains("NOSPACE")) {
        tracing::error!("etcd is full and takes nothing in; {ROOM}");
    }
    let [meta] = client.txn(reads([one(keys.meta())])).await?.found();
    meta_of(&meta)?;
    Ok(version)
}

/// Major, minor, patch.
type Version = [u32; 3];

fn version(text: &str) -> Version {
    let mut parts = text.split(['.', '-']).map_while(|part| part.parse().ok());
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

/// Whether this etcd revokes leases only when they were not renewed (etcd#15247).
fn exact(version: Version) -> bool {
    match version {
        [3, 4, patch] => patch >= 31,
        [3, 5, patch] => patch >= 13,
        _ => true,
    }
}

/// Carries out calls until the connection fails or, with `None`, until nobody calls any more.
async fn serve(shared: Shared, calls: &mut mpsc::UnboundedReceiver<Call>) -> Option<Trouble> {
    let mut tasks = JoinSet::new();
    let mut reader: Option<AbortHandle> = None;
    let trouble = loop {
        tokio::select! {
            biased;
            call = calls.recv() => match call {
                None => break None,
                Some(call) => begin(&shared, call, &mut tasks, &mut reader),
            },
            Some(done) = tasks.join_next() => match done {
                Ok(Ok(())) => {}
                Ok(Err(trouble)) => break Some(trouble),
                Err(error) if error.is_cancelled() => {}
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
        }
    };
    // After this none of them answers any more.
    tasks.shutdown().await;
    trouble
}

fn begin(
    shared: &Shared,
    call: Call,
    tasks: &mut JoinSet<Result<(), Trouble>>,
    reader: &mut Option<AbortHandle>,
) {
    let shared = shared.clone();
    match call {
        Call::Register { identity, nonce, ttl_ms, asked_at } => {
            tasks.spawn(register(shared, Asker { identity, nonce, ttl_ms, asked_at }));
        }
        Call::Load => replace(reader, tasks.spawn(read::load(shared))),
        Call::Follow { after } => replace(reader, tasks.spawn(read::follow(shared, after))),
        Call::Append(append) => {
            tasks.spawn(append::append(shared, append));
        }
        Call::Renew { host, asked_at } => {
            tasks.spawn(renew::renew(shared, host, asked_at));
        }
        Call::Store(stored) => {
            tasks.spawn(store::store(shared, stored));
        }
    }
}

/// There is one reader: another one begins anew.
fn replace(reader: &mut Option<AbortHandle>, with: AbortHandle) {
    if let Some(before) = reader.replace(with) {
        before.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version("3.4.23"), [3, 4, 23]);
        assert_eq!(version("3.5.0-rc.1"), [3, 5, 0]);
        assert!(version("3.10.1") > [3, 4, 0] && version("3.3.25") < [3, 4, 0]);
        assert!(version("") < [3, 4, 0]);
    }

    #[test]
    fn leases_are_exact_from_the_versions_on_that_have_the_mended_lessor() {
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
