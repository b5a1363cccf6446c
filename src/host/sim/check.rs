//! What must be so in every step and at the end.

use super::history::History;
use super::world::{STEP_MS, Seen, World, capacity};
use crate::core::{Ask, Item, Mode};

impl World {
    /// No more commands run than there is room for.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(wrong) = &self.history.wrong {
            return Err(wrong.clone());
        }
        let machines = self.machines.iter().filter(|m| self.now_ms >= m.frozen_until);
        let procs = machines.enumerate().flat_map(|(at, m)| m.procs.values().map(move |p| (at, p)));
        let running = procs.filter(|(_, proc)| proc.alive && self.now_ms >= proc.stopped_until);
        let held: Vec<(usize, u32, &Item)> = running
            .flat_map(|(at, proc)| proc.holds.iter().map(move |h| (at, proc.id.pid, &h.item)))
            .collect();
        for (index, (at, pid, item)) in held.iter().enumerate() {
            let others = held[index + 1..].iter().filter(|(a, p, _)| (a, p) != (at, pid));
            for (other_at, other_pid, other) in others {
                if excludes(item, other) {
                    return Err(format!(
                        "at {} ms both run: process {pid} on host {at} with {item:?}, and process \
                         {other_pid} on host {other_at} with {other:?}",
                        self.now_ms
                    ));
                }
            }
        }
        let of_a = held.iter().filter(|(_, _, item)| item.key.as_str() == "a");
        let used: u64 = of_a.map(|(_, _, item)| slots(item)).sum();
        if used > capacity("a") {
            return Err(format!("at {} ms {used} slots of a are in use: {held:?}", self.now_ms));
        }
        Ok(())
    }

    pub(super) fn is_over(&self) -> bool {
        self.machines.iter().all(|machine| {
            let Some(daemon) = &machine.daemon else { return false };
            let idle = daemon.table.waiting() == 0 && daemon.table.held() == 0;
            daemon.host().is_some() && idle && machine.procs.is_empty()
        })
    }

    pub(super) fn conclude(mut self) -> Result<Seen, String> {
        // What was delayed arrives, and everybody reads to the end.
        let mut tables = Vec::new();
        for step in 0..600 {
            self.now_ms += STEP_MS;
            self.mend();
            self.step();
            self.check()?;
            if step >= 50 && step % 10 == 0 {
                let daemons = self.machines.iter().filter_map(|machine| machine.daemon.as_ref());
                tables = daemons.map(|daemon| daemon.table.snapshot()).collect::<Vec<_>>();
                if tables.windows(2).all(|pair| pair[0] == pair[1]) {
                    break;
                }
            }
        }
        if tables.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(format!("the tables differ: {tables:?}"));
        }
        if !tables.iter().all(|table| table.frames.is_empty() && table.holds.is_empty()) {
            return Err(format!("something is left: {tables:?}"));
        }
        let History { grants, hosts_gone, adoptions, deadlocks, .. } = self.history;
        Ok(Seen { grants, hosts_gone, adoptions, deadlocks, ..self.seen })
    }

    pub(super) fn what_is_left(&self) -> String {
        let left = self.machines.iter().map(|machine| {
            let daemon = machine.daemon.as_ref();
            let health = daemon.map(|daemon| daemon.member.health());
            let table = daemon.map(|daemon| daemon.table.snapshot());
            let incarnation = daemon
                .map(|daemon| (daemon.doing(), &daemon.member.incarnation, &daemon.member.writer));
            format!("{:?}\n  {health:?}\n  {incarnation:?}\n  {table:?}", machine.procs)
        });
        left.collect::<Vec<_>>().join("\n")
    }
}

fn slots(item: &Item) -> u64 {
    match item.ask {
        Ask::Counted { count, .. } => count,
        Ask::Read | Ask::Write => 0,
    }
}

pub(super) fn excludes(one: &Item, other: &Item) -> bool {
    let covers = one.key.covers(&other.key) || other.key.covers(&one.key);
    let writes = one.ask.mode() == Mode::Write || other.ask.mode() == Mode::Write;
    let mutex = one.key == other.key && one.key.as_str() == "d";
    covers && (writes || mutex)
}
