//! The settings that a configuration contains, each with its name, its text and its line.
//!
//! They come from the file itself, not from the parsed settings, so canal shows and compares a new
//! setting without further code.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::sections_and_defaults::shown_address;

/// A setting in the form that the file contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// `limits.connections`, `keys.db`, `permission[0]`.
    pub name: String,
    /// Its value, on one line. A size is `4` or `3x2`. Addresses have no password.
    pub value: String,
    /// Its line, counted from 1.
    pub line: u64,
}

/// The settings in a text, in the order of their names. A text that is not TOML has none.
pub(crate) fn written(text: &str) -> Vec<Written> {
    let mut all = Vec::new();
    if let Ok(document) = DeTable::parse(text) {
        collect(text, document.get_ref(), "", &mut all);
    }
    all
}

fn collect(text: &str, table: &DeTable<'_>, above: &str, all: &mut Vec<Written>) {
    for (key, value) in table {
        let key_name = name_of_key(key.get_ref());
        let name = if above.is_empty() { key_name } else { format!("{above}.{key_name}") };
        let line = line_of(text, key.span().start);
        let mut add = |name: String, value: String, line| all.push(Written { name, value, line });
        match value.get_ref() {
            DeValue::Table(of_key) if above == "keys" => add(name, size(text, of_key), line),
            DeValue::Table(section) => collect(text, section, &name, all),
            DeValue::Array(items)
                if !items.is_empty() && items.iter().all(|item| item.get_ref().is_table()) =>
            {
                for (n, item) in items.iter().enumerate() {
                    let line = line_of(text, item.span().start);
                    add(format!("{name}[{n}]"), on_one_line(text, item), line);
                }
            }
            DeValue::String(url) if name == "engine" || name == "engine.url" => {
                add("engine.url".to_owned(), shown_address(url), line);
            }
            DeValue::String(value) => add(name, value.to_string(), line),
            _ => add(name, on_one_line(text, value), line),
        }
    }
}

/// A value in a form that fits on one line.
fn on_one_line(text: &str, value: &Spanned<DeValue<'_>>) -> String {
    match value.get_ref() {
        DeValue::Table(table) => fields(text, table),
        DeValue::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| on_one_line(text, item)).collect();
            format!("[{}]", items.join(", "))
        }
        DeValue::String(value) => format!("{value:?}"),
        _ => text.get(value.span()).unwrap_or_default().to_owned(),
    }
}

fn fields(text: &str, table: &DeTable<'_>) -> String {
    let field = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let key: &std::borrow::Cow<'_, str> = key.get_ref();
        format!("{key} = {}", on_one_line(text, value))
    };
    table.iter().map(field).collect::<Vec<_>>().join(", ")
}

/// The settings of a key: `4` for slots, `3x2` for 3 in each of 2 buckets, with `, spread` if
/// requests are spread over these.
fn size(text: &str, table: &DeTable<'_>) -> String {
    let field = |name: &str| {
        let value = table.iter().find(|(key, _)| key.get_ref() == name)?.1;
        Some(on_one_line(text, value))
    };
    match (table.len(), field("slots"), field("per"), field("buckets")) {
        (1, Some(slots), None, None) => slots,
        (2, None, Some(per), Some(buckets)) => format!("{per}x{buckets}"),
        (3, None, Some(per), Some(buckets)) if field("spread").is_some_and(|it| it == "true") => {
            format!("{per}x{buckets}{SPREAD}")
        }
        _ => fields(text, table),
    }
}

/// The suffix of the size of a key whose requests are spread over its buckets.
pub(crate) const SPREAD: &str = ", spread";

/// A key in the form that it has in the name of a setting.
pub(crate) fn name_of_key(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !key.is_empty() && key.chars().all(is_bare) { key.to_owned() } else { format!("{key:?}") }
}

/// The line of a byte, counted from 1.
pub(crate) fn line_of(text: &str, at: usize) -> u64 {
    text.get(..at).unwrap_or(text).matches('\n').count() as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_its_name_value_and_line() {
        let text = "engine = \"postgres://canal:s3cret@db/canal?x\"\n\
                    [keys.db]\nper = 3\nbuckets = 2\n[keys.\"deploy/web\"]\nslots = 1\n\
                    [limits]\n# a comment\nconnections = 1_000\nconnection_idle = \"60s\"\n\
                    [[permission]]\nkeys = \"a\"\ngroups = [\"ops\", 7]\nmay = [\"hold\"]\n\
                    [[permission]]\ngroups = []\nmay = [\n  \"hold\", # all\n]\n";
        let found = written(text);
        let found: Vec<String> =
            found.iter().map(|one| format!("{}: {} = {}", one.line, one.name, one.value)).collect();
        assert_eq!(
            found,
            [
                "1: engine.url = postgres://db/canal",
                "2: keys.db = 3x2",
                "5: keys.\"deploy/web\" = 1",
                "10: limits.connection_idle = 60s",
                "9: limits.connections = 1_000",
                "11: permission[0] = groups = [\"ops\", 7], keys = \"a\", may = [\"hold\"]",
                "15: permission[1] = groups = [], may = [\"hold\"]",
            ]
        );
        let spread = written("[keys.a]\nper = 3\nbuckets = 2\nspread = true\n");
        assert_eq!(spread[0].value, "3x2, spread");
        assert_eq!(written("not = "), []);
        let table = written("[engine]\nurl = \"etcd://a:b@c/d\"\nttl = \"30s\"\n");
        let values: Vec<&str> = table.iter().map(|one| one.value.as_str()).collect();
        assert_eq!(values, ["30s", "etcd://c/d"]);
    }
}
