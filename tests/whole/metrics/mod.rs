//! Figures for monitoring: what `canal metrics` prints, and what a collector reads from the daemon.

mod collectors;
mod figures;
#[path = "../../fixtures/free_port.rs"]
mod free_port;

use crate::world::World;

/// What `canal metrics` prints.
#[track_caller]
fn metrics(world: &World) -> String {
    world.canal(["metrics"]).end().code(0).stdout
}

/// The value of a figure with these labels, in a text of metrics.
fn value(text: &str, sample: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}
