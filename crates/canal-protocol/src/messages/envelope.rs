//! Calls and replies, as varlink frames them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A call, as varlink frames it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// `INTERFACE.Method`.
    pub method: String,
    /// The method's parameters, an object.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub parameters: Value,
    /// Whether the caller accepts several replies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Whether the caller wants no reply.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oneway: bool,
}

/// A reply, as varlink frames it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reply {
    /// The method's result, or the error's parameters.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub parameters: Value,
    /// Whether more replies follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
    /// The error's name, `INTERFACE.Name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
