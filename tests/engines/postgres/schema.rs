//! The tables: created once, and refused if they belong to something else.

use super::events::EngineEvents as _;
use super::{joined, opened, unable};
use crate::postgres_server::shared;

#[test]
fn hosts_that_start_at_once_share_one_log() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let mut epochs: Vec<u128> = std::thread::scope(|scope| {
        let hosts: Vec<_> = (0..12)
            .map(|n| {
                let url = &url;
                scope.spawn(move || opened(url, &format!("host{n}")).register())
            })
            .collect();
        let registered: Vec<_> = hosts.into_iter().map(|host| host.join().unwrap()).collect();
        let mut incarnations: Vec<_> = registered.iter().map(|told| told.0.0).collect();
        incarnations.sort_unstable();
        assert!(incarnations.into_iter().eq(1..=12));
        registered.into_iter().map(|told| told.1).collect()
    });
    epochs.dedup();
    assert_eq!(epochs.len(), 1);
}

#[test]
fn schemas_are_logs_of_their_own() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let mut one = joined(&format!("{url}?canal_schema=one"), "web");
    let mut two = joined(&format!("{url}?canal_schema=two"), "web");
    assert_eq!((one.host.0, two.host.0), (1, 1));
    one.append(b"a");
    two.append(b"b");
    one.read(1);
    two.read(1);
    assert_eq!((one.log[0].body.as_slice(), two.log[0].body.as_slice()), (&b"a"[..], &b"b"[..]));
}

#[test]
fn a_user_that_may_not_create_a_schema_gets_the_grant_to_run() {
    let Some(server) = shared() else { return };
    server.sql("CREATE ROLE \"poor Bob\" LOGIN");
    server.sql("CREATE DATABASE rich");
    let url = format!("postgres://poor%20Bob@127.0.0.1:{}/rich", server.port);
    let (why, hint) = unable(&url);
    assert_eq!(why, "permission denied for database rich");
    assert_eq!(hint, "GRANT CREATE ON DATABASE rich TO \"poor Bob\"");

    server.sql_in("rich", "CREATE SCHEMA canal");
    let (why, hint) = unable(&url);
    assert_eq!(why, "permission denied for schema canal");
    assert_eq!(hint, "GRANT USAGE, CREATE ON SCHEMA \"canal\" TO \"poor Bob\"");

    // Following the hint is enough.
    server.sql_in("rich", &hint);
    joined(&url, "one");

    server.sql("CREATE ROLE other LOGIN");
    server.sql_in("rich", "GRANT USAGE ON SCHEMA canal TO other");
    let (why, hint) = unable(&url.replace("poor%20Bob", "other"));
    assert!(why.contains("belong to another user"), "{why}");
    assert!(hint.contains("same") || hint.contains("user that created them"), "{hint}");
}

#[test]
fn foreign_tables_are_refused_and_left_alone() {
    let Some(server) = shared() else { return };
    for tables in ["CREATE TABLE canal.log (x int)", "CREATE TABLE canal.head (x int)"] {
        let url = server.new_url();
        let database = url.rsplit('/').next().unwrap();
        server.sql_in(database, &format!("CREATE SCHEMA canal AUTHORIZATION {database}"));
        server.sql_in(database, &format!("SET ROLE {database}; {tables}"));
        let (why, hint) = unable(&url);
        assert_eq!(why, "schema canal has tables that do not belong to canal");
        assert!(hint.contains("canal_schema="), "{hint}");
        joined(&format!("{url}?canal_schema=mine"), "one");
    }
}

#[test]
fn a_log_of_another_format_is_refused() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    joined(&url, "one").append(b"a");
    server.sql_in(url.rsplit('/').next().unwrap(), "UPDATE canal.head SET format = 99");
    let (why, hint) = unable(&url);
    assert_eq!(why, "the log there has format 99, but this canal needs format 1");
    assert!(hint.contains("same version"), "{hint}");
}

#[test]
fn a_corrected_schema_can_be_used() {
    let Some(server) = shared() else { return };
    let url = server.new_url();
    let database = url.rsplit('/').next().unwrap();
    joined(&url, "one");
    server.sql_in(database, "UPDATE canal.head SET format = 99");
    let mut two = opened(&url, "two");
    two.unable();
    server.sql_in(database, "UPDATE canal.head SET format = 1");
    two.back();
    two.register();
}
