//! Connections that wait for a report, and connections that have not read theirs.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::calls::call::ConnId;
use crate::net::connection::OUTPUT_BYTES_MAX;
use crate::net::connections::Conns;
use canal_sys::clock;

/// A user with this many bytes of unread reports gets no further report.
const UNREAD_BYTES_PER_USER: usize = OUTPUT_BYTES_MAX;

/// The same limit for all users together.
const UNREAD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long a connection may read nothing of its report while other connections wait for the room
/// that the report takes.
const UNREAD_TIME: Duration = Duration::from_secs(2);

/// After spending this much time on reports in a turn, the daemon serves other calls.
pub(crate) const REPORT_TIME_PER_TURN: Duration = Duration::from_millis(5);

/// Connections that wait for a report, and connections that have not read theirs.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// The user that runs the daemon. Like root, it is exempt from the limit on the unread bytes of
    /// all users.
    own: u32,
    /// The connections that wait for a report: for each user, in the order of their calls.
    queues: BTreeMap<u32, VecDeque<ConnId>>,
    /// The user that received the last report.
    last: u32,
    unread: Vec<Unread>,
    /// The daemon builds no report before this time, because the last ones took long.
    rests_until: Option<Instant>,
    /// When to build the next reports, or to check the connections that have not read theirs.
    pub due: Option<Instant>,
}

/// A connection that has not read its whole report.
#[derive(Clone, Copy, Debug)]
struct Unread {
    id: ConnId,
    uid: u32,
    /// How many bytes were unread at the last check.
    left: usize,
    /// When the client was last seen to have read something.
    since: Instant,
}

impl Reports {
    pub(crate) fn new(own: u32) -> Self {
        Self { own, ..Self::default() }
    }

    pub(crate) fn add(&mut self, id: ConnId, uid: u32, unsent: usize) {
        self.queues.entry(uid).or_default().push_back(id);
        if unsent > 0 && self.unread.iter().all(|unread| unread.id != id) {
            self.unread.push(Unread { id, uid, left: unsent, since: clock::now() });
        }
    }

    /// Whether a connection waits for a report.
    #[cfg(test)]
    pub(crate) fn has(&self, id: ConnId) -> bool {
        self.queues.values().flatten().any(|other| *other == id)
    }

    /// Notes that a connection got a report, unless it has already read everything.
    pub(crate) fn sent(&mut self, conns: &Conns, id: ConnId) {
        if let Some(conn) = conns.peek(id).filter(|conn| conn.unsent() > 0) {
            let (uid, left) = (conn.peer.uid, conn.unsent());
            self.unread.push(Unread { id, uid, left, since: clock::now() });
        }
    }

    /// Begins to build reports in this turn. Returns the connections that take the room of others
    /// and read nothing for too long, or `None` if no report is due.
    pub(crate) fn begin(&mut self, conns: &Conns, now: Instant) -> Option<Vec<ConnId>> {
        let waits = !self.queues.is_empty();
        self.due = self.rests_until.filter(|until| waits && now < *until);
        if !waits || self.due.is_some() {
            return None;
        }
        self.look(conns, now);
        Some(self.stuck(now))
    }

    /// Ends the building of reports in this turn. After a long time, other calls get as much time
    /// as the reports took.
    pub(crate) fn end(&mut self, begun: Instant, took: Duration) {
        let tired = took >= REPORT_TIME_PER_TURN;
        self.rests_until = tired.then(|| begun + took + took);
        self.due = self.rests_until;
    }

    /// Schedules the next reports, after all output that clients accept was written. A client may
    /// already have read all output that other reports wait for, and the kernel sends no event for
    /// that.
    pub(crate) fn look_ahead(&mut self, conns: &Conns, now: Instant) {
        if self.queues.is_empty() || self.due.is_some() {
            return;
        }
        self.look(conns, now);
        let goes_on = self.find_next(conns).is_some();
        self.due = if goes_on { Some(now) } else { self.next_stuck() };
    }

    /// Forgets connections that are closed or have read everything, and notes which clients have
    /// read on.
    fn look(&mut self, conns: &Conns, now: Instant) {
        for queue in self.queues.values_mut() {
            queue.retain(|id| conns.peek(*id).is_some_and(|conn| conn.awaits_report()));
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.unread.retain_mut(|unread| {
            let left = conns.peek(unread.id).map_or(0, |conn| conn.unsent());
            if left < unread.left {
                (unread.left, unread.since) = (left, now);
            }
            left > 0
        });
    }

    fn unread_bytes(&self, of: impl Fn(u32) -> bool) -> usize {
        self.unread.iter().filter(|unread| of(unread.uid)).map(|unread| unread.left).sum()
    }

    /// Removes the next connection that gets a report.
    pub(crate) fn next(&mut self, conns: &Conns) -> Option<ConnId> {
        let (uid, at) = self.find_next(conns)?;
        self.last = uid;
        self.queues.get_mut(&uid)?.remove(at)
    }

    /// The user of the next connection that gets a report, and its position in the user's queue.
    /// Users take turns.
    fn find_next(&self, conns: &Conns) -> Option<(u32, usize)> {
        let is_full = self.unread_bytes(|_| true) >= UNREAD_BYTES_MAX;
        let after = self.last.saturating_add(1);
        let users = self.queues.range(after..).chain(self.queues.range(..after));
        users
            .filter(|(uid, _)| !is_full || [0, self.own].contains(*uid))
            .filter(|(uid, _)| self.unread_bytes(|of| of == **uid) < UNREAD_BYTES_PER_USER)
            .find_map(|(uid, queue)| {
                let has_read = |id: &ConnId| conns.peek(*id).is_some_and(|conn| conn.is_flushed());
                queue.iter().position(has_read).map(|at| (*uid, at))
            })
    }

    /// Connections whose unread reports take room that other connections wait for.
    fn in_the_way(&self) -> impl Iterator<Item = &Unread> {
        let is_full = self.unread_bytes(|_| true) >= UNREAD_BYTES_MAX;
        self.unread.iter().filter(move |unread| {
            let uid = unread.uid;
            let has_much = || self.unread_bytes(|of| of == uid) >= UNREAD_BYTES_PER_USER;
            let of_user = self.queues.get(&uid).filter(|_| has_much()).into_iter();
            let of_all = self.queues.values().filter(|_| is_full);
            of_user.chain(of_all).flatten().any(|id| *id != unread.id)
        })
    }

    /// The connections of [`Self::in_the_way`] that have read nothing for too long.
    fn stuck(&self, now: Instant) -> Vec<ConnId> {
        let stuck = self.in_the_way().filter(|unread| unread.since + UNREAD_TIME <= now);
        stuck.map(|unread| unread.id).collect()
    }

    /// When the next connection of [`Self::in_the_way`] will have read nothing for too long.
    fn next_stuck(&self) -> Option<Instant> {
        self.in_the_way().map(|unread| unread.since + UNREAD_TIME).min()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use slotmap::KeyData;

    use super::*;
    use crate::net::call_state::CallState;
    use crate::net::connections::Conns;
    use canal_sys::peer::Credentials;

    /// Connections of these users that await a report, in this order.
    fn waiting(users: &[u32]) -> (Conns, Reports, Vec<ConnId>, Vec<UnixStream>) {
        let mut conns = Conns::new().unwrap();
        let mut reports = Reports::new(1);
        let (mut ids, mut theirs) = (Vec::new(), Vec::new());
        for uid in users {
            let (ours, other) = UnixStream::pair().unwrap();
            let peer = Credentials { pid: 1, uid: *uid, gid: 0 };
            let (id, _) = conns.open(ours.into(), peer, 0, None);
            conns.set_state(id, CallState::Report);
            reports.add(id, *uid, 0);
            ids.push(id);
            theirs.push(other);
        }
        (conns, reports, ids, theirs)
    }

    fn all_served(conns: &Conns, reports: &mut Reports) -> Vec<ConnId> {
        std::iter::from_fn(|| reports.next(conns)).collect()
    }

    /// A connection that is not among those that await a report.
    fn other(number: u64) -> ConnId {
        KeyData::from_ffi((number << 32) | 1).into()
    }

    #[test]
    fn reports_go_to_users_in_turn_and_to_each_in_arrival_order() {
        let (conns, mut reports, ids, _peers) = waiting(&[7, 7, 7, 9, 7, 8, 9]);
        assert_eq!(
            all_served(&conns, &mut reports),
            [0, 5, 3, 1, 6, 2, 4].map(|at: usize| ids[at])
        );
    }

    #[test]
    fn a_user_with_many_unread_replies_waits_and_other_users_do_not() {
        let (conns, mut reports, ids, _peers) = waiting(&[7, 8]);
        let since = Instant::now();
        let left = UNREAD_BYTES_PER_USER;
        reports.unread.push(Unread { id: other(5), uid: 7, left, since });
        assert_eq!(all_served(&conns, &mut reports), [ids[1]]);
        reports.unread[0].left -= 1;
        assert_eq!(all_served(&conns, &mut reports), [ids[0]]);
    }

    #[test]
    fn with_too_much_unread_in_all_only_permitted_users_get_more() {
        let (conns, mut reports, ids, _peers) = waiting(&[7, 0]);
        let since = Instant::now();
        reports.unread.push(Unread { id: other(5), uid: 9, left: UNREAD_BYTES_MAX, since });
        assert_eq!(reports.next(&conns), Some(ids[1]));
        assert_eq!(reports.next(&conns), None);
    }

    #[test]
    fn a_client_that_has_not_read_its_last_reply_gets_no_report_yet() {
        let (mut conns, mut reports, ids, _peers) = waiting(&[7, 7]);
        conns.get(ids[0]).unwrap().progress(&"unread");
        assert_eq!(all_served(&conns, &mut reports), [ids[1]]);
        reports.add(ids[0], 7, conns.peek(ids[0]).unwrap().unsent());
        let noted = reports.unread.iter().map(|unread| unread.id).collect::<Vec<_>>();
        assert_eq!(noted, [ids[0]]);
    }

    #[test]
    fn a_client_that_reads_nothing_is_closed_only_when_another_needs_its_room() {
        let (mut conns, mut reports, ids, _peers) = waiting(&[7, 7]);
        let words = "x".repeat(UNREAD_BYTES_PER_USER);
        conns.get(ids[0]).unwrap().progress(&words);
        let begun = Instant::now();
        let left = conns.peek(ids[0]).unwrap().unsent();
        reports.unread.push(Unread { id: ids[0], uid: 7, left, since: begun });
        reports.look(&conns, begun + UNREAD_TIME);
        assert_eq!(reports.stuck(begun + UNREAD_TIME), [ids[0]]);
        assert_eq!(reports.next_stuck(), Some(begun + UNREAD_TIME));
        assert!(reports.stuck(begun + UNREAD_TIME / 2).is_empty());
        // The connection's own next report does not count, however long it waits.
        reports.queues.clear();
        reports.add(ids[0], 7, left);
        assert!(reports.stuck(begun + UNREAD_TIME).is_empty());
        assert_eq!(reports.next_stuck(), None);
        // A connection that has since read a part is not stuck.
        reports.add(ids[1], 7, 0);
        reports.unread[0].left += 1;
        reports.look(&conns, begun + UNREAD_TIME);
        assert!(reports.stuck(begun + UNREAD_TIME).is_empty());
        // Nor is a connection with few unread bytes, while all connections together do not have
        // many.
        reports.unread[0] =
            Unread { left: UNREAD_BYTES_PER_USER - 1, since: begun, ..reports.unread[0] };
        assert!(reports.stuck(begun + UNREAD_TIME).is_empty());
        let since = begun + UNREAD_TIME;
        reports.unread.push(Unread { id: other(9), uid: 9, left: UNREAD_BYTES_MAX, since });
        assert_eq!(reports.stuck(begun + UNREAD_TIME), [ids[0]]);
    }

    #[test]
    fn a_closed_connection_leaves_the_reply_queue() {
        let (mut conns, mut reports, ids, _peers) = waiting(&[7, 8]);
        conns.get(ids[0]).unwrap().close();
        conns.get(ids[0]).unwrap().progress(&"dropped");
        conns.flush();
        reports.look(&conns, Instant::now());
        assert_eq!(all_served(&conns, &mut reports), [ids[1]]);
        assert!(reports.unread.is_empty());
    }
}
