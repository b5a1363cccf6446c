//! Eras: the log records each new era once, before anything else happens.

use std::time::Duration;

use canal_core::HostId;
use canal_log::engine::{Answer, Call, Era, Registration};

use super::Log;
use super::peer::{Follow, Peer, TTL_MS};

/// How long a test waits to confirm that no answer comes.
const WHILE: Duration = Duration::from_millis(300);

/// A host that does not note eras automatically.
fn hesitant(log: &impl Log, label: &str) -> Peer {
    let mut peer = Peer::new(log, label);
    peer.notes = false;
    peer.until_eras(1);
    peer
}

pub(crate) fn nothing_is_done_before_the_first_era_is_noted(log: &impl Log) {
    let mut one = hesitant(log, "one");
    let told = one.eras[0].clone();
    assert_eq!((told.before, told.era.number, told.may_lack), (None, 1, false));
    let (identity, nonce) = (one.identity(), 77);
    one.call(Call::Register(Registration { identity, nonce, ttl_ms: TTL_MS, asked_at: 17 }));
    one.call(Call::Load);
    one.call(Call::Renew { host: HostId(1), asked_at: 1 });
    let answer = one.poll(WHILE);
    assert!(answer.is_none(), "{answer:?}");
    // The engine now carries out the pending calls. A call that depends on another one follows it.
    one.note_era();
    one.until("Registered", |answer| matches!(answer, Answer::Registered { .. }).then_some(()));
    one.until("Loaded", |answer| matches!(answer, Answer::Loaded { .. }).then_some(()));
    one.load();
    let noted: Vec<_> = one.noted.iter().map(|at| (at.host, at.sequence, &at.body[..])).collect();
    assert_eq!(noted, [(HostId(0), 1, &b"era 1 by one"[..])]);
}

pub(crate) fn one_of_many_hosts_notes_an_era_and_all_read_it_in_one_place(log: &impl Log) {
    let mut peers: Vec<_> = (0..5).map(|n| hesitant(log, &format!("host{n}"))).collect();
    std::thread::scope(|scope| {
        for peer in &mut peers {
            scope.spawn(|| {
                peer.notes = true;
                peer.note_era();
                peer.register();
                peer.load();
                peer.append(b"a");
                peer.read(5);
            });
        }
    });
    for peer in &peers {
        assert_eq!(peer.noted.len(), 1, "{:?}", peer.noted);
        assert_eq!((&peer.noted, &peer.log), (&peers[0].noted, &peers[0].log));
        assert!(peer.noted[0].position < peer.log[0].position);
    }
}

pub(crate) fn an_era_that_is_noted_twice_is_in_the_log_once(log: &impl Log) {
    let mut one = hesitant(log, "one");
    let mut two = hesitant(log, "two");
    for _ in 0..3 {
        one.note_era();
    }
    one.register();
    one.load();
    one.note_era();
    one.append(b"a");
    // The engine reported the era before the log contained it.
    two.note_era();
    two.register();
    two.note_era();
    two.load();
    assert_eq!((two.noted.len(), two.log.len()), (1, 1));
    assert_eq!((one.eras.len(), two.eras.len()), (1, 1));
}

pub(crate) fn an_era_that_the_engine_did_not_report_is_not_noted(log: &impl Log) {
    let mut one = hesitant(log, "one");
    let era = one.eras[0].era.clone();
    let other = Era { number: era.number, sign: "another server".to_owned() };
    let later = Era { number: era.number + 1, sign: era.sign.clone() };
    for (before, era) in [(None, other), (None, later.clone()), (Some(era), later)] {
        one.call(Call::NoteEra { before, era, body: b"wrong".to_vec() });
    }
    // The engine reports the era again each time, because the earlier batch may have been lost.
    one.until_eras(4);
    one.note_era();
    one.register();
    one.load();
    assert_eq!(one.noted.len(), 1);
    assert_eq!(one.noted[0].body, b"era 1 by one");
}

pub(crate) fn a_host_that_comes_later_gets_no_report_of_the_era(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::joined(log, "two");
    let last = one.append(b"a");
    two.read_to(last);
    assert_eq!((one.eras.len(), two.eras.len()), (1, 0));
    assert_eq!(one.noted, two.noted);
}

pub(crate) fn followers_read_eras_and_snapshots_cover_them(log: &impl Log) {
    let mut one = Peer::joined(log, "one");
    let mut two = Peer::new(log, "two");
    assert_eq!(two.follow(None), Follow::Batches);
    one.append(b"a");
    let last = one.append(b"b");
    two.read_to(last);
    assert_eq!(two.noted, one.noted);
    assert_eq!(two.noted.len(), 1);
    one.read_to(last);
    let stored = one.store(one.log[0].position, b"table");
    assert_eq!(stored, one.log[0].position);
    assert_eq!(two.load().unwrap().position, stored);
    assert_eq!((two.noted.len(), two.log.len()), (0, 1));
}
