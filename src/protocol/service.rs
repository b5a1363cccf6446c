//! What every varlink service answers: who it is, and what its interfaces look like.

use serde::{Deserialize, Serialize};

use super::{INTERFACE, INTERFACE_DESCRIPTION};

/// The name of the interface that every varlink service has.
pub const SERVICE: &str = "org.varlink.service";

/// Its description.
const SERVICE_DESCRIPTION: &str = include_str!("org.varlink.service.varlink");

/// The reply to `GetInfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Who made it.
    pub vendor: String,
    /// Its name.
    pub product: String,
    /// Its version.
    pub version: String,
    /// Where it is described.
    pub url: String,
    /// The names of its interfaces.
    pub interfaces: Vec<String>,
}

impl Info {
    /// That of this program.
    #[must_use]
    pub fn ours() -> Self {
        Self {
            vendor: "canal".to_owned(),
            product: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            url: env!("CARGO_PKG_REPOSITORY").to_owned(),
            interfaces: vec![SERVICE.to_owned(), INTERFACE.to_owned()],
        }
    }
}

/// `GetInterfaceDescription`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptionQuery {
    /// Of which interface.
    pub interface: String,
}

/// The reply to `GetInterfaceDescription`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The interface as text.
    pub description: String,
}

/// The description of one of our interfaces.
#[must_use]
pub fn description(interface: &str) -> Option<&'static str> {
    match interface {
        SERVICE => Some(SERVICE_DESCRIPTION),
        INTERFACE => Some(INTERFACE_DESCRIPTION),
        _ => None,
    }
}

/// The errors that any call to any varlink service may end with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ServiceError {
    /// There is no such interface.
    InterfaceNotFound {
        /// Which.
        interface: String,
    },
    /// The interface has no such method.
    MethodNotFound {
        /// Which.
        method: String,
    },
    /// A parameter is missing or is not what the method wants.
    InvalidParameter {
        /// Which.
        parameter: String,
        /// What is wrong with it, for people; an addition of ours.
        message: String,
    },
}

impl ServiceError {
    /// `org.varlink.service.Name`.
    #[must_use]
    pub fn qualified(&self) -> String {
        let name = match self {
            Self::InterfaceNotFound { .. } => "InterfaceNotFound",
            Self::MethodNotFound { .. } => "MethodNotFound",
            Self::InvalidParameter { .. } => "InvalidParameter",
        };
        format!("{SERVICE}.{name}")
    }

    /// The error for a method that nobody here answers.
    #[must_use]
    pub fn unknown(method: &str) -> Self {
        let interface = method.rsplit_once('.').map_or("", |(interface, _)| interface);
        match description(interface) {
            Some(_) => Self::MethodNotFound { method: method.to_owned() },
            None => Self::InterfaceNotFound { interface: interface.to_owned() },
        }
    }

    /// The error for parameters that cannot be read. Where the cause names a field in backquotes,
    /// that is the parameter.
    #[must_use]
    pub fn invalid(error: &serde_json::Error) -> Self {
        let mut message = error.to_string();
        if error.line() > 0
            && let Some(end) = message.rfind(" at line ")
        {
            // Where in the text it stands says nothing to who has not written the text.
            message.truncate(end);
        }
        let parameter = message.split('`').nth(1).unwrap_or("parameters").to_owned();
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
    fn an_unknown_method_of_a_known_interface_is_told_from_an_unknown_interface() {
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
    fn a_missing_parameter_is_named() {
        let error = serde_json::from_str::<DescriptionQuery>("{}").unwrap_err();
        let ServiceError::InvalidParameter { parameter, .. } = ServiceError::invalid(&error) else {
            panic!("another error");
        };
        assert_eq!(parameter, "interface");
    }
}
