//! Figures for monitoring: the output of `canal metrics`, and what a collector reads from the
//! daemon.

mod collectors;
mod figures;

use crate::world::World;

/// The output of `canal metrics`.
#[track_caller]
fn metrics(world: &World) -> String {
    world.canal(["metrics"]).end().code(0).stdout
}

/// The value of a figure with these labels, in the text format of the metrics.
fn value(text: &str, sample: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}
