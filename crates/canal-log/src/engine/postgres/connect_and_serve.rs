//! The thread of the engine: keeps a session, and carries out calls.
//!
//! Invariant: a session whose era the log does not name only notes that era.

use std::cell::RefCell;
use std::convert::Infallible;
use std::time::Duration;

use tokio::time::timeout;

use super::error::{PostgresError, Result};
use super::session::{PATIENCE, Session};
use super::settings::url::Settings;
use crate::engine::engine_thread::Caller;
use crate::engine::{Answer, Call, Outage, Source};

/// The longest pause between attempts to connect.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How many times to try a call that the server rolls back.
const ATTEMPTS: u32 = 5;

/// Serves the caller, in one session after another. `table` is the database and the schema: other
/// ones would mean another table.
pub(super) async fn work(
    table: (Option<String>, String),
    label: String,
    mut source: Source,
    mut caller: Caller,
) -> Infallible {
    let known = RefCell::default();
    let connect = async |caller: &Caller| {
        // The address and the files that it names, as they are now.
        let settings = Settings::parse(&source(), &label)?;
        if settings.table() != table {
            return Err(Outage::moved());
        }
        let mut session = Session::open(&settings, &caller.renew_by).await?;
        session.known = known.take();
        Ok(session)
    };
    let serve = async |mut session: Session, caller: &mut Caller| {
        let Err(error) = serve(&mut session, caller).await;
        known.replace(std::mem::take(&mut session.known));
        session.ended_by(error).await.into()
    };
    caller.serve_on(PAUSE_MAX, connect, serve).await
}

/// Carries out calls, and reads what the server announces, until the session ends.
async fn serve(session: &mut Session, caller: &mut Caller) -> Result<Infallible> {
    while let Some(begun) = session.begun() {
        in_time(session.note(begun)).await?;
    }
    loop {
        let is_behind = session.is_behind();
        tokio::select! {
            call = caller.call() => carry_out(session, caller, call).await?,
            announced = session.announced.recv() => {
                let notification = announced.ok_or_else(PostgresError::closed)?;
                if let Some(answer) = session.notified(&notification) {
                    caller.answer(answer);
                }
            }
            () = std::future::ready(()), if is_behind => {}
        }
        if session.is_behind()
            && let Some(answer) = in_time(session.page()).await?
        {
            caller.answer(answer);
        }
    }
}

async fn carry_out(session: &mut Session, caller: &Caller, call: Call) -> Result<()> {
    if let Call::Attend { listens } = call {
        return attend(session, caller, listens).await;
    }
    let mut attempts = 1;
    let answers = loop {
        match in_time(attempt(session, &call)).await {
            Err(PostgresError::Undone(why)) if attempts < ATTEMPTS => {
                tracing::debug!("asking again: {why}");
                // Only the transaction of several messages is still open.
                let roll_back = session.client.batch_execute("ROLLBACK");
                in_time(async { Ok(roll_back.await?) }).await?;
                attempts += 1;
            }
            other => break other?,
        }
    };
    answers.into_iter().for_each(|answer| caller.answer(answer));
    Ok(())
}

/// Starts or stops the announcements, then reads everything that is in the log. In this order, no
/// batch is missed.
async fn attend(session: &mut Session, caller: &Caller, listens: bool) -> Result<()> {
    in_time(session.listen(listens)).await?;
    loop {
        if let Some(answer) = in_time(session.page()).await? {
            caller.answer(answer);
        }
        if !session.is_behind() {
            caller.answer(Answer::Attends { listens });
            return Ok(());
        }
    }
}

async fn attempt(session: &mut Session, call: &Call) -> Result<Vec<Answer>> {
    let answer = match call {
        Call::Append(append) => return session.append(append).await,
        Call::Register(registration) => session.register(registration).await?,
        Call::Withdraw { host } => session.withdraw(*host).await?,
        Call::Load => session.load().await?,
        Call::Follow { after } => session.follow(*after).await?,
        Call::Renew { host, asked_at } => session.renew(*host, *asked_at).await?,
        Call::Attend { .. } => return Ok(Vec::new()),
        Call::Store(stored) => session.store(stored).await?,
    };
    Ok(vec![answer])
}

async fn in_time<T>(asked: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(PostgresError::silent()))
}
