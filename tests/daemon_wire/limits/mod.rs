//! The daemon refuses excessive requests, and every user gets a fair share.

mod fairness;
mod floods;
mod refusals;
