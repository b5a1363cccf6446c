//! Whether messages are what the interface description says, read by somebody else's parser.

use std::collections::BTreeSet;

use canal::protocol::{INTERFACE, INTERFACE_DESCRIPTION};
use serde_json::Value;
use zlink_idl::{CustomType, Interface, Type};

fn interface() -> Interface<'static> {
    Interface::try_from(INTERFACE_DESCRIPTION).expect("the description is valid")
}

/// Checks what a method returned.
#[track_caller]
pub(crate) fn check_reply(method: &str, parameters: &Value) {
    if method.contains('.') {
        return;
    }
    let interface = interface();
    let found = interface.methods().find(|it| it.name().as_str() == method);
    let found = found.unwrap_or_else(|| panic!("{method} is not described"));
    let fields = found.outputs().map(|it| (it.name().as_str(), it.ty()));
    check_fields(&interface, method, parameters, fields);
}

/// Checks the parameters of an error.
#[track_caller]
pub(crate) fn check_error(name: &str, parameters: &Value) {
    let Some(short) = name.strip_prefix(INTERFACE).and_then(|rest| rest.strip_prefix('.')) else {
        return;
    };
    let interface = interface();
    let found = interface.errors().find(|it| it.name().as_str() == short);
    let found = found.unwrap_or_else(|| panic!("{short} is not described"));
    let fields = found.fields().map(|it| (it.name().as_str(), it.ty()));
    check_fields(&interface, short, parameters, fields);
}

#[track_caller]
fn check_fields<'a>(
    interface: &Interface<'_>,
    place: &str,
    value: &Value,
    fields: impl Iterator<Item = (&'a str, &'a Type<'a>)>,
) {
    let object = value.as_object().unwrap_or_else(|| panic!("{place} is no object: {value}"));
    let mut unknown: BTreeSet<&str> = object.keys().map(String::as_str).collect();
    for (name, kind) in fields {
        unknown.remove(name);
        let value = object.get(name).unwrap_or(&Value::Null);
        check(interface, &format!("{place}.{name}"), value, kind);
    }
    assert!(unknown.is_empty(), "{place} has fields that are not described: {unknown:?}");
}

#[track_caller]
fn check(interface: &Interface<'_>, place: &str, value: &Value, kind: &Type<'_>) {
    let fits = match kind {
        Type::Bool => value.is_boolean(),
        Type::Int => value.is_i64(),
        Type::Float => value.is_number(),
        Type::String => value.is_string(),
        Type::Optional(inner) => {
            if !value.is_null() {
                check(interface, place, value, inner.inner());
            }
            true
        }
        Type::Array(inner) => {
            let items = value.as_array();
            items.into_iter().flatten().for_each(|it| check(interface, place, it, inner.inner()));
            items.is_some()
        }
        Type::Enum(variants) => {
            variants.iter().any(|variant| Some(variant.name().as_str()) == value.as_str())
        }
        Type::Object(fields) => {
            check_fields(
                interface,
                place,
                value,
                fields.iter().map(|it| (it.name().as_str(), it.ty())),
            );
            true
        }
        Type::Custom(name) => {
            let custom = interface.custom_types().find(|it| it.name() == name);
            match custom {
                Some(CustomType::Object(object)) => {
                    let fields = object.fields().map(|it| (it.name().as_str(), it.ty()));
                    check_fields(interface, place, value, fields);
                    true
                }
                _ => false,
            }
        }
        _ => false,
    };
    assert!(fits, "{place} is not what is described: {value}, {kind:?}");
}
