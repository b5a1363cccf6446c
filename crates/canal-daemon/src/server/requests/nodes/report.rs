//! Notes the progress of a whole request over nodes, as the client of its part reports it.

use crate::server::Server;
use crate::server::dispatch::step::Step;
use crate::waiters::leases::{Reported, name_of};
use canal_protocol::{ErrorName, Failure, REPORTED_NODES_MAX, Report, Reported as Noted};
use canal_text::safe_text::one_line;

/// The most bytes of the name of a node.
const NAME_BYTES_MAX: usize = 256;

impl Server {
    pub(crate) fn report(&mut self, report: &Report) -> Result<Step, Failure> {
        let frame = self.ledger.table.lease(name_of(report.handle));
        let Some(frame) = frame.filter(|frame| self.is_over_nodes(*frame)) else {
            let message = "no request over nodes has this handle: it has ended, or never existed";
            return Err(Failure::new(ErrorName::Gone, message));
        };
        let names = &report.waits_for;
        if names.len() > REPORTED_NODES_MAX || names.iter().any(|it| it.len() > NAME_BYTES_MAX) {
            let message = format!(
                "`waits_for` can have at most {REPORTED_NODES_MAX} names of at most \
                 {NAME_BYTES_MAX} bytes"
            );
            return Err(Failure::new(ErrorName::BadRequest, message));
        }
        let waits_for = names.iter().map(|name| one_line(name)).collect();
        let reported = Reported { held: report.held, waits_for };
        if self.leases.report(frame, reported) {
            self.due.changed = true;
        }
        Ok(Step::reply(&Noted {}))
    }

    fn is_over_nodes(&self, frame: canal_core::FrameId) -> bool {
        let table = &self.ledger.table;
        let held = table.holds_in(frame).map(|hold| &hold.asked);
        let waits = table.waiters_in(frame).map(|waiter| &waiter.request);
        held.chain(waits).any(|asked| asked.over_nodes.is_some())
    }
}
