//! Lists the leases that ended recently.

use crate::core::PastLease;
use crate::daemon::calls::items;
use crate::daemon::server::Server;
use crate::daemon::server::dispatch::step::Step;
use crate::daemon::server::requests::renew::{lost_lease, reason};
use crate::protocol::{EndedLease, EndedLeases, EndedLeasesQuery, Failure};
use crate::sys::peer::Credentials;

impl Server {
    pub(crate) fn ended_leases(
        &self,
        peer: Credentials,
        query: &EndedLeasesQuery,
    ) -> Result<Step, Failure> {
        let key = query.key.as_deref().map(items::key).transpose()?;
        let uid = if query.mine { Some(peer.uid) } else { query.uid };
        let shown = self.shown(peer.uid);
        let ended = self.ledger.table.past_leases().rev();
        let ended = ended.filter(|past| {
            uid.is_none_or(|uid| past.uid == uid)
                && key.as_ref().is_none_or(|key| key.covers(&past.key))
        });
        let told = |past: &PastLease| EndedLease {
            lost: lost_lease(past),
            reason: reason(past.why).to_owned(),
            uid: past.uid,
            command: shown.command(past.uid, &past.command.0),
        };
        Ok(Step::reply(&EndedLeases { ended: ended.map(told).collect() }))
    }
}
