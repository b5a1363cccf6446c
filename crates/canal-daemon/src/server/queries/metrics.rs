//! Takes the current figures, for a client or for the thread that offers them.

use crate::metrics::counters::Counters;
use crate::metrics::open_metrics::text;
use crate::metrics::snapshot::Snapshot;
use crate::server::Server;
use crate::server::dispatch::step::Step;
use canal_protocol::Metrics;
use canal_sys::clock;

impl Server {
    /// All figures, as text.
    pub(crate) fn metrics(&mut self) -> Step {
        Step::reply(&Metrics { text: text(&self.snapshot()) })
    }

    /// Passes the current figures to the thread that offers metrics, if it asked for them.
    pub(crate) fn give_metrics(&mut self) {
        if self.exporter.as_ref().is_some_and(|exporter| exporter.is_asked()) && self.is_present() {
            let snapshot = self.snapshot();
            if let Some(exporter) = &self.exporter {
                exporter.give(snapshot);
            }
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let mut none = Counters::default();
        let counters = self.history.counters().unwrap_or(&mut none);
        let figures = Snapshot::of(&self.ledger.table, counters, clock::unix_ms());
        let is_member = self.ledger.is_member();
        Snapshot {
            connections: self.conns.len() as u64,
            journal_bytes: self.ledger.journal_bytes(),
            history_bytes: self.history.bytes(),
            history_dropped: self.history.dropped(),
            engine: self.cluster.as_ref().map(|cluster| cluster.figures(is_member)),
            ..figures
        }
    }
}
