//! The programs of simulated processes: canal's commands as the daemon sees them, and the commands
//! that they run under a lock.

use std::os::fd::AsFd;
use std::path::Path;

use fastrand::Rng;
use serde_json::{Value, json};

use super::conversation::{Conversation, Word};
use super::plan::{How, Plan};
use super::received_grants::{ReceivedGrant, ReceivedGrantId, ReceivedGrants, Until};
use crate::sim::machine::{Machine, Serial};
use canal_core::Tag;
use canal_protocol::{
    Acquire, DeadlinePageFound, DeadlinePageQuery, Grant, Handle, LeaseAsked, Release, Renew,
    RequestTag, Wrapper,
};
use canal_sys::deadline_page::Reader;

/// How long a client waits for an overdue answer of the daemon, in milliseconds.
const ANSWER_MS: u64 = 5_000;

/// How long a client keeps asking after the end of its wait, in milliseconds.
const RETRY_MS: u64 = 10_000;

/// The surroundings of a running program.
pub(in crate::sim) struct Around<'a> {
    pub(in crate::sim) rng: &'a mut Rng,
    /// True time, in milliseconds.
    pub(in crate::sim) now_ms: u64,
    pub(in crate::sim) host: usize,
    pub(in crate::sim) machine: &'a Machine,
    pub(in crate::sim) socket: &'a Path,
    /// Whether an engine keeps the table, so that locks can be lost.
    pub(in crate::sim) over_engine: bool,
    /// The time from TERM to KILL, in milliseconds.
    pub(in crate::sim) grace_ms: u64,
    /// Whether commands end soon, so that the run can end.
    pub(in crate::sim) is_late: bool,
    /// The time since which a daemon runs without a stop.
    pub(in crate::sim) daemon_since: Option<u64>,
    pub(in crate::sim) received_grants: &'a mut ReceivedGrants,
    /// The programs that this step started.
    pub(in crate::sim) started: Vec<Program>,
    /// How many requests the daemon refused, by reason.
    pub(in crate::sim) refused: &'a mut std::collections::BTreeMap<String, u64>,
}

/// The program of a process.
#[derive(Debug)]
pub(in crate::sim) struct Program {
    pub(in crate::sim) serial: Serial,
    doing: Doing,
    conversation: Option<Conversation>,
    /// When it connects again.
    connects_at: u64,
    /// The time since which the daemon owes it an answer.
    owed_since: Option<u64>,
    /// The time up to which it has read all messages of the daemon, by the machine's clock.
    heard_until: u64,
    /// The hold of its command over an engine.
    supervised: Option<Supervised>,
}

/// The state of `canal run` while its command holds a lock over an engine.
#[derive(Debug)]
struct Supervised {
    page: Reader,
    tag: Tag,
    token: u64,
    received: Option<ReceivedGrantId>,
    /// The processes that the command started.
    below: Vec<Serial>,
    /// `canal run` is stopped until this time, but its command is not.
    stopped_until: u64,
    /// Whether the command continues after TERM.
    ignores_term: bool,
}

/// The current activity of a program.
#[derive(Debug)]
enum Doing {
    /// Asks for a lock, and waits for it.
    Asks(Box<Asking>),
    /// Confirms a grant that arrived at this time.
    Confirms(Box<Asking>, Box<Grant>, Option<Reader>, u64),
    /// Keeps a lease.
    Keeps(Lease),
    /// Has released something, and waits for the answer.
    Releases(Handle),
    /// Waits for this child, then works for this time.
    Waits(Serial, u64),
    /// Works until this time.
    Works(u64),
    /// Has sent a query about the table.
    Looks(&'static str, Value),
}

#[derive(Debug)]
struct Asking {
    plan: Plan,
    tag: Tag,
    /// The end of the wait, by the machine's clock.
    until: Option<u64>,
    /// The frames around it. The environment names the last of them.
    frames: Vec<String>,
    /// The process that will own the lock, if it is another one.
    owner: Option<Serial>,
}

#[derive(Debug)]
struct Lease {
    handle: Handle,
    ttl_ms: u64,
    received: ReceivedGrantId,
    works_until: u64,
    renews_at: u64,
    /// The time of an unanswered renewal.
    sent_at: Option<u64>,
}

impl Around<'_> {
    /// Whether a command that works until this time ends now.
    fn is_over(&mut self, until: u64) -> bool {
        self.now_ms >= until || self.is_late && self.rng.u8(0..4) == 0
    }
}

impl Program {
    fn new(serial: Serial, doing: Doing) -> Self {
        Self {
            serial,
            doing,
            conversation: None,
            connects_at: 0,
            owed_since: None,
            heard_until: 0,
            supervised: None,
        }
    }

    /// Starts the programs of a plan. Without a parent, a shell or cron starts them.
    pub(in crate::sim) fn start(
        around: &mut Around<'_>,
        parent: Option<Serial>,
        plan: Plan,
        frames: Vec<String>,
    ) {
        let machine = around.machine;
        let tag = Tag(around.rng.u128(1..));
        let until = plan.wait_ms.map(|wait_ms| machine.clock() + wait_ms);
        let mut asking = Asking { plan, tag, until, frames, owner: None };
        let parent = match asking.plan.how {
            How::ForProcess => {
                let script = machine.start(parent, false);
                asking.owner = Some(script);
                asking.owner
            }
            _ => parent,
        };
        let client = machine.start(parent, true);
        if let Some(script) = asking.owner {
            let doing = Doing::Waits(client, asking.plan.work_ms);
            around.started.push(Self::new(script, doing));
        }
        around.started.push(Self::new(client, Doing::Asks(Box::new(asking))));
    }

    /// Starts a program that sends a query about the table.
    pub(in crate::sim) fn look(around: &mut Around<'_>, method: &'static str, parameters: Value) {
        let client = around.machine.start(None, true);
        around.started.push(Self::new(client, Doing::Looks(method, parameters)));
    }

    /// Whether it keeps or asks for a lease. Such a program relies on never being stopped.
    pub(in crate::sim) fn has_lease(&self) -> bool {
        match &self.doing {
            Doing::Asks(asking) | Doing::Confirms(asking, ..) => {
                matches!(asking.plan.how, How::Lease(_))
            }
            Doing::Keeps(_) | Doing::Releases(_) => true,
            _ => false,
        }
    }

    /// Stops `canal run`, but not its command, if it supervises one. Returns the received grant of
    /// the command.
    pub(in crate::sim) fn stop_supervisor(&mut self, until: u64) -> Option<ReceivedGrantId> {
        let supervised = self.supervised.as_mut()?;
        supervised.stopped_until = until;
        supervised.received
    }

    /// Runs one step.
    ///
    /// # Errors
    /// The daemon broke a promise.
    pub(in crate::sim) fn step(&mut self, around: &mut Around<'_>) -> Result<(), String> {
        if !self.supervise(around) {
            return Ok(());
        }
        match &mut self.doing {
            Doing::Works(until) => {
                if around.is_over(*until) {
                    around.machine.end(self.serial);
                }
                Ok(())
            }
            Doing::Waits(child, then) => {
                if !around.machine.lives(*child) {
                    self.doing = Doing::Works(around.now_ms + *then);
                }
                Ok(())
            }
            _ => self.talk(around),
        }
    }

    /// Ends the command if its lock is lost or about to be. Returns whether it continues.
    fn supervise(&mut self, around: &mut Around<'_>) -> bool {
        let Some(supervised) = &self.supervised else { return true };
        if around.now_ms < supervised.stopped_until {
            return true;
        }
        let (now, state) = (around.machine.clock(), supervised.page.state());
        let lost_at = state.lost.map(|lost| lost.at + around.grace_ms);
        let is_killed = now >= state.deadline.kill_at || lost_at.is_some_and(|at| now >= at);
        // A command that receives TERM ends after a while, or not at all.
        let is_asked = state.is_over(now) && !supervised.ignores_term;
        if is_killed || is_asked && around.rng.u8(0..4) == 0 {
            supervised.below.iter().for_each(|process| around.machine.end(*process));
            around.machine.end(self.serial);
            return false;
        }
        if supervised.page.is_left() {
            self.look_for_page(around);
        }
        true
    }

    /// Asks the next daemon for its deadline page.
    fn look_for_page(&mut self, around: &mut Around<'_>) {
        let Some(supervised) = &mut self.supervised else { return };
        let Some(conversation) = &mut self.conversation else {
            if around.now_ms < self.connects_at {
                return;
            }
            self.connects_at = around.now_ms + around.rng.u64(10..60);
            self.conversation = Conversation::open(around.machine, self.serial, around.socket);
            if let Some(conversation) = &mut self.conversation {
                let query =
                    DeadlinePageQuery { tag: supervised.tag, token: Some(supervised.token) };
                conversation.send("DeadlinePage", &query, false, &[]);
            }
            return;
        };
        match conversation.next() {
            None | Some(Word::Progress) => return,
            Some(Word::Reply(found)) => {
                let found: DeadlinePageFound = serde_json::from_value(found).unwrap();
                let mut fds = conversation.fds.drain(..);
                let (page, line) = (fds.next(), fds.next());
                assert!(found.deadline_fd < found.liveness_fd);
                supervised.page = Reader::open(page.unwrap(), line.unwrap()).unwrap();
            }
            Some(Word::Failure(..) | Word::Closed) => {}
        }
        self.conversation = None;
    }

    /// Connects and sends its messages if necessary, and reads those of the daemon.
    fn talk(&mut self, around: &mut Around<'_>) -> Result<(), String> {
        if self.conversation.is_none() && !self.connect(around) {
            return Ok(());
        }
        self.speak(around);
        while let Some(word) = self.conversation.as_mut().and_then(Conversation::next) {
            tracing::trace!(process = self.serial, ?word, "a message of the daemon");
            match word {
                Word::Progress => self.owed_since = None,
                Word::Closed => {
                    self.hang_up(around);
                    return Ok(());
                }
                Word::Failure(name, _) if name == "Stopping" => {
                    self.hang_up(around);
                    return Ok(());
                }
                Word::Reply(reply) => {
                    self.owed_since = None;
                    self.hear(around, reply)?;
                }
                Word::Failure(name, failure) => {
                    self.owed_since = None;
                    self.fail(around, &name, &failure);
                }
            }
            if !around.machine.lives(self.serial) {
                return Ok(());
            }
        }
        self.heard_until = around.machine.clock();
        self.check_silence(around)
    }

    /// Connects if necessary. Returns whether it has a connection now.
    fn connect(&mut self, around: &mut Around<'_>) -> bool {
        if around.now_ms < self.connects_at {
            return false;
        }
        self.conversation = Conversation::open(around.machine, self.serial, around.socket);
        if self.conversation.is_some() {
            return self.greet(around);
        }
        self.hang_up(around);
        false
    }

    /// Sends the first call of a new connection. Returns whether there is something to send.
    fn greet(&mut self, around: &mut Around<'_>) -> bool {
        let Some(conversation) = &mut self.conversation else { return false };
        match &self.doing {
            Doing::Asks(asking) => {
                let owner = asking.owner.map(|owner| around.machine.pidfd(owner));
                let fds: Vec<_> = match &owner {
                    Some(Ok(pidfd)) => vec![pidfd.as_fd()],
                    // The intended owner of the lock is gone.
                    Some(Err(_)) => {
                        around.machine.end(self.serial);
                        return false;
                    }
                    None => Vec::new(),
                };
                let acquire = asking.on_wire(around.machine.clock(), around.over_engine);
                conversation.send("Acquire", &acquire, true, &fds);
            }
            Doing::Confirms(asking, ..) => {
                conversation.send("Confirm", &RequestTag { tag: asking.tag }, false, &[]);
            }
            Doing::Looks(method, parameters) => conversation.send(method, parameters, false, &[]),
            Doing::Releases(handle) => {
                let release = Release { handle: Some(*handle), ..Release::default() };
                conversation.send("Release", &release, false, &[]);
            }
            Doing::Keeps(_) | Doing::Waits(..) | Doing::Works(_) => return true,
        }
        self.owed_since = Some(around.now_ms);
        true
    }

    /// Sends a renewal that is due.
    fn speak(&mut self, around: &mut Around<'_>) {
        let Doing::Keeps(lease) = &mut self.doing else { return };
        if around.is_over(lease.works_until) {
            let (received, handle) = (lease.received, lease.handle);
            around.received_grants.end(received);
            if around.rng.bool() {
                around.machine.end(self.serial);
            } else {
                self.doing = Doing::Releases(handle);
                self.conversation = None;
            }
            return;
        }
        let is_due = lease.sent_at.is_none() && around.now_ms >= lease.renews_at;
        if let Some(conversation) = self.conversation.as_mut().filter(|_| is_due) {
            conversation.send(
                "Renew",
                &Renew { handle: lease.handle, note: None, ttl_ms: None },
                false,
                &[],
            );
            lease.sent_at = Some(around.now_ms);
            self.owed_since = Some(around.now_ms);
        }
    }

    fn hang_up(&mut self, around: &mut Around<'_>) {
        self.conversation = None;
        self.owed_since = None;
        self.connects_at = around.now_ms + around.rng.u64(10..60);
        if let Doing::Keeps(lease) = &mut self.doing {
            lease.sent_at = None;
        }
        let until = match &self.doing {
            Doing::Asks(asking) | Doing::Confirms(asking, ..) => asking.until,
            _ => None,
        };
        if until.is_some_and(|until| around.machine.clock() > until + RETRY_MS) {
            around.machine.end(self.serial);
        }
    }

    fn hear(&mut self, around: &mut Around<'_>, reply: Value) -> Result<(), String> {
        let Self { doing, serial, .. } = self;
        match doing {
            Doing::Asks(_) => {
                let grant: Grant = serde_json::from_value(reply).map_err(|it| it.to_string())?;
                self.granted(around, grant)
            }
            Doing::Confirms(..) => self.confirmed(around),
            Doing::Keeps(lease) => {
                let sent_at = lease.sent_at.take().ok_or("an answer to no renewal")?;
                let until = sent_at + with_margin(lease.ttl_ms);
                around.received_grants.get(lease.received).until = Until::Time(until);
                lease.renews_at = around.now_ms + lease.ttl_ms / 3;
                Ok(())
            }
            Doing::Releases(_) | Doing::Looks(..) => {
                around.machine.end(*serial);
                Ok(())
            }
            Doing::Waits(..) | Doing::Works(_) => Err("an answer to no call".to_owned()),
        }
    }

    fn granted(&mut self, around: &mut Around<'_>, grant: Grant) -> Result<(), String> {
        let Doing::Asks(asking) = std::mem::replace(&mut self.doing, Doing::Works(0)) else {
            return Err("a grant for a request that was not made".to_owned());
        };
        let fds = self.conversation.as_mut().map(|it| std::mem::take(&mut it.fds));
        let mut fds: Vec<_> = fds.unwrap_or_default().into_iter().map(Some).collect();
        let page = grant.deadline_fd.zip(grant.liveness_fd).map(|(page, line)| {
            let mut take = |at: u32| fds.get_mut(at as usize).and_then(Option::take).unwrap();
            Reader::open(take(page), take(line)).unwrap()
        });
        if matches!(asking.plan.how, How::ForProcess | How::Lease(_)) {
            self.doing = Doing::Confirms(asking, Box::new(grant), page, around.now_ms);
            self.greet(around);
            return Ok(());
        }
        let fifo = grant.children_fd.and_then(|at| fds.get_mut(at as usize)?.take());
        around.machine.with(self.serial, |process| {
            process.is_canal = false;
            process.hold = format!("{} {}", process.hold, asking.tag).trim().to_owned();
            process.fifos.extend(fifo);
        });
        // The command does not inherit the connection.
        self.conversation = None;
        let term_at = page.as_ref().map(|page| page.state().deadline.term_at);
        if term_at.is_some_and(|term_at| term_at <= self.heard_until) {
            return Err(format!(
                "a grant was told after its deadline: process {}, token {}, {term_at:?}",
                self.serial, grant.token
            ));
        }
        let clock = around.machine.clock();
        if page.as_ref().is_some_and(|page| page.state().is_over(clock)) {
            around.machine.end(self.serial);
            return Ok(());
        }
        let (tag, token) = (asking.tag, grant.token);
        let ignores_term = page.is_some() && around.rng.u8(0..3) == 0;
        self.supervised = page.map(|page| Supervised {
            page,
            tag,
            token,
            received: None,
            below: Vec::new(),
            stopped_until: 0,
            ignores_term,
        });
        let mut serials = vec![self.serial];
        if let How::WithChildren(extra_ms) = asking.plan.how {
            let background = around.machine.start(Some(self.serial), false);
            let doing = Doing::Works(around.now_ms + asking.plan.work_ms + extra_ms);
            serials.push(background);
            if let Some(supervised) = &mut self.supervised {
                supervised.below.push(background);
            }
            around.started.push(Self::new(background, doing));
        }
        let received = self.received(around, &asking, &grant, Until::Processes(serials))?;
        if let Some(supervised) = &mut self.supervised {
            supervised.received = Some(received);
        }
        let works_until = around.now_ms + asking.plan.work_ms;
        self.doing = Doing::Works(works_until);
        if let Some(inner) = asking.plan.inner {
            let mut frames = asking.frames;
            frames.push(grant.frame);
            Self::start(around, Some(self.serial), *inner, frames);
            let child = around.started.last().map_or(0, |program| program.serial);
            self.doing = Doing::Waits(child, asking.plan.work_ms);
            if let Some(supervised) = &mut self.supervised {
                supervised.below.push(child);
            }
        }
        Ok(())
    }

    fn received(
        &self,
        around: &mut Around<'_>,
        asking: &Asking,
        grant: &Grant,
        until: Until,
    ) -> Result<ReceivedGrantId, String> {
        around.received_grants.add(
            around.now_ms,
            ReceivedGrant {
                host: around.host,
                wants: asking.plan.wants.clone(),
                slots: grant
                    .keys
                    .iter()
                    .map(|key| key.slots.iter().map(|it| it.slot).collect())
                    .collect(),
                token: grant.token,
                session: grant.session.clone(),
                frame: grant.frame.clone(),
                enclosing: asking.frames.clone(),
                unwatched_until: if asking.owner.is_some() { u64::MAX } else { 0 },
                until,
            },
        )
    }

    fn confirmed(&mut self, around: &mut Around<'_>) -> Result<(), String> {
        let Doing::Confirms(asking, grant, page, at) =
            std::mem::replace(&mut self.doing, Doing::Works(0))
        else {
            return Ok(());
        };
        match (asking.plan.how, asking.owner) {
            (How::Lease(ttl_ms), _) => {
                // Its TTL restarts with the confirmation, which was sent later than this.
                let until = at + with_margin(ttl_ms);
                let received = self.received(around, &asking, &grant, Until::Time(until))?;
                self.doing = Doing::Keeps(Lease {
                    handle: asking.handle(),
                    ttl_ms,
                    received,
                    works_until: around.now_ms + asking.plan.work_ms * 3,
                    renews_at: around.now_ms + ttl_ms / 3,
                    sent_at: None,
                });
            }
            (_, Some(owner)) => {
                // Since the daemon confirmed it, the owner may have died, or lost the lock.
                let clock = around.machine.clock();
                let is_over = page.is_some_and(|page| page.state().is_over(clock));
                if around.machine.lives(owner) && !is_over {
                    self.received(around, &asking, &grant, Until::Processes(vec![owner]))?;
                }
                around.machine.end(self.serial);
            }
            _ => {}
        }
        Ok(())
    }

    fn fail(&mut self, around: &mut Around<'_>, name: &str, failure: &Value) {
        let reason = failure["reason"].as_str().unwrap_or_default();
        *around.refused.entry(format!("{name} {reason}")).or_default() += 1;
        if let Doing::Keeps(lease) = &self.doing {
            around.received_grants.end(lease.received);
        }
        around.machine.end(self.serial);
    }

    /// Checks that a running daemon answers in time.
    fn check_silence(&mut self, around: &Around<'_>) -> Result<(), String> {
        let until = match &self.doing {
            Doing::Asks(asking) => asking.until,
            _ => None,
        };
        if self.owed_since.is_none() && until.is_some_and(|it| around.machine.clock() > it) {
            self.owed_since = Some(around.now_ms);
        }
        let Some((owed, daemon)) = self.owed_since.zip(around.daemon_since) else { return Ok(()) };
        if around.now_ms > owed.max(daemon) + ANSWER_MS {
            return Err(format!(
                "a call is not answered: process {}, {:?}",
                self.serial, self.doing
            ));
        }
        Ok(())
    }
}

impl Asking {
    fn handle(&self) -> Handle {
        Handle::new(self.tag.0 ^ 1)
    }

    fn on_wire(&self, clock_ms: u64, over_engine: bool) -> Acquire {
        let left = |until: u64| match self.plan.wait_ms {
            Some(0) => 0,
            _ => until.saturating_sub(clock_ms).max(1),
        };
        let lease = match self.plan.how {
            How::Lease(ttl_ms) => Some(LeaseAsked { handle: self.handle(), ttl_ms }),
            _ => None,
        };
        let is_run = self.owner.is_none() && lease.is_none();
        Acquire {
            tag: self.tag,
            items: self.plan.wants.iter().map(super::plan::Want::on_wire).collect(),
            wait_ms: self.until.map(left),
            priority: self.plan.priority,
            command: "job".to_owned(),
            owner_fd: self.owner.map(|_| 0),
            with_children: matches!(self.plan.how, How::WithChildren(_)),
            frame: self.frames.last().cloned().filter(|_| lease.is_none()),
            lease,
            wrapper: is_run.then_some(if over_engine {
                Wrapper::Supervised
            } else {
                Wrapper::Exec
            }),
            ..Acquire::default()
        }
    }
}

/// Converts a time of the machine's clock, which may run fast, to true time.
fn with_margin(ms: u64) -> u64 {
    ms - ms / 100
}

/// A random query about the table.
pub(in crate::sim) fn question(rng: &mut Rng) -> (&'static str, Value) {
    match rng.u8(0..4) {
        0 => ("Graph", json!({})),
        1 => ("Status", json!({ "key": "a" })),
        _ => ("Status", json!({})),
    }
}
