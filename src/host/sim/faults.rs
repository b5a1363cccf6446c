//! What goes wrong, and how it is mended.

use super::world::{STEP_MS, World};
use crate::host::LostWhy;

impl World {
    /// Something may go wrong now.
    pub(super) fn break_something(&mut self) {
        let at = self.rng.usize(0..self.machines.len());
        let now_ms = self.now_ms;
        // Shorter and longer than a TTL.
        let long_ms = self.rng.u64(20..3_000);
        match self.rng.u32(0..1_000) {
            0..15 => self.machines[at].link.cut(&mut self.rng, now_ms),
            15..50 => self.machines[at].link.heal(now_ms),
            50..55 => {
                self.machines[at].daemon = None;
                self.machines[at].daemon_back_ms = now_ms + long_ms;
            }
            55..58 => {
                self.machines[at].daemon_back_ms = now_ms + long_ms;
                self.machines[at].reboot(&mut self.rng, now_ms);
            }
            58..66 => {
                if let Some(daemon) = &mut self.machines[at].daemon {
                    daemon.stopped_until = now_ms + long_ms;
                }
            }
            66..71 => self.machines[at].frozen_until = now_ms + long_ms,
            71..79 => self.stop_a_process(at, now_ms + long_ms),
            79..81 => self.restart_engine(now_ms + long_ms / 2),
            81..84 => self.machines[at].link.slow_ms = self.rng.u64(0..300),
            84..88 => self.kill_a_process(at),
            88..90 if self.rewrites() => self.earlier = Some(self.server.clone()),
            90..92 if self.rewrites() => self.rewrite(),
            92..95 => self.fence(at),
            _ => {}
        }
        self.spare_wrappers();
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
        self.server.cursors.clear();
        for machine in &mut self.machines {
            machine.link.cut(&mut self.rng, self.now_ms);
        }
    }

    /// The engine falls back to what it was some time ago.
    fn rewrite(&mut self) {
        if let Some(earlier) = self.earlier.take() {
            self.restart_engine(self.now_ms);
            self.server = earlier;
            self.server.cursors.clear();
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
