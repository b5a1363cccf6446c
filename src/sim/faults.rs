//! What goes wrong, and how it ends.

use fastrand::Rng;

use super::world::World;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A daemon is killed, between two turns or within one.
    KillDaemon,
    /// A daemon is killed while it writes to the disk.
    TearWrite,
    /// A daemon is stopped for a while.
    StopDaemon,
    /// A process is killed.
    Kill,
    /// A process is stopped for a while.
    Stop,
    /// The power fails.
    Reboot,
    /// A whole machine stands still for a while.
    Freeze,
    /// A machine is cut off from the engine.
    Cut,
    /// A machine reaches the engine again.
    Heal,
    /// Messages between a machine and the engine take longer.
    Slow,
    /// The engine stops, and starts again.
    RestartEngine,
}

impl Fault {
    /// How often each happens, in a thousand steps. Each run has another few faults.
    pub(super) fn draw(rng: &mut Rng, over_engine: bool) -> Vec<(Self, u32)> {
        let usual = [
            (Self::KillDaemon, 12),
            (Self::TearWrite, 6),
            (Self::StopDaemon, 4),
            (Self::Kill, 20),
            (Self::Stop, 12),
            (Self::Reboot, 1),
        ];
        let factor = |rng: &mut Rng| [0, 0, 1, 1, 3][rng.usize(0..5)];
        let of_engine =
            [(Self::Freeze, 4), (Self::Cut, 8), (Self::Slow, 4), (Self::RestartEngine, 1)];
        let mut often = usual.map(|(fault, often)| (fault, often * factor(rng))).to_vec();
        if over_engine {
            often.extend(of_engine.map(|(fault, often)| (fault, often * factor(rng))));
            often.push((Self::Heal, rng.u32(5..20)));
        }
        often
    }
}

impl World {
    /// Something may go wrong now.
    pub(super) fn cause_faults(&mut self) {
        let Some(fault) = self.next_fault() else { return };
        let at = self.rng.usize(0..self.hosts.len());
        // A wait, a lease, and a time that the daemon gives others to come back are among these.
        let long_ms = if self.rng.bool() { self.rng.u64(0..100) } else { self.rng.u64(0..3_000) };
        let until = self.now_ms + long_ms;
        let within = self.rng.bool().then(|| self.rng.u64(0..300));
        let clock_ms = self.rng.u64(0..5_000);
        match fault {
            Fault::KillDaemon => {
                let host = &mut self.hosts[at];
                host.back_at = until;
                match within {
                    Some(questions) => host.machine.kill_daemon_after(Some(questions)),
                    None => host.kill_daemon(),
                }
            }
            Fault::TearWrite => {
                self.hosts[at].back_at = until;
                self.hosts[at].disk_budget = Some(self.rng.u64(1..3_000));
            }
            Fault::StopDaemon => self.hosts[at].stopped_until = until,
            Fault::Kill => {
                if let Some(pid) = self.any_process(at) {
                    self.hosts[at].machine.end(pid);
                }
            }
            Fault::Stop => {
                let pid = self.any_process(at);
                let host = &mut self.hosts[at];
                let has_lease = |pid: &u32| host.programs.get(pid).is_some_and(|it| it.has_lease());
                if let Some(pid) = pid.filter(|pid| !has_lease(pid)) {
                    host.machine.with(pid, |process| process.state = 'T');
                    host.stopped.insert(pid, until);
                }
            }
            Fault::Freeze => self.hosts[at].frozen_until = until,
            Fault::Cut | Fault::Heal | Fault::Slow | Fault::RestartEngine => {
                self.disturb_network(fault, at, until);
            }
            Fault::Reboot => {
                let host = &mut self.hosts[at];
                host.back_at = until;
                host.reboot(clock_ms);
            }
        }
    }

    fn disturb_network(&mut self, fault: Fault, at: usize, until: u64) {
        let (rng, now_ms) = (&mut self.rng, self.now_ms);
        let Some(network) = &mut self.network else { return };
        match fault {
            Fault::Cut => network.wires[at].borrow_mut().link.cut(rng, now_ms),
            Fault::Heal => network.wires[at].borrow_mut().link.heal(now_ms),
            Fault::Slow => {
                let most_ms = [20, 300, 900][rng.usize(0..3)];
                network.wires[at].borrow_mut().link.slow_ms = rng.u64(0..=most_ms);
            }
            _ => network.restart(rng, now_ms, until),
        }
    }

    fn any_process(&mut self, at: usize) -> Option<u32> {
        let pids = self.hosts[at].machine.alive();
        (!pids.is_empty()).then(|| pids[self.rng.usize(0..pids.len())])
    }

    fn next_fault(&mut self) -> Option<Fault> {
        let mut roll = self.rng.u32(0..1_000);
        for (fault, often) in &self.often {
            match roll.checked_sub(*often) {
                Some(rest) => roll = rest,
                None => return Some(*fault),
            }
        }
        None
    }

    /// Nothing goes wrong any more.
    pub(super) fn mend(&mut self) {
        let now_ms = self.now_ms;
        if let Some(network) = &mut self.network {
            network.mend(now_ms);
        }
        for host in &mut self.hosts {
            host.frozen_until = host.frozen_until.min(now_ms);
            host.back_at = host.back_at.min(now_ms);
            host.stopped_until = host.stopped_until.min(now_ms);
            host.machine.kill_daemon_after(None);
            host.disk_budget = None;
            host.stopped.values_mut().for_each(|until| *until = now_ms.min(*until));
        }
    }
}
