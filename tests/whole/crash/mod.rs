//! Killed clients, commands and daemons: no hold too many, and nothing left behind.

mod campaign;
mod campaign_modes;
pub(crate) mod kill;
