use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{append, is_plain};

/// Contains every form that a message or a record can have.
#[derive(Debug, Serialize)]
struct Whole {
    text: String,
    list: Vec<Part>,
    pair: (u8, i32),
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
    null: Option<bool>,
    unit: (),
    #[serde(rename = "a name that is longer than all that are put together")]
    long: u16,
    empty: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Part {
    Nothing,
    One(Number),
    Two(i64, String),
    Named { a: i8, b_c: Option<String> },
    Empty {},
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
struct Number(u64);

fn text() -> impl Strategy<Value = String> {
    // Many characters that must be escaped, at any position in a word.
    prop_oneof![".*", "[ -~]{0,40}", "[\u{0}-\u{7f}]{0,24}", "[a-z/]{0,20}[\"\\\\\n]?[a-zé]{0,9}"]
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        Just(Part::Nothing),
        any::<u64>().prop_map(|number| Part::One(Number(number))),
        (any::<i64>(), text()).prop_map(|(number, text)| Part::Two(number, text)),
        (any::<i8>(), prop::option::of(text())).prop_map(|(a, b_c)| Part::Named { a, b_c }),
        Just(Part::Empty {}),
    ]
}

fn whole() -> impl Strategy<Value = Whole> {
    let numbers = (any::<u8>(), any::<i32>(), any::<u16>(), any::<Option<u64>>());
    let lists = (prop::collection::vec(part(), 0..6), prop::collection::vec(any::<u32>(), 0..3));
    (text(), lists, numbers, any::<Option<bool>>()).prop_map(
        |(text, (list, empty), (a, b, long, left_out), null)| Whole {
            text,
            list,
            pair: (a, b),
            left_out,
            null,
            unit: (),
            long,
            empty,
        },
    )
}

fn appended<T: Serialize>(value: &T) -> Vec<u8> {
    let mut out = b"before".to_vec();
    append(value, &mut out).unwrap();
    assert!(out.starts_with(b"before"));
    out.split_off(6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_byte_is_serde_jsons(value in whole()) {
        prop_assert_eq!(appended(&value), serde_json::to_vec(&value).unwrap());
    }

    #[test]
    fn every_text_is_serde_jsons(value in text()) {
        prop_assert_eq!(appended(&value), serde_json::to_vec(&value).unwrap());
    }
}

#[test]
fn numbers_of_each_length_are_serde_jsons() {
    for power in (0..20).map(|length| 10_u64.pow(length)) {
        for number in [power - 1, power, power + 1, power.wrapping_mul(9)] {
            assert_eq!(appended(&number), number.to_string().into_bytes());
            let signed = (number / 2) as i64;
            assert_eq!(
                appended(&[signed, -signed]),
                format!("[{signed},{}]", -signed).into_bytes()
            );
        }
    }
    let last = (u64::MAX, i64::MIN, i64::MAX, i8::MIN, u8::MAX, i16::MIN, i32::MIN);
    assert_eq!(appended(&last), serde_json::to_vec(&last).unwrap());
}

#[test]
fn each_character_is_escaped_or_not_at_each_place_of_a_word() {
    for c in (0..=0x100).filter_map(char::from_u32) {
        for before in 0..=17 {
            for after in 0..=17 {
                let text = "a".repeat(before) + &c.to_string() + &"~".repeat(after);
                let written = serde_json::to_vec(&text).unwrap();
                assert_eq!(appended(&text), written, "{text:?}");
                assert_eq!(is_plain(&text), written.len() == text.len() + 2, "{text:?}");
            }
        }
    }
}

#[test]
fn other_values_are_left_to_serde_json() {
    let raw = RawValue::from_string(r#"{"as" : 1}"#.to_owned()).unwrap();
    assert_eq!(appended(&raw), br#"{"as" : 1}"#);
    assert_eq!(appended(&vec![1.5, -0.0]), b"[1.5,-0.0]");
    assert_eq!(appended(&'"'), br#""\"""#);
    assert_eq!(appended(&BTreeMap::from([(1, "a"), (2, "b")])), br#"{"1":"a","2":"b"}"#);
    assert_eq!(appended(&u128::MAX), u128::MAX.to_string().into_bytes());
}

#[test]
fn a_value_without_a_json_form_writes_nothing() {
    let mut out = b"before".to_vec();
    let no_name = [BTreeMap::from([(vec![1], 2)])];
    append(&no_name, &mut out).unwrap_err();
    assert_eq!(out, b"before");
}
