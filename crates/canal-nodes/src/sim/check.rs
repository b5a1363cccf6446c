//! The conditions that must hold, whatever goes wrong.

use super::host::{Command, Job};
use super::node::Node;
use super::world::{BEAT_MS, World};
use crate::Require;

/// Whether two commands exclude each other.
fn exclude(one: (&Job, &Command), other: (&Job, &Command)) -> bool {
    if one.0.key != other.0.key
        || !one.0.plan.require.is_exclusive()
        || !other.0.plan.require.is_exclusive()
    {
        return false;
    }
    let requires = [one.0.plan.require, other.0.plan.require];
    match requires {
        // The one needs a single node, which the other may not need.
        [Require::Any, Require::Any] => one.1.nodes == other.1.nodes,
        [Require::Any, Require::All] => other.0.at.contains(&one.1.nodes[0]),
        [Require::All, Require::Any] => one.0.at.contains(&other.1.nodes[0]),
        [Require::Any, _] | [_, Require::Any] => false,
        _ => one.0.over.always_meets(&other.0.over),
    }
}

impl World {
    /// No two commands that exclude each other run at once.
    pub(super) fn check_overlap(&self) -> Result<(), String> {
        let running: Vec<(&Job, &Command)> = self
            .hosts
            .iter()
            .filter_map(|host| host.job.as_ref())
            .filter_map(|job| Some((job, job.command.as_ref()?)))
            .collect();
        for (at, one) in running.iter().enumerate() {
            for other in &running[at + 1..] {
                if exclude(*one, *other) {
                    let (run, also) = (one.0.run, other.0.run);
                    return Err(format!("runs {run} and {also} of one key run at once"));
                }
            }
        }
        Ok(())
    }

    /// If all nodes are in reach, no two commands run over lists that have a node in common but
    /// need not meet.
    pub(super) fn check_apart(&self) -> Result<(), String> {
        if self.profile.faults_ms > 0 {
            return Ok(());
        }
        let jobs = self.hosts.iter().filter_map(|host| host.job.as_ref());
        let running: Vec<&Job> = jobs.filter(|job| job.command.is_some()).collect();
        for (at, one) in running.iter().enumerate() {
            let is_apart = |other: &&&Job| {
                one.key == other.key
                    && one.at.iter().any(|node| other.at.contains(node))
                    && !one.over.always_meets(&other.over)
            };
            if let Some(other) = running[at + 1..].iter().find(is_apart) {
                return Err(format!(
                    "runs {} and {} run over lists that need not meet",
                    one.run, other.run
                ));
            }
        }
        Ok(())
    }

    /// While a command runs, at least as many nodes keep its lock as it requires.
    pub(super) fn check_kept(&self) -> Result<(), String> {
        for job in self.hosts.iter().filter_map(|host| host.job.as_ref()) {
            if job.command.is_none() || !job.plan.require.is_exclusive() {
                continue;
            }
            let need = job.plan.require.least(job.at.len());
            let keeps = |at: &&usize| {
                let node: &Node = &self.nodes[**at];
                node.keeps_run(self.now, job.run)
            };
            let kept = job.at.iter().filter(keeps).count();
            if kept < need {
                return Err(format!("run {} is kept by {kept} nodes of {need}", job.run));
            }
        }
        Ok(())
    }

    /// No node knows requests for one key whose lists need not meet.
    pub(super) fn check_lists(&self) -> Result<(), String> {
        for (at, node) in self.nodes.iter().enumerate() {
            let known: Vec<_> = node.locks.known().collect();
            for (number, one) in known.iter().enumerate() {
                let differs = known[number + 1..]
                    .iter()
                    .find(|other| other.key == one.key && !one.agrees_with(other));
                if let Some(other) = differs {
                    return Err(format!(
                        "node {at} knows {:?} and {:?}, whose lists need not meet",
                        one.name, other.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// No run waits behind its own older request.
    pub(super) fn check_own_requests(&self) -> Result<(), String> {
        match self.nodes.iter().find_map(|node| node.locks.behind_itself()) {
            Some(name) => Err(format!("{name:?} waits behind its own older request")),
            None => Ok(()),
        }
    }

    /// Each unconfirmed part depends on a connection over which its client sent something recently.
    pub(super) fn check_unconfirmed(&self) -> Result<(), String> {
        for (at, node) in self.nodes.iter().enumerate() {
            for name in node.locks.unconfirmed() {
                let mut wires = self.network.wires.values();
                let wire = wires.find(|wire| wire.node == at && wire.asked.contains(&name));
                if wire.is_none_or(|wire| self.now > wire.heard_at + wire.ttl_ms + 2 * BEAT_MS) {
                    return Err(format!("{name:?} on node {at} outlives its client"));
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_nothing_left(&self) -> Result<(), String> {
        match self.nodes.iter().position(|node| !node.is_empty()) {
            Some(at) => Err(format!("something is left on node {at}: {:?}", self.nodes[at].locks)),
            None => Ok(()),
        }
    }
}
