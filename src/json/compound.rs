//! Lists and objects, as they are written.

use serde::Serialize;
use serde::ser::{
    SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple, SerializeTupleStruct,
    SerializeTupleVariant,
};

use super::text::put_name;
use super::writer::{Unwritten, Writer};

/// A list or an object that was begun.
pub(super) struct Compound<'a> {
    out: &'a mut Vec<u8>,
    /// What stands before the next member: the opening bracket or a comma.
    before: u8,
    /// What closes it.
    end: &'static [u8],
}

impl<'a> Compound<'a> {
    #[inline]
    pub(super) fn list(out: &'a mut Vec<u8>, end: &'static [u8]) -> Self {
        Self { out, before: b'[', end }
    }

    #[inline]
    pub(super) fn object(out: &'a mut Vec<u8>, end: &'static [u8]) -> Self {
        Self { out, before: b'{', end }
    }

    #[inline(always)]
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unwritten> {
        self.out.push(self.before);
        self.before = b',';
        value.serialize(Writer { out: &mut *self.out })
    }

    #[inline(always)]
    fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<(), Unwritten> {
        put_name(self.before, name, self.out);
        self.before = b',';
        value.serialize(Writer { out: &mut *self.out })
    }

    #[inline(always)]
    fn close(self) -> Result<(), Unwritten> {
        if self.before != b',' {
            self.out.push(self.before);
        }
        self.out.extend_from_slice(self.end);
        Ok(())
    }
}

macro_rules! list {
    ($($kind:ident $method:ident),*) => {
        $(
            impl $kind for Compound<'_> {
                type Ok = ();
                type Error = Unwritten;

                #[inline(always)]
                fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unwritten> {
                    self.element(value)
                }

                #[inline(always)]
                fn end(self) -> Result<(), Unwritten> {
                    self.close()
                }
            }
        )*
    };
}

macro_rules! object {
    ($($kind:ident),*) => {
        $(
            impl $kind for Compound<'_> {
                type Ok = ();
                type Error = Unwritten;

                #[inline(always)]
                fn serialize_field<T: Serialize + ?Sized>(
                    &mut self,
                    name: &'static str,
                    value: &T,
                ) -> Result<(), Unwritten> {
                    self.field(name, value)
                }

                #[inline(always)]
                fn end(self) -> Result<(), Unwritten> {
                    self.close()
                }
            }
        )*
    };
}

list!(
    SerializeSeq serialize_element,
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field
);
object!(SerializeStruct, SerializeStructVariant);
