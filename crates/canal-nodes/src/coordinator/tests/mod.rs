//! Feeds a coordinator one input after the other.

mod asking;
mod renewing;
mod running;
mod scene;
mod taking_over;
