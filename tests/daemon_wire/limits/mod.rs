//! What is too much is refused, and every user has a fair share.

mod fairness;
mod floods;
mod refusals;
