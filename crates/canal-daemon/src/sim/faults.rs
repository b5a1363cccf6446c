//! Faults, and how they end.

use super::fault_profile::Fault;
use super::world::World;

/// How long a daemon whose files vanish stays undisturbed: canal makes no promise if it is killed
/// before it has recreated them.
const RESTORES_MS: u64 = 100;

impl World {
    /// Possibly causes a fault now.
    pub(super) fn cause_faults(&mut self) {
        self.choose_victim();
        let Some(fault) = self.next_fault() else { return };
        let any = self.rng.usize(0..self.hosts.len());
        let is_spared = !self.profile.has_victim || self.rng.u8(0..4) == 0;
        let at = if is_spared || fault == Fault::Heal { any } else { self.victim };
        let until = self.now_ms + self.profile.draw_time(&mut self.rng);
        let clock_ms = self.rng.u64(0..5_000);
        if self.now_ms < self.hosts[at].spared_until {
            return;
        }
        tracing::debug!(?fault, at, until, "a fault");
        match fault {
            Fault::KillDaemon | Fault::StopDaemon | Fault::Freeze | Fault::Reboot => {
                self.disturb_machine(fault, at, until, clock_ms);
            }
            Fault::Kill | Fault::Stop => self.disturb_process(fault, at, until),
            Fault::TearWrite | Fault::FillDisk | Fault::BreakDisk | Fault::LoseFiles => {
                self.disturb_disk(fault, at, until);
            }
            _ => self.disturb_network(fault, at, until),
        }
    }

    /// Moves the bad luck to another machine from time to time.
    fn choose_victim(&mut self) {
        if self.profile.has_victim && self.rng.u8(0..150) == 0 {
            self.victim = self.rng.usize(0..self.hosts.len());
        }
    }

    fn disturb_machine(&mut self, fault: Fault, at: usize, until: u64, clock_ms: u64) {
        let within = self.rng.bool().then(|| self.rng.u64(0..300));
        let host = &mut self.hosts[at];
        match fault {
            Fault::StopDaemon => host.stopped_until = until,
            Fault::Freeze => host.frozen_until = until,
            Fault::Reboot => {
                host.back_at = until;
                host.reboot(clock_ms);
            }
            _ => {
                host.back_at = until;
                match within {
                    Some(questions) => host.machine.kill_daemon_after(Some(questions)),
                    None => host.kill_daemon(),
                }
            }
        }
    }

    fn disturb_process(&mut self, fault: Fault, at: usize, until: u64) {
        let alive = self.hosts[at].machine.alive();
        if alive.is_empty() {
            return;
        }
        let process = alive[self.rng.usize(0..alive.len())];
        let is_whole = self.rng.bool();
        let host = &mut self.hosts[at];
        if fault == Fault::Kill {
            return host.machine.end(process);
        }
        let program = host.programs.get_mut(&process).filter(|_| !is_whole);
        if let Some(received) = program.and_then(|program| program.stop_supervisor(until)) {
            self.received_grants.get(received).unwatched_until = until;
            return;
        }
        if !host.programs.get(&process).is_some_and(|it| it.has_lease()) {
            host.machine.with(process, |process| process.state = 'T');
            host.stopped.insert(process, until);
        }
    }

    fn disturb_disk(&mut self, fault: Fault, at: usize, until: u64) {
        let bytes = self.rng.u64(1..3_000);
        let host = &mut self.hosts[at];
        match fault {
            Fault::TearWrite => {
                host.back_at = until;
                host.disk_budget = Some(bytes);
            }
            Fault::LoseFiles => {
                let runs = host.daemon.is_some() && host.stopped_until <= self.now_ms;
                if runs && host.frozen_until <= self.now_ms {
                    host.spared_until = self.now_ms + RESTORES_MS;
                    host.lose_files(bytes.is_multiple_of(2));
                }
            }
            _ => {
                host.disk.is_full = fault == Fault::FillDisk;
                host.disk.fails_after = (fault == Fault::BreakDisk).then_some(bytes);
                host.bad_disk_until = until;
            }
        }
    }

    fn disturb_network(&mut self, fault: Fault, at: usize, until: u64) {
        let (rng, now_ms) = (&mut self.rng, self.now_ms);
        let Some(network) = &mut self.network else { return };
        match fault {
            Fault::Fence => return network.fence(rng, now_ms, at),
            Fault::RestartEngine => return network.restart(rng, now_ms, until),
            Fault::LoseLog => return network.lose_log(rng, now_ms),
            _ => {}
        }
        let link = &mut network.wires[at].borrow_mut().link;
        match fault {
            Fault::Cut => link.cut(rng, now_ms),
            Fault::Heal => link.heal(now_ms),
            Fault::Slow => {
                let most_ms = [20, 300, 900][rng.usize(0..3)];
                link.slow_ms = rng.u64(0..=most_ms);
            }
            Fault::StallCalls => link.calls_stall_until = until,
            Fault::StallAnswers => link.answers_stall_until = until,
            _ => {}
        }
    }

    fn next_fault(&mut self) -> Option<Fault> {
        let mut roll = self.rng.u32(0..1_000);
        for (fault, often) in &self.profile.often {
            match roll.checked_sub(*often) {
                Some(rest) => roll = rest,
                None => return Some(*fault),
            }
        }
        None
    }

    /// Ends all faults.
    pub(super) fn mend(&mut self) {
        let now_ms = self.now_ms;
        if let Some(network) = &mut self.network {
            network.mend(now_ms);
        }
        for host in &mut self.hosts {
            host.frozen_until = host.frozen_until.min(now_ms);
            host.back_at = host.back_at.min(now_ms);
            host.stopped_until = host.stopped_until.min(now_ms);
            host.bad_disk_until = host.bad_disk_until.min(now_ms);
            host.machine.kill_daemon_after(None);
            host.disk_budget = None;
            host.stopped.values_mut().for_each(|until| *until = now_ms.min(*until));
        }
    }
}
