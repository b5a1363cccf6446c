//! Eras of real servers: restarted, promoted, restored.

use super::events::EngineEvents as _;
use super::joined;
use crate::engine_contract::peer::{Appending, Peer};
use crate::postgres_server::{shared, start_postgres};

/// Waits until a host that was up is back. Returns the number of the last era in the log, and
/// whether entries may be missing.
fn era_after(peer: &mut Peer) -> (u64, bool) {
    peer.back();
    *peer.load_eras().last().unwrap()
}

#[test]
fn a_restart_and_a_crash_begin_an_era_in_which_nothing_is_missing() {
    let Some(mut server) = start_postgres() else { return };
    let url = server.new_url();
    let (mut one, mut two) = (joined(&url, "one"), joined(&url, "two"));
    one.append(b"a");
    for number in 2..=3 {
        if number == 2 {
            server.crash();
        } else {
            server.halt();
        }
        one.away();
        server.start();
        assert_eq!(era_after(&mut one), (number, false));
        one.append(b"b");
        // The other host reads the noted era, or has noted it itself.
        two.back();
        assert!(two.renew().is_some());
    }
    assert_eq!(one.load_eras(), [(1, false), (2, false), (3, false)]);
    assert_eq!(two.load_eras(), [(1, false), (2, false), (3, false)]);
}

#[test]
fn a_broken_connection_begins_no_era() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap();
    let mut one = joined(&url, "one");
    for _ in 0..3 {
        server.sql(&format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE datname = '{database}'"
        ));
        one.away();
        one.back();
        one.append(b"a");
    }
    assert_eq!(one.load_eras(), [(1, false)]);
}

/// A started copy looks like a restarted server. Only a host that saw how far the server had come
/// can distinguish them.
#[test]
fn a_daemon_that_is_new_to_the_server_assumes_missing_entries() {
    let Some(mut server) = start_postgres() else { return };
    let url = server.new_url();
    joined(&url, "one").append(b"a");
    server.halt();
    server.start();
    let mut two = joined(&url, "two");
    assert_eq!(two.load_eras(), [(1, false), (2, true)]);
    let mut three = joined(&url, "three");
    assert_eq!(three.load_eras(), [(1, false), (2, true)]);
}

#[test]
fn after_a_restored_base_backup_something_may_be_missing() {
    let Some(mut server) = start_postgres() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap();
    let mut one = joined(&url, "one");
    one.append(b"kept");
    server.back_up();
    let mut two = joined(&url, "two");
    // Restore the same backup twice.
    for lost in [&b"first"[..], b"second"] {
        one.append(lost);
        one.read(2);
        server.restore();
        one.away();
        assert!(era_after(&mut one).1, "{:?}", one.noted);
        two.back();
        two.load();
        // The second host did not see the lost part. If it is back first, it notes a restart. The
        // first host then notes that entries are missing.
        assert!(matches!(one.load_eras()[..], [(1, _), (2, _)] | [(1, _), (2, _), (3, _)]));
        let sign = server.sql_in(database, "SELECT era_sign FROM canal.head");
        assert!(sign.ends_with("/lacks"), "{sign}");
        assert_eq!(one.log.len(), 1);
        // The host makes the lost batch again.
        one.sequence -= 1;
    }
    drop((one, two));
    server.restore();
    let mut new = joined(&url, "new");
    assert_eq!(new.load_eras(), [(1, false), (2, true)]);
}

#[test]
fn after_a_standby_was_promoted_something_may_be_missing() {
    let Some(mut primary) = start_postgres() else { return };
    let url = primary.new_url();
    let database = url.rsplit('/').next().unwrap();
    let Some(standby) = primary.standby() else { return };
    let both = format!(
        "postgres://{database}@127.0.0.1:{},127.0.0.1:{}/{database}",
        standby.port, primary.port
    );
    let mut one = joined(&both, "one");
    one.append(b"a");
    standby.has_replayed(&primary);
    primary.halt();
    one.away();
    standby.sql("SELECT pg_promote()");
    assert_eq!(era_after(&mut one), (2, true));
    one.append(b"b");
    let mut two = joined(&both, "two");
    assert_eq!(two.load_eras(), [(1, false), (2, true)]);
}

#[test]
fn a_loaded_dump_gets_no_append_before_its_era_is_noted() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap();
    let mut one = joined(&url, "one");
    one.append(b"kept");
    let dump = server.dump(database, "canal");
    one.append(b"lost");
    // The connection stays, and so does the server.
    server.sql_in(database, &format!("DROP SCHEMA canal CASCADE; {dump}"));
    one.ask(2, b"again", None);
    let why = one.away();
    assert_eq!(why, "other tables replaced the log's tables");
    assert_eq!(era_after(&mut one), (2, true));
    one.ask(2, b"again", None);
    assert!(matches!(one.appended(2), Appending::At(_)));
    assert_eq!(one.load_eras(), [(1, false), (2, true)]);
    assert_eq!(one.log.len(), 2);
}

#[test]
fn recreated_tables_lack_entries_that_a_host_had_seen() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap();
    let mut one = joined(&url, "one");
    one.append(b"a");
    server.sql_in(database, "DROP SCHEMA canal CASCADE");
    one.ask(2, b"b", None);
    one.away();
    one.back();
    assert_eq!(one.load_eras(), [(1, true)]);
}

#[test]
fn a_user_that_may_not_identify_the_server_assumes_missing_entries() {
    let Some(mut server) = start_postgres() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap();
    server.sql_in(database, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public");
    let mut one = joined(&url, "one");
    one.append(b"a");
    server.halt();
    one.away();
    server.start();
    assert_eq!(era_after(&mut one), (2, true));
    let mut again = joined(&url, "two");
    assert_eq!(again.load_eras(), [(1, false), (2, true)]);
}
