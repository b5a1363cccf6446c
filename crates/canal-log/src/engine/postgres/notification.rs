//! Small batches travel in the notification of their append, so a host need not fetch each one.
//!
//! Invariant: a batch is taken from a notification only if it directly follows the last one that
//! was read. Otherwise the notification only shows how far the log reaches.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::engine::{Append, Placed, Position};
use canal_core::HostId;

/// The largest body to carry, in bytes. The server accepts payloads of less than 8000 bytes, and
/// each byte takes two digits.
const BODY_MAX: usize = 3_700;

/// The length of a check, which also seeds the stream that hides the body.
const CHECK: usize = 16;

/// The key that seals batches: the epoch of the log, a random number in a table.
///
/// Any user that may connect to the database may listen and notify on a channel, without any right
/// to the tables. So a batch is sealed with a key known only to users who may read the tables, and
/// the server adds a signature over its position.
#[derive(Clone, Debug, Default)]
pub(super) struct Seal {
    epoch: Vec<u8>,
    /// The oid of the head's table. A loaded dump creates a table with another oid.
    table: u32,
}

/// The content of a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notification {
    /// The last position of the log.
    pub head: u64,
    /// The rest: a sealed batch, or nothing.
    sealed: String,
}

impl Notification {
    /// Parses a payload. An unreadable payload only means that the log has new batches.
    pub(super) fn read(payload: &str) -> Self {
        let (head, sealed) = payload.split_once(' ').unwrap_or((payload, ""));
        Self { head: head.parse().unwrap_or(u64::MAX), sealed: sealed.to_owned() }
    }
}

impl Seal {
    pub(super) fn new(epoch: &[u8], table: u32) -> Self {
        Self { epoch: epoch.to_vec(), table }
    }

    /// The SQL expression of a payload, where `position` and `epoch` are columns. The server has
    /// SHA-256 but no HMAC. Plain hashing is safe here because the signed text has a fixed length.
    pub(super) fn payload(&self, append: &Append) -> String {
        let Append { host, sequence, ref body, .. } = *append;
        if body.len() > BODY_MAX {
            return "position::text".to_owned();
        }
        let whole = self.check(host, sequence, body).finalize().into_bytes();
        let check = std::array::from_fn(|at| whole[at]);
        let mut body = body.clone();
        self.hide(&check, &mut body);
        let (check, body) = (const_hex::encode(check), const_hex::encode(body));
        format!(
            "position || ' {host} {sequence} {check} {body} ' || \
             encode(sha256(epoch || int8send(position) || '\\x{check}'::bytea || epoch), 'hex')"
        )
    }

    /// The batch in a notification, if there is one and it is genuine.
    pub(super) fn open(&self, notification: &Notification) -> Option<Placed> {
        let words: Vec<&str> = notification.sealed.split(' ').collect();
        let [host, sequence, check, body, signature] = words.as_slice() else { return None };
        let (host, sequence) = (HostId(host.parse().ok()?), sequence.parse().ok()?);
        let check: [u8; CHECK] = const_hex::decode(check).ok()?.try_into().ok()?;
        let signed = Sha256::new()
            .chain_update(&self.epoch)
            .chain_update(notification.head.to_be_bytes())
            .chain_update(check)
            .chain_update(&self.epoch)
            .finalize();
        if const_hex::decode(signature).ok()? != signed[..] {
            return None;
        }
        let mut body = const_hex::decode(body).ok()?;
        self.hide(&check, &mut body);
        self.check(host, sequence, &body).verify_truncated_left(&check).ok()?;
        Some(Placed { position: Position(notification.head), host, sequence, body })
    }

    fn check(&self, host: HostId, sequence: u64, body: &[u8]) -> Hmac<Sha256> {
        let mac = self.mac(b"check").chain_update(self.table.to_be_bytes());
        let mac = mac.chain_update(host.0.to_be_bytes()).chain_update(sequence.to_be_bytes());
        mac.chain_update(body)
    }

    /// Hides a body, or reveals it again. Each body has its own check and therefore its own stream.
    fn hide(&self, check: &[u8; CHECK], body: &mut [u8]) {
        for (number, block) in (0u64..).zip(body.chunks_mut(32)) {
            let mac = self.mac(b"stream").chain_update(check).chain_update(number.to_be_bytes());
            let stream = mac.finalize().into_bytes();
            block.iter_mut().zip(stream).for_each(|(byte, with)| *byte ^= with);
        }
    }

    fn mac(&self, purpose: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::new_from_slice(&self.epoch);
        let mac = mac.unwrap_or_else(|_| unreachable!("HMAC accepts keys of any length"));
        mac.chain_update(purpose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal() -> Seal {
        Seal::new(b"0123456789abcdef", 7)
    }

    /// The payload that the server makes.
    fn sent(seal: &Seal, position: u64, body: &[u8]) -> String {
        let append = Append { host: HostId(3), sequence: 4, body: body.to_vec(), ends: None };
        let sql = seal.payload(&append);
        let Some(sealed) = sql.split('\'').nth(1) else { return position.to_string() };
        let check = const_hex::decode(sealed.split(' ').nth(3).unwrap()).unwrap();
        let signature = Sha256::new()
            .chain_update(&seal.epoch)
            .chain_update(position.to_be_bytes())
            .chain_update(check)
            .chain_update(&seal.epoch)
            .finalize();
        format!("{position}{sealed}{}", const_hex::encode(signature))
    }

    #[test]
    fn a_small_batch_travels_in_its_notification_and_cannot_be_read_there() {
        for body in [&b""[..], b"a short one", &[b'x'; BODY_MAX]] {
            let payload = sent(&seal(), 9, body);
            assert!(payload.len() < 8000, "{}", payload.len());
            assert!(body.is_empty() || !payload.contains(&const_hex::encode(body)));
            let placed = seal().open(&Notification::read(&payload)).unwrap();
            assert_eq!((placed.position, placed.host), (Position(9), HostId(3)));
            assert_eq!((placed.sequence, placed.body.as_slice()), (4, body));
        }
    }

    #[test]
    fn a_large_batch_is_only_announced() {
        let payload = sent(&seal(), 9, &[b'x'; BODY_MAX + 1]);
        let notification = Notification::read(&payload);
        assert_eq!((notification.head, seal().open(&notification)), (9, None));
        assert_eq!(Notification::read("nonsense").head, u64::MAX);
    }

    #[test]
    fn what_others_notify_is_no_batch() {
        let genuine = sent(&seal(), 9, b"body");
        let with_position = |position: &str| genuine.replacen('9', position, 1);
        for forged in [
            with_position("10"),
            genuine.replacen(" 3 ", " 5 ", 1),
            genuine.replacen(" 4 ", " 5 ", 1),
            genuine[..genuine.len() - 1].to_owned(),
            sent(&Seal::new(b"another", 7), 9, b"body"),
            sent(&Seal::new(b"0123456789abcdef", 8), 9, b"body"),
            "9 3 4".to_owned(),
            "9 3 4 x y z".to_owned(),
        ] {
            assert_eq!(seal().open(&Notification::read(&forged)), None, "{forged}");
        }
    }
}
