//! A serializer that writes compact JSON.

use std::fmt;

use serde::Serialize;
use serde::ser::{Error, Impossible, Serializer};

use super::compound::Compound;
use super::text::{put_known, put_name, put_number, put_text};

/// Writes one value.
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut Vec<u8>,
}

/// The value is one for serde_json: it is rare, or has no JSON form.
#[derive(Debug)]
pub(super) struct Unwritten;

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not written here")
    }
}

impl std::error::Error for Unwritten {}

impl Error for Unwritten {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

macro_rules! numbers {
    ($($method:ident: $number:ty),*) => {
        $(
            #[inline]
            fn $method(self, number: $number) -> Result<(), Unwritten> {
                i64::from(number).serialize(self)
            }
        )*
    };
}

impl<'a> Serializer for Writer<'a> {
    type Ok = ();
    type Error = Unwritten;
    type SerializeSeq = Compound<'a>;
    type SerializeTuple = Compound<'a>;
    type SerializeTupleStruct = Compound<'a>;
    type SerializeTupleVariant = Compound<'a>;
    type SerializeMap = Impossible<(), Unwritten>;
    type SerializeStruct = Compound<'a>;
    type SerializeStructVariant = Compound<'a>;

    numbers! {
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32
    }

    #[inline]
    fn serialize_u64(self, number: u64) -> Result<(), Unwritten> {
        put_number(number, self.out);
        Ok(())
    }

    #[inline]
    fn serialize_i64(self, number: i64) -> Result<(), Unwritten> {
        if number < 0 {
            self.out.push(b'-');
        }
        self.serialize_u64(number.unsigned_abs())
    }

    #[inline]
    fn serialize_bool(self, value: bool) -> Result<(), Unwritten> {
        if value {
            self.out.extend_from_slice(b"true");
        } else {
            self.out.extend_from_slice(b"false");
        }
        Ok(())
    }

    #[inline]
    fn serialize_str(self, text: &str) -> Result<(), Unwritten> {
        put_text(text, self.out);
        Ok(())
    }

    #[inline]
    fn serialize_none(self) -> Result<(), Unwritten> {
        self.serialize_unit()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unwritten> {
        value.serialize(self)
    }

    #[inline]
    fn serialize_unit(self) -> Result<(), Unwritten> {
        self.out.extend_from_slice(b"null");
        Ok(())
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), Unwritten> {
        put_known(variant, self.out);
        Ok(())
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Unwritten> {
        value.serialize(self)
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Unwritten> {
        put_name(b'{', variant, self.out);
        value.serialize(Writer { out: &mut *self.out })?;
        self.out.push(b'}');
        Ok(())
    }

    #[inline]
    fn serialize_seq(self, _: Option<usize>) -> Result<Compound<'a>, Unwritten> {
        Ok(Compound::list(self.out, b"]"))
    }

    #[inline]
    fn serialize_tuple(self, _: usize) -> Result<Compound<'a>, Unwritten> {
        Ok(Compound::list(self.out, b"]"))
    }

    #[inline]
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Compound<'a>, Unwritten> {
        Ok(Compound::list(self.out, b"]"))
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Compound<'a>, Unwritten> {
        put_name(b'{', variant, self.out);
        Ok(Compound::list(self.out, b"]}"))
    }

    #[inline]
    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Compound<'a>, Unwritten> {
        // serde_json's own types, such as `RawValue`, are more than they seem to be.
        if name.starts_with("$serde_json") {
            return Err(Unwritten);
        }
        Ok(Compound::object(self.out, b"}"))
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Compound<'a>, Unwritten> {
        put_name(b'{', variant, self.out);
        Ok(Compound::object(self.out, b"}}"))
    }

    fn serialize_f32(self, _: f32) -> Result<(), Unwritten> {
        Err(Unwritten)
    }

    fn serialize_f64(self, _: f64) -> Result<(), Unwritten> {
        Err(Unwritten)
    }

    fn serialize_char(self, _: char) -> Result<(), Unwritten> {
        Err(Unwritten)
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<(), Unwritten> {
        Err(Unwritten)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Unwritten> {
        self.serialize_unit()
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Unwritten> {
        Err(Unwritten)
    }
}
