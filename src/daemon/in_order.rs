//! Reading what is asked most as canal itself writes it: the fields in the order of the protocol.
//!
//! Invariant: what is read here is read as the same by [`Plain::value`], which also reads what stands
//! in another order; that is `None` here.

use serde::Deserialize;

use crate::json::Plain;
use crate::protocol::{Acquire, Release, WireItem};

/// The parameters of `Acquire`.
pub(super) fn acquire(plain: &mut Plain<'_>) -> Option<Acquire> {
    let acquire = Acquire {
        tag: field(plain, "{\"tag\":")?,
        items: items(plain)?,
        wait_ms: maybe(plain, ",\"wait_ms\":")?,
        priority: maybe(plain, ",\"priority\":")?.unwrap_or_default(),
        command: text(plain, ",\"command\":")?,
        owner_fd: maybe(plain, ",\"owner_fd\":")?,
        with_children: maybe(plain, ",\"with_children\":")?.unwrap_or_default(),
        session: maybe(plain, ",\"session\":")?,
        frame: maybe(plain, ",\"frame\":")?,
        lease: maybe(plain, ",\"lease\":")?,
        wrapper: maybe(plain, ",\"wrapper\":")?,
        on_lost: maybe(plain, ",\"on_lost\":")?.unwrap_or_default(),
    };
    plain.goes_on("}").then_some(acquire)
}

/// The parameters of `Release`, of one that names a key.
pub(super) fn release(plain: &mut Plain<'_>) -> Option<Release> {
    let key = Some(text(plain, "{\"key\":")?);
    let owner_fd = maybe(plain, ",\"owner_fd\":")?;
    plain.goes_on("}").then_some(Release { key, owner_fd, ..Release::default() })
}

fn items(plain: &mut Plain<'_>) -> Option<Vec<WireItem>> {
    if !plain.goes_on(",\"items\":[") {
        return None;
    }
    // Mostly it is one.
    let mut items = Vec::with_capacity(1);
    loop {
        items.push(item(plain)?);
        if plain.goes_on("]") {
            return Some(items);
        }
        if !plain.goes_on(",") {
            return None;
        }
    }
}

fn item(plain: &mut Plain<'_>) -> Option<WireItem> {
    let item = WireItem {
        key: text(plain, "{\"key\":")?,
        mode: maybe(plain, ",\"mode\":")?,
        count: maybe(plain, ",\"count\":")?,
        per: maybe(plain, ",\"per\":")?,
        buckets: maybe(plain, ",\"buckets\":")?,
        slots: maybe(plain, ",\"slots\":")?,
    };
    plain.goes_on("}").then_some(item)
}

/// A field; `name` is all that stands before its value.
#[inline]
fn field<'a, T: Deserialize<'a>>(plain: &mut Plain<'a>, name: &str) -> Option<T> {
    if plain.goes_on(name) { plain.value() } else { None }
}

#[inline]
fn text<T: for<'a> From<&'a str>>(plain: &mut Plain<'_>, name: &str) -> Option<T> {
    if plain.goes_on(name) { plain.text().map(T::from) } else { None }
}

/// A field that may be missing; `None` if it cannot be read.
#[inline]
fn maybe<'a, T: Deserialize<'a>>(plain: &mut Plain<'a>, name: &str) -> Option<Option<T>> {
    if plain.goes_on(name) { plain.value().map(Some) } else { Some(None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Handle, LeaseAsked, Mode, OnLost, Tag, Wrapper};

    /// Requests with every field and without, in turn.
    fn requests() -> impl Iterator<Item = Acquire> {
        (0..1_u32 << 10).map(|fields| {
            let has = |field: u32| fields >> field & 1 == 1;
            let number = |field| has(field).then_some(7);
            let item = |key: &str| WireItem {
                key: key.into(),
                mode: has(0).then_some(Mode::Write),
                count: number(1),
                per: number(2),
                buckets: number(3),
                slots: number(4),
            };
            let lease = LeaseAsked { handle: Handle::new(1), ttl_ms: 5 };
            Acquire {
                tag: Tag(3),
                items: if has(5) { vec![item("a/b"), item("é")] } else { vec![item("a")] },
                wait_ms: has(6).then_some(0),
                priority: i32::from(has(7)),
                command: "make".to_owned(),
                owner_fd: has(8).then_some(1),
                with_children: has(9),
                session: has(0).then(|| "s1".to_owned()),
                frame: has(1).then(|| "f1".to_owned()),
                lease: has(2).then_some(lease),
                wrapper: has(3).then_some(Wrapper::Stays),
                on_lost: if has(4) { OnLost::Warn } else { OnLost::Kill },
            }
        })
    }

    fn read<T>(json: &str, read: fn(&mut Plain<'_>) -> Option<T>) -> Option<T> {
        let mut plain = Plain::new(json.as_bytes())?;
        read(&mut plain).filter(|_| plain.is_over())
    }

    #[test]
    fn what_canal_writes_is_read() {
        for request in requests() {
            let json = serde_json::to_string(&request).unwrap();
            assert_eq!(read(&json, acquire), Some(request), "{json}");
        }
        for owner_fd in [None, Some(1)] {
            let by_key = Release { key: Some("a".into()), owner_fd, ..Release::default() };
            let json = serde_json::to_string(&by_key).unwrap();
            assert_eq!(read(&json, release), Some(by_key), "{json}");
        }
    }

    #[test]
    fn what_is_cut_or_stands_in_another_order_is_not_read() {
        let request = requests().last().unwrap();
        let json = serde_json::to_string(&request).unwrap();
        for end in (0..json.len()).filter(|end| json.is_char_boundary(*end)) {
            assert_eq!(read(&json[..end], acquire), None, "{end}");
        }
        for other in [
            r#"{"command":"make","tag":"00000000000000000000000000000003","items":[]}"#,
            r#"{"tag":"00000000000000000000000000000003","items":[],"command":"make"}"#,
            r#"{"tag":"00000000000000000000000000000003","items":[{"key":"a"},],"command":"make"}"#,
            r#"{"tag":"00000000000000000000000000000003","items":[{"key":"a"}]}"#,
            r#"{"tag":"00000000000000000000000000000003","items":[{"key":"a"}],"command":"","new":1}"#,
        ] {
            assert_eq!(read(other, acquire), None, "{other}");
        }
        for other in [r#"{"all":true}"#, r#"{"key":"a","all":true}"#, r#"{"key":null}"#] {
            assert_eq!(read(other, release), None, "{other}");
        }
    }
}
