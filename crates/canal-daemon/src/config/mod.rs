//! The configuration: stored sizes, limits, policy.
//!
//! When the daemon starts or reads the file again, the settings that affect the table's decisions
//! (sizes, policy) become entries of the log. Nothing else reads them from the file.

pub(super) mod effective;
pub(super) mod file;
pub(super) mod hooks;
pub(super) mod nodes;
pub(super) mod permissions;
pub(super) mod sections_and_defaults;
pub(super) mod settings_in_file;
pub(super) mod typo_suggestions;
pub(super) mod user_limits;
pub(super) mod values;
