//! Formats records as comma-separated values (RFC 4180).

use crate::cli::{sanitize, user_name};
use crate::protocol::HistoryRecord;

/// The first line.
const NAMES: &str = "number,asked,ended,how,exit,signal,waited_ms,held_ms,keys,user,pid,session,\
                     token,host,note,command,at_least\r\n";

/// A line of names, and one line for each record.
pub(super) fn text(records: &[HistoryRecord]) -> String {
    NAMES.to_owned() + &records.iter().map(line).collect::<String>()
}

fn line(record: &HistoryRecord) -> String {
    let shown = |number: Option<u64>| number.map(|it| it.to_string()).unwrap_or_default();
    let own = |text: &Option<String>| text.clone().unwrap_or_default();
    let keys: Vec<&str> = record.items.iter().map(|item| item.key.as_str()).collect();
    let values = [
        record.number.to_string(),
        record.asked.clone(),
        record.ended.clone(),
        record.how.clone(),
        shown(record.exit.map(u64::from)),
        shown(record.signal.map(u64::from)),
        record.waited_ms.to_string(),
        shown(record.held_ms),
        keys.join(" "),
        user_name::name(record.uid),
        record.pid.to_string(),
        own(&record.session),
        shown(record.token),
        own(&record.host),
        own(&record.note),
        own(&record.command),
        if record.at_least { "true".to_owned() } else { String::new() },
    ];
    values.map(|value| quoted(&sanitize(&value))).join(",") + "\r\n"
}

fn quoted(value: &str) -> String {
    if value.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", value.replace('"', "\"\""))
    } else {
        value.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{HistoryItem, Mode};

    #[test]
    fn what_separates_values_is_quoted() {
        let item = |key: &str| HistoryItem {
            key: key.to_owned(),
            mode: Mode::Counted,
            count: 1,
            slots: None,
        };
        let record = HistoryRecord {
            number: 7,
            how: "ended".to_owned(),
            exit: Some(1),
            uid: 4_000_000,
            command: Some("sh -c 'a, \"b\"'\nx".to_owned()),
            items: vec![item("a"), item("b")],
            ..HistoryRecord::default()
        };
        let text = text(&[record]);
        let lines: Vec<_> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].split(',').count(), 17);
        assert_eq!(lines[1], "7,,,ended,1,,0,,a b,4000000,0,,,,,\"sh -c 'a, \"\"b\"\"'?x\",");
    }
}
