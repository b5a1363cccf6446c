//! Connections that wait for a report, and connections that have not read theirs.

use std::time::{Duration, Instant};

use crate::calls::call::ConnId;
use crate::net::all_connections::{Conns, in_turns};
use crate::net::call_state::Subject;
use crate::net::connection::OUTPUT_BYTES_MAX;
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

/// The connections that have not read their reports, and whether others get one.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// The user that runs the daemon. Like root, it is exempt from the limit on the unread bytes of
    /// all users.
    own: u32,
    /// The user that received the last report.
    last: u32,
    unread: Vec<Unread>,
    /// The daemon builds no report before this time, because the last ones took long.
    rests_until: Option<Instant>,
    /// When to build the next reports, or to check the connections that have not read theirs.
    pub due: Option<Instant>,
}

/// The connections that wait for a report, in the order in which they asked for it, each with its
/// user and whether that user comes after the others.
type Waiting = Vec<((bool, u32), ConnId)>;

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

    /// Notes that a connection got a report, unless it has already read everything.
    pub(crate) fn sent(&mut self, conns: &Conns, id: ConnId) {
        let Some(conn) = conns.peek(id) else { return };
        let (uid, left) = (conn.peer.uid, conn.unsent());
        self.last = uid;
        if left > 0 {
            self.unread.push(Unread { id, uid, left, since: clock::now() });
        }
    }

    /// Begins to build reports in this turn. Returns the connections that wait for one, in turns,
    /// and those that take the room of others and read nothing for too long. `None` if no report is
    /// due.
    pub(crate) fn begin(
        &mut self,
        conns: &Conns,
        now: Instant,
    ) -> Option<(Vec<ConnId>, Vec<ConnId>)> {
        let waits = conns.waits(Subject::Report).next().is_some();
        self.due = self.rests_until.filter(|until| waits && now < *until);
        if !waits || self.due.is_some() {
            return None;
        }
        let waiting = self.look(conns, now);
        let stuck = self.stuck(&waiting, now);
        Some((in_turns(waiting.into_iter()), stuck))
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
        if self.due.is_some() || conns.waits(Subject::Report).next().is_none() {
            return;
        }
        let waiting = self.look(conns, now);
        let goes_on = waiting.iter().any(|(_, id)| self.may_get(conns, *id));
        self.due = if goes_on { Some(now) } else { self.next_stuck(&waiting) };
    }

    fn waiting(&self, conns: &Conns) -> Waiting {
        let waiting = conns.those(Subject::Report).into_iter();
        let waiting = waiting.filter_map(|id| Some((conns.peek(id)?.peer.uid, id)));
        waiting.map(|(uid, id)| ((uid <= self.last, uid), id)).collect()
    }

    /// Forgets connections that are closed or have read everything, and notes which clients have
    /// read on. Returns the connections that wait for a report.
    fn look(&mut self, conns: &Conns, now: Instant) -> Waiting {
        let waiting = self.waiting(conns);
        for ((_, uid), id) in &waiting {
            let left = conns.peek(*id).map_or(0, |conn| conn.unsent());
            if left > 0 && self.unread.iter().all(|unread| unread.id != *id) {
                self.unread.push(Unread { id: *id, uid: *uid, left, since: now });
            }
        }
        self.unread.retain_mut(|unread| {
            let left = conns.peek(unread.id).map_or(0, |conn| conn.unsent());
            if left < unread.left {
                (unread.left, unread.since) = (left, now);
            }
            left > 0
        });
        waiting
    }

    fn unread_bytes(&self, of: impl Fn(u32) -> bool) -> usize {
        self.unread.iter().filter(|unread| of(unread.uid)).map(|unread| unread.left).sum()
    }

    fn is_full(&self) -> bool {
        self.unread_bytes(|_| true) >= UNREAD_BYTES_MAX
    }

    fn has_much(&self, uid: u32) -> bool {
        self.unread_bytes(|of| of == uid) >= UNREAD_BYTES_PER_USER
    }

    /// Whether a connection that waits for a report may get it now.
    pub(crate) fn may_get(&self, conns: &Conns, id: ConnId) -> bool {
        conns.peek(id).is_some_and(|conn| {
            let uid = conn.peer.uid;
            let is_exempt = [0, self.own].contains(&uid);
            conn.is_flushed() && !self.has_much(uid) && (is_exempt || !self.is_full())
        })
    }

    /// Connections whose unread reports take room that other connections wait for.
    fn in_the_way(&self, waiting: &Waiting) -> impl Iterator<Item = &Unread> {
        let is_full = self.is_full();
        self.unread.iter().filter(move |unread| {
            let has_much = self.has_much(unread.uid);
            waiting.iter().any(|((_, uid), id)| {
                *id != unread.id && (is_full || has_much && *uid == unread.uid)
            })
        })
    }

    /// The connections of [`Self::in_the_way`] that have read nothing for too long.
    fn stuck(&self, waiting: &Waiting, now: Instant) -> Vec<ConnId> {
        let stuck = self.in_the_way(waiting).filter(|unread| unread.since + UNREAD_TIME <= now);
        stuck.map(|unread| unread.id).collect()
    }

    /// When the next connection of [`Self::in_the_way`] will have read nothing for too long.
    fn next_stuck(&self, waiting: &Waiting) -> Option<Instant> {
        self.in_the_way(waiting).map(|unread| unread.since + UNREAD_TIME).min()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use slotmap::KeyData;

    use super::*;
    use crate::net::all_connections::Conns;
    use crate::net::call_state::CallState;
    use canal_sys::peer::Credentials;

    /// Connections of these users that await a report, in this order.
    fn waiting(users: &[u32]) -> (Conns, Reports, Vec<ConnId>, Vec<UnixStream>) {
        let mut conns = Conns::new().unwrap();
        let reports = Reports::new(1);
        let (mut ids, mut theirs) = (Vec::new(), Vec::new());
        for uid in users {
            let (ours, other) = UnixStream::pair().unwrap();
            let peer = Credentials { pid: 1, uid: *uid, gid: 0 };
            let id = conns.open(ours.into(), peer, 0, None);
            conns.set_state(id, CallState::Report(None));
            ids.push(id);
            theirs.push(other);
        }
        (conns, reports, ids, theirs)
    }

    /// Ends the waits of all connections that get a report. Returns them in their order.
    fn all_served(conns: &mut Conns, reports: &Reports) -> Vec<ConnId> {
        let mut served = in_turns(reports.waiting(conns).into_iter());
        served.retain(|id| reports.may_get(conns, *id));
        for id in &served {
            conns.set_state(*id, CallState::Idle);
        }
        served
    }

    /// A connection that is not among those that await a report.
    fn other(number: u64) -> ConnId {
        KeyData::from_ffi((number << 32) | 1).into()
    }

    #[test]
    fn reports_go_to_users_in_turn_and_to_each_in_arrival_order() {
        let users = [7, 7, 7, 9, 7, 8, 9];
        let (mut conns, mut reports, ids, _peers) = waiting(&users);
        let served = all_served(&mut conns, &reports);
        assert_eq!(served, [0, 5, 3, 1, 6, 2, 4].map(|at: usize| ids[at]));
        // The next turn begins after the user that got the last report.
        for id in &ids {
            conns.set_state(*id, CallState::Report(None));
        }
        reports.sent(&conns, ids[0]);
        let served = all_served(&mut conns, &reports);
        assert_eq!(served, [5, 3, 0, 6, 1, 2, 4].map(|at: usize| ids[at]));
    }

    #[test]
    fn a_user_with_many_unread_replies_waits_and_other_users_do_not() {
        let (mut conns, mut reports, ids, _peers) = waiting(&[7, 8]);
        let since = Instant::now();
        let left = UNREAD_BYTES_PER_USER;
        reports.unread.push(Unread { id: other(5), uid: 7, left, since });
        assert_eq!(all_served(&mut conns, &reports), [ids[1]]);
        reports.unread[0].left -= 1;
        assert_eq!(all_served(&mut conns, &reports), [ids[0]]);
    }

    #[test]
    fn with_too_much_unread_in_all_only_permitted_users_get_more() {
        let (mut conns, mut reports, ids, _peers) = waiting(&[7, 0]);
        let since = Instant::now();
        reports.unread.push(Unread { id: other(5), uid: 9, left: UNREAD_BYTES_MAX, since });
        assert_eq!(all_served(&mut conns, &reports), [ids[1]]);
    }

    #[test]
    fn a_client_that_has_not_read_its_last_reply_gets_no_report_yet() {
        let (mut conns, mut reports, ids, _peers) = waiting(&[7, 7]);
        conns.get(ids[0]).unwrap().progress(&"unread");
        assert_eq!(all_served(&mut conns, &reports), [ids[1]]);
        reports.look(&conns, Instant::now());
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
        let both = reports.look(&conns, begun + UNREAD_TIME);
        assert_eq!(reports.stuck(&both, begun + UNREAD_TIME), [ids[0]]);
        assert_eq!(reports.next_stuck(&both), Some(begun + UNREAD_TIME));
        assert!(reports.stuck(&both, begun + UNREAD_TIME / 2).is_empty());
        // The connection's own next report does not count, however long it waits.
        conns.set_state(ids[1], CallState::Idle);
        let own = reports.look(&conns, begun + UNREAD_TIME);
        assert!(reports.stuck(&own, begun + UNREAD_TIME).is_empty());
        assert_eq!(reports.next_stuck(&own), None);
        // A connection that has since read a part is not stuck.
        reports.unread[0].left += 1;
        reports.look(&conns, begun + UNREAD_TIME);
        assert!(reports.stuck(&both, begun + UNREAD_TIME).is_empty());
        // Nor is a connection with few unread bytes, while all connections together do not have
        // many.
        reports.unread[0] =
            Unread { left: UNREAD_BYTES_PER_USER - 1, since: begun, ..reports.unread[0] };
        assert!(reports.stuck(&both, begun + UNREAD_TIME).is_empty());
        let since = begun + UNREAD_TIME;
        reports.unread.push(Unread { id: other(9), uid: 9, left: UNREAD_BYTES_MAX, since });
        assert_eq!(reports.stuck(&both, begun + UNREAD_TIME), [ids[0]]);
    }

    #[test]
    fn a_closed_connection_leaves_the_reply_queue() {
        let (mut conns, mut reports, ids, _peers) = waiting(&[7, 8]);
        conns.get(ids[0]).unwrap().is_closing = true;
        conns.get(ids[0]).unwrap().progress(&"dropped");
        conns.flush();
        reports.look(&conns, Instant::now());
        assert_eq!(all_served(&mut conns, &reports), [ids[1]]);
        assert!(reports.unread.is_empty());
    }
}
