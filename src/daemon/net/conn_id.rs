//! The name of a connection.

use slotmap::new_key_type;

new_key_type! {
    /// Names a connection. The name of a closed one is never that of another.
    pub(crate) struct ConnId;
}
