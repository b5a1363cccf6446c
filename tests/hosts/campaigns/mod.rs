//! Random faults on several hosts, for seconds or for hours.

mod campaign;
mod campaign_faults;
