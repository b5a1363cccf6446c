//! The duties of every engine: the tests of `trait Engine`.
//!
//! The test program of an engine includes this folder by path and names, with `contract!`, the
//! function that returns a log:
//!
//! ```ignore
//! #[path = "../engine_contract/mod.rs"]
//! mod engine_contract;
//! contract!(my_log); // fn my_log() -> Option<impl engine_contract::Log>; None: skipped
//! ```
//!
//! The library includes it as well, for the engine that it simulates in tests.
//!
//! Invariant: nothing here knows which engine it tests, and no test waits without a bound.

pub(crate) mod append;
pub(crate) mod ends;
pub(crate) mod eras;
pub(crate) mod follow;
pub(crate) mod join;
pub(crate) mod peer;
pub(crate) mod snapshot;

use canal_log::engine::Engine;

/// A log that no other test uses, empty at first.
pub(crate) trait Log {
    /// Opens the log for the host `label`.
    fn engine(&self, label: &str) -> Box<dyn Engine + Send>;
}

/// Makes a test of each claim, with the log that `$log()` returns. Without a log the test is
/// skipped.
macro_rules! contract {
    ($log:path) => {
        contract! { @ $log;
            join: incarnations_increase;
            join: registering_again_with_the_same_nonce_takes_no_second_incarnation;
            join: hosts_of_the_same_label_are_reported_with_their_identity;
            join: an_incarnation_withdrawn_before_its_first_append_is_gone_at_once;
            join: all_hosts_see_the_same_epoch;
            join: renewals_report_the_head_and_the_living_hosts;
            eras: nothing_is_done_before_the_first_era_is_noted;
            eras: one_of_many_hosts_notes_an_era_and_all_read_it_in_one_place;
            eras: a_host_that_comes_later_notes_no_era;
            eras: followers_read_eras_and_snapshots_cover_them;
            append: appended_batches_come_back_in_order;
            append: all_hosts_see_concurrent_appends_in_the_same_order;
            append: the_same_batch_again_is_success_and_is_in_the_log_once;
            append: another_body_under_the_same_number_is_fenced;
            append: a_batch_number_with_a_gap_is_fenced;
            append: an_unknown_incarnation_is_fenced;
            append: a_batch_of_a_megabyte_passes_unchanged;
            ends: an_ended_incarnation_can_neither_append_nor_renew;
            ends: an_incarnation_ends_once_only;
            ends: the_ending_batch_again_is_success;
            ends: a_host_can_end_itself;
            ends: two_hosts_that_end_each_other_cannot_both_succeed;
            follow: batches_of_other_hosts_are_pushed;
            follow: following_continues_after_the_last_read_batch;
            follow: following_from_the_beginning_equals_loading;
            follow: a_long_log_is_read_without_a_gap_while_it_grows;
            follow: following_from_a_batch_that_differs_reports_a_rewritten_log;
            follow: following_from_beyond_the_log_reports_a_rewritten_log;
            snapshot: an_empty_log_has_no_snapshot;
            snapshot: a_snapshot_replaces_the_batches_that_it_covers;
            snapshot: an_older_snapshot_changes_nothing;
            snapshot: a_snapshot_from_beyond_the_log_changes_nothing;
            snapshot: batches_before_a_snapshot_are_compacted;
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
