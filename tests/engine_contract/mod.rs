//! What every engine must do: the tests of `trait Engine`.
//!
//! The test program of an engine includes this folder by path and names, with `contract!`, the
//! function that gives it a log:
//!
//! ```ignore
//! #[path = "../engine_contract/mod.rs"]
//! mod engine_contract;
//! contract!(my_log); // fn my_log() -> Option<impl engine_contract::Log>; None: skipped
//! ```
//!
//! Invariant: nothing here knows which engine it tests, and no test waits without a bound.

pub(crate) mod append;
pub(crate) mod ends;
pub(crate) mod eras;
pub(crate) mod follow;
pub(crate) mod join;
pub(crate) mod peer;
pub(crate) mod snapshot;

use canal::log::engine::Engine;

/// A log that no other test uses, empty at first.
pub(crate) trait Log {
    /// An engine that opens it for the host `label`.
    fn engine(&self, label: &str) -> Box<dyn Engine + Send>;
}

/// Makes a test of each claim, with the log that `$log()` returns; without a log the test is
/// skipped.
macro_rules! contract {
    ($log:path) => {
        contract! { @ $log;
            join: incarnations_increase;
            join: registering_again_with_the_same_nonce_takes_no_second_incarnation;
            join: others_of_the_same_label_are_told_with_who_they_are;
            join: one_that_is_taken_back_before_it_appended_is_gone_at_once;
            join: all_hosts_see_the_same_epoch;
            join: renewals_tell_the_head_and_who_lives;
            eras: nothing_is_done_before_the_first_era_is_noted;
            eras: one_of_many_hosts_notes_an_era_and_all_read_it_in_one_place;
            eras: an_era_that_is_noted_again_is_there_once;
            eras: an_era_that_was_not_told_is_not_noted;
            eras: a_host_that_comes_later_is_told_of_no_era;
            eras: an_era_is_read_by_whoever_follows_and_covered_by_snapshots;
            append: appended_batches_come_back_in_order;
            append: concurrent_appends_are_seen_alike_by_all;
            append: the_same_batch_again_is_success_and_lies_there_once;
            append: another_body_under_the_same_number_is_fenced;
            append: a_number_too_far_is_fenced;
            append: an_incarnation_that_never_was_is_fenced;
            append: a_batch_of_a_megabyte_passes_unchanged;
            ends: an_ended_incarnation_can_neither_append_nor_renew;
            ends: an_incarnation_ends_once_only;
            ends: the_ending_batch_again_is_success;
            ends: a_host_can_end_itself;
            ends: two_who_end_each_other_cannot_both_succeed;
            follow: a_batch_of_another_host_comes_without_asking;
            follow: following_goes_on_after_what_was_read;
            follow: following_from_the_beginning_equals_loading;
            follow: a_long_log_is_read_without_a_gap_while_it_grows;
            follow: a_batch_that_was_read_differently_is_rewritten;
            follow: a_position_beyond_the_log_is_rewritten;
            snapshot: an_empty_log_has_no_snapshot;
            snapshot: a_snapshot_stands_for_what_it_replaces;
            snapshot: an_older_snapshot_changes_nothing;
            snapshot: a_snapshot_of_what_the_log_does_not_have_changes_nothing;
            snapshot: what_lies_before_a_snapshot_is_compacted;
            snapshot: following_goes_on_from_the_last_batch_of_a_snapshot;
            snapshot: a_large_snapshot_comes_back_unchanged;
            snapshot: a_follower_never_misses_a_batch_while_others_compact;
        }
    };
    (@ $log:path; $($part:ident: $claim:ident;)*) => {
        $(#[test]
        fn $claim() {
            if let Some(log) = $log() {
                $crate::engine_contract::$part::$claim(&log);
            }
        })*
    };
}
pub(crate) use contract;
