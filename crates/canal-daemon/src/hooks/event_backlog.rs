//! The events that wait for a hook, and the rate at which those of one user are taken.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The most waiting events of one user.
const USER_MAX: usize = 32;

/// The most waiting events in total.
const ALL_MAX: usize = 512;

/// The number of a user's events that are taken without a pause, if none was taken for a while.
const BURST: u32 = 10;

/// After a burst, the time between two events of a user.
const PERIOD: Duration = Duration::from_secs(6);

/// The events that wait for a hook.
#[derive(Debug)]
pub(crate) struct Backlog<E> {
    users: BTreeMap<u32, OfUser<E>>,
    waiting: usize,
    /// The number of events that were taken.
    taken: u64,
    dropped: u64,
}

#[derive(Debug)]
struct OfUser<E> {
    waiting: VecDeque<E>,
    /// The number of all events taken when its last one was, or when it was added.
    turn: u64,
    /// The time at which the user's taken events would be used up, at one event per period.
    used_until: Option<Instant>,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<E> {
    /// Handle this event. The number counts the events dropped since the previous one.
    Event(E, u64),
    /// Do nothing before this time.
    At(Instant),
    /// No event waits.
    Nothing,
}

impl<E> Default for Backlog<E> {
    fn default() -> Self {
        Self { users: BTreeMap::new(), waiting: 0, taken: 0, dropped: 0 }
    }
}

impl<E> OfUser<E> {
    /// When the next event of the user may be taken; `None` if it may be taken now.
    fn may_at(&self, now: Instant) -> Option<Instant> {
        self.used_until?.checked_sub(PERIOD * (BURST - 1)).filter(|at| *at > now)
    }
}

impl<E> Backlog<E> {
    /// Whether there is room for another event of this user. If not, counts it as dropped.
    pub(crate) fn has_room(&mut self, uid: u32) -> bool {
        let of_user = self.users.get(&uid).map_or(0, |it| it.waiting.len());
        let most = || self.users.values().map(|it| it.waiting.len()).max().unwrap_or(0);
        let has_room = of_user < USER_MAX && (self.waiting < ALL_MAX || of_user + 1 < most());
        self.dropped += u64::from(!has_room);
        has_room
    }

    /// Adds an event of a user. If too many wait, drops one: this one, or the latest event of the
    /// user with the most events.
    pub(crate) fn push(&mut self, uid: u32, event: E) {
        if !self.has_room(uid) {
            return;
        }
        if self.waiting >= ALL_MAX
            && let Some(most) = self.users.values_mut().max_by_key(|it| it.waiting.len())
            && most.waiting.pop_back().is_some()
        {
            self.waiting -= 1;
            self.dropped += 1;
        }
        let new = OfUser { waiting: VecDeque::new(), turn: self.taken, used_until: None };
        let user = self.users.entry(uid).or_insert(new);
        user.waiting.push_back(event);
        self.waiting += 1;
    }

    /// Takes the next event.
    pub(crate) fn take(&mut self, now: Instant) -> Next<E> {
        self.users.retain(|_, user| {
            !user.waiting.is_empty() || user.used_until.is_some_and(|until| until > now)
        });
        let waiting = self.users.values_mut().filter(|it| !it.waiting.is_empty());
        let Some(user) = waiting.min_by_key(|it| (it.may_at(now), it.turn)) else {
            return Next::Nothing;
        };
        if let Some(at) = user.may_at(now) {
            return Next::At(at);
        }
        let Some(event) = user.waiting.pop_front() else { return Next::Nothing };
        user.used_until = Some(user.used_until.map_or(now, |until| until.max(now)) + PERIOD);
        self.taken += 1;
        user.turn = self.taken;
        self.waiting -= 1;
        Next::Event(event, std::mem::take(&mut self.dropped))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All events that can be taken at a time, and the next step after them.
    fn taken(backlog: &mut Backlog<u32>, now: Instant) -> (Vec<(u32, u64)>, Next<u32>) {
        let mut events = Vec::new();
        loop {
            match backlog.take(now) {
                Next::Event(event, dropped) => events.push((event, dropped)),
                next => return (events, next),
            }
        }
    }

    #[test]
    fn users_take_turns_and_each_keeps_its_order() {
        let (mut backlog, now) = (Backlog::default(), Instant::now());
        for event in [10, 11, 12] {
            backlog.push(1, event);
        }
        backlog.push(3, 30);
        backlog.push(2, 20);
        backlog.push(2, 21);
        let (events, next) = taken(&mut backlog, now);
        let events: Vec<_> = events.into_iter().map(|(event, _)| event).collect();
        assert_eq!(events, [10, 20, 30, 11, 21, 12]);
        assert_eq!(next, Next::Nothing);
        assert!(backlog.is_empty());
    }

    #[test]
    fn a_user_with_many_events_has_a_burst_and_then_a_rate() {
        let (mut backlog, now) = (Backlog::default(), Instant::now());
        (0..20).for_each(|event| backlog.push(1, event));
        let (events, next) = taken(&mut backlog, now);
        assert_eq!(events.len(), BURST as usize);
        assert_eq!(next, Next::At(now + PERIOD));
        backlog.push(2, 99);
        assert_eq!(backlog.take(now), Next::Event(99, 0), "another user does not wait for that");
        let (events, next) = taken(&mut backlog, now + PERIOD * 2);
        assert_eq!(events, [(10, 0), (11, 0)]);
        assert_eq!(next, Next::At(now + PERIOD * 3));
        let (events, next) = taken(&mut backlog, now + PERIOD * 1000);
        assert_eq!((events.len(), next), (8, Next::Nothing));
        assert_eq!(backlog.take(now + PERIOD * 2000), Next::Nothing);
        assert!(backlog.users.is_empty(), "the backlog keeps nothing for a quiet user");
    }

    #[test]
    fn what_is_dropped_is_told_with_the_next_event() {
        let (mut backlog, now) = (Backlog::default(), Instant::now());
        let many = u32::try_from(USER_MAX).unwrap() + 7;
        (0..many).for_each(|event| backlog.push(1, event));
        assert_eq!(backlog.waiting, USER_MAX);
        assert_eq!(backlog.take(now), Next::Event(0, 7));
        assert_eq!(backlog.take(now), Next::Event(1, 0));
    }

    #[test]
    fn when_all_is_full_those_with_the_most_make_room() {
        let mut backlog = Backlog::default();
        for uid in 0..u32::try_from(ALL_MAX / USER_MAX).unwrap() {
            (0..USER_MAX).for_each(|_| backlog.push(uid, uid));
        }
        assert_eq!(backlog.waiting, ALL_MAX);
        backlog.push(1000, 1000);
        assert_eq!((backlog.waiting, backlog.dropped), (ALL_MAX, 1));
        assert_eq!(backlog.users[&1000].waiting.len(), 1, "a user with nothing is heard");
        assert!(!backlog.has_room(2), "a user with as many as any other makes no room");
        let lens: Vec<usize> = backlog.users.values().map(|it| it.waiting.len()).collect();
        assert_eq!(lens.iter().sum::<usize>(), ALL_MAX);
    }
}
