//! The engine's refusals and their messages.

use super::conditions::{back, peer, unable};
use super::prefix;
use crate::engine_contract::Log;
use crate::engine_contract::peer::Peer;

#[test]
fn a_log_of_another_format_is_refused_and_left_alone() {
    let Some(log) = prefix() else { return };
    let key = format!("/test{}/meta", log.number);
    let meta = r#"{"format":99,"epoch":"1"}"#;
    log.server.ctl_ok(&["put", &key, meta]);
    let mut one = Peer::with(log.engine("one"), "one");
    let (why, hint) = unable(&mut one);
    assert!(why.contains("format 99") && hint.contains("version"), "{why}; {hint}");
    assert_eq!(log.server.ctl_ok(&["get", "--print-value-only", &key]).trim(), meta);
}

#[test]
fn a_prefix_that_something_else_uses_is_refused() {
    let Some(log) = prefix() else { return };
    log.server.ctl_ok(&["put", &format!("/test{}/meta", log.number), "hello"]);
    let mut one = Peer::with(log.engine("one"), "one");
    let (why, hint) = unable(&mut one);
    assert!(why.contains("does not belong to canal") && hint.contains("prefix"), "{why}; {hint}");
}

#[test]
fn a_batch_that_etcd_would_refuse_for_its_size_is_refused_clearly() {
    let Some(log) = prefix() else { return };
    let mut one = Peer::joined(&log, "one");
    one.ask(1, &vec![0; canal::log::engine::etcd::BODY_MAX], None);
    assert!(matches!(one.appended(1), crate::engine_contract::peer::Appending::At(_)));
    one.ask(2, &vec![0; canal::log::engine::etcd::BODY_MAX + 1], None);
    assert!(unable(&mut one).0.contains("exceeds etcd's limit"));
    back(&mut one);
    assert!(one.renew().is_some(), "the others need not suffer for it");
}

#[test]
fn tls_files_that_are_missing_are_named() {
    let mut one = peer("etcds://127.0.0.1:1/x?cacert=/nonexistent/ca.pem", "one");
    let (why, _) = unable(&mut one);
    assert_eq!(why, "cannot read `/nonexistent/ca.pem`: no such file or directory");
}
