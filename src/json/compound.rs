//! Writes lists and objects piece by piece.

use serde::Serialize;
use serde::ser::{SerializeSeq, SerializeStruct, SerializeStructVariant};

use super::text::put_name;
use super::writer::{Unwritten, Writer};

/// A list or an object that has been started.
pub(super) struct Compound<'a> {
    out: &'a mut Vec<u8>,
    /// The byte before the next member: the opening bracket or a comma.
    before: u8,
    /// The closing bytes.
    end: &'static [u8],
}

impl<'a> Compound<'a> {
    pub(super) fn list(out: &'a mut Vec<u8>, end: &'static [u8]) -> Self {
        Self { out, before: b'[', end }
    }
    pub(super) fn object(out: &'a mut Vec<u8>, end: &'static [u8]) -> Self {
        Self { out, before: b'{', end }
    }
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unwritten> {
        self.out.push(self.before);
        self.before = b',';
        value.serialize(Writer { out: &mut *self.out })
    }
    fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<(), Unwritten> {
        put_name(self.before, name, self.out);
        self.before = b',';
        value.serialize(Writer { out: &mut *self.out })
    }
    fn close(self) -> Result<(), Unwritten> {
        if self.before != b',' {
            self.out.push(self.before);
        }
        self.out.extend_from_slice(self.end);
        Ok(())
    }
}

impl SerializeSeq for Compound<'_> {
    type Ok = ();
    type Error = Unwritten;
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unwritten> {
        self.element(value)
    }
    fn end(self) -> Result<(), Unwritten> {
        self.close()
    }
}

macro_rules! object {
    ($($kind:ident),*) => {
        $(
            impl $kind for Compound<'_> {
                type Ok = ();
                type Error = Unwritten;
                fn serialize_field<T: Serialize + ?Sized>(
                    &mut self,
                    name: &'static str,
                    value: &T,
                ) -> Result<(), Unwritten> {
                    self.field(name, value)
                }
                fn end(self) -> Result<(), Unwritten> {
                    self.close()
                }
            }
        )*
    };
}

object!(SerializeStruct, SerializeStructVariant);
