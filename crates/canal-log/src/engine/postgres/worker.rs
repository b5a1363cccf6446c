//! The thread of the engine: keeps a session, and carries out calls.
//!
//! Invariant: the host receives one report of each loss of the server, and one of its return. Calls
//! made in between are discarded. A session whose era the log does not name only notes that era.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, timeout, timeout_at};

use super::error::PostgresError;
use super::event::WorkerEvent;
use super::session::connection::{PATIENCE, Session};
use super::session::era::{EraChange, Witness};
use super::settings::url::Settings;
use crate::engine::retry::RenewBy;
use crate::engine::{Answer, Call, Outage, Source};

/// The pauses between attempts to connect grow from the first to the second value.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A session that lasted this long resets the pause.
const STEADY: Duration = Duration::from_secs(10);

/// How often to try a call that the server rolls back.
const ATTEMPTS: u32 = 5;

/// The address of the server, as far as it is known.
pub(super) struct Endpoint {
    /// The database and the schema. Other ones would mean another table.
    table: (Option<String>, String),
    label: String,
    source: Source,
}

impl Endpoint {
    pub(super) fn new(settings: &Settings, source: Source, label: &str) -> Self {
        Self { table: table(settings), label: label.to_owned(), source }
    }

    /// The address and the files that it names, as they are now.
    fn settings(&mut self) -> Result<Settings, Outage> {
        let url = (self.source)()?;
        let settings = Settings::parse(&url, &self.label)
            .map_err(|error| Outage::refused(error.to_string(), None))?;
        if table(&settings) == self.table { Ok(settings) } else { Err(Outage::moved()) }
    }
}

fn table(settings: &Settings) -> (Option<String>, String) {
    (settings.config.get_dbname().map(str::to_owned), settings.schema.clone())
}

/// Serves until it receives `Quit`.
pub(super) async fn run(
    mut endpoint: Endpoint,
    renew_by: RenewBy,
    wake: UnboundedSender<WorkerEvent>,
    events: UnboundedReceiver<WorkerEvent>,
    answers: UnboundedSender<Answer>,
) {
    let mut thread = Thread { events, answers, said: None, nonces: BTreeMap::new(), witness: None };
    let mut pause = PAUSE_FIRST;
    for id in 0.. {
        let opened = match endpoint.settings() {
            Ok(settings) => {
                let opened = Session::open(id, &settings, &renew_by, &wake).await;
                opened.map_err(Outage::from)
            }
            Err(outage) => Err(outage),
        };
        let outage = match opened {
            Ok(session) => {
                let since = Instant::now();
                let Err(error) = thread.serve(session).await else { return };
                if since.elapsed() >= STEADY {
                    pause = PAUSE_FIRST;
                }
                error.into()
            }
            Err(outage) => outage,
        };
        thread.tell(outage);
        if !thread.wait(renew_by.pause(pause)).await {
            return;
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

struct Thread {
    events: UnboundedReceiver<WorkerEvent>,
    answers: UnboundedSender<Answer>,
    /// The last reason for the server's absence that was reported to the host.
    said: Option<Outage>,
    nonces: BTreeMap<u64, u128>,
    /// The known history of the server, kept between sessions.
    witness: Option<Witness>,
}

impl Thread {
    /// Carries out calls until the session ends; `Ok` if the thread should quit.
    async fn serve(&mut self, mut session: Session) -> Result<(), PostgresError> {
        session.nonces = std::mem::take(&mut self.nonces);
        session.witness = self.witness.take();
        if self.said.take().is_some() {
            if !self.forget() {
                return Ok(());
            }
            self.answer(Answer::Back);
        }
        let end = self.attend(&mut session).await;
        self.nonces = std::mem::take(&mut session.nonces);
        self.witness = session.witness.take();
        match end {
            Ok(End::Quit) => Ok(()),
            Ok(End::Closed) => Err(session.ended().await),
            Err(PostgresError::Away(_)) if session.client.is_closed() => Err(session.ended().await),
            Err(error) => Err(error),
        }
    }

    async fn attend(&mut self, session: &mut Session) -> Result<End, PostgresError> {
        let mut held = VecDeque::new();
        let mut begun = session.begun();
        self.tell_era(begun.as_ref());
        loop {
            let waiting = if begun.is_none() { held.pop_front() } else { None };
            let next = match waiting {
                Some(call) => Some(WorkerEvent::Call(call)),
                None => self.next(session.is_behind()).await,
            };
            match next {
                Some(WorkerEvent::Call(Call::NoteEra { before, era, body })) => {
                    begun = match begun.take() {
                        Some(it) if it.before == before && it.era == era => {
                            in_time(session.note(&it, &body)).await?;
                            session.begun()
                        }
                        // The call answers an earlier report, or its era was already noted.
                        other => other,
                    };
                    self.tell_era(begun.as_ref());
                }
                Some(WorkerEvent::Call(call)) if begun.is_some() => held.push_back(call),
                Some(WorkerEvent::Call(Call::Attend { listens })) => {
                    self.attend_to(session, listens).await?;
                }
                Some(WorkerEvent::Call(call)) => {
                    for answer in done(session, &call).await? {
                        self.answer(answer);
                    }
                }
                Some(WorkerEvent::Notified(notification)) => {
                    if let Some(answer) = session.notified(&notification) {
                        self.answer(answer);
                    }
                }
                Some(WorkerEvent::Ended(id)) if id == session.id => return Ok(End::Closed),
                Some(WorkerEvent::Ended(_)) | None => {}
                Some(WorkerEvent::Quit) => return Ok(End::Quit),
            }
            if session.is_behind()
                && let Some(answer) = in_time(session.page()).await?
            {
                self.answer(answer);
            }
        }
    }

    /// Starts or stops the announcements, then reads everything that is in the log. In this order,
    /// no batch is missed.
    async fn attend_to(
        &mut self,
        session: &mut Session,
        listens: bool,
    ) -> Result<(), PostgresError> {
        in_time(session.listen(listens)).await?;
        loop {
            if let Some(answer) = in_time(session.page()).await? {
                self.answer(answer);
            }
            if !session.is_behind() {
                break;
            }
        }
        self.answer(Answer::Attends { listens });
        Ok(())
    }

    /// Reports to the host an era that must be noted.
    fn tell_era(&self, begun: Option<&EraChange>) {
        if let Some(EraChange { before, era, may_lack }) = begun.cloned() {
            self.answer(Answer::NewEra { before, era, may_lack });
        }
    }

    /// The next event; `None` if there is none now and there is more to read.
    async fn next(&mut self, more: bool) -> Option<WorkerEvent> {
        match self.events.try_recv() {
            Ok(event) => Some(event),
            Err(TryRecvError::Disconnected) => Some(WorkerEvent::Quit),
            Err(TryRecvError::Empty) if more => None,
            Err(TryRecvError::Empty) => Some(self.events.recv().await.unwrap_or(WorkerEvent::Quit)),
        }
    }

    fn answer(&self, answer: Answer) {
        // If the receiver is gone, `Quit` is on its way.
        let _ = self.answers.send(answer);
    }

    /// Reports the outage to the host, unless it already has.
    fn tell(&mut self, outage: Outage) {
        tracing::debug!("the engine is unreachable: {}", outage.why);
        if outage.is_news(self.said.as_ref()) {
            self.answer(Answer::Away(outage.clone()));
            self.said = Some(outage);
        }
    }

    /// Discards pending calls; false if the thread should quit.
    fn forget(&mut self) -> bool {
        loop {
            match self.events.try_recv() {
                Ok(WorkerEvent::Quit) | Err(TryRecvError::Disconnected) => return false,
                Ok(_) => {}
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Waits, and discards calls in the meantime; false if the thread should quit.
    async fn wait(&mut self, pause: Duration) -> bool {
        let until = Instant::now() + jittered(pause);
        loop {
            match timeout_at(until, self.events.recv()).await {
                Ok(Some(WorkerEvent::Quit) | None) => return false,
                Ok(Some(_)) => {}
                Err(_) => return true,
            }
        }
    }
}

/// Why a session without errors ends.
enum End {
    Quit,
    Closed,
}

/// Carries out a call, and repeats it if the server rolls it back.
async fn done(session: &mut Session, call: &Call) -> Result<Vec<Answer>, PostgresError> {
    for _ in 1..ATTEMPTS {
        match in_time(attempt(session, call)).await {
            Err(PostgresError::Undone(why)) => tracing::debug!("asking again: {why}"),
            other => return other,
        }
    }
    in_time(attempt(session, call)).await
}

async fn attempt(session: &mut Session, call: &Call) -> Result<Vec<Answer>, PostgresError> {
    let answer = match call {
        Call::Append(append) => return session.append(append).await,
        Call::Register { identity, nonce, ttl_ms, asked_at } => {
            session.register(identity, *nonce, *ttl_ms, *asked_at).await?
        }
        Call::Withdraw { host } => session.withdraw(*host).await?,
        Call::Load => session.load().await?,
        Call::Follow { after } => session.follow(*after).await?,
        Call::Renew { host, asked_at } => session.renew(*host, *asked_at).await?,
        // There is no era left to note, and the loop attends.
        Call::NoteEra { .. } | Call::Attend { .. } => return Ok(Vec::new()),
        Call::Store(stored) => session.store(stored).await?,
    };
    Ok(vec![answer])
}

async fn in_time<T>(
    asked: impl Future<Output = Result<T, PostgresError>>,
) -> Result<T, PostgresError> {
    timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(PostgresError::silent()))
}

/// Slightly less than `pause`, so that hosts that lost the server together do not all return at
/// once.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0];
    // Without random numbers, the pause is merely not spread.
    let _ = getrandom::fill(&mut byte);
    pause.mul_f64(1.0 - f64::from(byte[0]) / 512.0)
}
