//! The id of a connection.

use slotmap::new_key_type;

new_key_type! {
    /// Identifies a connection. The id of a closed connection never becomes that of another.
    pub struct ConnId;
}
