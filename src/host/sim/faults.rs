//! What goes wrong, and how it is mended.

use fastrand::Rng;

use super::world::{Rulebook, STEP_MS, World};
use crate::host::LostWhy;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Cut,
    Heal,
    Crash,
    Reboot,
    Stop,
    Freeze,
    StopProcess,
    Restart,
    Slow,
    Kill,
    Fence,
    Remember,
    Rewrite,
}

/// How often each happens, in a thousand steps: in each world another few of them, and some much.
pub(super) fn draw(rng: &mut Rng, rules: &Rulebook) -> Vec<(Fault, u32)> {
    let usual = [
        (Fault::Cut, 8),
        (Fault::Crash, 4),
        (Fault::Reboot, 2),
        (Fault::Stop, 6),
        (Fault::Freeze, 4),
        (Fault::StopProcess, 6),
        (Fault::Restart, 1),
        (Fault::Slow, 4),
        (Fault::Kill, 3),
        (Fault::Fence, 2),
    ];
    let mut often: Vec<(Fault, u32)> = usual
        .into_iter()
        .map(|(fault, often)| (fault, often * [0, 0, 1, 1, 3][rng.usize(0..5)]))
        .collect();
    if !rules.focus.is_empty() {
        often = rules.focus.iter().map(|fault| (*fault, rng.u32(5..20))).collect();
    }
    often.push((Fault::Heal, rng.u32(3..20)));
    if rules.rewrite {
        often.extend([(Fault::Remember, 4), (Fault::Rewrite, 4)]);
    }
    often
}

impl World {
    /// Something may go wrong now.
    pub(super) fn break_something(&mut self) {
        // Mostly to one host for a while, so that others are there to take what it had.
        if self.rng.u8(0..150) == 0 {
            self.victim = self.rng.usize(0..self.machines.len());
        }
        let spared = self.rng.u8(0..4) == 0;
        let at = if spared { self.rng.usize(0..self.machines.len()) } else { self.victim };
        let now_ms = self.now_ms;
        // Shorter and longer than a TTL.
        let long_ms = self.rng.u64(20..3_000);
        match self.next_fault() {
            Some(Fault::Cut) => self.machines[at].link.cut(&mut self.rng, now_ms),
            Some(Fault::Heal) => self.machines[at].link.heal(now_ms),
            Some(Fault::Crash) => {
                self.machines[at].daemon = None;
                self.machines[at].daemon_back_ms = now_ms + long_ms;
            }
            Some(Fault::Reboot) => {
                self.machines[at].daemon_back_ms = now_ms + long_ms;
                self.machines[at].reboot(&mut self.rng, now_ms);
            }
            Some(Fault::Stop) => {
                if let Some(daemon) = &mut self.machines[at].daemon {
                    daemon.stopped_until = now_ms + long_ms;
                }
            }
            Some(Fault::Freeze) => self.machines[at].frozen_until = now_ms + long_ms,
            Some(Fault::StopProcess) => self.stop_a_process(at, now_ms + long_ms),
            Some(Fault::Restart) => self.restart_engine(now_ms + long_ms / 2),
            Some(Fault::Slow) => {
                let most_ms = [20, 300, 900][self.rng.usize(0..3)];
                self.machines[at].link.slow_ms = self.rng.u64(0..=most_ms);
            }
            Some(Fault::Kill) => self.kill_a_process(at),
            Some(Fault::Fence) => self.fence(at),
            // A log without any entry looks like a new one.
            Some(Fault::Remember) if !self.server.log.is_empty() => {
                self.earlier = Some(self.server.clone());
            }
            Some(Fault::Remember) => {}
            Some(Fault::Rewrite) => self.rewrite(),
            None => {}
        }
        self.spare_wrappers();
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

    /// A host takes itself for lost, long before it would be.
    fn fence(&mut self, at: usize) {
        if let Some(daemon) = &mut self.machines[at].daemon {
            daemon.member.lose(LostWhy::Fenced { why: "for the test".to_owned() });
        }
    }

    fn stop_a_process(&mut self, at: usize, until: u64) {
        let which = self.rng.usize(0..4);
        let whole = self.rng.bool();
        let Some(proc) = self.machines[at].procs.values_mut().nth(which) else { return };
        if whole {
            proc.stopped_until = until;
        } else {
            proc.wrapper_stopped_until = until;
        }
    }

    fn kill_a_process(&mut self, at: usize) {
        let which = self.rng.usize(0..4);
        if let Some(proc) = self.machines[at].procs.values_mut().nth(which) {
            proc.die();
        }
        self.machines[at].procs.retain(|_, proc| proc.alive);
    }

    /// What nobody watches over, because neither daemon nor wrapper runs, is not promised.
    fn spare_wrappers(&mut self) {
        for machine in &mut self.machines {
            let watched =
                machine.daemon.as_ref().is_some_and(|d| self.now_ms + STEP_MS >= d.stopped_until);
            if !watched {
                for proc in machine.procs.values_mut() {
                    proc.wrapper_stopped_until = 0;
                }
            }
        }
    }

    fn restart_engine(&mut self, until: u64) {
        self.down_until = until;
        self.lives += 1;
        self.server.live_anew(self.lives, false);
        for machine in &mut self.machines {
            machine.link.cut(&mut self.rng, self.now_ms);
        }
    }

    /// The engine falls back to what it was some time ago.
    fn rewrite(&mut self) {
        if let Some(earlier) = self.earlier.take() {
            self.restart_engine(self.now_ms);
            // Another server has taken over; what was sent to this one goes nowhere.
            self.machines.iter_mut().for_each(|machine| machine.link.forget_calls());
            self.server.fall_back(self.now_ms, earlier, self.lives);
        }
    }

    /// Nothing goes wrong any more.
    pub(super) fn mend(&mut self) {
        for machine in &mut self.machines {
            machine.link.heal(self.now_ms);
            machine.link.slow_ms = machine.link.slow_ms.min(30);
            machine.frozen_until = machine.frozen_until.min(self.now_ms);
            machine.daemon_back_ms = machine.daemon_back_ms.min(self.now_ms);
            if let Some(daemon) = &mut machine.daemon {
                daemon.stopped_until = daemon.stopped_until.min(self.now_ms);
            }
            for proc in machine.procs.values_mut() {
                proc.stopped_until = proc.stopped_until.min(self.now_ms);
                proc.wrapper_stopped_until = proc.wrapper_stopped_until.min(self.now_ms);
            }
        }
        self.down_until = self.down_until.min(self.now_ms);
    }
}
