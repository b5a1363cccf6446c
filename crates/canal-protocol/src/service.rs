//! The interface of every varlink service: its name, version and interface descriptions.
//!
//! Invariant: the types of `messages` write and read exactly the described messages; tests compare
//! the two.

use serde::{Deserialize, Serialize};

/// The name of the interface.
pub const INTERFACE: &str = "io.canal.Lock";

/// The interface description, as `org.varlink.service.GetInterfaceDescription` returns it.
pub const INTERFACE_DESCRIPTION: &str = include_str!("interface/io.canal.Lock.varlink");

/// The name of the interface that requests over nodes use.
pub const NODES_INTERFACE: &str = "io.canal.Nodes";

/// The description of the interface that requests over nodes use.
pub const NODES_DESCRIPTION: &str = include_str!("interface/io.canal.Nodes.varlink");

/// The description of the interface that every varlink service has.
const SERVICE_DESCRIPTION: &str = include_str!("interface/org.varlink.service.varlink");

/// The name of the interface that every varlink service has.
pub const SERVICE: &str = "org.varlink.service";

/// The reply to `GetInfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The vendor.
    pub vendor: String,
    /// Its name.
    pub product: String,
    /// Its version.
    pub version: String,
    /// The address of its documentation.
    pub url: String,
    /// The names of its interfaces.
    pub interfaces: Vec<String>,
}

impl Info {
    /// The information about this program.
    pub fn ours() -> Self {
        Self {
            vendor: "canal".to_owned(),
            product: "canal".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            url: env!("CARGO_PKG_REPOSITORY").to_owned(),
            interfaces: [SERVICE, INTERFACE, NODES_INTERFACE].map(str::to_owned).into(),
        }
    }
}

/// `GetInterfaceDescription`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptionQuery {
    /// The interface.
    pub interface: String,
}

/// The reply to `GetInterfaceDescription`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The interface as text.
    pub description: String,
}

/// The description of one of the interfaces.
pub fn description(interface: &str) -> Option<&'static str> {
    match interface {
        SERVICE => Some(SERVICE_DESCRIPTION),
        INTERFACE => Some(INTERFACE_DESCRIPTION),
        NODES_INTERFACE => Some(NODES_DESCRIPTION),
        _ => None,
    }
}

/// The errors that any call to any varlink service may end with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ServiceError {
    /// There is no such interface.
    InterfaceNotFound {
        /// The interface.
        interface: String,
    },
    /// The interface has no such method.
    MethodNotFound {
        /// The method.
        method: String,
    },
    /// A parameter is missing or invalid.
    InvalidParameter {
        /// Its name, or its path if it is within another parameter.
        parameter: String,
        /// The error, for people. canal adds this field to the interface.
        message: String,
    },
}

impl ServiceError {
    /// `org.varlink.service.Name`.
    pub fn qualified(&self) -> String {
        let name = match self {
            Self::InterfaceNotFound { .. } => "InterfaceNotFound",
            Self::MethodNotFound { .. } => "MethodNotFound",
            Self::InvalidParameter { .. } => "InvalidParameter",
        };
        format!("{SERVICE}.{name}")
    }

    /// The error for an unknown method.
    pub fn unknown(method: &str) -> Self {
        let interface = method.rsplit_once('.').map_or("", |(interface, _)| interface);
        match description(interface) {
            Some(_) => Self::MethodNotFound { method: method.to_owned() },
            None => Self::InterfaceNotFound { interface: interface.to_owned() },
        }
    }

    /// The error for parameters that cannot be read. `path` leads to the wrong value, and is `.` if
    /// that is unknown.
    pub fn invalid(mut path: String, cause: &serde_json::Error) -> Self {
        let mut message = cause.to_string();
        if cause.line() > 0
            && let Some(end) = message.rfind(" at line ")
        {
            // A person cannot use the position in the JSON text.
            message.truncate(end);
        }
        // A missing field has no path; the message contains its name.
        let missing = message.strip_prefix("missing field `").and_then(|it| it.strip_suffix('`'));
        match (path.as_str(), missing) {
            (".", Some(field)) => path = field.to_owned(),
            (".", None) => path = "parameters".to_owned(),
            (_, Some(field)) => path = format!("{path}.{field}"),
            (_, None) => {}
        }
        let parameter = path.split(['.', '[']).next().unwrap_or_default().to_owned();
        if parameter != path {
            message = format!("{path}: {message}");
        }
        Self::InvalidParameter { parameter, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_that_info_names_has_a_description_that_begins_with_its_name() {
        for interface in Info::ours().interfaces {
            let text = description(&interface).unwrap();
            let line = text.lines().find(|line| line.starts_with("interface ")).unwrap();
            assert_eq!(line, format!("interface {interface}"));
        }
    }

    #[test]
    fn an_unknown_method_is_distinguished_from_an_unknown_interface() {
        assert_eq!(
            ServiceError::unknown("io.canal.Lock.Nope"),
            ServiceError::MethodNotFound { method: "io.canal.Lock.Nope".to_owned() }
        );
        assert_eq!(
            ServiceError::unknown("io.example.Nope"),
            ServiceError::InterfaceNotFound { interface: "io.example".to_owned() }
        );
        assert_eq!(ServiceError::unknown("x").qualified(), "org.varlink.service.InterfaceNotFound");
    }

    #[test]
    fn an_invalid_parameter_is_named_and_never_its_value() {
        for (text, parameter, message) in [
            (r#"{}"#, "tag", "missing field `tag`"),
            (r#"{"tag":5}"#, "tag", "invalid type: integer `5`, expected"),
            (r#"{"tag":"`x`"}"#, "tag", ""),
            (
                r#"{"tag":"000102030405060708090a0b0c0d0e0f","items":[{}]}"#,
                "items",
                "items[0].key: missing field `key`",
            ),
            (
                r#"{"tag":"000102030405060708090a0b0c0d0e0f","items":[{"key":"a","per":-3}]}"#,
                "items",
                "items[0].per: invalid value: integer `-3`, expected",
            ),
            (
                r#"{"tag":"000102030405060708090a0b0c0d0e0f","items":[],"command":"","priority":"x"}"#,
                "priority",
                "invalid type: string \"x\", expected i32",
            ),
            ("[]", "parameters", "invalid length 0"),
            ("5", "parameters", "invalid type: integer `5`, expected"),
        ] {
            let mut reader = serde_json::Deserializer::from_str(text);
            let read = serde_path_to_error::deserialize::<_, crate::Acquire>(&mut reader);
            let error = read.unwrap_err();
            let error = ServiceError::invalid(error.path().to_string(), error.inner());
            let ServiceError::InvalidParameter { parameter: named, message: said } = error else {
                panic!("another error");
            };
            assert_eq!(named, parameter, "{text}: {said}");
            assert!(said.starts_with(message), "{text}: {said}");
            assert!(!said.contains(" at line "), "{text}: {said}");
        }
    }
}
