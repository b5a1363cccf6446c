//! Clients, commands and daemons that are killed: no hold too many, and nothing left behind.

mod campaign;
mod campaign_modes;
pub(crate) mod kill;
