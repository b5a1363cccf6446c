use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Plain, append, is_plain};

/// Of everything that a message or a record has, something.
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
    // Much that is to be escaped, at any place of a word.
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
    for four in 1..10_000_u64 {
        for number in [four, four * 10_000, four * 100_000_000 + 9_999, four + 90_009_900_000_000] {
            assert_eq!(appended(&number), number.to_string().into_bytes());
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
fn what_is_not_written_here_is_left_to_serde_json() {
    let raw = RawValue::from_string(r#"{"as" : 1}"#.to_owned()).unwrap();
    assert_eq!(appended(&raw), br#"{"as" : 1}"#);
    assert_eq!(appended(&vec![1.5, -0.0]), b"[1.5,-0.0]");
    assert_eq!(appended(&'"'), br#""\"""#);
    assert_eq!(appended(&BTreeMap::from([(1, "a"), (2, "b")])), br#"{"1":"a","2":"b"}"#);
    assert_eq!(appended(&u128::MAX), u128::MAX.to_string().into_bytes());
}

#[test]
fn what_has_no_form_leaves_nothing() {
    let mut out = b"before".to_vec();
    let no_name = [BTreeMap::from([(vec![1], 2)])];
    append(&no_name, &mut out).unwrap_err();
    assert_eq!(out, b"before");
}

/// What is read of messages: all that [`super::Plain`] reads itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Read {
    text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    maybe: Option<String>,
    number: u64,
    #[serde(default)]
    small: i8,
    flag: bool,
    inside: Vec<Inside>,
    number_in: Wrapped,
    #[serde(default)]
    way: Way,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Inside {
    a: Option<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Wrapped(u32);

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
enum Way {
    #[default]
    Here,
    There,
}

fn read_plain<T: DeserializeOwned>(json: &str) -> Option<T> {
    let mut plain = Plain::new(json.as_bytes())?;
    let value = plain.value()?;
    plain.is_over().then_some(value)
}

fn to_read() -> impl Strategy<Value = Read> {
    let way = prop_oneof![Just(Way::Here), Just(Way::There)];
    let inside = prop::collection::vec(any::<Option<u16>>().prop_map(|a| Inside { a }), 0..4);
    let texts = ("[ !#-\\[\\]-~é]{0,30}", prop::option::of(text()));
    (texts, any::<(u64, i8, bool, u32)>(), inside, way).prop_map(
        |((text, maybe), (number, small, flag, wrapped), inside, way)| {
            let number_in = Wrapped(wrapped);
            Read { text, maybe, number, small, flag, inside, number_in, way }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn what_is_read_is_what_serde_json_reads(value in to_read()) {
        let json = serde_json::to_string(&value).unwrap();
        let plain = read_plain::<Read>(&json);
        let is_plain = !json.contains('\\') && value.small >= 0;
        prop_assert_eq!(plain, is_plain.then_some(value));
    }

    /// Much of this is no JSON any more, or means something else.
    #[test]
    fn what_is_changed_anywhere_is_read_as_serde_json_reads_it_or_not_at_all(
        value in to_read(),
        changes in prop::collection::vec((any::<usize>(), 0..3, "[ -~\n]"), 1..4),
    ) {
        let mut json = serde_json::to_string(&value).unwrap();
        for (at, what, with) in changes {
            let mut at = at % json.len();
            while !json.is_char_boundary(at) {
                at -= 1;
            }
            match what {
                0 => json.insert_str(at, &with),
                1 => drop(json.remove(at)),
                _ => {
                    json.remove(at);
                    json.insert_str(at, &with);
                }
            }
        }
        if let Some(plain) = read_plain::<Read>(&json) {
            prop_assert_eq!(plain, serde_json::from_str::<Read>(&json).unwrap(), "{}", json);
        }
    }
}

#[test]
fn what_is_wrong_or_unusual_is_not_read() {
    let numbers = ["01", "1.0", "1e2", "-1", "", "18446744073709551616", "1 ", " 1", "+1", "0x1"];
    for json in numbers {
        assert_eq!(read_plain::<u64>(json), None, "{json:?}");
    }
    assert_eq!(read_plain("18446744073709551615"), Some(u64::MAX));
    assert_eq!(read_plain::<u8>("256"), None);
    for json in ["[1,]", "[,1]", "[1 ,2]", "[1", "[1]]", "[1;2]", "{}", "[", "[01]"] {
        assert_eq!(read_plain::<Vec<u8>>(json), None, "{json:?}");
    }
    assert_eq!(read_plain("[]"), Some(Vec::<u8>::new()));
    let objects = [
        r#"{"a":1,"a":1}"#,
        r#"{"b":1}"#,
        r#"{"a":1,}"#,
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a" :1}"#,
        r#"[1]"#,
        r#"{"\u0061":1}"#,
        r#"{"a":1"#,
    ];
    for json in objects {
        assert_eq!(read_plain::<Inside>(json), None, "{json}");
    }
    assert_eq!(read_plain(r#"{"a":null}"#), Some(Inside { a: None }));
    for json in ["\"a\nb\"", r#""a\n""#, r#""a"#, "a", "\"aaaaaaaaaaaaaaaa\u{1f}\"", "'a'"] {
        assert_eq!(read_plain::<String>(json), None, "{json:?}");
    }
    assert_eq!(read_plain::<Way>(r#"{"Here":null}"#), None);
    assert_eq!(read_plain::<f64>("1"), None);
    assert!(Plain::new(b"\"\xff\"").is_none());
}
